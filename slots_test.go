package idempotent_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestMaxConcurrent(t *testing.T) {
	promise(t, "no more effects run at one time, over all keys", func(t *testing.T) {
		e := open(t, options{MaxConcurrent: 3})
		var running, most atomic.Int64
		var calls []*call
		begun := time.Now()
		for i := range 30 {
			calls = append(calls, launch(e, bg, request{Key: fmt.Sprint(i)}, func(context.Context) (string, error) {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(time.Second)
				running.Add(-1)
				return "v", nil
			}))
		}
		for _, c := range calls {
			gives(t, "v", executed)(c.end(t))
		}
		require.EqualValues(t, 3, most.Load())
		require.Equal(t, 10*time.Second, time.Since(begun), "and no fewer")
	})

	promise(t, "a call that waits for a slot holds its claim, and duplicates wait", func(t *testing.T) {
		e := open(t, options{MaxConcurrent: 1})
		busy := start(e, bg, "busy", after(time.Second, returns("v", nil)))
		queued := start(e, bg, "k", returns("w", nil))
		duplicate := start(e, bg, "k", forbidden(t))
		s := e.Stats()
		require.Equal(t, 2, s.InFlight)
		require.Equal(t, 1, s.Waiting)
		gives(t, "v", executed)(busy.end(t))
		gives(t, "w", executed)(queued.end(t))
		gives(t, "w", shared)(duplicate.end(t))
	})

	promise(t, "giving up the wait for a slot is Refused and passes the claim on", func(t *testing.T) {
		e := open(t, options{MaxConcurrent: 1})
		busy := start(e, bg, "busy", after(time.Minute, returns("v", nil)))
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		queued := start(e, ctx, "k", forbidden(t))
		duplicate := start(e, bg, "k", returns("w", nil))
		_, verdict, err := queued.end(t)
		require.Equal(t, refused, verdict)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, `"k"`)
		require.Equal(t, time.Second, queued.took)
		gives(t, "v", executed)(busy.end(t))
		gives(t, "w", executed)(duplicate.end(t))
		addsUp(t, e, 3)
	})

	promise(t, "replays, waiters and NoWait take no slot", func(t *testing.T) {
		e := open(t, options{MaxConcurrent: 1})
		e.Do(bg, "done", returns("v", nil))
		busy := start(e, bg, "busy", after(time.Second, returns("w", nil)))
		gives(t, "v", replayed)(e.Do(bg, "done", forbidden(t)))
		begun := time.Now()
		fails(t, refused, idempotent.ErrInFlight)(e.Handle(bg, request{Key: "new", NoWait: true}, forbidden(t)))
		require.Zero(t, time.Since(begun))
		gives(t, "w", shared)(e.Do(bg, "busy", forbidden(t)))
		<-busy.done
		gives(t, "x", executed)(e.Handle(bg, request{Key: "new", NoWait: true}, returns("x", nil)))
	})

	promise(t, "every end of an effect gives its slot back", func(t *testing.T) {
		for _, opts := range []options{{}, {ShareFailure: true}, {HoldPanics: true}, {Detach: true}} {
			opts.MaxConcurrent = 1
			e := open(t, opts)
			for i, fx := range []effect{
				returns("v", nil), returns("", errBoom), returns("", idempotent.Permanent(errBoom)),
				panics("oops"), exits, returns("v", nil),
			} {
				<-start(e, bg, fmt.Sprint(i), fx).done
			}
			req := request{Key: "last", NoWait: true}
			gives(t, "v", executed)(e.Handle(bg, req, returns("v", nil)))
		}
	})

	promise(t, "a claim that passes on takes a slot of its own", func(t *testing.T) {
		e := open(t, options{MaxConcurrent: 1})
		var calls []*call
		for i := range 10 {
			calls = append(calls, start(e, bg, "k", after(time.Second, returns("", errBoom))),
				start(e, bg, fmt.Sprint(i), after(time.Second, returns("v", nil))))
		}
		for i, c := range calls {
			if i%2 == 0 {
				fails(t, executed, errBoom)(c.end(t))
			} else {
				gives(t, "v", executed)(c.end(t))
			}
		}
	})

	promise(t, "a nested call that would wait for a slot its callers hold is refused", func(t *testing.T) {
		e := open(t, options{MaxConcurrent: 1})
		fails(t, executed, idempotent.ErrDeadlock)(e.Do(bg, "outer", calls(e, "inner", forbidden(t))))
		addsUp(t, e, 2)

		e = open(t, options{MaxConcurrent: 2})
		a := start(e, bg, "a", after(time.Second, calls(e, "x", returns("v", nil))))
		b := start(e, bg, "b", after(2*time.Second, calls(e, "y", forbidden(t))))
		fails(t, executed, idempotent.ErrDeadlock)(b.end(t))
		gives(t, "v", executed)(a.end(t))
	})

	promise(t, "a nested call waits for a slot that will come free", func(t *testing.T) {
		e := open(t, options{MaxConcurrent: 2})
		busy := start(e, bg, "busy", after(time.Second, returns("v", nil)))
		gives(t, "w", executed)(e.Do(bg, "outer", calls(e, "inner", returns("w", nil))))
		gives(t, "v", executed)(busy.end(t))
	})

	promise(t, "a circle through slots and keys is refused", func(t *testing.T) {
		e := open(t, options{MaxConcurrent: 1})
		outer := start(e, bg, "outer", after(time.Second, calls(e, "queued", forbidden(t))))
		queued := start(e, bg, "queued", returns("v", nil)) // waits for outer's slot
		fails(t, executed, idempotent.ErrDeadlock)(outer.end(t))
		gives(t, "v", executed)(queued.end(t))
	})
}
