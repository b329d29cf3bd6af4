package bench

import (
	"context"
	"sync"
	"time"
)

// port is the design everybody writes first, in about 80 lines: one lock, a map
// of what is in flight, a map of what is done with its end, and for each claim a
// list of waiters, who are all woken and all try again when the attempt failed.
type port[K comparable, V any] struct {
	mu       sync.Mutex
	ttl      time.Duration
	sweep    time.Duration
	swept    time.Time
	inFlight map[K]*portClaim[V]
	done     map[K]portResult[V]
}

type portClaim[V any] struct {
	waiters []chan portOutcome[V]
}

type portOutcome[V any] struct {
	value V
	ok    bool // false: the attempt failed, try again
}

type portResult[V any] struct {
	value V
	end   time.Time
}

func newPort[K comparable, V any](c Config) Runner[K, V] {
	return &port[K, V]{ttl: c.TTL, sweep: c.sweepEvery(), swept: time.Now(),
		inFlight: map[K]*portClaim[V]{}, done: map[K]portResult[V]{}}
}

func (p *port[K, V]) Do(ctx context.Context, key K, effect Effect[V]) (V, error) {
	for {
		p.mu.Lock()
		now := time.Now()
		p.expire(now)
		if result, ok := p.done[key]; ok && now.Before(result.end) {
			p.mu.Unlock()
			return result.value, nil
		}
		if claim, ok := p.inFlight[key]; ok {
			wait := make(chan portOutcome[V], 1)
			claim.waiters = append(claim.waiters, wait)
			p.mu.Unlock()
			select {
			case outcome := <-wait:
				if outcome.ok {
					return outcome.value, nil
				}
				continue
			case <-ctx.Done():
				var zero V
				return zero, ctx.Err()
			}
		}
		claim := &portClaim[V]{}
		p.inFlight[key] = claim
		p.mu.Unlock()
		return p.run(ctx, key, claim, effect)
	}
}

// expire drops what has ended, all at once: the maps know no order.
// The caller holds mu.
func (p *port[K, V]) expire(now time.Time) {
	if now.Sub(p.swept) < p.sweep {
		return
	}
	p.swept = now
	for key, result := range p.done {
		if !now.Before(result.end) {
			delete(p.done, key)
		}
	}
}

func (p *port[K, V]) run(ctx context.Context, key K, claim *portClaim[V], effect Effect[V]) (value V, err error) {
	ok := false
	defer func() {
		p.mu.Lock()
		delete(p.inFlight, key)
		if ok {
			p.done[key] = portResult[V]{value, time.Now().Add(p.ttl)}
		}
		waiters := claim.waiters
		p.mu.Unlock()
		for _, wait := range waiters {
			wait <- portOutcome[V]{value, ok}
		}
	}()
	value, err = effect(ctx)
	ok = err == nil
	return value, err
}

func (p *port[K, V]) Fill(end time.Time, n int, key func(int) K, value func(int) V) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range n {
		p.done[key(i)] = portResult[V]{value(i), end}
	}
}

func (p *port[K, V]) Sweep(every time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep = every
}

func (p *port[K, V]) Close() {}

// Port is the name of the 80-line port among the peers.
const Port = "80-line port"

func portPeer() Peer {
	promises := shared
	promises.WaiterLeave, promises.OneByOne = true, true
	return Peer{
		Name:    Port,
		Strings: newPort[string, Value], Ints: newPort[int, Value], Blobs: newPort[string, []byte],
		Promises: promises,
	}
}
