package idempotent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestFingerprint(t *testing.T) {
	a, b, none := request{Key: "k", Fingerprint: "a"}, request{Key: "k", Fingerprint: "b"}, request{Key: "k"}

	promise(t, "another payload is refused at once: in flight, just finished, long finished", func(t *testing.T) {
		e := open(t, options{})
		leader := startRequest(e, bg, a, after(time.Second, returns("v", nil)))
		begun := time.Now()
		_, verdict, err := e.Handle(bg, b, forbidden(t))
		require.ErrorIs(t, err, idempotent.ErrMismatch)
		require.NotErrorIs(t, err, idempotent.ErrInFlight)
		require.ErrorContains(t, err, `"k"`)
		require.Equal(t, refused, verdict)
		require.Zero(t, time.Since(begun))
		gives(t, "v", executed)(leader.end(t))
		fails(t, refused, idempotent.ErrMismatch)(e.Handle(bg, b, forbidden(t)))
		time.Sleep(window - 1)
		fails(t, refused, idempotent.ErrMismatch)(e.Handle(bg, b, forbidden(t)))
		gives(t, "v", replayed)(e.Handle(bg, a, forbidden(t)))
		time.Sleep(time.Nanosecond)
		gives(t, "w", executed)(e.Handle(bg, b, returns("w", nil)))
		addsUp(t, e, 6)
	})

	promise(t, "the same payload shares and replays", func(t *testing.T) {
		e := open(t, options{})
		leader := startRequest(e, bg, a, after(time.Second, returns("v", nil)))
		gives(t, "v", shared)(e.Handle(bg, a, forbidden(t)))
		gives(t, "v", executed)(leader.end(t))
		gives(t, "v", replayed)(e.Handle(bg, a, forbidden(t)))
	})

	promise(t, "is compared only where both sides have one", func(t *testing.T) {
		e := open(t, options{})
		leader := startRequest(e, bg, a, after(time.Second, returns("v", nil)))
		gives(t, "v", shared)(e.Handle(bg, none, forbidden(t)))
		<-leader.done
		gives(t, "v", replayed)(e.Handle(bg, none, forbidden(t)))

		e = open(t, options{})
		leader = startRequest(e, bg, none, after(time.Second, returns("v", nil)))
		gives(t, "v", shared)(e.Handle(bg, a, forbidden(t)))
		<-leader.done
		gives(t, "v", replayed)(e.Handle(bg, a, forbidden(t)))
		gives(t, "v", replayed)(e.Handle(bg, b, forbidden(t)))
	})

	promise(t, "is checked for a kept failure, a NoWait call and a dead ctx as well", func(t *testing.T) {
		e := open(t, options{})
		e.Handle(bg, a, returns("", idempotent.Permanent(errBoom)))
		fails(t, refused, idempotent.ErrMismatch)(e.Handle(bg, b, forbidden(t)))
		fails(t, replayed, errBoom)(e.Handle(bg, a, forbidden(t)))
		leader := startRequest(e, bg, request{Key: "l", Fingerprint: "a"}, after(time.Second, returns("v", nil)))
		fails(t, refused, idempotent.ErrMismatch)(e.Handle(bg, request{Key: "l", Fingerprint: "b", NoWait: true}, forbidden(t)))
		<-leader.done
	})

	promise(t, "is forgotten with a failed attempt", func(t *testing.T) {
		e := open(t, options{})
		fails(t, executed, errBoom)(e.Handle(bg, a, returns("", errBoom)))
		gives(t, "v", executed)(e.Handle(bg, b, returns("v", nil)))
		fails(t, refused, idempotent.ErrMismatch)(e.Handle(bg, a, forbidden(t)))
	})

	promise(t, "of a waiter that takes over counts from then on, also for those who wait", func(t *testing.T) {
		e := open(t, options{})
		leader := startRequest(e, bg, none, after(time.Second, returns("", errBoom)))
		heir := startRequest(e, bg, a, after(time.Second, returns("v", nil)))
		other := startRequest(e, bg, b, forbidden(t))
		open := startRequest(e, bg, none, forbidden(t))
		same := startRequest(e, bg, a, forbidden(t))
		require.Equal(t, 4, e.Stats().Waiting)
		fails(t, executed, errBoom)(leader.end(t))
		fails(t, refused, idempotent.ErrMismatch)(other.end(t))
		require.Equal(t, time.Second, other.took, "without waiting for the heir's end")
		gives(t, "v", executed)(heir.end(t))
		gives(t, "v", shared)(open.end(t))
		gives(t, "v", shared)(same.end(t))
		fails(t, refused, idempotent.ErrMismatch)(e.Handle(bg, b, forbidden(t)))
		addsUp(t, e, 6)
	})
}
