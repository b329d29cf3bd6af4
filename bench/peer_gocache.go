package bench

import (
	"context"
	"sync"
	"time"

	gocache "github.com/patrickmn/go-cache"
)

// goCache is go-cache with a lock for each key: look, lock the key, look again,
// run. A key's lock is counted, so that it goes with its last user.
type goCache[K comparable, V any] struct {
	cache *gocache.Cache
	mu    sync.Mutex
	locks map[string]*keyLock // guarded by mu
}

type keyLock struct {
	sync.Mutex
	users int // guarded by goCache.mu
}

func newGoCache[K comparable, V any](c Config) Runner[K, V] {
	return &goCache[K, V]{cache: gocache.New(c.TTL, c.sweepEvery()), locks: map[string]*keyLock{}}
}

func (g *goCache[K, V]) Do(ctx context.Context, key K, effect Effect[V]) (V, error) {
	text := keyText(key)
	if value, ok := g.cache.Get(text); ok {
		return value.(V), nil
	}
	defer g.lock(text)()
	if value, ok := g.cache.Get(text); ok {
		return value.(V), nil
	}
	value, err := effect(ctx)
	if err == nil {
		g.cache.SetDefault(text, value)
	}
	return value, err
}

// lock locks the key and returns its unlock.
func (g *goCache[K, V]) lock(key string) (unlock func()) {
	g.mu.Lock()
	lock, ok := g.locks[key]
	if !ok {
		lock = &keyLock{}
		g.locks[key] = lock
	}
	lock.users++
	g.mu.Unlock()
	lock.Lock()
	return func() {
		lock.Unlock()
		g.mu.Lock()
		if lock.users--; lock.users == 0 {
			delete(g.locks, key)
		}
		g.mu.Unlock()
	}
}

func (g *goCache[K, V]) Fill(end time.Time, n int, key func(int) K, value func(int) V) {
	for i := range n {
		g.cache.Set(keyText(key(i)), value(i), time.Until(end))
	}
}

func (g *goCache[K, V]) Close() { g.cache.Flush() }

func goCachePeer() Peer {
	promises := shared
	promises.OneByOne = true
	return Peer{
		Name: "go-cache + lock per key", Modules: []string{"github.com/patrickmn/go-cache"},
		Strings: newGoCache[string, Value], Ints: newGoCache[int, Value], Blobs: newGoCache[string, []byte],
		Promises: promises,
	}
}
