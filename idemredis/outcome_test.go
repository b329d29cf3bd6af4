package idemredis_test

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemredis"
)

func TestOptions(t *testing.T) {
	client := dial(t, miniServer(t))
	for _, c := range []struct {
		opts idemredis.Options
		says string
		kind error
	}{
		{idemredis.Options{TTL: -1}, "Options.TTL is -1ns", idempotent.ErrInvalidTTL},
		{idemredis.Options{FailureTTL: -time.Second}, "Options.FailureTTL is -1s", idempotent.ErrInvalidTTL},
		{idemredis.Options{Lease: -1}, "Options.Lease is -1ns", nil},
		{idemredis.Options{StaleFor: -1}, "Options.StaleFor is -1ns", nil},
		{idemredis.Options{Wait: -1}, "Options.Wait is -1ns", nil},
		{idemredis.Options{MaxValue: -1}, "Options.MaxValue is -1", nil},
		{idemredis.Options{OnLostLease: 7}, "Options.OnLostLease is LostLease(7)", nil},
		{idemredis.Options{Prefix: "{app}"}, `Options.Prefix is "{app}"`, nil},
		{idemredis.Options{Consumer: "a:b"}, `Options.Consumer is "a:b"`, nil},
	} {
		t.Run("are refused by field and value: "+c.says, func(t *testing.T) {
			_, err := idemredis.New[string](client, c.opts)
			require.ErrorContains(t, err, c.says)
			if c.kind != nil {
				require.ErrorIs(t, err, c.kind)
			}
		})
	}
	t.Run("a missing client is refused", func(t *testing.T) {
		_, err := idemredis.New[string](nil, idemredis.Options{})
		require.ErrorContains(t, err, "client is nil")
	})
	t.Run("consumers each handle a key once", func(t *testing.T) {
		for _, consumer := range []string{"", "billing", "mail"} {
			guard := newGuard(t, client, idemredis.Options{Consumer: consumer})
			_, verdict, err := guard.Handle(t.Context(), request("event"), gives(consumer))
			require.NoError(t, err)
			require.Equal(t, idempotent.Executed, verdict)
		}
		guard := newGuard(t, client, idemredis.Options{})
		_, verdict, err := guard.Handle(t.Context(), request("billing:event"), gives(""))
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict, "a key that looks like a consumer's is another key")
	})
}

func TestWindow(t *testing.T) {
	client := dial(t, startServer(t).addr)
	guard := newGuard(t, client, idemredis.Options{TTL: time.Hour, FailureTTL: time.Minute})
	run := func(key string, ttl time.Duration, err error) time.Duration {
		_, _, _ = guard.Handle(t.Context(), idempotent.Request[string]{Key: key, TTL: ttl}, func(context.Context) (string, error) {
			return "", err
		})
		return client.PTTL(t.Context(), "idempotent::"+key).Val()
	}
	near := func(want, got time.Duration) {
		require.LessOrEqual(t, got, want)
		require.Greater(t, got, want-10*time.Second)
	}
	t.Run("is the guard's, the request's, or the failure's", func(t *testing.T) {
		near(time.Hour, run("default", 0, nil))
		near(30*time.Minute, run("own", 30*time.Minute, nil))
		near(time.Minute, run("permanent", 30*time.Minute, idempotent.Permanent(io.EOF)))
		near(time.Minute, run("unknown", 0, idempotent.Unknown(io.EOF)))
	})
	t.Run("below a millisecond is rounded up, never to no expiry", func(t *testing.T) {
		run("short", 1, nil)
		eventually(t, "the result to go", func() bool { return client.Exists(t.Context(), "idempotent::short").Val() == 0 })
		require.LessOrEqual(t, run("sub", 2500*time.Microsecond, nil), 3*time.Millisecond)
	})
	t.Run("for ever has no expiry", func(t *testing.T) {
		require.EqualValues(t, -1, run("for ever", idempotent.Forever, nil))
		require.EqualValues(t, -1, run("nearly", math.MaxInt64-1, nil))
	})
	t.Run("a free key leaves nothing in Redis", func(t *testing.T) {
		run("failed", 0, io.EOF)
		require.Zero(t, client.Exists(t.Context(), "idempotent::failed").Val())
	})
}

