package idemredis_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemredis"
)

// spoilt returns a guard whose talk with Redis goes through a proxy, and one
// whose talk does not.
func spoilt(t *testing.T, opts idemredis.Options) (*proxy, *idemredis.Guard[string], *idemredis.Guard[string]) {
	s := startServer(t)
	p := startProxy(t, s.addr)
	client := redis.NewClient(&redis.Options{Addr: p.addr, ContextTimeoutEnabled: true, ReadTimeout: 200 * time.Millisecond})
	t.Cleanup(func() { _ = client.Close() })
	return p, newGuard(t, client, opts), newGuard(t, dial(t, s.addr), opts)
}

func TestRedisDown(t *testing.T) {
	t.Run("before the effect: an error, no effect, and the key stays free", func(t *testing.T) {
		t.Parallel()
		p, far, near := spoilt(t, idemredis.Options{})
		p.down()
		_, verdict, err := far.Handle(t.Context(), request("k"), mustNotRun(t))
		require.ErrorIs(t, err, idemredis.ErrUnavailable)
		require.ErrorContains(t, err, `"k"`)
		require.Equal(t, idempotent.Refused, verdict)
		_, verdict, err = near.Handle(t.Context(), request("k"), gives("v"))
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
	})

	t.Run("the answer to the claim is lost: an error, no effect, and the claim is given up", func(t *testing.T) {
		t.Parallel()
		p, far, near := spoilt(t, idemredis.Options{})
		_, _, err := far.Handle(t.Context(), request("warm"), gives("v"))
		require.NoError(t, err)
		p.mute.Store(true)
		_, verdict, err := far.Handle(t.Context(), request("k"), mustNotRun(t))
		require.ErrorIs(t, err, idemredis.ErrUnavailable)
		require.Equal(t, idempotent.Refused, verdict)
		_, _, err = near.Handle(t.Context(), idempotent.Request[string]{Key: "k", NoWait: true}, mustNotRun(t))
		require.ErrorIs(t, err, idempotent.ErrInFlight, "the claim was made, or this tests nothing")
		p.up()
		value, verdict, err := near.Handle(t.Context(), request("k"), gives("v"))
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
		require.Equal(t, "v", value)
	})

	t.Run("while the effect runs, and back within the lease: as if nothing had been", func(t *testing.T) {
		t.Parallel()
		p, far, near := spoilt(t, idemredis.Options{Lease: 3 * time.Second})
		value, verdict, err := far.Handle(t.Context(), request("k"), func(ctx context.Context) (string, error) {
			p.down()
			<-time.After(1500 * time.Millisecond) // a renewal fails
			p.up()
			<-time.After(3 * time.Second)
			return "v", ctx.Err()
		})
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
		require.Equal(t, "v", value)
		value, verdict, err = near.Handle(t.Context(), request("k"), mustNotRun(t))
		require.NoError(t, err)
		require.Equal(t, idempotent.Replayed, verdict)
		require.Equal(t, "v", value)
	})

	t.Run("past the lease: the effect is told, and the call reports it", func(t *testing.T) {
		t.Parallel()
		p, far, near := spoilt(t, idemredis.Options{Lease: 300 * time.Millisecond})
		value, verdict, err := far.Handle(t.Context(), request("k"), func(ctx context.Context) (string, error) {
			p.down()
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), idemredis.ErrLeaseLost)
			eventually(t, "the lease to end by Redis's clock", func() bool {
				_, ended, err := near.Lookup(t.Context(), "k")
				return err == nil && ended
			})
			p.up()
			return "v", nil
		})
		require.ErrorIs(t, err, idemredis.ErrLeaseLost)
		require.ErrorIs(t, err, idemredis.ErrNotRecorded)
		require.Equal(t, idempotent.Executed, verdict)
		require.Equal(t, "v", value)
		_, verdict, err = near.Handle(t.Context(), request("k"), mustNotRun(t))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		require.Equal(t, idempotent.Replayed, verdict)
	})

	t.Run("after the effect: the value and ErrNotRecorded, and the key is held", func(t *testing.T) {
		t.Parallel()
		p, far, near := spoilt(t, idemredis.Options{Lease: 600 * time.Millisecond})
		value, verdict, err := far.Handle(t.Context(), request("k"), func(context.Context) (string, error) {
			p.down()
			return "v", nil
		})
		require.ErrorIs(t, err, idemredis.ErrNotRecorded)
		require.ErrorIs(t, err, idemredis.ErrUnavailable)
		require.Equal(t, idempotent.Executed, verdict)
		require.Equal(t, "v", value)
		_, _, err = near.Handle(t.Context(), request("k"), mustNotRun(t))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
	})

	t.Run("after a failed effect: its error and ErrNotRecorded", func(t *testing.T) {
		t.Parallel()
		p, far, _ := spoilt(t, idemredis.Options{Lease: 300 * time.Millisecond})
		failure := errors.New("declined")
		_, verdict, err := far.Handle(t.Context(), request("k"), func(context.Context) (string, error) {
			p.down()
			return "", failure
		})
		require.ErrorIs(t, err, failure)
		require.ErrorIs(t, err, idemredis.ErrNotRecorded)
		require.Equal(t, idempotent.Executed, verdict)
	})

	t.Run("for a moment after the effect: recorded all the same", func(t *testing.T) {
		t.Parallel()
		p, far, near := spoilt(t, idemredis.Options{})
		_, _, err := far.Handle(t.Context(), request("k"), func(context.Context) (string, error) {
			p.down()
			time.AfterFunc(700*time.Millisecond, p.up)
			return "v", nil
		})
		require.NoError(t, err)
		_, verdict, err := near.Handle(t.Context(), request("k"), mustNotRun(t))
		require.NoError(t, err)
		require.Equal(t, idempotent.Replayed, verdict)
	})

	t.Run("the answer to the settle is lost: asked again, it says yes", func(t *testing.T) {
		t.Parallel()
		p, far, near := spoilt(t, idemredis.Options{})
		_, _, err := far.Handle(t.Context(), request("warm"), gives("v")) // Redis has the scripts
		require.NoError(t, err)
		_, _, err = far.Handle(t.Context(), request("k"), func(context.Context) (string, error) {
			p.mute.Store(true)
			go func() {
				eventually(t, "the result to be kept", func() bool {
					_, kept, err := near.Lookup(context.Background(), "k")
					return err == nil && kept
				})
				p.up()
			}()
			return "v", nil
		})
		require.NoError(t, err)
		value, _, err := near.Handle(t.Context(), request("k"), mustNotRun(t))
		require.NoError(t, err)
		require.Equal(t, "v", value)
	})

	t.Run("while others wait: they are told, and run nothing", func(t *testing.T) {
		t.Parallel()
		p, far, near := spoilt(t, idemredis.Options{})
		claimed, end := make(chan struct{}), make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			_, _, err := near.Handle(context.Background(), request("k"), func(context.Context) (string, error) {
				close(claimed)
				<-end
				return "v", nil
			})
			ended <- err
		}()
		<-claimed
		time.AfterFunc(100*time.Millisecond, p.down)
		_, verdict, err := far.Handle(t.Context(), request("k"), mustNotRun(t))
		require.ErrorIs(t, err, idemredis.ErrUnavailable)
		require.Equal(t, idempotent.Refused, verdict)
		close(end)
		require.NoError(t, <-ended)
	})
}

