package idemhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
)

func TestWebhookFindsTheEventID(t *testing.T) {
	const payload = `{"id": "evt_1", "n": 1}`
	for _, c := range []struct {
		name         string
		body         string
		headers      []string
		sameBody     string
		sameHeaders  []string
		otherBody    string
		otherHeaders []string
	}{
		{
			name: "Webhook-Id comes first",
			body: payload, headers: []string{"Webhook-Id", "a", "X-GitHub-Delivery", "b"},
			sameBody: `{"id": "evt_2"}`, sameHeaders: []string{"Webhook-Id", "a", "X-GitHub-Delivery", "c"},
			otherBody: payload, otherHeaders: []string{"Webhook-Id", "d", "X-GitHub-Delivery", "b"},
		},
		{
			name: "then X-GitHub-Delivery",
			body: payload, headers: []string{"X-GitHub-Delivery", "b"},
			sameBody: `{"id": "evt_2"}`, sameHeaders: []string{"X-GitHub-Delivery", "b"},
			otherBody: payload, otherHeaders: []string{"X-GitHub-Delivery", "c"},
		},
		{
			name: "then the id of a JSON object",
			body: payload, sameBody: `{"n": 2, "id": "evt_1"}`, otherBody: `{"id": "evt_2", "n": 1}`,
		},
		{
			name: "then the body's hash, when the id is no string",
			body: `{"id": 1}`, sameBody: `{"id": 1}`, otherBody: `{"id": 1 }`,
		},
		{
			name: "then the body's hash, when the id is empty",
			body: `{"id": ""}`, sameBody: `{"id": ""}`, otherBody: `{"id": "" }`,
		},
		{
			name: "then the body's hash, when the id is not at the top",
			body: `{"event": {"id": "x"}}`, sameBody: `{"event": {"id": "x"}}`, otherBody: `{"event": {"id": "x"} }`,
		},
		{
			name: "then the body's hash, when the body is no JSON",
			body: `id=evt_1`, sameBody: `id=evt_1`, otherBody: `id=evt_2`,
		},
		{
			name: "a header that only ends in the name is another header",
			body: "x", headers: []string{"X-Webhook-Id", "a"},
			sameBody: "x", sameHeaders: []string{"X-Webhook-Id", "b"},
			otherBody: "y", otherHeaders: []string{"X-Webhook-Id", "a"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &counting{answer: status(200)}
			guarded := webhook(t, idemhttp.Options{}, h.ServeHTTP)
			require.Equal(t, 200, send(guarded, "POST", "/", c.body, c.headers...).Code)
			require.Equal(t, 200, send(guarded, "POST", "/", c.sameBody, c.sameHeaders...).Code)
			require.EqualValues(t, 1, h.runs.Load(), "the same event")
			require.Equal(t, 200, send(guarded, "POST", "/", c.otherBody, c.otherHeaders...).Code)
			require.EqualValues(t, 2, h.runs.Load(), "another event")
		})
	}
}

