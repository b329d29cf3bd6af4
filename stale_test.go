package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestStale(t *testing.T) {
	promise(t, "a call after the window runs, and is counted", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "k", returns("v", nil))
		require.Zero(t, e.Stats().Stale)
		time.Sleep(window)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
		require.EqualValues(t, 1, e.Stats().Stale)
		gives(t, "w", replayed)(e.Do(bg, "k", forbidden(t)))
		require.EqualValues(t, 1, e.Stats().Stale)
		time.Sleep(window)
		gives(t, "x", executed)(e.Do(bg, "k", returns("x", nil)))
		require.EqualValues(t, 2, e.Stats().Stale)
		gives(t, "y", executed)(e.Do(bg, "new", returns("y", nil)))
		require.EqualValues(t, 2, e.Stats().Stale)
	})

	promise(t, "OnStale is told the key and when it completed, and may refuse", func(t *testing.T) {
		var asked int
		var e *endpoint
		completed := time.Now().Add(time.Minute)
		type name struct{}
		ctx := context.WithValue(bg, name{}, "caller")
		e = open(t, options{OnStale: func(got context.Context, key string, at time.Time) error {
			asked++
			require.Equal(t, "k", key)
			require.True(t, at.Equal(completed), "%v, want %v", at, completed)
			require.Equal(t, "caller", got.Value(name{}))
			require.Len(t, e.InFlight(), 1, "it is asked inside the claim")
			return fmt.Errorf("too late: %w", idempotent.ErrStale)
		}})
		gives(t, "v", executed)(e.Do(ctx, "k", after(time.Minute, returns("v", nil))))
		time.Sleep(window)
		for i := range 3 {
			_, verdict, err := e.Do(ctx, "k", forbidden(t))
			require.ErrorIs(t, err, idempotent.ErrStale)
			require.ErrorContains(t, err, "too late")
			require.ErrorContains(t, err, `"k"`)
			require.Equal(t, refused, verdict)
			require.EqualValues(t, i+1, e.Stats().Stale, "the key stays stale")
			require.Empty(t, e.InFlight())
		}
		require.Equal(t, 3, asked)
		addsUp(t, e, 4)
	})

	promise(t, "OnStale is not asked for new keys, kept results and running attempts", func(t *testing.T) {
		e := open(t, options{OnStale: func(context.Context, string, time.Time) error {
			t.Error("asked")
			return nil
		}})
		leader := start(e, bg, "k", after(time.Second, returns("v", nil)))
		gives(t, "v", shared)(e.Do(bg, "k", forbidden(t)))
		<-leader.done
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		fails(t, executed, errBoom)(e.Do(bg, "l", returns("", errBoom)))
		gives(t, "v", executed)(e.Do(bg, "l", returns("v", nil)))
	})

	promise(t, "OnStale that agrees lets the effect run", func(t *testing.T) {
		e := open(t, options{OnStale: func(context.Context, string, time.Time) error { return nil }})
		e.Do(bg, "k", returns("v", nil))
		time.Sleep(window)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
		gives(t, "w", replayed)(e.Do(bg, "k", forbidden(t)))
	})

	promise(t, "duplicates wait while OnStale is asked, and are asked in their turn", func(t *testing.T) {
		var asked atomic.Int64
		e := open(t, options{OnStale: func(context.Context, string, time.Time) error {
			time.Sleep(time.Second)
			if asked.Add(1) < 3 {
				return idempotent.ErrStale
			}
			return nil
		}})
		e.Do(bg, "k", returns("v", nil))
		time.Sleep(window)
		var calls []*call
		for range 4 {
			calls = append(calls, start(e, bg, "k", returns("w", nil)))
		}
		require.Equal(t, 3, e.Stats().Waiting)
		fails(t, refused, idempotent.ErrStale)(calls[0].end(t))
		fails(t, refused, idempotent.ErrStale)(calls[1].end(t))
		gives(t, "w", executed)(calls[2].end(t))
		gives(t, "w", shared)(calls[3].end(t))
		require.EqualValues(t, 3, asked.Load())
		addsUp(t, e, 5)
	})

	promise(t, "OnStale has the caller's ctx, and a caller that leaves in it runs nothing", func(t *testing.T) {
		e := open(t, options{OnStale: func(ctx context.Context, _ string, _ time.Time) error {
			_, bounded := ctx.Deadline()
			require.True(t, bounded)
			<-ctx.Done()
			require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
			return nil
		}})
		e.Do(bg, "k", returns("v", nil))
		time.Sleep(window)
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		fails(t, refused, context.DeadlineExceeded)(e.Do(ctx, "k", forbidden(t)))
		addsUp(t, e, 2)
	})

	promise(t, "OnStale may call back, and is refused what would wait for itself", func(t *testing.T) {
		var e *endpoint
		e = open(t, options{OnStale: func(ctx context.Context, key string, _ time.Time) error {
			e.Stats()
			gives(t, "other", executed)(e.Do(ctx, "other", returns("other", nil)))
			_, _, err := e.Do(ctx, key, forbidden(t))
			require.ErrorIs(t, err, idempotent.ErrDeadlock)
			require.False(t, e.Forget(key))
			got, ok := idempotent.Key[string](ctx)
			require.True(t, ok)
			require.Equal(t, key, got)
			return nil
		}})
		e.Do(bg, "k", returns("v", nil))
		time.Sleep(window)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
	})

	promise(t, "OnStale that panics or exits gives the claim up", func(t *testing.T) {
		mode := "panic"
		e := open(t, options{OnStale: func(context.Context, string, time.Time) error {
			switch mode {
			case "panic":
				panic("hook")
			case "exit":
				runtime.Goexit()
			}
			return nil
		}})
		e.Do(bg, "k", returns("v", nil))
		time.Sleep(window)
		start(e, bg, "k", forbidden(t)).throws(t, "hook")
		mode = "exit"
		start(e, bg, "k", forbidden(t)).throws(t, nil)
		mode = ""
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
		require.EqualValues(t, 3, e.Stats().Stale)
		addsUp(t, e, 4)
	})

	promise(t, "a failed attempt leaves the key stale", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "k", returns("v", nil))
		time.Sleep(window)
		fails(t, executed, errBoom)(e.Do(bg, "k", returns("", errBoom)))
		fails(t, executed, errBoom)(e.Do(bg, "k", returns("", errBoom)))
		require.EqualValues(t, 2, e.Stats().Stale)
	})

	promise(t, "a forgotten key is not stale, whether its result had ended or not", func(t *testing.T) {
		e := open(t, options{OnStale: func(context.Context, string, time.Time) error { return idempotent.ErrStale }})
		e.Do(bg, "k", returns("v", nil))
		require.True(t, e.Forget("k"))
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
		time.Sleep(window)
		require.False(t, e.Forget("k"), "its result has ended")
		gives(t, "x", executed)(e.Do(bg, "k", returns("x", nil)))
		require.Zero(t, e.Stats().Stale)
	})

	promise(t, "the memory is bounded, and the least recent key is dropped", func(t *testing.T) {
		e := open(t, options{StaleMemory: 10})
		for i := range 30 {
			e.Do(bg, fmt.Sprint(i), returns("v", nil))
			time.Sleep(time.Second)
		}
		time.Sleep(window)
		require.Zero(t, e.Stats().Retained)
		for i := range 30 {
			fails(t, executed, errBoom)(e.Do(bg, fmt.Sprint(i), returns("", errBoom)))
			require.EqualValues(t, max(0, i-19), e.Stats().Stale, "only the last ten are remembered")
		}
	})

	promise(t, "of many that end at once as many are remembered as there is room for", func(t *testing.T) {
		keys, most := 5_000, 1_000
		if idempotent.OneHash { // the time grows with the square
			keys, most = 700, 300
		}
		e := open(t, options{StaleMemory: most, Capacity: keys})
		for round := range 2 { // the second needs the room of the first
			for i := range keys {
				gives(t, "v", executed)(e.Do(bg, fmt.Sprint(i, "of round", round), returns("v", nil)))
			}
			time.Sleep(window)
			require.Zero(t, e.Stats().Retained)
			require.EqualValues(t, keys*(round+1), e.Stats().Expired)
		}
		for i := range keys {
			fails(t, executed, errBoom)(e.Do(bg, fmt.Sprint(i, "of round", 1), returns("", errBoom)))
		}
		require.EqualValues(t, most, e.Stats().Stale)
	})

	promise(t, "as many are remembered, however many ask at that moment", func(t *testing.T) {
		keys, most := 2_000, 1_000
		if idempotent.OneHash {
			keys, most = 700, 300
		}
		for range 20 {
			e := open(t, options{StaleMemory: most})
			for i := range keys {
				e.Do(bg, fmt.Sprint(i), returns("v", nil))
			}
			var asking sync.WaitGroup
			for range 4 {
				asking.Go(func() {
					time.Sleep(window)
					require.Zero(t, e.Stats().Retained)
				})
			}
			asking.Wait()
			for i := range keys {
				fails(t, executed, errBoom)(e.Do(bg, fmt.Sprint(i), returns("", errBoom)))
			}
			require.EqualValues(t, most, e.Stats().Stale)
		}
	})

	promise(t, "what was forgotten before takes no room in the memory from others", func(t *testing.T) {
		keys, most := 2_000, 500
		if idempotent.OneHash {
			keys, most = 700, 300
		}
		e := open(t, options{StaleMemory: most})
		for i := range keys {
			e.Do(bg, fmt.Sprint(i), returns("v", nil))
		}
		for i := range keys - most/2 {
			require.True(t, e.Forget(fmt.Sprint(i)))
		}
		time.Sleep(window)
		for i := range keys {
			fails(t, executed, errBoom)(e.Do(bg, fmt.Sprint(i), returns("", errBoom)))
		}
		require.EqualValues(t, most/2, e.Stats().Stale)
	})

	promise(t, "a key that has run again takes no room in the memory", func(t *testing.T) {
		e := open(t, options{StaleMemory: 2})
		for _, key := range []string{"a", "b"} {
			e.Do(bg, key, returns("v", nil))
			time.Sleep(time.Second)
		}
		time.Sleep(window)
		gives(t, "v", executed)(e.Do(bg, "b", returns("v", nil)))
		_, _, err := e.Handle(bg, request{Key: "c", TTL: time.Second}, returns("v", nil))
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		require.EqualValues(t, 1, e.Stats().Stale)
		gives(t, "v", executed)(e.Do(bg, "a", returns("v", nil)))
		require.EqualValues(t, 2, e.Stats().Stale, "c and a are remembered: b is kept again")
	})

	promise(t, "a memory of -1 remembers nothing, and nothing is asked", func(t *testing.T) {
		e := open(t, options{StaleMemory: -1, OnStale: func(context.Context, string, time.Time) error { return errors.New("asked") }})
		e.Do(bg, "k", returns("v", nil))
		time.Sleep(window)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
		require.True(t, e.Forget("k"))
		s := e.Stats()
		require.Zero(t, s.Stale)
		require.EqualValues(t, 1, s.Expired)
	})

	promise(t, "a memory of 0 is 65,536 keys", func(t *testing.T) {
		opts, memory := options{}, 65536
		if memory != many(memory) { // too many for here: a given memory is as good
			opts.StaleMemory, memory = 100, 100
		}
		e := open(t, opts)
		for i := range memory + 10 {
			e.Do(bg, fmt.Sprint(i), returns("v", nil))
		}
		time.Sleep(window)
		require.Zero(t, e.Stats().Retained)
		for i := range memory + 10 {
			e.Do(bg, fmt.Sprint(i), returns("", errBoom))
		}
		require.EqualValues(t, memory, e.Stats().Stale)
	})
}
