package idempotent

import (
	"context"
	"hash/maphash"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// An Endpoint runs each key's effect once, and gives everyone else that run's
// result. Make one with [New] (the zero Endpoint cannot be used), and use it
// from any number of goroutines. It has no goroutine of its own and needs no
// closing: an endpoint that is no longer referenced is collected, kept results
// and all.
type Endpoint[K comparable, V any] struct {
	opts    Options[K, V]
	seed    maphash.Seed
	spread  uint64        // ANDed to every hash: tests bring keys together with it
	shards  []shard[K, V] // a power of two of them
	tallies [tallies]tally
	timing  timing
	room    *room  // nil: no bound
	slots   *slots // nil: no bound
	stale   *staleMemory[K]
	order   atomic.Int64 // of the latest result; counted for EvictOldest

	rings    atomic.Int32 // of the timer since a sweep began; 0: none is at work
	expiring sync.Mutex   // held by whoever lets go of all that has ended; taken before shards' locks

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
	e := &Endpoint[K, V]{
		opts:   opts,
		seed:   maphash.MakeSeed(),
		spread: ^uint64(0),
		shards: make([]shard[K, V], shardsFor(runtime.GOMAXPROCS(0))),
		stale:  newStaleMemory[K](opts.StaleMemory),
	}
	e.timing.init(opts.TTL, weakly(e, (*Endpoint[K, V]).sweep))
	if opts.Capacity > 0 {
		e.room = &room{most: int64(opts.Capacity)}
	}
	if opts.MaxConcurrent > 0 {
		e.slots = newSlots(opts.MaxConcurrent)
	}
	for i := range e.shards {
		e.shards[i].results.init(e)
	}
	return e, nil
}

// shardsFor is a power of two. Eight shards a processor keep two callers on one
// lock rare; past 64 they only cost.
func shardsFor(processors int) int {
	n := 8
	for n < 8*processors && n < 64 {
		n *= 2
	}
	return n
}

// Do is [Endpoint.Handle] for a key alone.
func (e *Endpoint[K, V]) Do(ctx context.Context, key K, effect func(context.Context) (V, error)) (V, Verdict, error) {
	hash := e.hash(key)
	s := e.shard(hash)
	e.step(ctx, "look")
	if b, i := s.results.ledger.read(key, hash, &e.timing); b != nil {
		e.tally(replayed)
		return e.clone(b.slots[i].value), Replayed, nil
	}
	return e.arrive(&call[K, V]{ctx: ctx, req: Request[K]{Key: key}, effect: effect, hash: hash, shard: s})
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
	e.step(ctx, "look")
	if b, i := s.results.ledger.read(req.Key, hash, &e.timing); b != nil && req.TTL >= 0 {
		if req.Fingerprint != "" && differ(req.Fingerprint, b.more(i).fingerprint) {
			return e.refuse(&keyError[K]{key: req.Key, kind: ErrMismatch})
		}
		e.tally(replayed)
		return e.clone(b.slots[i].value), Replayed, nil
	}
	return e.arrive(&call[K, V]{ctx: ctx, req: req, effect: effect, hash: hash, shard: s})
}

// arrive takes a call further whose key has no result in sight.
func (e *Endpoint[K, V]) arrive(in *call[K, V]) (V, Verdict, error) {
	if err := in.req.check(); err != nil {
		return e.refuse(err)
	}
	// What runs the caller's code (a context may be anyone's) comes before the lock.
	in.dead, in.parent = contextError(in.ctx), callerOf(in.ctx)
	got := e.enter(in)
	if got.edge != nil {
		defer got.edge.end()
	}
	switch {
	case got.err != nil:
		return e.refuse(got.err)
	case got.claim != nil:
		return e.lead(in, got.claim)
	case got.waiter != nil:
		return e.follow(in, got.waiter)
	case differ(in.req.Fingerprint, got.kept.fingerprint):
		return e.refuse(in.refusal(ErrMismatch, nil))
	}
	e.tally(replayed)
	return e.clone(got.kept.value), Replayed, got.kept.err
}

// follow waits for the attempt that was running when this call came.
func (e *Endpoint[K, V]) follow(in *call[K, V], w *waiter[K, V]) (V, Verdict, error) {
	gone := false
	defer func() {
		if !gone {
			e.abandon(in, w) // a method of ctx has panicked
		}
	}()
	e.step(in.ctx, "wait")
	w.spin()
	select {
	case <-w.ready:
	case <-in.ctx.Done():
		dead := contextError(in.ctx)
		e.step(in.ctx, "leave")
		if in.shard.leave(w) {
			gone = true
			return e.refuse(in.refusal(ErrInFlight, dead))
		}
		// The attempt ended first: w has its outcome, or the claim.
	}
	dead := contextError(in.ctx)
	gone = true
	switch {
	case w.err != nil:
		return e.refuse(w.err)
	case w.end != nil:
		return e.hand(*w.end, Shared)
	case dead != nil:
		e.giveUp(in, w.claim)
		var zero V
		return zero, Refused, in.refusal(ErrInFlight, dead)
	}
	return e.lead(in, w.claim)
}

// abandon gives up what a call waited for or got that will not return. If its
// attempt has ended, that has counted it as shared.
func (e *Endpoint[K, V]) abandon(in *call[K, V], w *waiter[K, V]) {
	switch left := in.shard.leave(w); {
	case left || w.err != nil:
		e.tally(refused)
	case w.claim != nil:
		e.giveUp(in, w.claim)
	}
}

// lead runs the call that holds claim c.
func (e *Endpoint[K, V]) lead(in *call[K, V], c *claim[K, V]) (V, Verdict, error) {
	completed, stale := e.stale.recall(c.key)
	in.stale = stale
	if ask := stale && e.opts.OnStale != nil; ask || e.slots != nil {
		if err := e.admit(in, c, ask, completed); err != nil {
			var zero V
			return zero, Refused, err
		}
	}
	if e.opts.Detach {
		return e.detach(*in, c)
	}
	return e.hand(e.run(in, c, nil), Executed)
}

// admit does what may come between the claim and its effect: it asks OnStale
// about a key whose last result completed then, and waits for a slot. If that
// refuses, or the caller's code in it does not return, slot and claim are given
// up and the call counts as refused.
func (e *Endpoint[K, V]) admit(in *call[K, V], c *claim[K, V], ask bool, completed int64) error {
	admitted, holding := false, false
	defer func() {
		if admitted {
			return
		}
		if holding {
			e.slots.give(&c.line.Load().node)
		}
		e.giveUp(in, c)
	}()
	if ask {
		at := e.timing.start().Add(time.Duration(completed))
		if err := e.opts.OnStale(cancelable[K, V]{c}, c.key, at); err != nil {
			return in.refusal(nil, err)
		}
	}
	if e.slots != nil {
		e.step(in.ctx, "slot")
		if err := e.slots.take(in.ctx, &c.line.Load().node, in.req.NoWait); err != nil {
			return in.refusal(err, nil)
		}
		holding = true
	}
	// The hook and the wait for a slot took as long as they took.
	if err := e.mayStart(in); err != nil {
		return err
	}
	admitted = true
	return nil
}

// mayStart returns why an effect must not start any more.
func (e *Endpoint[K, V]) mayStart(in *call[K, V]) error {
	if dead := contextError(in.ctx); dead != nil {
		return in.refusal(nil, dead)
	}
	e.step(in.ctx, "start")
	in.shard.mu.Lock()
	defer in.shard.mu.Unlock()
	if in.shard.closed {
		return in.refusal(ErrShutdown, nil)
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
func (e *Endpoint[K, V]) run(in *call[K, V], c *claim[K, V], tell func(outcome[V])) (end outcome[V]) {
	returned := false
	defer func() {
		var thrown any
		switch {
		case returned:
		case e.opts.ShareFailure || e.opts.HoldPanics || tell != nil:
			thrown = recover()
			end = e.thrown(thrown)
		default: // nobody is to be told the value: left alone, a panic keeps its trace
			end = outcome[V]{panicked: true}
		}
		e.settle(in, c, end)
		switch {
		case tell != nil:
			tell(end)
		case thrown != nil:
			panic(thrown)
		}
	}()
	ctx, cancel := e.effectContext(c)
	if cancel != nil {
		defer cancel()
	}
	value, err := in.effect(ctx)
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
// It has its own copy of the call: only there need a call be on the heap.
func (e *Endpoint[K, V]) detach(in call[K, V], c *claim[K, V]) (V, Verdict, error) {
	done := make(chan outcome[V], 1)
	go e.run(&in, c, func(end outcome[V]) { done <- end })
	select {
	case end := <-done:
		return e.hand(end, Executed)
	case <-in.ctx.Done():
	}
	dead := contextError(in.ctx)
	select {
	case end := <-done: // both at one moment: the caller need not do without the result
		return e.hand(end, Executed)
	default:
		var zero V
		return zero, Executed, in.refusal(ErrInFlight, dead)
	}
}

// hand gives an attempt's outcome to one of its callers.
func (e *Endpoint[K, V]) hand(end outcome[V], verdict Verdict) (V, Verdict, error) {
	if end.kept {
		end.value = e.clone(end.value)
	}
	return end.value, verdict, end.err
}

// refuse counts a refusal.
func (e *Endpoint[K, V]) refuse(err error) (V, Verdict, error) {
	e.tally(refused)
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

// shard picks by the low bits of the hash; the ledger uses the high half.
func (e *Endpoint[K, V]) shard(hash uint64) *shard[K, V] {
	return &e.shards[hash&uint64(len(e.shards)-1)]
}

func (e *Endpoint[K, V]) step(ctx context.Context, where string) {
	if e.pause != nil {
		e.pause(ctx, where)
	}
}
