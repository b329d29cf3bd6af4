package sequence_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/sequence"
)

func TestMemoryOfResources(t *testing.T) {
	t.Run("a resource is let go after TTL without an event, exactly", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, sequence.Options{TTL: time.Hour})
			require.True(t, apply(t, g, "r", 5))
			time.Sleep(time.Hour - 1)
			require.False(t, apply(t, g, "r", 4), "and a dropped event counts as one")
			time.Sleep(time.Hour - 1)
			_, ok := g.Last("r")
			require.True(t, ok)
			time.Sleep(time.Nanosecond)
			_, ok = g.Last("r")
			require.False(t, ok)
			require.True(t, apply(t, g, "r", 4), "then an old event is applied")
		})
	})
	t.Run("is given back by itself", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, sequence.Options{TTL: time.Minute})
			for i := range 1000 {
				apply(t, g, fmt.Sprint(i), 1)
			}
			require.Equal(t, 1000, g.Stats().Resources)
			time.Sleep(2 * time.Minute)
			require.Zero(t, g.Stats().Resources)
		})
	})
	t.Run("at Capacity the one idle longest is let go", func(t *testing.T) {
		g := newGuard(t, sequence.Options{Capacity: 2})
		apply(t, g, "a", 5)
		apply(t, g, "b", 5)
		apply(t, g, "a", 4) // dropped, but no longer idle
		apply(t, g, "c", 5)
		require.Equal(t, 2, g.Stats().Resources)
		require.False(t, apply(t, g, "a", 4))
		require.True(t, apply(t, g, "b", 4))
	})
	t.Run("Capacity bounds what is remembered and not what runs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, sequence.Options{Capacity: 1})
			var calls sync.WaitGroup
			for i := range 10 {
				calls.Go(func() {
					applied, err := g.Apply(t.Context(), fmt.Sprint(i), 1, func(context.Context) error { time.Sleep(time.Second); return nil })
					if !applied || err != nil {
						t.Error(applied, err)
					}
				})
			}
			calls.Wait()
			require.Equal(t, 1, g.Stats().Resources)
		})
	})
	t.Run("Forget drops the last number", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		require.False(t, g.Forget("r"))
		apply(t, g, "r", 5)
		require.True(t, g.Forget("r"))
		_, ok := g.Last("r")
		require.False(t, ok)
		require.True(t, apply(t, g, "r", 1))
	})
	t.Run("Last never sees a resource without its number while events come", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		apply(t, g, "r", 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for seq := range uint64(5000) {
				g.Apply(context.Background(), "r", seq, succeed)
			}
		}()
		for last := uint64(0); ; {
			seq, ok := g.Last("r")
			require.True(t, ok)
			require.GreaterOrEqual(t, seq, last)
			last = seq
			select {
			case <-done:
				return
			default:
			}
		}
	})
	t.Run("a dropped guard is collected", func(t *testing.T) {
		g := newGuard(t, sequence.Options{TTL: time.Hour})
		collected := make(chan struct{})
		runtime.AddCleanup(g, func(c chan struct{}) { close(c) }, collected)
		apply(t, g, "r", 1)
		g = nil
		for deadline := time.Now().Add(20 * time.Second); ; {
			runtime.GC()
			select {
			case <-collected:
				return
			case <-time.After(time.Millisecond):
				require.True(t, time.Now().Before(deadline), "still there")
			}
		}
	})
}

func TestBadOptions(t *testing.T) {
	for want, opts := range map[string]sequence.Options{
		"Options.TTL is -1s":     {TTL: -time.Second},
		"Options.Capacity is -1": {Capacity: -1},
	} {
		_, err := sequence.New[string](opts)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "sequence: ")
	}
}
