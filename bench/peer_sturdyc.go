package bench

import (
	"context"
	"time"

	"github.com/viccon/sturdyc"
)

// sturdycRunner has string keys. Its sweeper's goroutine never ends and keeps the
// client alive: Close deletes the entries and stops its ticks, which come from
// our clock for that reason alone.
type sturdycRunner[K comparable, V any] struct {
	client *sturdyc.Client[V]
	clock  *stoppableClock
}

// stoppableClock is the library's own clock with one ticker that can be stopped.
type stoppableClock struct {
	*sturdyc.RealClock
	ticker *time.Ticker
}

func (c *stoppableClock) NewTicker(time.Duration) (<-chan time.Time, func()) {
	return c.ticker.C, c.ticker.Stop
}

func newSturdyc[K comparable, V any](c Config) Runner[K, V] {
	const shards = 64
	sweep := max(c.sweepEvery()/shards, 1) // it sweeps one shard at a time
	clock := &stoppableClock{sturdyc.NewClock(), time.NewTicker(sweep)}
	client := sturdyc.New[V](max(c.bound(), shards), shards, c.TTL, 10, sturdyc.WithEvictionInterval(sweep), sturdyc.WithClock(clock))
	return sturdycRunner[K, V]{client, clock}
}

// Do looks before it asks the loader: the loader's wrappers are on the heap.
func (r sturdycRunner[K, V]) Do(ctx context.Context, key K, effect Effect[V]) (V, error) {
	text := keyText(key)
	if value, ok := r.client.Get(text); ok {
		return value, nil
	}
	return r.client.GetOrFetch(ctx, text, effect)
}

func (r sturdycRunner[K, V]) Close() {
	r.clock.ticker.Stop()
	for _, key := range r.client.ScanKeys() {
		r.client.Delete(key)
	}
}

func sturdycPeer() Peer {
	promises := shared
	promises.Once, promises.Bounded, promises.PanicFree = false, true, false
	return Peer{
		Name: "sturdyc", Modules: []string{"github.com/viccon/sturdyc"},
		Strings: newSturdyc[string, Value], Ints: newSturdyc[int, Value], Blobs: newSturdyc[string, []byte],
		Promises: promises,
	}
}
