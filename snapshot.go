package idempotent

import (
	"cmp"
	"container/heap"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"
)

// A Record is a kept result as [Endpoint.Lookup] and [Endpoint.Records] show it
// and [Endpoint.Restore] takes it back.
//
// Its JSON form keeps what Err says and whether it is marked [Permanent] or
// [Unknown], but not its type: after a restart a replayed error matches
// [ErrOutcomeUnknown], but no longer the errors it wrapped. Other encodings, gob
// among them, know nothing of this: have them carry the JSON form.
type Record[V any] struct {
	Value       V
	Err         error // nil for a success
	Fingerprint string
	CompletedAt time.Time
	ExpiresAt   time.Time // end of the window; zero = never ([Forever])
}

// recordJSON is the JSON form of a Record. The mark tells how Err is wrapped.
type recordJSON[V any] struct {
	Value       V          `json:"value"`
	Err         string     `json:"error,omitempty"`
	Mark        string     `json:"mark,omitempty"`
	Fingerprint []byte     `json:"fingerprint,omitempty"` // in base64: it may be a raw digest
	CompletedAt time.Time  `json:"completed_at"`
	ExpiresAt   *time.Time `json:"expires_at,omitempty"` // nil = never
}

const (
	markPermanent = "permanent"
	markUnknown   = "unknown"
)

// restoredUnknown is an unknown outcome that has crossed JSON: its text alone
// would not match.
type restoredUnknown string

func (e restoredUnknown) Error() string        { return string(e) }
func (e restoredUnknown) Is(target error) bool { return target == ErrOutcomeUnknown }

// MarshalJSON writes the record with what its error says and how it is marked.
func (r Record[V]) MarshalJSON() ([]byte, error) {
	form := recordJSON[V]{Value: r.Value, Fingerprint: []byte(r.Fingerprint), CompletedAt: r.CompletedAt}
	if !r.ExpiresAt.IsZero() {
		form.ExpiresAt = &r.ExpiresAt
	}
	if r.Err != nil {
		form.Err, form.Mark = r.Err.Error(), markPermanent
	}
	if errors.Is(r.Err, ErrOutcomeUnknown) {
		form.Mark = markUnknown
	}
	return json.Marshal(form)
}

// UnmarshalJSON reads what MarshalJSON wrote. Bad input leaves the record as it
// was.
func (r *Record[V]) UnmarshalJSON(data []byte) error {
	var form recordJSON[V]
	if err := json.Unmarshal(data, &form); err != nil {
		return err
	}
	record := Record[V]{Value: form.Value, Fingerprint: string(form.Fingerprint), CompletedAt: form.CompletedAt}
	if form.ExpiresAt != nil {
		record.ExpiresAt = *form.ExpiresAt
	}
	switch form.Mark {
	case markPermanent:
		record.Err = Permanent(errors.New(form.Err))
	case markUnknown:
		record.Err = restoredUnknown(form.Err)
	case "":
		if form.Err != "" {
			return fmt.Errorf("idempotent: record: an error (%q) without a mark", form.Err)
		}
	default:
		return fmt.Errorf("idempotent: record: mark is %q, want %q or %q", form.Mark, markPermanent, markUnknown)
	}
	*r = record
	return nil
}

// record shows a result by the wall clock, of which start is the instant 0.
func (e *Endpoint[K, V]) record(k kept[V], start time.Time) Record[V] {
	record := Record[V]{
		Value:       e.clone(k.value),
		Err:         k.err,
		Fingerprint: k.fingerprint,
		CompletedAt: start.Add(time.Duration(k.completed)),
	}
	if k.ends != never {
		record.ExpiresAt = start.Add(time.Duration(k.ends))
	}
	return record
}

