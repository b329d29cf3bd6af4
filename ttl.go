package idempotent

import (
	"maps"
	"math"
	"reflect"
	"slices"
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

// start is base by the present wall clock, so that what is left of a window comes
// out right after a step of it.
func (c clock) start() time.Time {
	now := time.Now()
	return now.Add(-now.Sub(c.base))
}

// after is an instant plus a window, or never if that is later than the last.
func after(at int64, window time.Duration) int64 {
	if window == Forever || at > 0 && int64(window) > never-at {
		return never
	}
	return at + int64(window)
}

// kept is a result as it is handed around: what a finished effect left. What is
// behind a pointer to one is never written again.
type kept[V any] struct {
	value           V
	err             error
	unknown         bool // err leaves open what happened: Resolve may settle it
	fingerprint     string
	completed, ends int64
	order           int64 // among those that completed at one instant; 0 unless EvictOldest
}

// age is the place of a result in the order of completion, over all shards.
type age struct{ completed, order int64 }

var none = age{never, never}

func (k *kept[V]) age() age { return age{k.completed, k.order} }

func (a age) before(b age) bool {
	return a.completed < b.completed || a.completed == b.completed && a.order < b.order
}

// results are a shard's kept results: the common ones in the ledger, which is
// read without a lock, the others on the shelf. A key has one at most. Guarded
// by the shard's mu, but for read.
type results[K comparable, V any] struct {
	ledger  ledger[K, V]
	shelf   shelf[K, V]
	timing  *timing
	hash    func(K) uint64
	stale   *staleMemory[K]
	room    *room
	surplus int // of the next results to expire: the stale memory need not learn them
	expired uint64
	evicted uint64
}

func (r *results[K, V]) init(e *Endpoint[K, V]) {
	r.ledger.init(reflect.TypeFor[slot[K, V]]().Size())
	r.shelf.init()
	r.timing, r.hash, r.stale, r.room = &e.timing, e.hash, e.stale, e.room
}

// get returns the key's result, or nil if it has none. It lets one go whose
// window has ended at now.
func (r *results[K, V]) get(key K, hash uint64, now int64) *kept[V] {
	k := r.peek(key, hash)
	if k != nil && k.ends <= now {
		r.drop(key, hash)
		r.bury(key, k.completed, &r.expired)
		return nil
	}
	return k
}

// peek returns what is kept under key, ended or not, or nil.
func (r *results[K, V]) peek(key K, hash uint64) *kept[V] {
	if f, ok := r.ledger.get(key, hash); ok {
		return new(r.unfold(f.slot, f.slab.more(f.i)))
	}
	if s := r.shelf.byKey[key]; s != nil {
		return &s.kept
	}
	return nil
}

// unfold says in full what a slot says in short.
func (r *results[K, V]) unfold(s *slot[K, V], b beside) kept[V] {
	return kept[V]{
		value: s.value, fingerprint: b.fingerprint, order: b.order,
		completed: s.completed, ends: after(s.completed, r.timing.window),
	}
}

// add keeps a result whose key has none, and whose room is taken. The ledger
// takes what has the common window and comes in the order of completion.
func (r *results[K, V]) add(key K, hash uint64, k kept[V]) {
	if k.err == nil && k.ends == after(k.completed, r.timing.window) && k.completed >= r.ledger.latest {
		r.ledger.append(key, hash, k.value, k.completed, beside{k.fingerprint, k.order})
		return
	}
	r.shelf.add(key, k)
}

// drop takes key's result away, which there must be; its room stays taken.
func (r *results[K, V]) drop(key K, hash uint64) {
	r.surplus = max(0, r.surplus-1) // it may be one of them, and will not come to expireSome
	if f, ok := r.ledger.get(key, hash); ok {
		r.ledger.remove(f)
	} else {
		r.shelf.drop(r.shelf.byKey[key])
	}
}

// bury gives back the room of a result that has been dropped, counts it and
// remembers its key.
func (r *results[K, V]) bury(key K, completed int64, count *uint64) {
	r.room.give()
	*count++
	r.stale.remember(key, completed)
}

// expireSome lets up to most results go whose window has ended at now, and says
// how many.
func (r *results[K, V]) expireSome(now int64, most int) (n int) {
	for ; n < most; n++ {
		var key K
		var completed int64
		if b, i, ok := r.ledger.first(); ok && after(b.slots[i].completed, r.timing.window) <= now {
			key, completed = b.slots[i].key, b.slots[i].completed
			r.ledger.pop()
		} else if s := r.shelf.byEnd.first(); s != nil && s.ends <= now {
			key, completed = s.key, s.completed
			r.shelf.drop(s)
		} else {
			r.surplus = 0
			break
		}
		if r.surplus > 0 {
			r.surplus--
			r.room.give()
			r.expired++
			continue
		}
		r.bury(key, completed, &r.expired)
	}
	return n
}

// ended counts the ledger's results whose window has ended at now.
func (r *results[K, V]) ended(now int64) int {
	return r.ledger.countIf(func(s *slot[K, V]) bool { return after(s.completed, r.timing.window) <= now })
}

// earliest is when the next window ends.
func (r *results[K, V]) earliest() int64 {
	next := int64(never)
	if b, i, ok := r.ledger.first(); ok {
		next = after(b.slots[i].completed, r.timing.window)
	}
	if s := r.shelf.byEnd.first(); s != nil {
		next = min(next, s.ends)
	}
	return next
}

// oldest is the age of the result that completed first of those that may be
// evicted, or of none.
func (r *results[K, V]) oldest() age {
	oldest := none
	if b, i, ok := r.ledger.first(); ok {
		oldest = age{b.slots[i].completed, b.more(i).order}
	}
	if s := r.shelf.byAge.first(); s != nil && s.age().before(oldest) {
		oldest = s.age()
	}
	return oldest
}

// evictOldest lets the result go that oldest tells of. There must be one.
func (r *results[K, V]) evictOldest() {
	if s := r.shelf.byAge.first(); s != nil && s.age() == r.oldest() {
		r.shelf.drop(s)
		r.bury(s.key, s.completed, &r.evicted)
		return
	}
	b, i, _ := r.ledger.first()
	s := &b.slots[i]
	f, _ := r.ledger.get(s.key, r.hash(s.key))
	f.word.Store(goneWord)
	r.ledger.pop()
	if dead := int(r.ledger.head - r.ledger.clean); dead >= 8 || 2*dead > r.ledger.live {
		r.ledger.tidy()
	}
	r.bury(s.key, s.completed, &r.evicted)
}

// all returns what is kept now, to be gone through without the lock: the ledger's
// results in the order of completion, the shelf's in none.
func (r *results[K, V]) all() (ledger source[K, V], shelf []*shelved[K, V]) {
	next := r.ledger.all()
	ledger = func() (key K, k kept[V], ok bool) {
		s, more := next()
		if s == nil {
			return key, k, false
		}
		return s.key, r.unfold(s, more), true
	}
	return ledger, slices.Collect(maps.Values(r.shelf.byKey))
}

func (r *results[K, V]) len() int { return r.ledger.live + len(r.shelf.byKey) }

// room counts the keys held under Options.Capacity. A nil room has no bound.
type room struct {
	most int64
	held atomic.Int64
}

// take takes the room of one key, and never more than there is: not even for a
// moment, in which another key would be refused for nothing.
func (r *room) take() bool {
	if r == nil {
		return true
	}
	for {
		held := r.held.Load()
		if held >= r.most {
			return false
		}
		if r.held.CompareAndSwap(held, held+1) {
			return true
		}
	}
}

// full tells whether no key has room. There must be a bound.
func (r *room) full() bool { return r.held.Load() >= r.most }

func (r *room) give() {
	if r != nil {
		r.held.Add(-1)
	}
}

// staleMemory is the bounded memory of keys whose result is gone. Losing one
// loses a warning, never a result. A nil one remembers nothing. Its lock may be
// taken under a shard's.
type staleMemory[K comparable] struct {
	most int
	size atomic.Int64  // of lru: most endpoints have nothing to look for
	hits atomic.Uint64 // Stats.Stale

	mu  sync.Mutex
	lru *simplelru.LRU[K, int64] // when the key's result completed
}

func newStaleMemory[K comparable](most int) *staleMemory[K] {
	if most < 1 { // switched off: 0 has become the default before
		return nil
	}
	lru, _ := simplelru.NewLRU[K, int64](most, nil) // refuses sizes below 1
	return &staleMemory[K]{most: most, lru: lru}
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
