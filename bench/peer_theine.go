package bench

import (
	"context"

	"github.com/Yiling-J/theine-go"
)

// theineRunner has one loader for the whole cache, so that a call's effect
// reaches it through the context.
type theineRunner[K comparable, V any] struct{ cache *theine.LoadingCache[K, V] }

// effectContext carries a call's effect.
type effectContext[V any] struct {
	context.Context
	effect Effect[V]
}

func newTheine[K comparable, V any](c Config) Runner[K, V] {
	cache, err := theine.NewBuilder[K, V](int64(c.bound())).BuildWithLoader(
		func(ctx context.Context, _ K) (theine.Loaded[V], error) {
			call := ctx.(*effectContext[V])
			value, err := call.effect(call.Context)
			return theine.Loaded[V]{Value: value, Cost: 1, TTL: c.TTL}, err
		})
	if err != nil {
		panic(err)
	}
	return theineRunner[K, V]{cache}
}

func (r theineRunner[K, V]) Do(ctx context.Context, key K, effect Effect[V]) (V, error) {
	return r.cache.Get(&effectContext[V]{ctx, effect}, key)
}

func (r theineRunner[K, V]) Close() { r.cache.Close() }

func theinePeer() Peer {
	promises := shared
	promises.Once, promises.Bounded, promises.Independent = false, true, false
	return Peer{
		Name: "theine", Modules: []string{"github.com/Yiling-J/theine-go"},
		Strings: newTheine[string, Value], Ints: newTheine[int, Value], Blobs: newTheine[string, []byte],
		Promises: promises,
	}
}
