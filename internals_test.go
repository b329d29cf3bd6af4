package idempotent

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestShardsByProcessors(t *testing.T) {
	for processors, shards := range map[int]int{1: 8, 2: 16, 3: 32, 4: 32, 5: 64, 8: 64, 9: 64, 128: 64} {
		t.Run(fmt.Sprint(processors), func(t *testing.T) { require.Equal(t, shards, shardsFor(processors)) })
	}
	before := runtime.GOMAXPROCS(0)
	e, err := New(Options[int, int]{})
	require.NoError(t, err)
	require.Len(t, e.shards, shardsFor(before))
	require.Equal(t, before, runtime.GOMAXPROCS(0), "New has changed it")
}

func TestKeysAreInAllShards(t *testing.T) {
	e, err := New(Options[int, int]{})
	require.NoError(t, err)
	used := make(map[*shard[int, int]]bool)
	for key := range 10_000 {
		used[e.shard(e.hash(key))] = true
	}
	require.Len(t, used, len(e.shards))
}

func TestAfterNeverOverflows(t *testing.T) {
	for _, c := range []struct {
		at     int64
		window time.Duration
		ends   int64
	}{
		{0, 1, 1}, {1, 1, 2}, {-1, 1, 0},
		{0, Forever, never}, {1, Forever, never}, {-1, Forever, never}, {-1, Forever - 1, never - 2},
		{never - 1, 1, never}, {never, 1, never}, {never, Forever, never}, {never - 2, 1, never - 1},
	} {
		require.Equal(t, c.ends, after(c.at, c.window), "%d + %d", c.at, c.window)
	}
}

func TestCountOfWhatHasEnded(t *testing.T) {
	for _, slotSize := range []uintptr{40, 1000} { // slabs of 64 slots and of 8
		for _, n := range []int{0, 1, 7, 8, 9, 63, 64, 65, 200} {
			var timing timing
			timing.init(Forever, func() {})
			var l ledger[int, int]
			l.init(slotSize)
			var live []int
			for i := range n {
				live = append(live, i)
				l.append(i, uint64(i)<<40, i, int64(i), beside{})
			}
			check := func() {
				for end := range n + 1 {
					want := 0
					for _, i := range live {
						if i < end {
							want++
						}
					}
					require.Equal(t, want, l.countIf(func(s *slot[int, int]) bool { return s.completed < int64(end) }), "%d of %v", end, live)
				}
			}
			check()
			for _, gone := range []int{3, 0, 64, 66, n - 1, n - 2, 5} {
				if f, ok := l.get(gone, uint64(gone)<<40); ok && gone >= 0 {
					l.remove(f)
					live = slices.DeleteFunc(live, func(i int) bool { return i == gone })
					check()
				}
			}
			for l.live > 3 { // the head moves on
				if _, _, ok := l.first(); ok {
					l.pop()
					live = live[1:]
					check()
				}
			}
		}
	}
}

// Nobody calls, so that only the timer can let the second result go.
func TestTheTimerIsArmedAgainAfterASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New(Options[int, int]{TTL: time.Hour})
		require.NoError(t, err)
		held := func() (n int) {
			synctest.Wait()
			for i := range e.shards {
				s := &e.shards[i]
				s.mu.Lock()
				n += s.results.len()
				s.mu.Unlock()
			}
			return n
		}
		effect := func(context.Context) (int, error) { return 1, nil }
		for key := 1; key <= 3; key++ {
			_, _, err := e.Do(t.Context(), key, effect)
			require.NoError(t, err)
			time.Sleep(10 * time.Minute)
		}
		time.Sleep(30*time.Minute - 1)
		for left := 3; left > 0; left-- {
			require.Equal(t, left, held())
			time.Sleep(10 * time.Minute) // to 10 minutes, less a nanosecond, after an end
			require.Equal(t, left-1, held())
		}
	})
}

