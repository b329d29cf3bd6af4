package idempotent_test

import (
	"context"
	"errors"
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
}

func TestTierWindow(t *testing.T) {
	key := request{Key: "k"}

	promise(t, "memory ends when the effect's end is a window ago, though the store's record is younger", func(t *testing.T) {
		store := newStore(t)
		store.settling = time.Minute
		near := openTier(t, store, tierOptions{})
		gives(t, "v", executed)(near.Handle(bg, key, after(time.Hour, returns("v", nil))))
		time.Sleep(window - time.Minute - 1)
		gives(t, "v", replayed)(near.Handle(bg, key, forbidden(t)))
		require.EqualValues(t, 1, store.calls.Load())
		time.Sleep(time.Nanosecond)
		gives(t, "v", replayed)(near.Handle(bg, key, forbidden(t)))
		require.EqualValues(t, 2, store.calls.Load(), "the store was not asked")
	})

	promise(t, "what another process ran ends with the store's window, to the nanosecond", func(t *testing.T) {
		store := newStore(t)
		near, other := openTier(t, store, tierOptions{TTL: 10 * window}), openTier(t, store, tierOptions{})
		gives(t, "v", executed)(other.Handle(bg, key, returns("v", nil)))
		time.Sleep(window / 2)
		gives(t, "v", replayed)(near.Handle(bg, key, forbidden(t)))
		time.Sleep(window/2 - 1)
		gives(t, "v", replayed)(near.Handle(bg, key, forbidden(t)))
		require.EqualValues(t, 2, store.calls.Load())
		time.Sleep(time.Nanosecond)
		gives(t, "again", executed)(near.Handle(bg, key, returns("again", nil)))
	})

	promise(t, "the store is asked for the tier's window, or the request's", func(t *testing.T) {
		store := newStore(t)
		near := openTier(t, store, tierOptions{TTL: time.Minute})
		_, _, _ = near.Handle(bg, key, returns("v", nil))
		_, _, _ = near.Handle(bg, request{Key: "own", TTL: time.Second}, returns("v", nil))
		_, _, _ = near.Handle(bg, request{Key: "ever", TTL: idempotent.Forever}, returns("v", nil))
		for name, ttl := range map[string]time.Duration{"k": time.Minute, "own": time.Second} {
			record, _ := store.Endpoint.Lookup(name)
			require.Equal(t, ttl, record.ExpiresAt.Sub(record.CompletedAt))
		}
		time.Sleep(100 * 365 * 24 * time.Hour)
		gives(t, "v", replayed)(near.Handle(bg, request{Key: "ever"}, forbidden(t)))
		require.EqualValues(t, 3, store.calls.Load())
	})

	promise(t, "Memory bounds how long the store is not asked", func(t *testing.T) {
		store := newStore(t)
		near, other := openTier(t, store, tierOptions{Memory: time.Second}), openTier(t, store, tierOptions{})
		gives(t, "v", executed)(near.Handle(bg, key, returns("v", nil)))
		had, err := other.Forget(bg, "k")
		require.NoError(t, err)
		require.True(t, had)
		time.Sleep(time.Second - 1)
		gives(t, "v", replayed)(near.Handle(bg, key, forbidden(t)))
		time.Sleep(time.Nanosecond)
		gives(t, "again", executed)(near.Handle(bg, key, returns("again", nil)))
	})

	promise(t, "at Capacity the oldest is asked for again", func(t *testing.T) {
		store := newStore(t)
		near := openTier(t, store, tierOptions{Capacity: 2})
		for _, name := range []string{"a", "b", "c"} {
			gives(t, name, executed)(near.Handle(bg, request{Key: name}, returns(name, nil)))
		}
		gives(t, "c", replayed)(near.Handle(bg, request{Key: "c"}, forbidden(t)))
		require.EqualValues(t, 3, store.calls.Load())
		gives(t, "a", replayed)(near.Handle(bg, request{Key: "a"}, forbidden(t)))
		require.EqualValues(t, 4, store.calls.Load())
	})
}

func TestTierForget(t *testing.T) {
	key := request{Key: "k"}

	promise(t, "drops the result here and in the store", func(t *testing.T) {
		store := newStore(t)
		near := openTier(t, store, tierOptions{})
		gives(t, "v", executed)(near.Handle(bg, key, returns("v", nil)))
		had, err := near.Forget(bg, "k")
		require.NoError(t, err)
		require.True(t, had)
		gives(t, "again", executed)(near.Handle(bg, key, returns("again", nil)))
	})

	promise(t, "an answer that was on its way meanwhile is not remembered", func(t *testing.T) {
		store := newStore(t)
		gives(t, "old", executed)(openTier(t, store, tierOptions{}).Handle(bg, key, returns("old", nil)))
		near := openTier(t, store, tierOptions{})
		store.answering = func() { time.Sleep(time.Second) }
		slow := startIn(near, bg, key, forbidden(t))
		_, err := near.Forget(bg, "k")
		require.NoError(t, err)
		gives(t, "old", replayed)(slow.end(t))
		gives(t, "new", executed)(near.Handle(bg, key, returns("new", nil)))
	})
}

