package idempotent_test

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

const mebibyte = 1 << 20

// heap is what lives after a collection.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what finalizers and weak pointers let go
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestAllocations(t *testing.T) {
	t.Run("a call that hits a kept result allocates nothing", func(t *testing.T) {
		e := openFor(t, idempotent.Options[string, string]{})
		numbers := openFor(t, idempotent.Options[int, int]{})
		seven := func(context.Context) (int, error) { return 7, nil }
		for i := range many(1000) {
			e.Handle(bg, request{Key: fmt.Sprint(i), Fingerprint: "a"}, returns("v", nil))
			numbers.Do(bg, i+1, seven)
		}
		fx := returns("v", nil)
		require.Zero(t, testing.AllocsPerRun(1000, func() { e.Do(bg, "7", fx) }))
		require.Zero(t, testing.AllocsPerRun(1000, func() { e.Handle(bg, request{Key: "7", Fingerprint: "a"}, fx) }))
		require.Zero(t, testing.AllocsPerRun(1000, func() { numbers.Do(bg, 7, seven) }))
		require.Positive(t, e.Stats().Replayed)
	})

	// AllocsPerRun rounds down, so a run is a hundred calls. The place where results
	// are kept grows in slabs, and its indexes by doubling: a few more for a hundred new ones.
	const calls, slabs = 100, 10

	t.Run("an uncontended cold call makes at most one allocation", func(t *testing.T) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // an endpoint for more has more indexes to begin with
		e := openFor(t, idempotent.Options[int, int]{})
		n := 0
		fx := func(context.Context) (int, error) { return n, nil }
		allocs := testing.AllocsPerRun(many(400_000)/calls, func() {
			for range calls {
				n++
				e.Do(bg, n, fx)
			}
		})
		require.LessOrEqual(t, allocs, float64(calls+slabs))
		require.EqualValues(t, n, e.Stats().Executed)
	})

	t.Run("a failed call makes at most one allocation", func(t *testing.T) {
		e := openFor(t, idempotent.Options[int, int]{})
		n := 0
		fx := func(context.Context) (int, error) { return 0, errBoom }
		allocs := testing.AllocsPerRun(100, func() {
			for range calls {
				n++
				e.Do(bg, n, fx)
			}
		})
		require.LessOrEqual(t, allocs, float64(calls))
		require.EqualValues(t, n, e.Stats().Failed)
	})
}

func TestMemory(t *testing.T) {
	t.Run("nothing of a failed key remains", func(t *testing.T) {
		e := openFor(t, idempotent.Options[int, string]{})
		fx := returns("", errBoom)
		e.Do(bg, 1<<30, fx)
		before := heap()
		n := many(1_000_000)
		for i := range n {
			e.Do(bg, i+1, fx)
		}
		require.InDelta(t, before, heap(), mebibyte)
		s := e.Stats()
		require.Zero(t, s.Retained)
		addsUp(t, e, uint64(n)+1)
		runtime.KeepAlive(e)
	})

	t.Run("a million keys through a Capacity of 1,000 hold no more than that", func(t *testing.T) {
		const capacity = 1000
		e := openFor(t, idempotent.Options[int, int]{Capacity: capacity, EvictOldest: true, StaleMemory: capacity})
		fx := func(context.Context) (int, error) { return 7, nil }
		run := func(from, to int) {
			for i := from; i < to; i++ {
				_, verdict, err := e.Do(bg, i, fx)
				if err != nil || verdict != executed {
					t.Fatal(verdict, err)
				}
			}
		}
		n := many(1_000_000)
		run(1, n/10)
		before := heap()
		run(n/10, n)
		require.InDelta(t, before, heap(), mebibyte)
		s := e.Stats()
		require.Equal(t, min(capacity, n-1), s.Retained)
		require.EqualValues(t, n-1, s.Evicted+uint64(s.Retained))
		runtime.KeepAlive(e)
	})

	t.Run("comes back soon after the window, though nobody calls", func(t *testing.T) {
		e := openFor(t, idempotent.Options[int, *[1024]byte]{TTL: 50 * time.Millisecond, StaleMemory: 1})
		before := heap()
		n := many(20_000)
		var last weak.Pointer[[1024]byte]
		for i := range n {
			value := new([1024]byte)
			last = weak.Make(value)
			e.Do(bg, i+1, func(context.Context) (*[1024]byte, error) { return value, nil })
		}
		require.True(t, eventually(func() bool { return heap()-before < mebibyte }), "%d bytes more than before", heap()-before)
		require.True(t, eventually(func() bool { runtime.GC(); return last.Value() == nil }), "the last value is still held")
		runtime.KeepAlive(e)
	})

	t.Run("of results among those that stay comes back too", func(t *testing.T) {
		e := openFor(t, idempotent.Options[int, *[1024]byte]{StaleMemory: 1})
		before := heap()
		n := many(20_000)
		for i := range n {
			req := idempotent.Request[int]{Key: i + 1, TTL: 50 * time.Millisecond}
			if i%100 == 0 {
				req.TTL = 0 // an hour
			}
			e.Handle(bg, req, func(context.Context) (*[1024]byte, error) { return new([1024]byte), nil })
		}
		long := int64(n / 100 * 1024)
		require.True(t, eventually(func() bool { return heap()-before < 2*long+mebibyte }), "%d bytes more than before", heap()-before)
		require.True(t, eventually(func() bool { return e.Stats().Retained == n/100 }))
		runtime.KeepAlive(e)
	})

	t.Run("of evicted results comes back, but for a few", func(t *testing.T) {
		const capacity = 100
		e := openFor(t, idempotent.Options[int, *[1024]byte]{Capacity: capacity, EvictOldest: true})
		var values []weak.Pointer[[1024]byte]
		for i := range 100 * capacity {
			value := new([1024]byte)
			values = append(values, weak.Make(value))
			e.Do(bg, i+1, func(context.Context) (*[1024]byte, error) { return value, nil })
		}
		alive := func() (n int) {
			runtime.GC()
			for _, v := range values {
				if v.Value() != nil {
					n++
				}
			}
			return n
		}
		// Each shard may hold 8, or half of what it keeps, until its next eviction.
		most := capacity + min(8*e.Shards(), capacity)
		require.True(t, eventually(func() bool { return alive() <= most }), "%d values are held, more than %d", alive(), most)
		runtime.KeepAlive(e)
	})

	t.Run("of a forgotten result comes back", func(t *testing.T) {
		e := openFor(t, idempotent.Options[int, *[1024]byte]{})
		value := new([1024]byte)
		held := weak.Make(value)
		e.Do(bg, 1, func(context.Context) (*[1024]byte, error) { return value, nil })
		value = nil
		e.Forget(1)
		for i := range 200 { // what comes after it may take its place
			e.Do(bg, i+2, func(context.Context) (*[1024]byte, error) { return nil, nil })
			e.Forget(i + 2)
		}
		require.True(t, eventually(func() bool { runtime.GC(); return held.Value() == nil }))
		runtime.KeepAlive(e)
	})

	t.Run("of an effect is not held once it has run", func(t *testing.T) {
		e := openFor(t, idempotent.Options[int, int]{})
		captured := new([1024]byte)
		held := weak.Make(captured)
		e.Do(bg, 1, func(context.Context) (int, error) { return int(captured[0]), nil })
		captured = nil
		require.True(t, eventually(func() bool { runtime.GC(); return held.Value() == nil }))
		runtime.KeepAlive(e)
	})
}

