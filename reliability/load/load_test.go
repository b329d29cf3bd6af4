// Package load runs an endpoint at full tilt in real time and looks at what is
// left of it afterwards.
package load

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotent-go/idempotent"
)

var loadFor = flag.Duration("load.for", 3*time.Second, "how long the callers call")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watch is what one key's effects tell about each other.
type watch struct {
	running   atomic.Bool
	succeeded atomic.Int64 // when the last success ended, since the start; 0 = none
}

func TestSixtyFourCallers(t *testing.T) {
	const callers, keys, window = 64, 10_000, 50 * time.Millisecond
	for name, opts := range map[string]idempotent.Options[int, int]{
		"plain":         {},
		"ShareFailure":  {ShareFailure: true},
		"Detach":        {Detach: true},
		"MaxConcurrent": {MaxConcurrent: 8},
		"Capacity":      {Capacity: keys / 4},
	} {
		t.Run(name, func(t *testing.T) {
			opts.TTL = window
			e, err := idempotent.New(opts)
			require.NoError(t, err)
			l := load{e: e, window: window, base: time.Now(), keys: make([]watch, keys)}
			var wg sync.WaitGroup
			for caller := range callers {
				wg.Go(func() { l.call(rand.New(rand.NewPCG(uint64(caller), 0)), *loadFor/5) })
			}
			wg.Wait()
			rest(t, func() bool { return e.Stats().InFlight == 0 })

			s := e.Stats()
			t.Logf("%d calls: %+v", l.calls.Load(), s)
			require.Zero(t, l.overlaps.Load(), "effects of one key overlapped")
			require.Zero(t, l.doubles.Load(), "effects ran within the window of a success")
			require.Equal(t, l.calls.Load(), s.Executed+s.Failed+s.Replayed+s.Shared+s.Refused, "each call is exactly one of these")
			require.Equal(t, l.effects.Load(), s.Executed+s.Failed)
			require.Equal(t, l.panics.Load(), s.Panicked)
			for verdict, counted := range map[idempotent.Verdict]uint64{
				idempotent.Executed: s.Executed + s.Failed, idempotent.Replayed: s.Replayed,
				idempotent.Shared: s.Shared, idempotent.Refused: s.Refused,
			} {
				require.Equal(t, counted, l.verdicts[verdict].Load(), "%v", verdict)
			}
			require.Zero(t, s.Waiting)
			rest(t, func() bool { return e.Stats().Retained == 0 })
			require.Equal(t, s.Executed, e.Stats().Expired, "each result has ended once")
			require.Empty(t, e.InFlight())
		})
	}
}

type load struct {
	e      *idempotent.Endpoint[int, int]
	window time.Duration
	base   time.Time
	keys   []watch

	calls, effects, panics, overlaps, doubles atomic.Uint64
	verdicts                                  [4]atomic.Uint64
}

var errFailed = errors.New("failed")

// call makes calls for a while: of their effects 20 % fail and 5 % panic, and 5 %
// of the callers give up.
func (l *load) call(rng *rand.Rand, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		key, lot, yields := 1+rng.IntN(len(l.keys)), rng.IntN(100), rng.IntN(20)
		ctx, cancel := context.Background(), func() {}
		if rng.IntN(20) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(100))*time.Microsecond)
		}
		func() {
			defer cancel()
			defer func() {
				if v := recover(); v != nil {
					l.verdicts[idempotent.Executed].Add(1)
				}
			}()
			l.calls.Add(1)
			_, verdict, _ := l.e.Do(ctx, key, func(context.Context) (int, error) { return l.effect(&l.keys[key-1], lot, yields) })
			l.verdicts[verdict].Add(1)
		}()
	}
}

func (l *load) effect(w *watch, lot, yields int) (int, error) {
	l.effects.Add(1)
	if !w.running.CompareAndSwap(false, true) {
		l.overlaps.Add(1)
	}
	defer w.running.Store(false)
	if last := w.succeeded.Load(); last != 0 && time.Since(l.base)-time.Duration(last) < l.window {
		l.doubles.Add(1)
	}
	for range yields {
		runtime.Gosched()
	}
	switch {
	case lot < 20:
		return 0, errFailed
	case lot < 25:
		l.panics.Add(1)
		panic(errFailed)
	}
	w.succeeded.Store(int64(time.Since(l.base)))
	return lot, nil
}

// rest polls until what is left has come to rest.
func rest(t *testing.T, atRest func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !atRest(); <-time.After(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "it does not come to rest")
	}
}
