package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idempotent-go/idempotent"
)

const (
	clients        = 8
	callsPerClient = 8
	keys           = 4
)

type endpoint = idempotent.Endpoint[int, int]

// history is one fresh endpoint, what its clients called, and what they got.
// Short histories find what long ones hide: most interleavings of two critical
// sections happen once, when a key is new.
type history struct {
	opts    idempotent.Options[int, int]
	leave   bool         // some callers go away
	rounds  bool         // all clients make their next call at once
	arrived atomic.Int64 // calls about to be made, over all rounds
	e       *endpoint
	base    time.Time
	calls   [clients * callsPerClient]call
	end     time.Duration
}

// call is one operation. Its id, from 1, is the value that its effect returns.
type call struct {
	id      int
	op      string
	key     int
	noWait  bool
	timeout time.Duration // negative: ctx is dead at once; 0 = ctx never ends
	yields  int           // how long the effect takes
	ending  ending

	called, started, ended, returned time.Duration // since the history's base
	entered                          bool
	value                            int
	verdict                          idempotent.Verdict
	err                              error
	ok                               bool
	thrown                           any
}

type effectError int

func (e effectError) Error() string { return fmt.Sprintf("effect %d failed", int(e)) }

// ending is how an effect ends.
type ending string

const (
	success   ending = "success"
	failure   ending = "failure"
	permanent ending = "permanent failure"
	unsure    ending = "unknown outcome"
	panics    ending = "panic"
)

// draw plans a history.
func draw(rng *rand.Rand) *history {
	oneIn := func(n int) bool { return rng.IntN(n) == 0 }
	h := &history{leave: oneIn(3), rounds: oneIn(2)}
	h.opts = idempotent.Options[int, int]{TTL: idempotent.Forever, StaleMemory: -1, ShareFailure: oneIn(3), Detach: oneIn(4)}
	if oneIn(3) {
		h.opts.TTL = time.Duration(1+rng.IntN(100)) * time.Microsecond
	}
	if oneIn(4) {
		h.opts.Capacity = 1 + rng.IntN(keys-1)
	}
	if oneIn(4) {
		h.opts.StaleMemory = 2
	}
	faulty := 1 + rng.IntN(4)
	forgetful := 3 + rng.IntN(6)
	for i := range h.calls {
		c := &h.calls[i]
		*c = call{id: i + 1, op: "do", key: 1 + rng.IntN(keys), noWait: oneIn(10), yields: rng.IntN(4), ending: success}
		if oneIn(faulty) {
			c.ending = []ending{failure, failure, permanent, unsure, panics}[rng.IntN(5)]
		}
		if h.leave && oneIn(3) {
			c.timeout = time.Duration(rng.IntN(20)-2) * time.Microsecond
		}
		if oneIn(forgetful) {
			c.op = []string{"forget", "forget", "lookup", "resolve"}[rng.IntN(4)]
		}
	}
	return h
}

func (h *history) now() time.Duration { return time.Since(h.base) }

// run lets all clients loose at once.
func (h *history) run() {
	e, err := idempotent.New(h.opts)
	if err != nil {
		panic(err)
	}
	h.e, h.base = e, time.Now()
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			<-start
			for j := range callsPerClient {
				h.arrive(j)
				h.perform(&h.calls[i*callsPerClient+j])
			}
		})
	}
	close(start)
	wg.Wait()
	for e.Stats().InFlight > 0 { // effects that their callers left
		runtime.Gosched()
	}
	h.end = h.now()
}

// arrive waits for all clients before each round. They spin: those who are woken
// come one after another.
func (h *history) arrive(round int) {
	if !h.rounds {
		return
	}
	h.arrived.Add(1)
	for h.arrived.Load() < int64(clients*(round+1)) {
		runtime.Gosched()
	}
}

