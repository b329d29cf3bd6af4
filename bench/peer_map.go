package bench

import (
	"context"
	"sync"
	"time"
)

// bareMap is the floor: a Go map without lock, window or claim. One caller only.
type bareMap[K comparable, V any] map[K]V

func newBareMap[K comparable, V any](Config) Runner[K, V] { return bareMap[K, V]{} }

func (m bareMap[K, V]) Do(ctx context.Context, key K, effect Effect[V]) (V, error) {
	if value, ok := m[key]; ok {
		return value, nil
	}
	value, err := effect(ctx)
	if err == nil {
		m[key] = value
	}
	return value, err
}

func (m bareMap[K, V]) Fill(_ time.Time, n int, key func(int) K, value func(int) V) {
	for i := range n {
		m[key(i)] = value(i)
	}
}

func (bareMap[K, V]) Close() {}

// BareMap is the name of the floor.
const BareMap = "bare Go map, no lock"

func mapPeer() Peer {
	return Peer{
		Name:    BareMap,
		Strings: newBareMap[string, Value], Ints: newBareMap[int, Value], Blobs: newBareMap[string, []byte],
		Floor: true,
	}
}

// onceMap keeps a sync.OnceValues per key for ever. A failed one is taken out, so that
// the next call tries; a panicked one stays, because OnceValues repeats the panic.
type onceMap[K comparable, V any] struct{ m sync.Map }

type onceEntry[V any] struct{ get func() (V, error) }

func newOnceMap[K comparable, V any](Config) Runner[K, V] { return &onceMap[K, V]{} }

func (o *onceMap[K, V]) Do(ctx context.Context, key K, effect Effect[V]) (V, error) {
	kept, ok := o.m.Load(key)
	if !ok {
		kept, _ = o.m.LoadOrStore(key, &onceEntry[V]{sync.OnceValues(func() (V, error) { return effect(ctx) })})
	}
	entry := kept.(*onceEntry[V])
	value, err := entry.get()
	if err != nil {
		o.m.CompareAndDelete(key, entry)
	}
	return value, err
}

func (o *onceMap[K, V]) Close() { o.m.Clear() }

func syncMapPeer() Peer {
	return Peer{
		Name:    "sync.Map + OnceValues",
		Strings: newOnceMap[string, Value], Ints: newOnceMap[int, Value], Blobs: newOnceMap[string, []byte],
		Promises: Promises{Once: true, Independent: true},
	}
}
