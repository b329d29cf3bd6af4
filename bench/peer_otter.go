package bench

import (
	"context"
	"time"

	"github.com/maypok86/otter/v2"
)

type otterRunner[K comparable, V any] struct {
	cache *otter.Cache[K, V]
	clock *otter.CoarseClock // nil: its precise clock
}

func newOtter[K comparable, V any](resolution time.Duration) func(Config) Runner[K, V] {
	return func(c Config) Runner[K, V] {
		r := &otterRunner[K, V]{}
		opts := &otter.Options[K, V]{
			MaximumSize:      c.Capacity,
			ExpiryCalculator: otter.ExpiryWriting[K, V](c.TTL),
		}
		if resolution > 0 {
			r.clock = otter.NewCoarseClock(resolution)
			opts.Clock = r.clock
		}
		r.cache = otter.Must(opts)
		return r
	}
}

// Do looks before it asks the loader: the loader's closure is on the heap.
func (r *otterRunner[K, V]) Do(ctx context.Context, key K, effect Effect[V]) (V, error) {
	if value, ok := r.cache.GetIfPresent(key); ok {
		return value, nil
	}
	return r.load(ctx, key, effect)
}

func (r *otterRunner[K, V]) load(ctx context.Context, key K, effect Effect[V]) (V, error) {
	return r.cache.Get(ctx, key, otter.LoaderFunc[K, V](func(ctx context.Context, _ K) (V, error) {
		return effect(ctx)
	}))
}

func (r *otterRunner[K, V]) Fill(end time.Time, n int, key func(int) K, value func(int) V) {
	for i := range n {
		k := key(i)
		r.cache.Set(k, value(i))
		r.cache.SetExpiresAfter(k, time.Until(end))
	}
}

func (r *otterRunner[K, V]) Close() {
	r.cache.InvalidateAll()
	r.cache.StopAllGoroutines()
	if r.clock != nil {
		r.clock.Stop()
	}
}

// Otter and OtterCoarse are otter's names among the peers.
const (
	Otter       = "otter v2"
	OtterCoarse = "otter v2, coarse clock"
)

func otterPeer(name string, resolution time.Duration) Peer {
	promises := shared
	promises.Bounded, promises.WaiterLeave = true, true
	return Peer{
		Name: name, Modules: []string{"github.com/maypok86/otter/v2"},
		Strings: newOtter[string, Value](resolution), Ints: newOtter[int, Value](resolution), Blobs: newOtter[string, []byte](resolution),
		Promises: promises,
	}
}
