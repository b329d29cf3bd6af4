package idempotent

import "context"

// line is those who wait for a claim, longest first, and the claim's place in
// the wait-for graph. Guarded by the shard's mu, but for the node.
type line[K comparable, V any] struct {
	fingerprint string
	first, last *waiter[K, V]
	len         int
	node        node
}

// waiter is a call that waits for a claim. Once it is out of the line, one of
// claim, end and err is set, unless it left by itself, and none of them is
// written again. Then ready is closed.
type waiter[K comparable, V any] struct {
	ctx         context.Context
	fingerprint string
	line        *line[K, V] // nil once it has left; guarded by mu
	prev, next  *waiter[K, V]
	spins       bool // nobody waited for the attempt before this call

	ready chan struct{}
	claim *claim[K, V] // the claim has passed to this call
	end   *outcome[V]  // how the attempt ended
	err   error        // why this call is refused
}

// spin looks out for the end of a quick effect for two microseconds or so, less
// than it takes to put a goroutine to sleep and to wake it. Of a crowd only the
// first does: the others would keep the effect from its core.
func (w *waiter[K, V]) spin() {
	if !w.spins {
		return
	}
	for range 200 {
		select {
		case <-w.ready:
			return
		default:
		}
	}
}

func (l *line[K, V]) push(w *waiter[K, V]) {
	w.line, w.prev, w.spins = l, l.last, l.last == nil
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
	l.len++
}

func (l *line[K, V]) remove(w *waiter[K, V]) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.line, w.prev, w.next = nil, nil, nil
	l.len--
}

// share gives everyone in the line how the attempt ended, and returns them.
// mu must be held.
func (s *shard[K, V]) share(l *line[K, V], end outcome[V]) *waiter[K, V] {
	if l == nil || l.first == nil {
		return nil
	}
	common := new(outcome[V]) // not &end, which would move every outcome to the heap
	*common = end
	woken := l.first
	for w := woken; w != nil; w = w.next {
		w.end, w.line = common, nil
	}
	s.waiting -= l.len
	s.shared += uint64(l.len)
	return woken
}

// dismiss refuses those in the line for whom why has an error, and returns them.
// mu must be held.
func (s *shard[K, V]) dismiss(l *line[K, V], why func(*waiter[K, V]) error) (woken *waiter[K, V]) {
	for w := l.first; w != nil; {
		next := w.next
		if w.err = why(w); w.err != nil {
			l.remove(w)
			s.waiting--
			w.next, woken = woken, w
		}
		w = next
	}
	return woken
}

// wake tells each of a chain of waiters that it has left its line. No lock may
// be held: those woken come for it.
func wake[K comparable, V any](w *waiter[K, V]) {
	for w != nil {
		next := w.next
		close(w.ready)
		w = next
	}
}
