package idempotent

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A Claim is a key whose effect is running, as [Endpoint.InFlight] shows it.
type Claim[K comparable] struct {
	Key     K
	Since   time.Time // when the running attempt took the claim
	Waiters int
}

// Stats are counts since New and what is held now. Every call that has returned
// counts as exactly one of Executed, Failed, Replayed, Shared and Refused; a
// call that left its own effect ([Options].Detach) counts when that ends.
// Stale is read a little earlier, Replayed and Refused a little later than the
// others, which are of one instant.
type Stats struct {
	Executed uint64 // effects that left a result, kept failures included
	Failed   uint64 // effects that left none
	Panicked uint64 // the part of Failed that did not return
	Replayed uint64
	Shared   uint64
	Refused  uint64
	Stale    uint64 // calls that took the claim of a key remembered as expired or evicted
	Expired  uint64 // results whose window ended
	Evicted  uint64 // results dropped early, for EvictOldest

	InFlight int // running claims
	Waiting  int // calls that wait for one of them
	Retained int // kept results
	Unknown  int // those of them whose outcome is unknown: see [Unknown]
}

// Stats returns the counters. It lets go of ended results first, or waits until
// that is done, which takes as long as there are many. Then it reads under every
// shard's lock: microseconds, for which replays do not wait.
func (e *Endpoint[K, V]) Stats() Stats {
	e.expire() // so that Retained counts none that had ended, whatever the sweeper has done
	var total Stats
	if e.stale != nil {
		total.Stale = e.stale.hits.Load()
	}
	e.lockAll()
	for i := range e.shards {
		s := &e.shards[i]
		total.Executed += s.executed
		total.Failed += s.failed
		total.Panicked += s.panicked
		total.Shared += s.shared
		total.Expired += s.results.expired
		total.Evicted += s.results.evicted
		total.InFlight += s.claims.len()
		total.Waiting += s.waiting
		total.Retained += s.results.len()
		total.Unknown += s.results.shelf.unknown
	}
	e.unlockAll()
	for i := range e.tallies {
		total.Replayed += e.tallies[i].counts[replayed].Load()
		total.Refused += e.tallies[i].counts[refused].Load()
	}
	return total
}

// InFlight returns the running claims, oldest first.
func (e *Endpoint[K, V]) InFlight() []Claim[K] {
	start := e.timing.start()
	var claims []Claim[K]
	for i := range e.shards {
		s := &e.shards[i]
		s.mu.Lock()
		s.claims.each(func(c *claim[K, V]) {
			claim := Claim[K]{Key: c.key, Since: start.Add(time.Duration(c.since))}
			if l := c.line.Load(); l != nil {
				claim.Waiters = l.len
			}
			claims = append(claims, claim)
		})
		s.mu.Unlock()
	}
	slices.SortStableFunc(claims, func(a, b Claim[K]) int { return a.Since.Compare(b.Since) })
	return claims
}

// Lookup returns the key's kept result and changes nothing: no counter, no
// window. A key that cannot be hashed panics as in a map.
func (e *Endpoint[K, V]) Lookup(key K) (Record[V], bool) {
	hash := e.hash(key)
	s := e.shard(hash)
	now := e.timing.look()
	s.mu.Lock()
	k := s.results.peek(key, hash)
	s.mu.Unlock()
	if k == nil || k.ends <= now {
		return Record[V]{}, false
	}
	return e.record(*k, e.timing.start()), true
}

// Forget drops the key's kept result, so that the next call runs, and says
// whether there was one. The key is then not stale either, also if its result
// had ended before. A running claim is not touched. A key that cannot be hashed
// panics as in a map.
func (e *Endpoint[K, V]) Forget(key K) bool {
	hash := e.hash(key)
	s := e.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.results.get(key, hash, e.timing.look()) != nil
	if kept {
		s.results.drop(key, hash)
		e.room.give()
	}
	e.stale.forget(key)
	return kept
}

// Resolve settles an unknown outcome as done: value is the key's result from now
// on, for [Options].TTL. False means that the key's outcome is not unknown, and
// that nothing has changed. A key that cannot be hashed panics as in a map.
func (e *Endpoint[K, V]) Resolve(key K, value V) bool {
	hash := e.hash(key)
	s := e.shard(hash)
	s.mu.Lock()
	now := e.timing.look()
	k := s.results.get(key, hash, now)
	if k == nil || !k.unknown {
		s.mu.Unlock()
		return false
	}
	s.results.drop(key, hash)
	ends := after(now, e.opts.TTL)
	s.results.add(key, hash, kept[V]{
		value: value, fingerprint: k.fingerprint, completed: now, ends: ends, order: e.nextOrder(),
	})
	s.mu.Unlock()
	e.timing.expect(now, ends)
	return true
}

// Shutdown starts no more effects and waits for the running ones until ctx ends:
// then it returns ctx's error, and may be called again. From now on a call for a
// key without a result is refused with [ErrShutdown]; kept results are still
// replayed, and the waiters of a running attempt get its outcome. Inside an
// effect of this endpoint, with the effect's context, Shutdown would wait for
// itself: it returns an error that matches [ErrDeadlock] at once, and the
// endpoint is shut all the same. Effects of two endpoints that shut each other
// down wait until ctx ends.
func (e *Endpoint[K, V]) Shutdown(ctx context.Context) error {
	var drained []chan struct{}
	for i := range e.shards {
		s := &e.shards[i]
		s.mu.Lock()
		s.closed = true
		if s.claims.len() > 0 {
			if s.drained == nil {
				s.drained = make(chan struct{})
			}
			drained = append(drained, s.drained)
		}
		s.mu.Unlock()
	}
	if e.slots != nil {
		e.slots.close()
	}
	if e.inside(ctx) {
		return fmt.Errorf("%w: Shutdown inside an effect", ErrDeadlock)
	}
	for _, done := range drained {
		select {
		case <-done:
		case <-ctx.Done():
			if e.running() {
				return fmt.Errorf("idempotent: shutdown: effects are still running: %w", contextError(ctx))
			}
		}
	}
	return nil
}

// running reports whether there are claims.
func (e *Endpoint[K, V]) running() bool {
	claims := 0
	for i := range e.shards {
		s := &e.shards[i]
		s.mu.Lock()
		claims += s.claims.len()
		s.mu.Unlock()
	}
	return claims > 0
}

// inside reports whether ctx belongs to a running effect of this endpoint.
func (e *Endpoint[K, V]) inside(ctx context.Context) bool {
	for c := callerOf(ctx); c != nil; c = c.outer() {
		if own, ok := c.(*claim[K, V]); ok {
			s := e.shard(e.hash(own.key))
			s.mu.Lock()
			running := s.claims.get(own.key) == own
			s.mu.Unlock()
			if running {
				return true
			}
		}
	}
	return false
}