// Records yields the kept results for a snapshot, in the order of completion,
// which is the cheapest for Restore. Every result that is kept throughout the
// loop comes exactly once; one that is dropped meanwhile may come or not. No lock
// is held while the loop's body runs.
func (e *Endpoint[K, V]) Records() iter.Seq2[K, Record[V]] {
	return func(yield func(K, Record[V]) bool) {
		start := e.timing.start() // once, as in Restore
		var sources recordHeap[K, V]
		for i := range e.shards {
			s := &e.shards[i]
			s.mu.Lock()
			ledger, shelf := s.results.all()
			s.mu.Unlock()
			sources.add(ledger)
			sources.add(inOrder(shelf))
		}
		for len(sources) > 0 {
			key, k := sources.next()
			if k.ends > e.timing.look() && !yield(key, e.record(k, start)) {
				return
			}
		}
	}
}

// source gives results in the order of completion, and false after the last.
type source[K comparable, V any] func() (K, kept[V], bool)

func inOrder[K comparable, V any](shelf []*shelved[K, V]) source[K, V] {
	slices.SortFunc(shelf, func(a, b *shelved[K, V]) int { return cmp.Compare(a.completed, b.completed) })
	return func() (key K, k kept[V], ok bool) {
		if len(shelf) == 0 {
			return key, k, false
		}
		first := shelf[0]
		shelf = shelf[1:]
		return first.key, first.kept, true
	}
}

// recordHeap merges sources.
type recordHeap[K comparable, V any] []recordHead[K, V]

type recordHead[K comparable, V any] struct {
	key  K
	kept kept[V]
	next source[K, V]
}

func (h *recordHeap[K, V]) add(next source[K, V]) {
	if key, k, ok := next(); ok {
		heap.Push(h, recordHead[K, V]{key, k, next})
	}
}

func (h *recordHeap[K, V]) next() (K, kept[V]) {
	first := (*h)[0]
	if key, k, ok := first.next(); ok {
		(*h)[0].key, (*h)[0].kept = key, k
		heap.Fix(h, 0)
	} else {
		heap.Pop(h)
	}
	return first.key, first.kept
}

func (h recordHeap[K, V]) Len() int           { return len(h) }
func (h recordHeap[K, V]) Less(i, j int) bool { return h[i].kept.completed < h[j].kept.completed }
func (h recordHeap[K, V]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *recordHeap[K, V]) Push(s any)        { *h = append(*h, s.(recordHead[K, V])) }

func (h *recordHeap[K, V]) Pop() any {
	last := len(*h) - 1
	s := (*h)[last]
	*h = (*h)[:last]
	return s
}

// Restore takes records back whose window still runs, with the end they had, and
// says how many. It skips invalid keys and those that are held, and stops at
// Capacity. Records in the order of completion take the least memory. A window's
// end comes across a restart by the wall clock, the only clock that can; within one
// process by the monotonic one.
func (e *Endpoint[K, V]) Restore(records iter.Seq2[K, Record[V]]) (taken int) {
	start := e.timing.start() // once, so that records keep their distances to the nanosecond
	for key, record := range records {
		hash := e.hash(key)
		if !validKey(key) {
			continue
		}
		end := outcomeOf(record.Value, record.Err)
		now := e.timing.look()
		k := kept[V]{
			value: end.value, err: end.err, unknown: end.unknown, fingerprint: record.Fingerprint,
			completed: min(now, int64(max(record.CompletedAt.Sub(start), -Forever/2))), ends: never,
		}
		if !record.ExpiresAt.IsZero() {
			k.ends = int64(record.ExpiresAt.Sub(start))
		}
		if k.ends <= now {
			continue
		}
		switch held, full := e.putBack(key, hash, k); {
		case full:
			return taken
		case !held:
			taken++
			e.timing.expect(now, k.ends)
		}
	}
	return taken
}

// putBack adds a restored result, unless its key is held or there is no room.
func (e *Endpoint[K, V]) putBack(key K, hash uint64, k kept[V]) (held, full bool) {
	s := e.shard(hash)
	for {
		s.mu.Lock()
		held = s.results.get(key, hash, e.timing.look()) != nil || s.claims.get(key) != nil
		full = !held && !e.room.take()
		if !held && !full {
			s.results.add(key, hash, k)
			e.stale.forget(key)
		}
		s.mu.Unlock()
		if !full || e.expire() == 0 && e.room.full() { // another expire may have made the room
			return held, full
		}
	}
}
