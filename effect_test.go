package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestEffectContext(t *testing.T) {
	type name struct{}

	promise(t, "carries the caller's values and the key", func(t *testing.T) {
		e := open(t, options{})
		ctx := context.WithValue(bg, name{}, "caller")
		gives(t, "v", executed)(e.Do(ctx, "k", func(ctx context.Context) (string, error) {
			require.Equal(t, "caller", ctx.Value(name{}))
			key, ok := idempotent.Key[string](ctx)
			require.True(t, ok)
			require.Equal(t, "k", key)
			derived, cancel := context.WithCancel(context.WithValue(ctx, name{}, "derived"))
			defer cancel()
			key, ok = idempotent.Key[string](derived)
			require.True(t, ok)
			require.Equal(t, "k", key)
			_, ok = idempotent.Key[int](ctx)
			require.False(t, ok, "no effect with an int key is running")
			return "v", nil
		}))
		_, ok := idempotent.Key[string](ctx)
		require.False(t, ok, "outside effects there is no key")
	})

	promise(t, "carries the innermost key of each type", func(t *testing.T) {
		type id string
		e := open(t, options{})
		ids := openFor(t, idempotent.Options[id, string]{})
		_, _, err := ids.Do(bg, "id", func(ctx context.Context) (string, error) {
			value, _, err := e.Do(ctx, "outer", func(ctx context.Context) (string, error) {
				value, _, err := e.Do(ctx, "inner", func(ctx context.Context) (string, error) {
					key, _ := idempotent.Key[string](ctx)
					require.Equal(t, "inner", key)
					typed, _ := idempotent.Key[id](ctx)
					require.Equal(t, id("id"), typed)
					return "v", nil
				})
				key, _ := idempotent.Key[string](ctx)
				require.Equal(t, "outer", key)
				return value, err
			})
			return value, err
		})
		require.NoError(t, err)
	})

	promise(t, "has neither the caller's cancellation nor its deadline", func(t *testing.T) {
		for _, detach := range []bool{false, true} {
			e := open(t, options{Detach: detach})
			ctx, cancel := context.WithTimeout(bg, time.Second)
			c := start(e, ctx, "k", func(ctx context.Context) (string, error) {
				_, bounded := ctx.Deadline()
				require.False(t, bounded)
				derived, stop := context.WithCancel(ctx)
				defer stop()
				time.Sleep(time.Minute)
				require.NoError(t, ctx.Err())
				require.NoError(t, derived.Err())
				require.NoError(t, context.Cause(ctx))
				return "v", nil
			})
			time.Sleep(500 * time.Millisecond)
			cancel()
			<-c.done
			synctest.Wait()
			time.Sleep(time.Minute)
			gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		}
	})

	promise(t, "EffectTimeout puts a deadline on it, counted from the effect's start", func(t *testing.T) {
		for _, opts := range []options{{EffectTimeout: time.Second}, {EffectTimeout: time.Second, Detach: true}, {EffectTimeout: 1}} {
			e := open(t, opts)
			waitsForEnd := func(ctx context.Context) (string, error) {
				deadline, bounded := ctx.Deadline()
				require.True(t, bounded)
				require.Equal(t, opts.EffectTimeout, time.Until(deadline))
				key, _ := idempotent.Key[string](ctx)
				require.Equal(t, "k", key)
				<-ctx.Done()
				return "", ctx.Err()
			}
			leader := start(e, bg, "k", waitsForEnd)
			heir := start(e, bg, "k", waitsForEnd)
			fails(t, executed, context.DeadlineExceeded)(leader.end(t))
			require.Equal(t, opts.EffectTimeout, leader.took)
			fails(t, executed, context.DeadlineExceeded)(heir.end(t))
			require.Equal(t, 2*opts.EffectTimeout, heir.took)
		}
	})

	promise(t, "ends when the effect has ended, if it has a deadline", func(t *testing.T) {
		e := open(t, options{EffectTimeout: time.Second})
		var kept context.Context
		e.Do(bg, "k", func(ctx context.Context) (string, error) { kept = ctx; return "v", nil })
		require.ErrorIs(t, kept.Err(), context.Canceled)
	})

	promise(t, "PassCancel hands the caller's cancellation, deadline and cause on", func(t *testing.T) {
		for _, opts := range []options{{PassCancel: true}, {PassCancel: true, EffectTimeout: time.Hour}} {
			e := open(t, opts)
			ctx, cancel := context.WithCancelCause(bg)
			ctx, stop := context.WithTimeout(ctx, time.Minute)
			cause := errors.New("client hung up")
			c := start(e, ctx, "k", func(ctx context.Context) (string, error) {
				deadline, bounded := ctx.Deadline()
				require.True(t, bounded)
				require.Equal(t, time.Minute, time.Until(deadline))
				<-ctx.Done()
				require.Equal(t, context.Canceled, ctx.Err())
				return "", context.Cause(ctx)
			})
			heir := start(e, bg, "k", returns("v", nil))
			time.Sleep(time.Second)
			cancel(cause)
			fails(t, executed, cause)(c.end(t))
			gives(t, "v", executed)(heir.end(t))
			stop()
		}
	})

	promise(t, "prints as what it was made from, and the key", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "k", func(ctx context.Context) (string, error) {
			require.Equal(t, `context.Background.WithKey("k")`, fmt.Sprint(ctx))
			return "v", nil
		})
	})

	promise(t, "of a waiter that takes over is made from its own ctx", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, context.WithValue(bg, name{}, "leader"), "k", after(time.Second, returns("", errBoom)))
		heir := start(e, context.WithValue(bg, name{}, "heir"), "k", func(ctx context.Context) (string, error) {
			return ctx.Value(name{}).(string), nil
		})
		fails(t, executed, errBoom)(leader.end(t))
		gives(t, "heir", executed)(heir.end(t))
	})

	promise(t, "runs on the caller's goroutine, which stays until the effect ends", func(t *testing.T) {
		e := open(t, options{})
		ctx, cancel := context.WithCancel(bg)
		c := start(e, ctx, "k", after(time.Hour, returns("v", nil)))
		cancel()
		synctest.Wait()
		require.True(t, c.running())
		gives(t, "v", executed)(c.end(t))
		require.Equal(t, time.Hour, c.took)
	})
}