func TestWebhookScope(t *testing.T) {
	for name, other := range map[string]func(h http.Handler) *httptest.ResponseRecorder{
		"method": func(h http.Handler) *httptest.ResponseRecorder {
			return send(h, "PUT", "/a", "", "Webhook-Id", "1", "Tenant", "t")
		},
		"path": func(h http.Handler) *httptest.ResponseRecorder {
			return send(h, "POST", "/b", "", "Webhook-Id", "1", "Tenant", "t")
		},
		"scope": func(h http.Handler) *httptest.ResponseRecorder {
			return send(h, "POST", "/a", "", "Webhook-Id", "1", "Tenant", "u")
		},
	} {
		t.Run("an event of another "+name+" is another event", func(t *testing.T) {
			h := &counting{answer: status(200)}
			guarded := webhook(t, idemhttp.Options{
				Scope: func(r *http.Request) string { return r.Header.Get("Tenant") },
			}, h.ServeHTTP)
			send(guarded, "POST", "/a", "", "Webhook-Id", "1", "Tenant", "t")
			require.Empty(t, other(guarded).Header().Get("Idempotency-Replayed"))
			require.EqualValues(t, 2, h.runs.Load())
		})
	}
	t.Run("no scope and key can be cut in two ways", func(t *testing.T) {
		h := &counting{answer: status(200)}
		guarded := webhook(t, idemhttp.Options{
			Scope: func(r *http.Request) string { return r.Header.Get("Tenant") },
		}, h.ServeHTTP)
		pairs := [][2]string{{"a", "b c"}, {"a b", "c"}, {"", "a b c"}, {"a%20b", "c"}, {"a b c", " "}, {"a+b", "c"}}
		for _, p := range pairs {
			send(guarded, "POST", "/", "", "Tenant", p[0], "Webhook-Id", p[1])
		}
		require.EqualValues(t, len(pairs), h.runs.Load())
	})
	t.Run("one executor serves both middlewares without a key in common", func(t *testing.T) {
		e := newEndpoint(t, config{})
		h := &counting{answer: status(200)}
		hooks := idemhttp.Webhook(e, idemhttp.Options{})(h)
		api := idemhttp.IdempotencyKey(e, idemhttp.Options{})(h)
		send(hooks, "POST", "/", "", "Webhook-Id", "1")
		var stored string
		for key := range e.Records() {
			stored = key
		}
		require.Equal(t, 200, send(api, "POST", "/", "", "Idempotency-Key", `"`+stored+`"`).Code)
		require.Equal(t, 200, send(api, "POST", "/", "", "Idempotency-Key", "1").Code)
		require.EqualValues(t, 3, h.runs.Load())
	})
}