// Shards share the room and no lock: whoever gives races with all who wait to take.
func TestRoomIsNeverOverdrawn(t *testing.T) {
	r := &room{most: 1}
	var within, over atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 4_000_000 {
				if !r.take() {
					continue
				}
				if within.Add(1) > 1 {
					over.Add(1)
				}
				within.Add(-1)
				r.give()
			}
		})
	}
	wg.Wait()
	require.Zero(t, over.Load())
	require.Zero(t, r.held.Load())
}

// A claimSet is driven beside a map, across the border between few and many.
func TestClaimSetIsAMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var set claimSet[int, int]
	model := make(map[int]*claim[int, int])
	for step := range 5000 {
		key := rng.IntN(4 + step/100%20)
		if model[key] == nil && rng.IntN(2) == 0 {
			model[key] = &claim[int, int]{key: key}
			set.put(model[key])
		} else if model[key] != nil {
			set.remove(key)
			delete(model, key)
		}
		require.Equal(t, len(model), set.len())
		for key := range 24 {
			require.Same(t, model[key], set.get(key))
		}
		each := make(map[int]*claim[int, int])
		set.each(func(c *claim[int, int]) { each[c.key] = c })
		require.True(t, maps.Equal(model, each))
		require.LessOrEqual(t, len(set.few), fewClaims)
	}
	set.remove(-1) // is not there
	require.Equal(t, len(model), set.len())
	for key := range 100 {
		if model[key] == nil {
			set.put(&claim[int, int]{key: key})
		}
	}
	require.Len(t, set.many, 100)
	for key := range 100 {
		set.remove(key)
	}
	require.Nil(t, set.many, "the memory of a map that is not needed")
}

func TestShelf(t *testing.T) {
	var s shelf[int, int]
	s.init()
	drop := func(key int) { s.drop(s.byKey[key]) }
	t.Run("has what ends and what completed first at hand", func(t *testing.T) {
		for key := range 1000 {
			s.add(key, kept[int]{ends: int64(2000 - key), completed: int64(key * 7 % 1000), unknown: key%2 == 0})
			require.EqualValues(t, 2000-key, s.byEnd.first().ends)
		}
		require.Equal(t, 143, s.byAge.first().key, "of those whose outcome is known")
		require.Equal(t, 500, s.unknown)
		drop(999)
		drop(0)
		require.EqualValues(t, 1002, s.byEnd.first().ends)
		require.EqualValues(t, 1, s.byAge.first().completed)
		require.Equal(t, 499, s.unknown)
	})
	t.Run("counts what has ended, to a limit", func(t *testing.T) {
		require.Zero(t, s.ended(1001))
		for _, n := range []int{1, 2, 100, fewAtOnce} {
			require.Equal(t, n, s.ended(int64(1001+n)))
		}
		require.Equal(t, fewAtOnce+1, s.ended(1001+fewAtOnce+1))
		require.Equal(t, fewAtOnce+1, s.ended(5000))
		var none shelf[int, int]
		none.init()
		require.Zero(t, none.ended(never))
	})
	t.Run("gives its memory back in leaps", func(t *testing.T) {
		require.Equal(t, 1000, s.most)
		leaps := 0
		for key := 1; key < 999; key++ {
			before := s.most
			drop(key)
			if s.most != before {
				leaps++
				require.Equal(t, len(s.byKey), s.most)
				require.LessOrEqual(t, cap(s.byEnd.items), 2*s.most)
			}
			require.True(t, s.most <= 64 || len(s.byKey) >= s.most/8, "%d of %d", len(s.byKey), s.most)
			require.Len(t, s.byEnd.items, len(s.byKey))
			require.Len(t, s.byAge.items, len(s.byKey)-s.unknown)
		}
		require.Equal(t, 2, leaps)
		require.Zero(t, s.unknown)
		require.Nil(t, s.byEnd.first())
	})
}

