package idempotent_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestWindow(t *testing.T) {
	promise(t, "ends at completion and TTL exactly: a nanosecond earlier it is replayed", func(t *testing.T) {
		e := open(t, options{})
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		time.Sleep(window - 1)
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		time.Sleep(time.Nanosecond)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
	})

	promise(t, "starts at completion: an effect may take longer than it", func(t *testing.T) {
		e := open(t, options{})
		gives(t, "v", executed)(e.Do(bg, "k", after(3*window, returns("v", nil))))
		time.Sleep(window - 1)
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		time.Sleep(time.Nanosecond)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
	})

	promise(t, "does not slide: replays do not extend it", func(t *testing.T) {
		e := open(t, options{})
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		for range 9 {
			time.Sleep(window / 10)
			gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		}
		time.Sleep(window / 10)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
	})

	promise(t, "0 is DefaultTTL", func(t *testing.T) {
		e := openFor(t, options{})
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		time.Sleep(idempotent.DefaultTTL - 1)
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		time.Sleep(time.Nanosecond)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
	})

	promise(t, "may differ from call to call, whatever the order in which they end", func(t *testing.T) {
		e := open(t, options{})
		for _, hours := range []int{5, 1, 4, 2, 3} {
			key := fmt.Sprint(hours)
			gives(t, key, executed)(e.Handle(bg, request{Key: key, TTL: time.Duration(hours) * time.Hour}, returns(key, nil)))
		}
		for ended := 1; ended <= 5; ended++ {
			time.Sleep(time.Hour - 1)
			for hours := ended; hours <= 5; hours++ {
				gives(t, fmt.Sprint(hours), replayed)(e.Do(bg, fmt.Sprint(hours), forbidden(t)))
			}
			time.Sleep(time.Nanosecond)
			_, held := e.Lookup(fmt.Sprint(ended))
			require.False(t, held)
			require.Equal(t, 5-ended, e.Stats().Retained)
		}
	})

	promise(t, "a short one among many long ones ends in time", func(t *testing.T) {
		e := open(t, options{})
		for i := range 1000 {
			ttl := 10 * time.Hour
			if i%10 == 0 {
				ttl = time.Duration(i+1) * time.Second
			}
			e.Handle(bg, request{Key: fmt.Sprint(i), TTL: ttl}, returns("v", nil))
		}
		for i := 0; i < 1000; i += 10 {
			_, held := e.Lookup(fmt.Sprint(i))
			require.True(t, held)
			if i == 0 {
				time.Sleep(time.Second)
			} else {
				time.Sleep(10 * time.Second)
			}
			_, held = e.Lookup(fmt.Sprint(i))
			require.False(t, held)
		}
		require.Equal(t, 900, e.Stats().Retained)
		for i := range 1000 {
			if i%10 != 0 {
				gives(t, "v", replayed)(e.Do(bg, fmt.Sprint(i), forbidden(t)))
			}
		}
	})

	for _, ttl := range []time.Duration{idempotent.Forever, math.MaxInt64 - 1, math.MaxInt64 / 2} {
		promise(t, fmt.Sprintf("of %d ns does not wrap: it runs on after 100 years", ttl), func(t *testing.T) {
			e := open(t, options{TTL: ttl})
			time.Sleep(time.Hour) // so that adding to now would wrap
			gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
			time.Sleep(100 * 365 * 24 * time.Hour)
			gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
			require.Equal(t, 1, e.Stats().Retained)
		})
	}

	promise(t, "Forever for one call among others", func(t *testing.T) {
		e := open(t, options{})
		e.Handle(bg, request{Key: "k", TTL: idempotent.Forever}, returns("v", nil))
		e.Do(bg, "l", returns("w", nil))
		record, ok := e.Lookup("k")
		require.True(t, ok)
		require.True(t, record.ExpiresAt.IsZero())
		time.Sleep(window)
		require.Equal(t, 1, e.Stats().Retained)
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
	})

	promise(t, "a nanosecond is a window", func(t *testing.T) {
		e := open(t, options{TTL: 1})
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		time.Sleep(time.Nanosecond)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
	})

	promise(t, "a failed attempt starts none", func(t *testing.T) {
		e := open(t, options{})
		fails(t, executed, errBoom)(e.Do(bg, "k", returns("", errBoom)))
		time.Sleep(window - 1)
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		time.Sleep(time.Nanosecond)
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
	})

	promise(t, "what ended is not counted as retained, and counts as expired", func(t *testing.T) {
		e := open(t, options{})
		for i := range 1000 {
			e.Do(bg, fmt.Sprint(i), returns("v", nil))
		}
		time.Sleep(window - 1)
		require.Equal(t, 1000, e.Stats().Retained)
		time.Sleep(time.Nanosecond)
		s := e.Stats()
		require.Zero(t, s.Retained)
		require.EqualValues(t, 1000, s.Expired)
		for range e.Records() {
			t.Error("a record is left")
		}
	})

	promise(t, "an attempt that runs as the window of others ends is not disturbed", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "done", returns("v", nil))
		running := start(e, bg, "k", after(2*window, returns("w", nil)))
		waiter := start(e, bg, "k", forbidden(t))
		time.Sleep(window)
		require.Zero(t, e.Stats().Retained)
		require.Len(t, e.InFlight(), 1)
		gives(t, "w", executed)(running.end(t))
		gives(t, "w", shared)(waiter.end(t))
	})

	promise(t, "two runs of a key lie a window apart, at every step of the clock", func(t *testing.T) {
		e := open(t, options{TTL: 100})
		var runs atomic.Int64
		var last time.Time
		for range 2000 {
			e.Do(bg, "k", counted(&runs, func(context.Context) (string, error) {
				require.True(t, last.IsZero() || time.Since(last) >= 100)
				last = time.Now()
				return "v", nil
			}))
			time.Sleep(time.Nanosecond)
		}
		require.EqualValues(t, 20, runs.Load())
	})

	promise(t, "of many ends, and the few that came later stay", func(t *testing.T) {
		e := open(t, options{})
		n := many(10_000)
		for i := range n {
			e.Do(bg, fmt.Sprint("early ", i), returns("v", nil))
		}
		time.Sleep(window / 2)
		for i := range 10 {
			e.Do(bg, fmt.Sprint("late ", i), returns("v", nil))
		}
		for i := 0; i < n; i += 3 {
			require.True(t, e.Forget(fmt.Sprint("early ", i)))
		}
		time.Sleep(window/2 - 1)
		require.Equal(t, n-(n+2)/3+10, e.Stats().Retained)
		time.Sleep(time.Nanosecond)
		require.Equal(t, 10, e.Stats().Retained)
		for i := range 10 {
			gives(t, "v", replayed)(e.Do(bg, fmt.Sprint("late ", i), forbidden(t)))
		}
		for i := range n { // and what was there can come again
			gives(t, "w", executed)(e.Do(bg, fmt.Sprint("early ", i), returns("w", nil)))
		}
		require.Equal(t, n+10, e.Stats().Retained)
	})

	promise(t, "of large values is the same", func(t *testing.T) {
		type large [5000]byte
		e := openFor(t, idempotent.Options[string, large]{TTL: window})
		for i := range 100 {
			_, verdict, err := e.Do(bg, fmt.Sprint(i), func(context.Context) (large, error) { return large{byte(i), 4999: byte(i)}, nil })
			require.NoError(t, err)
			require.Equal(t, executed, verdict)
		}
		for i := range 100 {
			value, verdict, err := e.Do(bg, fmt.Sprint(i), nil)
			require.NoError(t, err)
			require.Equal(t, replayed, verdict)
			require.True(t, value == large{byte(i), 4999: byte(i)})
		}
		time.Sleep(window)
		require.Zero(t, e.Stats().Retained)
	})
}

