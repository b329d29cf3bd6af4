package idemredis_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemredis"
)

// A relay passes scripts on to a server until it is told to spoil one.
type relay struct {
	addr   string
	loses  atomic.Bool // the answer to the next script, and its connection
	starts atomic.Bool // from then on scripts are told that the server is starting
	down   atomic.Bool // connections break
}

func startRelay(t *testing.T, server string) *relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{addr: l.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server)
			if err != nil || r.down.Load() {
				near.Close()
				continue
			}
			var lost atomic.Bool
			serving.Go(func() {
				defer near.Close()
				copyWhile(near, far, func([]byte) bool { return !lost.Load() && !r.down.Load() })
			})
			serving.Go(func() {
				defer far.Close()
				copyWhile(far, near, func(sent []byte) bool { return r.spoil(near, sent, &lost) })
			})
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	return r
}

// copyWhile copies what pass admits, and breaks the connection off at what it
// does not.
func copyWhile(to io.Writer, from io.Reader, pass func([]byte) bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || !pass(buf[:n]) {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (r *relay) spoil(near io.Writer, sent []byte, lost *atomic.Bool) bool {
	switch {
	case r.down.Load():
		return false
	case !bytes.Contains(sent, []byte("evalsha")):
	case r.loses.CompareAndSwap(true, false):
		lost.Store(true)
	case r.starts.Load() && !lost.Load():
		io.WriteString(near, "-LOADING Redis is loading the dataset in memory\r\n")
		return false
	}
	return true
}

func (r *relay) client(t *testing.T) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: r.addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { c.Close() })
	return c
}

// It is known that their effect has not run: they are given up, and never held as
// unknown.
func TestClaimsThatNobodyEntered(t *testing.T) {
	t.Run("the answer was lost, and the next try met a server that starts", func(t *testing.T) {
		r := startRelay(t, startServer(t).addr)
		g := newGuard(t, r.client(t), idemredis.Options{Lease: time.Second})
		_, _, err := g.Handle(t.Context(), request("warm"), gives("x"))
		require.NoError(t, err)
		r.loses.Store(true)
		r.starts.Store(true)
		_, _, err = g.Handle(t.Context(), request("k"), mustNotRun(t))
		require.ErrorIs(t, err, idemredis.ErrUnavailable)
		require.False(t, r.loses.Load())
		r.starts.Store(false)
		got, verdict, err := g.Handle(t.Context(), request("k"), gives("ran"))
		require.NoError(t, err)
		require.Equal(t, "ran", got)
		require.Equal(t, idempotent.Executed, verdict)
	})
	t.Run("OnStale panicked when the lease was lost", func(t *testing.T) {
		const lease = 300 * time.Millisecond
		r := startRelay(t, startServer(t).addr)
		first := true
		g := newGuard(t, r.client(t), idemredis.Options{Lease: lease, TTL: time.Millisecond, StaleFor: time.Hour,
			OnStale: func(context.Context, string, time.Time) error {
				if first {
					first = false
					r.down.Store(true)
					time.Sleep(2 * lease)
					r.down.Store(false)
					panic("hook")
				}
				return nil
			}})
		_, _, err := g.Handle(t.Context(), request("k"), gives("x"))
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			_, found, err := g.Lookup(t.Context(), "k")
			return err == nil && !found
		}, 10*time.Second, time.Millisecond)
		require.PanicsWithValue(t, "hook", func() { g.Handle(t.Context(), request("k"), mustNotRun(t)) })
		_, verdict, err := g.Handle(t.Context(), request("k"), gives("ran"))
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
	})
}

// The first try frees the key and its answer is lost; the second finds nothing.
func TestFreedTwice(t *testing.T) {
	r := startRelay(t, startServer(t).addr)
	g := newGuard(t, r.client(t), idemredis.Options{})
	_, _, err := g.Handle(t.Context(), request("warm"), func(context.Context) (string, error) { return "", errNo })
	require.Equal(t, errNo, err)
	_, verdict, err := g.Handle(t.Context(), request("k"), func(context.Context) (string, error) {
		r.loses.Store(true)
		return "", errNo
	})
	require.False(t, r.loses.Load())
	require.Equal(t, idempotent.Executed, verdict)
	require.Equal(t, errNo, err)
	_, verdict, err = g.Handle(t.Context(), request("k"), gives("next"))
	require.NoError(t, err)
	require.Equal(t, idempotent.Executed, verdict)
}

// Its ctx ends while the claim is on its way to it.
func TestAWaiterThatLeavesAsItGetsTheClaim(t *testing.T) {
	client := startRelay(t, startServer(t).addr).client(t)
	g := newGuard(t, client, idemredis.Options{TTL: time.Millisecond, StaleFor: time.Hour,
		OnStale: func(ctx context.Context, _ string, _ time.Time) error {
			if leave, ok := ctx.Value(leaving{}).(context.CancelFunc); ok {
				leave()
			}
			return nil
		}})
	_, _, err := g.Handle(t.Context(), request("k"), gives("x"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, found, err := g.Lookup(t.Context(), "k")
		return err == nil && !found
	}, 10*time.Second, time.Millisecond)
	ctx, leave := context.WithCancel(t.Context())
	ctx = context.WithValue(ctx, leaving{}, leave)
	var waiter sync.WaitGroup
	_, _, err = g.Handle(t.Context(), request("k"), func(context.Context) (string, error) {
		waiter.Go(func() {
			_, verdict, err := g.Handle(ctx, request("k"), mustNotRun(t))
			assert.Equal(t, idempotent.Refused, verdict)
			assert.ErrorIs(t, err, idempotent.ErrInFlight)
			assert.ErrorIs(t, err, context.Canceled)
		})
		eventually(t, "a waiter", func() bool { return client.HGet(t.Context(), "idempotent::k", "waited").Val() == "1" })
		return "", errNo
	})
	require.Equal(t, errNo, err)
	waiter.Wait()
}

type leaving struct{}

var errNo = errors.New("no")

// A client that ends a command with its ctx's deadline knows nothing of a cancel.
func TestACancelledCallerLeavesASilentRedis(t *testing.T) {
	p := startProxy(t, startServer(t).addr)
	client := redis.NewClient(&redis.Options{Addr: p.addr, ContextTimeoutEnabled: true, ReadTimeout: time.Minute})
	t.Cleanup(func() { client.Close() })
	g := newGuard(t, client, idemredis.Options{})
	_, _, err := g.Handle(t.Context(), request("warm"), gives("x"))
	require.NoError(t, err)
	p.mute.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	before := time.Now()
	_, verdict, err := g.Handle(ctx, request("k"), mustNotRun(t))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, idempotent.Refused, verdict)
	require.Less(t, time.Since(before), 30*time.Second)
}
