package idemredis_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemredis"
	"github.com/idempotent-go/idempotent/idemtest"
)

var _ idempotent.Store[int] = (*idemredis.Guard[int])(nil)

func openTier(t *testing.T, addr string) *idempotent.Tier[[]byte] {
	g, err := idemredis.New[[]byte](dial(t, addr), idemredis.Options{})
	require.NoError(t, err)
	tier, err := idempotent.NewTier(g, idempotent.TierOptions[[]byte]{})
	require.NoError(t, err)
	return tier
}

// The suite forgets through one guard and calls through the other. Two tiers
// would fail it by design: the other process's memory lasts to the window's end.
func TestTierConforms(t *testing.T) {
	s := startServer(t)
	for name, addr := range map[string]func(*testing.T) string{
		"redis-server": func(t *testing.T) string { s.reset(t); return s.addr },
		"miniredis":    func(t *testing.T) string { return miniServer(t) },
	} {
		t.Run(name, func(t *testing.T) {
			idemtest.Run(t, func(t *testing.T) idemtest.Guard { return openTier(t, addr(t)) }, abilities(nil))
		})
	}
}

// counter counts the round trips of a client.
type counter struct{ sent atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.sent.Add(1)
		return next(ctx, cmd)
	}
}

// during returns how many commands f sends.
func (c *counter) during(f func()) int64 {
	before := c.sent.Load()
	f()
	return c.sent.Load() - before
}

func TestRoundTrips(t *testing.T) {
	addr := startServer(t).addr
	client, count := dial(t, addr), &counter{}
	client.AddHook(count)
	guard := newGuard(t, client, idemredis.Options{})
	call := func(key string, effect func(context.Context) (string, error), want idempotent.Verdict) func() {
		return func() {
			_, verdict, _ := guard.Handle(t.Context(), request(key), effect)
			require.Equal(t, want, verdict)
		}
	}
	// The first use of a script sends the script itself.
	call("first", gives(""), idempotent.Executed)()
	_, _, err := guard.Lookup(t.Context(), "first")
	require.NoError(t, err)

	t.Run("a claim is one, a settle is one", func(t *testing.T) {
		require.EqualValues(t, 2, count.during(call("k", gives("v"), idempotent.Executed)))
	})
	t.Run("a replay is one", func(t *testing.T) {
		require.EqualValues(t, 1, count.during(call("k", mustNotRun(t), idempotent.Replayed)))
	})
	t.Run("a claim and a failure are two", func(t *testing.T) {
		fails := func(context.Context) (string, error) { return "", context.Canceled }
		require.EqualValues(t, 2, count.during(call("failing", fails, idempotent.Executed)))
	})

	tier, err := idempotent.NewTier(guard, idempotent.TierOptions[string]{})
	require.NoError(t, err)
	handle := func(key string, want idempotent.Verdict) func() {
		return func() {
			_, verdict, err := tier.Handle(t.Context(), request(key), gives("v"))
			require.NoError(t, err)
			require.Equal(t, want, verdict)
		}
	}
	t.Run("a tier replays what it ran without any", func(t *testing.T) {
		require.EqualValues(t, 2, count.during(handle("tier", idempotent.Executed)))
		require.Zero(t, count.during(handle("tier", idempotent.Replayed)))
	})
	t.Run("a tier asks once for what another process ran", func(t *testing.T) {
		require.EqualValues(t, 2, count.during(handle("k", idempotent.Replayed)))
		require.Zero(t, count.during(handle("k", idempotent.Replayed)))
	})
	t.Run("duplicates in a tier are one call", func(t *testing.T) {
		started, end := make(chan struct{}), make(chan struct{})
		sent := count.during(func() {
			var all sync.WaitGroup
			all.Go(func() {
				_, _, _ = tier.Handle(t.Context(), request("crowd"), func(context.Context) (string, error) {
					close(started)
					<-end
					return "v", nil
				})
			})
			<-started
			for range 50 {
				all.Go(handle("crowd", idempotent.Shared))
			}
			eventually(t, "the crowd to wait", func() bool { return tier.Stats().Waiting == 50 })
			close(end)
			all.Wait()
		})
		require.EqualValues(t, 2, sent)
	})
}
