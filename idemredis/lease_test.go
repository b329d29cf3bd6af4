package idemredis_test

import (
	"context"
	"errors"
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

// abandoned leaves a claim whose owner is gone, and whose lease is over.
func abandoned(t *testing.T, client *redis.Client, opts idemredis.Options, key string) {
	t.Helper()
	gone := redis.NewClient(&redis.Options{Addr: client.Options().Addr})
	guard := newGuard(t, gone, opts)
	_, _, err := guard.Handle(t.Context(), request(key), func(context.Context) (string, error) {
		return "", errors.Join(gone.Close(), errors.New("the worker dies here"))
	})
	require.ErrorIs(t, err, idemredis.ErrNotRecorded)
	if opts.OnLostLease == idemredis.HoldUnknown {
		eventually(t, "the lease to end", func() bool {
			_, ended, err := newGuard(t, client, opts).Lookup(t.Context(), key)
			return err == nil && ended
		})
	}
}

func TestLease(t *testing.T) {
	addr := startServer(t).addr
	short := idemredis.Options{Lease: 150 * time.Millisecond}

	t.Run("is renewed for as long as the effect runs", func(t *testing.T) {
		t.Parallel()
		guard := newGuard(t, dial(t, addr), short)
		_, _, err := guard.Handle(t.Context(), request("long"), func(ctx context.Context) (string, error) {
			<-time.After(5 * short.Lease)
			_, _, err := guard.Handle(context.Background(), idempotent.Request[string]{Key: "long", NoWait: true}, mustNotRun(t))
			require.ErrorIs(t, err, idempotent.ErrInFlight)
			return "", ctx.Err()
		})
		require.NoError(t, err)
	})

	for _, c := range []struct {
		name  string
		value string
		err   error
	}{
		{"a success", "v", nil},
		{"a failure", "", errors.New("declined")},
		{"a permanent failure", "", idempotent.Permanent(errors.New("declined"))},
	} {
		t.Run("that another took cancels the effect, and "+c.name+" is reported with ErrLeaseLost", func(t *testing.T) {
			t.Parallel()
			client := dial(t, addr)
			guard := newGuard(t, client, short)
			value, verdict, err := guard.Handle(t.Context(), request(c.name), func(ctx context.Context) (string, error) {
				require.NoError(t, client.Del(t.Context(), "idempotent::"+c.name).Err())
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), idemredis.ErrLeaseLost)
				return c.value, c.err
			})
			require.ErrorIs(t, err, idemredis.ErrLeaseLost)
			require.ErrorIs(t, err, idemredis.ErrNotRecorded)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
			}
			require.Equal(t, idempotent.Executed, verdict)
			require.Equal(t, c.value, value)
		})
	}

	t.Run("a panic after it was lost frees nothing", func(t *testing.T) {
		t.Parallel()
		s := startServer(t)
		p := startProxy(t, s.addr)
		guard, other := newGuard(t, dial(t, p.addr), short), newGuard(t, dial(t, s.addr), short)
		require.PanicsWithValue(t, "late", func() {
			_, _, _ = guard.Handle(t.Context(), request("k"), func(ctx context.Context) (string, error) {
				p.down()
				<-ctx.Done()
				p.up()
				panic("late")
			})
		})
		_, _, err := other.Handle(t.Context(), request("k"), mustNotRun(t))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
	})

	t.Run("that ran out holds the key until it is resolved", func(t *testing.T) {
		t.Parallel()
		client := dial(t, addr)
		guard := newGuard(t, client, short)
		abandoned(t, client, short, "resolved")
		for range 3 {
			_, verdict, err := guard.Handle(t.Context(), request("resolved"), mustNotRun(t))
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
			require.Equal(t, idempotent.Replayed, verdict)
		}
		require.EqualValues(t, -1, client.PTTL(t.Context(), "idempotent::resolved").Val(), "the record must not go by itself")
		done, err := guard.Resolve(t.Context(), "resolved", "by hand")
		require.NoError(t, err)
		require.True(t, done)
		value, verdict, err := guard.Handle(t.Context(), request("resolved"), mustNotRun(t))
		require.NoError(t, err)
		require.Equal(t, idempotent.Replayed, verdict)
		require.Equal(t, "by hand", value)
		require.Positive(t, client.PTTL(t.Context(), "idempotent::resolved").Val())
	})

	t.Run("that ran out holds the key until it is forgotten", func(t *testing.T) {
		t.Parallel()
		client := dial(t, addr)
		guard := newGuard(t, client, short)
		abandoned(t, client, short, "forgotten")
		had, err := guard.Forget(t.Context(), "forgotten")
		require.NoError(t, err)
		require.True(t, had)
		_, verdict, err := guard.Handle(t.Context(), request("forgotten"), gives("v"))
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
	})

	t.Run("that ran out is told to those who wait, as soon as it does", func(t *testing.T) {
		t.Parallel()
		client := dial(t, addr)
		opts := idemredis.Options{Lease: 2 * time.Second}
		guard := newGuard(t, client, opts)
		gone := redis.NewClient(&redis.Options{Addr: addr})
		begun := time.Now()
		go func() {
			_, _, _ = newGuard(t, gone, opts).Handle(context.Background(), request("waited for"), func(context.Context) (string, error) {
				return "", gone.Close()
			})
		}()
		eventually(t, "the claim", func() bool { return client.Exists(t.Context(), "idempotent::waited for").Val() == 1 })
		_, verdict, err := guard.Handle(t.Context(), request("waited for"), mustNotRun(t))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		require.Equal(t, idempotent.Shared, verdict)
		require.InDelta(t, opts.Lease, time.Since(begun), float64(300*time.Millisecond))
	})

	t.Run("that ran out is taken over by exactly one of fifty", func(t *testing.T) {
		t.Parallel()
		client := dial(t, addr)
		again := short
		again.OnLostLease = idemredis.RunAgain
		abandoned(t, client, again, "taken over")
		var runs atomic.Int64
		var all sync.WaitGroup
		for range 10 {
			guard := newGuard(t, dial(t, addr), again)
			for range 5 {
				all.Go(func() {
					value, _, err := guard.Handle(t.Context(), request("taken over"), func(context.Context) (string, error) {
						runs.Add(1)
						<-time.After(20 * time.Millisecond)
						return "v", nil
					})
					if err != nil || value != "v" {
						t.Errorf("got %q, %v", value, err)
					}
				})
			}
		}
		all.Wait()
		require.EqualValues(t, 1, runs.Load())
	})
}

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
