package idempotent_test

import (
	"context"
	"fmt"
	"math"
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
		time.Sleep(1)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
	})

	promise(t, "starts at completion: an effect may take longer than it", func(t *testing.T) {
		e := open(t, options{})
		gives(t, "v", executed)(e.Do(bg, "k", after(3*window, returns("v", nil))))
		time.Sleep(window - 1)
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		time.Sleep(1)
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
		time.Sleep(1)
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
			time.Sleep(1)
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
		time.Sleep(1)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
	})

	promise(t, "a failed attempt starts none", func(t *testing.T) {
		e := open(t, options{})
		fails(t, executed, errBoom)(e.Do(bg, "k", returns("", errBoom)))
		time.Sleep(window - 1)
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		time.Sleep(1)
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
	})

	promise(t, "what ended is not counted as retained, and counts as expired", func(t *testing.T) {
		e := open(t, options{})
		for i := range 1000 {
			e.Do(bg, fmt.Sprint(i), returns("v", nil))
		}
		time.Sleep(window - 1)
		require.Equal(t, 1000, e.Stats().Retained)
		time.Sleep(1)
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
			time.Sleep(1)
		}
		require.EqualValues(t, 20, runs.Load())
	})
}
