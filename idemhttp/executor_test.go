package idemhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
)

// broken refuses without running anything.
type broken struct{ err error }

func (b broken) Handle(context.Context, idempotent.Request[string], func(context.Context) (idemhttp.Response, error)) (idemhttp.Response, idempotent.Verdict, error) {
	return idemhttp.Response{}, idempotent.Refused, b.err
}

func TestAnswersToAnExecutorThatDoesNotRunTheHandler(t *testing.T) {
	h := &counting{answer: status(200)}
	both := func(t *testing.T, e idemhttp.Executor, check func(t *testing.T, got *httptest.ResponseRecorder)) {
		t.Run("Webhook", func(t *testing.T) {
			check(t, send(idemhttp.Webhook(e, idemhttp.Options{})(h), "POST", "/", "", "Webhook-Id", "k"))
		})
		t.Run("IdempotencyKey", func(t *testing.T) {
			check(t, send(idemhttp.IdempotencyKey(e, idemhttp.Options{})(h), "POST", "/", "", "Idempotency-Key", "k"))
		})
		require.Zero(t, h.runs.Load())
	}
	for _, c := range []struct {
		name   string
		err    error
		code   int
		retry  bool
		detail string
	}{
		{"full is 503 with Retry-After", idempotent.ErrFull, 503, true, "There is no room for another key now."},
		{"shut down is 503 with Retry-After", idempotent.ErrShutdown, 503, true, "The service is shutting down."},
		{"down is 503 with Retry-After", errDown, 503, true, "The store of the responses is not available."},
		{"out of time is 503 with Retry-After", context.DeadlineExceeded, 503, true, "It could not begin in time."},
		{"another's panic is 503 with Retry-After", &idempotent.PanicError{}, 503, true, "Another attempt with this key was running, and failed."},
		{"in flight is 409 with Retry-After", idempotent.ErrInFlight, 409, true, ""},
		{"stale is 410", idempotent.ErrStale, 410, false, ""},
		{"unknown is 409 without Retry-After", idempotent.Unknown(errDown), 409, false, "Retrying does not help: an operator must settle it."},
		{"mismatch is 422", idempotent.ErrMismatch, 422, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			both(t, broken{fmt.Errorf("key %q: %w", "k", c.err)}, func(t *testing.T, got *httptest.ResponseRecorder) {
				require.Equal(t, c.detail, requireProblem(t, c.code, got))
				require.Equal(t, c.retry, got.Header().Get("Retry-After") != "")
				require.NotContains(t, got.Body.String(), "refused", "the store's words stay inside")
			})
		})
	}
	t.Run("an endpoint that is full", func(t *testing.T) {
		e := newEndpoint(t, config{Capacity: 1})
		_, _, err := e.Do(t.Context(), "other", func(context.Context) (idemhttp.Response, error) { return idemhttp.Response{}, nil })
		require.NoError(t, err)
		both(t, e, func(t *testing.T, got *httptest.ResponseRecorder) {
			require.Contains(t, requireProblem(t, 503, got), "no room")
		})
	})
	t.Run("an endpoint that was shut down", func(t *testing.T) {
		e := newEndpoint(t, config{})
		require.NoError(t, e.Shutdown(t.Context()))
		both(t, e, func(t *testing.T, got *httptest.ResponseRecorder) {
			require.Contains(t, requireProblem(t, 503, got), "shutting down")
		})
	})
	t.Run("an endpoint that has no slot free within MaxWait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			guarded := idemhttp.Webhook(newEndpoint(t, config{MaxConcurrent: 1}), idemhttp.Options{})(
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
			var first sync.WaitGroup
			first.Go(func() { send(guarded, "POST", "/", "", "Webhook-Id", "1") })
			synctest.Wait()
			began := time.Now()
			got := send(guarded, "POST", "/", "", "Webhook-Id", "2")
			require.Contains(t, requireProblem(t, 503, got), "could not begin in time")
			require.Equal(t, "1", got.Header().Get("Retry-After"))
			require.Equal(t, 2*time.Second, time.Since(began))
			close(release)
			first.Wait()
			require.Equal(t, 200, send(guarded, "POST", "/", "", "Webhook-Id", "2").Code)
		})
	})
	t.Run("a waiter of a failed attempt that is shared", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			h := &counting{answer: func(w http.ResponseWriter, _ *http.Request) { <-release; w.WriteHeader(500) }}
			guarded := idemhttp.Webhook(newEndpoint(t, config{ShareFailure: true}), idemhttp.Options{})(h)
			answers := make([]*httptest.ResponseRecorder, 2)
			var calls sync.WaitGroup
			for i := range answers {
				calls.Go(func() { answers[i] = send(guarded, "POST", "/", "", "Webhook-Id", "k") })
				synctest.Wait()
			}
			close(release)
			calls.Wait()
			require.Equal(t, 500, answers[0].Code)
			require.Contains(t, requireProblem(t, 503, answers[1]), "Another attempt")
		})
	})
	t.Run("a record that no middleware stored is 503", func(t *testing.T) {
		for _, code := range []int{0, -1, 99, 101, 1000} {
			e := newEndpoint(t, config{})
			guarded := idemhttp.Webhook(e, idemhttp.Options{})(h)
			_, _, err := e.Do(t.Context(), "hook POST /  k", func(context.Context) (idemhttp.Response, error) {
				return idemhttp.Response{Status: code}, nil
			})
			require.NoError(t, err)
			requireProblem(t, 503, send(guarded, "POST", "/", "", "Webhook-Id", "k"))
		}
		require.Zero(t, h.runs.Load())
	})
}

