package idempotent

import (
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
)

// ledger keeps results that have one window in common: a log in the order of
// completion, which is the order in which they end, and an index into it, in
// several parts: one that has to grow at once keeps callers waiting.
//
// Writers hold the shard's mu; readers hold nothing. A slot is written before
// the word that leads to it, and never again; what is replaced (an index, a
// directory, a slab) stays as it was for those who still read it. So a reader
// sees the ledger as it was at some moment of its call. It can miss a result
// that is just being published: whoever misses looks again under mu, and that
// second look is what makes exactly once hold.
type ledger[K comparable, V any] struct {
	indexes [indexes]atomic.Pointer[index] // by tag, see indexOf
	slabs   atomic.Pointer[directory[K, V]]
	perSlab uint8 // log2 of the slots in a slab

	// Guarded by mu. The results have sequence numbers [head, tail).
	head, tail uint64
	live       int          // results in [head, tail) that have not gone before their time
	used       [indexes]int // words of each index that are not free
	turn       uint32       // whose index tidy looks at next
	clean      uint64       // slots before it hold no result
	latest     int64        // completion; results must come in its order

	// inside, if set, is called between the steps of a write, under mu. Tests set
	// it to read at that moment.
	inside func(step string)
}

// index is an open-addressed table, probed linearly. A word is a tag, the upper
// half of the key's hash, and the lower half of a sequence number. Its home
// follows from the tag, so an index is grown and shrunk without hashing a key
// again. A word is not used twice: the index is replaced while it still has free
// ones, and before a sequence number comes round.
type index struct {
	words []atomic.Uint64
	shift uint8 // a tag's home is tag >> shift
}

const (
	freeWord = 0 // ends a probe
	goneWord = 1 // the result has gone; the probe goes on. No tag is 0.

	indexes = 8
)

// indexOf is the place of a tag's index. Homes go by the upper bits.
func indexOf(tag uint32) uint32 { return tag >> 1 % indexes }

func tagOf(hash uint64) uint32 { return uint32(hash>>32) | 1 }

func wordOf(tag uint32, seq uint64) uint64 { return uint64(tag)<<32 | uint64(uint32(seq)) }

const smallestIndex = 8

// noIndex stands for every empty index: its one word is free, and a word is only
// put into an index that has room.
var noIndex = newIndex(1)

func newIndex(size int) *index {
	return &index{words: make([]atomic.Uint64, size), shift: uint8(33 - bits.Len(uint(size)))}
}

// put stores a word in the first free place.
func (x *index) put(word uint64) {
	mask := uint32(len(x.words) - 1)
	i := uint32(word>>32) >> x.shift & mask
	for x.words[i].Load() != freeWord {
		i = (i + 1) & mask
	}
	x.words[i].Store(word)
}

// directory is a ring of slabs: a slab of n slots that begins with sequence
// number s has place s/n.
type directory[K comparable, V any] struct {
	ring []atomic.Pointer[slab[K, V]]
}

func newDirectory[K comparable, V any](size int) *directory[K, V] {
	return &directory[K, V]{make([]atomic.Pointer[slab[K, V]], size)}
}

type slab[K comparable, V any] struct {
	first  uint32 // the first slot's sequence number
	gone   uint64 // a bit for each slot whose result has gone before its time; guarded by mu
	slots  []slot[K, V]
	beside atomic.Pointer[[]beside] // what few results have; nil if none of the slab's has
}

type slot[K comparable, V any] struct {
	key       K
	value     V
	completed int64
}

type beside struct {
	fingerprint string
	order       int64 // of completion over all shards, with EvictOldest
}

// init makes the ledger empty. Slabs have 8 to 64 slots, in about 4 KiB.
func (l *ledger[K, V]) init(slotSize uintptr) {
	l.perSlab = 6
	for l.perSlab > 3 && slotSize<<l.perSlab > 4096 {
		l.perSlab--
	}
	for i := range l.indexes {
		l.indexes[i].Store(noIndex)
	}
	l.clear()
}

// place of the slab with a sequence number in directory d.
func (l *ledger[K, V]) place(d *directory[K, V], seq uint32) *atomic.Pointer[slab[K, V]] {
	return &d.ring[seq>>(l.perSlab&31)&uint32(len(d.ring)-1)]
}

// slabAt returns the slab with a sequence number and the slot's place in it, or
// nil if the slab has gone. Another slab may have taken its place in the ring,
// whose slots may not be written yet.
func (l *ledger[K, V]) slabAt(seq uint32) (b *slab[K, V], i uint32) {
	if b = l.place(l.slabs.Load(), seq).Load(); b != nil {
		if i = seq - b.first; i < uint32(len(b.slots)) {
			return b, i
		}
	}
	return nil, 0
}

// more is what slot i has beside it. It takes no lock.
func (b *slab[K, V]) more(i uint32) beside {
	if all := b.beside.Load(); all != nil {
		return (*all)[i]
	}
	return beside{}
}

