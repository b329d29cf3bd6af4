package idempotent

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// shard is the part of the keys that share a lock. Claims and results of a key
// are under the same one: looking a key up and claiming it are one critical
// section, and so are keeping its result and giving the claim up.
type shard[K comparable, V any] struct {
	mu      sync.Mutex
	claims  map[K]*claim[K, V]
	results results[K, V]
	waiting int           // calls in the claims' lines
	closed  bool          // no claim starts an effect any more
	drained chan struct{} // made by Shutdown, closed when no claim is left

	executed, failed, panicked, shared uint64

	replayed, refused atomic.Uint64 // not under mu

	_ [64]byte // the next shard's lock is not on this one's cache line
}

// claim is a key whose effect is running, in the hands of one call. It is also
// the context of that effect, which may outlive the claim: what can be read
// through it is never written again.
type claim[K comparable, V any] struct {
	caller context.Context
	key    K
	since  int64 // by the endpoint's clock

	// line is what only some claims need. It passes on with the claim, and then
	// this one's is nil. Added by callers under mu and by the effect without it;
	// taken away under mu.
	line atomic.Pointer[line[K, V]]
}

// line is those who wait for a claim, longest first, and the claim's place in
// the wait-for graph. Guarded by the shard's mu, but for the node.
type line[K comparable, V any] struct {
	fingerprint string
	first, last *waiter[K, V]
	len         int
	node        node
}

// waiter is a call that waits for a claim. When ready is closed it has left the
// line, one of claim, end and err is set, and none of them is written again.
type waiter[K comparable, V any] struct {
	ctx         context.Context
	fingerprint string
	line        *line[K, V] // nil once it has left; guarded by mu
	prev, next  *waiter[K, V]

	ready chan struct{}
	claim *claim[K, V] // the claim has passed to this call
	end   *outcome[V]  // how the attempt ended
	err   error        // why this call is refused
}

// entrant is a call that comes to a shard.
type entrant[K comparable, V any] struct {
	ctx    context.Context
	req    Request[K]
	dead   error  // ctx's
	parent caller // the claim whose effect makes this call, or nil
}

// entry is what an entrant got: a result, a claim, a place in a line, or err.
type entry[K comparable, V any] struct {
	result *result[K, V]
	claim  *claim[K, V]
	waiter *waiter[K, V]
	call   *edge // to be ended when the call returns; nil outside effects
	err    error
}

// enter looks the key up and claims it if it is free.
func (e *Endpoint[K, V]) enter(s *shard[K, V], in *entrant[K, V]) entry[K, V] {
	for {
		e.step(in.ctx, "enter")
		s.mu.Lock()
		got, full := e.enterLocked(s, in)
		s.mu.Unlock()
		if full && e.makeRoom() {
			continue // somebody may have claimed the key or the room meanwhile
		}
		return got
	}
}

// enterLocked is one critical section of enter. If the endpoint is full, got
// says so; there may be room to make.
func (e *Endpoint[K, V]) enterLocked(s *shard[K, V], in *entrant[K, V]) (got entry[K, V], full bool) {
	key := in.req.Key
	now := e.clock.now()
	if r := s.results.get(key, now); r != nil {
		got.result = r
		return got, false
	}
	if c := s.claims[key]; c != nil {
		return e.join(s, c, in), false
	}
	switch {
	case s.closed:
		got.err = &keyError[K]{key: key, kind: ErrShutdown}
	case in.dead != nil:
		got.err = &keyError[K]{key: key, cause: in.dead}
	case !e.room.take():
		got.err = &keyError[K]{key: key, kind: ErrFull}
		return got, true
	default:
		got.claim = &claim[K, V]{caller: in.ctx, key: key, since: now}
		s.claims[key] = got.claim
		if e.slots != nil || in.parent != nil || in.req.Fingerprint != "" {
			l := got.claim.lineOf(e.slots)
			l.fingerprint = in.req.Fingerprint
			if in.parent != nil {
				got.call, _ = connect(in.parent, &l.node) // nothing leads out of a new claim
			}
		}
	}
	return got, false
}

