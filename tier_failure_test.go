package idempotent_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

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