func TestLookup(t *testing.T) {
	guard := newGuard(t, dial(t, startServer(t).addr), idemredis.Options{TTL: time.Hour})
	t.Run("finds nothing where nothing is kept", func(t *testing.T) {
		_, found, err := guard.Lookup(t.Context(), "none")
		require.NoError(t, err)
		require.False(t, found)
	})
	t.Run("shows a result with its fingerprint and its times, and changes nothing", func(t *testing.T) {
		begun := time.Now()
		_, _, err := guard.Handle(t.Context(), idempotent.Request[string]{Key: "k", Fingerprint: "print"}, func(context.Context) (string, error) {
			_, found, err := guard.Lookup(t.Context(), "k")
			require.NoError(t, err)
			require.False(t, found, "a running claim is no result")
			return "v", nil
		})
		require.NoError(t, err)
		for range 2 {
			asked := time.Now()
			record, found, err := guard.Lookup(t.Context(), "k")
			early := time.Since(asked) + 5*time.Millisecond // at most
			require.NoError(t, err)
			require.True(t, found)
			require.Equal(t, "v", record.Value)
			require.NoError(t, record.Err)
			require.Equal(t, "print", record.Fingerprint)
			require.WithinRange(t, record.CompletedAt, begun.Add(-early), time.Now())
			require.WithinRange(t, record.ExpiresAt, begun.Add(time.Hour-early), time.Now().Add(time.Hour))
		}
	})
	t.Run("shows no end for ever", func(t *testing.T) {
		_, _, err := guard.Handle(t.Context(), idempotent.Request[string]{Key: "ever", TTL: idempotent.Forever}, gives("v"))
		require.NoError(t, err)
		record, _, err := guard.Lookup(t.Context(), "ever")
		require.NoError(t, err)
		require.Zero(t, record.ExpiresAt)
	})
	t.Run("a result is neither resolved nor a running claim forgotten", func(t *testing.T) {
		done, err := guard.Resolve(t.Context(), "k", "other")
		require.NoError(t, err)
		require.False(t, done)
		_, _, err = guard.Handle(t.Context(), request("running"), func(context.Context) (string, error) {
			had, err := guard.Forget(t.Context(), "running")
			require.NoError(t, err)
			require.False(t, had)
			done, err := guard.Resolve(t.Context(), "running", "other")
			require.NoError(t, err)
			require.False(t, done)
			return "v", nil
		})
		require.NoError(t, err)
	})
}

func TestKeptFailure(t *testing.T) {
	guard := newGuard(t, dial(t, miniServer(t)), idemredis.Options{})
	for name, mark := range map[string]func(error) error{"permanent": idempotent.Permanent, "unknown": idempotent.Unknown} {
		t.Run(name+" keeps its text, its mark and its value", func(t *testing.T) {
			failure := mark(errors.New("card declined"))
			fails := func(context.Context) (string, error) { return "code 51", failure }
			_, _, err := guard.Handle(t.Context(), request(name), fails)
			require.Equal(t, failure, err, "its own caller gets the error itself")
			value, verdict, err := guard.Handle(t.Context(), request(name), mustNotRun(t))
			require.EqualError(t, err, failure.Error())
			require.Equal(t, "code 51", value)
			require.Equal(t, idempotent.Replayed, verdict)
			require.Equal(t, idempotent.IsPermanent(failure), idempotent.IsPermanent(err))
			require.Equal(t, name == "unknown", errors.Is(err, idempotent.ErrOutcomeUnknown))
		})
	}
	t.Run("an unknown outcome is resolved", func(t *testing.T) {
		done, err := guard.Resolve(t.Context(), "unknown", "settled")
		require.NoError(t, err)
		require.True(t, done)
		value, _, err := guard.Handle(t.Context(), request("unknown"), mustNotRun(t))
		require.NoError(t, err)
		require.Equal(t, "settled", value)
	})
}

// A memorySpill is the least that is a Spill.
type memorySpill struct {
	mu   sync.Mutex
	held map[string]string
	fail error
}

func (s *memorySpill) Put(_ context.Context, key string, body io.Reader) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, err := io.ReadAll(body)
	s.held["ref of "+key] = string(raw)
	return "ref of " + key, errors.Join(err, s.fail)
}

func (s *memorySpill) Open(_ context.Context, ref string) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if body, ok := s.held[ref]; ok {
		return io.NopCloser(strings.NewReader(body)), nil
	}
	return nil, errors.New("gone")
}

type brokenCodec struct{}

func (brokenCodec) Marshal(any) ([]byte, error) { return nil, errors.New("no way to write it") }
func (brokenCodec) Unmarshal([]byte, any) error { return errors.New("no way to read it") }

// handled calls the key twice; the second call must not run.
func handled(t *testing.T, guard *idemredis.Guard[string], value string) (replayed string, first, second error) {
	got, verdict, first := guard.Handle(t.Context(), request("k"), gives(value))
	require.Equal(t, idempotent.Executed, verdict)
	require.Equal(t, value, got, "the call's own value comes back whatever becomes of it")
	replayed, verdict, second = guard.Handle(t.Context(), request("k"), mustNotRun(t))
	require.Equal(t, idempotent.Replayed, verdict)
	return replayed, first, second
}

