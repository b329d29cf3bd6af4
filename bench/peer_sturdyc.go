package bench

import (
	"context"

	"github.com/viccon/sturdyc"
)

// sturdycRunner has string keys. Its sweeper cannot be stopped and keeps the
// client alive, so Close deletes the entries.
type sturdycRunner[K comparable, V any] struct{ client *sturdyc.Client[V] }

func newSturdyc[K comparable, V any](c Config) Runner[K, V] {
	const shards = 64
	sweep := max(c.sweepEvery()/shards, 1) // it sweeps one shard at a time
	return sturdycRunner[K, V]{sturdyc.New[V](max(c.bound(), shards), shards, c.TTL, 10, sturdyc.WithEvictionInterval(sweep))}
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
