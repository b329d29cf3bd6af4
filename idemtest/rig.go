package idemtest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// patience is how long anything that must happen may take in real time.
const patience = 30 * time.Second

// grace is how exactly windows are checked in real time.
const grace = 50 * time.Millisecond

type effect = func(context.Context) ([]byte, error)

// A rig is one case's store, seen through one guard or two.
type rig struct {
	*testing.T
	can    Abilities
	guards []Guard
}

func newRig(t *testing.T, open func(*testing.T) Guard, can Abilities) *rig {
	first := open(t)
	guards := []Guard{first, first}
	if can.Second != nil {
		guards[1] = can.Second(t, first)
	}
	return &rig{T: t, can: can, guards: guards}
}

// An outcome is everything that one call returned.
type outcome struct {
	value   []byte
	verdict idempotent.Verdict
	err     error
	panic   any  // what the call panicked with
	exited  bool // the call did not return: it panicked or called Goexit
}

// call makes one call through guard n (modulo their number) on this goroutine.
func (r *rig) call(ctx context.Context, n int, req idempotent.Request[string], run effect) outcome {
	value, verdict, err := r.guards[n%len(r.guards)].Handle(ctx, req, run)
	return outcome{value: value, verdict: verdict, err: err}
}

// do is call with a key alone, on a ctx that outlasts the case.
func (r *rig) do(n int, key string, run effect) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return r.call(ctx, n, idempotent.Request[string]{Key: key}, run)
}

// start makes a call on a goroutine of its own.
func (r *rig) start(ctx context.Context, n int, req idempotent.Request[string], run effect) <-chan outcome {
	ended := make(chan outcome, 1)
	go func() {
		o := outcome{exited: true}
		defer func() {
			if o.exited {
				o.panic = recover()
			}
			ended <- o
		}()
		o = r.call(ctx, n, req, run)
	}()
	return ended
}

// startKey is start with a key alone, on a ctx that is never done.
func (r *rig) startKey(n int, key string, run effect) <-chan outcome {
	return r.start(context.Background(), n, idempotent.Request[string]{Key: key}, run)
}

// await receives from ch. In real time it fails the case after patience; in a
// bubble synctest reports the deadlock at once.
func await[T any](r *rig, ch <-chan T, what string) T {
	r.Helper()
	var giveUp <-chan time.Time
	if !r.can.Bubble {
		giveUp = time.After(patience)
	}
	select {
	case v := <-ch:
		return v
	case <-giveUp:
		require.FailNow(r, "timed out", "waiting for %s", what)
		panic("unreachable")
	}
}

// letWait gives the calls that were started time to find the running attempt
// of the key and wait for it. In a bubble that is certain. In real time a probe
// that gives up after a moment takes the same way after them, which makes it
// likely; no check but "at least once in many" may depend on it.
func (r *rig) letWait(key string) {
	r.Helper()
	if r.can.Bubble {
		synctest.Wait()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), moment)
	defer cancel()
	probe := r.call(ctx, 0, idempotent.Request[string]{Key: key}, func(context.Context) ([]byte, error) {
		r.Errorf("key %q: a second effect started beside the first", key)
		return nil, nil
	})
	r.refused(probe, context.DeadlineExceeded)
}

// waited checks the verdict of a call that was started while the attempt ran.
func (r *rig) waited(v idempotent.Verdict) {
	r.Helper()
	if r.can.Bubble {
		require.Equal(r, idempotent.Shared, v)
		return
	}
	require.Contains(r, []idempotent.Verdict{idempotent.Shared, idempotent.Replayed}, v)
}

// executed checks that the call ran its own effect to this value.
func (r *rig) executed(o outcome, value string) {
	r.Helper()
	require.NoError(r, o.err)
	require.Equal(r, idempotent.Executed, o.verdict)
	require.Equal(r, value, string(o.value))
}

// replayed checks that the call was handed a kept result of this value.
func (r *rig) replayed(o outcome, value string) {
	r.Helper()
	require.NoError(r, o.err)
	require.Equal(r, idempotent.Replayed, o.verdict)
	require.Equal(r, value, string(o.value))
}

// refused checks that the call ran nothing and was refused with kind.
func (r *rig) refused(o outcome, kind error) {
	r.Helper()
	require.ErrorIs(r, o.err, kind)
	require.Equal(r, idempotent.Refused, o.verdict)
	require.Empty(r, o.value)
}

// forget forgets through guard n.
func (r *rig) forget(n int, key string) bool {
	r.Helper()
	had, err := r.guards[n%len(r.guards)].Forget(context.Background(), key)
	require.NoError(r, err)
	return had
}

// gives is an effect that leaves the value.
func gives(value string) effect {
	return func(context.Context) ([]byte, error) { return []byte(value), nil }
}

// never is an effect that must not start.
func (r *rig) never(context.Context) ([]byte, error) {
	r.Error("an effect started that must not")
	return nil, nil
}

// A held effect says when it has started and ends when it is told how.
type held struct {
	started chan struct{}
	finish  chan func() ([]byte, error)
}

func hold() *held {
	return &held{started: make(chan struct{}, 1), finish: make(chan func() ([]byte, error), 1)}
}

func (h *held) run(context.Context) ([]byte, error) {
	h.started <- struct{}{}
	return (<-h.finish)()
}

func (h *held) end(value string, err error) {
	h.finish <- func() ([]byte, error) { return []byte(value), err }
}

// A tally watches the runs of one key's effect.
type tally struct {
	runs, running, overlaps atomic.Int64
}

// enter notes a start; what it returns notes the end.
func (c *tally) enter() (leave func()) {
	c.runs.Add(1)
	if c.running.Add(1) > 1 {
		c.overlaps.Add(1)
	}
	return func() { c.running.Add(-1) }
}

// crowd starts n callers over all guards at one instant and waits for them.
func (r *rig) crowd(n int, caller func(i int)) {
	var start, done sync.WaitGroup
	start.Add(1)
	for i := range n {
		done.Go(func() { start.Wait(); caller(i) })
	}
	start.Done()
	gone := make(chan struct{})
	go func() { done.Wait(); close(gone) }()
	await(r, gone, fmt.Sprintf("%d callers", n))
}
