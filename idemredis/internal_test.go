package idemredis

import (
	"context"
	"errors"
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestBell(t *testing.T) {
	rung := func(w *waiter) bool { return len(w.rung) > 0 }

	t.Run("a free key wakes the one that has waited longest", func(t *testing.T) {
		var b bell
		first, second, other := b.join("k"), b.join("k"), b.join("other")
		b.hear(rangFree + "k")
		require.True(t, rung(first))
		require.False(t, rung(second))
		require.False(t, rung(other))
	})
	t.Run("a kept result wakes all who wait for it", func(t *testing.T) {
		var b bell
		first, second, other := b.join("k"), b.join("k"), b.join("other")
		b.hear(rangKept + "k")
		require.True(t, rung(first))
		require.True(t, rung(second))
		require.False(t, rung(other))
	})
	t.Run("a waiter who leaves hands its ring on", func(t *testing.T) {
		var b bell
		first, second := b.join("k"), b.join("k")
		b.hear(rangFree + "k")
		b.leave(first)
		require.True(t, rung(second))
		b.leave(second)
		require.Empty(t, b.waiters)
	})
	t.Run("a subscription that starts wakes one of each key", func(t *testing.T) {
		var b bell
		first, second, other := b.join("k"), b.join("k"), b.join("other")
		b.started()
		require.True(t, rung(first))
		require.False(t, rung(second))
		require.True(t, rung(other))
	})
	t.Run("other messages, and keys that nobody waits for, wake nobody", func(t *testing.T) {
		var b bell
		w := b.join("k")
		for _, message := range []string{"", "k", "?k", rangKept, rangFree + "other"} {
			b.hear(message)
		}
		require.False(t, rung(w))
	})
}

// pass lets virtual time go by, and what it brings be done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestDrops(t *testing.T) {
	run := func(t *testing.T, name string, body func(t *testing.T, d *drops, tries map[string]int)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { body(t, &drops{}, map[string]int{}) })
		})
	}
	run(t, "a claim that is found is dropped once", func(t *testing.T, d *drops, tries map[string]int) {
		d.drop = func(name, token string) (bool, error) { tries[name+token]++; return true, nil }
		d.add("k", "1")
		d.add("k", "2")
		pass(time.Hour)
		require.Equal(t, map[string]int{"k1": 1, "k2": 1}, tries)
		require.False(t, d.running)
	})
	run(t, "a claim that is not found is looked for again, as it may be late", func(t *testing.T, d *drops, tries map[string]int) {
		d.drop = func(name, token string) (bool, error) { tries[name+token]++; return tries[name+token] == 3, nil }
		d.add("k", "late")
		pass(time.Hour)
		require.Equal(t, 3, tries["klate"])
		d.drop = func(name, token string) (bool, error) { tries[name+token]++; return false, nil }
		d.add("k", "none")
		pass(time.Hour)
		require.Equal(t, dropTries, tries["knone"])
		require.False(t, d.running)
	})
	run(t, "an outage is outlasted", func(t *testing.T, d *drops, tries map[string]int) {
		up := time.Now().Add(time.Hour)
		d.drop = func(name, token string) (bool, error) {
			tries[token]++
			if time.Now().Before(up) {
				return false, errors.New("connection refused")
			}
			return true, nil
		}
		d.add("k", "1")
		d.add("k", "2")
		pass(2 * time.Hour)
		require.Empty(t, d.pending)
		require.Less(t, tries["1"]+tries["2"], 20_000, "half a second is the longest pause, and one failure ends a round")
	})
	run(t, "a closed client ends it", func(t *testing.T, d *drops, tries map[string]int) {
		d.drop = func(_, token string) (bool, error) { tries[token]++; return false, redis.ErrClosed }
		d.add("k", "1")
		pass(time.Hour)
		require.Equal(t, 1, tries["1"])
		require.False(t, d.running)
	})
	run(t, "an outage makes it remember no more than so much", func(t *testing.T, d *drops, _ map[string]int) {
		up := time.Now().Add(time.Minute)
		d.drop = func(string, string) (bool, error) {
			if time.Now().Before(up) {
				return false, errors.New("connection refused")
			}
			return true, nil
		}
		for i := range 2 * maxDrops {
			d.add("k", strconv.Itoa(i))
		}
		d.mu.Lock()
		require.Len(t, d.pending, maxDrops)
		d.mu.Unlock()
		pass(time.Hour)
		require.Empty(t, d.pending)
	})
}

func TestMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", 1: "1", time.Millisecond: "1", time.Millisecond + 1: "2", time.Hour: "3600000",
		math.MaxInt64 - time.Millisecond: "9223372036854", math.MaxInt64 - time.Millisecond + 1: "", math.MaxInt64: "",
	} {
		require.Equal(t, want, window(d), d)
	}
}

func TestErrorsStayOnOneLine(t *testing.T) {
	one, two := errors.New("one"), errors.New("two")
	require.NoError(t, join(nil, nil))
	require.Equal(t, one, join(nil, one, nil), "a single error is left as it is")
	joined := join(one, nil, two)
	require.EqualError(t, joined, "one; two")
	require.ErrorIs(t, joined, one)
	require.ErrorIs(t, joined, two)
}

func TestPausesGrowAndStayInBounds(t *testing.T) {
	pause := newPauses()
	for want := firstPause; ; want = min(2*want, lastPause) {
		got := pause.next()
		require.GreaterOrEqual(t, got, want/2)
		require.Less(t, got, want)
		if want == lastPause {
			break
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, pause.wait(ctx))
}
