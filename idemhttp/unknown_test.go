package idemhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
)

func TestUnknown(t *testing.T) {
	// doubtful charges and gets no answer.
	doubtful := func(code int) *counting {
		return &counting{answer: func(w http.ResponseWriter, r *http.Request) {
			if !idemhttp.Unknown(r.Context(), errDown) {
				t.Error("Unknown found no key")
			}
			w.WriteHeader(code)
			fmt.Fprint(w, "ask your bank")
		}}
	}
	held := func(t *testing.T, got *httptest.ResponseRecorder) {
		t.Helper()
		requireProblem(t, 409, got)
		require.Empty(t, got.Header().Get("Retry-After"))
		require.Contains(t, got.Body.String(), "operator")
	}
	for name, c := range map[string]struct {
		wrap   func(idemhttp.Executor, idemhttp.Options) func(http.Handler) http.Handler
		header string
		key    string
	}{
		"Webhook":        {idemhttp.Webhook, "Webhook-Id", "hook POST /  1"},
		"IdempotencyKey": {idemhttp.IdempotencyKey, "Idempotency-Key", "key  1"},
	} {
		for _, code := range []int{200, 502} {
			t.Run(fmt.Sprintf("%s, %d: the client has its response, and the key is held until it is settled", name, code), func(t *testing.T) {
				h, e := doubtful(code), newEndpoint(t, config{})
				guarded := c.wrap(e, idemhttp.Options{})(h)
				first := send(guarded, "POST", "/", "", c.header, "1")
				require.Equal(t, code, first.Code)
				require.Equal(t, "ask your bank", first.Body.String())
				held(t, send(guarded, "POST", "/", "", c.header, "1"))
				require.EqualValues(t, 1, h.runs.Load(), "never a second run")
				require.Equal(t, 1, e.Stats().Unknown)
				record, ok := e.Lookup(c.key)
				require.True(t, ok)
				require.ErrorIs(t, record.Err, errDown, "the operator sees why")

				require.True(t, e.Resolve(c.key, idemhttp.Response{Status: 201, Body: []byte("paid")}))
				settled := send(guarded, "POST", "/", "", c.header, "1")
				require.Equal(t, 201, settled.Code)
				require.Equal(t, "paid", settled.Body.String())
				require.EqualValues(t, 1, h.runs.Load())
			})
		}
	}
	t.Run("Forget lets it run again, and FailureTTL bounds it", func(t *testing.T) {
		h, e := doubtful(502), newEndpoint(t, config{FailureTTL: time.Minute})
		guarded := idemhttp.Webhook(e, idemhttp.Options{})(h)
		send(guarded, "POST", "/", "", "Webhook-Id", "1")
		record, ok := e.Lookup("hook POST /  1")
		require.True(t, ok)
		require.Equal(t, time.Minute, record.ExpiresAt.Sub(record.CompletedAt))
		require.True(t, e.Forget("hook POST /  1"))
		send(guarded, "POST", "/", "", "Webhook-Id", "1")
		require.EqualValues(t, 2, h.runs.Load())
	})
	t.Run("a goroutine of the handler, with a context made from the request's, may say it", func(t *testing.T) {
		h := &counting{answer: func(_ http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			done := make(chan bool)
			go func() { done <- idemhttp.Unknown(ctx, errDown) }()
			if !<-done {
				t.Error("Unknown found no key")
			}
		}}
		guarded := webhook(t, idemhttp.Options{}, h.ServeHTTP)
		require.Equal(t, 200, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
		held(t, send(guarded, "POST", "/", "", "Webhook-Id", "1"))
	})
	t.Run("on an executor's goroutine it is the same", func(t *testing.T) {
		h := doubtful(502)
		guarded := idemhttp.Webhook(newEndpoint(t, config{Detach: true}), idemhttp.Options{})(h)
		require.Equal(t, 502, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
		held(t, send(guarded, "POST", "/", "", "Webhook-Id", "1"))
	})
	t.Run("a spilled body of such a response is not stored", func(t *testing.T) {
		spill, folder := newDir(t, time.Hour)
		guarded := webhook(t, idemhttp.Options{Spill: spill, MaxResponse: 4}, doubtful(200).ServeHTTP)
		require.Equal(t, "ask your bank", send(guarded, "POST", "/", "", "Webhook-Id", "1").Body.String())
		require.Empty(t, files(t, folder))
	})
	t.Run("where there is no key, or no doubt, it says so and nothing changes", func(t *testing.T) {
		require.False(t, idemhttp.Unknown(t.Context(), errDown))
		h := func(_ http.ResponseWriter, r *http.Request) {
			if idemhttp.Unknown(r.Context(), errDown) {
				t.Error("there is no key")
			}
		}
		require.Equal(t, 200, send(keyed(t, idemhttp.Options{Optional: true}, h), "POST", "/", "").Code)
		certain := &counting{answer: func(_ http.ResponseWriter, r *http.Request) {
			if idemhttp.Unknown(r.Context(), nil) {
				t.Error("there is no doubt")
			}
		}}
		guarded := webhook(t, idemhttp.Options{}, certain.ServeHTTP)
		for range 2 {
			require.Equal(t, 200, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
		}
		require.EqualValues(t, 1, certain.runs.Load())
	})
	t.Run("a panic after it is a panic: free, or held with HoldPanics", func(t *testing.T) {
		for hold, code := range map[bool]int{false: 200, true: 409} {
			h := &counting{answer: func(_ http.ResponseWriter, r *http.Request) {
				idemhttp.Unknown(r.Context(), errDown)
				panic("boom")
			}}
			guarded := idemhttp.Webhook(newEndpoint(t, config{HoldPanics: hold}), idemhttp.Options{})(h)
			require.PanicsWithValue(t, "boom", func() { send(guarded, "POST", "/", "", "Webhook-Id", "1") })
			h.answer = status(200)
			require.Equal(t, code, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
		}
	})
}

// A bank that does not answer may have charged. The handler says so, and the
// client's retry is told to wait for a person instead of charging again.
func ExampleUnknown() {
	endpoint, err := idempotent.New(idempotent.Options[string, idemhttp.Response]{})
	if err != nil {
		panic(err)
	}
	charge := func(context.Context) error { return context.DeadlineExceeded }
	api := idemhttp.IdempotencyKey(endpoint, idemhttp.Options{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := charge(r.Context()); err != nil {
			idemhttp.Unknown(r.Context(), err)
			http.Error(w, "the bank has not answered", http.StatusGatewayTimeout)
		}
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/charges", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	fmt.Println("to settle:", endpoint.Stats().Unknown)
	// Output:
	// 504 the bank has not answered
	// 409 {"title":"The outcome of the request with this key is unknown","status":409,"detail":"Retrying does not help: an operator must settle it."}
	// to settle: 1
}
