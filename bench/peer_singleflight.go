package bench

import (
	"context"

	"github.com/hashicorp/golang-lru/v2/expirable"
	"golang.org/x/sync/singleflight"
)

// flight is singleflight in front of a cache: look, then fly. With again set
// the flight looks a second time: the attempt that the first look missed may
// have ended, cache written, before this flight began.
type flight[K comparable, V any] struct {
	group singleflight.Group
	cache cache[K, V]
	again bool
}

// cache is what flight needs of a library without a loader of its own.
type cache[K comparable, V any] interface {
	get(K) (V, bool)
	set(K, V)
	close()
}

func (f *flight[K, V]) Do(ctx context.Context, key K, effect Effect[V]) (V, error) {
	if value, ok := f.cache.get(key); ok {
		return value, nil
	}
	value, err, _ := f.group.Do(keyText(key), func() (any, error) {
		if f.again {
			if value, ok := f.cache.get(key); ok {
				return value, nil
			}
		}
		value, err := effect(ctx)
		if err == nil {
			f.cache.set(key, value)
		}
		return value, err
	})
	if err != nil {
		var zero V
		return zero, err
	}
	return value.(V), nil
}

func (f *flight[K, V]) Close() { f.cache.close() }

// lru is golang-lru's expirable. Its goroutine cannot be stopped: Purge at
// least lets the entries go.
type lru[K comparable, V any] struct{ *expirable.LRU[K, V] }

func (l lru[K, V]) get(key K) (V, bool) { return l.Get(key) }
func (l lru[K, V]) set(key K, value V)  { l.Add(key, value) }
func (l lru[K, V]) close()              { l.Purge() }

func newLRU[K comparable, V any](c Config) lru[K, V] {
	return lru[K, V]{expirable.NewLRU[K, V](c.Capacity, nil, c.TTL)}
}

func newNaive[K comparable, V any](c Config) Runner[K, V] {
	return &flight[K, V]{cache: newLRU[K, V](c)}
}

func newRecheck[K comparable, V any](c Config) Runner[K, V] {
	return &flight[K, V]{cache: newLRU[K, V](c), again: true}
}

var flightModules = []string{"golang.org/x/sync", "github.com/hashicorp/golang-lru/v2"}

func naivePeer() Peer {
	promises := shared
	promises.Once, promises.Bounded = false, true
	return Peer{
		Name: "singleflight + expirable, naive", Modules: flightModules,
		Strings: newNaive[string, Value], Ints: newNaive[int, Value], Blobs: newNaive[string, []byte],
		Promises: promises,
	}
}

func recheckPeer() Peer {
	promises := shared
	promises.Bounded = true
	return Peer{
		Name: "singleflight + expirable, second look", Modules: flightModules,
		Strings: newRecheck[string, Value], Ints: newRecheck[int, Value], Blobs: newRecheck[string, []byte],
		Promises: promises,
	}
}