func TestTierFailure(t *testing.T) {
	key := request{Key: "k"}

	for _, refusal := range []error{idempotent.ErrFull, idempotent.ErrInFlight, idempotent.ErrShutdown, errors.New("store: connection refused"), idempotent.Permanent(errBoom)} {
		promise(t, "the store's refusal is never kept: "+refusal.Error(), func(t *testing.T) {
			store := newStore(t)
			near := openTier(t, store, tierOptions{})
			store.down = refusal
			_, verdict, err := near.Handle(bg, key, forbidden(t))
			require.Equal(t, refused, verdict)
			require.Equal(t, refusal, err)
			store.down = nil
			gives(t, "v", executed)(near.Handle(bg, key, returns("v", nil)))
		})
	}

	promise(t, "an effect's failure goes to its caller, and the next runs its own", func(t *testing.T) {
		near := openTier(t, newStore(t), tierOptions{})
		first := startIn(near, bg, key, after(time.Second, returns("half", errBoom)))
		second := startIn(near, bg, key, returns("v", nil))
		value, verdict, err := first.end(t)
		require.Equal(t, errBoom, err)
		require.Equal(t, executed, verdict)
		require.Equal(t, "half", value)
		gives(t, "v", executed)(second.end(t))
	})

	promise(t, "a permanent failure is replayed from memory, once the store has said until when", func(t *testing.T) {
		store := newStore(t)
		near := openTier(t, store, tierOptions{})
		failure := idempotent.Permanent(errBoom)
		fails(t, executed, errBoom)(near.Handle(bg, key, returns("", failure)))
		for range 5 {
			fails(t, replayed, errBoom)(near.Handle(bg, key, forbidden(t)))
		}
		require.EqualValues(t, 2, store.calls.Load())
	})

	promise(t, "an unknown outcome is asked for each time, so that its settlement is seen", func(t *testing.T) {
		store := newStore(t)
		near := openTier(t, store, tierOptions{})
		fails(t, executed, idempotent.ErrOutcomeUnknown)(near.Handle(bg, key, returns("", idempotent.Unknown(errBoom))))
		fails(t, replayed, idempotent.ErrOutcomeUnknown)(near.Handle(bg, key, forbidden(t)))
		require.True(t, store.Resolve("k", "settled elsewhere"))
		gives(t, "settled elsewhere", replayed)(near.Handle(bg, key, forbidden(t)))
	})

	promise(t, "waiters share a kept failure and an unknown outcome", func(t *testing.T) {
		for name, failure := range map[string]error{"permanent": idempotent.Permanent(errBoom), "unknown": idempotent.Unknown(errBoom)} {
			near := openTier(t, newStore(t), tierOptions{})
			first := startIn(near, bg, request{Key: name}, after(time.Second, returns("v", failure)))
			second := startIn(near, bg, request{Key: name}, forbidden(t))
			fails(t, executed, errBoom)(first.end(t))
			fails(t, shared, errBoom)(second.end(t))
		}
	})

	promise(t, "with ShareFailure those who wait get the failure, and a store that is down is tried once", func(t *testing.T) {
		store := newStore(t)
		near := openTier(t, store, tierOptions{ShareFailure: true})
		first := startIn(near, bg, key, after(time.Second, returns("half", errBoom)))
		second := startIn(near, bg, key, forbidden(t))
		fails(t, executed, errBoom)(first.end(t))
		fails(t, shared, errBoom)(second.end(t))

		slow, unreachable := &slowStore{Store: store}, errors.New("store: timeout")
		store.down = unreachable
		near = openTier(t, slow, tierOptions{ShareFailure: true})
		var calls []*call
		for range 20 {
			calls = append(calls, startIn(near, bg, key, forbidden(t)))
		}
		for _, c := range calls {
			fails(t, refused, unreachable)(c.end(t))
		}
		require.EqualValues(t, 1, slow.calls.Load())
	})

	promise(t, "with ShareFailure a caller who leaves takes nobody along", func(t *testing.T) {
		store := newStore(t)
		near, other := openTier(t, store, tierOptions{ShareFailure: true}), openTier(t, store, tierOptions{})
		running := startIn(other, bg, key, after(time.Minute, returns("v", nil)))
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		leaver, stayer := startIn(near, ctx, key, forbidden(t)), startIn(near, bg, key, forbidden(t))
		fails(t, refused, idempotent.ErrInFlight, context.DeadlineExceeded)(leaver.end(t))
		gives(t, "v", executed)(running.end(t))
		gives(t, "v", shared)(stayer.end(t))
	})

	promise(t, "with ShareFailure waiters get a panic as an error", func(t *testing.T) {
		near := openTier(t, newStore(t), tierOptions{ShareFailure: true})
		first := startIn(near, bg, key, after(time.Second, panics("boom")))
		second := startIn(near, bg, key, forbidden(t))
		first.throws(t, "boom")
		_, verdict, err := second.end(t)
		require.Equal(t, shared, verdict)
		var panicked *idempotent.PanicError
		require.ErrorAs(t, err, &panicked)
	})
}

