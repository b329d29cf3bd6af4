package idempotent

import (
	"container/heap"
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// never is the instant at which a window that never ends would.
const never = math.MaxInt64

// clock counts nanoseconds since base on the monotonic clock: a step of the wall
// clock moves nothing.
type clock struct{ base time.Time }

func (c clock) now() int64 { return int64(time.Since(c.base)) }

// time is an instant as wall-clock and monotonic time. It counts from the
// present wall clock, so that what is left of a window comes out right after a
// step of it.
func (c clock) time(at int64) time.Time {
	now := time.Now()
	return now.Add(time.Duration(at) - now.Sub(c.base))
}

// after is now plus a window, or never if that is later than the last instant.
func after(now int64, window time.Duration) int64 {
	if int64(window) > never-now {
		return never
	}
	return now + int64(window)
}

// result is what a finished effect left. It is not written once it is kept.
type result[K comparable, V any] struct {
	key             K
	value           V
	err             error
	unknown         bool // err leaves open what happened: Resolve may settle it
	fingerprint     string
	completed, ends int64
	order           int64 // of completion, over all shards; 0 unless EvictOldest

	inEnds, inOrder int // places in the shard's queues
}

// results are the kept results of a shard, guarded by its mu.
type results[K comparable, V any] struct {
	byKey   map[K]*result[K, V]
	most    int         // byKey's greatest size since it was made
	byEnd   queue[K, V] // first the one that ends first
	byOrder queue[K, V] // first the one that completed first; empty unless EvictOldest
	stale   *staleMemory[K]
	room    *room
	expired uint64
	evicted uint64
}

func (r *results[K, V]) init(stale *staleMemory[K], room *room) {
	r.byKey = make(map[K]*result[K, V])
	r.byEnd = queue[K, V]{
		less:  func(a, b *result[K, V]) bool { return a.ends < b.ends },
		place: func(r *result[K, V]) *int { return &r.inEnds },
	}
	r.byOrder = queue[K, V]{
		less:  func(a, b *result[K, V]) bool { return a.order < b.order },
		place: func(r *result[K, V]) *int { return &r.inOrder },
	}
	r.stale, r.room = stale, room
}

// peek returns the key's result if its window runs at now, and changes nothing.
func (r *results[K, V]) peek(key K, now int64) *result[K, V] {
	kept := r.byKey[key]
	if kept == nil || kept.ends <= now {
		return nil
	}
	return kept
}

// get is peek, but lets a result go whose window has ended.
func (r *results[K, V]) get(key K, now int64) *result[K, V] {
	kept := r.byKey[key]
	if kept != nil && kept.ends <= now {
		r.expire(kept)
		return nil
	}
	return kept
}

// add keeps a result. Its key must have none, and room must have been taken.
func (r *results[K, V]) add(kept *result[K, V]) {
	r.byKey[kept.key] = kept
	r.most = max(r.most, len(r.byKey))
	r.byEnd.push(kept)
	if kept.order != 0 {
		r.byOrder.push(kept)
	}
}

// drop lets a result go. Go's maps do not shrink: one that has been much larger
// is made anew.
//
// The caller gives its room back, or puts another in its place.
func (r *results[K, V]) drop(kept *result[K, V]) {
	r.byEnd.remove(kept)
	if kept.order != 0 {
		r.byOrder.remove(kept)
	}
	delete(r.byKey, kept.key)
	if r.most > 1024 && len(r.byKey) < r.most/8 {
		smaller := make(map[K]*result[K, V], len(r.byKey))
		maps.Copy(smaller, r.byKey)
		r.byKey, r.most = smaller, len(smaller)
	}
}

func (r *results[K, V]) expire(kept *result[K, V]) {
	r.drop(kept)
	r.room.give()
	r.expired++
	r.stale.remember(kept.key, kept.completed)
}

// expireSome lets up to most results go whose window has ended at now, and says
// how many.
func (r *results[K, V]) expireSome(now int64, most int) int {
	n := 0
	for ; n < most && r.earliest() <= now; n++ {
		r.expire(r.byEnd.items[0])
	}
	return n
}

// earliest is when the next window ends.
func (r *results[K, V]) earliest() int64 {
	if len(r.byEnd.items) == 0 {
		return never
	}
	return r.byEnd.items[0].ends
}

// oldest returns the result that completed first, or nil.
func (r *results[K, V]) oldest() *result[K, V] {
	if len(r.byOrder.items) == 0 {
		return nil
	}
	return r.byOrder.items[0]
}

func (r *results[K, V]) evict(kept *result[K, V]) {
	r.drop(kept)
	r.room.give()
	r.evicted++
	r.stale.remember(kept.key, kept.completed)
}

// queue is a heap of results that each know their place in it.
type queue[K comparable, V any] struct {
	items []*result[K, V]
	less  func(a, b *result[K, V]) bool
	place func(*result[K, V]) *int
}

func (q *queue[K, V]) push(r *result[K, V])   { heap.Push((*heapOf[K, V])(q), r) }
func (q *queue[K, V]) remove(r *result[K, V]) { heap.Remove((*heapOf[K, V])(q), *q.place(r)) }

// heapOf is a queue as container/heap wants it.
type heapOf[K comparable, V any] queue[K, V]

func (h *heapOf[K, V]) Len() int           { return len(h.items) }
func (h *heapOf[K, V]) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }

func (h *heapOf[K, V]) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	*h.place(h.items[i]), *h.place(h.items[j]) = i, j
}

func (h *heapOf[K, V]) Push(r any) {
	*h.place(r.(*result[K, V])) = len(h.items)
	h.items = append(h.items, r.(*result[K, V]))
}

func (h *heapOf[K, V]) Pop() any {
	last := len(h.items) - 1
	r := h.items[last]
	h.items[last] = nil
	h.items = h.items[:last]
	return r
}

// room counts the keys held under Options.Capacity. A nil room has no bound.
type room struct {
	most int64
	held atomic.Int64
}

func (r *room) take() bool {
	if r == nil {
		return true
	}
	if r.held.Add(1) > r.most {
		r.held.Add(-1)
		return false
	}
	return true
}

func (r *room) give() {
	if r != nil {
		r.held.Add(-1)
	}
}

// staleMemory is the bounded memory of keys whose result is gone. Losing one
// loses a warning, never a result. A nil one remembers nothing. Its lock may be
// taken under a shard's.
type staleMemory[K comparable] struct {
	size atomic.Int64  // of lru: most endpoints have nothing to look for
	hits atomic.Uint64 // Stats.Stale

	mu  sync.Mutex
	lru *simplelru.LRU[K, int64] // when the key's result completed
}

func newStaleMemory[K comparable](size int) *staleMemory[K] {
	if size < 0 {
		return nil
	}
	lru, err := simplelru.NewLRU[K, int64](size, nil)
	if err != nil {
		panic(err) // it refuses no size above 0, and 0 has become the default
	}
	return &staleMemory[K]{lru: lru}
}

func (m *staleMemory[K]) any() bool { return m != nil && m.size.Load() > 0 }

func (m *staleMemory[K]) remember(key K, completed int64) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lru.Add(key, completed)
	m.size.Store(int64(m.lru.Len()))
}

// recall counts a stale key and returns when its result completed.
func (m *staleMemory[K]) recall(key K) (completed int64, ok bool) {
	if !m.any() {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	completed, ok = m.lru.Peek(key)
	if ok {
		m.hits.Add(1)
	}
	return completed, ok
}

func (m *staleMemory[K]) forget(key K) {
	if !m.any() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lru.Remove(key)
	m.size.Store(int64(m.lru.Len()))
}
