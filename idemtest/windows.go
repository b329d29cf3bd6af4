package idemtest

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func mismatchFinished(r *rig) {
	ctx := context.Background()
	ask := func(n int, print string, run effect) outcome {
		return r.call(ctx, n, idempotent.Request[string]{Key: "k", Fingerprint: print}, run)
	}
	r.executed(ask(0, "one", gives("v")), "v")
	for n := range 2 {
		r.refused(ask(n, "two", r.never), idempotent.ErrMismatch)
		r.replayed(ask(n, "one", r.never), "v")
		r.replayed(ask(n, "", r.never), "v")
	}
	r.executed(r.do(0, "plain", gives("w")), "w")
	r.replayed(r.call(ctx, 1, idempotent.Request[string]{Key: "plain", Fingerprint: "any"}, r.never), "w")
}

func mismatchRunning(r *rig) {
	ctx := context.Background()
	leader := hold()
	first := r.start(ctx, 0, idempotent.Request[string]{Key: "k", Fingerprint: "one"}, leader.run)
	await(r, leader.started, "the effect")
	other := r.start(ctx, 1, idempotent.Request[string]{Key: "k", Fingerprint: "two"}, r.never)
	if r.can.SeesClaims {
		r.refused(await(r, other, "the other payload"), idempotent.ErrMismatch)
	}
	same := r.start(ctx, 1, idempotent.Request[string]{Key: "k", Fingerprint: "one"}, r.never)
	r.letWait("k")
	leader.end("v", nil)
	r.executed(await(r, first, "the leader"), "v")
	o := await(r, same, "the same payload")
	require.NoError(r, o.err)
	r.waited(o.verdict)
	if !r.can.SeesClaims {
		r.refused(await(r, other, "the other payload"), idempotent.ErrMismatch)
	}
}

func mismatchAfterFailure(r *rig) {
	ctx := context.Background()
	o := r.call(ctx, 0, idempotent.Request[string]{Key: "k", Fingerprint: "one"}, fails("", errEffect))
	require.ErrorIs(r, o.err, errEffect)
	req := idempotent.Request[string]{Key: "k", Fingerprint: "two"}
	r.executed(r.call(ctx, 1, req, gives("v")), "v")
	r.replayed(r.call(ctx, 0, req, r.never), "v")
}

// endsAfter runs first under the key with a window of ttl and checks that what
// it leaves is replayed until exactly ttl after first returned, and that asking
// does not extend it.
func (r *rig) endsAfter(ttl time.Duration, first effect) {
	r.Helper()
	var completing time.Time // no later than the completion
	req := idempotent.Request[string]{Key: "k", TTL: ttl}
	o := r.call(context.Background(), 0, req, func(ctx context.Context) ([]byte, error) {
		value, err := first(ctx)
		completing = time.Now()
		return value, err
	})
	require.Equal(r, idempotent.Executed, o.verdict)
	completed := time.Now() // no earlier than it

	ask := func(n int) (replayed bool) {
		o := r.do(n, "k", gives("again"))
		if o.verdict == idempotent.Replayed {
			return true
		}
		r.executed(o, "again")
		return false
	}
	if r.can.Bubble {
		for range 4 {
			time.Sleep(ttl / 5)
			require.True(r, ask(0), "the window ended early")
		}
		time.Sleep(time.Until(completed.Add(ttl - 1)))
		require.True(r, ask(0), "the window ended early")
		time.Sleep(time.Nanosecond)
		require.False(r, ask(0), "the window did not end")
		return
	}
	tick := time.NewTicker(ttl / 50)
	defer tick.Stop()
	for n := 0; ; n++ {
		asked := time.Now()
		if !ask(n) {
			require.GreaterOrEqual(r, time.Since(completing), ttl-grace, "the window ended early")
			return
		}
		require.Less(r, asked.Sub(completed), ttl+grace, "the window did not end")
		<-tick.C
	}
}

func windowEnds(r *rig) { r.endsAfter(500*time.Millisecond, gives("v")) }

func failureWindowEnds(r *rig) {
	r.endsAfter(500*time.Millisecond, fails("", idempotent.Permanent(errors.New("no"))))
}

func windowFromCompletion(r *rig) {
	const ttl = 300 * time.Millisecond
	r.endsAfter(ttl, func(context.Context) ([]byte, error) {
		<-time.After(2 * ttl)
		return nil, nil
	})
}

func windowForever(r *rig) {
	for key, ttl := range map[string]time.Duration{
		"for ever": idempotent.Forever,
		"nearly":   idempotent.Forever - 1,
		"a year":   365 * 24 * time.Hour,
	} {
		o := r.call(context.Background(), 0, idempotent.Request[string]{Key: key, TTL: ttl}, gives(key))
		r.executed(o, key)
		r.replayed(r.do(1, key, r.never), key)
	}
	if r.can.Bubble {
		time.Sleep(100 * 365 * 24 * time.Hour)
		r.replayed(r.do(1, "for ever", r.never), "for ever")
		r.executed(r.do(1, "a year", gives("again")), "again")
	}
}

func windowNegative(r *rig) {
	req := idempotent.Request[string]{Key: "k", TTL: -1}
	r.refused(r.call(context.Background(), 0, req, r.never), idempotent.ErrInvalidTTL)
	r.executed(r.do(1, "k", gives("v")), "v")
}

func forgetRuns(r *rig) {
	require.False(r, r.forget(0, "k"), "nothing was kept")
	r.executed(r.do(0, "k", gives("one")), "one")
	require.True(r, r.forget(1, "k"))
	require.False(r, r.forget(0, "k"), "it was forgotten already")
	r.executed(r.do(0, "k", gives("two")), "two")
	r.replayed(r.do(1, "k", r.never), "two")
}

func forgetRunning(r *rig) {
	leader := hold()
	first := r.startKey(0, "k", leader.run)
	await(r, leader.started, "the effect")
	for n := range 2 {
		require.False(r, r.forget(n, "k"))
	}
	r.letWait("k")
	leader.end("v", nil)
	r.executed(await(r, first, "the leader"), "v")
	r.replayed(r.do(1, "k", r.never), "v")
}

// zeroValues does not tell nil from empty: a store may hand one back as the other.
func zeroValues(r *rig) {
	for key, value := range map[string][]byte{"nil": nil, "empty": {}, "zero byte": {0}} {
		give := func(context.Context) ([]byte, error) { return value, nil }
		r.executed(r.do(0, key, give), string(value))
		r.replayed(r.do(0, key, r.never), string(value))
		r.replayed(r.do(1, key, r.never), string(value))
	}
}

func bytesExact(r *rig) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	values := map[string][]byte{
		"every byte": every,
		"large":      bytes.Repeat(every, 1024),
		"not UTF-8":  []byte("\xff\xfe\xc3("),
		"JSON":       []byte(`{ "b":1.0, "a":"\u00e9" }` + "\r\n"),
	}
	for key, value := range values {
		give := func(context.Context) ([]byte, error) { return bytes.Clone(value), nil }
		for n, run := range []effect{give, r.never, r.never} {
			o := r.do(n, key, run)
			require.NoError(r, o.err)
			require.True(r, bytes.Equal(value, o.value), "%s: call %d returned other bytes", key, n)
		}
	}
}