// stalled says that the machine kept the process from its timers for so long
// that a result may have been replayed past its end: a timer tells readers 50 ms
// in time when to look at the clock.
func (h *history) stalled() bool {
	return h.opts.TTL != idempotent.Forever && h.end > 50*time.Millisecond
}

func (h *history) perform(c *call) {
	ctx := context.Background()
	if c.timeout != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	defer func() {
		c.thrown = recover()
		c.returned = h.now()
	}()
	c.called = h.now()
	switch c.op {
	case "forget":
		c.ok = h.e.Forget(c.key)
	case "lookup":
		var r idempotent.Record[int]
		r, c.ok = h.e.Lookup(c.key)
		c.value = r.Value
	case "resolve":
		c.ok = h.e.Resolve(c.key, c.id)
	default:
		req := idempotent.Request[int]{Key: c.key, NoWait: c.noWait}
		c.value, c.verdict, c.err = h.e.Handle(ctx, req, func(context.Context) (int, error) { return h.effect(c) })
	}
}

// effect takes time, so that effects overlap: two of the bugs that this layer
// is for cannot be seen otherwise.
func (h *history) effect(c *call) (int, error) {
	c.started, c.entered = h.now(), true
	for range c.yields {
		runtime.Gosched()
	}
	c.ended = h.now()
	switch err := effectError(c.id); c.ending {
	case failure:
		return c.id, err
	case permanent:
		return c.id, idempotent.Permanent(err)
	case unsure:
		return c.id, idempotent.Unknown(err)
	case panics:
		panic(err)
	}
	return c.id, nil
}

// operations translates the history for the checker. Each is one critical
// section and lies between two instants; a call whose effect ran has two. The
// end of a window is an operation too.
func (h *history) operations(buf []porcupine.Operation) (ops []porcupine.Operation, err error) {
	ops = buf[:0]
	add := func(c *call, does action, id int, from, to time.Duration) {
		ops = append(ops, porcupine.Operation{
			ClientId: (c.id - 1) / callsPerClient, Call: int64(from), Return: int64(to),
			Input: section{does: does, key: c.key - 1, id: id, most: h.opts.Capacity},
		})
	}
	keep := func(c *call, from, to time.Duration) {
		if ttl := h.opts.TTL; ttl != idempotent.Forever && from+ttl <= h.end {
			add(c, ends, c.id, from+ttl, to+ttl)
		}
	}
	for i := range h.calls {
		c := &h.calls[i]
		switch {
		case c.op == "forget" && c.ok:
			add(c, forgets, 0, c.called, c.returned)
		case c.op == "lookup" && c.ok:
			add(c, replays, c.value, c.called, c.returned)
		case c.op == "resolve" && c.ok:
			add(c, resolves, c.id, c.called, c.returned)
			keep(c, c.called, c.returned)
		case c.op == "resolve":
			add(c, resolvesNot, 0, c.called, c.returned)
		case c.op != "do":
			add(c, findsNone, 0, c.called, c.returned)
		case c.entered:
			if err := h.own(c); err != nil {
				return nil, err
			}
			settled := c.returned
			if errors.Is(c.err, idempotent.ErrInFlight) {
				settled = h.end // it left
			}
			add(c, claims, c.id, c.called, c.started)
			switch c.ending {
			case failure, panics:
				add(c, gives, c.id, c.ended, settled)
			case unsure:
				add(c, keepsUnknown, c.id, c.ended, settled)
				keep(c, c.ended, settled)
			default:
				add(c, keeps, c.id, c.ended, settled)
				keep(c, c.ended, settled)
			}
		default:
			does, id, err := h.others(c)
			if err != nil {
				return nil, err
			}
			if does != nothing {
				add(c, does, id, c.called, c.returned)
			}
		}
	}
	return ops, nil
}