// read finds a result of key that has not ended by t, without a lock: slot i of
// slab b, or nil. One that has ended may stand before it in the probe.
func (l *ledger[K, V]) read(key K, hash uint64, t *timing) (b *slab[K, V], i uint32) {
	tag := tagOf(hash)
	x := l.indexes[indexOf(tag)].Load()
	mask := uint32(len(x.words) - 1)
	for at := tag >> (x.shift & 31); ; at++ {
		word := x.words[at&mask].Load()
		if uint32(word>>32) == tag {
			if b, i = l.slabAt(uint32(word)); b != nil {
				if s := &b.slots[i]; s.key == key && !t.ended(s.completed) {
					return b, i
				}
			}
		} else if word == freeWord {
			return nil, 0
		}
	}
}

// found is where a result is.
type found[K comparable, V any] struct {
	*slot[K, V]
	slab *slab[K, V]
	i    uint32 // its place in the slab
	word *atomic.Uint64
}

// get finds key's result among those not yet let go, whether it has ended or
// not. Results of key that have been let go are unreachable afterwards, so that
// no reader who has not seen that the timer is late takes one for alive once the
// key is claimed again. mu must be held.
func (l *ledger[K, V]) get(key K, hash uint64) (f found[K, V], ok bool) {
	tag := tagOf(hash)
	x := l.indexes[indexOf(tag)].Load()
	mask := uint32(len(x.words) - 1)
	for i := tag >> (x.shift & 31); ; i++ {
		word := &x.words[i&mask]
		w := word.Load()
		if w == freeWord {
			return f, false
		}
		if uint32(w>>32) != tag {
			continue
		}
		b, n := l.slabAt(uint32(w))
		if b == nil || b.slots[n].key != key {
			continue
		}
		if l.holds(uint32(w)) {
			return found[K, V]{&b.slots[n], b, n, word}, true
		}
		word.Store(goneWord)
	}
}

// holds tells whether a word's sequence number is in [head, tail).
func (l *ledger[K, V]) holds(seq uint32) bool {
	return uint64(seq-uint32(l.head)) < l.tail-l.head
}

// append keeps a result. mu must be held, completed must not be before latest.
func (l *ledger[K, V]) append(key K, hash uint64, value V, completed int64, more beside) {
	b, i := l.open()
	b.slots[i] = slot[K, V]{key, value, completed}
	if more != (beside{}) {
		all := b.beside.Load()
		if all == nil {
			all = new(make([]beside, len(b.slots)))
			b.beside.Store(all)
		}
		(*all)[i] = more
	}
	l.step("appended")
	tag := tagOf(hash)
	part := indexOf(tag)
	// Past 13 words in 16 a probe that misses takes 15 steps.
	if 16*(l.used[part]+1) > 13*len(l.indexes[part].Load().words) {
		l.reindex(part)
		l.step("reindexed")
	}
	l.indexes[part].Load().put(wordOf(tag, l.tail))
	l.step("published")
	l.used[part]++
	l.tail++
	l.live++
	l.latest = completed
}

// size is the number of slots in a slab.
func (l *ledger[K, V]) size() uint64 { return 1 << l.perSlab }

// from is the first sequence number of the slab that seq is in.
func (l *ledger[K, V]) from(seq uint64) uint64 { return seq &^ (l.size() - 1) }

// open returns the slab that the slot at tail is in and its place there. It makes
// the slab if that is its first.
func (l *ledger[K, V]) open() (*slab[K, V], uint32) {
	if l.from(l.tail) != l.tail {
		return l.slabAt(uint32(l.tail))
	}
	if l.tail%(1<<31) == 0 && l.tail > 0 { // before a word's number comes round
		for part := range uint32(indexes) {
			l.reindex(part)
		}
	}
	d := l.slabs.Load()
	if slabs := (l.tail - l.from(l.head)) >> l.perSlab; slabs == uint64(len(d.ring)) {
		d = l.redirect(2 * len(d.ring))
		l.step("redirected")
	}
	b := &slab[K, V]{first: uint32(l.tail), slots: make([]slot[K, V], l.size())}
	l.place(d, b.first).Store(b)
	return b, 0
}

// redirect replaces the directory by one of another size.
func (l *ledger[K, V]) redirect(size int) *directory[K, V] {
	old, d := l.slabs.Load(), newDirectory[K, V](size)
	for seq := l.from(l.head); seq < l.tail; seq += l.size() {
		l.place(d, uint32(seq)).Store(l.place(old, uint32(seq)).Load())
	}
	l.slabs.Store(d)
	return d
}

// reindex replaces an index by one that is at most half full.
func (l *ledger[K, V]) reindex(part uint32) {
	old := l.indexes[part].Load()
	live := 0
	for i := range old.words {
		if l.leads(old.words[i].Load()) {
			live++
		}
	}
	size := smallestIndex
	for size < 2*(live+1) {
		size *= 2
	}
	x := newIndex(size)
	for i := range old.words {
		if word := old.words[i].Load(); l.leads(word) {
			x.put(word)
		}
	}
	l.used[part] = live
	l.indexes[part].Store(x)
}

// leads tells whether a word leads to a result.
func (l *ledger[K, V]) leads(word uint64) bool {
	return word > goneWord && l.holds(uint32(word))
}

