package idempotent

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// ledgerFrom is an empty ledger whose next sequence number is about seq.
func ledgerFrom(seq uint64) (*ledger[string, int], *timing) {
	var t timing
	t.init(Forever, func() {})
	l := new(ledger[string, int])
	l.tail = seq
	l.init(40)
	return l, &t
}

func valueOf[V any](l *ledger[string, V], key string, hash uint64, t *timing) *V {
	if b, i := l.read(key, hash, t); b != nil {
		return &b.slots[i].value
	}
	return nil
}

func hashOfKey(key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return h * 0x9e3779b97f4a7c15
}

// TestLedgerIsAMapThatForgetsInOrder drives a ledger beside a map: also across
// the points where the halves of its sequence numbers come round, with hashes
// that all collide, and with every way for a result to go.
func TestLedgerIsAMapThatForgetsInOrder(t *testing.T) {
	hashes := map[string]func(string) uint64{
		"spread hashes": hashOfKey,
		"one hash":      func(string) uint64 { return 0 },
	}
	for name, hash := range hashes {
		for _, start := range []uint64{0, 1<<32 - 300, 3<<32 - 70, 1<<38 - 200} {
			t.Run(fmt.Sprintf("%s from %d", name, start), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(start, 1))
				l, clock := ledgerFrom(start)
				model := make(map[string]int)
				var order []string // live keys, by completion
				gone := func(key string) {
					delete(model, key)
					order = order[:len(order)-copyWithout(order, key)]
				}
				for step := range 2500 {
					key := fmt.Sprint("key ", rng.IntN(300))
					switch op := rng.IntN(10); {
					case op < 6:
						if _, known := model[key]; !known {
							l.append(key, hash(key), step, int64(step), beside{order: int64(step)})
							model[key] = step
							order = append(order, key)
						}
					case op < 7:
						f, ok := l.get(key, hash(key))
						_, known := model[key]
						require.Equal(t, known, ok)
						if ok {
							require.EqualValues(t, model[key], f.slab.more(f.i).order)
							l.remove(f)
							gone(key)
						}
					case op < 9:
						for range rng.IntN(12) {
							b, i, ok := l.first()
							require.Equal(t, len(order) > 0, ok)
							if !ok {
								break
							}
							require.Equal(t, order[0], b.slots[i].key, "in the order of completion")
							f, _ := l.get(order[0], hash(order[0]))
							f.word.Store(goneWord)
							l.pop()
							gone(order[0])
						}
					default:
						for range indexes {
							l.tidy()
						}
						require.False(t, l.sparse())
						for i := range l.indexes {
							require.LessOrEqual(t, 16*l.used[i], 13*len(l.indexes[i].Load().words)+16)
						}
					}
					require.Equal(t, len(model), l.live)
					value := valueOf(l, key, hash(key), clock)
					want, known := model[key]
					require.Equal(t, known, value != nil, "step %d", step)
					if known {
						require.Equal(t, want, *value)
					}
				}
				all := make(map[string]int)
				next := l.all()
				for s, _ := next(); s != nil; s, _ = next() {
					all[s.key] = s.value
				}
				require.True(t, maps.Equal(model, all))
			})
		}
	}
}

func TestSlabsByTheSizeOfASlot(t *testing.T) {
	for size, slots := range map[uintptr]uint64{8: 64, 24: 64, 64: 64, 65: 32, 128: 32, 129: 16, 256: 16, 257: 8, 512: 8, 4096: 8, 1 << 20: 8} {
		l := new(ledger[string, int])
		l.init(size)
		require.Equal(t, slots, l.size(), "slots of %d bytes", size)
	}
}

// A reader may come with the number of a slab that is gone, and find another one
// in its place.
func TestAnotherSlabIsNotTakenForOnesOwn(t *testing.T) {
	l, _ := ledgerFrom(64)
	l.append("a", 0, 1, 1, beside{})
	b, i := l.slabAt(64)
	require.NotNil(t, b)
	require.Zero(t, i)
	b, i = l.slabAt(127)
	require.NotNil(t, b)
	require.EqualValues(t, 63, i)
	for _, seq := range []uint32{63, 128, 0, 1 << 31} {
		b, _ = l.slabAt(seq)
		require.Nil(t, b, seq)
	}
}

// A reader who trusts a late timer may take a result that was let go for alive,
// but not once its key has been looked up under the lock.
func TestALookUpUnderTheLockHidesWhatWasLetGo(t *testing.T) {
	l, clock := ledgerFrom(0)
	l.append("a", 0, 1, 1, beside{})
	l.append("b", 0, 2, 2, beside{})
	require.EqualValues(t, 2, l.latest)
	l.pop()
	require.NotNil(t, valueOf(l, "a", 0, clock))
	_, ok := l.get("a", 0)
	require.False(t, ok)
	require.Nil(t, valueOf(l, "a", 0, clock))
	require.NotNil(t, valueOf(l, "b", 0, clock))
	for seq, held := range map[uint32]bool{0: false, 1: true, 2: false, 1 << 31: false} {
		require.Equal(t, held, l.holds(seq), seq)
	}
}

