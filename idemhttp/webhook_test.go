package idemhttp_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
