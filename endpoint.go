package idempotent

import (
	"context"
	"hash/maphash"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// An Endpoint runs each key's effect once, and gives everyone else that run's
// result. Make one with [New] and use it from any number of goroutines. It has
// no goroutine of its own and needs no closing: an endpoint that is no longer
// referenced is collected, kept results and all.
type Endpoint[K comparable, V any] struct {
	opts   Options[K, V]
	clock  clock
	seed   maphash.Seed
	spread uint64        // ANDed to every hash; 0 in tests that put all keys in one place
	shards []shard[K, V] // a power of two of them
	room   *room         // nil: no bound
	slots  *slots        // nil: no bound
	stale  *staleMemory[K]
	order  atomic.Int64 // of the latest result; counted for EvictOldest
	alarm  alarm

	// pause, if set, is called before each lock and each wait of a call, never
	// under a lock. Tests set it to fix the order of critical sections.
	pause func(ctx context.Context, where string)
}

// New returns an endpoint that behaves as opts say, or an error that names the
// field that cannot be.
func New[K comparable, V any](opts Options[K, V]) (*Endpoint[K, V], error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	// Eight shards a core keep two callers on one lock rare; past 64 they only cost.
	shards := 8
	for shards < 8*runtime.GOMAXPROCS(0) && shards < 64 {
		shards *= 2
	}
	e := &Endpoint[K, V]{
		opts:   opts,
		clock:  clock{time.Now()},
		seed:   maphash.MakeSeed(),
		spread: ^uint64(0),
		shards: make([]shard[K, V], shards),
		stale:  newStaleMemory[K](opts.StaleMemory),
	}
	if opts.Capacity > 0 {
		e.room = &room{most: int64(opts.Capacity)}
	}
	if opts.MaxConcurrent > 0 {
		e.slots = newSlots(opts.MaxConcurrent)
	}
	for i := range e.shards {
		e.shards[i].claims = make(map[K]*claim[K, V])
		e.shards[i].results.init(e.stale, e.room)
	}
	e.alarm.init(weakly(e, (*Endpoint[K, V]).sweep))
	return e, nil
}

// Do is [Endpoint.Handle] for a key alone.
func (e *Endpoint[K, V]) Do(ctx context.Context, key K, effect func(context.Context) (V, error)) (V, Verdict, error) {
	return e.Handle(ctx, Request[K]{Key: key}, effect)
}

// Handle runs effect, unless the key's result is kept (Replayed) or an attempt
// for the key is running: then it waits for that attempt until ctx ends
// (Shared). If that attempt fails, the claim passes to the waiter that has
// waited longest and runs its own effect (Executed). The verdict Refused
// comes with an error that says why, and no effect was entered.
//
// The effect is given a context with the caller's values and the key ([Key]),
// but not the caller's cancellation ([Options].PassCancel). It runs on the
// caller's goroutine, unless [Options].Detach is set. An error of it gives the
// claim up, unless it is marked [Permanent] or [Unknown]. A panic or Goexit
// gives the claim up and goes on unchanged; see [Options] for HoldPanics.
//
// A ctx that has ended runs no effect; a kept result is still replayed. A key
// that cannot be hashed panics as it would in a map, and changes nothing.
func (e *Endpoint[K, V]) Handle(ctx context.Context, req Request[K], effect func(context.Context) (V, error)) (V, Verdict, error) {
	hash := e.hash(req.Key)
	s := e.shard(hash)
	if err := req.check(); err != nil {
		return e.refuse(s, err)
	}
	e.step(ctx, "look")
	if r := e.look(s, req.Key); r != nil {
		return e.replay(s, r, req)
	}

	// What runs the caller's code (a context may be anyone's) comes before the lock.
	in := entrant[K, V]{ctx: ctx, req: req, dead: contextError(ctx), parent: callerOf(ctx)}
	got := e.enter(s, &in)
	if got.call != nil {
		defer got.call.end()
	}
	switch {
	case got.err != nil:
		return e.refuse(s, got.err)
	case got.result != nil:
		return e.replay(s, got.result, req)
	case got.waiter != nil:
		return e.follow(ctx, s, got.waiter, req, effect)
	}
	return e.lead(ctx, s, got.claim, req, effect)
}

// look returns the key's kept result, or nil, and changes nothing.
func (e *Endpoint[K, V]) look(s *shard[K, V], key K) *result[K, V] {
	now := e.clock.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.results.peek(key, now)
}

// replay hands a kept result out.
func (e *Endpoint[K, V]) replay(s *shard[K, V], r *result[K, V], req Request[K]) (V, Verdict, error) {
	if differ(r.fingerprint, req.Fingerprint) {
		return e.refuse(s, &keyError[K]{key: req.Key, kind: ErrMismatch})
	}
	s.replayed.Add(1)
	return e.clone(r.value), Replayed, r.err
}

// follow waits for the attempt that was running when this call came.
func (e *Endpoint[K, V]) follow(ctx context.Context, s *shard[K, V], w *waiter[K, V], req Request[K], effect func(context.Context) (V, error)) (V, Verdict, error) {
	e.step(ctx, "wait")
	select {
	case <-w.ready:
	case <-ctx.Done():
		e.step(ctx, "leave")
		if s.leave(w) {
			return e.refuse(s, &keyError[K]{req.Key, ErrInFlight, contextError(ctx)})
		}
		// The attempt ended first: w has its outcome, or the claim, and keeps it.
		<-w.ready
	}
	switch {
	case w.err != nil:
		return e.refuse(s, w.err)
	case w.end != nil:
		return e.clone(w.end.value), Shared, w.end.err
	}
	if dead := contextError(ctx); dead != nil {
		e.giveUp(ctx, s, w.claim)
		var zero V
		return zero, Refused, &keyError[K]{req.Key, ErrInFlight, dead}
	}
	return e.lead(ctx, s, w.claim, req, effect)
}

// lead runs the call that holds claim c.
func (e *Endpoint[K, V]) lead(ctx context.Context, s *shard[K, V], c *claim[K, V], req Request[K], effect func(context.Context) (V, error)) (V, Verdict, error) {
	if e.slots != nil || e.stale.any() {
		if err := e.admit(ctx, s, c, req.NoWait); err != nil {
			var zero V
			return zero, Refused, err
		}
	}
	if e.opts.Detach {
		return e.detach(ctx, s, c, req.TTL, effect)
	}
	return e.own(e.run(ctx, s, c, req.TTL, effect, nil))
}

// admit does what comes between the claim and its effect: it asks OnStale and
// waits for a slot. If that refuses, or the hook does not return, the claim is
// given up and the call counts as refused.
func (e *Endpoint[K, V]) admit(ctx context.Context, s *shard[K, V], c *claim[K, V], noWait bool) error {
	admitted := false
	defer func() {
		if !admitted {
			e.giveUp(ctx, s, c)
		}
	}()
	if completed, ok := e.stale.recall(c.key); ok && e.opts.OnStale != nil {
		if err := e.opts.OnStale(cancelable[K, V]{c}, c.key, e.clock.time(completed)); err != nil {
			return &keyError[K]{key: c.key, cause: err}
		}
	}
	if e.slots != nil {
		e.step(ctx, "slot")
		if err := e.slots.take(ctx, &c.line.Load().node, noWait); err != nil {
			return &keyError[K]{key: c.key, kind: err}
		}
	}
	// The hook and the wait for a slot took as long as they took.
	if err := e.mayStart(ctx, s, c.key); err != nil {
		if e.slots != nil {
			e.slots.give(&c.line.Load().node)
		}
		return err
	}
	admitted = true
	return nil
}

// mayStart returns why an effect must not start any more.
func (e *Endpoint[K, V]) mayStart(ctx context.Context, s *shard[K, V], key K) error {
	if dead := contextError(ctx); dead != nil {
		return &keyError[K]{key: key, cause: dead}
	}
	e.step(ctx, "start")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return &keyError[K]{key: key, kind: ErrShutdown}
	}
	return nil
}

