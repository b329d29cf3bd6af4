package idempotent

import (
	"context"
	"fmt"
	"runtime"
	"slices"
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
		{0, Forever, never}, {1, Forever, never}, {-1, Forever, never - 1},
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
