package idemredis_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
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
		// A busy machine may hold a renewal up for a while: no shorter lease.
		opts := idemredis.Options{Lease: 1500 * time.Millisecond}
		guard := newGuard(t, dial(t, addr), opts)
		_, _, err := guard.Handle(t.Context(), request("long"), func(ctx context.Context) (string, error) {
			<-time.After(3 * opts.Lease)
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

	t.Run("that ended by Redis's clock is not renewed, though no time has gone by here", func(t *testing.T) {
		t.Parallel()
		m := miniredis.RunT(t)
		guard := newGuard(t, dial(t, m.Addr()), short)
		_, _, err := guard.Handle(t.Context(), request("k"), func(ctx context.Context) (string, error) {
			m.SetTime(time.Now().Add(time.Hour))
			<-ctx.Done()
			return "v", nil
		})
		require.ErrorIs(t, err, idemredis.ErrLeaseLost)
		_, _, err = guard.Handle(t.Context(), request("k"), mustNotRun(t))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
	})

	t.Run("that another has taken over is the other's: the late owner neither renews nor settles it", func(t *testing.T) {
		t.Parallel()
		m := miniredis.RunT(t)
		again := short
		again.OnLostLease = idemredis.RunAgain
		late, next := newGuard(t, dial(t, m.Addr()), again), newGuard(t, dial(t, m.Addr()), again)
		taken, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		value, verdict, err := late.Handle(t.Context(), request("k"), func(ctx context.Context) (string, error) {
			m.SetTime(time.Now().Add(time.Hour)) // and stands still from here on
			go func() {
				_, _, err := next.Handle(context.Background(), request("k"), func(context.Context) (string, error) {
					close(taken)
					<-end
					return "next", nil
				})
				ended <- err
			}()
			<-taken
			<-ctx.Done()
			return "late", nil
		})
		require.ErrorIs(t, err, idemredis.ErrLeaseLost)
		require.Equal(t, idempotent.Executed, verdict)
		require.Equal(t, "late", value)
		close(end)
		require.NoError(t, <-ended)
		value, _, err = late.Handle(t.Context(), request("k"), mustNotRun(t))
		require.NoError(t, err)
		require.Equal(t, "next", value)
	})

	// The answers to the renewals are lost: Redis has moved the lease's end, the
	// owner does not know it and cancels its effect in time.
	for name, give := range map[string]func() (string, error){
		"an error": func() (string, error) { return "", errors.New("cancelled half way") },
		"a panic":  func() (string, error) { panic("cancelled half way") },
	} {
		t.Run("that is lost as far as the owner knows is not given up for "+name, func(t *testing.T) {
			t.Parallel()
			p, far, near := spoilt(t, idemredis.Options{Lease: 900 * time.Millisecond})
			func() {
				defer func() { _ = recover() }()
				_, _, err := far.Handle(t.Context(), request("k"), func(ctx context.Context) (string, error) {
					<-time.After(450 * time.Millisecond) // Redis has the script from the first renewal
					p.mute.Store(true)
					<-ctx.Done()
					require.ErrorIs(t, context.Cause(ctx), idemredis.ErrLeaseLost)
					p.up()
					_, _, err := near.Handle(t.Context(), idempotent.Request[string]{Key: "k", NoWait: true}, mustNotRun(t))
					require.ErrorIs(t, err, idempotent.ErrInFlight, "to Redis the lease still lives, or this tests nothing")
					return give()
				})
				require.ErrorIs(t, err, idemredis.ErrLeaseLost)
			}()
			_, _, err := near.Handle(t.Context(), request("k"), mustNotRun(t))
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		})
	}

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
		claimed := time.Now()
		_, verdict, err := guard.Handle(t.Context(), request("waited for"), mustNotRun(t))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		require.Equal(t, idempotent.Shared, verdict)
		require.GreaterOrEqual(t, time.Since(begun), opts.Lease-5*time.Millisecond)
		require.Less(t, time.Since(claimed), opts.Lease+400*time.Millisecond)
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