func TestRedisSlow(t *testing.T) {
	t.Run("latency changes nothing but the time", func(t *testing.T) {
		t.Parallel()
		p, far, near := spoilt(t, idemredis.Options{Lease: 1500 * time.Millisecond})
		p.delay.Store(int64(50 * time.Millisecond))
		value, verdict, err := far.Handle(t.Context(), request("k"), func(ctx context.Context) (string, error) {
			<-time.After(4 * time.Second)
			return "v", ctx.Err()
		})
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
		require.Equal(t, "v", value)
		_, verdict, err = near.Handle(t.Context(), request("k"), mustNotRun(t))
		require.NoError(t, err)
		require.Equal(t, idempotent.Replayed, verdict)
	})

	t.Run("a claim that is told when its lease is over is given back, its effect not entered", func(t *testing.T) {
		t.Parallel()
		p, far, near := spoilt(t, idemredis.Options{Lease: 60 * time.Millisecond})
		_, _, err := far.Handle(t.Context(), request("warm"), gives("v"))
		require.NoError(t, err)
		p.delay.Store(int64(100 * time.Millisecond))
		_, verdict, err := far.Handle(t.Context(), request("k"), mustNotRun(t))
		require.ErrorIs(t, err, idemredis.ErrLeaseLost)
		require.Equal(t, idempotent.Refused, verdict)
		_, verdict, err = near.Handle(t.Context(), request("k"), gives("v"))
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
	})

	for name, dial := range map[string]func(testing.TB, string) *redis.Client{"heeds its ctx": dial, "heeds no ctx": dialHeedless} {
		t.Run("a ctx shorter than the latency ends the call, runs nothing and leaves the key free, with a client that "+name, func(t *testing.T) {
			t.Parallel()
			p, _, near := spoilt(t, idemredis.Options{})
			far := newGuard(t, dial(t, p.addr), idemredis.Options{})
			_, _, err := far.Handle(t.Context(), request("warm"), gives("v"))
			require.NoError(t, err)
			p.delay.Store(int64(3 * time.Second))
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			begun := time.Now()
			_, verdict, err := far.Handle(ctx, request("k"), mustNotRun(t))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, idempotent.Refused, verdict)
			require.Less(t, time.Since(begun), 2*time.Second)
			_, verdict, err = near.Handle(t.Context(), request("k"), gives("v"))
			require.NoError(t, err)
			require.Equal(t, idempotent.Executed, verdict)
		})
	}
}

