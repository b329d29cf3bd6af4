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

// waits guards every edge and every node's place in a slot's queue, of all
// endpoints: an effect of one may call another. It may be taken under shards'
// locks, never the other way round.
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
	if to.stuck(from) {
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

// stuck reports whether n cannot end before from does. waits must be held. It
// begins with all that n leads to taken for stuck, and frees what can end, until
// nothing more can: what is left only waits for itself, also where "any holder of
// a slot" would let one go. Every edge is looked at a bounded number of times.
func (n *node) stuck(from *node) bool {
	waitsFor := map[*node]int{}    // how much each node met must see end before it can
	usedBy := map[*node][]*node{}  // who waits for a node to end
	queues := map[*slots][]*node{} // who waits for any holder of a slot
	var ends []*node
	for todo := []*node{n}; len(todo) > 0; {
		m := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if _, met := waitsFor[m]; met || m == from {
			continue
		}
		switch {
		case m.queued && len(m.slots.callers) == m.slots.most:
			if queues[m.slots] == nil {
				for holder := range m.slots.callers {
					todo = append(todo, holder)
				}
			}
			queues[m.slots] = append(queues[m.slots], m)
			waitsFor[m] = 1
		case !m.queued && len(m.calls) > 0:
			for _, call := range m.calls {
				usedBy[call.to] = append(usedBy[call.to], m)
				todo = append(todo, call.to)
			}
			waitsFor[m] = len(m.calls)
		default:
			waitsFor[m] = 0
			ends = append(ends, m)
		}
	}
	for len(ends) > 0 {
		m := ends[len(ends)-1]
		ends = ends[:len(ends)-1]
		for _, w := range usedBy[m] {
			if waitsFor[w]--; waitsFor[w] == 0 {
				ends = append(ends, w)
			}
		}
		if m.slots == nil {
			continue
		}
		if _, holds := m.slots.callers[m]; holds {
			for _, w := range queues[m.slots] {
				waitsFor[w] = 0
				ends = append(ends, w)
			}
			delete(queues, m.slots)
		}
	}
	return n == from || waitsFor[n] > 0
}

// slots bounds the effects that run at one time.
type slots struct {
	*semaphore.Weighted
	most    int
	callers map[*node]struct{} // holders whose effects are inside calls; guarded by waits
	open    context.Context    // ends when no effect may start any more
	close   context.CancelFunc
}

func newSlots(most int) *slots {
	s := &slots{Weighted: semaphore.NewWeighted(int64(most)), most: most, callers: make(map[*node]struct{})}
	s.open, s.close = context.WithCancel(context.Background())
	return s
}

// take waits for a slot for n until ctx ends or the slots are closed.
func (s *slots) take(ctx context.Context, n *node, noWait bool) error {
	if !s.TryAcquire(1) {
		if noWait {
			return fmt.Errorf("%w: all %d slots are taken", ErrInFlight, s.most)
		}
		if err := s.wait(ctx, n); err != nil {
			return err
		}
	}
	n.holding.Store(true)
	return nil
}

func (s *slots) wait(ctx context.Context, n *node) error {
	if !s.queue(n) {
		return ErrDeadlock
	}
	defer s.leave(n)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.open, cancel)()
	err := s.Acquire(waiting, 1)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("idempotent: no free slot: %w", contextError(ctx))
	}
	return ErrShutdown
}

// queue puts n in the queue for a slot, unless that would close a circle.
func (s *slots) queue(n *node) bool {
	waits.Lock()
	defer waits.Unlock()
	n.queued = true
	if n.stuck(nil) {
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
