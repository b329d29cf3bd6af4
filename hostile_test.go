package idempotent_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/stretchr/testify/require"
)

// hostile is a context one of whose methods panics when it is armed.
type hostile struct {
	context.Context
	inDone, inErr atomic.Bool
}

func (h *hostile) Done() <-chan struct{} {
	if h.inDone.Load() {
		panic("Done")
	}
	return h.Context.Done()
}

func (h *hostile) Err() error {
	if h.inErr.Load() {
		panic("Err")
	}
	return h.Context.Err()
}

func TestContextsThatPanic(t *testing.T) {
	t.Run("a waiter whose Done panics leaves the line", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := open(t, options{})
			leader := start(e, bg, "k", after(time.Second, returns("", errBoom)))
			ctx := &hostile{Context: bg}
			ctx.inDone.Store(true)
			require.PanicsWithValue(t, "Done", func() { _, _, _ = e.Do(ctx, "k", returns("never", nil)) })
			require.Zero(t, e.Stats().Waiting)
			leader.end(t)
			require.Empty(t, e.InFlight(), "the claim has not passed to the dead")
			gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
			addsUp(t, e, 3)
		})
	})
	t.Run("an heir whose Err panics gives the claim up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := open(t, options{})
			leader := start(e, bg, "k", after(time.Second, returns("", errBoom)))
			ctx := &hostile{Context: bg}
			doomed := start(e, ctx, "k", returns("never", nil))
			ctx.inErr.Store(true)
			leader.end(t)
			doomed.throws(t, "Err")
			require.Empty(t, e.InFlight())
			addsUp(t, e, 2)
		})
	})
	t.Run("a waiter whose Err panics as the attempt succeeds gives up no claim", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := open(t, options{})
			leader := start(e, bg, "k", after(time.Second, returns("v", nil)))
			ctx := &hostile{Context: bg}
			doomed := start(e, ctx, "k", returns("never", nil))
			ctx.inErr.Store(true)
			gives(t, "v", executed)(leader.end(t))
			doomed.throws(t, "Err")
			gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
			require.Empty(t, e.InFlight())
			addsUp(t, e, 3)
		})
	})
	t.Run("a claim whose Err panics gives its slot back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := open(t, options{MaxConcurrent: 1})
			first := start(e, bg, "first", after(time.Second, returns("v", nil)))
			ctx := &hostile{Context: bg}
			doomed := start(e, ctx, "second", returns("never", nil))
			ctx.inErr.Store(true)
			first.end(t)
			doomed.throws(t, "Err")
			gives(t, "v", executed)(e.Do(bg, "third", returns("v", nil)))
			require.Empty(t, e.InFlight())
			addsUp(t, e, 3)
		})
	})
}

func TestManySlotsInACircleAreRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots = 64 // a search that tries every order of them would take for ever
		e := open(t, options{MaxConcurrent: slots})
		var wg, all sync.WaitGroup
		all.Add(slots)
		var refusals atomic.Int64
		for i := range slots {
			key := string(rune('A' + i))
			wg.Go(func() {
				_, _, err := e.Do(bg, key, func(ctx context.Context) (string, error) {
					all.Done()
					all.Wait()
					value, _, err := e.Do(ctx, key+" inner", returns("v", nil))
					return value, err
				})
				if err != nil {
					require.ErrorIs(t, err, idempotent.ErrDeadlock)
					refusals.Add(1)
				}
			})
		}
		wg.Wait()
		require.Positive(t, refusals.Load())
		require.Less(t, refusals.Load(), int64(slots), "one that is refused lets others go on")
	})
}

func TestShutdownTellsThoseWhoQueueForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, options{MaxConcurrent: 1})
		running := start(e, bg, "running", after(time.Hour, returns("v", nil)))
		queued := start(e, bg, "queued", returns("never", nil))
		waiting := start(e, bg, "queued", returns("never", nil))
		synctest.Wait()
		done := make(chan error)
		go func() { done <- e.Shutdown(bg) }()
		synctest.Wait()
		for _, c := range []*call{queued, waiting} {
			fails(t, refused, idempotent.ErrShutdown)(c.end(t))
		}
		gives(t, "v", executed)(running.end(t))
		require.NoError(t, <-done)
	})
}

func TestEvictOldestKnowsWhenARestoredResultCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, options{Capacity: 2, EvictOldest: true})
		_, _, _ = e.Do(bg, "first", returns("v", nil))
		time.Sleep(50 * time.Millisecond)
		now := time.Now()
		taken := e.Restore(func(yield func(string, idempotent.Record[string]) bool) {
			yield("second", idempotent.Record[string]{CompletedAt: now.Add(-time.Millisecond), ExpiresAt: now.Add(time.Hour)})
		})
		require.Equal(t, 1, taken)
		_, _, _ = e.Do(bg, "third", returns("v", nil))
		_, first := e.Lookup("first")
		_, second := e.Lookup("second")
		require.False(t, first)
		require.True(t, second)
	})
}

// Its memory may be given back later, with that of its neighbours in the log.
func TestAnEvictedResultIsNotReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const capacity = 1000
		gone, cancel := context.WithCancel(bg)
		cancel()
		e := open(t, options{Capacity: capacity, EvictOldest: true})
		key := func(i int) string { return strconv.Itoa(i) }
		for i := range capacity {
			gives(t, "v", executed)(e.Do(bg, key(i), returns("v", nil)))
		}
		for i := range 20 {
			gives(t, "v", executed)(e.Do(bg, key(capacity+i), returns("v", nil)))
			fails(t, refused, context.Canceled)(e.Do(gone, key(i), returns("never", nil)))
			gives(t, "v", replayed)(e.Do(bg, key(i+1), returns("again", nil)))
		}
	})
}
