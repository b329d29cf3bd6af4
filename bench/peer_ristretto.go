package bench

import (
	"time"

	"github.com/dgraph-io/ristretto/v2"
)

// ristrettoCache applies writes behind the caller's back and may drop them;
// waiting for each (Wait) would put a round trip through its only worker on
// every cold call, so, as its documentation shows, nobody waits.
type ristrettoCache[K ristretto.Key, V any] struct {
	*ristretto.Cache[K, V]
	ttl time.Duration
}

func (r ristrettoCache[K, V]) get(key K) (V, bool) { return r.Get(key) }
func (r ristrettoCache[K, V]) set(key K, value V)  { r.SetWithTTL(key, value, 1, r.ttl) }
func (r ristrettoCache[K, V]) close()              { r.Cache.Close() }

// ristrettoKey are the keys that both sides can have.
type ristrettoKey interface{ string | int }

func newRistretto[K ristrettoKey, V any](c Config) Runner[K, V] {
	r, err := ristretto.NewCache(&ristretto.Config[K, V]{
		NumCounters:            10 * int64(c.bound()), // as its documentation advises
		MaxCost:                int64(c.bound()),
		BufferItems:            64,
		IgnoreInternalCost:     true,
		TtlTickerDurationInSec: 1,
	})
	if err != nil {
		panic(err)
	}
	return &flight[K, V]{cache: ristrettoCache[K, V]{r, c.TTL}, again: true}
}

func ristrettoPeer() Peer {
	promises := shared
	promises.Once, promises.Bounded = false, true
	return Peer{
		Name: "ristretto v2 + singleflight", Modules: []string{"github.com/dgraph-io/ristretto/v2", "golang.org/x/sync"},
		Strings: newRistretto[string, Value], Ints: newRistretto[int, Value], Blobs: newRistretto[string, []byte],
		Promises: promises,
	}
}
