package idemredis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
)

// wait asks again until the key is no longer busy. It returns when the claim,
// if it got one, was asked for. Messages only make it ask sooner: one that is
// lost, or sent while nobody listened, costs a pause.
func (g *Guard[V]) wait(ctx context.Context, e entry, got answer) (sent time.Time, _ answer, err error) {
	w := g.bell.join(e.name)
	defer g.bell.leave(w)
	var limit <-chan time.Time
	if g.opts.Wait > 0 {
		timer := time.NewTimer(g.opts.Wait)
		defer timer.Stop()
		limit = timer.C
	}
	pause := newPauses()
	timer := time.NewTimer(pause.next())
	defer timer.Stop()
	for {
		select {
		case <-w.rung:
		case <-timer.C:
		case <-limit:
			return sent, got, fmt.Errorf("%w: key %q: Options.Wait of %v is over", idempotent.ErrInFlight, e.req.Key, g.opts.Wait)
		case <-ctx.Done():
			return sent, got, inFlight(ctx, e.req.Key)
		}
		sent = time.Now()
		got, err = g.enter(ctx, e)
		switch {
		case err != nil && ctx.Err() != nil:
			return sent, got, inFlight(ctx, e.req.Key)
		case err != nil:
			return sent, got, err
		case got.what != busy:
			if got.what != claimed {
				g.bell.ring(e.name) // the others here need not find out one by one
			}
			return sent, got, nil
		}
		// An effect that outlasts the first pause is worth a subscription.
		g.bell.listen()
		// A lease that runs out sends no message.
		timer.Reset(min(pause.next(), got.left+time.Millisecond))
	}
}

// pauses grow from one try to the next. They are jittered, so that callers who
// started together do not stay together.
type pauses struct{ longest time.Duration }

const (
	firstPause = 10 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

func newPauses() *pauses { return &pauses{firstPause} }

func (p *pauses) next() time.Duration {
	d := p.longest
	p.longest = min(2*d, lastPause)
	return d/2 + rand.N(d/2)
}

// wait takes the next pause; false says that ctx ended meanwhile.
func (p *pauses) wait(ctx context.Context) bool {
	timer := time.NewTimer(p.next())
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// A message is one of these and the key's name.
const (
	rangKept = "+" // a result is kept: all who wait want it
	rangFree = "-" // the key is free: one will do
)

// A bell wakes the calls of this process that wait for a key. It listens to the
// guard's channel while, and only while, some call has waited for a while.
type bell struct {
	client  redis.UniversalClient
	channel string

	mu      sync.Mutex // guards what follows
	waiters map[string][]*waiter
	stop    context.CancelFunc // ends the listening; nil: nobody listens
}

type waiter struct {
	name string
	rung chan struct{} // holds one ring
}

func (b *bell) join(name string) *waiter {
	w := &waiter{name: name, rung: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters == nil {
		b.waiters = make(map[string][]*waiter)
	}
	b.waiters[name] = append(b.waiters[name], w)
	return w
}

// leave takes the waiter out. A ring that it did not heed goes to the next.
func (b *bell) leave(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := slices.DeleteFunc(b.waiters[w.name], func(other *waiter) bool { return other == w })
	if len(left) > 0 {
		b.waiters[w.name] = left
	} else {
		delete(b.waiters, w.name)
	}
	select {
	case <-w.rung:
		wake(left[:min(1, len(left))])
	default:
	}
	if len(b.waiters) == 0 && b.stop != nil {
		b.stop()
		b.stop = nil
	}
}

// ring wakes all who wait for the key here.
func (b *bell) ring(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wake(b.waiters[name])
}

// hear takes a message.
func (b *bell) hear(message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if name, ok := strings.CutPrefix(message, rangKept); ok {
		wake(b.waiters[name])
	} else if name, ok := strings.CutPrefix(message, rangFree); ok {
		waiters := b.waiters[name]
		wake(waiters[:min(1, len(waiters))]) // the one that has waited longest
	}
}

// started wakes one waiter of each key: what was sent until now was not heard.
func (b *bell) started() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, waiters := range b.waiters {
		wake(waiters[:1])
	}
}

func wake(waiters []*waiter) {
	for _, w := range waiters {
		select {
		case w.rung <- struct{}{}:
		default:
		}
	}
}

// listen subscribes, unless that is done. Without the right to subscribe
// waiting is left to the pauses.
func (b *bell) listen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	go b.relay(ctx)
}

func (b *bell) relay(ctx context.Context) {
	sub := b.client.Subscribe(ctx, b.channel)
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })()
	// The channel subscribes again by itself when the connection breaks, says so
	// by a *redis.Subscription, and is closed with sub.
	for event := range sub.ChannelWithSubscriptions() {
		switch event := event.(type) {
		case *redis.Message:
			b.hear(event.Payload)
		case *redis.Subscription:
			b.started()
		}
	}
}
