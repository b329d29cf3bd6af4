package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// source plays what the design's own source does, with calls that overlap: calls
// on random keys, of whose effects some fail, then a storm of 16 callers on one
// key. Each key's effect must have been committed exactly once.
func source(t *testing.T, seed uint64, opts options, calls, keys, failing int) {
	const callers, storm = 8, 16
	e := open(t, opts)
	committed := make([]atomic.Int64, keys)
	running := make([]atomic.Int64, keys)
	call := func(rng *rand.Rand, key, failing int) error {
		fail, takes := rng.IntN(100) < failing, time.Duration(rng.IntN(1000))
		_, verdict, err := e.Do(bg, fmt.Sprint("key ", key), func(context.Context) (string, error) {
			if running[key].Add(1) != 1 {
				t.Error("two attempts at one time")
			}
			defer running[key].Add(-1)
			time.Sleep(takes)
			if fail {
				return "", errBoom
			}
			committed[key].Add(1)
			return "v", nil
		})
		if err != nil && (!errors.Is(err, errBoom) || verdict != executed && !opts.ShareFailure) {
			t.Errorf("%v: %v", verdict, err)
		}
		return err
	}

	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(n)))
			for i := n; i < calls; i += callers {
				time.Sleep(time.Duration(rng.IntN(1000)))
				key := rng.IntN(keys)
				for try := 0; call(rng, key, failing) != nil && try < 50; try++ {
				}
			}
		})
	}
	wg.Wait()
	var verdicts [4]atomic.Int64
	for range storm {
		wg.Go(func() {
			_, verdict, err := e.Do(bg, "storm", func(context.Context) (string, error) {
				time.Sleep(time.Millisecond)
				return "v", nil
			})
			if err != nil {
				t.Error(err)
			}
			verdicts[verdict].Add(1)
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, verdicts[executed].Load())
	require.EqualValues(t, storm-1, verdicts[shared].Load()+verdicts[replayed].Load(), "on a busy machine some come late")

	rng := rand.New(rand.NewPCG(seed, callers))
	for key := range keys { // those that have only failed, or have not come up
		require.NoError(t, call(rng, key, 0))
		require.EqualValues(t, 1, committed[key].Load(), "key %d", key)
	}
	s := e.Stats()
	require.EqualValues(t, keys+1, s.Executed)
	require.Equal(t, keys+1, s.Retained)
	addsUp(t, e, s.Executed+s.Failed+s.Replayed+s.Shared)
}

func TestEachKeyIsCommittedOnce(t *testing.T) {
	for name, opts := range map[string]options{"plain": {}, "ShareFailure": {ShareFailure: true}, "Detach": {Detach: true}, "MaxConcurrent": {MaxConcurrent: 3}} {
		t.Run("300 calls on random keys, a fifth of them failing, then 16 on one key: "+name, func(t *testing.T) {
			for seed := range uint64(50) {
				synctest.Test(t, func(t *testing.T) { source(t, seed, opts, 300, 40, 20) })
			}
			for seed := range uint64(5) { // and on real cores
				source(t, seed, opts, 300, 40, 20)
			}
		})
	}
}

func FuzzEachKeyIsCommittedOnce(f *testing.F) {
	f.Add(uint64(1), uint8(40), uint8(20), uint8(0))
	f.Add(uint64(2), uint8(1), uint8(90), uint8(1))
	f.Add(uint64(3), uint8(3), uint8(50), uint8(2))
	f.Add(uint64(4), uint8(200), uint8(0), uint8(7))
	f.Fuzz(func(t *testing.T, seed uint64, keys, failing, how uint8) {
		opts := options{ShareFailure: how&1 != 0, Detach: how&2 != 0, HoldPanics: how&8 != 0}
		if how&4 != 0 {
			opts.MaxConcurrent = 1 + int(how>>4)
		}
		synctest.Test(t, func(t *testing.T) {
			source(t, seed, opts, 300, 1+int(keys), int(failing)%91)
		})
	})
}

// FuzzOptions finds options that New takes and that do not work, or that it
// refuses for no reason.
func FuzzOptions(f *testing.F) {
	f.Add(int64(0), int64(0), 0, 0, int64(0), 0)
	f.Add(int64(-1), int64(1), -1, -1, int64(-1), -1)
	f.Add(int64(1)<<62, int64(1)<<62, 1, 1, int64(1)<<62, 1)
	f.Fuzz(func(t *testing.T, ttl, failureTTL int64, capacity, concurrent int, timeout int64, stale int) {
		opts := options{
			TTL: time.Duration(ttl), FailureTTL: time.Duration(failureTTL), Capacity: capacity,
			MaxConcurrent: concurrent, EffectTimeout: time.Duration(timeout), StaleMemory: stale,
		}
		synctest.Test(t, func(t *testing.T) {
			e, err := idempotent.New(opts)
			if ttl < 0 || failureTTL < 0 || capacity < 0 || concurrent < 0 || timeout < 0 || stale < -1 {
				require.Error(t, err)
				require.Equal(t, ttl < 0 || failureTTL < 0, errors.Is(err, idempotent.ErrInvalidTTL))
				return
			}
			require.NoError(t, err)
			gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
			gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
			if capacity == 1 {
				fails(t, refused, idempotent.ErrFull)(e.Do(bg, "l", forbidden(t)))
			} else {
				fails(t, executed, errBoom)(e.Do(bg, "l", returns("", idempotent.Permanent(errBoom))))
				fails(t, replayed, errBoom)(e.Do(bg, "l", forbidden(t)))
			}
		})
	})
}

// TestStatsAddUpAfterAStorm throws everything at an endpoint at once, on real
// cores, and looks at what is left.
func TestStatsAddUpAfterAStorm(t *testing.T) {
	for name, opts := range map[string]options{
		"plain":                   {},
		"ShareFailure":            {ShareFailure: true},
		"Detach":                  {Detach: true},
		"HoldPanics":              {HoldPanics: true},
		"PassCancel":              {PassCancel: true},
		"Capacity":                {Capacity: 20},
		"EvictOldest":             {Capacity: 20, EvictOldest: true},
		"MaxConcurrent":           {MaxConcurrent: 2, EffectTimeout: time.Second},
		"Detach and ShareFailure": {Detach: true, ShareFailure: true, MaxConcurrent: 4},
	} {
		t.Run(name, func(t *testing.T) {
			const callers, calls, keys = 16, 500, 40
			opts.TTL, opts.FailureTTL = 2*time.Millisecond, time.Millisecond
			opts.OnStale = func(_ context.Context, key string, _ time.Time) error {
				if key == "7" {
					return idempotent.ErrStale
				}
				return nil
			}
			e := open(t, opts)
			var running [keys]atomic.Int64
			var wg sync.WaitGroup
			for n := range callers {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(n), 3))
					for range calls {
						storm(t, e, rng, running[:])
					}
				})
			}
			wg.Wait()
			require.True(t, eventually(func() bool { return e.Stats().InFlight == 0 }))
			require.NoError(t, e.Shutdown(bg))
			addsUp(t, e, callers*calls)
			s := e.Stats()
			require.Positive(t, s.Executed)
			require.Positive(t, s.Failed)
			require.Positive(t, s.Panicked+s.Executed)
			require.Positive(t, s.Refused)
		})
	}
}