// On real cores and the real clock: what was replayed had not ended when the
// call came, and what ran again had.
func TestWindowsEndInTimeUnderLoad(t *testing.T) {
	const callers, keys, ttl = 8, 20, 2 * time.Millisecond
	type replay struct {
		run  int64
		came time.Time
	}
	e := openFor(t, idempotent.Options[string, int64]{TTL: ttl})
	var runs atomic.Int64
	var latest [keys]atomic.Pointer[time.Time] // effect's end
	var kept sync.Map                          // run -> when its result was kept at the latest
	replays := make([][]replay, callers)
	deadline := time.Now().Add(300 * time.Millisecond)
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			for i := n; time.Now().Before(deadline); i++ {
				key := i % keys
				came := time.Now()
				run, verdict, err := e.Do(bg, fmt.Sprint(key), func(context.Context) (int64, error) {
					begun := time.Now()
					if before := latest[key].Load(); before != nil && begun.Sub(*before) < ttl {
						t.Errorf("ran again %v after the last run", begun.Sub(*before))
					}
					ended := time.Now()
					latest[key].Store(&ended)
					return runs.Add(1), nil
				})
				switch {
				case err != nil:
					t.Error(err)
				case verdict == executed:
					kept.Store(run, time.Now())
				case verdict == replayed:
					replays[n] = append(replays[n], replay{run, came})
				}
			}
		})
	}
	wg.Wait()
	n := 0
	for _, r := range slices.Concat(replays...) {
		at, _ := kept.Load(r.run)
		// The timer that sends readers to the clock may be later than its margin where
		// other processes hold the cores; a read is exact up to that.
		if late := r.came.Sub(at.(time.Time)) - ttl; late > 100*time.Millisecond {
			t.Errorf("replayed to a call that came %v after the window", late)
		}
		n++
	}
	require.Positive(t, n)
	s := e.Stats()
	require.Greater(t, s.Executed, uint64(keys), "keys ran again")
	require.GreaterOrEqual(t, s.Executed, s.Expired)
}
