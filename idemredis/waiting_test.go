package idemredis_test

import (
	"context"
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemredis"
)

func TestWaiting(t *testing.T) {
	addr := startServer(t).addr

	t.Run("ends with Options.Wait", func(t *testing.T) {
		t.Parallel()
		guard := newGuard(t, dial(t, addr), idemredis.Options{Wait: 50 * time.Millisecond})
		_, _, err := guard.Handle(t.Context(), request("bounded"), func(context.Context) (string, error) {
			begun := time.Now()
			_, verdict, err := guard.Handle(context.Background(), request("bounded"), mustNotRun(t))
			require.ErrorIs(t, err, idempotent.ErrInFlight)
			require.Equal(t, idempotent.Refused, verdict)
			require.GreaterOrEqual(t, time.Since(begun), 50*time.Millisecond)
			return "", nil
		})
		require.NoError(t, err)
	})

	t.Run("is ended by a message, at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := miniredis.NewMiniRedis()
			defer m.Close()
			m.ClockTTL(true)
			open := func() (*idemredis.Guard[string], func() error) {
				client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0", Dialer: func(context.Context, string, string) (net.Conn, error) { return m.Dial() }})
				return newGuard(t, client, idemredis.Options{}), client.Close
			}
			running, closeRunning := open()
			waiting, closeWaiting := open()
			claimed, ended := make(chan struct{}), make(chan struct{})
			go func() {
				_, _, _ = running.Handle(context.Background(), request("k"), func(context.Context) (string, error) {
					close(claimed)
					time.Sleep(25*time.Second + 7) // virtual, and no multiple of any pause
					return "v", nil
				})
				close(ended)
			}()
			<-claimed
			begun := time.Now()
			value, verdict, err := waiting.Handle(context.Background(), request("k"), mustNotRun(t))
			require.NoError(t, err)
			require.Equal(t, "v", value)
			require.Equal(t, idempotent.Shared, verdict)
			require.Equal(t, 25*time.Second+7, time.Since(begun))
			<-ended
			require.NoError(t, closeRunning())
			require.NoError(t, closeWaiting())
		})
	})

	t.Run("leaves no subscription and no goroutine behind", func(t *testing.T) {
		client := dial(t, startServer(t).addr)
		require.NoError(t, client.Ping(t.Context()).Err())
		subscribers := func() int64 {
			return client.PubSubNumSub(t.Context(), "idempotent::").Val()["idempotent::"]
		}
		before := runtime.NumGoroutine()
		guard := newGuard(t, client, idemredis.Options{})
		_, _, err := guard.Handle(t.Context(), request("k"), func(context.Context) (string, error) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			gone := make(chan error)
			go func() {
				_, _, err := guard.Handle(ctx, request("k"), mustNotRun(t))
				gone <- err
			}()
			eventually(t, "the waiter to listen", func() bool { return subscribers() == 1 })
			cancel()
			require.ErrorIs(t, <-gone, idempotent.ErrInFlight)
			return "", nil
		})
		require.NoError(t, err)
		eventually(t, "the subscription to end", func() bool { return subscribers() == 0 })
		eventually(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
	})

	t.Run("works without the right to subscribe or to publish", func(t *testing.T) {
		t.Parallel()
		admin := dial(t, startServer(t).addr)
		require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all", "-@pubsub", "resetchannels").Err())
		client := redis.NewClient(&redis.Options{Addr: admin.Options().Addr, Username: "worker", Password: "secret"})
		t.Cleanup(func() { _ = client.Close() })
		guard := newGuard(t, client, idemredis.Options{})
		claimed := make(chan struct{})
		go func() {
			_, _, _ = guard.Handle(context.Background(), request("k"), func(context.Context) (string, error) {
				close(claimed)
				<-time.After(300 * time.Millisecond)
				return "v", nil
			})
		}()
		<-claimed
		value, verdict, err := guard.Handle(t.Context(), request("k"), mustNotRun(t))
		require.NoError(t, err)
		require.Equal(t, idempotent.Shared, verdict)
		require.Equal(t, "v", value)
	})
}

func TestDeadlock(t *testing.T) {
	addr := miniServer(t)
	one, two := newGuard(t, dial(t, addr), idemredis.Options{}), newGuard(t, dial(t, addr), idemredis.Options{})
	_, _, err := one.Handle(t.Context(), request("outer"), func(ctx context.Context) (string, error) {
		_, _, err := one.Handle(ctx, request("inner"), func(ctx context.Context) (string, error) {
			_, verdict, err := two.Handle(ctx, request("outer"), mustNotRun(t))
			require.Equal(t, idempotent.Refused, verdict)
			return "", err
		})
		return "", err
	})
	require.ErrorIs(t, err, idempotent.ErrDeadlock)
}
