package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemtest"
)

type (
	tier        = idempotent.Tier[string]
	tierOptions = idempotent.TierOptions[string]
)

// A distantStore is an endpoint seen as a store that several processes share.
type distantStore[V any] struct {
	*idempotent.Endpoint[string, V]
	calls, lookups atomic.Int64
	settling       time.Duration // between an effect's end and its record
	down           error         // what calls are refused with
	answering      func()        // called between an answer and its arrival
}

func (s *distantStore[V]) Handle(ctx context.Context, req request, effect func(context.Context) (V, error)) (value V, verdict idempotent.Verdict, err error) {
	s.calls.Add(1)
	if s.down != nil {
		return value, refused, s.down
	}
	value, verdict, err = s.Endpoint.Handle(ctx, req, func(ctx context.Context) (V, error) {
		value, err := effect(ctx)
		time.Sleep(s.settling)
		return value, err
	})
	if s.answering != nil {
		s.answering()
	}
	return value, verdict, err
}

func (s *distantStore[V]) Forget(_ context.Context, key string) (bool, error) {
	return s.Endpoint.Forget(key), nil
}

func (s *distantStore[V]) Lookup(_ context.Context, key string) (idempotent.Record[V], bool, error) {
	s.lookups.Add(1)
	record, found := s.Endpoint.Lookup(key)
	return record, found, nil
}

// newStore's own window is another than the tiers', which must not matter.
func newStore(t *testing.T) *distantStore[string] {
	return &distantStore[string]{Endpoint: open(t, options{TTL: 3 * window})}
}

func openTier(t *testing.T, store idempotent.Store[string], opts tierOptions) *tier {
	if opts.TTL == 0 {
		opts.TTL = window
	}
	made, err := idempotent.NewTier(store, opts)
	require.NoError(t, err)
	return made
}

// startIn begins a call in the tier and lets it go as far as it can for now.
func startIn(on *tier, ctx context.Context, req request, fx effect) *call {
	c := &call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer func() { c.thrown = recover() }()
		c.value, c.verdict, c.err = on.Handle(ctx, req, fx)
		c.returned = true
	}()
	synctest.Wait()
	return c
}

func TestTierConforms(t *testing.T) {
	idemtest.Run(t, func(t *testing.T) idemtest.Guard {
		endpoint, err := idempotent.New(idempotent.Options[string, []byte]{})
		require.NoError(t, err)
		made, err := idempotent.NewTier(&distantStore[[]byte]{Endpoint: endpoint}, idempotent.TierOptions[[]byte]{})
		require.NoError(t, err)
		return made
	}, idemtest.Abilities{
		Bubble: true, SameError: true, InOrder: true, SeesClaims: true, Parallel: true,
		DeadReplay: true, NamesKey: true, Deadlock: true, AnyKey: true,
	})
}

func TestTierOptions(t *testing.T) {
	for says, opts := range map[string]tierOptions{
		"TierOptions.TTL is -1ns":     {TTL: -1},
		"TierOptions.Memory is -1ns":  {Memory: -1},
		"TierOptions.Capacity is -1,": {Capacity: -1},
	} {
		_, err := idempotent.NewTier(newStore(t), opts)
		require.ErrorContains(t, err, says)
	}
	_, err := idempotent.NewTier[string](nil, tierOptions{})
	require.ErrorContains(t, err, "store")
}