// A late timer must not be trusted once a call has seen the clock.
func TestLookNoticesALateTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clock timing
		clock.init(time.Hour, func() {})
		require.Equal(t, int64(never), clock.horizon.Load())
		time.Sleep(time.Minute)
		for horizon, want := range map[int64]int64{
			int64(time.Minute) + 1: int64(time.Minute) + 1,
			int64(time.Minute):     never,
			int64(time.Minute) - 1: never,
		} {
			clock.horizon.Store(horizon)
			require.EqualValues(t, time.Minute, clock.look())
			require.Equal(t, want, clock.horizon.Load())
		}
	})
}

func TestTheTimerRingsInTime(t *testing.T) {
	const second = int64(time.Second)
	late := int64(sweepPause)
	for name, c := range map[string]struct {
		ends           []int64 // what is expected, one after another
		rings, horizon int64
	}{
		"a margin before an end":                      {[]int64{100 * second}, 100*second - int64(margin), 100 * second},
		"for what ends first, if it came first":       {[]int64{100 * second, 200 * second}, 100*second - int64(margin), 100 * second},
		"for what ends first, if it came last":        {[]int64{200 * second, 100 * second}, 100*second - int64(margin), 100 * second},
		"a margin before an end, if that is just far": {[]int64{late + int64(margin)}, late, late + int64(margin)},
		"at the end, if a margin before is too soon":  {[]int64{late + int64(margin) - 1}, late + int64(margin) - 1, late + 2*int64(margin) - 1},
		"after a pause, if the end is too soon":       {[]int64{late - 1}, late, late + int64(margin)},
		"after a pause, if the end has passed":        {[]int64{-second}, late, late + int64(margin)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var clock timing
				var rang []int64
				clock.init(time.Hour, func() { rang = append(rang, clock.now()) })
				for _, ends := range c.ends {
					clock.expect(clock.now(), ends)
				}
				require.Equal(t, c.horizon, clock.horizon.Load())
				time.Sleep(time.Hour)
				synctest.Wait()
				require.Equal(t, []int64{c.rings}, rang)
			})
		})
	}
	t.Run("never, for what never ends", func(t *testing.T) {
		var clock timing
		clock.init(Forever, func() {})
		clock.expect(clock.now(), never)
		require.Nil(t, clock.timer)
		require.Equal(t, int64(never), clock.horizon.Load())
	})
	t.Run("for what ends first, if they come at one time", func(t *testing.T) {
		var clock timing
		clock.init(time.Hour, func() {})
		for range 20 {
			clock.horizon.Store(never)
			all := []int64{3600 * second, 3600*second + 1, 3600*second + second/10, 2 * 3600 * second}
			var wg sync.WaitGroup
			clock.mu.Lock()
			for _, ends := range all {
				wg.Go(func() { clock.expect(0, ends) })
			}
			stacks := make([]byte, 1<<20)
			for waiting := 0; waiting < len(all); waiting = strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "[sync.Mutex.Lock") {
				runtime.Gosched()
			}
			clock.mu.Unlock()
			wg.Wait()
			require.Equal(t, all[0], clock.horizon.Load())
		}
		clock.timer.Stop()
	})
}

// endpointOf keeps results of keys 1 to n, a millisecond after one another, in
// the bubble of a test.
func endpointOf(t *testing.T, n int, opts Options[int, int]) *Endpoint[int, int] {
	e, err := New(opts)
	require.NoError(t, err)
	for key := range n {
		_, _, err := e.Do(t.Context(), key+1, func(context.Context) (int, error) { return key, nil })
		require.NoError(t, err)
		time.Sleep(time.Millisecond)
	}
	return e
}

func TestExpireCountsAndKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const few, remembered = 40, 5
		e := endpointOf(t, few, Options[int, int]{TTL: time.Hour, StaleMemory: remembered})
		e.timing.timer.Stop()
		time.Sleep(time.Hour - few*time.Millisecond + time.Millisecond/2) // to half a millisecond after the first end
		require.Equal(t, 1, e.expire())
		require.Zero(t, e.expire())
		time.Sleep(time.Minute)
		require.Equal(t, few-1, e.expire())
		require.Equal(t, []int{36, 37, 38, 39, 40}, e.stale.lru.Keys())
	})
}

func TestASweepGivesMemoryBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, left = 20_000, 100
		e := endpointOf(t, most, Options[int, int]{TTL: time.Hour})
		kept := func(check func(*ledger[int, int])) (sum int) {
			for i := range e.shards {
				s := &e.shards[i]
				s.mu.Lock()
				check(&s.results.ledger)
				sum += s.results.len()
				s.mu.Unlock()
			}
			return sum
		}
		var slabs, words int
		count := func(l *ledger[int, int]) {
			slabs += len(l.slabs.Load().ring)
			for part := range l.indexes {
				words += len(l.indexes[part].Load().words)
			}
		}
		require.Equal(t, most, kept(count))
		require.Greater(t, words, most)
		require.GreaterOrEqual(t, slabs, most/64)
		time.Sleep(time.Hour - left*time.Millisecond)
		synctest.Wait()
		slabs, words = 0, 0
		const late = 60 // a sweep is followed by a pause
		require.InDelta(t, left, kept(count), late)
		require.LessOrEqual(t, slabs, 16*len(e.shards))
		require.LessOrEqual(t, words, 8*(left+late+2*indexes*len(e.shards)))
	})
}

func TestLongWorkRestsAfterEachBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := pace(time.Now())
		rested := func() time.Duration {
			now := time.Now()
			pace.rest()
			return time.Since(now)
		}
		for range 3 {
			require.Zero(t, rested())
			time.Sleep(burst - 1)
			require.Zero(t, rested())
			time.Sleep(time.Nanosecond)
			require.Equal(t, breath, rested())
		}
	})
}

// Records that completed at one instant do so after Restore: a nanosecond's
// difference would put many of them on the shelf.
func TestRestoreKeepsDistances(t *testing.T) {
	const n = 1000
	completed := time.Now().Add(-time.Minute)
	for name, at := range map[string]time.Time{"in this process": completed, "after a restart": completed.Round(0)} {
		t.Run(name, func(t *testing.T) {
			e, err := New(Options[int, int]{TTL: time.Hour})
			require.NoError(t, err)
			require.Equal(t, n, e.Restore(func(yield func(int, Record[int]) bool) {
				for key := 1; key <= n && yield(key, Record[int]{CompletedAt: at, ExpiresAt: at.Add(time.Hour)}); key++ {
				}
			}))
			ends := e.earliest()
			for i := range e.shards {
				require.Zero(t, len(e.shards[i].results.shelf.byKey))
			}
			require.Equal(t, n, e.expireUntil(ends))
		})
	}
}

func TestSurveyLeavesOutWhatWouldNotStay(t *testing.T) {
	const ended, failed, remembered = 2000, 30, 500
	synctest.Test(t, func(t *testing.T) {
		e := endpointOf(t, ended, Options[int, int]{TTL: time.Hour, StaleMemory: remembered})
		for key := range failed {
			_, _, err := e.Do(t.Context(), -1-key, func(context.Context) (int, error) { return 0, Permanent(io.EOF) })
			require.ErrorIs(t, err, io.EOF)
		}
		e.timing.timer.Stop()
		end := func(key int) int64 { // of the window of the key that came so far
			return int64(time.Hour) + int64(key-1)*int64(time.Millisecond)
		}
		shelves := 0
		for i := range e.shards {
			shelves += len(e.shards[i].results.shelf.byKey)
		}
		require.Equal(t, failed, shelves)
		surplus := func() (sum int) {
			for i := range e.shards {
				sum += e.shards[i].results.surplus
			}
			return sum
		}

		require.Zero(t, e.survey(end(1)-1))
		require.Equal(t, remembered, e.survey(end(remembered)))
		require.Zero(t, surplus(), "the stale memory has room for all")
		require.Equal(t, ended/2, e.survey(end(ended/2)))
		require.InDelta(t, ended/2-remembered, surplus(), float64(len(e.shards)))
		require.Equal(t, ended, e.survey(end(ended)))
		for i := range e.shards {
			r := &e.shards[i].results
			require.Equal(t, r.ledger.live*(ended-remembered)/ended, r.surplus)
		}
		require.Equal(t, ended+failed, e.survey(never))

		time.Sleep(2 * time.Hour)
		require.Equal(t, ended+failed, e.expire())
		require.Zero(t, surplus())
		require.Equal(t, remembered, e.stale.lru.Len())
		require.EqualValues(t, ended+failed, e.Stats().Expired)
	})
}