func TestAnEndpointThatIsNotReferenced(t *testing.T) {
	t.Run("is collected, kept results and all", func(t *testing.T) {
		before := heap()
		for range 50 {
			e := openFor(t, idempotent.Options[int, int]{TTL: time.Hour})
			for i := range many(20_000) {
				e.Do(bg, i+1, func(context.Context) (int, error) { return i, nil })
			}
		}
		require.True(t, eventually(func() bool { return heap()-before < 2*mebibyte }), "%d bytes more than before", heap()-before)
	})

	t.Run("is collected at once, though its results have a window to go", func(t *testing.T) {
		e := openFor(t, idempotent.Options[int, int]{TTL: time.Hour})
		e.Do(bg, 1, func(context.Context) (int, error) { return 7, nil })
		gone := weak.Make(e)
		e = nil
		require.True(t, eventually(func() bool { runtime.GC(); return gone.Value() == nil }))
	})
}

func TestGoroutines(t *testing.T) {
	t.Run("200 idle endpoints have none", func(t *testing.T) {
		before := runtime.NumGoroutine()
		var endpoints []*endpoint
		for range 200 {
			e := open(t, options{})
			e.Do(bg, "k", returns("v", nil))
			endpoints = append(endpoints, e)
		}
		require.True(t, eventually(func() bool { return runtime.NumGoroutine() <= before }))
		runtime.KeepAlive(endpoints)
	})

	t.Run("200 endpoints whose results end leave none", func(t *testing.T) {
		before := runtime.NumGoroutine()
		var endpoints []*endpoint
		for range 200 {
			e := open(t, options{TTL: 10 * time.Millisecond})
			e.Do(bg, "k", returns("v", nil))
			endpoints = append(endpoints, e)
		}
		require.True(t, eventually(func() bool {
			for _, e := range endpoints {
				if e.Stats().Expired == 0 {
					return false
				}
			}
			return runtime.NumGoroutine() <= before
		}))
	})

	t.Run("an empty endpoint on two cores takes at most 32 KiB", func(t *testing.T) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // an endpoint is made for as many
		before := heap()
		var endpoints [100]*endpoint
		for i := range endpoints {
			endpoints[i] = open(t, options{})
		}
		require.LessOrEqual(t, (heap()-before)/int64(len(endpoints)), int64(32<<10))
		runtime.KeepAlive(endpoints)
	})
}

func TestDependencies(t *testing.T) {
	t.Run("users link neither testify nor testing", func(t *testing.T) {
		list, err := exec.Command("go", "list", "-deps", ".").Output()
		require.NoError(t, err)
		deps := strings.Fields(string(list))
		require.Contains(t, deps, "github.com/idempotent-go/idempotent")
		for _, dep := range deps {
			require.NotContains(t, dep, "testify")
			require.NotEqual(t, "testing", dep)
		}
	})
}
