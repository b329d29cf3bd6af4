package idempotent_test

import (
	"context"
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

// calls is an effect that calls e for key and returns what it gets.
func calls(e *endpoint, key string, fx effect) effect {
	return func(ctx context.Context) (string, error) {
		value, _, err := e.Do(ctx, key, fx)
		return value, err
	}
}

func TestNestedCalls(t *testing.T) {
	promise(t, "an effect may call the endpoint for other keys", func(t *testing.T) {
		e := open(t, options{})
		gives(t, "v", executed)(e.Do(bg, "outer", calls(e, "inner", returns("v", nil))))
		gives(t, "v", replayed)(e.Do(bg, "inner", forbidden(t)))
		gives(t, "v", replayed)(e.Do(bg, "outer", forbidden(t)))
	})

	promise(t, "a call for its own key is refused", func(t *testing.T) {
		e := open(t, options{})
		_, verdict, err := e.Do(bg, "k", calls(e, "k", forbidden(t)))
		require.Equal(t, executed, verdict)
		require.ErrorIs(t, err, idempotent.ErrDeadlock)
		require.ErrorContains(t, err, `"k"`)
		addsUp(t, e, 2)
	})

	promise(t, "a call for its own key through others is refused, at any depth", func(t *testing.T) {
		e := open(t, options{})
		fx := calls(e, "0", forbidden(t))
		for depth := 20; depth > 0; depth-- {
			fx = calls(e, fmt.Sprint(depth), fx)
		}
		fails(t, executed, idempotent.ErrDeadlock)(e.Do(bg, "0", fx))
		addsUp(t, e, 22)
	})

	promise(t, "a circle through other callers is refused, whoever closes it", func(t *testing.T) {
		e := open(t, options{})
		var ring []*call
		for i := range 5 {
			ring = append(ring, start(e, bg, fmt.Sprint(i), after(time.Duration(i+1)*time.Second, calls(e, fmt.Sprint((i+1)%5), returns("v", nil)))))
		}
		for i, c := range ring { // 4 is the last to call; its refusal fails the others' attempts, who then run
			value, _, err := c.end(t)
			if i == 4 {
				require.ErrorIs(t, err, idempotent.ErrDeadlock)
			} else {
				require.NoError(t, err)
				require.Equal(t, "v", value)
			}
		}
		require.Zero(t, e.Stats().InFlight)
	})

	promise(t, "a circle through two endpoints is refused", func(t *testing.T) {
		a := open(t, options{})
		b := openFor(t, idempotent.Options[int, string]{})
		_, _, err := a.Do(bg, "k", func(ctx context.Context) (string, error) {
			value, _, err := b.Do(ctx, 7, calls(a, "k", forbidden(t)))
			return value, err
		})
		require.ErrorIs(t, err, idempotent.ErrDeadlock)
		require.Zero(t, b.Stats().InFlight)
	})

	promise(t, "a circle that a hand-over makes is refused", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "x", after(time.Second, returns("", errBoom)))
		heir := start(e, bg, "x", after(time.Second, calls(e, "y", forbidden(t))))
		waits := start(e, bg, "y", calls(e, "x", returns("x", nil)))
		fails(t, executed, errBoom)(leader.end(t))
		fails(t, executed, idempotent.ErrDeadlock)(heir.end(t)) // which passes x on to y's call
		gives(t, "x", executed)(waits.end(t))
	})

	promise(t, "with Detach a circle is refused as well", func(t *testing.T) {
		e := open(t, options{Detach: true})
		fails(t, executed, idempotent.ErrDeadlock)(e.Do(bg, "k", calls(e, "l", calls(e, "k", forbidden(t)))))
	})

	promise(t, "a wait that is no circle is not refused", func(t *testing.T) {
		e := open(t, options{})
		inner := start(e, bg, "inner", after(time.Second, returns("v", nil)))
		a := start(e, bg, "a", calls(e, "inner", forbidden(t)))
		b := start(e, bg, "b", calls(e, "inner", forbidden(t)))
		gives(t, "v", executed)(inner.end(t))
		gives(t, "v", executed)(a.end(t))
		gives(t, "v", executed)(b.end(t))
	})

	promise(t, "a nested call that has given up closes no circle", func(t *testing.T) {
		e := open(t, options{})
		a := start(e, bg, "a", after(time.Second, func(ctx context.Context) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			fails(t, refused, idempotent.ErrInFlight, context.DeadlineExceeded)(e.Do(ctx, "b", forbidden(t)))
			time.Sleep(time.Minute)
			return "a", nil
		}))
		b := start(e, bg, "b", after(3*time.Second, calls(e, "a", forbidden(t))))
		gives(t, "a", executed)(b.end(t))
		<-a.done
	})

	promise(t, "the ctx of an attempt that has ended closes no circle", func(t *testing.T) {
		e := open(t, options{})
		var kept context.Context
		fails(t, executed, errBoom)(e.Do(bg, "k", func(ctx context.Context) (string, error) {
			kept = ctx
			return "", errBoom
		}))
		gives(t, "v", executed)(e.Do(kept, "k", returns("v", nil)))
		leader := start(e, bg, "l", after(time.Second, returns("w", nil)))
		gives(t, "w", shared)(e.Do(kept, "l", forbidden(t)))
		<-leader.done
	})

	promise(t, "what an effect leaves running is no circle once it has ended", func(t *testing.T) {
		e := open(t, options{})
		var left *call
		gives(t, "v", executed)(e.Do(bg, "a", func(ctx context.Context) (string, error) {
			left = launch(e, ctx, request{Key: "b"}, after(time.Second, calls(e, "c", returns("w", nil))))
			synctest.Wait()
			return "v", nil
		}))
		require.True(t, e.Forget("a"))
		c := start(e, bg, "a", after(time.Minute, returns("v", nil)))
		gives(t, "v", shared)(e.Do(bg, "a", forbidden(t)))
		gives(t, "w", executed)(left.end(t))
		<-c.done
	})

	promise(t, "what a failed attempt has left running is no circle for its heir", func(t *testing.T) {
		e := open(t, options{})
		var left *call
		failing := start(e, bg, "a", func(ctx context.Context) (string, error) {
			left = launch(e, ctx, request{Key: "b"}, after(2*time.Second, calls(e, "a", forbidden(t))))
			time.Sleep(time.Second)
			return "", errBoom
		})
		heir := start(e, bg, "a", after(time.Minute, returns("v", nil)))
		fails(t, executed, errBoom)(failing.end(t))
		gives(t, "v", executed)(left.end(t))
		gives(t, "v", executed)(heir.end(t))
	})

	t.Run("parallel nested calls are checked in no time", func(t *testing.T) {
		const depth = 60 // 2^60 paths lead down
		e := openFor(t, idempotent.Options[int, int]{})
		var ready [depth + 2]chan struct{} // closed when a level's second call may come
		for i := range ready {
			ready[i] = make(chan struct{})
		}
		release := make(chan struct{})
		var effect func(level int) func(context.Context) (int, error)
		effect = func(level int) func(context.Context) (int, error) {
			return func(ctx context.Context) (int, error) {
				if level == depth {
					close(ready[level])
					<-release
					return 1, nil
				}
				var both sync.WaitGroup
				defer both.Wait()
				both.Go(func() { e.Do(ctx, level+1, effect(level+1)) })
				<-ready[level+1]
				both.Go(func() { e.Do(ctx, level+1, nil) })
				waiting := depth - level
				require.True(t, eventually(func() bool { return e.Stats().Waiting == waiting }))
				close(ready[level])
				return 1, nil
			}
		}
		done := make(chan struct{})
		go func() { defer close(done); e.Do(bg, 1, effect(1)) }()
		select {
		case <-ready[1]:
		case <-time.After(20 * time.Second):
			t.Fatal("the check for circles hangs")
		}
		close(release)
		<-done
	})
}

