// Package idemtest is the one conformance suite for everything that runs a
// key's effect once: the in-memory endpoint, the SQL inbox, the Redis guard, and
// any store of your own. It is black-box: it knows a [Guard] and what its store
// can do, and checks what the callers see.
//
// [Run] runs the suite. [Abilities] say what a store cannot do, so that nothing
// is left out in silence: what an ability's absence weakens is written at the
// ability. [Memory] makes a Guard of an Endpoint.
//
// The package imports testing and is for tests only.
package idemtest

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/idempotent-go/idempotent"
)

// A Guard is one process's way into a store of keys. The suite calls it from
// many goroutines at once.
type Guard interface {
	// Handle runs the effect, or returns what an earlier or a running attempt
	// of the key leaves, as idempotent.Endpoint.Handle does.
	Handle(ctx context.Context, req idempotent.Request[string],
		effect func(context.Context) ([]byte, error)) ([]byte, idempotent.Verdict, error)
	// Forget drops the key's kept result and says whether there was one. A
	// running claim is left alone.
	Forget(ctx context.Context, key string) (bool, error)
}

// Abilities say how a store is opened a second time and what it can do. The
// zero value is the least: a store of one guard, polled in real time.
type Abilities struct {
	// Second opens another guard over the same store as the given one, as a
	// second process would: its own connections, its own memory. The suite then
	// sends every other caller through it. nil says that the store cannot be
	// shared: all callers go through the one guard.
	Second func(t *testing.T, first Guard) Guard

	// Bubble says that the guard does no I/O, so that it runs in a
	// testing/synctest bubble (open and Second are called in it). Windows are
	// then checked to the nanosecond, and a duplicate that waited must be told
	// Shared. Without it windows are checked in real time to 50 ms, and a
	// duplicate of a running attempt may be told Replayed if it came late.
	Bubble bool

	// SameError says that a kept failure is replayed as the same error value.
	// Without it the error's text is compared, and errors.Is only for
	// ErrOutcomeUnknown.
	SameError bool

	// InOrder says that a failed attempt passes its claim to the caller that
	// has waited longest. Without it any waiter may be next.
	InOrder bool

	// SeesClaims says that a running attempt shows its fingerprint, so that
	// another payload is refused at once. Without it, it is refused when the
	// attempt has ended.
	SeesClaims bool

	// Parallel says that effects of different keys run side by side. Without it
	// a running effect keeps other keys waiting.
	Parallel bool

	// DeadReplay says that a kept result is replayed to a caller whose ctx has
	// ended. Without it that caller gets its ctx's error.
	DeadReplay bool

	// NamesKey says that idempotent.Key finds the key in the effect's context.
	NamesKey bool

	// Deadlock says that an effect that calls its own key is refused with
	// ErrDeadlock. Without it such a call waits until its ctx ends.
	Deadlock bool

	// AnyKey says that every string but "" is a key. Without it a key that is
	// not UTF-8 text, holds a NUL, or is longer than 1,000 bytes may be refused
	// with ErrInvalidKey.
	AnyKey bool
}

// Run runs the suite. open gives each case a guard over an empty store, with a
// window of at least ten minutes, no bound on keys, no shared failures, and, if
// claims are leased, a lease of at least ten seconds. Open registers its own
// clean-up with t.
func Run(t *testing.T, open func(t *testing.T) Guard, can Abilities) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			body := func(t *testing.T) { c.run(newRig(t, open, can)) }
			if can.Bubble {
				synctest.Test(t, body)
				return
			}
			body(t)
		})
	}
}

// cases are the contract, one promise each.
var cases = []struct {
	name string
	run  func(*rig)
}{
	{"the first call executes and later calls replay", executesOnce},
	{"an effect sees its caller's values", effectSeesValues},
	{"a caller's cancellation does not reach its effect", effectOutlivesCancel},
	{"an effect's context names its key", effectNamesKey},
	{"a dead ctx runs no effect", deadContext},
	{"an empty key is refused", emptyKey},
	{"keys that look alike are different keys", keysAreExact},

	{"a duplicate waits and shares the outcome", duplicateWaits},
	{"duplicates through either guard share one run", duplicatesShare},
	{"a waiter leaves on its own ctx and disturbs nobody", waiterLeaves},
	{"NoWait is refused while an attempt runs", noWait},
	{"a hanging effect leaves other keys alone", hangingEffect},
	{"an effect may call other keys", nestedKeys},
	{"an effect that calls its own key does not hang", nestedSelf},

	{"a failure goes to its caller and frees the key", failureFrees},
	{"a failure hands the key over to a waiter", failureHandsOver},
	{"every waiter tries its own effect, one at a time", waitersTakeTurns},
	{"a permanent failure is kept and replayed", permanentKept},
	{"an unknown outcome holds the key until it is forgotten", unknownHeld},
	{"a waiter shares a kept failure", keptFailureShared},
	{"a panic goes on to its caller and frees the key", panicFrees},
	{"a panic hands the key over to a waiter", panicHandsOver},
	{"Goexit frees the key and is no success", goexitFrees},

	{"another fingerprint is refused when finished", mismatchFinished},
	{"another fingerprint is refused while running", mismatchRunning},
	{"a failed attempt's fingerprint is not kept", mismatchAfterFailure},
	{"a result is replayed to its window's end and no longer", windowEnds},
	{"a kept failure ends with its window", failureWindowEnds},
	{"the window starts at completion", windowFromCompletion},
	{"a window may last for ever", windowForever},
	{"a negative window is refused", windowNegative},
	{"a forgotten key runs again", forgetRuns},
	{"forgetting leaves a running claim alone", forgetRunning},
	{"zero values are results", zeroValues},
	{"every byte of a result is kept", bytesExact},

	{"storm: many callers, few keys, one run each", stormOnce},
	{"storm: failing effects never overlap and stop at the first success", stormFailing},
	{"storm: leaving, panicking and forgetting callers never cause an overlap", stormChaos},
}