// run enters the effect and settles the claim, however the effect ends. tell,
// if not nil, is called with the outcome, and takes the place of a panic going
// on to the caller.
//
// The deferred function must not infer success: Goexit runs it too, with
// nothing to recover and no error. Only a flag set after the effect returned
// tells.
func (e *Endpoint[K, V]) run(ctx context.Context, s *shard[K, V], c *claim[K, V], ttl time.Duration, effect func(context.Context) (V, error), tell func(outcome[V])) (end outcome[V]) {
	returned := false
	defer func() {
		var thrown any
		if !returned {
			// Recover only where somebody is to be told the value: left alone, a
			// panic goes on with its own trace.
			if e.opts.ShareFailure || e.opts.HoldPanics || tell != nil {
				thrown = recover()
			}
			end = e.thrown(thrown)
		}
		e.settle(ctx, s, c, ttl, end)
		switch {
		case tell != nil:
			tell(end)
		case thrown != nil:
			panic(thrown)
		}
	}()
	effectCtx, cancel := e.effectContext(c)
	if cancel != nil {
		defer cancel()
	}
	value, err := effect(effectCtx)
	end = outcomeOf(value, err)
	returned = true
	return end
}

// thrown is the outcome of an effect that panicked with value, or called Goexit.
func (e *Endpoint[K, V]) thrown(value any) outcome[V] {
	end := outcome[V]{panicked: true, err: &PanicError{Value: value, Goexit: value == nil, Stack: debug.Stack()}}
	if e.opts.HoldPanics {
		end = outcomeOf(end.value, Unknown(end.err))
	}
	return end
}

