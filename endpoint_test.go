package idempotent_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestOneAttempt(t *testing.T) {
	promise(t, "a second call is handed the first one's result and runs nothing", func(t *testing.T) {
		e := open(t, options{})
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		addsUp(t, e, 2)
	})

	promise(t, "each key runs its own effect", func(t *testing.T) {
		e := open(t, options{})
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		gives(t, "w", executed)(e.Do(bg, "l", returns("w", nil)))
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
	})

	promise(t, "Do is Handle with a key alone", func(t *testing.T) {
		e := open(t, options{})
		gives(t, "v", executed)(e.Handle(bg, request{Key: "k"}, returns("v", nil)))
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
	})

	promise(t, "two endpoints know nothing of each other", func(t *testing.T) {
		a, b := open(t, options{}), open(t, options{})
		gives(t, "v", executed)(a.Do(bg, "k", returns("v", nil)))
		gives(t, "w", executed)(b.Do(bg, "k", returns("w", nil)))
	})

	t.Run("zero values are results like any other", func(t *testing.T) {
		replaysZero[int](t)
		replaysZero[string](t)
		replaysZero[*int](t)
		replaysZero[error](t)
		replaysZero[[]byte](t)
		replaysZero[struct{}](t)
	})
}

func replaysZero[V any](t *testing.T) {
	t.Helper()
	e := openFor(t, idempotent.Options[string, V]{})
	var zero V
	runs := 0
	fx := func(context.Context) (V, error) { runs++; return zero, nil }
	for _, want := range []idempotent.Verdict{executed, replayed, replayed} {
		value, verdict, err := e.Do(bg, "k", fx)
		require.NoError(t, err)
		require.Equal(t, want, verdict)
		require.Equal(t, zero, value)
	}
	require.Equal(t, 1, runs)
}

func TestDeadContext(t *testing.T) {
	dead, cancel := context.WithCancel(bg)
	cancel()

	promise(t, "runs no effect and leaves no claim", func(t *testing.T) {
		e := open(t, options{})
		fails(t, refused, context.Canceled)(e.Do(dead, "k", forbidden(t)))
		require.Empty(t, e.InFlight())
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		addsUp(t, e, 2)
	})

	promise(t, "still replays a kept result", func(t *testing.T) {
		e := open(t, options{})
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		gives(t, "v", replayed)(e.Do(dead, "k", forbidden(t)))
	})

	promise(t, "does not wait for a running attempt", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "k", after(time.Second, returns("v", nil)))
		begun := time.Now()
		fails(t, refused, idempotent.ErrInFlight, context.Canceled)(e.Do(dead, "k", forbidden(t)))
		require.Zero(t, time.Since(begun))
		gives(t, "v", executed)(leader.end(t))
	})
}

func TestClone(t *testing.T) {
	type slice = []int
	copied := func(v slice) slice { return append(slice(nil), v...) }
	fx := func(context.Context) (slice, error) { return slice{1, 2, 3}, nil }

	promise(t, "every caller who is handed a kept value has a copy of its own", func(t *testing.T) {
		e := openFor(t, idempotent.Options[string, slice]{Clone: copied})
		release := make(chan struct{})
		got := make(chan slice)
		for range 3 { // one executes, two share
			go func() {
				v, _, _ := e.Do(bg, "k", func(ctx context.Context) (slice, error) { <-release; return fx(ctx) })
				v[0] = 99
				got <- v
			}()
		}
		close(release)
		for range 3 {
			require.Equal(t, slice{99, 2, 3}, <-got)
		}
		v, verdict, err := e.Do(bg, "k", nil)
		require.NoError(t, err)
		require.Equal(t, replayed, verdict)
		require.Equal(t, slice{1, 2, 3}, v)
		v[1] = 99
		record, ok := e.Lookup("k")
		require.True(t, ok)
		require.Equal(t, slice{1, 2, 3}, record.Value)
		record.Value[2] = 99
		for _, record := range e.Records() {
			require.Equal(t, slice{1, 2, 3}, record.Value)
		}
	})

	promise(t, "without it all share one value", func(t *testing.T) {
		e := openFor(t, idempotent.Options[string, slice]{})
		a, _, _ := e.Do(bg, "k", fx)
		b, _, _ := e.Do(bg, "k", nil)
		a[0] = 99
		require.Equal(t, 99, b[0])
	})

	promise(t, "is not called for what is not kept", func(t *testing.T) {
		e := openFor(t, idempotent.Options[string, *int]{ShareFailure: true, Clone: func(v *int) *int { c := *v; return &c }})
		fail := func(context.Context) (*int, error) { time.Sleep(time.Second); return nil, errBoom }
		leader := make(chan error)
		go func() { _, _, err := e.Do(bg, "k", fail); leader <- err }()
		_, _, err := e.Do(bg, "k", fail)
		require.ErrorIs(t, err, errBoom)
		require.ErrorIs(t, <-leader, errBoom)
	})

	promise(t, "may panic, and leaves the endpoint usable", func(t *testing.T) {
		var bad atomic.Bool
		e := open(t, options{Clone: func(v string) string {
			if bad.Load() {
				panic("clone")
			}
			return v
		}})
		bad.Store(true)
		start(e, bg, "k", returns("v", nil)).throws(t, "clone")
		start(e, bg, "k", forbidden(t)).throws(t, "clone")
		bad.Store(false)
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		addsUp(t, e, 3)
	})

	promise(t, "may call back into the endpoint", func(t *testing.T) {
		var e *endpoint
		e = open(t, options{Clone: func(v string) string {
			e.Stats()
			e.InFlight()
			return v + "!"
		}})
		gives(t, "v!", executed)(e.Do(bg, "k", returns("v", nil)))
		gives(t, "v!", replayed)(e.Do(bg, "k", forbidden(t)))
	})
}
