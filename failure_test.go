package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestFailure(t *testing.T) {
	promise(t, "goes to its own caller as it is, and is never kept", func(t *testing.T) {
		e := open(t, options{})
		var runs atomic.Int64
		value, verdict, err := e.Do(bg, "k", counted(&runs, returns("half", errBoom)))
		require.Same(t, errBoom, err)
		require.Equal(t, executed, verdict)
		require.Equal(t, "half", value)
		require.Zero(t, e.Stats().Retained)
		gives(t, "v", executed)(e.Do(bg, "k", counted(&runs, returns("v", nil))))
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		require.EqualValues(t, 2, runs.Load())
		addsUp(t, e, 3)
	})

	promise(t, "leaves the key free by the time the call has returned", func(t *testing.T) {
		e := open(t, options{})
		req := request{Key: "k", NoWait: true}
		for range 10 {
			fails(t, executed, errBoom)(e.Handle(bg, req, returns("", errBoom)))
			require.Empty(t, e.InFlight())
		}
	})

	promise(t, "passes the claim to the longest waiter, who runs its own effect", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "k", after(time.Second, returns("", errBoom)))
		first := start(e, bg, "k", after(time.Second, returns("first", nil)))
		second := start(e, bg, "k", forbidden(t))
		fails(t, executed, errBoom)(leader.end(t))
		require.True(t, first.running())
		gives(t, "first", executed)(first.end(t))
		gives(t, "first", shared)(second.end(t))
		addsUp(t, e, 3)
	})

	promise(t, "takes the waiters in the order in which they came", func(t *testing.T) {
		e := open(t, options{})
		var order []int // one effect runs at a time
		var calls []*call
		for i := range 50 {
			calls = append(calls, start(e, bg, "k", after(time.Second, func(context.Context) (string, error) {
				order = append(order, i)
				return "", errBoom
			})))
		}
		for i, c := range calls {
			fails(t, executed, errBoom)(c.end(t))
			require.Equal(t, time.Duration(i+1)*time.Second, c.took)
		}
		require.True(t, slices.IsSorted(order))
		require.Len(t, order, 50)
	})

	promise(t, "passes over waiters that have left", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "k", after(time.Minute, returns("", errBoom)))
		var calls []*call
		for i := range 9 {
			ctx := bg
			if i%3 != 2 { // first, middle and last of the line among them
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(bg, time.Duration(10-i)*time.Second)
				defer cancel()
			}
			calls = append(calls, start(e, ctx, "k", returns("", errBoom)))
		}
		fails(t, executed, errBoom)(leader.end(t))
		for i, c := range calls {
			if i%3 == 2 {
				fails(t, executed, errBoom)(c.end(t))
			} else {
				fails(t, refused, idempotent.ErrInFlight, context.DeadlineExceeded)(c.end(t))
			}
		}
		addsUp(t, e, 10)
	})

	promise(t, "is not lost to a waiter that gives up at that very instant", func(t *testing.T) {
		for range 200 {
			e := open(t, options{})
			leader := start(e, bg, "k", after(time.Second, returns("", errBoom)))
			ctx, cancel := context.WithTimeout(bg, time.Second)
			hasty := start(e, ctx, "k", returns("hasty", errBoom))
			patient := start(e, bg, "k", returns("patient", nil))
			fails(t, executed, errBoom)(leader.end(t))
			gives(t, "patient", executed)(patient.end(t))
			_, verdict, err := hasty.end(t)
			if verdict == refused {
				require.ErrorIs(t, err, idempotent.ErrInFlight)
				require.ErrorIs(t, err, context.DeadlineExceeded)
			} else {
				require.Equal(t, executed, verdict)
				require.Equal(t, errBoom, err)
			}
			cancel()
			addsUp(t, e, 3)
		}
	})

	promise(t, "wakes one waiter, not the herd", func(t *testing.T) {
		const waiters = 1000
		e := open(t, options{})
		fx := after(time.Second, returns("", errBoom))
		leader := start(e, bg, "k", fx)
		var looks atomic.Int64 // a call that waits looks for its ctx's end, and once more after each wake-up that was for nothing
		var wg sync.WaitGroup
		var endings atomic.Int64
		for range waiters {
			wg.Go(func() {
				_, verdict, err := e.Do(watched{bg, &looks}, "k", fx)
				if verdict == executed && errors.Is(err, errBoom) {
					endings.Add(1)
				}
			})
		}
		synctest.Wait()
		require.Equal(t, waiters, e.Stats().Waiting)
		require.EqualValues(t, waiters, looks.Load())
		for failed := range waiters {
			require.Equal(t, waiters-failed, e.Stats().Waiting)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		wg.Wait()
		require.EqualValues(t, waiters, looks.Load(), "each waiter was woken once, for its own turn")
		require.EqualValues(t, waiters, endings.Load())
		fails(t, executed, errBoom)(leader.end(t))
		require.EqualValues(t, waiters+1, e.Stats().Failed)
	})
}