// storm is one call, with an effect that ends in one of all the ways there are.
func storm(t *testing.T, e *endpoint, rng *rand.Rand, running []atomic.Int64) {
	key, way, spin := rng.IntN(len(running)), rng.IntN(20), rng.IntN(2000)
	req := request{Key: fmt.Sprint(key), NoWait: rng.IntN(20) == 0, TTL: time.Duration(rng.IntN(3)) * time.Millisecond}
	if rng.IntN(3) == 0 {
		req.Fingerprint = fmt.Sprint(rng.IntN(2))
	}
	if rng.IntN(50) == 0 {
		req.Key = ""
	}
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	switch rng.IntN(10) {
	case 0:
		cancel()
	case 1:
		time.AfterFunc(time.Duration(rng.IntN(50))*time.Microsecond, cancel)
	case 2:
		e.Forget(req.Key)
		e.Resolve(req.Key, "resolved")
	}
	done := make(chan struct{})
	go func() { // an effect may end its caller's goroutine
		defer close(done)
		defer func() { _ = recover() }()
		e.Handle(ctx, req, func(ctx context.Context) (string, error) {
			if running[key].Add(1) != 1 {
				t.Error("two attempts at one time")
			}
			defer running[key].Add(-1)
			for range spin {
				_ = way
			}
			switch way {
			case 0:
				panic("oops")
			case 1:
				runtime.Goexit()
			case 2:
				return "", idempotent.Permanent(errBoom)
			case 3:
				return "", idempotent.Unknown(errBoom)
			case 4:
				runtime.Gosched()
			}
			if way%3 == 0 {
				return "", errBoom
			}
			return "v", nil
		})
	}()
	<-done
}
