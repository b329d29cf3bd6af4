package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestWaiting(t *testing.T) {
	promise(t, "one call executes, the others share, later ones replay", func(t *testing.T) {
		e := open(t, options{})
		var runs atomic.Int64
		fx := counted(&runs, after(time.Second, returns("v", nil)))
		verdicts := make(map[idempotent.Verdict]int)
		var calls []*call
		for range 100 {
			calls = append(calls, launch(e, bg, request{Key: "k"}, fx))
		}
		for _, c := range calls {
			value, verdict, err := c.end(t)
			require.NoError(t, err)
			require.Equal(t, "v", value)
			verdicts[verdict]++
		}
		require.Equal(t, map[idempotent.Verdict]int{executed: 1, shared: 99}, verdicts)
		gives(t, "v", replayed)(e.Do(bg, "k", fx))
		require.EqualValues(t, 1, runs.Load())
		addsUp(t, e, 101)
	})

	promise(t, "a leader whose ctx is cancelled still runs for its waiters", func(t *testing.T) {
		e := open(t, options{})
		ctx, cancel := context.WithCancel(bg)
		leader := start(e, ctx, "k", after(time.Second, returns("v", nil)))
		waiter := start(e, bg, "k", forbidden(t))
		cancel()
		gives(t, "v", shared)(waiter.end(t))
		gives(t, "v", executed)(leader.end(t))
	})

	promise(t, "one waiter gives up, and all who come later still share", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "k", after(time.Second, returns("v", nil)))
		ctx, cancel := context.WithCancel(bg)
		waiter := start(e, ctx, "k", forbidden(t))
		cancel()
		fails(t, refused, idempotent.ErrInFlight, context.Canceled)(waiter.end(t))
		var late []*call
		for range 20 {
			late = append(late, start(e, bg, "k", forbidden(t)))
		}
		for _, c := range late {
			gives(t, "v", shared)(c.end(t))
		}
		gives(t, "v", executed)(leader.end(t))
	})

	promise(t, "a waiter is back at its own deadline, however long the effect takes", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "k", after(time.Hour, returns("v", nil)))
		ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
		defer cancel()
		begun := time.Now()
		fails(t, refused, idempotent.ErrInFlight, context.DeadlineExceeded)(e.Do(ctx, "k", forbidden(t)))
		require.Equal(t, 10*time.Millisecond, time.Since(begun))
		require.Len(t, e.InFlight(), 1)
		require.Zero(t, e.Stats().Waiting)
		gives(t, "v", executed)(leader.end(t))
	})

	promise(t, "the error of a waiter that gave up has the cause and names the key", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "order\n7", after(time.Second, returns("v", nil)))
		ctx, cancel := context.WithCancelCause(bg)
		cause := errors.New("client hung up")
		waiter := start(e, ctx, "order\n7", forbidden(t))
		cancel(cause)
		_, _, err := waiter.end(t)
		require.ErrorIs(t, err, idempotent.ErrInFlight)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, `"order\n7"`)
		<-leader.done
	})

	promise(t, "NoWait is refused at once while an attempt runs, and only then", func(t *testing.T) {
		e := open(t, options{})
		req := request{Key: "k", NoWait: true}
		leader := startRequest(e, bg, req, after(time.Second, returns("v", nil)))
		begun := time.Now()
		fails(t, refused, idempotent.ErrInFlight)(e.Handle(bg, req, forbidden(t)))
		require.Zero(t, time.Since(begun))
		gives(t, "v", executed)(leader.end(t))
		gives(t, "v", replayed)(e.Handle(bg, req, forbidden(t)))
	})

	promise(t, "one key's hanging effect holds up no other key", func(t *testing.T) {
		e := open(t, options{})
		release := make(chan struct{})
		hanging := start(e, bg, "hanging", func(context.Context) (string, error) { <-release; return "v", nil })
		for i := range 1000 {
			gives(t, "w", executed)(e.Do(bg, fmt.Sprint(i), returns("w", nil)))
		}
		require.True(t, hanging.running())
		close(release)
		gives(t, "v", executed)(hanging.end(t))
	})

	promise(t, "many attempts at once in one shard do not get mixed up", func(t *testing.T) {
		const keys = 100
		e := open(t, options{})
		e.PutAllInOnePlace()
		var leaders, waiters []*call
		for i := range keys {
			key, takes := fmt.Sprint(i), time.Duration(1+(i*37)%keys)*time.Second
			leaders = append(leaders, start(e, bg, key, after(takes, returns(key, nil))))
			waiters = append(waiters, start(e, bg, key, forbidden(t)))
		}
		for running := keys; running > 0; running-- {
			require.Len(t, e.InFlight(), running)
			require.Equal(t, running, e.Stats().Waiting)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		for i := range keys {
			gives(t, fmt.Sprint(i), executed)(leaders[i].end(t))
			gives(t, fmt.Sprint(i), shared)(waiters[i].end(t))
			gives(t, fmt.Sprint(i), replayed)(e.Do(bg, fmt.Sprint(i), forbidden(t)))
		}
		addsUp(t, e, 3*keys)
	})

	promise(t, "giving up at the instant the attempt ends disturbs nobody", func(t *testing.T) {
		for range 200 {
			e := open(t, options{})
			leader := launch(e, bg, request{Key: "k"}, after(time.Second, returns("v", nil)))
			synctest.Wait()
			var hasty, patient []*call
			for range 3 {
				ctx, cancel := context.WithTimeout(bg, time.Second)
				defer cancel()
				hasty = append(hasty, launch(e, ctx, request{Key: "k"}, forbidden(t)))
				patient = append(patient, launch(e, bg, request{Key: "k"}, forbidden(t)))
			}
			gives(t, "v", executed)(leader.end(t))
			for i := range hasty {
				gives(t, "v", shared)(patient[i].end(t))
				if value, verdict, err := hasty[i].end(t); err == nil {
					gives(t, "v", shared)(value, verdict, err)
				} else {
					fails(t, refused, idempotent.ErrInFlight, context.DeadlineExceeded)(value, verdict, err)
				}
			}
			addsUp(t, e, 7)
		}
	})
}

// On real cores: what the bubble's order of events would never show.
func TestWaitersThatComeAndGoWhileAttemptsEnd(t *testing.T) {
	e := open(t, options{})
	const callers, calls, keys = 8, 2000, 5
	var overlap [keys]atomic.Int64
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 1))
			for range calls {
				key := rng.IntN(keys)
				ctx, cancel := bg, context.CancelFunc(func() {})
				if rng.IntN(2) == 0 {
					ctx, cancel = context.WithTimeout(bg, time.Duration(rng.IntN(20))*time.Microsecond)
				}
				_, verdict, err := e.Do(ctx, fmt.Sprint(key), func(context.Context) (string, error) {
					if overlap[key].Add(1) != 1 {
						t.Error("two attempts for one key at one time")
					}
					defer overlap[key].Add(-1)
					for range rng.IntN(100) {
						_ = rng.Uint64()
					}
					return "", errBoom
				})
				cancel()
				if !errors.Is(err, errBoom) && ctx.Err() == nil {
					t.Errorf("verdict %v, error %v, though the ctx lives", verdict, err)
				}
			}
		})
	}
	wg.Wait()
	addsUp(t, e, callers*calls)
	require.Zero(t, e.Stats().Retained)
}
