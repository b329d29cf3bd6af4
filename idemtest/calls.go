package idemtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// moment is the ctx of a call that is expected to give up waiting.
const moment = 250 * time.Millisecond

func executesOnce(r *rig) {
	r.executed(r.do(0, "k", gives("first")), "first")
	r.replayed(r.do(0, "k", r.never), "first")
	r.replayed(r.do(1, "k", r.never), "first")
	r.executed(r.do(1, "other", gives("second")), "second")
	r.replayed(r.do(0, "other", r.never), "second")
}

func effectSeesValues(r *rig) {
	type name struct{}
	ctx := context.WithValue(context.Background(), name{}, "v")
	o := r.call(ctx, 0, idempotent.Request[string]{Key: "k"}, func(ctx context.Context) ([]byte, error) {
		return []byte(fmt.Sprint(ctx.Value(name{}))), nil
	})
	r.executed(o, "v")
}

func effectOutlivesCancel(r *rig) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	o := r.call(ctx, 0, idempotent.Request[string]{Key: "k"}, func(effectCtx context.Context) ([]byte, error) {
		cancel()
		if err := effectCtx.Err(); err != nil {
			return nil, err
		}
		if end, has := effectCtx.Deadline(); has {
			return nil, fmt.Errorf("the effect was given the caller's deadline %v", end)
		}
		return []byte("done"), nil
	})
	r.executed(o, "done")
	r.replayed(r.do(1, "k", r.never), "done")
}

func effectNamesKey(r *rig) {
	var key string
	var has bool
	r.executed(r.do(0, "k", func(ctx context.Context) ([]byte, error) {
		key, has = idempotent.Key[string](ctx)
		return nil, nil
	}), "")
	require.Equal(r, r.can.NamesKey, has, "Abilities.NamesKey")
	if has {
		require.Equal(r, "k", key)
	}
}

func deadContext(r *rig) {
	dead, cancel := context.WithCancel(context.Background())
	cancel()
	req := idempotent.Request[string]{Key: "k"}
	r.refused(r.call(dead, 0, req, r.never), context.Canceled)
	r.executed(r.do(0, "k", gives("v")), "v")
	if r.can.DeadReplay {
		r.replayed(r.call(dead, 1, req, r.never), "v")
		return
	}
	r.refused(r.call(dead, 1, req, r.never), context.Canceled)
}

func emptyKey(r *rig) {
	r.refused(r.do(0, "", r.never), idempotent.ErrInvalidKey)
	r.refused(r.do(1, "", r.never), idempotent.ErrInvalidKey)
}

