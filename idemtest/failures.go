package idemtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

var errEffect = errors.New("the effect failed")

// fails is an effect that leaves the value and the error.
func fails(value string, err error) effect {
	return func(context.Context) ([]byte, error) { return []byte(value), err }
}

func failureFrees(r *rig) {
	for n := range 2 {
		o := r.do(n, "k", fails("", errEffect))
		require.ErrorIs(r, o.err, errEffect)
		require.Equal(r, idempotent.Executed, o.verdict)
	}
	r.executed(r.do(0, "k", gives("v")), "v")
	r.replayed(r.do(1, "k", r.never), "v")
}

func failureHandsOver(r *rig) {
	leader := hold()
	first := r.startKey(0, "k", leader.run)
	await(r, leader.started, "the effect")
	second := r.startKey(1, "k", gives("second's own"))
	r.letWait("k")
	leader.end("", errEffect)
	o := await(r, first, "the leader")
	require.ErrorIs(r, o.err, errEffect)
	require.Equal(r, idempotent.Executed, o.verdict)
	r.executed(await(r, second, "the waiter"), "second's own")
	r.replayed(r.do(0, "k", r.never), "second's own")
}

func waitersTakeTurns(r *rig) {
	const waiters = 6
	var seen tally
	var order []int // appended to by one effect at a time
	leader := hold()
	first := r.startKey(0, "k", leader.run)
	await(r, leader.started, "the effect")
	var rest []<-chan outcome
	for i := range waiters {
		rest = append(rest, r.startKey(i, "k", func(context.Context) ([]byte, error) {
			defer seen.enter()()
			order = append(order, i)
			return nil, fmt.Errorf("attempt of waiter %d", i)
		}))
		if r.can.Bubble {
			synctest.Wait() // so that they came in this order
		}
	}
	r.letWait("k")
	leader.end("", errEffect)
	require.ErrorIs(r, await(r, first, "the leader").err, errEffect)
	for i, ended := range rest {
		o := await(r, ended, "a waiter")
		require.ErrorContains(r, o.err, fmt.Sprintf("attempt of waiter %d", i))
		require.Equal(r, idempotent.Executed, o.verdict)
	}
	require.EqualValues(r, waiters, seen.runs.Load())
	require.Zero(r, seen.overlaps.Load())
	require.Len(r, order, waiters)
	if r.can.InOrder && r.can.Bubble {
		require.IsIncreasing(r, order)
	}
}

// kept checks that the failure err was kept and is replayed with its value.
func (r *rig) kept(o outcome, value string, err error) {
	r.Helper()
	require.Equal(r, value, string(o.value))
	require.EqualError(r, o.err, err.Error())
	if r.can.SameError {
		require.ErrorIs(r, o.err, errEffect)
	}
	if errors.Is(err, idempotent.ErrOutcomeUnknown) {
		require.ErrorIs(r, o.err, idempotent.ErrOutcomeUnknown)
	} else {
		require.NotErrorIs(r, o.err, idempotent.ErrOutcomeUnknown)
	}
}

func permanentKept(r *rig) {
	err := fmt.Errorf("declined: %w", idempotent.Permanent(errEffect))
	o := r.do(0, "k", fails("why", err))
	require.Equal(r, idempotent.Executed, o.verdict)
	require.ErrorIs(r, o.err, errEffect)
	r.kept(o, "why", err)
	for n := range 2 {
		o = r.do(n, "k", r.never)
		require.Equal(r, idempotent.Replayed, o.verdict)
		r.kept(o, "why", err)
	}
	require.True(r, r.forget(1, "k"))
	r.executed(r.do(0, "k", gives("v")), "v")
}

func unknownHeld(r *rig) {
	err := fmt.Errorf("charging: %w", idempotent.Unknown(errEffect))
	o := r.do(0, "k", fails("half", err))
	require.Equal(r, idempotent.Executed, o.verdict)
	require.ErrorIs(r, o.err, errEffect)
	r.kept(o, "half", err)
	for n := range 2 {
		o = r.do(n, "k", r.never)
		require.Equal(r, idempotent.Replayed, o.verdict)
		r.kept(o, "half", err)
	}
	require.True(r, r.forget(1, "k"))
	r.executed(r.do(0, "k", gives("v")), "v")
}

func keptFailureShared(r *rig) {
	for _, err := range []error{idempotent.Permanent(errEffect), idempotent.Unknown(errEffect)} {
		key := err.Error()
		leader := hold()
		first := r.startKey(0, key, leader.run)
		await(r, leader.started, "the effect")
		second := r.startKey(1, key, r.never)
		r.letWait(key)
		leader.end("why", err)
		r.kept(await(r, first, "the leader"), "why", err)
		o := await(r, second, "the waiter")
		r.waited(o.verdict)
		r.kept(o, "why", err)
	}
}

func panicFrees(r *rig) {
	bug := errors.New("a bug")
	o := await(r, r.startKey(0, "k", func(context.Context) ([]byte, error) { panic(bug) }), "the call")
	require.True(r, o.exited)
	require.Same(r, bug, o.panic, "the panic must go on unchanged")
	r.executed(r.do(1, "k", gives("v")), "v")
	r.replayed(r.do(0, "k", r.never), "v")
}

func panicHandsOver(r *rig) {
	leader := hold()
	first := r.startKey(0, "k", leader.run)
	await(r, leader.started, "the effect")
	second := r.startKey(1, "k", gives("second's own"))
	r.letWait("k")
	leader.finish <- func() ([]byte, error) { panic("a bug") }
	require.Equal(r, "a bug", await(r, first, "the leader").panic)
	r.executed(await(r, second, "the waiter"), "second's own")
}

func goexitFrees(r *rig) {
	var after atomic.Bool
	o := await(r, r.startKey(0, "k", func(context.Context) ([]byte, error) {
		defer after.Store(true)
		runtime.Goexit()
		return nil, nil
	}), "the call")
	require.True(r, after.Load())
	require.True(r, o.exited)
	require.Nil(r, o.panic, "Goexit must go on as Goexit")
	r.executed(r.do(1, "k", gives("v")), "v")
}
