package idempotent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// The wait-for graph. Its nodes are claims, of any endpoint. A call that an
// effect makes is an edge from the effect's claim to the claim the call waits
// for, or runs. A claim that queues for a slot waits for any one of the slot's
// holders. A call that would close a circle is refused.
//
// Only calls made inside effects, and claims that find no free slot, come here.

// waits guards every edge and every node's place in a slot's queue. It may be
// taken under a shard's lock, never the other way round.
var waits sync.Mutex

// node is a claim in the graph. It outlives the attempts that the claim is
// handed through.
type node struct {
	slots   *slots      // the claim's endpoint's; written once, before the node is shared
	holding atomic.Bool // a slot
	nested  atomic.Bool // the running attempt's effect has made calls

	calls  []*edge // guarded by waits
	queued bool    // for a slot; guarded by waits
}

type edge struct{ from, to *node }

// caller is a claim whose effect makes a call.
type caller interface {
	// place returns the node of the claim while its attempt runs. Afterwards it
	// returns one that nothing leads to.
	place() *node
	// outer returns the claim whose effect made the call that holds this one, or nil.
	outer() caller
}

// callerOf returns the claim of the effect that ctx belongs to, or nil.
func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerName{}).(caller)
	return c
}

// connect adds the edge for a call that c's effect makes, to the claim that it
// will wait for or run. It refuses with nil, false what would close a circle.
// The edge is nil if c's attempt has ended: nobody waits for what it left behind.
func connect(c caller, to *node) (*edge, bool) {
	waits.Lock()
	defer waits.Unlock()
	from := c.place()
	// disconnect skips attempts without nested calls, so it must see the mark or
	// this must see that the attempt is over.
	from.nested.Store(true)
	if c.place() != from {
		return nil, true
	}
	if from.holding.Load() {
		from.slots.callers[from] = struct{}{} // before the search, which may come to from's slot
	}
	e := &edge{from, to}
	if to.stuck(search{from: onPath}) {
		e.remove()
		return nil, false
	}
	from.calls = append(from.calls, e)
	return e, true
}

// end takes the edge away when its call returns.
func (e *edge) end() {
	waits.Lock()
	defer waits.Unlock()
	e.remove()
}

// remove takes the edge away, if it is there. waits must be held.
func (e *edge) remove() {
	n := e.from
	if i := slices.Index(n.calls, e); i >= 0 {
		n.calls = slices.Delete(n.calls, i, i+1)
	}
	if len(n.calls) == 0 && n.slots != nil {
		delete(n.slots.callers, n)
	}
}

// disconnect drops the calls that an ended attempt left behind. The claim must
// no longer lead to n.
func (n *node) disconnect() {
	if !n.nested.Load() {
		return
	}
	waits.Lock()
	defer waits.Unlock()
	n.nested.Store(false)
	n.calls = nil
	if n.slots != nil {
		delete(n.slots.callers, n)
	}
}

// search is what a search for a circle knows of the nodes it has met.
type search map[*node]mark

type mark uint8

const (
	onPath mark = iota + 1
	free        // not stuck
)

// stuck reports whether n cannot end before the nodes on the path do. waits must
// be held. A node met again on the path counts as stuck, which makes the answer
// the greatest fixed point: a set of nodes that only wait for each other is
// stuck, also where "any holder of a slot" would let one go. For the same reason
// "not stuck" holds for the whole search, and "stuck" only on its path.
func (n *node) stuck(met search) bool {
	switch met[n] {
	case onPath:
		return true
	case free:
		return false
	}
	met[n] = onPath
	if n.waitsForStuck(met) {
		delete(met, n)
		return true
	}
	met[n] = free
	return false
}

func (n *node) waitsForStuck(met search) bool {
	if n.queued {
		stuck := 0
		for holder := range n.slots.callers {
			if holder.stuck(met) {
				stuck++
			}
		}
		return stuck == n.slots.most
	}
	return slices.ContainsFunc(n.calls, func(call *edge) bool { return call.to.stuck(met) })
}

// slots bounds the effects that run at one time.
type slots struct {
	*semaphore.Weighted
	most    int
	callers map[*node]struct{} // holders whose effects are inside calls; guarded by waits
}

func newSlots(most int) *slots {
	return &slots{semaphore.NewWeighted(int64(most)), most, make(map[*node]struct{})}
}

// take waits for a slot for n until ctx ends.
func (s *slots) take(ctx context.Context, n *node, noWait bool) error {
	if !s.TryAcquire(1) {
		if noWait {
			return fmt.Errorf("%w: all %d slots are taken", ErrInFlight, s.most)
		}
		if !s.queue(n) {
			return ErrDeadlock
		}
		err := s.Acquire(ctx, 1)
		s.leave(n)
		if err != nil {
			return fmt.Errorf("idempotent: no free slot: %w", contextError(ctx))
		}
	}
	n.holding.Store(true)
	return nil
}

func (s *slots) queue(n *node) bool {
	waits.Lock()
	defer waits.Unlock()
	n.queued = true
	if n.stuck(search{}) {
		n.queued = false
		return false
	}
	return true
}

func (s *slots) leave(n *node) {
	waits.Lock()
	defer waits.Unlock()
	n.queued = false
}

// give frees n's slot.
func (s *slots) give(n *node) {
	n.holding.Store(false)
	s.Release(1)
}