func keysAreExact(r *rig) {
	long := strings.Repeat("k", 254)
	for _, key := range []string{
		"a", "A", "a ", " a", "a\t", "a\n", "aa", "a:b", "a/b", "{a}", "a*", "%", "_", "?", "'", `"`, `\`, ";--",
		"é", "e\u0301", "日本", "0", "00", "null", long + "a", long + "b", long,
	} {
		r.executed(r.do(0, key, gives("of "+key)), "of "+key)
		r.replayed(r.do(1, key, r.never), "of "+key)
	}
	veryLong := strings.Repeat(long, 20)
	for _, key := range []string{"\x00", "a\x00", "a\x00b", "\xff", "\xfe", "a\xff", veryLong + "a", veryLong + "b"} {
		o := r.do(0, key, gives("of "+key))
		if o.err != nil && !r.can.AnyKey {
			r.refused(o, idempotent.ErrInvalidKey)
			continue
		}
		r.executed(o, "of "+key)
		r.replayed(r.do(1, key, r.never), "of "+key)
	}
}

func duplicateWaits(r *rig) {
	shared := func(key string) bool {
		leader := hold()
		first := r.startKey(0, key, leader.run)
		await(r, leader.started, "the effect")
		second := r.startKey(1, key, r.never)
		r.letWait(key)
		leader.end("v", nil)
		r.executed(await(r, first, "the leader"), "v")
		o := await(r, second, "the duplicate")
		require.NoError(r, o.err)
		require.Equal(r, "v", string(o.value))
		r.waited(o.verdict)
		return o.verdict == idempotent.Shared
	}
	for i := range 20 {
		if shared(fmt.Sprint("k", i)) {
			return
		}
	}
	require.Fail(r, "no duplicate of a running attempt was ever told Shared")
}

func duplicatesShare(r *rig) {
	leader := hold()
	first := r.startKey(0, "k", leader.run)
	await(r, leader.started, "the effect")
	var rest []<-chan outcome
	for i := range 10 {
		rest = append(rest, r.startKey(i, "k", r.never))
	}
	r.letWait("k")
	leader.end("v", nil)
	r.executed(await(r, first, "the leader"), "v")
	for _, ended := range rest {
		o := await(r, ended, "a duplicate")
		require.NoError(r, o.err)
		require.Equal(r, "v", string(o.value))
		r.waited(o.verdict)
	}
	r.replayed(r.do(1, "k", r.never), "v")
}

func waiterLeaves(r *rig) {
	leader := hold()
	first := r.startKey(0, "k", leader.run)
	await(r, leader.started, "the effect")
	stays := r.startKey(1, "k", r.never)

	// A slow store may use a moment up before it knows of the attempt.
	var o outcome
	for wait := moment; wait < patience && !errors.Is(o.err, idempotent.ErrInFlight); wait *= 2 {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		began := time.Now()
		o = r.call(ctx, 1, idempotent.Request[string]{Key: "k"}, r.never)
		cancel()
		r.refused(o, context.DeadlineExceeded)
		require.Less(r, time.Since(began), wait+patience/3, "the waiter was kept beyond its ctx")
	}
	r.refused(o, idempotent.ErrInFlight)

	ctx, cancel := context.WithCancel(context.Background())
	leaves := r.start(ctx, 0, idempotent.Request[string]{Key: "k"}, r.never)
	r.letWait("k")
	cancel()
	o = await(r, leaves, "the waiter that was cancelled")
	r.refused(o, context.Canceled)

	leader.end("v", nil)
	r.executed(await(r, first, "the leader"), "v")
	o = await(r, stays, "the waiter that stayed")
	require.NoError(r, o.err)
	r.waited(o.verdict)
	require.Equal(r, "v", string(o.value))
}

func noWait(r *rig) {
	leader := hold()
	first := r.startKey(0, "k", leader.run)
	await(r, leader.started, "the effect")
	req := idempotent.Request[string]{Key: "k", NoWait: true}
	for n := range 2 {
		o := await(r, r.start(context.Background(), n, req, r.never), "a call with NoWait")
		r.refused(o, idempotent.ErrInFlight)
	}
	leader.end("v", nil)
	r.executed(await(r, first, "the leader"), "v")
	r.replayed(r.call(context.Background(), 1, req, r.never), "v")
	req.Key = "new"
	r.executed(r.call(context.Background(), 1, req, gives("w")), "w")
}

// within calls key with a ctx of a moment.
func (r *rig) within(n int, key string, run effect) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), moment)
	defer cancel()
	return r.call(ctx, n, idempotent.Request[string]{Key: key}, run)
}

func hangingEffect(r *rig) {
	leader := hold()
	first := r.startKey(0, "hangs", leader.run)
	await(r, leader.started, "the effect")
	for i := range 20 {
		key := fmt.Sprint("other", i)
		if r.can.Parallel {
			r.executed(r.do(i, key, gives("v")), "v")
		} else if i < 2 {
			r.refused(r.within(i, key, r.never), idempotent.ErrInFlight)
		}
	}
	leader.end("late", nil)
	r.executed(await(r, first, "the hanging call"), "late")
	r.executed(r.do(1, "new", gives("v")), "v")
}

func nestedKeys(r *rig) {
	var inner outcome
	outer := r.do(0, "outer", func(ctx context.Context) ([]byte, error) {
		if r.can.Parallel {
			inner = r.do(0, "inner", gives("i"))
		} else {
			ctx, cancel := context.WithTimeout(ctx, moment)
			defer cancel()
			inner = r.call(ctx, 0, idempotent.Request[string]{Key: "inner"}, r.never)
		}
		return []byte("o"), nil
	})
	r.executed(outer, "o")
	if !r.can.Parallel {
		if r.can.Deadlock {
			r.refused(inner, idempotent.ErrDeadlock)
		} else {
			r.refused(inner, idempotent.ErrInFlight)
		}
		return
	}
	r.executed(inner, "i")
	r.replayed(r.do(1, "inner", r.never), "i")
}

func nestedSelf(r *rig) {
	var inner outcome
	outer := r.do(0, "k", func(ctx context.Context) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, moment)
		defer cancel()
		inner = r.call(ctx, 0, idempotent.Request[string]{Key: "k"}, r.never)
		return []byte("v"), nil
	})
	r.executed(outer, "v")
	if r.can.Deadlock {
		r.refused(inner, idempotent.ErrDeadlock)
		return
	}
	r.refused(inner, context.DeadlineExceeded)
}
