package idempotent

import (
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

const (
	// margin is how long before a result ends its readers begin to look at the
	// clock, and how late the timer may be without being noticed.
	margin = 250 * time.Millisecond
	// sweepPause is the least time between two sweeps: results that end one after
	// another go in groups.
	sweepPause = 50 * time.Millisecond
	// fewAtOnce is how many results may end at once for the stale memory to
	// forget in the very order in which they end, and not in about that order.
	fewAtOnce = 256
)

// timing tells whether a result has ended, on most calls without a look at the
// clock: as long as the present is before horizon, what ends at horizon or later
// has not ended. A timer rings a margin before horizon to move it on, and sweeps
// what has ended. If it is later than the margin (the process was stopped, say),
// results may be replayed so much longer, until the first call that looks at the
// clock or claims the key again.
//
// The timer is armed only while results are kept that will end. It holds the
// endpoint weakly, since a pending timer is a root of the garbage collector.
type timing struct {
	clock
	window  time.Duration
	horizon atomic.Int64 // never, while the timer is not armed

	mu    sync.Mutex
	timer *time.Timer // made when first armed
	due   int64       // when it rings; never, once it has rung
	ring  func()
}

func (t *timing) init(window time.Duration, ring func()) {
	t.clock, t.window, t.ring, t.due = clock{time.Now()}, window, ring, never
	t.horizon.Store(never)
}

// ended reports whether a result with the common window has ended. The clock is
// looked at last: the answer is right for a moment of this call.
func (t *timing) ended(completed int64) bool {
	// Neither side overflows: never is the greatest horizon and window.
	return completed < t.horizon.Load()-int64(t.window) && t.over(completed)
}

// over is what ended finds out by the clock.
func (t *timing) over(completed int64) bool {
	return after(completed, t.window) <= t.now()
}

// look returns the present, and sees to it that horizon is not before it.
func (t *timing) look() int64 {
	now := t.now()
	if horizon := t.horizon.Load(); now >= horizon {
		t.horizon.CompareAndSwap(horizon, never) // unless expect has just moved it
	}
	return now
}

// expect makes the timer ring in time for a result that ends at an instant.
func (t *timing) expect(now, ends int64) {
	ring := ends - int64(margin)
	if ring < now+int64(sweepPause) {
		ring = max(ends, now+int64(sweepPause)) // its readers look at the clock already
	}
	if ring+int64(margin) >= t.horizon.Load() {
		return // it rings before
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if ring+int64(margin) >= t.horizon.Load() {
		return
	}
	t.horizon.Store(ring + int64(margin))
	if ring >= t.due {
		return // it is late: put off, it would not ring for what has ended already
	}
	t.due = ring
	wait := time.Duration(ring - t.look()) // now may be long ago: look again
	if t.timer == nil {
		t.timer = time.AfterFunc(wait, t.ring)
	} else {
		t.timer.Reset(wait)
	}
}

// rung notes that the timer has rung. What is kept from here on arms it again.
func (t *timing) rung() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due = never
	t.horizon.Store(never)
}

// pace is when long work last paused for breath. A thread that keeps working may
// take the core of a caller's, although another is idle, until the system looks
// again: after 4 ms, on many.
type pace time.Time

const burst, breath = time.Millisecond, 100 * time.Microsecond

// rest pauses if the work has gone on for a burst. No shard's lock may be held.
func (p *pace) rest() {
	if time.Since(time.Time(*p)) >= burst {
		time.Sleep(breath)
		*p = pace(time.Now())
	}
}

// weakly returns a call of f on e, for as long as something else refers to e.
func weakly[T any](e *T, f func(*T)) func() {
	ref := weak.Make(e)
	return func() {
		if e := ref.Value(); e != nil {
			f(e)
		}
	}
}

// sweep is what the timer does. If it rings while another sweep is at work, that
// one goes round again.
func (e *Endpoint[K, V]) sweep() {
	e.timing.rung() // before the results are looked at
	if e.rings.Add(1) > 1 {
		return
	}
	for rings := int32(1); ; rings = e.rings.Load() {
		e.sweepOnce()
		if e.rings.CompareAndSwap(rings, 0) {
			return
		}
	}
}

// sweepOnce lets go of what has ended and arms the timer for the next.
func (e *Endpoint[K, V]) sweepOnce() {
	e.expire()
	pace := pace(time.Now())
	for range indexes { // of which tidy remakes one
		for i := range e.shards {
			s := &e.shards[i]
			s.mu.Lock()
			s.results.ledger.tidy()
			s.mu.Unlock()
			pace.rest()
		}
	}
	e.timing.expect(e.timing.look(), e.earliest())
}

// expire lets go of all results whose window has ended, and says how many. One
// call at a time: a second one would tell the shards to leave out what the first
// has counted on for the stale memory.
func (e *Endpoint[K, V]) expire() (n int) {
	e.expiring.Lock()
	defer e.expiring.Unlock()
	now := e.timing.look()
	if e.survey(now) > fewAtOnce {
		return e.expireUntil(now)
	}
	for next := e.earliest(); next <= now && next != never; next = e.earliest() {
		n += e.expireUntil(next)
	}
	return n
}

// earliest is when the next window ends.
func (e *Endpoint[K, V]) earliest() int64 {
	next := int64(never)
	for i := range e.shards {
		s := &e.shards[i]
		s.mu.Lock()
		next = min(next, s.results.earliest())
		s.mu.Unlock()
	}
	return next
}

// expireUntil lets go of all results that end by an instant, and says how many.
func (e *Endpoint[K, V]) expireUntil(end int64) (n int) {
	// A lock that is taken again at once keeps its waiters out for milliseconds:
	// each shard has a short turn, then the next.
	const turn = 64
	pace := pace(time.Now())
	for more := true; more; {
		more = false
		for i := range e.shards {
			s := &e.shards[i]
			s.mu.Lock()
			gone := s.results.expireSome(end, turn)
			s.mu.Unlock()
			n += gone
			more = more || gone == turn
			pace.rest()
		}
	}
	return n
}

// survey tells how many results have ended at now, those of a shelf up to about
// fewAtOnce. It also tells the shards how many of them the stale memory need not
// learn because later ones will push them out again: of a million, most. expiring
// must be held.
func (e *Endpoint[K, V]) survey(now int64) (ended int) {
	logged, shelved := make([]int, len(e.shards)), 0
	pace := pace(time.Now())
	for i := range e.shards {
		s := &e.shards[i]
		s.mu.Lock()
		logged[i] = s.results.ended(now)
		shelved += s.results.shelf.ended(now)
		s.mu.Unlock()
		ended += logged[i]
		pace.rest()
	}
	if e.stale != nil && ended > max(e.stale.most, fewAtOnce) {
		share := 1 - float64(e.stale.most)/float64(ended)
		for i := range e.shards {
			s := &e.shards[i]
			s.mu.Lock()
			s.results.surplus = int(float64(logged[i]) * share)
			s.mu.Unlock()
		}
	}
	return ended + shelved
}

// makeRoom lets go of results that have ended at now or, with EvictOldest, of
// the one that completed first, unless its outcome is unknown. False means that no key may go. Every shard's mu
// must be held.
func (e *Endpoint[K, V]) makeRoom(now int64) bool {
	const turn = 8 // one is enough; not so many that callers wait for it
	gone := 0
	oldest := &e.shards[0]
	for i := range e.shards {
		s := &e.shards[i]
		gone += s.results.expireSome(now, turn)
		if s.results.oldest().before(oldest.results.oldest()) {
			oldest = s
		}
	}
	if gone == 0 && e.opts.EvictOldest && oldest.results.oldest() != none {
		oldest.results.evictOldest()
		gone++
	}
	return gone > 0
}

// lockAll takes every shard's lock. Nobody else holds two of them.
func (e *Endpoint[K, V]) lockAll() {
	for i := range e.shards {
		e.shards[i].mu.Lock()
	}
}

func (e *Endpoint[K, V]) unlockAll() {
	for i := range e.shards {
		e.shards[i].mu.Unlock()
	}
}