func TestLedgerHoldsNothingThatIsGone(t *testing.T) {
	const slab, last = 64, 69
	l, clock := ledgerFrom(0)
	key := func(i int) (string, uint64) { k := fmt.Sprint("key ", i); return k, hashOfKey(k) }
	for i := range last + 1 {
		k, hash := key(i)
		l.append(k, hash, 1000+i, int64(i), beside{})
	}
	remove := func(i int) {
		f, ok := l.get(key(i))
		require.True(t, ok)
		l.remove(f)
	}
	gone := []int{0, 5, 40, 63, 64, 66}
	for _, i := range gone {
		remove(i)
	}
	for i := range last + 1 {
		b, at := l.slabAt(uint32(i))
		want := 1000 + i
		if slices.Contains(gone, i) {
			want = 0
		}
		require.Equal(t, want, b.slots[at].value, i)
	}
	for b, i, ok := l.first(); ok && b.slots[i].value < 1000+slab; b, i, ok = l.first() {
		l.pop()
	}
	require.Nil(t, l.place(l.slabs.Load(), 0).Load(), "a slab goes with its last result")
	for l.live > 1 {
		l.first()
		l.pop()
	}
	k, hash := key(last)
	require.NotNil(t, valueOf(l, k, hash, clock))
	remove(last)
	require.Len(t, l.slabs.Load().ring, 1)
	require.Nil(t, l.slabs.Load().ring[0].Load())
	for part := range l.indexes {
		require.Same(t, noIndex, l.indexes[part].Load())
	}
	for results, tail := range map[int]uint64{1: slab, slab: slab, slab + 1: 2 * slab} {
		l, _ := ledgerFrom(0)
		for i := range results {
			l.append(fmt.Sprint(i), 0, i, 1, beside{})
		}
		for range results {
			l.pop()
		}
		require.Equal(t, tail, l.tail, "the next one has a number and a slab that no reader knows")
	}
}

// A word that stayed behind in an index to which nothing is added must not lead
// to the result that has its number 2³² results later.
func TestNoWordOutlivesItsNumber(t *testing.T) {
	for _, start := range []uint64{1<<31 - 128, 1<<32 - 128, 1<<40 - 128} {
		l, clock := ledgerFrom(start)
		hashOf := func(part uint64) uint64 { return part << 33 } // see indexOf
		l.append("let go", hashOf(0), 1, 1, beside{})
		l.append("kept", hashOf(1), 2, 1, beside{})
		l.pop()
		require.Equal(t, 1, l.used[0], "a word stays")
		for i := range 200 {
			l.append(fmt.Sprint("kept ", i), hashOf(1), i, 1, beside{})
		}
		require.Zero(t, l.used[0])
		require.NotNil(t, valueOf(l, "kept", hashOf(1), clock))
	}
}

// copyWithout moves what follows key in keys one place down, and says how many
// it took out.
func copyWithout(keys []string, key string) int {
	n := 0
	for _, k := range keys {
		if k != key {
			keys[n] = k
			n++
		}
	}
	return len(keys) - n
}

// A reader that comes between any two steps of a write sees what was kept before
// it, and nothing else.
func TestLedgerIsReadBetweenTheStepsOfAWrite(t *testing.T) {
	l, clock := ledgerFrom(1<<32 - 200)
	kept := make(map[string]int)
	seen := make(map[string]int)
	pending := ""
	l.inside = func(step string) {
		seen[step]++
		for key, want := range kept {
			value := valueOf(l, key, hashOfKey(key), clock)
			if value == nil || *value != want {
				t.Errorf("%s: %q reads %v, want %d", step, key, value, want)
			}
		}
		value := valueOf(l, pending, hashOfKey(pending), clock)
		if published := step == "published"; published != (value != nil) {
			t.Errorf("%s: the pending result reads %v", step, value)
		}
	}
	for i := range 400 {
		pending = fmt.Sprint("key ", i)
		l.append(pending, hashOfKey(pending), i, int64(i), beside{})
		kept[pending] = i
	}
	for i := range 200 {
		pending = fmt.Sprint("key ", 2*i)
		f, ok := l.get(pending, hashOfKey(pending))
		require.True(t, ok)
		delete(kept, pending)
		l.remove(f)
	}
	for _, step := range []string{"appended", "reindexed", "redirected", "published", "taken out"} {
		require.Positive(t, seen[step], step)
	}
}

// Readers without a lock never see another key's value, a value that is not
// whole, or one that was taken out before they came.
func TestLedgerIsReadWhileItIsWritten(t *testing.T) {
	type value struct{ a, b int }
	var clock timing
	clock.init(Forever, func() {})
	l := new(ledger[int, value])
	l.tail = 1<<32 - 1000
	l.init(24)
	hash := func(key int) uint64 { return uint64(key) * 0x9e3779b97f4a7c15 }
	const keys = 64
	var oldest [keys + 1]atomic.Int64 // no reader that comes later may see an older one
	var stop atomic.Bool
	var wg sync.WaitGroup
	var reads atomic.Int64
	for n := range 3 {
		wg.Go(func() {
			for i := n; !stop.Load(); i++ {
				if i%64 == 0 {
					runtime.Gosched() // one processor is for the writer too
				}
				key := i%keys + 1 // the zero key is never kept
				least := oldest[key].Load()
				if b, n := l.read(key, hash(key), &clock); b != nil {
					v := b.slots[n].value
					reads.Add(1)
					if v.a%keys+1 != key || v.b != -v.a || int64(v.a) < least {
						t.Errorf("key %d reads %+v, and %d at least", key, v, least)
						return
					}
				}
			}
		})
	}
	for i := range 50_000 {
		key := i%keys + 1
		if f, ok := l.get(key, hash(key)); ok {
			l.remove(f)
		}
		oldest[key].Store(int64(i))
		l.append(key, hash(key), value{i, -i}, int64(i), beside{})
		if i%50 == 0 {
			l.tidy()
			runtime.Gosched()
		}
		if i%1000 == 0 { // down to nothing, as when all have ended
			for b, n, ok := l.first(); ok; b, n, ok = l.first() {
				f, _ := l.get(b.slots[n].key, hash(b.slots[n].key))
				f.word.Store(goneWord)
				l.pop()
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	require.Positive(t, reads.Load())
}
