// Package compare sets the guard against the same done by hand: a lock of
// redsync, with GET and SET around the effect. It is a module of its own, so
// that the guard does not depend on its peer.
package compare

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemredis"
)

const window = time.Hour

// A way runs an effect once for a key.
type way func(ctx context.Context, key string, effect func() (string, error)) (string, error)

// byHand looks, locks, looks again, acts, marks and unlocks. Without the second
// look a caller that waited for the lock would act again.
func byHand(client redis.UniversalClient) way {
	locks := redsync.New(goredis.NewPool(client))
	return func(ctx context.Context, key string, effect func() (string, error)) (string, error) {
		if value, err := client.Get(ctx, "result:"+key).Result(); !errors.Is(err, redis.Nil) {
			return value, err
		}
		lock := locks.NewMutex("lock:"+key, redsync.WithExpiry(10*time.Second))
		if err := lock.LockContext(ctx); err != nil {
			return "", err
		}
		defer lock.UnlockContext(ctx)
		if value, err := client.Get(ctx, "result:"+key).Result(); !errors.Is(err, redis.Nil) {
			return value, err
		}
		value, err := effect()
		if err != nil {
			return "", err
		}
		return value, client.Set(ctx, "result:"+key, value, window).Err()
	}
}

func guarded(t testing.TB, client redis.UniversalClient) way {
	guard, err := idemredis.New[string](client, idemredis.Options{TTL: window})
	require.NoError(t, err)
	return func(ctx context.Context, key string, effect func() (string, error)) (string, error) {
		value, _, err := guard.Handle(ctx, idempotent.Request[string]{Key: key}, func(context.Context) (string, error) {
			return effect()
		})
		return value, err
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

func startServer(t testing.TB) *redis.Client {
	path, err := exec.LookPath("redis-server")
	require.NoError(t, err, "this needs a redis-server; on Debian: apt-get install redis-server")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	server := exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "")
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: 100, MaxRetryBackoff: 50 * time.Millisecond})
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, client.Ping(t.Context()).Err())
	return client
}

// TestAgainstALockByHand runs both in turns on one server: the machine's mood
// is the same for both, so that the ratio means something.
func TestAgainstALockByHand(t *testing.T) {
	const rounds, calls = 15, 200
	client, trips := startServer(t), &counter{}
	ways := []way{guarded(t, client), byHand(client)}
	effect := func() (string, error) { return "v", nil }
	for i, do := range ways { // the first use sends the scripts
		_, err := do(t.Context(), fmt.Sprintf("warm-%d", i), effect)
		require.NoError(t, err)
	}
	client.AddHook(trips)
	var took, sent [2][2][]float64 // by new key or replay, by way
	for round := range rounds {
		for kind := range 2 {
			for w, do := range ways {
				begun, before := time.Now(), trips.sent.Load()
				for i := range calls {
					value, err := do(t.Context(), fmt.Sprintf("%d-%d-%d", w, round, i), effect)
					require.NoError(t, err)
					require.Equal(t, "v", value)
				}
				took[kind][w] = append(took[kind][w], float64(time.Since(begun).Microseconds())/calls)
				sent[kind][w] = append(sent[kind][w], float64(trips.sent.Load()-before)/calls)
			}
		}
	}
	median := func(of []float64) float64 { slices.Sort(of); return of[len(of)/2] }
	for kind, name := range []string{"new key", "replay"} {
		t.Logf("%s: guard %.0f µs, %.0f round trips; by hand %.0f µs, %.0f round trips", name,
			median(took[kind][0]), median(sent[kind][0]), median(took[kind][1]), median(sent[kind][1]))
	}
	require.EqualValues(t, 2, median(sent[0][0]))
	require.EqualValues(t, 1, median(sent[1][0]))
	require.Less(t, median(sent[0][0]), median(sent[0][1]), "fewer round trips")
	require.Less(t, median(took[0][0]), median(took[0][1]), "not slower")
}
