package idempotent

import (
	"context"
	"sync"
	"sync/atomic"
)

// shard is the part of the keys that share a lock. Claims and results of a key
// are under the same one: looking a key up and claiming it are one critical
// section, and so are keeping its result and giving the claim up.
type shard[K comparable, V any] struct {
	mu      sync.Mutex
	claims  claimSet[K, V]
	results results[K, V]
	waiting int           // calls in the claims' lines
	closed  bool          // no claim starts an effect any more
	drained chan struct{} // made by Shutdown, closed when no claim is left

	executed, failed, panicked, shared uint64

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

// call is one call on its way through the endpoint.
type call[K comparable, V any] struct {
	ctx    context.Context
	req    Request[K]
	effect func(context.Context) (V, error)
	hash   uint64
	shard  *shard[K, V]
	dead   error  // ctx's, when the call came to the lock
	parent caller // the claim whose effect makes this call, or nil
	stale  bool   // the stale memory knew the key when this call got its claim; it learns no claimed key
}

func (in *call[K, V]) refusal(kind, cause error) error {
	return &keyError[K]{in.req.Key, kind, cause}
}

// entry is what a call got: a result, a claim, a place in a line, or err.
type entry[K comparable, V any] struct {
	kept   *kept[V]
	claim  *claim[K, V]
	waiter *waiter[K, V]
	err    error
	edge   *edge // to be ended when the call returns; nil outside effects
}

// enter looks the key up and claims it if it is free.
func (e *Endpoint[K, V]) enter(in *call[K, V]) entry[K, V] {
	e.step(in.ctx, "enter")
	now := e.timing.look()
	in.shard.mu.Lock()
	got, full := e.enterLocked(in, now)
	in.shard.mu.Unlock()
	if !full {
		return got
	}
	// Under every lock, so that whoever is refused was so at one moment: there was
	// no room, nothing that could go, and the key was still unknown.
	e.step(in.ctx, "make room")
	e.lockAll()
	defer e.unlockAll()
	now = e.timing.look()
	if got, full = e.enterLocked(in, now); full && e.makeRoom(now) {
		got, _ = e.enterLocked(in, now)
	}
	return got
}

// enterLocked is enter's critical section. If the endpoint is full, got says so;
// there may be room to make. mu must be held.
func (e *Endpoint[K, V]) enterLocked(in *call[K, V], now int64) (got entry[K, V], full bool) {
	s, key := in.shard, in.req.Key
	if got.kept = s.results.get(key, in.hash, now); got.kept != nil {
		return got, false
	}
	if c := s.claims.get(key); c != nil {
		return e.join(c, in), false
	}
	switch {
	case s.closed:
		got.err = in.refusal(ErrShutdown, nil)
	case in.dead != nil:
		got.err = in.refusal(nil, in.dead)
	case !e.room.take():
		got.err = in.refusal(ErrFull, nil)
		return got, true
	default:
		got.claim = &claim[K, V]{caller: in.ctx, key: key, since: now}
		s.claims.put(got.claim)
		if e.slots != nil || in.parent != nil || in.req.Fingerprint != "" {
			l := got.claim.lineOf(e.slots)
			l.fingerprint = in.req.Fingerprint
			if in.parent != nil {
				got.edge, _ = connect(in.parent, &l.node) // nothing leads out of a new claim
			}
		}
	}
	return got, false
}

// join puts a duplicate in claim c's line. mu must be held.
func (e *Endpoint[K, V]) join(c *claim[K, V], in *call[K, V]) (got entry[K, V]) {
	l := c.line.Load()
	switch {
	case l != nil && differ(l.fingerprint, in.req.Fingerprint):
		got.err = in.refusal(ErrMismatch, nil)
		return got
	case in.req.NoWait:
		got.err = in.refusal(ErrInFlight, nil)
		return got
	case in.dead != nil:
		got.err = in.refusal(ErrInFlight, in.dead)
		return got
	}
	l = c.lineOf(e.slots)
	if in.parent != nil {
		var ok bool
		if got.edge, ok = connect(in.parent, &l.node); !ok {
			got.err = in.refusal(ErrDeadlock, nil)
			return got
		}
	}
	got.waiter = &waiter[K, V]{ctx: in.ctx, fingerprint: in.req.Fingerprint, ready: make(chan struct{})}
	l.push(got.waiter)
	in.shard.waiting++
	return got
}

// leave takes w out of its line. False means that the attempt ended at the same
// moment and has taken it out: w has the outcome, or the claim.
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
func (e *Endpoint[K, V]) settle(in *call[K, V], c *claim[K, V], end outcome[V]) {
	e.step(in.ctx, "settle")
	s := in.shard
	s.mu.Lock()
	now := e.timing.look() // under mu, so that results are kept in the order of completion
	l := s.part(c)
	ends := int64(never)
	var woken *waiter[K, V]
	switch {
	case end.kept:
		s.executed++
		ends = e.keep(in, l, end, now)
		s.claims.remove(c.key)
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
	e.timing.expect(now, ends)
}

// giveUp refuses the call that holds c, whose effect has not been entered.
func (e *Endpoint[K, V]) giveUp(in *call[K, V], c *claim[K, V]) {
	e.step(in.ctx, "give up")
	e.tally(refused)
	s := in.shard
	s.mu.Lock()
	woken := e.pass(s, c.key, s.part(c), e.timing.look())
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
	s.claims.remove(key)
	heir.claim = &claim[K, V]{caller: heir.ctx, key: key, since: now}
	heir.claim.line.Store(l)
	s.claims.put(heir.claim)
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
// The claim's room becomes the result's. mu must be held.
func (e *Endpoint[K, V]) keep(in *call[K, V], l *line[K, V], end outcome[V], now int64) (ends int64) {
	window := in.req.TTL
	if window == 0 {
		window = e.opts.TTL
	}
	if end.err != nil && e.opts.FailureTTL != 0 {
		window = e.opts.FailureTTL
	}
	k := kept[V]{
		value: end.value, err: end.err, unknown: end.unknown,
		completed: now, ends: after(now, window), order: e.nextOrder(),
	}
	if l != nil {
		k.fingerprint = l.fingerprint
	}
	in.shard.results.add(in.req.Key, in.hash, k)
	if in.stale {
		e.stale.forget(in.req.Key)
	}
	return k.ends
}

func (e *Endpoint[K, V]) nextOrder() int64 {
	if !e.opts.EvictOldest {
		return 0
	}
	return e.order.Add(1)
}

// vacate frees a key without a result. mu must be held.
func (e *Endpoint[K, V]) vacate(s *shard[K, V], key K) {
	s.claims.remove(key)
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
	if s.drained != nil && s.claims.len() == 0 {
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
		c.line.CompareAndSwap(nil, &line[K, V]{node: node{slots: slots}})
	}
}

// place makes a claim a caller. An endpoint with slots has made the line.
func (c *claim[K, V]) place() *node { return &c.lineOf(nil).node }

func (c *claim[K, V]) outer() caller { return callerOf(c.caller) }

// differ reports whether two fingerprints are both given and not the same.
func differ(a, b string) bool { return a != "" && b != "" && a != b }