// join puts a duplicate in claim c's line. mu must be held.
func (e *Endpoint[K, V]) join(s *shard[K, V], c *claim[K, V], in *entrant[K, V]) (got entry[K, V]) {
	refuse := func(kind, cause error) entry[K, V] {
		return entry[K, V]{err: &keyError[K]{in.req.Key, kind, cause}}
	}
	l := c.line.Load()
	switch {
	case l != nil && differ(l.fingerprint, in.req.Fingerprint):
		return refuse(ErrMismatch, nil)
	case in.req.NoWait:
		return refuse(ErrInFlight, nil)
	case in.dead != nil:
		return refuse(ErrInFlight, in.dead)
	}
	l = c.lineOf(e.slots)
	if in.parent != nil {
		call, ok := connect(in.parent, &l.node)
		if !ok {
			return refuse(ErrDeadlock, nil)
		}
		got.call = call
	}
	got.waiter = &waiter[K, V]{ctx: in.ctx, fingerprint: in.req.Fingerprint, ready: make(chan struct{})}
	l.push(got.waiter)
	s.waiting++
	return got
}

// leave takes w out of its line. False means that it has left already: the
// attempt ended at the same moment, and ready is closed or about to be.
func (s *shard[K, V]) leave(w *waiter[K, V]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.line == nil {
		return false
	}
	w.line.remove(w)
	s.waiting--
	return true
}

// settle ends the attempt of claim c. A kept outcome becomes the key's result;
// after a failure the claim passes on.
func (e *Endpoint[K, V]) settle(ctx context.Context, s *shard[K, V], c *claim[K, V], ttl time.Duration, end outcome[V]) {
	e.step(ctx, "settle")
	s.mu.Lock()
	now := e.clock.now() // under mu, so that results are kept in the order of their completion
	l := s.part(c)
	ends := int64(never)
	var woken *waiter[K, V]
	switch {
	case end.kept:
		s.executed++
		ends = e.keep(s, c.key, l, end, ttl, now)
		delete(s.claims, c.key)
		woken = s.share(l, end)
	case e.opts.ShareFailure:
		s.fail(end)
		e.vacate(s, c.key)
		woken = s.share(l, outcome[V]{err: end.err})
	default:
		s.fail(end)
		woken = e.pass(s, c.key, l, now)
	}
	s.drain()
	s.mu.Unlock()
	if e.slots != nil {
		e.slots.give(&l.node)
	}
	wake(woken)
	e.alarm.set(e.clock, ends)
}

// giveUp refuses the call that holds c, whose effect has not been entered.
func (e *Endpoint[K, V]) giveUp(ctx context.Context, s *shard[K, V], c *claim[K, V]) {
	e.step(ctx, "give up")
	s.refused.Add(1)
	s.mu.Lock()
	woken := e.pass(s, c.key, s.part(c), e.clock.now())
	s.drain()
	s.mu.Unlock()
	wake(woken)
}

// part takes c's line from it and drops the calls its effect may have left
// behind. mu must be held.
func (s *shard[K, V]) part(c *claim[K, V]) *line[K, V] {
	l := c.line.Swap(nil)
	if l != nil {
		l.node.disconnect()
	}
	return l
}

// pass hands the claim to the waiter that has waited longest, or frees the key.
// It returns those to be woken. mu must be held.
func (e *Endpoint[K, V]) pass(s *shard[K, V], key K, l *line[K, V], now int64) *waiter[K, V] {
	if l == nil || l.first == nil {
		e.vacate(s, key)
		return nil
	}
	if s.closed {
		e.vacate(s, key)
		return s.dismiss(l, func(*waiter[K, V]) error { return &keyError[K]{key: key, kind: ErrShutdown} })
	}
	heir := l.first
	l.remove(heir)
	s.waiting--
	heir.claim = &claim[K, V]{caller: heir.ctx, key: key, since: now}
	heir.claim.line.Store(l)
	s.claims[key] = heir.claim
	if known := l.fingerprint; known != heir.fingerprint {
		l.fingerprint = heir.fingerprint
		heir.next = s.dismiss(l, func(w *waiter[K, V]) error {
			if differ(heir.fingerprint, w.fingerprint) {
				return &keyError[K]{key: key, kind: ErrMismatch}
			}
			return nil
		})
	}
	return heir
}

