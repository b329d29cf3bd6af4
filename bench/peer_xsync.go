package bench

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"
)

// xsyncRunner is what a careful engineer builds on the fastest concurrent map:
// an entry is a claim until its end is set, and a result from then on.
type xsyncRunner[K comparable, V any] struct {
	entries *xsync.Map[K, *xsyncEntry[V]]
	ttl     time.Duration
	epoch   time.Time
	ticker  *time.Ticker
	stop    chan struct{}
}

type xsyncEntry[V any] struct {
	end   atomic.Int64  // nanoseconds since the epoch; 0 while the claim runs
	done  chan struct{} // closed when the attempt has ended
	value V             // written before end is set
}

func newXsync[K comparable, V any](c Config) Runner[K, V] {
	r := &xsyncRunner[K, V]{entries: xsync.NewMap[K, *xsyncEntry[V]](), ttl: c.TTL, epoch: time.Now(),
		ticker: time.NewTicker(c.sweepEvery()), stop: make(chan struct{})}
	go r.sweep()
	return r
}

func (r *xsyncRunner[K, V]) Do(ctx context.Context, key K, effect Effect[V]) (V, error) {
	for {
		entry, ok := r.entries.Load(key)
		if !ok || r.ended(entry) {
			claim := &xsyncEntry[V]{done: make(chan struct{})}
			entry, _ = r.entries.Compute(key, func(old *xsyncEntry[V], loaded bool) (*xsyncEntry[V], xsync.ComputeOp) {
				if loaded && !r.ended(old) {
					return old, xsync.CancelOp
				}
				return claim, xsync.UpdateOp
			})
			if entry == claim {
				return r.run(ctx, key, claim, effect)
			}
		}
		if entry.end.Load() != 0 {
			return entry.value, nil
		}
		select {
		case <-entry.done:
			if entry.end.Load() != 0 {
				return entry.value, nil
			}
		case <-ctx.Done():
			var zero V
			return zero, ctx.Err()
		}
	}
}

func (r *xsyncRunner[K, V]) ended(entry *xsyncEntry[V]) bool {
	end := entry.end.Load()
	return end != 0 && int64(time.Since(r.epoch)) >= end
}

func (r *xsyncRunner[K, V]) run(ctx context.Context, key K, claim *xsyncEntry[V], effect Effect[V]) (V, error) {
	ok := false
	defer func() {
		if ok {
			claim.end.Store(int64(time.Since(r.epoch) + r.ttl))
		} else {
			r.entries.Delete(key)
		}
		close(claim.done)
	}()
	value, err := effect(ctx)
	claim.value = value
	ok = err == nil
	return value, err
}

func (r *xsyncRunner[K, V]) Sweep(every time.Duration) { r.ticker.Reset(every) }

func (r *xsyncRunner[K, V]) sweep() {
	defer r.ticker.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-r.ticker.C:
			r.entries.DeleteMatching(func(_ K, entry *xsyncEntry[V]) (remove, stop bool) { return r.ended(entry), false })
		}
	}
}

func (r *xsyncRunner[K, V]) Fill(end time.Time, n int, key func(int) K, value func(int) V) {
	for i := range n {
		entry := &xsyncEntry[V]{done: make(chan struct{}), value: value(i)}
		entry.end.Store(int64(end.Sub(r.epoch)))
		close(entry.done)
		r.entries.Store(key(i), entry)
	}
}

func (r *xsyncRunner[K, V]) Close() {
	close(r.stop)
	r.entries.Clear()
}

// Xsync is its name among the peers.
const Xsync = "xsync v4, by hand"

func xsyncPeer() Peer {
	promises := shared
	promises.WaiterLeave, promises.OneByOne = true, true
	return Peer{
		Name: Xsync, Modules: []string{"github.com/puzpuzpuz/xsync/v4"},
		Strings: newXsync[string, Value], Ints: newXsync[int, Value], Blobs: newXsync[string, []byte],
		Promises: promises,
	}
}