func TestWebhookKeepsSuccessOnly(t *testing.T) {
	for _, code := range []int{200, 201, 202, 204, 301, 303, 304} {
		t.Run(fmt.Sprintf("%d is replayed", code), func(t *testing.T) {
			h := &counting{answer: status(code)}
			guarded := webhook(t, idemhttp.Options{}, h.ServeHTTP)
			first := send(guarded, "POST", "/", "", "Webhook-Id", "1")
			second := send(guarded, "POST", "/", "", "Webhook-Id", "1")
			require.Equal(t, code, first.Code)
			require.Empty(t, first.Header().Get("Idempotency-Replayed"))
			require.Equal(t, code, second.Code)
			require.Equal(t, "true", second.Header().Get("Idempotency-Replayed"))
			require.EqualValues(t, 1, h.runs.Load())
		})
	}
	for _, code := range []int{400, 401, 404, 408, 409, 410, 422, 429, 500, 502, 503} {
		t.Run(fmt.Sprintf("%d leaves the key free", code), func(t *testing.T) {
			h := &counting{answer: status(code)}
			guarded := webhook(t, idemhttp.Options{}, h.ServeHTTP)
			require.Equal(t, code, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
			h.answer = status(200)
			second := send(guarded, "POST", "/", "", "Webhook-Id", "1")
			require.Equal(t, 200, second.Code)
			require.Empty(t, second.Header().Get("Idempotency-Replayed"))
			require.EqualValues(t, 2, h.runs.Load())
		})
	}
	t.Run("Keep decides on what the handler answered", func(t *testing.T) {
		h := &counting{answer: status(200)} // 200, but the work was not enqueued
		guarded := webhook(t, idemhttp.Options{Keep: func(status int) bool { return status == 202 }}, h.ServeHTTP)
		send(guarded, "POST", "/", "", "Webhook-Id", "1")
		h.answer = status(202)
		send(guarded, "POST", "/", "", "Webhook-Id", "1")
		require.Equal(t, 202, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
		require.EqualValues(t, 2, h.runs.Load())
	})
}

func TestWebhookAnswersTheFailureInFull(t *testing.T) {
	guarded := webhook(t, idemhttp.Options{MaxResponse: 10}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Reason", "disk")
		http.Error(w, strings.Repeat("no ", 1000), 500)
	})
	got := ask(t, serve(t, guarded), "POST", "/", "", "Webhook-Id", "1")
	require.Equal(t, 500, got.status)
	require.Equal(t, "disk", got.header.Get("X-Reason"))
	require.Equal(t, strings.Repeat("no ", 1000)+"\n", got.body)
}

func TestWebhookDuplicateOfARunningDelivery(t *testing.T) {
	// start has a handler run that ends when the returned function is called.
	start := func(t *testing.T, opts idemhttp.Options) (http.Handler, *counting, func()) {
		release := make(chan struct{})
		h := &counting{}
		h.answer = func(w http.ResponseWriter, _ *http.Request) { <-release; w.Write([]byte("done")) }
		guarded := webhook(t, opts, h.ServeHTTP)
		var first sync.WaitGroup
		first.Go(func() { send(guarded, "POST", "/", "", "Webhook-Id", "1") })
		synctest.Wait()
		return guarded, h, func() { close(release); first.Wait() }
	}
	for name, c := range map[string]struct{ option, waits time.Duration }{
		"waits 2 s by default":                 {0, 2 * time.Second},
		"waits MaxWait":                        {30 * time.Millisecond, 30 * time.Millisecond},
		"does not wait if MaxWait is negative": {-1, 0},
	} {
		t.Run(name+" and is told 409 with Retry-After", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				guarded, h, release := start(t, idemhttp.Options{MaxWait: c.option})
				began := time.Now()
				got := send(guarded, "POST", "/", "", "Webhook-Id", "1")
				require.Equal(t, c.waits, time.Since(began))
				require.Equal(t, 409, got.Code)
				require.Equal(t, "1", got.Header().Get("Retry-After"))
				require.Equal(t, "application/problem+json", got.Header().Get("Content-Type"))
				release()
				require.EqualValues(t, 1, h.runs.Load())
			})
		})
	}
	t.Run("gets the response if it comes in time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			guarded, h, release := start(t, idemhttp.Options{})
			var second *httptest.ResponseRecorder
			var waits sync.WaitGroup
			waits.Go(func() { second = send(guarded, "POST", "/", "", "Webhook-Id", "1") })
			time.Sleep(1999 * time.Millisecond)
			release()
			waits.Wait()
			require.Equal(t, 200, second.Code)
			require.Equal(t, "done", second.Body.String())
			require.Equal(t, "true", second.Header().Get("Idempotency-Replayed"))
			require.EqualValues(t, 1, h.runs.Load())
		})
	})
	t.Run("runs the handler itself if the attempt failed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := &counting{}
			h.answer = func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(time.Second)
				if h.runs.Load() == 1 {
					w.WriteHeader(500)
				}
			}
			guarded := webhook(t, idemhttp.Options{}, h.ServeHTTP)
			codes := make([]int, 2)
			var calls sync.WaitGroup
			for i := range codes {
				calls.Go(func() { codes[i] = send(guarded, "POST", "/", "", "Webhook-Id", "1").Code })
				synctest.Wait()
			}
			calls.Wait()
			require.Equal(t, []int{500, 200}, codes)
		})
	})
	t.Run("that has become the runner is not bounded by MaxWait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEndpoint(t, config{PassCancel: true}) // hands even the wait's end on
			h := &counting{}
			h.answer = func(w http.ResponseWriter, r *http.Request) {
				if h.runs.Load() == 1 {
					time.Sleep(time.Second)
					w.WriteHeader(500)
					return
				}
				select {
				case <-r.Context().Done():
					w.WriteHeader(599)
				case <-time.After(time.Hour):
				}
			}
			guarded := idemhttp.Webhook(e, idemhttp.Options{})(h)
			codes := make([]int, 2)
			var calls sync.WaitGroup
			for i := range codes {
				calls.Go(func() { codes[i] = send(guarded, "POST", "/", "", "Webhook-Id", "1").Code })
				synctest.Wait()
			}
			calls.Wait()
			require.Equal(t, []int{500, 200}, codes)
		})
	})
	t.Run("MaxWait does not bound the first runner either", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEndpoint(t, config{PassCancel: true})
			guarded := idemhttp.Webhook(e, idemhttp.Options{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-r.Context().Done():
					w.WriteHeader(599)
				case <-time.After(time.Hour):
				}
			}))
			require.Equal(t, 200, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
		})
	})
	t.Run("whose client leaves leaves the others alone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			guarded, h, release := start(t, idemhttp.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			var leaver, stayer *httptest.ResponseRecorder
			var calls sync.WaitGroup
			calls.Go(func() {
				leaver = httptest.NewRecorder()
				r := httptest.NewRequestWithContext(ctx, "POST", "/", nil)
				r.Header.Set("Webhook-Id", "1")
				guarded.ServeHTTP(leaver, r)
			})
			calls.Go(func() { stayer = send(guarded, "POST", "/", "", "Webhook-Id", "1") })
			synctest.Wait()
			cancel()
			synctest.Wait()
			release()
			calls.Wait()
			require.Equal(t, 409, leaver.Code)
			require.Equal(t, 200, stayer.Code)
			require.EqualValues(t, 1, h.runs.Load())
		})
	})
}