func TestTier(t *testing.T) {
	key := request{Key: "k"}

	promise(t, "what it ran is replayed without the store", func(t *testing.T) {
		store := newStore(t)
		near := openTier(t, store, tierOptions{})
		gives(t, "v", executed)(near.Handle(bg, key, returns("v", nil)))
		for range 10 {
			gives(t, "v", replayed)(near.Handle(bg, key, forbidden(t)))
		}
		require.EqualValues(t, 1, store.calls.Load())
		require.Zero(t, store.lookups.Load())
	})

	promise(t, "what another process ran is asked for once", func(t *testing.T) {
		store := newStore(t)
		near, other := openTier(t, store, tierOptions{}), openTier(t, store, tierOptions{})
		gives(t, "v", executed)(other.Handle(bg, key, returns("v", nil)))
		for range 10 {
			gives(t, "v", replayed)(near.Handle(bg, key, forbidden(t)))
		}
		require.EqualValues(t, 2, store.calls.Load())
		require.EqualValues(t, 1, store.lookups.Load())
	})

	promise(t, "duplicates of a running call meet in memory", func(t *testing.T) {
		store := newStore(t)
		near := openTier(t, store, tierOptions{})
		first := startIn(near, bg, key, after(time.Second, returns("v", nil)))
		var others []*call
		for range 50 {
			others = append(others, startIn(near, bg, key, forbidden(t)))
		}
		gives(t, "v", executed)(first.end(t))
		for _, c := range others {
			gives(t, "v", shared)(c.end(t))
		}
		require.EqualValues(t, 1, store.calls.Load())
	})

	promise(t, "duplicates of a call that waits for another process share what that one ran", func(t *testing.T) {
		store := newStore(t)
		near, other := openTier(t, store, tierOptions{}), openTier(t, store, tierOptions{})
		running := startIn(other, bg, key, after(time.Second, returns("v", nil)))
		first, second := startIn(near, bg, key, forbidden(t)), startIn(near, bg, key, forbidden(t))
		require.EqualValues(t, 2, store.calls.Load())
		gives(t, "v", executed)(running.end(t))
		gives(t, "v", shared)(first.end(t))
		gives(t, "v", shared)(second.end(t))
	})

	promise(t, "duplicates of a call to which the store replays are replayed to", func(t *testing.T) {
		store := newStore(t)
		gives(t, "v", executed)(openTier(t, store, tierOptions{}).Handle(bg, key, returns("v", nil)))
		near := openTier(t, store, tierOptions{})
		store.answering = func() { time.Sleep(time.Second) } // a slow network
		first, second := startIn(near, bg, key, forbidden(t)), startIn(near, bg, key, forbidden(t))
		gives(t, "v", replayed)(first.end(t))
		gives(t, "v", replayed)(second.end(t))
	})

	promise(t, "a call that only asks the store keeps no other out for its fingerprint", func(t *testing.T) {
		store := newStore(t)
		right, wrong := request{Key: "k", Fingerprint: "right"}, request{Key: "k", Fingerprint: "wrong"}
		gives(t, "v", executed)(store.Handle(bg, right, returns("v", nil)))
		near := openTier(t, store, tierOptions{})
		store.answering = func() { time.Sleep(time.Second) }
		asking := startIn(near, bg, wrong, forbidden(t))
		gives(t, "v", replayed)(near.Handle(bg, right, forbidden(t)))
		_, _, err := near.Handle(bg, request{Key: "k", Fingerprint: "third"}, forbidden(t))
		require.ErrorIs(t, err, idempotent.ErrMismatch, "that is neither's")
		_, _, err = asking.end(t)
		require.ErrorIs(t, err, idempotent.ErrMismatch)
	})

	promise(t, "what a running effect or the memory knows the key with keeps others out", func(t *testing.T) {
		store := newStore(t)
		near := openTier(t, store, tierOptions{})
		other := request{Key: "k", Fingerprint: "other"}
		running := startIn(near, bg, request{Key: "k", Fingerprint: "first"}, after(time.Second, returns("v", nil)))
		_, _, err := near.Handle(bg, other, forbidden(t))
		require.ErrorIs(t, err, idempotent.ErrMismatch)
		gives(t, "v", executed)(running.end(t))
		asked := store.lookups.Load()
		_, _, err = near.Handle(bg, other, forbidden(t))
		require.ErrorIs(t, err, idempotent.ErrMismatch)
		require.Equal(t, asked, store.lookups.Load())
	})

	promise(t, "a call that does not wait gets what the store has while another asks for it", func(t *testing.T) {
		store := newStore(t)
		near := openTier(t, store, tierOptions{})
		at := request{Key: "k", NoWait: true}
		running := startIn(near, bg, key, after(time.Second, returns("v", nil)))
		_, _, err := near.Handle(bg, at, forbidden(t))
		require.ErrorIs(t, err, idempotent.ErrInFlight)
		gives(t, "v", executed)(running.end(t))

		near = openTier(t, store, tierOptions{})
		store.answering = func() { time.Sleep(time.Second) }
		asking := startIn(near, bg, key, forbidden(t))
		gives(t, "v", replayed)(near.Handle(bg, at, forbidden(t)))
		gives(t, "v", replayed)(asking.end(t))
	})

	promise(t, "a call that comes after Forget is not told what was forgotten", func(t *testing.T) {
		store := newStore(t)
		gives(t, "old", executed)(store.Handle(bg, key, returns("old", nil)))
		near := openTier(t, store, tierOptions{})
		store.answering = func() { time.Sleep(time.Second) }
		asking := startIn(near, bg, key, forbidden(t))
		had, err := near.Forget(bg, "k")
		require.NoError(t, err)
		require.True(t, had)
		later := startIn(near, bg, key, returns("new", nil))
		gives(t, "old", replayed)(asking.end(t))
		gives(t, "new", executed)(later.end(t))
	})

	promise(t, "after Shutdown no call reaches the store, whatever its ctx", func(t *testing.T) {
		store := newStore(t)
		near := openTier(t, store, tierOptions{})
		require.NoError(t, near.Shutdown(bg))
		dead, cancel := context.WithCancel(bg)
		cancel()
		for _, ctx := range []context.Context{bg, dead} {
			_, verdict, err := near.Handle(ctx, key, forbidden(t))
			require.Equal(t, refused, verdict)
			require.ErrorIs(t, err, idempotent.ErrShutdown)
		}
		require.Zero(t, store.calls.Load())
	})
}

