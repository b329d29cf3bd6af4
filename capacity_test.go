package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestCapacity(t *testing.T) {
	promise(t, "a new key beyond it is refused, known ones replay and join", func(t *testing.T) {
		e := open(t, options{Capacity: 2})
		gives(t, "v", executed)(e.Do(bg, "done", returns("v", nil)))
		running := start(e, bg, "running", after(time.Second, returns("w", nil)))
		_, _, err := e.Do(bg, "new", forbidden(t))
		require.ErrorIs(t, err, idempotent.ErrFull)
		require.ErrorContains(t, err, `"new"`)
		gives(t, "v", replayed)(e.Do(bg, "done", forbidden(t)))
		gives(t, "w", shared)(e.Do(bg, "running", forbidden(t)))
		gives(t, "w", executed)(running.end(t))
		fails(t, refused, idempotent.ErrFull)(e.Do(bg, "new", forbidden(t)))
		addsUp(t, e, 6)
	})

	promise(t, "counts claims and results together", func(t *testing.T) {
		e := open(t, options{Capacity: 3})
		e.Do(bg, "done", returns("v", nil))
		a := start(e, bg, "a", after(time.Second, returns("v", nil)))
		b := start(e, bg, "b", after(time.Second, returns("", errBoom)))
		fails(t, refused, idempotent.ErrFull)(e.Do(bg, "new", forbidden(t)))
		<-a.done
		<-b.done
		gives(t, "v", executed)(e.Do(bg, "new", returns("v", nil))) // b's failure gave its room back
		fails(t, refused, idempotent.ErrFull)(e.Do(bg, "newer", forbidden(t)))
	})

	promise(t, "expired results make room at once", func(t *testing.T) {
		e := open(t, options{Capacity: 2})
		e.Do(bg, "a", returns("v", nil))
		e.Do(bg, "b", returns("v", nil))
		time.Sleep(window - 1)
		fails(t, refused, idempotent.ErrFull)(e.Do(bg, "c", forbidden(t)))
		time.Sleep(time.Nanosecond)
		gives(t, "v", executed)(e.Do(bg, "c", returns("v", nil)))
		gives(t, "v", executed)(e.Do(bg, "d", returns("v", nil)))
		fails(t, refused, idempotent.ErrFull)(e.Do(bg, "e", forbidden(t)))
	})

	promise(t, "every way in which a key goes gives its room back", func(t *testing.T) {
		e := open(t, options{Capacity: 1, OnStale: func(context.Context, string, time.Time) error { return idempotent.ErrStale }})
		free := func() {
			t.Helper()
			gives(t, "v", executed)(e.Do(bg, "probe", returns("v", nil)))
			require.True(t, e.Forget("probe"))
		}
		fails(t, executed, errBoom)(e.Do(bg, "error", returns("", errBoom)))
		free()
		start(e, bg, "panic", panics("oops")).throws(t, "oops")
		free()
		start(e, bg, "exit", exits).throws(t, nil)
		free()
		e.Handle(bg, request{Key: "ended", TTL: 1}, returns("v", nil))
		time.Sleep(time.Nanosecond)
		free()
		fails(t, refused, idempotent.ErrStale)(e.Do(bg, "ended", forbidden(t)))
		free()
		e.Do(bg, "unknown", returns("", idempotent.Unknown(errBoom)))
		require.True(t, e.Resolve("unknown", "v"))
		fails(t, refused, idempotent.ErrFull)(e.Do(bg, "probe", forbidden(t)))
		require.True(t, e.Forget("unknown"))
		free()
		leader := start(e, bg, "k", after(time.Second, returns("", errBoom)))
		heir := start(e, bg, "k", returns("", errBoom))
		<-leader.done
		<-heir.done
		free()
	})

	promise(t, "EvictOldest drops the results that completed first", func(t *testing.T) {
		e := open(t, options{Capacity: 3, EvictOldest: true})
		slow := start(e, bg, "slow", after(time.Second, returns("slow", nil)))
		e.Do(bg, "a", returns("a", nil))
		gives(t, "slow", executed)(slow.end(t)) // began first, completed second
		e.Do(bg, "b", returns("b", nil))
		gives(t, "a", replayed)(e.Do(bg, "a", forbidden(t))) // being used does not help
		for i, gone := range []string{"a", "slow", "b"} {
			_, held := e.Lookup(gone)
			require.True(t, held)
			gives(t, "v", executed)(e.Do(bg, fmt.Sprint(i), returns("v", nil)))
			_, held = e.Lookup(gone)
			require.False(t, held)
			s := e.Stats()
			require.EqualValues(t, i+1, s.Evicted)
			require.Equal(t, 3, s.Retained)
			require.Zero(t, s.Expired)
		}
	})

	promise(t, "an evicted key is stale", func(t *testing.T) {
		var at time.Time
		e := open(t, options{Capacity: 1, EvictOldest: true, OnStale: func(_ context.Context, _ string, completed time.Time) error {
			at = completed
			return idempotent.ErrStale
		}})
		begun := time.Now()
		e.Do(bg, "a", returns("v", nil))
		time.Sleep(time.Minute)
		e.Do(bg, "b", returns("v", nil))
		fails(t, refused, idempotent.ErrStale)(e.Do(bg, "a", forbidden(t)))
		require.True(t, at.Equal(begun))
	})

	promise(t, "EvictOldest drops what has expired before what is alive", func(t *testing.T) {
		e := open(t, options{Capacity: 2, EvictOldest: true})
		e.Do(bg, "long", returns("v", nil))
		e.Handle(bg, request{Key: "short", TTL: 1}, returns("v", nil))
		time.Sleep(time.Nanosecond)
		e.Do(bg, "new", returns("v", nil))
		gives(t, "v", replayed)(e.Do(bg, "long", forbidden(t)))
		require.Zero(t, e.Stats().Evicted)
	})

	promise(t, "a claim is never evicted", func(t *testing.T) {
		e := open(t, options{Capacity: 2, EvictOldest: true})
		a := start(e, bg, "a", after(time.Second, returns("a", nil)))
		b := start(e, bg, "b", after(2*time.Second, returns("b", nil)))
		for i := range 100 {
			fails(t, refused, idempotent.ErrFull)(e.Do(bg, fmt.Sprint(i), forbidden(t)))
		}
		gives(t, "a", executed)(a.end(t))
		for i := range 100 { // each takes the room of the one before
			gives(t, "v", executed)(e.Do(bg, fmt.Sprint(i), returns("v", nil)))
		}
		waiter := start(e, bg, "b", forbidden(t))
		gives(t, "b", executed)(b.end(t))
		gives(t, "b", shared)(waiter.end(t))
		require.EqualValues(t, 100, e.Stats().Evicted)
	})

	promise(t, "EvictOldest goes by completion, whatever the windows", func(t *testing.T) {
		const capacity = 50
		e := open(t, options{Capacity: capacity, EvictOldest: true})
		for i := range 3 * capacity {
			req := request{Key: fmt.Sprint(i)}
			switch i % 3 {
			case 1:
				req.TTL = window + time.Duration(i)
			case 2:
				req.TTL = idempotent.Forever
			}
			gives(t, "v", executed)(e.Handle(bg, req, returns("v", nil)))
			time.Sleep(time.Second)
			if oldest := i - capacity + 1; oldest > 0 {
				_, held := e.Lookup(fmt.Sprint(oldest - 1))
				require.False(t, held)
				_, held = e.Lookup(fmt.Sprint(oldest))
				require.True(t, held)
			}
		}
		require.EqualValues(t, 2*capacity, e.Stats().Evicted)
	})

	promise(t, "EvictOldest keeps what was forgotten or resolved out of its order", func(t *testing.T) {
		e := open(t, options{Capacity: 3, EvictOldest: true})
		e.Do(bg, "unknown", returns("", idempotent.Unknown(errBoom)))
		e.Do(bg, "a", returns("a", nil))
		e.Do(bg, "b", returns("b", nil))
		require.True(t, e.Resolve("unknown", "settled")) // completes now
		require.True(t, e.Forget("a"))
		e.Do(bg, "c", returns("c", nil))
		require.Zero(t, e.Stats().Evicted)
		e.Do(bg, "d", returns("d", nil))
		_, held := e.Lookup("b")
		require.False(t, held)
		gives(t, "settled", replayed)(e.Do(bg, "unknown", forbidden(t)))
	})

	promise(t, "EvictOldest leaves unknown outcomes alone until they are settled", func(t *testing.T) {
		e := open(t, options{Capacity: 3, EvictOldest: true, FailureTTL: idempotent.Forever})
		for _, key := range []string{"u", "v"} {
			e.Do(bg, key, returns("", idempotent.Unknown(errBoom)))
		}
		for _, key := range []string{"a", "b", "c"} { // each takes the one's place before it
			gives(t, key, executed)(e.Do(bg, key, returns(key, nil)))
		}
		require.EqualValues(t, 2, e.Stats().Evicted)
		e.Do(bg, "w", returns("", idempotent.Unknown(errBoom)))
		require.Equal(t, 3, e.Stats().Unknown)
		_, verdict, err := e.Do(bg, "d", forbidden(t))
		require.Equal(t, refused, verdict)
		require.ErrorIs(t, err, idempotent.ErrFull, "nothing is left that may go")
		for _, key := range []string{"u", "v", "w"} {
			_, verdict, err := e.Do(bg, key, forbidden(t))
			require.Equal(t, replayed, verdict)
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		}
		require.True(t, e.Resolve("v", "settled"))
		gives(t, "d", executed)(e.Do(bg, "d", returns("d", nil)))
		_, held := e.Lookup("v")
		require.False(t, held, "settled, it may go as any other")
	})
}

