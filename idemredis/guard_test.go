package idemredis_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

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

func conforms(t *testing.T, addr func(t *testing.T) string, opts idemredis.Options) {
	open := func(t *testing.T, addr string) idemtest.Guard {
		g, err := idemredis.New[[]byte](dial(t, addr), opts)
		require.NoError(t, err)
		return g
	}
	var current string // the cases run one after another
	idemtest.Run(t, func(t *testing.T) idemtest.Guard {
		current = addr(t)
		return open(t, current)
	}, abilities(func(t *testing.T, _ idemtest.Guard) idemtest.Guard { return open(t, current) }))
}

func TestGuardConforms(t *testing.T) {
	t.Run("redis-server", func(t *testing.T) {
		s := startServer(t)
		conforms(t, flushed(s), idemredis.Options{})
	})
	t.Run("redis-server, run again", func(t *testing.T) {
		s := startServer(t)
		conforms(t, flushed(s), idemredis.Options{OnLostLease: idemredis.RunAgain})
	})
	t.Run("miniredis", func(t *testing.T) {
		conforms(t, func(t *testing.T) string { return miniServer(t) }, idemredis.Options{})
	})
}

// flushed gives each case the server with an empty store.
func flushed(s *server) func(*testing.T) string {
	return func(t *testing.T) string {
		require.NoError(t, redis.NewClient(&redis.Options{Addr: s.addr}).FlushAll(t.Context()).Err())
		return s.addr
	}
}