func TestWebhookStormRunsOnce(t *testing.T) {
	var runs atomic.Int64
	server := serve(t, webhook(t, idemhttp.Options{MaxWait: 20 * time.Second}, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "run %d", runs.Add(1))
	}))
	var calls sync.WaitGroup
	for range 100 {
		calls.Go(func() {
			got, err := try(server, "POST", "/", "{}", "Webhook-Id", "1")
			if err != nil || got.status != 200 || got.body != "run 1" {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	calls.Wait()
	require.EqualValues(t, 1, runs.Load())
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

func TestWebhookVerifiesBeforeTheClaim(t *testing.T) {
	e := newEndpoint(t, config{})
	h := &counting{answer: status(200)}
	secret := "the secret's own text"
	guarded := idemhttp.Webhook(e, idemhttp.Options{Verify: func(r *http.Request, body []byte) error {
		if r.Header.Get("Signature") != string(body) {
			return errors.New(secret)
		}
		return nil
	}})(h)
	forged := send(guarded, "POST", "/", "{}", "Webhook-Id", "1", "Signature", "?")
	require.Equal(t, 401, forged.Code)
	require.NotContains(t, forged.Body.String(), secret)
	require.Zero(t, e.Stats(), "nothing was claimed")
	require.Equal(t, 401, send(guarded, "GET", "/", "", "Signature", "?").Code, "without an event id too")
	require.Zero(t, h.runs.Load())
	genuine := send(guarded, "POST", "/", "{}", "Webhook-Id", "1", "Signature", "{}")
	require.Equal(t, 200, genuine.Code)
	require.EqualValues(t, 1, h.runs.Load())
}

func TestWebhookKeyRule(t *testing.T) {
	h := &counting{answer: status(200)}
	guarded := webhook(t, idemhttp.Options{Key: func(r *http.Request, body []byte) (string, error) {
		if string(body) == "bad" {
			return "", errors.New("the payload is no event")
		}
		return r.Header.Get("X-Event"), nil
	}}, h.ServeHTTP)
	for _, c := range []struct {
		name, body, id, detail string
		want                   int
	}{
		{"a key", "", "1", "", 200},
		{"no key", "", "", "no key", 400},
		{"an error", "bad", "1", "the payload is no event", 400},
		{"255 bytes", "", strings.Repeat("x", 255), "", 200},
		{"256 bytes", "", strings.Repeat("x", 256), "256 bytes", 400},
		{"a newline", "", "a\nb", "control character", 400},
		{"a NUL", "", "a\x00b", "control character", 400},
		{"bad UTF-8", "", "a\xff", "UTF-8", 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := send(guarded, "POST", "/", c.body, "X-Event", c.id)
			require.Equal(t, c.want, got.Code)
			require.Contains(t, got.Body.String(), c.detail)
		})
	}
	require.EqualValues(t, 2, h.runs.Load())
}

func TestWebhookLetsProbesThrough(t *testing.T) {
	h := &counting{answer: status(200)}
	guarded := webhook(t, idemhttp.Options{}, h.ServeHTTP)
	for range 2 {
		require.Equal(t, 200, send(guarded, "GET", "/?challenge=1", "").Code)
		require.Equal(t, 200, send(guarded, "HEAD", "/", "").Code)
	}
	require.EqualValues(t, 4, h.runs.Load())
	for range 2 {
		require.Equal(t, 200, send(guarded, "GET", "/", "", "Webhook-Id", "1").Code)
	}
	require.EqualValues(t, 5, h.runs.Load())
}

func TestAStaleDeliveryIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &counting{answer: status(200)}
		guarded := idemhttp.Webhook(newEndpoint(t, config{
			TTL:     time.Hour,
			OnStale: func(context.Context, string, time.Time) error { return idempotent.ErrStale },
		}), idemhttp.Options{})(h)
		require.Equal(t, 200, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
		time.Sleep(time.Hour)
		require.Equal(t, 410, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
		require.EqualValues(t, 1, h.runs.Load())
	})
}
