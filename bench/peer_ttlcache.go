package bench

import (
	"context"
	"time"

	"github.com/jellydator/ttlcache/v3"
	"golang.org/x/sync/singleflight"
)

// ttlcacheRunner passes the effect as the loader of the call, behind the
// library's own suppression of duplicates. A loader has no error to return: the
// caller whose loader ran takes it aside, the others cannot have it.
type ttlcacheRunner[K comparable, V any] struct {
	cache *ttlcache.Cache[K, V]
	group singleflight.Group
}

func newTTLCache[K comparable, V any](c Config) Runner[K, V] {
	r := &ttlcacheRunner[K, V]{cache: ttlcache.New(
		ttlcache.WithTTL[K, V](c.TTL),
		ttlcache.WithCapacity[K, V](uint64(c.Capacity)),
		ttlcache.WithDisableTouchOnHit[K, V](),
	)}
	go r.cache.Start()
	return r
}

func (r *ttlcacheRunner[K, V]) Do(ctx context.Context, key K, effect Effect[V]) (V, error) {
	if item := r.cache.Get(key); item != nil {
		return item.Value(), nil
	}
	return r.load(ctx, key, effect)
}

func (r *ttlcacheRunner[K, V]) load(ctx context.Context, key K, effect Effect[V]) (V, error) {
	err := errNoResult
	loader := ttlcache.LoaderFunc[K, V](func(cache *ttlcache.Cache[K, V], key K) *ttlcache.Item[K, V] {
		var value V
		if value, err = effect(ctx); err != nil {
			return nil
		}
		return cache.Set(key, value, ttlcache.DefaultTTL)
	})
	item := r.cache.Get(key, ttlcache.WithLoader[K, V](ttlcache.NewSuppressedLoader[K, V](loader, &r.group)))
	if item == nil {
		var zero V
		return zero, err
	}
	return item.Value(), nil
}

func (r *ttlcacheRunner[K, V]) Fill(end time.Time, n int, key func(int) K, value func(int) V) {
	for i := range n {
		r.cache.Set(key(i), value(i), time.Until(end))
	}
}

func (r *ttlcacheRunner[K, V]) Close() {
	r.cache.Stop()
	r.cache.DeleteAll()
}

func ttlcachePeer() Peer {
	promises := shared
	promises.Once, promises.Bounded = false, true
	return Peer{
		Name: "ttlcache v3", Modules: []string{"github.com/jellydator/ttlcache/v3", "golang.org/x/sync"},
		Strings: newTTLCache[string, Value], Ints: newTTLCache[int, Value], Blobs: newTTLCache[string, []byte],
		Promises: promises,
	}
}
