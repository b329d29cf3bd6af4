package idempotent_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestPanic(t *testing.T) {
	promise(t, "goes on unchanged to the caller, and the key is free", func(t *testing.T) {
		e := open(t, options{})
		value := &struct{ n int }{7}
		c := start(e, bg, "k", panics(value))
		c.throws(t, value)
		require.Same(t, value, c.thrown)
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		s := e.Stats()
		require.EqualValues(t, 1, s.Failed)
		require.EqualValues(t, 1, s.Panicked)
		addsUp(t, e, 2)
	})

	promise(t, "panic(nil) is a panic", func(t *testing.T) {
		e := open(t, options{})
		c := start(e, bg, "k", panics(nil))
		<-c.done
		require.False(t, c.returned)
		require.IsType(t, new(runtime.PanicNilError), c.thrown)
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		require.EqualValues(t, 1, e.Stats().Panicked)
	})

	promise(t, "the next waiter takes over", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "k", after(time.Second, panics("oops")))
		heir := start(e, bg, "k", returns("v", nil))
		leader.throws(t, "oops")
		gives(t, "v", executed)(heir.end(t))
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
	})

	promise(t, "with ShareFailure the waiters get a PanicError, the caller the panic", func(t *testing.T) {
		e := open(t, options{ShareFailure: true})
		leader := start(e, bg, "k", after(time.Second, panics(io.ErrUnexpectedEOF)))
		waiter := start(e, bg, "k", forbidden(t))
		_, verdict, err := waiter.end(t)
		require.Equal(t, shared, verdict)
		var panicked *idempotent.PanicError
		require.ErrorAs(t, err, &panicked)
		require.Equal(t, io.ErrUnexpectedEOF, panicked.Value)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "an error that was thrown is matched")
		require.False(t, panicked.Goexit)
		require.Contains(t, string(panicked.Stack), "helpers_test.go", "the stack is the effect's")
		leader.throws(t, io.ErrUnexpectedEOF)
		addsUp(t, e, 2)
	})

	promise(t, "with Detach the caller too gets a PanicError", func(t *testing.T) {
		e := open(t, options{Detach: true})
		_, verdict, err := e.Do(bg, "k", panics("oops"))
		require.Equal(t, executed, verdict)
		var panicked *idempotent.PanicError
		require.ErrorAs(t, err, &panicked)
		require.Equal(t, "oops", panicked.Value)
		require.ErrorContains(t, err, "oops")
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		require.EqualValues(t, 1, e.Stats().Panicked)
	})

	promise(t, "with HoldPanics the key is held as by Unknown", func(t *testing.T) {
		e := open(t, options{HoldPanics: true, FailureTTL: time.Minute})
		leader := start(e, bg, "k", after(time.Second, panics("oops")))
		waiter := start(e, bg, "k", forbidden(t))
		leader.throws(t, "oops")
		held := func(verdict idempotent.Verdict, err error) {
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
			var panicked *idempotent.PanicError
			require.ErrorAs(t, err, &panicked)
			require.Equal(t, "oops", panicked.Value)
		}
		_, verdict, err := waiter.end(t)
		require.Equal(t, shared, verdict)
		held(verdict, err)
		_, verdict, err = e.Do(bg, "k", forbidden(t))
		require.Equal(t, replayed, verdict)
		held(verdict, err)
		require.Zero(t, e.Stats().Panicked, "the call kept a result")
		addsUp(t, e, 3)

		require.True(t, e.Resolve("k", "settled"))
		gives(t, "settled", replayed)(e.Do(bg, "k", forbidden(t)))
	})
}

func TestGoexit(t *testing.T) {
	promise(t, "keeps nothing, and the next waiter runs", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "k", after(time.Second, exits))
		first := start(e, bg, "k", returns("v", nil))
		second := start(e, bg, "k", forbidden(t))
		leader.throws(t, nil)
		gives(t, "v", executed)(first.end(t))
		gives(t, "v", shared)(second.end(t))
		require.EqualValues(t, 1, e.Stats().Panicked)
		addsUp(t, e, 3)
	})

	promise(t, "with ShareFailure the waiters get a PanicError that says Goexit", func(t *testing.T) {
		e := open(t, options{ShareFailure: true})
		leader := start(e, bg, "k", after(time.Second, exits))
		for _, waiter := range []*call{start(e, bg, "k", forbidden(t)), start(e, bg, "k", forbidden(t))} {
			_, verdict, err := waiter.end(t)
			require.Equal(t, shared, verdict)
			isGoexit(t, err)
		}
		leader.throws(t, nil)
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
	})

	promise(t, "with Detach the caller gets a PanicError that says Goexit", func(t *testing.T) {
		e := open(t, options{Detach: true})
		_, verdict, err := e.Do(bg, "k", exits)
		require.Equal(t, executed, verdict)
		isGoexit(t, err)
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
	})

	promise(t, "with HoldPanics the key is held", func(t *testing.T) {
		e := open(t, options{HoldPanics: true})
		start(e, bg, "k", exits).throws(t, nil)
		_, verdict, err := e.Do(bg, "k", forbidden(t))
		require.Equal(t, replayed, verdict)
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		isGoexit(t, err)
	})

	promise(t, "while waiters leave loses no turn", func(t *testing.T) {
		for range 100 {
			e := open(t, options{})
			leader := start(e, bg, "k", after(time.Second, exits))
			ctx, cancel := context.WithTimeout(bg, time.Second)
			leaving := []*call{start(e, ctx, "k", exits), start(e, ctx, "k", exits)}
			stays := start(e, bg, "k", returns("v", nil))
			leader.throws(t, nil)
			gives(t, "v", executed)(stays.end(t))
			for _, c := range leaving {
				<-c.done
				if c.returned {
					fails(t, refused, idempotent.ErrInFlight, context.DeadlineExceeded)(c.end(t))
				} else {
					require.Nil(t, c.thrown)
				}
			}
			cancel()
			addsUp(t, e, 4)
		}
	})
}

func isGoexit(t *testing.T, err error) {
	t.Helper()
	var panicked *idempotent.PanicError
	require.ErrorAs(t, err, &panicked)
	require.True(t, panicked.Goexit)
	require.Nil(t, panicked.Value)
	require.NoError(t, errors.Unwrap(panicked))
	require.ErrorContains(t, err, "Goexit")
}

func TestAnEffectThatIsNil(t *testing.T) {
	promise(t, "panics like any effect, and leaves the key free", func(t *testing.T) {
		e := open(t, options{})
		c := start(e, bg, "k", nil)
		<-c.done
		require.False(t, c.returned)
		require.NotNil(t, c.thrown)
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
	})
}
