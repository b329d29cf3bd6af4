package idempotent

import (
	"context"
	"fmt"
	"math"
	"time"
)

// DefaultTTL is the window of a result when Options.TTL is 0. Choose your own:
// longer than the producer keeps retrying.
const DefaultTTL = 24 * time.Hour

// Forever is a window that never ends. Any window that would end after the
// clock's last instant (292 years) never ends either.
const Forever time.Duration = math.MaxInt64

// Options say how an [Endpoint] behaves. The zero value is a good start: it
// keeps every result for [DefaultTTL] without a bound. Negative values are
// refused by [New], but for StaleMemory -1.
type Options[K comparable, V any] struct {
	// TTL is the window of a result: how long after its completion it is
	// replayed, to the nanosecond. 0 means DefaultTTL. Most replays need no look
	// at the clock, because a timer says when one is due; where the timer itself
	// is late by more than 250 ms (the process was stopped, or has no processor),
	// a result may be replayed for that much longer. None is gone early.
	TTL time.Duration

	// FailureTTL is the window of a kept failure (Permanent, Unknown).
	// 0 means the window that a success would have had.
	FailureTTL time.Duration

	// Capacity is the most keys held, in flight and kept together. A new key
	// beyond it is refused with ErrFull. 0 means no bound.
	Capacity int

	// EvictOldest makes room at Capacity by dropping the result that completed
	// first, instead of refusing the new key. The dropped key runs again if it
	// comes back, inside its window too. A running claim and an unknown outcome
	// are never dropped: if nothing else is left, the key is refused. Room is made
	// before OnStale is asked. Without Capacity it has no effect.
	EvictOldest bool

	// MaxConcurrent is the most effects running at one time, over all keys.
	// Others wait for their turn on their caller's ctx. An effect that calls the
	// endpoint for another key needs a second slot: with 1 such a call is refused
	// with ErrDeadlock. 0 means no bound.
	MaxConcurrent int

	// EffectTimeout is the deadline put on the effect's context. The effect
	// must heed it: nothing else stops it. 0 means none.
	EffectTimeout time.Duration

	// ShareFailure gives waiters the failed attempt's error, instead of letting
	// the longest waiter try in its turn.
	ShareFailure bool

	// Detach runs the effect on a goroutine of its own, so that its caller too
	// may leave when its ctx ends; the effect goes on and its result is kept.
	Detach bool

	// PassCancel hands the caller's cancellation and deadline on to the effect.
	// Without it the effect sees only the caller's values: an effect killed
	// half way is the commonest way to a double effect.
	PassCancel bool

	// HoldPanics makes a panic (or Goexit) of the effect leave the outcome
	// unknown, as by Unknown(*PanicError), instead of failed.
	HoldPanics bool

	// StaleMemory is the number of expired and evicted keys remembered, so that
	// a late retry is recognised. The least recent are dropped first. 0 means
	// 65,536; -1 means none.
	StaleMemory int

	// OnStale is asked before a stale key runs again: a key whose result ended
	// at completedAt plus its window, or was evicted. An error refuses the call
	// and the key stays stale; ErrStale is there for it. It is called inside the
	// claim (duplicates wait meanwhile) and outside every lock, on the caller's
	// goroutine, with the caller's ctx, to which the key is added ([Key]). After
	// an error the next duplicate asks in its turn. A panic in it gives the claim
	// up and goes on to the caller.
	OnStale func(ctx context.Context, key K, completedAt time.Time) error

	// Clone copies a kept value for each caller who is handed it, the one that
	// made it included. nil means that all callers share one value. It may be
	// called by several goroutines at once.
	Clone func(V) V
}

// A Request is one call's key and what else is known of it.
type Request[K comparable] struct {
	// Key names the operation. The zero key is refused.
	Key K
	// Fingerprint is a digest of the request's payload. A call whose fingerprint
	// differs from the one that its key is known with is refused with
	// ErrMismatch; "" is not compared.
	Fingerprint string
	// TTL is the window of this call's result; 0 means the endpoint's.
	TTL time.Duration
	// NoWait refuses the call with ErrInFlight where it would have to wait, for
	// a running attempt of its key or for a slot of MaxConcurrent.
	NoWait bool
}

// optionError names the field and the value. The kind is nil for fields that
// have no error of their own.
func optionError(field string, value any, want string, kind error) error {
	if kind != nil {
		return fmt.Errorf("%w: %s is %v, want %s", kind, field, value, want)
	}
	return fmt.Errorf("idempotent: %s is %v, want %s", field, value, want)
}

// withDefaults checks the options and fills the zero values in. FailureTTL 0
// stays: what it stands for is only known when the call is.
func (o Options[K, V]) withDefaults() (Options[K, V], error) {
	switch {
	case o.TTL < 0:
		return o, optionError("Options.TTL", o.TTL, "0 or more", ErrInvalidTTL)
	case o.FailureTTL < 0:
		return o, optionError("Options.FailureTTL", o.FailureTTL, "0 or more", ErrInvalidTTL)
	case o.Capacity < 0:
		return o, optionError("Options.Capacity", o.Capacity, "0 or more", nil)
	case o.MaxConcurrent < 0:
		return o, optionError("Options.MaxConcurrent", o.MaxConcurrent, "0 or more", nil)
	case o.EffectTimeout < 0:
		return o, optionError("Options.EffectTimeout", o.EffectTimeout, "0 or more", nil)
	case o.StaleMemory < -1:
		return o, optionError("Options.StaleMemory", o.StaleMemory, "-1 or more", nil)
	}
	if o.TTL == 0 {
		o.TTL = DefaultTTL
	}
	if o.StaleMemory == 0 {
		o.StaleMemory = 1 << 16
	}
	return o, nil
}

// check refuses what no endpoint can do. The key must have been hashed: what
// cannot be hashed cannot be compared.
func (r *Request[K]) check() error {
	if !validKey(r.Key) {
		return &keyError[K]{key: r.Key, kind: ErrInvalidKey}
	}
	if r.TTL < 0 {
		return &keyError[K]{key: r.Key, kind: optionError("Request.TTL", r.TTL, "0 or more", ErrInvalidTTL)}
	}
	return nil
}

// validKey refuses the zero key, which an event without an id would have, and
// one with a NaN inside, which no later call would find.
func validKey[K comparable](key K) bool {
	var zero K
	same := key
	return key != zero && key == same
}