func TestValue(t *testing.T) {
	large := strings.Repeat("x", 200)
	open := func(opts idemredis.Options) *idemredis.Guard[string] {
		return newGuard(t, dial(t, miniServer(t)), opts)
	}

	t.Run("of MaxValue bytes is kept", func(t *testing.T) {
		replayed, first, second := handled(t, open(idemredis.Options{MaxValue: len(large) + 2}), large)
		require.NoError(t, first)
		require.NoError(t, second)
		require.Equal(t, large, replayed)
	})
	t.Run("that is larger is refused by name and size, and never makes a second run", func(t *testing.T) {
		_, first, second := handled(t, open(idemredis.Options{MaxValue: len(large) + 1}), large)
		require.ErrorIs(t, first, idemredis.ErrNoValue)
		require.ErrorIs(t, second, idemredis.ErrNoValue)
		require.ErrorContains(t, second, `key "k": 202 bytes, Options.MaxValue is 201`)
		require.NotErrorIs(t, first, idemredis.ErrNotRecorded)
	})
	t.Run("that is larger is spilled and replayed from there", func(t *testing.T) {
		spill := &memorySpill{held: map[string]string{}}
		guard := open(idemredis.Options{MaxValue: 10, Spill: spill})
		replayed, first, second := handled(t, guard, large)
		require.NoError(t, first)
		require.NoError(t, second)
		require.Equal(t, large, replayed)
		clear(spill.held)
		_, verdict, err := guard.Handle(t.Context(), request("k"), mustNotRun(t))
		require.ErrorIs(t, err, idemredis.ErrNoValue)
		require.Equal(t, idempotent.Replayed, verdict)
	})
	t.Run("that cannot be spilled or encoded never makes a second run", func(t *testing.T) {
		spill := &memorySpill{held: map[string]string{}, fail: errors.New("disk full")}
		_, first, second := handled(t, open(idemredis.Options{MaxValue: 10, Spill: spill}), large)
		require.ErrorIs(t, first, idemredis.ErrNoValue)
		require.ErrorContains(t, second, "disk full")
		_, first, second = handled(t, open(idemredis.Options{Codec: brokenCodec{}}), "v")
		require.ErrorContains(t, first, "no way to write it")
		require.ErrorContains(t, second, "no way to write it")
	})
	t.Run("that cannot be read is an error, not a run", func(t *testing.T) {
		client := dial(t, miniServer(t))
		_, _, err := newGuard(t, client, idemredis.Options{}).Handle(t.Context(), request("k"), gives("v"))
		require.NoError(t, err)
		_, verdict, err := newGuard(t, client, idemredis.Options{Codec: brokenCodec{}}).Handle(t.Context(), request("k"), mustNotRun(t))
		require.ErrorContains(t, err, "no way to read it")
		require.Equal(t, idempotent.Replayed, verdict)
	})
	t.Run("whose codec panics never makes a second run", func(t *testing.T) {
		client := dial(t, miniServer(t))
		opts := idemredis.Options{Lease: 50 * time.Millisecond, Codec: panicCodec{}}
		guard := newGuard(t, client, opts)
		require.Panics(t, func() { _, _, _ = guard.Handle(t.Context(), request("k"), gives("v")) })
		_, _, err := guard.Handle(t.Context(), request("k"), mustNotRun(t))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
	})
}

type panicCodec struct{}

func (panicCodec) Marshal(any) ([]byte, error) { panic("codec") }
func (panicCodec) Unmarshal([]byte, any) error { panic("codec") }

// twoNodes is a cluster of two servers, each with half of the slots.
func twoNodes(t *testing.T) *redis.ClusterClient {
	var addrs []string
	var first *redis.Client
	for i, slots := range [][2]int{{0, 8191}, {8192, 16383}} {
		s := startServer(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
		addrs = append(addrs, s.addr)
		client := dial(t, s.addr)
		require.NoError(t, client.ClusterAddSlotsRange(t.Context(), slots[0], slots[1]).Err())
		if i == 0 {
			first = client
			continue
		}
		host, port, _ := strings.Cut(addrs[0], ":")
		require.NoError(t, client.ClusterMeet(t.Context(), host, port).Err())
		for _, c := range []*redis.Client{first, client} {
			eventually(t, "the cluster to form", func() bool {
				return strings.Contains(c.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
			})
		}
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = cluster.Close() })
	return cluster
}