func TestTierClone(t *testing.T) {
	store := &distantStore[[]int]{Endpoint: openFor(t, idempotent.Options[string, []int]{})}
	near, err := idempotent.NewTier(store, idempotent.TierOptions[[]int]{
		Clone: func(v []int) []int { return append([]int(nil), v...) },
	})
	require.NoError(t, err)
	run := func(context.Context) ([]int, error) { return []int{1}, nil }
	first, _, err := near.Handle(bg, request{Key: "k"}, run)
	require.NoError(t, err)
	first[0] = 2
	second, verdict, err := near.Handle(bg, request{Key: "k"}, run)
	require.NoError(t, err)
	require.Equal(t, replayed, verdict)
	require.Equal(t, []int{1}, second)
}

// Two processes share a store. The second learns from it what the first did, and
// replays it from its own memory from then on.
func ExampleTier() {
	endpoint, _ := idempotent.New(idempotent.Options[string, string]{})
	store := &distantStore[string]{Endpoint: endpoint} // an idemredis.Guard, or an idemsql.Inbox
	here, _ := idempotent.NewTier(store, idempotent.TierOptions[string]{})
	elsewhere, _ := idempotent.NewTier(store, idempotent.TierOptions[string]{})

	charge := func(context.Context) (string, error) { return "receipt 1", nil }
	req := idempotent.Request[string]{Key: "evt_1"}
	for _, process := range []*idempotent.Tier[string]{here, elsewhere, elsewhere, here} {
		receipt, verdict, err := process.Handle(context.Background(), req, charge)
		fmt.Println(receipt, verdict, err, "- calls to the store:", store.calls.Load())
	}
	// Output:
	// receipt 1 executed <nil> - calls to the store: 1
	// receipt 1 replayed <nil> - calls to the store: 2
	// receipt 1 replayed <nil> - calls to the store: 2
	// receipt 1 replayed <nil> - calls to the store: 2
}

func TestStoreHelpers(t *testing.T) {
	t.Run("IsPermanent sees the mark anywhere, and only it", func(t *testing.T) {
		require.True(t, idempotent.IsPermanent(errors.Join(errors.New("x"), idempotent.Permanent(errBoom))))
		require.False(t, idempotent.IsPermanent(errBoom))
		require.False(t, idempotent.IsPermanent(idempotent.Unknown(errBoom)))
		require.False(t, idempotent.IsPermanent(nil))
	})
	t.Run("WithKey is what Key finds, by type", func(t *testing.T) {
		ctx := idempotent.WithKey(idempotent.WithKey(bg, "outer"), 7)
		text, ok := idempotent.Key[string](ctx)
		require.True(t, ok)
		require.Equal(t, "outer", text)
		number, ok := idempotent.Key[int](ctx)
		require.True(t, ok)
		require.Equal(t, 7, number)
	})
}
