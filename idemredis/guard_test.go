package idemredis_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemredis"
	"github.com/idempotent-go/idempotent/idemtest"
)

// abilities are what Redis and a Guard can do. Not among them: a kept failure
// keeps its text and its mark, not its Go value; any waiter may be next.
func abilities(second func(*testing.T, idemtest.Guard) idemtest.Guard) idemtest.Abilities {
	return idemtest.Abilities{
		Second:     second,
		SeesClaims: true,
		Parallel:   true,
		DeadReplay: true,
		NamesKey:   true,
		Deadlock:   true,
		AnyKey:     true,
	}
}

// conforms runs the suite; dial returns a new process's client, reset empties
// the store.
func conforms(t *testing.T, opts idemredis.Options, dial func(*testing.T) redis.UniversalClient, reset func(*testing.T)) {
	open := func(t *testing.T) idemtest.Guard {
		g, err := idemredis.New[[]byte](dial(t), opts)
		require.NoError(t, err)
		return g
	}
	idemtest.Run(t, func(t *testing.T) idemtest.Guard {
		reset(t)
		return open(t)
	}, abilities(func(t *testing.T, _ idemtest.Guard) idemtest.Guard { return open(t) }))
}

func TestGuardConforms(t *testing.T) {
	for name, c := range map[string]struct {
		opts idemredis.Options
		dial func(testing.TB, string) *redis.Client
	}{
		"on redis-server": {idemredis.Options{}, dial},
		"on redis-server, run again after a lost lease, with a client that heeds no ctx": {
			idemredis.Options{OnLostLease: idemredis.RunAgain}, dialHeedless},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			conforms(t, c.opts, func(t *testing.T) redis.UniversalClient { return c.dial(t, s.addr) }, s.reset)
		})
	}
	t.Run("on miniredis, stale keys remembered", func(t *testing.T) {
		t.Parallel()
		var addr string
		conforms(t, idemredis.Options{StaleFor: time.Hour},
			func(t *testing.T) redis.UniversalClient { return dial(t, addr) },
			func(t *testing.T) { addr = miniServer(t) })
	})
	t.Run("on a cluster", func(t *testing.T) {
		t.Parallel()
		cluster := twoNodes(t)
		conforms(t, idemredis.Options{}, func(*testing.T) redis.UniversalClient { return cluster }, func(t *testing.T) {
			require.NoError(t, cluster.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
				return node.FlushAll(ctx).Err()
			}))
		})
	})
}

func TestMoved(t *testing.T) {
	cluster := twoNodes(t)
	guard := newGuard(t, dial(t, cluster.Options().Addrs[0]), idemredis.Options{})
	moved := 0
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		_, verdict, err := guard.Handle(t.Context(), request(key), gives(key))
		if err == nil {
			continue
		}
		moved++
		require.ErrorIs(t, err, idemredis.ErrUnavailable)
		require.ErrorContains(t, err, "MOVED")
		require.Equal(t, idempotent.Refused, verdict)
	}
	require.Positive(t, moved, "a plain client asked only for what its node has")
	require.Less(t, moved, 8)
}
