package bench

import (
	"context"
	"iter"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Ours is the name of the endpoint among the peers.
const Ours = "idempotent"

type endpointRunner[K comparable, V any] struct {
	*idempotent.Endpoint[K, V]
	ttl time.Duration
}

func newEndpoint[K comparable, V any](c Config) Runner[K, V] {
	return runnerOf(idempotent.Options[K, V]{TTL: c.TTL, Capacity: c.Capacity})
}

func runnerOf[K comparable, V any](opts idempotent.Options[K, V]) endpointRunner[K, V] {
	return endpointRunner[K, V]{NewEndpoint(opts), opts.TTL}
}

// NewEndpoint is idempotent.New for options that are known to be good.
func NewEndpoint[K comparable, V any](opts idempotent.Options[K, V]) *idempotent.Endpoint[K, V] {
	e, err := idempotent.New(opts)
	if err != nil {
		panic(err)
	}
	return e
}

func (r endpointRunner[K, V]) Do(ctx context.Context, key K, effect Effect[V]) (V, error) {
	value, _, err := r.Endpoint.Do(ctx, key, effect)
	return value, err
}

// Stale is how many late retries were noticed.
func (r endpointRunner[K, V]) Stale() uint64 { return r.Stats().Stale }

// Fill restores records as a snapshot has them: they completed a window before
// their end. Those that end earlier than what is kept already are kept apart.
func (r endpointRunner[K, V]) Fill(end time.Time, n int, key func(int) K, value func(int) V) {
	completed := end.Add(-r.ttl)
	var records iter.Seq2[K, idempotent.Record[V]] = func(yield func(K, idempotent.Record[V]) bool) {
		for i := 0; i < n && yield(key(i), idempotent.Record[V]{Value: value(i), CompletedAt: completed, ExpiresAt: end}); i++ {
		}
	}
	if took := r.Restore(records); took != n && time.Now().Before(end) {
		panic("bench: Restore left records out")
	}
}

// Close lets go: an endpoint has nothing to stop.
func (endpointRunner[K, V]) Close() {}

// OursNoStale is the endpoint that remembers no ended keys: what it still holds
// when all results have ended is not that memory.
const OursNoStale = "idempotent, StaleMemory -1"

func noStalePeer() Peer {
	return Peer{Name: OursNoStale, Strings: func(c Config) Runner[string, Value] {
		return runnerOf(idempotent.Options[string, Value]{TTL: c.TTL, StaleMemory: -1})
	}}
}

func idempotentPeer() Peer {
	return Peer{
		Name:    Ours,
		Strings: newEndpoint[string, Value], Ints: newEndpoint[int, Value], Blobs: newEndpoint[string, []byte],
		Promises: Promises{Once: true, Bounded: true, Refuses: true, Expires: true, WaiterLeave: true, OneByOne: true,
			PanicFree: true, GoexitFree: true, Independent: true, Stale: true},
	}
}