// sparse tells whether remaking all indexes would make them smaller.
func (l *ledger[K, V]) sparse() bool {
	size := 0
	for i := range l.indexes {
		size += len(l.indexes[i].Load().words)
	}
	return size > 8*(l.live+2*indexes)
}

// first finds the result at head, past those that have gone before their time.
func (l *ledger[K, V]) first() (b *slab[K, V], i uint32, ok bool) {
	for l.head < l.tail {
		b, i = l.slabAt(uint32(l.head))
		if b.gone>>i&1 == 0 {
			return b, i, true
		}
		l.advance()
	}
	return nil, 0, false
}

// advance moves head by one slot, and lets a slab go with its last.
func (l *ledger[K, V]) advance() {
	l.head++
	if l.from(l.head) == l.head {
		l.place(l.slabs.Load(), uint32(l.head-1)).Store(nil)
	}
}

// pop lets the first result go. Its word stays, and leads nowhere once the slab
// has gone. Until then it is followed by readers that take the result for alive:
// so it must have ended, or must have been taken out.
func (l *ledger[K, V]) pop() {
	l.advance()
	l.live--
	if l.live == 0 {
		l.clear()
	}
}

// remove lets a result go before its time.
func (l *ledger[K, V]) remove(f found[K, V]) {
	f.word.Store(goneWord)
	l.step("taken out")
	f.slab.gone |= 1 << f.i
	l.live--
	if l.live == 0 {
		l.clear()
		return
	}
	l.rewrite(f.slab)
}

// rewrite replaces a slab by one without the values of results that are gone, so
// that they can be collected.
func (l *ledger[K, V]) rewrite(b *slab[K, V]) {
	c := &slab[K, V]{first: b.first, gone: b.gone, slots: make([]slot[K, V], len(b.slots))}
	for i := range b.slots {
		if l.holds(b.first+uint32(i)) && b.gone>>i&1 == 0 {
			c.slots[i] = b.slots[i]
		}
	}
	if all := b.beside.Load(); all != nil {
		c.beside.Store(new(slices.Clone(*all)))
	}
	l.place(l.slabs.Load(), b.first).Store(c)
}

// countIf counts the results at the head for which cond holds. It must hold for
// none after one for which it does not. mu must be held: of most slabs one slot
// is looked at.
func (l *ledger[K, V]) countIf(cond func(*slot[K, V]) bool) (n int) {
	for seq := l.head; seq < l.tail; seq = l.from(seq) + l.size() {
		b, i := l.slabAt(uint32(seq))
		unused := 64 - min(l.size(), l.tail-l.from(seq))
		live := ^b.gone << unused >> unused >> i << i // a bit for each result
		all := live
		for live != 0 && !cond(&b.slots[bits.Len64(live)-1]) {
			live &^= 1 << (bits.Len64(live) - 1)
		}
		n += bits.OnesCount64(live)
		if live != all {
			break
		}
	}
	return n
}

// all goes through the results in [head, tail) as they are now, without mu: slots
// are not written again. It ends with nil.
func (l *ledger[K, V]) all() (next func() (*slot[K, V], beside)) {
	type part struct {
		*slab[K, V]
		gone     uint64
		from, to uint32
	}
	var parts []part
	for seq := l.head; seq < l.tail; seq = l.from(seq) + l.size() {
		b, i := l.slabAt(uint32(seq))
		parts = append(parts, part{b, b.gone, i, uint32(min(l.size(), l.tail-l.from(seq)))})
	}
	return func() (*slot[K, V], beside) {
		for ; len(parts) > 0; parts = parts[1:] {
			for p := &parts[0]; p.from < p.to; {
				i := p.from
				p.from++
				if p.gone>>i&1 == 0 {
					return &p.slots[i], p.more(i)
				}
			}
		}
		return nil, beside{}
	}
}

// tidy gives memory back that results which have been let go still hold: of one
// index at a time, so as not to keep callers waiting.
func (l *ledger[K, V]) tidy() {
	if l.clean < l.head && l.head < l.tail {
		b, _ := l.slabAt(uint32(l.head))
		l.rewrite(b)
	}
	l.clean = l.head
	if l.sparse() {
		l.reindex(l.turn % indexes)
		l.turn++
	}
	slabs := int((l.tail - l.from(l.head)) >> l.perSlab)
	if size := len(l.slabs.Load().ring); size > 4 && 8*(slabs+1) <= size {
		l.redirect(size / 4)
	}
}

// clear lets everything go that is left of results that have gone. The next one
// opens a slab.
func (l *ledger[K, V]) clear() {
	l.tail = l.from(l.tail + l.size() - 1)
	l.head, l.clean, l.live, l.latest = l.tail, l.tail, 0, math.MinInt64
	for i := range l.indexes {
		if l.used[i] > 0 {
			l.indexes[i].Store(noIndex)
			l.used[i] = 0
		}
	}
	l.slabs.Store(newDirectory[K, V](1)) // not of none: a reader may come with a word of the old index
}

func (l *ledger[K, V]) step(name string) {
	if l.inside != nil {
		l.inside(name)
	}
}
