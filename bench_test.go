package idempotent_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Every benchmark runs the endpoint and the plain port one after the other, on
// the same keys. Only the ratios of one run mean anything.

// doer is a call, whoever does it.
type doer[K comparable, V any] func(ctx context.Context, key K, effect func(context.Context) (V, error)) (V, error)

// sides runs a benchmark for the endpoint and for the port.
func sides[K comparable, V any](b *testing.B, opts idempotent.Options[K, V], bench func(b *testing.B, do doer[K, V])) {
	b.Run("endpoint", func(b *testing.B) {
		e := openFor(b, opts)
		bench(b, func(ctx context.Context, key K, effect func(context.Context) (V, error)) (V, error) {
			value, _, err := e.Do(ctx, key, effect)
			return value, err
		})
	})
	b.Run("port", func(b *testing.B) {
		ttl := opts.TTL
		if ttl == 0 {
			ttl = idempotent.DefaultTTL
		}
		bench(b, newPort[K, V](ttl).Do)
	})
}

func stringKey(i int) string { return fmt.Sprintf("evt_%032d", i+1) } // 36 bytes, as a UUID
func intKey(i int) int       { return i + 1 }

func constant(context.Context) (int, error) { return 7, nil }

func BenchmarkReplay(b *testing.B) {
	for _, keys := range []int{1, 1000, 1_000_000} {
		b.Run(fmt.Sprintf("string/keys=%d", keys), func(b *testing.B) { replay(b, keys, stringKey) })
		b.Run(fmt.Sprintf("int/keys=%d", keys), func(b *testing.B) { replay(b, keys, intKey) })
	}
}

func replay[K comparable](b *testing.B, n int, key func(int) K) {
	keys := make([]K, n)
	for i := range keys {
		keys[i] = key(i)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	sides(b, idempotent.Options[K, int]{}, func(b *testing.B, do doer[K, int]) {
		for _, k := range keys {
			do(bg, k, constant)
		}
		b.Run("callers=1", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				do(bg, keys[i%n], nil)
			}
		})
		b.Run("callers=many", func(b *testing.B) {
			b.SetParallelism(16)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.IntN(n); pb.Next(); i++ {
					do(bg, keys[i%n], nil)
				}
			})
		})
	})
}

func BenchmarkCold(b *testing.B) {
	b.Run("string/callers=1", func(b *testing.B) {
		sides(b, idempotent.Options[string, int]{}, func(b *testing.B, do doer[string, int]) {
			b.ReportAllocs()
			key := []byte(stringKey(0))
			for i := 0; b.Loop(); i++ {
				do(bg, string(strconv.AppendInt(key[:20], int64(1e15)+int64(i), 10)), constant) // the key is an allocation of its own
			}
		})
	})
	b.Run("int/callers=1", func(b *testing.B) {
		sides(b, idempotent.Options[int, int]{}, func(b *testing.B, do doer[int, int]) {
			b.ReportAllocs()
			for i := 1; b.Loop(); i++ {
				do(bg, i, constant)
			}
		})
	})
	b.Run("int/callers=many", func(b *testing.B) {
		sides(b, idempotent.Options[int, int]{}, func(b *testing.B, do doer[int, int]) {
			b.SetParallelism(16)
			b.ReportAllocs()
			var next atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					do(bg, int(next.Add(1)), constant)
				}
			})
		})
	})
}

// BenchmarkStorm: 1,000 callers come for one new key, whose effect takes 50 µs.
func BenchmarkStorm(b *testing.B) {
	const callers = 1000
	sides(b, idempotent.Options[int, int]{}, func(b *testing.B, do doer[int, int]) {
		var runs atomic.Int64
		effect := func(context.Context) (int, error) {
			runs.Add(1)
			spin(50 * time.Microsecond)
			return 7, nil
		}
		n := 0
		for b.Loop() {
			n++
			together(callers, func() { do(bg, n, effect) })
		}
		b.ReportMetric(float64(runs.Load())/float64(n), "runs/op")
	})
}

// BenchmarkFailing: an effect of 20 µs fails for everyone who waits in turn, or
// once for all.
func BenchmarkFailing(b *testing.B) {
	for _, waiters := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("waiters=%d", waiters), func(b *testing.B) {
			run := func(b *testing.B, do doer[int, int]) { failing(b, waiters+1, do) }
			sides(b, idempotent.Options[int, int]{}, run)
			b.Run("endpoint,ShareFailure", func(b *testing.B) { // the port has nothing like it
				e := openFor(b, idempotent.Options[int, int]{ShareFailure: true})
				run(b, func(ctx context.Context, key int, effect func(context.Context) (int, error)) (int, error) {
					value, _, err := e.Do(ctx, key, effect)
					return value, err
				})
			})
		})
	}
}

func failing(b *testing.B, callers int, do doer[int, int]) {
	var came, runs atomic.Int64
	var gathered atomic.Bool
	effect := func(context.Context) (int, error) {
		if !gathered.Swap(true) {
			for came.Load() < int64(callers) {
				runtime.Gosched()
			}
			for range callers { // those who are about to wait have their turn
				runtime.Gosched()
			}
		}
		runs.Add(1)
		spin(20 * time.Microsecond)
		return 0, errBoom
	}
	n := 0
	for b.Loop() {
		n++
		came.Store(0)
		gathered.Store(false)
		together(callers, func() {
			came.Add(1)
			do(bg, n, effect)
		})
	}
	b.ReportMetric(float64(runs.Load())/float64(n), "runs/op")
}

// BenchmarkExpiry: a million results end at about one instant while one caller
// goes on with keys of its own. Reported are its slowest call, and the memory
// that is back half a second after the end.
func BenchmarkExpiry(b *testing.B) {
	const keys, ttl = 1_000_000, 3 * time.Second
	sides(b, idempotent.Options[int, int]{TTL: ttl, StaleMemory: -1}, func(b *testing.B, do doer[int, int]) {
		var slowest time.Duration
		var freed float64
		n := 0
		for b.Loop() {
			n++
			empty := heap()
			for i := range keys {
				do(bg, i+1, constant)
			}
			full := heap()
			for end := time.Now().Add(ttl + 500*time.Millisecond); time.Now().Before(end); {
				begun := time.Now()
				do(bg, -1-rand.IntN(1000), constant)
				slowest = max(slowest, time.Since(begun))
			}
			freed += float64(full-heap()) / float64(full-empty)
		}
		b.ReportMetric(float64(slowest.Microseconds())/1000, "slowest-ms")
		b.ReportMetric(100*freed/float64(n), "%freed")
	})
}

// BenchmarkMemory: what a kept result takes, with a key of 36 bytes and a value
// of 16. The key's own bytes are counted.
func BenchmarkMemory(b *testing.B) {
	const keys = 1_000_000
	sides(b, idempotent.Options[string, [2]int64]{}, func(b *testing.B, do doer[string, [2]int64]) {
		var perKey float64
		n := 0
		for b.Loop() {
			before := heap()
			for i := range keys {
				do(bg, stringKey(n*keys+i), func(context.Context) ([2]int64, error) { return [2]int64{1, 2}, nil })
			}
			perKey += float64(heap()-before) / keys
			n++
		}
		runtime.KeepAlive(do)
		b.ReportMetric(perKey/float64(n), "B/key")
	})
}

// together runs n callers at once and waits for them.
func together(n int, call func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(call)
	}
	wg.Wait()
}

// spin takes time as an effect does that computes.
func spin(d time.Duration) {
	for begun := time.Now(); time.Since(begun) < d; {
	}
}
