package idempotent

import (
	"context"
	"errors"
	"hash/maphash"
	"sync/atomic"
	"time"
)

// A Store is a guard that several processes have in common: idemredis.Guard,
// idemsql.Inbox, or one of your own that passes idemtest.
type Store[V any] interface {
	// Handle does what [Endpoint.Handle] does, over all processes. It calls the
	// effect at most once, and not after it has returned.
	Handle(ctx context.Context, req Request[string], effect func(context.Context) (V, error)) (V, Verdict, error)
	// Forget drops the key's kept result and says whether there was one.
	Forget(ctx context.Context, key string) (bool, error)
	// Lookup returns the key's kept result, changing nothing. Its ExpiresAt must
	// not be later than the end of the window on this process's clock.
	Lookup(ctx context.Context, key string) (Record[V], bool, error)
}

// TierOptions say how a [Tier] behaves. The zero value is a good start.
// Negative values are refused by [NewTier].
type TierOptions[V any] struct {
	// TTL is the window that requests without one ask of the store. 0 means
	// DefaultTTL. The store's own default does not come into it.
	TTL time.Duration

	// Memory is the longest that a result is replayed from memory, before the
	// store is asked again. It bounds how long this process does not see that
	// another one forgot a key. 0 means the result's whole window.
	Memory time.Duration

	// Capacity is the most keys in memory; at it the oldest results make room,
	// and are asked for again. If that many keys are in flight, a new one is
	// refused with ErrFull. 0 means no bound.
	Capacity int

	// ShareFailure is [Options].ShareFailure, within this process. It spares a
	// store that is down the queue of callers who each try it in their turn.
	ShareFailure bool

	// Clone is [Options].Clone, for what is replayed from memory or shared in it.
	Clone func(V) V
}

// A Tier is an [Endpoint] in front of a store that several processes share.
// Duplicates in this process meet in memory: one call of a key reaches the
// store at a time, and what the store keeps is replayed from memory without
// asking it. Every verdict is the store's: Executed means that no other process
// ran the effect.
//
// Memory never outlives the store's window: it counts from the end of the
// effect, or to the end that the store's Lookup says. The first replay of a key
// that another process ran costs that Lookup besides. Kept are only results
// whose end is known: not an unknown outcome, which an operator may settle from
// elsewhere, and a kept failure once the store has replayed it.
//
// A panic of the effect goes through the store and the Tier to its caller.
// Make one with [NewTier] and use it from any number of goroutines.
type Tier[V any] struct {
	store Store[V]
	opts  TierOptions[V]
	front *Endpoint[string, answer[V]]

	// epochs count what was forgotten, by the key's hash. An answer is replayed
	// only in the epoch in which the store was asked for it, so that one that was
	// on its way during a Forget is not taken for news.
	epochs [256]atomic.Uint32
	seed   maphash.Seed
}

// An answer is what the store said to one call.
type answer[V any] struct {
	value   V
	verdict Verdict
	err     error

	keep  bool      // to be replayed, until ends
	ends  time.Time // zero: never
	epoch uint32
}

// A refusal hides the store's error from the endpoint, which would keep one
// that is marked, or hand one on that is not this call's.
type refusal[V any] struct{ answer[V] }

func (*refusal[V]) Error() string { return "idempotent: the store left the key free" }

// NewTier returns a Tier in front of store, or an error that names the field
// that cannot be.
func NewTier[V any](store Store[V], opts TierOptions[V]) (*Tier[V], error) {
	switch {
	case store == nil:
		return nil, optionError("store", store, "a guard", nil)
	case opts.TTL < 0:
		return nil, optionError("TierOptions.TTL", opts.TTL, "0 or more", ErrInvalidTTL)
	case opts.Memory < 0:
		return nil, optionError("TierOptions.Memory", opts.Memory, "0 or more", ErrInvalidTTL)
	case opts.Capacity < 0:
		return nil, optionError("TierOptions.Capacity", opts.Capacity, "0 or more", nil)
	}
	if opts.TTL == 0 {
		opts.TTL = DefaultTTL
	}
	if opts.Memory == 0 {
		opts.Memory = Forever
	}
	front := Options[string, answer[V]]{
		Capacity:     opts.Capacity,
		EvictOldest:  true,
		ShareFailure: opts.ShareFailure,
		StaleMemory:  -1,   // the store decides what is stale
		PassCancel:   true, // waiting for another process ends with the caller's ctx
	}
	if opts.Clone != nil {
		front.Clone = func(a answer[V]) answer[V] { a.value = opts.Clone(a.value); return a }
	}
	endpoint, err := New(front)
	if err != nil {
		return nil, err
	}
	return &Tier[V]{store: store, opts: opts, front: endpoint, seed: maphash.MakeSeed()}, nil
}

// Handle does what [Endpoint.Handle] does, over all processes that share the
// store. Errors of the store's own are returned as they are and never kept.
func (t *Tier[V]) Handle(ctx context.Context, req Request[string], effect func(context.Context) (V, error)) (V, Verdict, error) {
	if req.TTL == 0 {
		req.TTL = t.opts.TTL
	}
	near := req
	near.TTL = min(req.TTL, t.opts.Memory)
	epoch := t.epoch(req.Key).Load()
	for {
		a, met, err := t.front.Handle(ctx, near, func(ctx context.Context) (answer[V], error) {
			return t.ask(ctx, req, effect)
		})
		if err == nil {
			err = a.err
		}
		switch r, refused := err.(*refusal[V]); {
		case refused && met == Executed: // this call asked the store
			return r.value, r.verdict, r.err
		case refused && r.verdict == Executed: // ShareFailure, as in the next two
			return a.value, Shared, r.err
		case refused && !personal(r.err):
			return a.value, Refused, r.err
		case refused:
			// The other call's own trouble says nothing of this one.
		case met == Replayed && !t.good(req.Key, a), met == Refused && t.outdated(req.Key, err):
			t.front.Forget(req.Key)
		case met == Shared && a.verdict == Replayed && int32(a.epoch-epoch) < 0:
			// It was on its way when the key was forgotten, and this call came after that.
		case met == Refused && (errors.Is(err, ErrMismatch) || req.NoWait && errors.Is(err, ErrInFlight)):
			return t.kept(ctx, req, err)
		case met == Refused && ctx.Err() != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, ErrInFlight):
			return t.store.Handle(ctx, req, effect) // runs nothing for a dead ctx, but may replay
		case met == Executed, met == Shared && a.verdict == Replayed:
			return a.value, a.verdict, err
		default:
			return a.value, met, err
		}
	}
}

