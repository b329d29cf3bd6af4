// Package sequence keeps an older event from overwriting what a newer one of
// the same resource has left.
//
// A [Guard] applies events in memory and in one process: give it the number by
// which the producer orders a resource's events (a version, or a time), and it
// drops those that come too late. It does not wait for missing numbers. Where
// the state is in a database, idemsql's Advance does the same in the
// transaction that writes it.
package sequence

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Options bound what a [Guard] remembers. A resource that it has let go, for
// either reason, has no last number: its next event is applied whatever its
// number, an old one too.
type Options struct {
	// TTL is how long a resource is remembered after the last event that was
	// applied to it or dropped. Choose it longer than an event can be late. 0
	// means idempotent.DefaultTTL; idempotent.Forever never lets go.
	TTL time.Duration

	// Capacity is the most resources remembered. Beyond it the one that has
	// been idle longest is let go. 0 means no bound.
	Capacity int
}

// Stats are a Guard's counters since it was made, and the resources that it
// remembers now. A call whose effect was never reached, because its ctx ended
// or its resource was refused, is in none of them.
type Stats struct {
	Applied, Dropped, Failed uint64 // Failed effects returned an error or did not return
	Resources                int
}

// A Guard is safe for use by several goroutines. Make one with [New].
type Guard[R comparable] struct {
	// turns has one claim for each resource that a call is at work on. Its
	// effects always fail, so that a result is never kept and the claim passes
	// to the call that has waited longest: that is a fair lock which can be
	// waited for with a ctx and which recognises a call that waits for itself.
	turns *idempotent.Endpoint[turn[R], struct{}]

	// last holds the last number of each resource. A number is replaced under
	// mu, for which Forget and Do are two steps. Only the holder of a resource's
	// turn sets its number.
	mu   sync.RWMutex
	last *idempotent.Endpoint[R, uint64]

	applied, dropped, failed atomic.Uint64
}

// turn makes the claims' keys a type of their own. Inside an effect,
// idempotent.Key then still finds the event's key, and never a resource.
type turn[R comparable] struct{ resource R }

// GoString names the resource alone in the errors that quote a key.
func (t turn[R]) GoString() string { return fmt.Sprintf("%#v", t.resource) }

var errTurnOver = errors.New("sequence: the turn is over")

// New makes a Guard. Negative options are an error that names the field and
// the value.
func New[R comparable](opts Options) (*Guard[R], error) {
	last, err := idempotent.New(idempotent.Options[R, uint64]{
		TTL: opts.TTL, Capacity: opts.Capacity, EvictOldest: true, StaleMemory: -1,
	})
	if err != nil {
		return nil, fmt.Errorf("sequence: %w", err)
	}
	// The caller's cancellation goes on to the effect: whether an effect may be
	// killed half way was decided by whoever made ctx.
	turns, err := idempotent.New(idempotent.Options[turn[R], struct{}]{PassCancel: true, StaleMemory: -1})
	if err != nil {
		return nil, fmt.Errorf("sequence: %w", err)
	}
	return &Guard[R]{turns: turns, last: last}, nil
}

// Apply runs effect, unless an event with this number or a higher one has been
// applied to the resource: then it drops the event and returns false and no
// error. The number becomes the resource's last after effect has returned nil.
// A failed effect leaves it as it was, so that an older event that comes after
// a failed newer one is applied.
//
// Calls for one resource run one after another, in the order in which they
// came; different resources do not wait for each other. A call that leaves its
// place because ctx ends returns an error that matches ctx's. One that is made
// inside an effect of its own resource, and could never have its turn, returns
// an error that matches idempotent.ErrDeadlock; the zero resource and one that
// does not equal itself match idempotent.ErrInvalidKey.
//
// The effect runs on the caller's goroutine and gets ctx's values, deadline
// and cancellation. If it panics, the panic goes on to the caller and the
// number stays.
func (g *Guard[R]) Apply(ctx context.Context, resource R, seq uint64, effect func(context.Context) error) (applied bool, err error) {
	_, verdict, refused := g.turns.Do(ctx, turn[R]{resource}, func(ctx context.Context) (struct{}, error) {
		applied, err = g.take(ctx, resource, seq, effect)
		return struct{}{}, errTurnOver
	})
	if verdict != idempotent.Executed {
		return false, fmt.Errorf("sequence: %w", refused)
	}
	return applied, err
}

// take is Apply for the holder of the resource's turn.
func (g *Guard[R]) take(ctx context.Context, resource R, seq uint64, effect func(context.Context) error) (applied bool, err error) {
	if last, ok := g.Last(resource); ok && seq <= last && g.refresh(resource, seq) {
		g.dropped.Add(1)
		return false, nil
	}
	defer func() {
		if !applied {
			g.failed.Add(1)
		}
	}()
	if err := effect(ctx); err != nil {
		return false, err
	}
	g.set(resource, seq)
	g.applied.Add(1)
	return true, nil
}

// set makes seq the resource's last number, with a window that begins now. The
// caller must hold the resource's turn.
func (g *Guard[R]) set(resource R, seq uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.setLocked(resource, seq)
}

// refresh begins the window of a resource's last number anew, unless that is
// lower than seq, or was forgotten meanwhile.
func (g *Guard[R]) refresh(resource R, seq uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	record, ok := g.last.Lookup(resource)
	if !ok || seq > record.Value {
		return false
	}
	g.setLocked(resource, record.Value)
	return true
}

// setLocked requires mu.
func (g *Guard[R]) setLocked(resource R, seq uint64) {
	g.last.Forget(resource)
	g.last.Do(context.Background(), resource, func(context.Context) (uint64, error) { return seq, nil })
}

// Last returns the number of the event that was applied to the resource last,
// and whether one is remembered.
func (g *Guard[R]) Last(resource R) (seq uint64, ok bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	record, ok := g.last.Lookup(resource)
	return record.Value, ok
}

// Forget drops what is remembered of the resource and says whether there was
// anything: its next event is applied whatever its number. An event that is
// being applied meanwhile still leaves its number.
func (g *Guard[R]) Forget(resource R) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last.Forget(resource)
}

// Stats returns the counters as they are now.
func (g *Guard[R]) Stats() Stats {
	return Stats{
		Applied:   g.applied.Load(),
		Dropped:   g.dropped.Load(),
		Failed:    g.failed.Load(),
		Resources: g.last.Stats().Retained,
	}
}
