package load

import (
	"context"
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

var (
	soakKeys   = flag.Int("soak.keys", 400_000, "new keys to call, at least")
	soakFor    = flag.Duration("soak.for", 0, "to go on for, at least")
	soakWindow = flag.Duration("soak.window", 100*time.Millisecond, "of each result")
)

type payload [64]byte

// The heap is measured after a collection, so that it is what is held and not
// what has not been swept up yet.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A stream of new keys, each called twice, and nothing grows but the counters.
func TestSoak(t *testing.T) {
	before, goroutines := heap(), runtime.NumGoroutine()
	e, err := idempotent.New(idempotent.Options[int64, *payload]{TTL: *soakWindow, StaleMemory: 1000})
	require.NoError(t, err)
	var key atomic.Int64
	var doubled, lost atomic.Uint64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				k := key.Add(1)
				effect := func(context.Context) (*payload, error) { return new(payload), nil }
				began := time.Now()
				first, verdict, err := e.Do(context.Background(), k, effect)
				if err != nil || verdict != idempotent.Executed {
					lost.Add(1)
				}
				second, verdict, _ := e.Do(context.Background(), k, effect)
				// If the machine let it sleep past the window, a second run is right.
				if (verdict != idempotent.Replayed || first != second) && time.Since(began) < *soakWindow {
					doubled.Add(1)
				}
			}
		})
	}
	// What may be held is the keys of the last windows, however fast they come.
	const perKey, slack, windows = 300, 4 << 20, 3
	var keys []int64
	var highest uint64
	began := time.Now()
	for key.Load() < int64(*soakKeys) || time.Since(began) < *soakFor || len(keys) < 10 {
		<-time.After(*soakWindow)
		now := heap()
		keys, highest = append(keys, key.Load()), max(highest, now)
		recent := keys[len(keys)-1] - keys[max(0, len(keys)-1-windows)]
		if limit := before + slack + perKey*uint64(recent); len(keys) > windows && now > limit {
			t.Errorf("after %d keys the heap is %d KiB, although only %d keys came in the last %d windows", key.Load(), now>>10, recent, windows)
			break
		}
		if len(keys)%60 == 0 {
			t.Logf("%v: %d keys, heap %d KiB, %+v", time.Since(began).Round(time.Second), key.Load(), now>>10, e.Stats())
		}
	}
	close(stop)
	wg.Wait()
	t.Logf("%d keys in %v, heap before %d KiB, at most %d KiB", key.Load(), time.Since(began).Round(time.Second), before>>10, highest>>10)
	require.Zero(t, doubled.Load(), "results gone within their window")
	require.Zero(t, lost.Load(), "new keys that did not run")

	rest(t, func() bool { return heap() < before+1<<20 })   // without a call to the endpoint
	rest(t, func() bool { return e.Stats().Retained == 0 }) // the heap's slack holds the last few
	s := e.Stats()
	require.Zero(t, s.Retained+s.InFlight+s.Waiting)
	require.Equal(t, s.Executed, s.Expired)
	rest(t, func() bool { return runtime.NumGoroutine() <= goroutines })
	runtime.KeepAlive(e)
}

// A pending timer would hold an endpoint, kept results and all.
func TestDroppedEndpointsAreCollected(t *testing.T) {
	var refs []weak.Pointer[payload]
	var endpoints []weak.Pointer[idempotent.Endpoint[int, *payload]]
	for range 200 {
		e, err := idempotent.New(idempotent.Options[int, *payload]{TTL: time.Hour})
		require.NoError(t, err)
		for k := range 50 {
			v, _, err := e.Do(context.Background(), k+1, func(context.Context) (*payload, error) { return new(payload), nil })
			require.NoError(t, err)
			refs = append(refs, weak.Make(v))
		}
		endpoints = append(endpoints, weak.Make(e))
	}
	rest(t, func() bool {
		runtime.GC()
		for _, e := range endpoints {
			if e.Value() != nil {
				return false
			}
		}
		for _, r := range refs {
			if r.Value() != nil {
				return false
			}
		}
		return true
	})
}