// own checks what a call returned whose effect ran.
func (h *history) own(c *call) error {
	left := errors.Is(c.err, idempotent.ErrInFlight)
	value, err := c.id, error(nil)
	if c.ending == panics {
		value, err = 0, effectError(c.id)
		if c.thrown == err && !h.opts.Detach {
			return nil
		}
	} else if c.ending != success {
		err = effectError(c.id)
	}
	switch {
	case c.verdict != idempotent.Executed || c.thrown != nil,
		left && !(h.opts.Detach && c.timeout != 0 && c.value == 0),
		!left && (c.value != value || !sameError(c.err, err)):
		return fmt.Errorf("%v: its own effect ended in %s", c, c.ending)
	}
	return nil
}

// others translates a call whose effect did not run.
func (h *history) others(c *call) (does action, id int, err error) {
	dead := c.timeout != 0 && errors.Is(c.err, context.DeadlineExceeded)
	switch inFlight := errors.Is(c.err, idempotent.ErrInFlight); {
	case c.thrown != nil:
		return 0, 0, fmt.Errorf("%v: panic without an effect", c)
	case c.verdict == idempotent.Replayed, c.verdict == idempotent.Shared:
		id = c.value
		if e, ok := errors.AsType[effectError](c.err); ok {
			id = int(e)
		}
		if id < 1 || id > len(h.calls) {
			return 0, 0, fmt.Errorf("%v: nobody's outcome", c)
		}
		if err := h.foreign(c, &h.calls[id-1]); err != nil {
			return 0, 0, err
		}
		if c.verdict == idempotent.Shared {
			return joins, id, nil
		}
		return replays, id, nil
	case c.verdict != idempotent.Refused || c.value != 0:
	case inFlight && (dead || c.noWait):
		// The claim may have been in the hands of a call that was leaving: nobody
		// sees from outside when.
		if h.othersLeft(c) {
			return nothing, 0, nil
		}
		return findsRunning, 0, nil
	case errors.Is(c.err, idempotent.ErrFull):
		if h.othersLeft(c) {
			return nothing, 0, nil
		}
		return findsFull, 0, nil
	case dead:
		return findsNone, 0, nil
	}
	return 0, 0, fmt.Errorf("%v: no rule allows it", c)
}

// foreign checks an outcome that call c was handed against the attempt that it
// says it came from.
func (h *history) foreign(c, from *call) error {
	var err error
	value := from.id
	switch {
	case from.op == "resolve":
	case !from.entered || from.ended > c.returned:
		return fmt.Errorf("%v: the outcome of %v, which has none", c, from)
	case from.ending != success:
		err = effectError(from.id)
	}
	if from.op == "do" && (from.ending == failure || from.ending == panics) {
		if c.verdict == idempotent.Replayed || !h.opts.ShareFailure {
			return fmt.Errorf("%v: the failure of %v", c, from)
		}
		value = 0
	}
	if from.key != c.key || c.value != value || !sameError(c.err, err) {
		return fmt.Errorf("%v: not what %v left", c, from)
	}
	return nil
}

// othersLeft reports whether a call gave up on its ctx while c was in the
// endpoint: it may have held a claim for a moment that nobody sees from outside,
// as an heir, or between its claim and its effect.
func (h *history) othersLeft(c *call) bool {
	for i := range h.calls {
		o := &h.calls[i]
		if o != c && o.op == "do" && o.timeout != 0 && !o.entered && errors.Is(o.err, context.DeadlineExceeded) &&
			o.called <= c.returned && c.called <= o.returned {
			return true
		}
	}
	return false
}

func sameError(got, want error) bool {
	return got == nil && want == nil || want != nil && errors.Is(got, want)
}

func (c *call) String() string {
	return fmt.Sprintf("call %d: %s key %d, noWait %t, timeout %v, %d..[%d..%d]..%d: (%d, %v, %v) ok %t thrown %v, ending %s",
		c.id, c.op, c.key, c.noWait, c.timeout, c.called, c.started, c.ended, c.returned, c.value, c.verdict, c.err, c.ok, c.thrown, c.ending)
}
