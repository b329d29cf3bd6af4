package idempotent_test

import (
	"context"
	"sync"
	"time"
)

// port is the plain design that the endpoint is measured beside, in the shape in
// which it is usually written: one lock, a map of keys in flight, a map of results
// with their ends, and for each attempt a list of those who wait. After a failure
// all of them wake and look again. It knows nothing of panics, capacity and keys
// that are stale, and drops what has ended when it happens to meet it, and all of
// it once a window.
type port[K comparable, V any] struct {
	ttl time.Duration

	mu       sync.Mutex
	inFlight map[K][]chan struct{} // closed when the attempt has ended
	done     map[K]ended[V]
	swept    time.Time
}

type ended[V any] struct {
	value V
	ends  time.Time
}

func newPort[K comparable, V any](ttl time.Duration) *port[K, V] {
	return &port[K, V]{ttl: ttl, inFlight: make(map[K][]chan struct{}), done: make(map[K]ended[V]), swept: time.Now()}
}

func (p *port[K, V]) Do(ctx context.Context, key K, effect func(context.Context) (V, error)) (V, error) {
	for {
		p.mu.Lock()
		now := time.Now()
		p.sweep(now)
		if result, ok := p.done[key]; ok && now.Before(result.ends) {
			p.mu.Unlock()
			return result.value, nil
		}
		waiters, running := p.inFlight[key]
		if !running {
			p.inFlight[key] = nil
			p.mu.Unlock()
			return p.run(ctx, key, effect)
		}
		ready := make(chan struct{})
		p.inFlight[key] = append(waiters, ready)
		p.mu.Unlock()
		select {
		case <-ready:
		case <-ctx.Done():
			var zero V
			return zero, ctx.Err()
		}
	}
}

func (p *port[K, V]) run(ctx context.Context, key K, effect func(context.Context) (V, error)) (V, error) {
	value, err := effect(ctx)
	p.mu.Lock()
	if err == nil {
		p.done[key] = ended[V]{value, time.Now().Add(p.ttl)}
	}
	waiters := p.inFlight[key]
	delete(p.inFlight, key)
	p.mu.Unlock()
	for _, ready := range waiters {
		close(ready)
	}
	return value, err
}

// sweep drops all that has ended, once a window. mu must be held.
func (p *port[K, V]) sweep(now time.Time) {
	if now.Sub(p.swept) < p.ttl {
		return
	}
	p.swept = now
	for key, result := range p.done {
		if !now.Before(result.ends) {
			delete(p.done, key)
		}
	}
}
