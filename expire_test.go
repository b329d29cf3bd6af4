package idempotent

import (
	"context"
	"encoding/json"
	"iter"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// awaitLock returns once a call of the function waits for a mutex.
func awaitLock(function string) {
	stacks := make([]byte, 1<<20)
	for {
		for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "[sync.Mutex.Lock") && strings.Contains(stack, function+"(") {
				return
			}
		}
		runtime.Gosched()
	}
}

func zeroFx(context.Context) (int, error) { return 0, nil }

// keepFor keeps results of keys with a window of their own.
func keepFor(t *testing.T, e *Endpoint[int, int], window time.Duration, keys ...int) {
	for _, key := range keys {
		_, verdict, err := e.Handle(t.Context(), Request[int]{Key: key, TTL: window}, zeroFx)
		require.NoError(t, err)
		require.Equal(t, Executed, verdict)
	}
}

func onShelves(e *Endpoint[int, int]) (n int) {
	for i := range e.shards {
		n += len(e.shards[i].results.shelf.byKey)
	}
	return n
}

// Restore finds the endpoint full and comes too late to make room: another call
// has.
func TestRestoreTakesRoomThatASweepHasMade(t *testing.T) {
	e, err := New(Options[int, int]{Capacity: 3})
	require.NoError(t, err)
	keepFor(t, e, time.Nanosecond, 1, 2, 3)
	e.timing.timer.Stop()
	e.expiring.Lock() // as the sweep does
	taken := make(chan int)
	go func() { taken <- e.Restore(maps.All(map[int]Record[int]{4: {Value: 4}})) }()
	awaitLock("putBack")
	require.Equal(t, 3, e.expireUntil(e.timing.look()))
	e.expiring.Unlock()
	require.Equal(t, 1, <-taken)

	require.Equal(t, 2, e.Restore(maps.All(map[int]Record[int]{5: {}, 6: {}, 7: {}})), "and no more than there is")
}

// A process that was stopped comes to a call before the timer that was due.
func TestALateTimerIsNotPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clock timing
		rang := 0
		clock.init(time.Hour, func() { clock.rung(); rang++ })
		clock.expect(clock.now(), int64(time.Minute))
		clock.base = clock.base.Add(-2 * time.Minute) // the clock has gone on, the timer has not
		now := clock.look()
		clock.expect(now, now+int64(time.Hour))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, rang, "what ended at a minute waits for the timer")

		clock.expect(now, now+int64(time.Hour))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 2, rang, "and the next one is waited for again")
	})
}

// What a sweep would have left out of the stale memory is called before its turn:
// then it leaves out so many less.
func TestCallersDuringASweepCostNoStaleKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ended, most = 2000, 500
		e := endpointOf(t, ended, Options[int, int]{TTL: time.Hour, StaleMemory: most})
		e.timing.timer.Stop()
		time.Sleep(2 * time.Hour)
		now := e.timing.look()
		e.expiring.Lock()
		require.Equal(t, ended, e.survey(now))
		for key := range most {
			_, verdict, err := e.Do(t.Context(), key+1, zeroFx)
			require.NoError(t, err)
			require.Equal(t, Executed, verdict)
		}
		for key := range most {
			require.False(t, e.Forget(most+key+1))
		}
		e.expireUntil(now)
		e.expiring.Unlock()
		require.Equal(t, most, e.stale.lru.Len())
		for _, key := range e.stale.lru.Keys() {
			require.Greater(t, key, 2*most)
		}
	})
}

// A sweep may be long. The timer's next rings do not queue for it, and what ends
// meanwhile is let go.
func TestASweepGoesRoundAgain(t *testing.T) {
	e, err := New(Options[int, int]{TTL: time.Hour})
	require.NoError(t, err)
	keepFor(t, e, time.Nanosecond, 1)
	keepFor(t, e, 50*time.Millisecond, 2)
	e.timing.timer.Stop()
	ends := e.timing.now() + int64(50*time.Millisecond)
	e.stale.mu.Lock() // which the sweep needs to let the first one go
	var sweep sync.WaitGroup
	sweep.Go(e.sweep)
	awaitLock("remember")
	for e.timing.now() < ends {
		runtime.Gosched()
	}
	e.sweep()
	e.sweep()
	e.timing.mu.Lock()
	e.timing.due = 0 // no timer lets the second one go
	e.timing.mu.Unlock()
	e.stale.mu.Unlock()
	sweep.Wait()
	require.Zero(t, e.rings.Load())
	require.Equal(t, int64(never), e.earliest(), "nothing is left that ends")
}

// A snapshot of results of one instant keeps them so, also where it comes across
// by the wall clock: then the ledger takes them back.
func TestRecordsKeepDistances(t *testing.T) {
	for name, kept := range map[string]Record[int]{
		"a window":    {CompletedAt: time.Now().Add(-time.Minute), ExpiresAt: time.Now().Add(time.Hour - time.Minute)},
		"no window":   {CompletedAt: time.Now().Add(-time.Minute)},
		"no instants": {},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 2000
			opts := Options[int, int]{TTL: kept.ExpiresAt.Sub(kept.CompletedAt)}
			if kept.ExpiresAt.IsZero() {
				opts.TTL = Forever
			} else {
				opts.TTL = time.Hour
				kept.ExpiresAt = kept.CompletedAt.Add(time.Hour)
			}
			var snapshot iter.Seq2[int, Record[int]] = func(yield func(int, Record[int]) bool) {
				for key := 1; key <= n && yield(key, kept); key++ {
				}
			}
			for range 3 {
				e, err := New(opts)
				require.NoError(t, err)
				require.Equal(t, n, e.Restore(snapshot))
				require.Zero(t, onShelves(e))
				snapshot = func(yield func(int, Record[int]) bool) {
					for key, record := range e.Records() {
						text, err := json.Marshal(record)
						require.NoError(t, err)
						var read Record[int]
						require.NoError(t, json.Unmarshal(text, &read))
						if !yield(key, read) {
							return
						}
					}
				}
			}
		})
	}
}

func TestShutdownDoesNotWaitForASweep(t *testing.T) {
	e, err := New(Options[int, int]{})
	require.NoError(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = e.Do(t.Context(), 1, func(context.Context) (int, error) {
		e.expiring.Lock()
		defer e.expiring.Unlock()
		require.ErrorIs(t, e.Shutdown(gone), context.Canceled)
		return 0, nil
	})
	require.NoError(t, err)
	require.NoError(t, e.Shutdown(gone), "nothing runs")
}

// Long windows on the shelf beside those that end do not make them many.
func TestFewEndInTheirOrderBesideManyThatStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New(Options[int, int]{TTL: time.Hour, StaleMemory: 10})
		require.NoError(t, err)
		for key := range 1000 {
			keepFor(t, e, 10*time.Hour, -1-key)
		}
		for key := range 30 {
			keepFor(t, e, time.Minute, key+1)
			time.Sleep(time.Millisecond)
		}
		e.timing.timer.Stop()
		time.Sleep(time.Hour)
		require.Equal(t, 30, e.expire())
		require.Equal(t, []int{21, 22, 23, 24, 25, 26, 27, 28, 29, 30}, e.stale.lru.Keys())
	})
}
