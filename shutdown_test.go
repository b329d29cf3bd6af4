package idempotent_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestShutdown(t *testing.T) {
	dead, cancel := context.WithCancel(bg)
	cancel()

	promise(t, "refuses new effects and still replays", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "done", returns("v", nil))
		require.NoError(t, e.Shutdown(bg))
		_, verdict, err := e.Do(bg, "new", forbidden(t))
		require.Equal(t, refused, verdict)
		require.ErrorIs(t, err, idempotent.ErrShutdown)
		require.ErrorContains(t, err, `"new"`)
		gives(t, "v", replayed)(e.Do(bg, "done", forbidden(t)))
		time.Sleep(window)
		fails(t, refused, idempotent.ErrShutdown)(e.Do(bg, "done", forbidden(t)))
		addsUp(t, e, 4)
	})

	promise(t, "waits for the running effects, whose waiters get them", func(t *testing.T) {
		e := open(t, options{})
		a := start(e, bg, "a", after(time.Second, returns("a", nil)))
		waiter := start(e, bg, "a", forbidden(t))
		b := start(e, bg, "b", after(time.Minute, returns("b", nil)))
		begun := time.Now()
		require.NoError(t, e.Shutdown(bg))
		require.Equal(t, time.Minute, time.Since(begun))
		require.Zero(t, e.Stats().InFlight)
		gives(t, "a", executed)(a.end(t))
		gives(t, "a", shared)(waiter.end(t))
		gives(t, "b", executed)(b.end(t))
		gives(t, "b", replayed)(e.Do(bg, "b", forbidden(t)))
	})

	promise(t, "lets who comes meanwhile join a running effect", func(t *testing.T) {
		e := open(t, options{})
		a := start(e, bg, "a", after(time.Second, returns("a", nil)))
		require.ErrorIs(t, e.Shutdown(dead), context.Canceled)
		gives(t, "a", shared)(e.Do(bg, "a", forbidden(t)))
		<-a.done
	})

	promise(t, "passes no claim on: the waiters of a failed attempt are refused", func(t *testing.T) {
		e := open(t, options{})
		a := start(e, bg, "a", after(time.Second, returns("", errBoom)))
		waiters := []*call{start(e, bg, "a", forbidden(t)), start(e, bg, "a", forbidden(t))}
		require.NoError(t, e.Shutdown(bg))
		fails(t, executed, errBoom)(a.end(t))
		for _, w := range waiters {
			fails(t, refused, idempotent.ErrShutdown)(w.end(t))
		}
		addsUp(t, e, 3)
	})

	promise(t, "returns with ctx's error while an effect runs, and may be called again", func(t *testing.T) {
		e := open(t, options{})
		a := start(e, bg, "a", after(time.Hour, returns("a", nil)))
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		begun := time.Now()
		require.ErrorIs(t, e.Shutdown(ctx), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(begun))
		fails(t, refused, idempotent.ErrShutdown)(e.Do(bg, "new", forbidden(t)))
		require.NoError(t, e.Shutdown(bg))
		require.Equal(t, time.Hour, time.Since(begun))
		require.NoError(t, e.Shutdown(bg))
		require.NoError(t, e.Shutdown(dead), "nothing runs")
		gives(t, "a", executed)(a.end(t))
	})

	promise(t, "may be called by many at once", func(t *testing.T) {
		e := open(t, options{})
		a := start(e, bg, "a", after(time.Second, returns("a", nil)))
		errs := make(chan error)
		for range 10 {
			go func() { errs <- e.Shutdown(bg) }()
		}
		for range 10 {
			require.NoError(t, <-errs)
		}
		<-a.done
	})

	promise(t, "inside an effect does not wait for itself", func(t *testing.T) {
		for _, detach := range []bool{false, true} {
			e := open(t, options{Detach: detach})
			a := start(e, bg, "a", after(time.Second, func(ctx context.Context) (string, error) {
				require.ErrorIs(t, e.Shutdown(ctx), idempotent.ErrDeadlock)
				return "a", nil
			}))
			waiter := start(e, bg, "a", forbidden(t))
			gives(t, "a", executed)(a.end(t))
			gives(t, "a", shared)(waiter.end(t))
			fails(t, refused, idempotent.ErrShutdown)(e.Do(bg, "new", forbidden(t)))
			require.NoError(t, e.Shutdown(bg))
		}
	})

	promise(t, "inside an effect of an effect does not wait for itself, but for another endpoint's", func(t *testing.T) {
		outer, inner := open(t, options{}), open(t, options{})
		gives(t, "v", executed)(outer.Do(bg, "a", func(ctx context.Context) (string, error) {
			value, _, err := inner.Do(ctx, "b", func(ctx context.Context) (string, error) {
				require.ErrorIs(t, outer.Shutdown(ctx), idempotent.ErrDeadlock)
				require.NoError(t, open(t, options{}).Shutdown(ctx))
				return "v", nil
			})
			require.NoError(t, inner.Shutdown(ctx))
			return value, err
		}))
	})

	promise(t, "with the ctx of an effect that has ended waits as usual", func(t *testing.T) {
		e := open(t, options{})
		var kept context.Context
		e.Do(bg, "a", func(ctx context.Context) (string, error) { kept = ctx; return "v", nil })
		b := start(e, bg, "b", after(time.Second, returns("b", nil)))
		require.NoError(t, e.Shutdown(kept))
		gives(t, "b", executed)(b.end(t))
	})

	promise(t, "lets no effect start that waits for a slot or for OnStale", func(t *testing.T) {
		e := open(t, options{MaxConcurrent: 1, OnStale: func(context.Context, string, time.Time) error {
			time.Sleep(time.Minute)
			return nil
		}})
		e.Do(bg, "stale", returns("v", nil))
		time.Sleep(window)
		asked := start(e, bg, "stale", forbidden(t))
		busy := start(e, bg, "busy", after(time.Second, returns("b", nil)))
		queued := start(e, bg, "queued", forbidden(t))
		require.NoError(t, e.Shutdown(bg))
		gives(t, "b", executed)(busy.end(t))
		fails(t, refused, idempotent.ErrShutdown)(queued.end(t))
		fails(t, refused, idempotent.ErrShutdown)(asked.end(t))
		addsUp(t, e, 4)
	})

	promise(t, "waits for effects that their callers have left", func(t *testing.T) {
		e := open(t, options{Detach: true})
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		_, _, err := e.Do(ctx, "k", after(time.Minute, returns("v", nil)))
		require.ErrorIs(t, err, idempotent.ErrInFlight)
		require.NoError(t, e.Shutdown(bg))
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
	})
}
