package idempotent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

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