// A first call of a key asks the memory of stale keys before its effect, and not
// again after it.
func TestStaleMemoryIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := endpointOf(t, 1, Options[int, int]{TTL: time.Hour})
		time.Sleep(2 * time.Hour)
		require.True(t, e.stale.any())
		_, verdict, err := e.Do(t.Context(), 2, func(context.Context) (int, error) {
			e.stale.mu.Lock() // who asks now waits for ever
			return 2, nil
		})
		e.stale.mu.Unlock()
		require.NoError(t, err)
		require.Equal(t, Executed, verdict)
		require.True(t, e.stale.any(), "key 1 is still remembered")
	})
}

// The order of completion is only counted where eviction goes by it.
func TestOrderIsKeptForEvictOldest(t *testing.T) {
	for evict, want := range map[bool]int64{false: 0, true: 3} {
		synctest.Test(t, func(t *testing.T) {
			e := endpointOf(t, 3, Options[int, int]{Capacity: 10, EvictOldest: evict})
			require.Equal(t, want, e.order.Load())
			for key := 1; key <= 3; key++ {
				hash := e.hash(key)
				f, ok := e.shard(hash).results.ledger.get(key, hash)
				require.True(t, ok)
				require.Equal(t, evict, f.slab.beside.Load() != nil)
				require.Equal(t, min(want, int64(key)), f.slab.more(f.i).order)
			}
		})
	}
}

// A claim that passes on to a waiter of the same fingerprint does so without a
// look at those behind it, of whom there may be thousands.
func TestHandOverDoesNotWalkTheLine(t *testing.T) {
	e, err := New(Options[int, int]{})
	require.NoError(t, err)
	s := e.shard(e.hash(1))
	heir, second := &waiter[int, int]{ctx: t.Context()}, &waiter[int, int]{ctx: t.Context()}
	l := (&claim[int, int]{}).lineOf(nil)
	l.push(heir)
	l.push(second)
	require.True(t, heir.spins)
	require.False(t, second.spins, "only the first to wait spins")
	second.next = second // who walks on walks for ever
	require.Same(t, heir, e.pass(s, 1, l, 0))
	require.Nil(t, heir.next)
	require.Same(t, second, l.first)
	require.Same(t, heir.claim, s.claims.get(1))
}

// An evicted result's memory comes back with the next eight at the latest, or
// when half of what is held would be dead.
func TestEvictionTidiesUpNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New(Options[int, int]{})
		require.NoError(t, err)
		e.spread = 0
		const kept = 40
		for key := range kept {
			_, _, err := e.Do(t.Context(), key+1, func(context.Context) (int, error) { return key, nil })
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
		}
		s := e.shard(0)
		s.mu.Lock()
		defer s.mu.Unlock()
		dead := 0
		for live := kept - 1; live > 0; live-- {
			s.results.evictOldest()
			require.Equal(t, live, s.results.len())
			if dead++; dead == 8 || 2*dead > live {
				dead = 0
			}
			require.EqualValues(t, dead, s.results.ledger.head-s.results.ledger.clean, "%d left", live)
		}
	})
}
