package idemdebug

import (
	"context"
	"slices"
	"sync"
	"time"
)

// staleKept is how many late retries a StaleLog remembers.
const staleKept = 50

// A StaleLog remembers the latest calls that came for a stale key, for a [Page]
// to show. The zero value is ready; it can be used by any number of goroutines
// and endpoints, and must not be copied.
type StaleLog[K comparable] struct {
	mu   sync.Mutex
	late []lateCall[K] // latest first
}

type lateCall[K comparable] struct {
	key             K
	at, completedAt time.Time
	refusal         error // why the call was refused; nil = it ran
}

// Watch returns a hook for [idempotent.Options].OnStale that asks next and
// remembers the call with its answer. nil lets every call run, as no hook does.
// A call in which next panics is not remembered.
func (l *StaleLog[K]) Watch(next func(ctx context.Context, key K, completedAt time.Time) error) func(context.Context, K, time.Time) error {
	return func(ctx context.Context, key K, completedAt time.Time) error {
		var refusal error
		if next != nil {
			refusal = next(ctx, key, completedAt)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.late) == staleKept {
			l.late = l.late[:staleKept-1]
		}
		l.late = slices.Insert(l.late, 0, lateCall[K]{key, time.Now(), completedAt, refusal})
		return refusal
	}
}

// latest returns the calls, latest first. A nil log has none.
func (l *StaleLog[K]) latest() []lateCall[K] {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.late)
}