// On real cores: random pairs of nested, different keys. Where a circle would
// come about one call is refused; nothing hangs.
func TestRandomNestedPairsNeverHang(t *testing.T) {
	for _, opts := range []options{{}, {Detach: true}, {MaxConcurrent: 3}} {
		t.Run(fmt.Sprintf("Detach %v, MaxConcurrent %d", opts.Detach, opts.MaxConcurrent), func(t *testing.T) {
			const pairs, callers, keys = 10_000, 16, 12
			opts.TTL = time.Nanosecond
			e := open(t, opts)
			var wg sync.WaitGroup
			for n := range callers {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(n), 7))
					for range pairs / callers {
						outer := rng.IntN(keys)
						inner := (outer + 1 + rng.IntN(keys-1)) % keys
						e.Do(bg, fmt.Sprint(outer), calls(e, fmt.Sprint(inner), returns("v", nil)))
					}
				})
			}
			done := make(chan struct{})
			go func() { wg.Wait(); close(done) }()
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				t.Fatalf("hangs: %+v", e.Stats())
			}
			s := e.Stats()
			require.Zero(t, s.InFlight)
			require.Zero(t, s.Waiting)
		})
	}
}

// On real cores: effects end while the calls that they have left behind come and
// go, and these close no circle.
func TestCallsThatEffectsLeaveBehindNeverHang(t *testing.T) {
	const callers, rounds, keys = 4, 3000, 5
	e := open(t, options{TTL: time.Nanosecond})
	var wg sync.WaitGroup
	var made atomic.Uint64
	for n := range callers {
		wg.Go(func() {
			for i := range rounds {
				key := (n + i) % keys
				made.Add(1)
				e.Do(bg, fmt.Sprint(key), func(ctx context.Context) (string, error) {
					for next := range 2 {
						made.Add(1)
						wg.Go(func() { e.Do(ctx, fmt.Sprint((key+next)%keys), returns("v", nil)) })
					}
					return "", errBoom
				})
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("hangs: %+v", e.Stats())
	}
	addsUp(t, e, made.Load())
}

// On real cores: a duplicate and the effect's first call come at one moment, and
// both need what the claim did not have so far.
func TestDuplicatesComeAsEffectsMakeTheirFirstCall(t *testing.T) {
	e := openFor(t, idempotent.Options[int, string]{})
	fx := func(context.Context) (string, error) { return "", errBoom }
	rounds := 0
	for began := time.Now(); rounds < 20_000 && time.Since(began) < 2*time.Second; {
		rounds++
		var running, coming atomic.Bool
		var calls sync.WaitGroup
		calls.Go(func() {
			for !running.Load() {
			}
			coming.Store(true)
			e.Do(bg, rounds, fx)
		})
		calls.Go(func() {
			e.Do(bg, rounds, func(ctx context.Context) (string, error) {
				running.Store(true)
				for !coming.Load() {
				}
				e.Do(ctx, -1, fx)
				return "v", nil
			})
		})
		done := make(chan struct{})
		go func() { calls.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("hangs in round %d: %+v", rounds, e.Stats())
		}
	}
	s := e.Stats()
	t.Logf("%d rounds, %d duplicates waited", rounds, s.Shared)
	require.Zero(t, s.InFlight)
	require.Zero(t, s.Waiting)
}
