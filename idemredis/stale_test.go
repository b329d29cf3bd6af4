package idemredis_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemredis"
)

func TestStale(t *testing.T) {
	const ttl = 30 * time.Millisecond
	client := dial(t, startServer(t).addr)
	type asked struct {
		key       string
		completed time.Time
	}
	open := func(t *testing.T, answer error) (*idemredis.Guard[string], *[]asked) {
		var calls []asked
		return newGuard(t, client, idemredis.Options{TTL: ttl, StaleFor: time.Hour,
			OnStale: func(_ context.Context, key string, completedAt time.Time) error {
				calls = append(calls, asked{key, completedAt})
				return answer
			}}), &calls
	}
	// ended runs the key and waits for its window to end.
	ended := func(t *testing.T, guard *idemredis.Guard[string], key string) {
		_, verdict, err := guard.Handle(t.Context(), request(key), gives("first"))
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
		eventually(t, "the window to end", func() bool {
			_, kept, err := guard.Lookup(t.Context(), key)
			return err == nil && !kept
		})
	}

	t.Run("a key that comes after its window is asked about, and runs", func(t *testing.T) {
		guard, calls := open(t, nil)
		begun := time.Now()
		ended(t, guard, "runs")
		asked := time.Now()
		value, verdict, err := guard.Handle(t.Context(), request("runs"), gives("second"))
		early := time.Since(asked) + 5*time.Millisecond // at most
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
		require.Equal(t, "second", value)
		require.Len(t, *calls, 1)
		require.Equal(t, "runs", (*calls)[0].key)
		require.WithinRange(t, (*calls)[0].completed, begun.Add(-early), time.Now().Add(-ttl+5*time.Millisecond))
	})
	t.Run("an error refuses the call and the key stays stale", func(t *testing.T) {
		guard, calls := open(t, idempotent.ErrStale)
		ended(t, guard, "refused")
		asked := time.Now()
		for range 3 {
			_, verdict, err := guard.Handle(t.Context(), request("refused"), mustNotRun(t))
			require.ErrorIs(t, err, idempotent.ErrStale)
			require.ErrorContains(t, err, `"refused"`)
			require.Equal(t, idempotent.Refused, verdict)
		}
		early := time.Since(asked) + 5*time.Millisecond // at most
		require.Len(t, *calls, 3)
		for _, call := range *calls {
			require.WithinDuration(t, (*calls)[0].completed, call.completed, early)
		}
	})
	t.Run("a key whose second run failed stays stale, one that succeeded does not", func(t *testing.T) {
		guard, calls := open(t, nil)
		ended(t, guard, "again")
		_, _, err := guard.Handle(t.Context(), request("again"), func(context.Context) (string, error) {
			return "", errors.New("declined")
		})
		require.Error(t, err)
		_, _, err = guard.Handle(t.Context(), request("again"), gives("v"))
		require.NoError(t, err)
		require.Len(t, *calls, 2)
		_, verdict, err := guard.Handle(t.Context(), request("again"), mustNotRun(t))
		require.NoError(t, err)
		require.Equal(t, idempotent.Replayed, verdict)
		require.Len(t, *calls, 2)
	})
	t.Run("a panic in the hook gives the claim up and goes on", func(t *testing.T) {
		guard := newGuard(t, client, idemredis.Options{TTL: ttl, StaleFor: time.Hour,
			OnStale: func(context.Context, string, time.Time) error { panic("hook") }})
		ended(t, guard, "panics")
		for range 2 {
			require.PanicsWithValue(t, "hook", func() { _, _, _ = guard.Handle(t.Context(), request("panics"), mustNotRun(t)) })
		}
	})
	t.Run("a forgotten key is not stale, and a stale one is nothing to forget or resolve", func(t *testing.T) {
		guard, calls := open(t, nil)
		ended(t, guard, "forgotten")
		done, err := guard.Resolve(t.Context(), "forgotten", "v")
		require.NoError(t, err)
		require.False(t, done)
		had, err := guard.Forget(t.Context(), "forgotten")
		require.NoError(t, err)
		require.False(t, had)
		_, _, err = guard.Handle(t.Context(), request("forgotten"), gives("v"))
		require.NoError(t, err)
		require.Empty(t, *calls)
	})
	t.Run("it is remembered for StaleFor after the window, then Redis has nothing of it", func(t *testing.T) {
		guard := newGuard(t, client, idemredis.Options{TTL: ttl, StaleFor: ttl})
		ended(t, guard, "short")
		eventually(t, "the record to go", func() bool { return client.Exists(t.Context(), "idempotent::short").Val() == 0 })
	})
	t.Run("a dead ctx is told nothing of an ended result", func(t *testing.T) {
		guard, calls := open(t, nil)
		ended(t, guard, "dead")
		dead, cancel := context.WithCancel(t.Context())
		cancel()
		_, verdict, err := guard.Handle(dead, request("dead"), mustNotRun(t))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, idempotent.Refused, verdict)
		require.Empty(t, *calls)
	})
}