// keep makes the outcome of an attempt the key's result and says when it ends.
// mu must be held. The claim's room becomes the result's.
func (e *Endpoint[K, V]) keep(s *shard[K, V], key K, l *line[K, V], end outcome[V], ttl time.Duration, now int64) (ends int64) {
	if ttl == 0 {
		ttl = e.opts.TTL
	}
	if end.err != nil && e.opts.FailureTTL != 0 {
		ttl = e.opts.FailureTTL
	}
	r := &result[K, V]{
		key: key, value: end.value, err: end.err, unknown: end.unknown,
		completed: now, ends: after(now, ttl), order: e.nextOrder(),
	}
	if l != nil {
		r.fingerprint = l.fingerprint
	}
	s.results.add(r)
	e.stale.forget(key)
	return r.ends
}

func (e *Endpoint[K, V]) nextOrder() int64 {
	if !e.opts.EvictOldest {
		return 0
	}
	return e.order.Add(1)
}

// share gives everyone in the line how the attempt ended, and returns them.
// mu must be held.
func (s *shard[K, V]) share(l *line[K, V], end outcome[V]) *waiter[K, V] {
	if l == nil || l.first == nil {
		return nil
	}
	common := new(outcome[V]) // not &end, which would move every outcome to the heap
	*common = end
	woken := l.first
	for w := woken; w != nil; w = w.next {
		w.end, w.line = common, nil
	}
	s.waiting -= l.len
	s.shared += uint64(l.len)
	l.first, l.last, l.len = nil, nil, 0
	return woken
}

// dismiss refuses those in the line for whom why has an error, and returns them.
// mu must be held.
func (s *shard[K, V]) dismiss(l *line[K, V], why func(*waiter[K, V]) error) (woken *waiter[K, V]) {
	for w := l.first; w != nil; {
		next := w.next
		if w.err = why(w); w.err != nil {
			l.remove(w)
			s.waiting--
			w.next, woken = woken, w
		}
		w = next
	}
	return woken
}

// wake tells each of a chain of waiters that it has left its line. No lock may
// be held: those woken come for it.
func wake[K comparable, V any](w *waiter[K, V]) {
	for w != nil {
		next := w.next
		close(w.ready)
		w = next
	}
}

// vacate frees a key without a result. mu must be held.
func (e *Endpoint[K, V]) vacate(s *shard[K, V], key K) {
	delete(s.claims, key)
	e.room.give()
}

// fail counts a failed attempt. mu must be held.
func (s *shard[K, V]) fail(end outcome[V]) {
	s.failed++
	if end.panicked {
		s.panicked++
	}
}

// drain tells Shutdown when the last claim is gone. mu must be held.
func (s *shard[K, V]) drain() {
	if s.drained != nil && len(s.claims) == 0 {
		close(s.drained)
		s.drained = nil
	}
}

// lineOf returns c's line, and makes it if there is none.
func (c *claim[K, V]) lineOf(slots *slots) *line[K, V] {
	for {
		if l := c.line.Load(); l != nil {
			return l
		}
		l := &line[K, V]{node: node{slots: slots}}
		if c.line.CompareAndSwap(nil, l) {
			return l
		}
	}
}

// place makes a claim a caller. An endpoint with slots has made the line.
func (c *claim[K, V]) place() *node { return &c.lineOf(nil).node }

func (c *claim[K, V]) outer() caller { return callerOf(c.caller) }

func (l *line[K, V]) push(w *waiter[K, V]) {
	w.line, w.prev = l, l.last
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
	l.len++
}

func (l *line[K, V]) remove(w *waiter[K, V]) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.line, w.prev, w.next = nil, nil, nil
	l.len--
}

// differ reports whether two fingerprints are both given and not the same.
func differ(a, b string) bool { return a != "" && b != "" && a != b }