// asked notes what it is asked, and refuses.
type asked struct{ requests []idempotent.Request[string] }

func (a *asked) Handle(_ context.Context, req idempotent.Request[string], _ func(context.Context) (idemhttp.Response, error)) (idemhttp.Response, idempotent.Verdict, error) {
	a.requests = append(a.requests, req)
	return idemhttp.Response{}, idempotent.Refused, errDown
}

func TestWhatTheExecutorIsAsked(t *testing.T) {
	e := &asked{}
	scope := func(*http.Request) string { return "a tenant/1" }
	send(idemhttp.Webhook(e, idemhttp.Options{})(status(200)), "POST", "/hooks/a%20b?x=1", "", "Webhook-Id", "evt 1")
	send(idemhttp.Webhook(e, idemhttp.Options{Scope: scope, MaxWait: -1})(status(200)), "POST", "/", "", "Webhook-Id", "evt_1")
	send(idemhttp.IdempotencyKey(e, idemhttp.Options{Scope: scope})(status(200)), "POST", "/", "", "Idempotency-Key", `"k"`)
	require.Len(t, e.requests, 3)
	require.Equal(t, idempotent.Request[string]{Key: "hook POST /hooks/a%20b  evt 1"}, e.requests[0])
	require.Equal(t, idempotent.Request[string]{Key: "hook POST / a%20tenant%2F1 evt_1", NoWait: true}, e.requests[1])
	require.Equal(t, "key a%20tenant%2F1 k", e.requests[2].Key)
	require.Len(t, e.requests[2].Fingerprint, 64)
}

func TestBadArgumentsPanicWithTheField(t *testing.T) {
	e := newEndpoint(t, config{})
	for want, f := range map[string]func(){
		"idemhttp: the Executor is nil": func() { idemhttp.Webhook(nil, idemhttp.Options{}) },
		"idemhttp: Options.MaxBody is -1, want 0 or more": func() {
			idemhttp.Webhook(e, idemhttp.Options{MaxBody: -1})
		},
		"idemhttp: Options.MaxResponse is -2, want 0 or more": func() {
			idemhttp.IdempotencyKey(e, idemhttp.Options{MaxResponse: -2})
		},
	} {
		require.PanicsWithValue(t, want, f)
	}
}