// On real cores: what is running and what succeeded is never more than Capacity.
func TestCapacityHoldsUnderLoad(t *testing.T) {
	const capacity, callers, calls = 50, 8, 3000
	e := open(t, options{Capacity: capacity})
	var held atomic.Int64
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			for i := range calls {
				fail := (i+n)%10 != 0
				_, verdict, err := e.Do(bg, fmt.Sprint((i*7+n*13)%200), func(context.Context) (string, error) {
					if now := held.Add(1); now > capacity {
						t.Errorf("%d keys are held", now)
					}
					if fail {
						held.Add(-1)
						return "", errBoom
					}
					return "v", nil
				})
				if verdict == refused && !errors.Is(err, idempotent.ErrFull) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, capacity, held.Load(), "the room is used up")
	require.Equal(t, capacity, e.Stats().Retained)
	addsUp(t, e, callers*calls)
}

// On real cores: as long as there is a result that may go, or just went, nobody
// is told that the endpoint is full.
func TestEvictOldestRefusesNobodyUnderLoad(t *testing.T) {
	for _, ttl := range []time.Duration{window, time.Millisecond} {
		t.Run("window "+ttl.String(), func(t *testing.T) {
			const capacity, callers, calls = 50, 8, 2000
			e := open(t, options{Capacity: capacity, EvictOldest: true, TTL: ttl})
			var running [200]atomic.Int64
			var wg sync.WaitGroup
			for n := range callers {
				wg.Go(func() {
					for i := range calls {
						key := (i*7 + n*13) % len(running)
						_, _, err := e.Do(bg, fmt.Sprint(key), func(context.Context) (string, error) {
							if running[key].Add(1) != 1 {
								t.Error("two attempts at one time")
							}
							running[key].Add(-1)
							return "v", nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			s := e.Stats()
			require.LessOrEqual(t, s.Retained, capacity)
			require.Equal(t, s.Executed, s.Expired+s.Evicted+uint64(s.Retained))
			addsUp(t, e, callers*calls)
		})
	}
}

// Only New makes an Endpoint, but a metrics scrape may come before it.
func TestTheZeroEndpointCountsNothing(t *testing.T) {
	var e endpoint
	require.Zero(t, e.Stats())
}
