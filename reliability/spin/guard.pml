/* The protocol of idemredis for one key: one Redis, WORKERS processes, each of
 * which may stop for good after any step, or for any time between two steps
 * (a SIGSTOP, a pause of the collector: another process is scheduled). The lease
 * of a claim may end at any moment, whatever its owner does. The answer to a
 * claim may be lost, and the claim itself may arrive after its caller has left.
 *
 * A script of Redis is one atomic step. The variants:
 *
 *   HOLD      a lost lease holds the key as unknown (the default); else run again
 *   KEYED     the effect's own store is unique on the key
 *   BLIND     scripts do not compare the token: the obvious protocol, and wrong
 *   LATE      a settle after the lease's end is accepted: generous, and wrong
 *
 *   CARELESS  the operator forgets a key whose worker may still be alive
 *
 * run.sh says which variant must hold and which must be refuted.
 */
#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef CALLS
#define CALLS 2 /* of each worker: after the first it is a redelivery */
#endif

mtype = { free, claim, result };

/* Redis */
mtype state = free;
byte owner;     /* the claim's or result's token */
bool alive;     /* the claim's lease */
byte late;      /* a claim's token, on its way while its caller has left */

/* the world */
byte effects;              /* how often the side effect has happened */
bool gone[WORKERS + 5];    /* workers that do nothing any more, by _pid */

bool unknown;              /* some caller was told that nobody knows */

#ifdef BLIND
#define OURS true
#else
#define OURS (owner == token)
#endif
#ifdef LATE
#define IN_TIME true
#else
#define IN_TIME alive
#endif
#ifdef HOLD
#define TAKEN (state != free)
#else
#define TAKEN (state == result || (state == claim && alive))
#endif
#define LOST (state == claim && !alive)

/* what may happen to a worker after any step */
#define CRASH if :: true :: goto dead fi

inline granted(t) {
	state = claim;
	owner = t;
	alive = true
}

proctype Worker() {
	byte token, calls;
	bool failed;

call:
	CRASH;
	if
	:: calls == CALLS -> goto dead
	:: else
	fi;
	atomic {
		failed = false;
		calls++;
		token = _pid * CALLS + calls /* each call has its own */
	}
	/* wait while another owns the key; or leave with the claim on its way */
	if
	:: atomic { late == 0 -> late = token; goto call }
	:: atomic { !(state == claim && alive) ->
		if
		:: state == result -> assert(effects > 0); goto dead /* acknowledged */
		:: state != result && TAKEN -> unknown = true; goto dead
		:: !TAKEN -> granted(token)
		fi }
	fi;
	CRASH;
	/* the answer is lost: the effect is not entered, the claim is dropped */
	if
	:: true
	:: atomic { (state == claim && owner == token) -> state = free; owner = 0; alive = false; goto call }
	:: atomic { !(state == claim && owner == token) -> goto call }
	fi;
	CRASH;
	/* the effect heeds no context: it happens also when the lease is lost */
	if
	:: failed = true
	:: failed = false;
	   atomic {
		if
#ifdef KEYED
		:: effects > 0
		:: effects == 0 -> effects++
#else
		:: effects++
#endif
		fi
	   }
	fi;
	CRASH;
	/* settle; a second try, as the first answer was lost, changes nothing */
	atomic {
		if
		:: state == claim && OURS && IN_TIME ->
			if
			:: failed -> state = free; owner = 0; alive = false
			:: else ->
				assert(effects > 0);
				assert(owner == token); /* nobody else's claim is settled */
				assert(!(unknown && LOST)); /* who was told unknown must not be proved wrong */
				state = result; alive = false /* acknowledged */
			fi
		:: else /* ErrLeaseLost, ErrNotRecorded: the caller is not told done */
		fi
	};
	goto call;
dead:
	atomic { gone[_pid] = true; token = 0; calls = 0; failed = false } /* states that differ in these are one */
}

/* Time passes, and the network delivers. */
active proctype Environment() {
end:
	do
	:: atomic { state == claim && alive -> alive = false;
#ifndef HOLD
		state = free; owner = 0 /* the record has an expiry */
#endif
	   }
	:: atomic { late > 0 ->
		if
		:: !TAKEN -> granted(late)
		:: TAKEN
		fi;
		late = 0 }
	:: atomic { late > 0 && state == claim && owner == late -> state = free; owner = 0; alive = false } /* its drop */
	od
}

init {
	atomic {
		byte i;
		for (i : 1 .. WORKERS) { run Worker() }
	}
}

#ifdef CARELESS
#define MAY_FORGET true
#else
#define MAY_FORGET gone[(owner - 1) / CALLS]
#endif

/* The operator looks whether the effect has happened, and settles what is held. */
active proctype Operator() {
end:
	do
	:: atomic { LOST && effects > 0 -> state = result; owner = 0 } /* Resolve */
	:: atomic { LOST && effects == 0 && MAY_FORGET -> state = free; owner = 0; unknown = false } /* Forget */
	od
}

/* At most once; and what is kept as done has happened. */
active proctype Promise() {
end:
	atomic { effects > 1 || (state == result && effects == 0) -> assert(false) }
}
