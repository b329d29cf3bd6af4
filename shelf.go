package idempotent

import (
	"container/heap"
	"maps"
	"slices"
)

// shelf keeps the results that the ledger cannot: kept failures, and successes
// with a window of their own or a completion in the past. Guarded by the shard's
// mu; also its reads.
type shelf[K comparable, V any] struct {
	byKey   map[K]*shelved[K, V]
	most    int         // byKey's greatest size since it was made
	unknown int         // results whose outcome is unknown
	byEnd   queue[K, V] // first the one that ends first
	byAge   queue[K, V] // first the one that completed first, but for unknown ones: they are not evicted
}

type shelved[K comparable, V any] struct {
	key K
	kept[V]
	byEnd, byAge int // places in the queues
}

func (s *shelf[K, V]) init() {
	s.byKey = make(map[K]*shelved[K, V])
	s.byEnd = queue[K, V]{
		less:  func(a, b *shelved[K, V]) bool { return a.ends < b.ends },
		place: func(r *shelved[K, V]) *int { return &r.byEnd },
	}
	s.byAge = queue[K, V]{
		less:  func(a, b *shelved[K, V]) bool { return a.age().before(b.age()) },
		place: func(r *shelved[K, V]) *int { return &r.byAge },
	}
}

func (s *shelf[K, V]) add(key K, k kept[V]) {
	r := &shelved[K, V]{key: key, kept: k}
	s.byKey[key] = r
	s.most = max(s.most, len(s.byKey))
	heap.Push(&s.byEnd, r)
	if r.unknown {
		s.unknown++
	} else {
		heap.Push(&s.byAge, r)
	}
}

// drop lets a result go. Go's maps do not shrink: one that has been much larger
// is made anew, and the queues with it.
func (s *shelf[K, V]) drop(r *shelved[K, V]) {
	heap.Remove(&s.byEnd, r.byEnd)
	if r.unknown {
		s.unknown--
	} else {
		heap.Remove(&s.byAge, r.byAge)
	}
	delete(s.byKey, r.key)
	if s.most > 64 && len(s.byKey) < s.most/8 {
		smaller := make(map[K]*shelved[K, V], len(s.byKey))
		maps.Copy(smaller, s.byKey)
		s.byKey, s.most = smaller, len(smaller)
		s.byEnd.items, s.byAge.items = slices.Clone(s.byEnd.items), slices.Clone(s.byAge.items)
	}
}

// queue is a heap of results that know their place in it.
type queue[K comparable, V any] struct {
	items []*shelved[K, V]
	less  func(a, b *shelved[K, V]) bool
	place func(*shelved[K, V]) *int
}

// first returns nil if the queue is empty.
func (q *queue[K, V]) first() *shelved[K, V] {
	if len(q.items) == 0 {
		return nil
	}
	return q.items[0]
}

// The rest is for container/heap.

func (q *queue[K, V]) Len() int           { return len(q.items) }
func (q *queue[K, V]) Less(i, j int) bool { return q.less(q.items[i], q.items[j]) }

func (q *queue[K, V]) Swap(i, j int) {
	q.items[i], q.items[j] = q.items[j], q.items[i]
	*q.place(q.items[i]), *q.place(q.items[j]) = i, j
}

func (q *queue[K, V]) Push(r any) {
	*q.place(r.(*shelved[K, V])) = len(q.items)
	q.items = append(q.items, r.(*shelved[K, V]))
}

func (q *queue[K, V]) Pop() any {
	last := len(q.items) - 1
	r := q.items[last]
	q.items[last] = nil
	q.items = q.items[:last]
	return r
}

// ended is how many results have ended at now, or more than fewAtOnce.
func (s *shelf[K, V]) ended(now int64) (n int) {
	for todo := []int{0}; len(todo) > 0 && n <= fewAtOnce; {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if i < len(s.byEnd.items) && s.byEnd.items[i].ends <= now {
			n++
			todo = append(todo, 2*i+1, 2*i+2) // a heap: what is below ends no earlier
		}
	}
	return n
}
