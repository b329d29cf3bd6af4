package idemredis_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

	t.Run("is ended by a message, long before the next look", func(t *testing.T) {
		t.Parallel()
		const keys = 20
		running, waiting := newGuard(t, dial(t, addr), idemredis.Options{}), newGuard(t, dial(t, addr), idemredis.Options{})
		end := make(chan struct{})
		var ended atomic.Int64 // UnixNano
		var late atomic.Int64
		var all, claimed sync.WaitGroup
		claimed.Add(keys)
		for i := range keys {
			key := request(fmt.Sprintf("woken-%d", i))
			all.Go(func() {
				_, _, _ = running.Handle(context.Background(), key, func(context.Context) (string, error) {
					claimed.Done()
					<-end
					return "", nil
				})
			})
			all.Go(func() {
				claimed.Wait()
				_, _, _ = waiting.Handle(context.Background(), key, gives(""))
				if time.Now().UnixNano()-ended.Load() > int64(150*time.Millisecond) {
					late.Add(1)
				}
			})
		}
		// After two seconds the pauses are half a second long.
		<-time.After(2 * time.Second)
		ended.Store(time.Now().UnixNano())
		close(end)
		all.Wait()
		require.LessOrEqual(t, late.Load(), int64(2))
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
