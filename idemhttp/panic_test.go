package idemhttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
)

// leaving tells when Handle has returned.
type leaving struct {
	*endpoint
	left chan struct{}
}

func (l leaving) Handle(ctx context.Context, req idempotent.Request[string], effect func(context.Context) (idemhttp.Response, error)) (idemhttp.Response, idempotent.Verdict, error) {
	defer close(l.left)
	return l.endpoint.Handle(ctx, req, effect)
}

func TestWebhookPanicGoesOn(t *testing.T) {
	for name, opts := range map[string]config{
		"on the request's goroutine":   {},
		"from an executor's goroutine": {Detach: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := &counting{answer: func(http.ResponseWriter, *http.Request) { panic("boom") }}
			guarded := idemhttp.Webhook(newEndpoint(t, opts), idemhttp.Options{})(h)
			require.PanicsWithValue(t, "boom", func() { send(guarded, "POST", "/", "", "Webhook-Id", "1") })
			h.answer = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
			require.PanicsWithValue(t, http.ErrAbortHandler, func() { send(guarded, "POST", "/", "", "Webhook-Id", "1") })
			h.answer = status(200)
			require.Equal(t, 200, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
			require.EqualValues(t, 3, h.runs.Load())
		})
	}
	t.Run("Goexit on an executor's goroutine breaks the request off", func(t *testing.T) {
		h := &counting{answer: func(http.ResponseWriter, *http.Request) { runtime.Goexit() }}
		guarded := idemhttp.Webhook(newEndpoint(t, config{Detach: true}), idemhttp.Options{})(h)
		require.PanicsWithValue(t, http.ErrAbortHandler, func() { send(guarded, "POST", "/", "", "Webhook-Id", "1") })
	})
	t.Run("is known also when the client has left an executor's goroutine", func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		guarded := idemhttp.Webhook(leaving{newEndpoint(t, config{Detach: true}), left}, idemhttp.Options{})(
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				leave()
				<-left
				panic("boom")
			}))
		require.PanicsWithValue(t, "boom", func() {
			guarded.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "POST", "/", nil))
		})
	})
	t.Run("breaks the connection off and leaves the key free", func(t *testing.T) {
		h := &counting{answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte("half"))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}}
		server := serve(t, webhook(t, idemhttp.Options{}, h.ServeHTTP))
		_, err := try(server, "POST", "/", "", "Webhook-Id", "1")
		require.Error(t, err)
		h.answer = func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("whole")) }
		got := ask(t, server, "POST", "/", "", "Webhook-Id", "1")
		require.Equal(t, "whole", got.body)
		require.False(t, got.replayed())
	})
	t.Run("with HoldPanics an operator must settle it", func(t *testing.T) {
		h := &counting{answer: func(http.ResponseWriter, *http.Request) { panic("boom") }}
		e := newEndpoint(t, config{HoldPanics: true})
		guarded := idemhttp.Webhook(e, idemhttp.Options{})(h)
		require.PanicsWithValue(t, "boom", func() { send(guarded, "POST", "/", "", "Webhook-Id", "1") })
		got := send(guarded, "POST", "/", "", "Webhook-Id", "1")
		require.Equal(t, 409, got.Code)
		require.Empty(t, got.Header().Get("Retry-After"))
		require.Contains(t, got.Body.String(), "operator")
		require.EqualValues(t, 1, h.runs.Load())
	})
}