// A slowStore takes a second to answer.
type slowStore struct {
	idempotent.Store[string]
	calls atomic.Int64
}

func (s *slowStore) Handle(ctx context.Context, req request, fx func(context.Context) (string, error)) (string, idempotent.Verdict, error) {
	s.calls.Add(1)
	time.Sleep(time.Second)
	return s.Store.Handle(ctx, req, fx)
}

func TestTierContext(t *testing.T) {
	key := request{Key: "k"}

	promise(t, "waiting for another process ends with the caller's ctx, and another caller goes on waiting", func(t *testing.T) {
		store := newStore(t)
		near, other := openTier(t, store, tierOptions{}), openTier(t, store, tierOptions{})
		running := startIn(other, bg, key, after(time.Hour, returns("v", nil)))
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		leaver, stayer := startIn(near, ctx, key, forbidden(t)), startIn(near, bg, key, forbidden(t))
		begun := time.Now()
		fails(t, refused, idempotent.ErrInFlight, context.DeadlineExceeded)(leaver.end(t))
		require.Equal(t, time.Second, time.Since(begun))
		gives(t, "v", executed)(running.end(t))
		gives(t, "v", shared)(stayer.end(t))
	})

	promise(t, "a dead ctx is replayed to from memory and from the store, and runs nothing", func(t *testing.T) {
		store := newStore(t)
		dead, cancel := context.WithCancel(bg)
		cancel()
		near, other := openTier(t, store, tierOptions{}), openTier(t, store, tierOptions{})
		fails(t, refused, context.Canceled)(near.Handle(dead, key, forbidden(t)))
		gives(t, "v", executed)(other.Handle(bg, key, returns("v", nil)))
		gives(t, "v", replayed)(near.Handle(dead, key, forbidden(t)))
		gives(t, "v", replayed)(other.Handle(dead, key, forbidden(t)))
	})

	promise(t, "NoWait waits neither in memory nor in the store", func(t *testing.T) {
		store := newStore(t)
		near, other := openTier(t, store, tierOptions{}), openTier(t, store, tierOptions{})
		running := startIn(other, bg, key, after(time.Second, returns("v", nil)))
		hasty := request{Key: "k", NoWait: true}
		fails(t, refused, idempotent.ErrInFlight)(near.Handle(bg, hasty, forbidden(t)))
		fails(t, refused, idempotent.ErrInFlight)(other.Handle(bg, hasty, forbidden(t)))
		gives(t, "v", executed)(running.end(t))
	})

	promise(t, "Shutdown waits for the running call and refuses the next", func(t *testing.T) {
		near := openTier(t, newStore(t), tierOptions{})
		running := startIn(near, bg, key, after(time.Second, returns("v", nil)))
		require.NoError(t, near.Shutdown(bg))
		gives(t, "v", executed)(running.end(t))
		gives(t, "v", replayed)(near.Handle(bg, key, forbidden(t)))
		fails(t, refused, idempotent.ErrShutdown)(near.Handle(bg, request{Key: "new"}, forbidden(t)))
	})
}

func TestTierFingerprint(t *testing.T) {
	one, two, none := request{Key: "k", Fingerprint: "1"}, request{Key: "k", Fingerprint: "2"}, request{Key: "k"}

	promise(t, "another payload is refused while running and afterwards, here and elsewhere", func(t *testing.T) {
		store := newStore(t)
		near, other := openTier(t, store, tierOptions{}), openTier(t, store, tierOptions{})
		running := startIn(near, bg, one, after(time.Second, returns("v", nil)))
		for range 2 {
			fails(t, refused, idempotent.ErrMismatch)(near.Handle(bg, two, forbidden(t)))
			fails(t, refused, idempotent.ErrMismatch)(other.Handle(bg, two, forbidden(t)))
			gives(t, "v", executed)(running.end(t))
		}
	})

	promise(t, "the store's fingerprint counts, not that of the call it replayed to", func(t *testing.T) {
		store := newStore(t)
		near, other := openTier(t, store, tierOptions{}), openTier(t, store, tierOptions{})
		gives(t, "v", executed)(other.Handle(bg, none, returns("v", nil)))
		gives(t, "v", replayed)(near.Handle(bg, one, forbidden(t)))
		gives(t, "v", replayed)(near.Handle(bg, two, forbidden(t)))

		time.Sleep(window)
		gives(t, "w", executed)(near.Handle(bg, two, returns("w", nil)))

		one.Key, two.Key, none.Key = "printed", "printed", "printed"
		gives(t, "v", executed)(other.Handle(bg, one, returns("v", nil)))
		gives(t, "v", replayed)(near.Handle(bg, none, forbidden(t)))
		fails(t, refused, idempotent.ErrMismatch)(near.Handle(bg, two, forbidden(t)))
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