// watched counts how often somebody asks for the ctx's end.
type watched struct {
	context.Context
	looks *atomic.Int64
}

func (w watched) Done() <-chan struct{} {
	w.looks.Add(1)
	return w.Context.Done()
}

func TestShareFailure(t *testing.T) {
	promise(t, "all who waited get that very error, and nobody tries again", func(t *testing.T) {
		e := open(t, options{ShareFailure: true})
		var runs atomic.Int64
		fx := counted(&runs, after(time.Second, returns("half", errBoom)))
		leader := start(e, bg, "k", fx)
		var waiters []*call
		for range 5 {
			waiters = append(waiters, start(e, bg, "k", fx))
		}
		for _, w := range waiters {
			value, verdict, err := w.end(t)
			require.Same(t, errBoom, err)
			require.Equal(t, shared, verdict)
			require.Empty(t, value)
		}
		fails(t, executed, errBoom)(leader.end(t))
		require.EqualValues(t, 1, runs.Load())
		addsUp(t, e, 6)
	})

	promise(t, "who comes after the failure runs", func(t *testing.T) {
		e := open(t, options{ShareFailure: true})
		fails(t, executed, errBoom)(e.Do(bg, "k", returns("", errBoom)))
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
	})
}

func TestPermanent(t *testing.T) {
	refusal := errors.New("card declined")

	promise(t, "the error and the value are replayed as they are, for FailureTTL", func(t *testing.T) {
		e := open(t, options{FailureTTL: time.Minute})
		marked := idempotent.Permanent(refusal)
		value, verdict, err := e.Do(bg, "k", returns("details", marked))
		require.Equal(t, executed, verdict)
		require.Equal(t, "details", value)
		require.Equal(t, marked, err)
		time.Sleep(time.Minute - 1)
		value, verdict, err = e.Do(bg, "k", forbidden(t))
		require.Equal(t, replayed, verdict)
		require.Equal(t, "details", value)
		require.Equal(t, marked, err)
		time.Sleep(time.Nanosecond)
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		require.EqualValues(t, 2, e.Stats().Executed)
	})

	promise(t, "FailureTTL 0 is the window that a success would have", func(t *testing.T) {
		e := open(t, options{})
		fx := returns("", idempotent.Permanent(refusal))
		e.Do(bg, "k", fx)
		e.Handle(bg, request{Key: "short", TTL: time.Minute}, fx)
		time.Sleep(time.Minute)
		gives(t, "v", executed)(e.Do(bg, "short", returns("v", nil)))
		time.Sleep(window - time.Minute - 1)
		fails(t, replayed, refusal)(e.Do(bg, "k", forbidden(t)))
		time.Sleep(time.Nanosecond)
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
	})

	promise(t, "the mark counts anywhere in the error chain", func(t *testing.T) {
		e := open(t, options{})
		for i, err := range []error{
			fmt.Errorf("charge: %w", idempotent.Permanent(refusal)),
			errors.Join(errBoom, idempotent.Permanent(refusal)),
			fmt.Errorf("%w and %w", errBoom, fmt.Errorf("inner: %w", idempotent.Permanent(refusal))),
		} {
			key := fmt.Sprint(i)
			fails(t, executed, refusal)(e.Do(bg, key, returns("", err)))
			_, verdict, got := e.Do(bg, key, forbidden(t))
			require.Equal(t, replayed, verdict)
			require.Equal(t, err, got)
		}
	})

	promise(t, "waiters share it and do not try again", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "k", after(time.Second, returns("details", idempotent.Permanent(refusal))))
		waiter := start(e, bg, "k", forbidden(t))
		fails(t, shared, refusal)(waiter.end(t))
		require.Equal(t, "details", waiter.value)
		fails(t, executed, refusal)(leader.end(t))
	})

	t.Run("it unwraps to the error, keeps its text, and nil stays nil", func(t *testing.T) {
		path := &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}
		err := idempotent.Permanent(path)
		require.Equal(t, error(path), errors.Unwrap(err))
		require.ErrorIs(t, err, fs.ErrNotExist)
		var as *fs.PathError
		require.ErrorAs(t, err, &as)
		require.Equal(t, path.Error(), err.Error())
		require.NotErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		require.NoError(t, idempotent.Permanent(nil))
	})
}