// personal says that a refusal is of one call and not of all that have its key.
func personal(err error) bool {
	for _, kind := range []error{ErrInFlight, ErrMismatch, ErrDeadlock, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// ask is the endpoint's effect: one call to the store.
func (t *Tier[V]) ask(ctx context.Context, req Request[string], effect func(context.Context) (V, error)) (answer[V], error) {
	epoch := t.epoch(req.Key).Load()
	var ended time.Time
	value, verdict, err := t.store.Handle(ctx, req, func(ctx context.Context) (V, error) {
		value, err := effect(ctx)
		ended = time.Now() // the store's window starts later
		return value, err
	})
	a := answer[V]{value: value, verdict: verdict, err: err, epoch: epoch}
	unknown := errors.Is(err, ErrOutcomeUnknown)
	switch {
	case verdict == Refused, verdict == Executed && err != nil && !IsPermanent(err) && !unknown:
		return answer[V]{}, &refusal[V]{a}
	case verdict == Executed && err == nil:
		a.keep, a.ends = true, ended.Add(req.TTL)
		if req.TTL == Forever {
			a.ends = time.Time{}
		}
	case verdict != Executed && !unknown:
		t.lookUp(ctx, req, &a)
	}
	return a, nil
}

// lookUp makes an answer that another process left fit to be replayed, if the
// store says until when.
func (t *Tier[V]) lookUp(ctx context.Context, req Request[string], a *answer[V]) {
	r, ok, err := t.store.Lookup(ctx, req.Key)
	// The endpoint knows the key by this call's fingerprint; a record with
	// another, or none, would be compared wrongly.
	if err != nil || !ok || r.Fingerprint != req.Fingerprint {
		return
	}
	if r.Err == nil || IsPermanent(r.Err) {
		// The record may be a newer one than the answer: its end is not the answer's.
		a.value, a.err, a.keep, a.ends = r.Value, r.Err, true, r.ExpiresAt
	}
}

// kept replays what the store keeps for a call that another one of this process
// has kept out, or else refuses it. That one may be only asking the store, and
// with a wrong fingerprint.
func (t *Tier[V]) kept(ctx context.Context, req Request[string], refusal error) (V, Verdict, error) {
	var zero V
	if _, here := t.front.Lookup(req.Key); here { // a mismatch with what the store said
		return zero, Refused, refusal
	}
	r, ok, err := t.store.Lookup(ctx, req.Key)
	if err != nil || !ok || differ(r.Fingerprint, req.Fingerprint) || r.Err != nil && !IsPermanent(r.Err) {
		return zero, Refused, refusal
	}
	return r.Value, Replayed, r.Err
}

// good says that the answer may be replayed still.
func (t *Tier[V]) good(key string, a answer[V]) bool {
	return a.keep && a.epoch == t.epoch(key).Load() && (a.ends.IsZero() || time.Now().Before(a.ends))
}

// outdated says that the endpoint has refused a call for the fingerprint of an
// answer that must not be replayed any more.
func (t *Tier[V]) outdated(key string, refusal error) bool {
	if !errors.Is(refusal, ErrMismatch) {
		return false
	}
	r, ok := t.front.Lookup(key)
	return ok && !t.good(key, r.Value)
}

func (t *Tier[V]) epoch(key string) *atomic.Uint32 {
	return &t.epochs[maphash.String(t.seed, key)%uint64(len(t.epochs))]
}

// Forget drops the key's kept result in the store and in this process's memory,
// so that the next call runs, and says whether the store had one. Other
// processes replay it from their memory for up to TierOptions.Memory. A running
// claim is left alone. After an error memory is dropped all the same.
func (t *Tier[V]) Forget(ctx context.Context, key string) (bool, error) {
	had, err := t.store.Forget(ctx, key)
	t.epoch(key).Add(1)
	t.front.Forget(key)
	return had, err
}

// Shutdown starts no more calls to the store and waits for the running ones, as
// [Endpoint.Shutdown] does; replays from memory go on.
func (t *Tier[V]) Shutdown(ctx context.Context) error { return t.front.Shutdown(ctx) }

// Stats counts this process's calls and what its memory holds, as
// [Endpoint.Stats] does: Executed are the calls that the store answered with a
// kept outcome, whoever ran the effect; Failed are its other answers.
func (t *Tier[V]) Stats() Stats { return t.front.Stats() }

// IsPermanent reports whether err carries the mark of [Permanent] anywhere in
// its chain. It is for the writers of stores: a store keeps such a failure as
// the key's result, as an [Endpoint] does.
func IsPermanent(err error) bool {
	_, marked := errors.AsType[*permanentError](err)
	return marked
}

// WithKey returns a context in which [Key] finds key. It is for the writers of
// stores: an Endpoint gives its effects such a context by itself.
func WithKey[K comparable](ctx context.Context, key K) context.Context {
	return context.WithValue(ctx, keyName[K]{}, key)
}