// detach runs the effect on its own goroutine and waits for it until ctx ends.
func (e *Endpoint[K, V]) detach(ctx context.Context, s *shard[K, V], c *claim[K, V], ttl time.Duration, effect func(context.Context) (V, error)) (V, Verdict, error) {
	done := make(chan outcome[V], 1)
	go e.run(ctx, s, c, ttl, effect, func(end outcome[V]) { done <- end })
	select {
	case end := <-done:
		return e.own(end)
	case <-ctx.Done():
		var zero V
		return zero, Executed, &keyError[K]{c.key, ErrInFlight, contextError(ctx)}
	}
}

// own hands an outcome to the caller whose effect made it.
func (e *Endpoint[K, V]) own(end outcome[V]) (V, Verdict, error) {
	if end.kept {
		end.value = e.clone(end.value)
	}
	return end.value, Executed, end.err
}

// refuse counts and returns a refusal.
func (e *Endpoint[K, V]) refuse(s *shard[K, V], err error) (V, Verdict, error) {
	s.refused.Add(1)
	var zero V
	return zero, Refused, err
}

func (e *Endpoint[K, V]) clone(value V) V {
	if e.opts.Clone == nil {
		return value
	}
	return e.opts.Clone(value)
}

// effectContext is c itself, or what the options add to it. The cancel function
// may be nil.
func (e *Endpoint[K, V]) effectContext(c *claim[K, V]) (context.Context, context.CancelFunc) {
	var ctx context.Context = c
	if e.opts.PassCancel {
		ctx = cancelable[K, V]{c}
	}
	if e.opts.EffectTimeout > 0 {
		return context.WithTimeout(ctx, e.opts.EffectTimeout)
	}
	return ctx, nil
}

// hash panics if the key cannot be hashed, before anything is held.
func (e *Endpoint[K, V]) hash(key K) uint64 {
	return maphash.Comparable(e.seed, key) & e.spread
}

// shard picks by the top bits; what lies below them is the shard's own.
func (e *Endpoint[K, V]) shard(hash uint64) *shard[K, V] {
	return &e.shards[hash>>32&uint64(len(e.shards)-1)]
}

func (e *Endpoint[K, V]) step(ctx context.Context, where string) {
	if e.pause != nil {
		e.pause(ctx, where)
	}
}
