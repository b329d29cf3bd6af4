package idempotent

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

// sweepPause is the least time between two sweeps: results that end one after
// another are let go in groups. A read is exact whatever the sweeper has done.
const sweepPause = 10 * time.Millisecond

// alarm is the timer that sweeps expired results. It is armed only while results
// are kept that will end, and holds the endpoint weakly: a pending timer is a
// root of the garbage collector.
type alarm struct {
	at    atomic.Int64 // when it rings; never while it is not armed
	sweep func()

	mu    sync.Mutex
	timer *time.Timer // made by the first set
}

func (a *alarm) init(sweep func()) {
	a.at.Store(never)
	a.sweep = sweep
}

// weakly returns a call of f on e, while e is alive for other reasons.
func weakly[T any](e *T, f func(*T)) func() {
	ref := weak.Make(e)
	return func() {
		if e := ref.Value(); e != nil {
			f(e)
		}
	}
}

// set makes the alarm ring at an instant, unless it will ring before.
func (a *alarm) set(c clock, at int64) {
	if at >= a.at.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if at >= a.at.Load() {
		return
	}
	a.at.Store(at)
	wait := time.Duration(at - c.now())
	if a.timer == nil {
		a.timer = time.AfterFunc(wait, a.sweep)
	} else {
		a.timer.Reset(wait)
	}
}

// sweep lets go of all results whose window has ended, and sets the alarm for
// the next.
func (e *Endpoint[K, V]) sweep() {
	e.alarm.at.Store(never) // before the results are looked at: what is kept from here on sets it
	e.expire()
	next := int64(never)
	for i := range e.shards {
		s := &e.shards[i]
		s.mu.Lock()
		next = min(next, s.results.earliest())
		s.mu.Unlock()
	}
	if next < never {
		e.alarm.set(e.clock, max(next, after(e.clock.now(), sweepPause)))
	}
}

// expire lets go of all results whose window has ended, and says how many.
func (e *Endpoint[K, V]) expire() (n int) {
	// A lock that is taken again at once keeps its waiters out for milliseconds,
	// so each shard has only a short turn, and then the next.
	const turn = 64
	now := e.clock.now()
	for more := true; more; {
		more = false
		for i := range e.shards {
			s := &e.shards[i]
			s.mu.Lock()
			gone := s.results.expireSome(now, turn)
			s.mu.Unlock()
			n += gone
			more = more || gone == turn
		}
		if more {
			runtime.Gosched()
		}
	}
	return n
}

// makeRoom lets go of what has expired or, with EvictOldest, of the oldest
// result. False means that no key may go.
func (e *Endpoint[K, V]) makeRoom() bool {
	return e.expire() > 0 || e.opts.EvictOldest && e.evictOldest()
}

// evictOldest drops the result that completed first, of all shards.
func (e *Endpoint[K, V]) evictOldest() bool {
	for {
		var from *shard[K, V]
		first := int64(never)
		for i := range e.shards {
			s := &e.shards[i]
			s.mu.Lock()
			if r := s.results.oldest(); r != nil && r.order < first {
				from, first = s, r.order
			}
			s.mu.Unlock()
		}
		if from == nil {
			return false
		}
		from.mu.Lock()
		r := from.results.oldest()
		same := r != nil && r.order == first
		if same {
			from.results.evict(r)
		}
		from.mu.Unlock()
		if same {
			return true // else it has gone in another way: look again
		}
	}
}