func TestUnknown(t *testing.T) {
	timeout := errors.New("no answer from the bank")

	promise(t, "holds the key until the end of FailureTTL", func(t *testing.T) {
		e := open(t, options{FailureTTL: time.Minute})
		fails(t, executed, timeout, idempotent.ErrOutcomeUnknown)(e.Do(bg, "k", returns("half", idempotent.Unknown(timeout))))
		time.Sleep(time.Minute - 1)
		value, verdict, err := e.Do(bg, "k", forbidden(t))
		fails(t, replayed, timeout, idempotent.ErrOutcomeUnknown)(value, verdict, err)
		require.Equal(t, "half", value)
		time.Sleep(time.Nanosecond)
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
	})

	promise(t, "Resolve settles it as done, with a value and a new window", func(t *testing.T) {
		e := open(t, options{FailureTTL: time.Minute})
		e.Do(bg, "k", returns("", idempotent.Unknown(timeout)))
		time.Sleep(30 * time.Second)
		require.True(t, e.Resolve("k", "settled"))
		gives(t, "settled", replayed)(e.Do(bg, "k", forbidden(t)))
		require.False(t, e.Resolve("k", "again"), "it is settled")
		time.Sleep(window - 1)
		gives(t, "settled", replayed)(e.Do(bg, "k", forbidden(t)))
		time.Sleep(time.Nanosecond)
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
	})

	promise(t, "Forget lets the effect run again", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "k", returns("", idempotent.Unknown(timeout)))
		require.True(t, e.Forget("k"))
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
	})

	promise(t, "waiters share it and do not try again", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "k", after(time.Second, returns("", idempotent.Unknown(timeout))))
		waiter := start(e, bg, "k", forbidden(t))
		fails(t, shared, timeout, idempotent.ErrOutcomeUnknown)(waiter.end(t))
		fails(t, executed, timeout, idempotent.ErrOutcomeUnknown)(leader.end(t))
	})

	promise(t, "the mark counts anywhere in the chain, and outweighs Permanent", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "k", returns("", fmt.Errorf("charge: %w", errors.Join(idempotent.Permanent(errBoom), idempotent.Unknown(timeout)))))
		fails(t, replayed, errBoom, timeout, idempotent.ErrOutcomeUnknown)(e.Do(bg, "k", forbidden(t)))
		require.True(t, e.Resolve("k", "v"))
	})

	t.Run("it unwraps to the error and matches ErrOutcomeUnknown, and nil stays nil", func(t *testing.T) {
		path := &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}
		err := idempotent.Unknown(path)
		require.Equal(t, error(path), errors.Unwrap(err))
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		var as *fs.PathError
		require.ErrorAs(t, err, &as)
		require.ErrorContains(t, err, path.Error())
		require.NoError(t, idempotent.Unknown(nil))
	})
}

func TestResolve(t *testing.T) {
	promise(t, "settles only what is unknown, and changes nothing else", func(t *testing.T) {
		e := open(t, options{})
		require.False(t, e.Resolve("never seen", "v"))
		e.Do(bg, "done", returns("v", nil))
		require.False(t, e.Resolve("done", "other"))
		gives(t, "v", replayed)(e.Do(bg, "done", forbidden(t)))
		e.Do(bg, "permanent", returns("", idempotent.Permanent(errBoom)))
		require.False(t, e.Resolve("permanent", "other"))
		fails(t, replayed, errBoom)(e.Do(bg, "permanent", forbidden(t)))

		running := start(e, bg, "running", after(time.Second, returns("v", nil)))
		require.False(t, e.Resolve("running", "other"))
		gives(t, "v", executed)(running.end(t))
		gives(t, "v", replayed)(e.Do(bg, "running", forbidden(t)))

		e.Do(bg, "late", returns("", idempotent.Unknown(errBoom)))
		time.Sleep(window)
		require.False(t, e.Resolve("late", "v"))
		require.Zero(t, e.Stats().Retained)
	})

	promise(t, "keeps the fingerprint", func(t *testing.T) {
		e := open(t, options{})
		e.Handle(bg, request{Key: "k", Fingerprint: "a"}, returns("", idempotent.Unknown(errBoom)))
		require.True(t, e.Resolve("k", "v"))
		fails(t, refused, idempotent.ErrMismatch)(e.Handle(bg, request{Key: "k", Fingerprint: "b"}, forbidden(t)))
		gives(t, "v", replayed)(e.Handle(bg, request{Key: "k", Fingerprint: "a"}, forbidden(t)))
	})
}