func TestDetach(t *testing.T) {
	promise(t, "the caller may leave, the effect goes on, its result is kept", func(t *testing.T) {
		e := open(t, options{Detach: true})
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		c := start(e, ctx, "k", after(time.Minute, returns("v", nil)))
		_, verdict, err := c.end(t)
		require.Equal(t, executed, verdict)
		require.ErrorIs(t, err, idempotent.ErrInFlight)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, `"k"`)
		require.Equal(t, time.Second, c.took)
		s := e.Stats()
		require.Equal(t, 1, s.InFlight)
		require.Zero(t, s.Executed+s.Failed+s.Refused, "the counters take the effect's real end")
		gives(t, "v", shared)(e.Do(bg, "k", forbidden(t)))
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		addsUp(t, e, 3)
	})

	promise(t, "the effect that was left may fail, and passes its claim on", func(t *testing.T) {
		for _, fx := range []effect{returns("", errBoom), panics("oops"), exits} {
			e := open(t, options{Detach: true})
			ctx, cancel := context.WithTimeout(bg, time.Second)
			leader := start(e, ctx, "k", after(time.Minute, fx))
			heir := start(e, bg, "k", returns("v", nil))
			fails(t, executed, idempotent.ErrInFlight, context.DeadlineExceeded)(leader.end(t))
			gives(t, "v", executed)(heir.end(t))
			require.EqualValues(t, 1, e.Stats().Failed)
			addsUp(t, e, 2)
			cancel()
		}
	})

	promise(t, "a waiter may leave, and a waiter that took over", func(t *testing.T) {
		e := open(t, options{Detach: true})
		leader := start(e, bg, "k", after(time.Second, returns("", errBoom)))
		ctx, cancel := context.WithTimeout(bg, 2*time.Second)
		defer cancel()
		heir := start(e, ctx, "k", after(time.Minute, returns("v", nil)))
		fails(t, executed, errBoom)(leader.end(t))
		fails(t, executed, idempotent.ErrInFlight, context.DeadlineExceeded)(heir.end(t))
		gives(t, "v", shared)(e.Do(bg, "k", forbidden(t)))
	})

	promise(t, "a caller that stays gets value and error as they are", func(t *testing.T) {
		e := open(t, options{Detach: true})
		gives(t, "v", executed)(e.Do(bg, "k", after(time.Second, returns("v", nil))))
		value, verdict, err := e.Do(bg, "l", after(time.Second, returns("half", errBoom)))
		require.Same(t, errBoom, err)
		require.Equal(t, executed, verdict)
		require.Equal(t, "half", value)
	})

	promise(t, "a caller whose ctx ends as the effect does gets its result", func(t *testing.T) {
		e := open(t, options{Detach: true})
		ctx := &dying{Context: bg, done: make(chan struct{}), seen: make(chan struct{})}
		gives(t, "v", executed)(e.Do(ctx, "k", func(context.Context) (string, error) {
			close(ctx.done)
			<-ctx.seen
			return "v", nil
		}))
	})
}

// dying is a context whose end is seen a little before an effect ends.
type dying struct {
	context.Context
	done, seen chan struct{}
	once       sync.Once
}

func (d *dying) Done() <-chan struct{} { return d.done }

func (d *dying) Err() error {
	select {
	case <-d.done:
		d.once.Do(func() { close(d.seen) })
		synctest.Wait() // until the effect has ended
		return context.Canceled
	default:
		return nil
	}
}