// refusals are the ways in which Redis says no to a write.
var refusals = []struct {
	name     string
	says     string
	set, no  []any
	after    string
	recorded bool
}{
	{"out of memory", "OOM", []any{"CONFIG", "SET", "maxmemory", "1"}, []any{"CONFIG", "SET", "maxmemory", "0"}, "the lease is renewed and the outcome recorded", true},
	{"read-only", "READONLY", []any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"}, "the value, ErrNotRecorded, and no second run", false},
}

func TestRedisRefuses(t *testing.T) {
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			client := dial(t, startServer(t).addr)
			guard := newGuard(t, client, idemredis.Options{Lease: 1500 * time.Millisecond})
			set := func(args []any) { require.NoError(t, client.Do(t.Context(), args...).Err()) }
			_, _, err := guard.Handle(t.Context(), request("kept"), gives("v"))
			require.NoError(t, err)
			set(r.set)

			t.Run("before the effect: a typed error, no effect", func(t *testing.T) {
				_, verdict, err := guard.Handle(t.Context(), request("k"), mustNotRun(t))
				require.ErrorIs(t, err, idemredis.ErrUnavailable)
				require.ErrorContains(t, err, r.says)
				require.Equal(t, idempotent.Refused, verdict)
			})
			t.Run("kept results are replayed", func(t *testing.T) {
				value, verdict, err := guard.Handle(t.Context(), request("kept"), mustNotRun(t))
				require.NoError(t, err)
				require.Equal(t, idempotent.Replayed, verdict)
				require.Equal(t, "v", value)
			})
			set(r.no)
			t.Run("after it: "+r.after, func(t *testing.T) {
				value, verdict, err := guard.Handle(t.Context(), request("k"), func(ctx context.Context) (string, error) {
					set(r.set)
					if r.recorded {
						<-time.After(4 * time.Second) // longer than the lease
					}
					return "v", nil
				})
				require.Equal(t, idempotent.Executed, verdict)
				require.Equal(t, "v", value)
				if r.recorded {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, idemredis.ErrNotRecorded)
					require.ErrorContains(t, err, r.says)
				}
				set(r.no)
				_, _, err = guard.Handle(t.Context(), request("k"), mustNotRun(t))
				require.Equal(t, !r.recorded, errors.Is(err, idempotent.ErrOutcomeUnknown))
			})
		})
	}
}

func TestScriptCacheFlushed(t *testing.T) {
	client := dial(t, startServer(t).addr)
	guard := newGuard(t, client, idemredis.Options{})
	flush := func() { require.NoError(t, client.ScriptFlush(t.Context()).Err()) }
	flush()
	_, verdict, err := guard.Handle(t.Context(), request("k"), func(context.Context) (string, error) {
		flush()
		return "v", nil
	})
	require.NoError(t, err)
	require.Equal(t, idempotent.Executed, verdict)
	flush()
	value, verdict, err := guard.Handle(t.Context(), request("k"), mustNotRun(t))
	require.NoError(t, err)
	require.Equal(t, idempotent.Replayed, verdict)
	require.Equal(t, "v", value)
}

func TestForeignRecord(t *testing.T) {
	client := dial(t, miniServer(t))
	guard := newGuard(t, client, idemredis.Options{})
	require.NoError(t, client.Set(t.Context(), "idempotent::k", "not ours", 0).Err())
	_, verdict, err := guard.Handle(t.Context(), request("k"), mustNotRun(t))
	require.ErrorContains(t, err, "WRONGTYPE")
	require.Equal(t, idempotent.Refused, verdict)
	for state, want := range map[string]string{"odd": `state "odd"`, "claim": ""} {
		name := fmt.Sprintf("idempotent::%s", state)
		require.NoError(t, client.HSet(t.Context(), name, "state", state).Err())
		_, _, err = guard.Handle(t.Context(), request(state), mustNotRun(t))
		require.ErrorContains(t, err, want)
	}
}
