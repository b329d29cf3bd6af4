package idemhttp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemhttp"
)

// requireProblem returns the detail.
func requireProblem(t *testing.T, status int, got *httptest.ResponseRecorder) string {
	t.Helper()
	require.Equal(t, status, got.Code)
	require.Equal(t, "application/problem+json", got.Header().Get("Content-Type"))
	var problem struct {
		Title, Detail string
		Status        int
	}
	require.NoError(t, json.Unmarshal(got.Body.Bytes(), &problem))
	require.Equal(t, status, problem.Status)
	require.NotEmpty(t, problem.Title)
	require.NotRegexp(t, "idempotent|idem[a-z]+:", problem.Detail, "no library's name reaches a client")
	return problem.Detail
}

func TestIdempotencyKeyHeader(t *testing.T) {
	long := strings.Repeat("k", 255)
	for name, c := range map[string]struct{ first, again string }{
		"quoted and bare are the same key":   {`"abc"`, "abc"},
		"escapes are undone":                 {`"a\"b\\c"`, `"a\"b\\c"`},
		"spaces around it do not count":      {"  abc ", `"abc"`},
		"spaces inside a string do":          {`" abc"`, `" abc"`},
		"255 bytes are a key":                {long, `"` + long + `"`},
		"255 bytes are, each escaped":        {`"` + strings.Repeat(`\\`, 255) + `"`, `"` + strings.Repeat(`\\`, 255) + `"`},
		"bare keys as they are used":         {"8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		"a bare key may be base64 or a path": {"ab/cd+e==:~", "ab/cd+e==:~"},
	} {
		t.Run(name, func(t *testing.T) {
			h := &counting{answer: status(201)}
			guarded := keyed(t, idemhttp.Options{}, h.ServeHTTP)
			require.Equal(t, 201, send(guarded, "POST", "/", "", "Idempotency-Key", c.first).Code)
			again := send(guarded, "POST", "/", "", "Idempotency-Key", c.again)
			require.Equal(t, 201, again.Code)
			require.Equal(t, "true", again.Header().Get("Idempotency-Replayed"))
			require.EqualValues(t, 1, h.runs.Load())
		})
	}
	for name, headers := range map[string][]string{
		"missing":                           {},
		"under a name that only ends in it": {"X-Idempotency-Key", "abc"},
		"empty":                             {"Idempotency-Key", ""},
		"an empty string":                   {"Idempotency-Key", `""`},
		"blank":                             {"Idempotency-Key", "  "},
		"repeated":                          {"Idempotency-Key", "a", "Idempotency-Key", "a"},
		"a list":                            {"Idempotency-Key", "a, a"},
		"a list of strings":                 {"Idempotency-Key", `"a", "a"`},
		"a string with parameters":          {"Idempotency-Key", `"a";x=1`},
		"an open string":                    {"Idempotency-Key", `"abc`},
		"a lone quote":                      {"Idempotency-Key", `"`},
		"a closing quote alone":             {"Idempotency-Key", `abc"`},
		"an escape at the end":              {"Idempotency-Key", `"abc\`},
		"an escaped closing quote":          {"Idempotency-Key", `"abc\"`},
		"an unknown escape":                 {"Idempotency-Key", `"a\n"`},
		"a space in a bare key":             {"Idempotency-Key", "a b"},
		"a tab":                             {"Idempotency-Key", "\"a\tb\""},
		"a NUL":                             {"Idempotency-Key", "a\x00b"},
		"a newline":                         {"Idempotency-Key", "\"a\nb\""},
		"not ASCII":                         {"Idempotency-Key", `"ä"`},
		"256 bytes":                         {"Idempotency-Key", strings.Repeat("k", 256)},
		"256 bytes in quotes":               {"Idempotency-Key", `"` + strings.Repeat("k", 256) + `"`},
		"a mebibyte":                        {"Idempotency-Key", strings.Repeat("k", 1<<20)},
		"a mebibyte of escapes":             {"Idempotency-Key", `"` + strings.Repeat(`\"`, 1<<19) + `"`},
	} {
		t.Run(name+" is refused with 400", func(t *testing.T) {
			h := &counting{answer: status(200)}
			e := newEndpoint(t, config{})
			got := send(idemhttp.IdempotencyKey(e, idemhttp.Options{})(h), "POST", "/", "body", headers...)
			requireProblem(t, 400, got)
			require.Less(t, got.Body.Len(), 512, "the key is not echoed")
			require.Zero(t, h.runs.Load())
			require.Zero(t, e.Stats())
		})
	}
	t.Run("Optional lets a request without it through, and no bad one", func(t *testing.T) {
		h := &counting{answer: status(200)}
		guarded := keyed(t, idemhttp.Options{Optional: true, MaxBody: 1}, h.ServeHTTP)
		for range 2 {
			require.Equal(t, 200, send(guarded, "POST", "/", "long and unread").Code)
		}
		require.EqualValues(t, 2, h.runs.Load())
		requireProblem(t, 400, send(guarded, "POST", "/", "", "Idempotency-Key", ""))
	})
	t.Run("Optional does not let an unsigned request through", func(t *testing.T) {
		h := &counting{answer: func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }}
		guarded := keyed(t, idemhttp.Options{Optional: true, Verify: func(r *http.Request, body []byte) error {
			if string(body) != "signed" {
				return errors.New("no")
			}
			return nil
		}}, h.ServeHTTP)
		requireProblem(t, 401, send(guarded, "POST", "/", "forged"))
		require.Equal(t, "signed", send(guarded, "POST", "/", "signed").Body.String())
		require.EqualValues(t, 1, h.runs.Load())
	})
	t.Run("a Key rule takes its place", func(t *testing.T) {
		h := &counting{answer: status(200)}
		guarded := keyed(t, idemhttp.Options{Key: idemhttp.JSONField("meta", "request")}, h.ServeHTTP)
		const body = `{"meta": {"request": "r1"}}`
		for range 2 {
			require.Equal(t, 200, send(guarded, "POST", "/", body).Code)
		}
		require.EqualValues(t, 1, h.runs.Load())
		requireProblem(t, 400, send(guarded, "POST", "/", "{}"))
	})
}

func TestIdempotencyKeyGuardsUnsafeMethodsOnly(t *testing.T) {
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		t.Run(method+" is guarded", func(t *testing.T) {
			h := &counting{answer: status(200)}
			guarded := keyed(t, idemhttp.Options{}, h.ServeHTTP)
			for range 2 {
				require.Equal(t, 200, send(guarded, method, "/", "", "Idempotency-Key", "a").Code)
			}
			require.EqualValues(t, 1, h.runs.Load())
			requireProblem(t, 400, send(guarded, method, "/", ""))
		})
	}
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"} {
		t.Run(method+" passes untouched", func(t *testing.T) {
			var seen http.ResponseWriter
			h := &counting{answer: func(w http.ResponseWriter, _ *http.Request) { seen = w }}
			guarded := keyed(t, idemhttp.Options{}, h.ServeHTTP)
			for range 2 {
				w := send(guarded, method, "/", "", "Idempotency-Key", "a")
				require.Same(t, w, seen)
			}
			require.EqualValues(t, 2, h.runs.Load())
		})
	}
}

func TestIdempotencyKeyOfAnotherRequest(t *testing.T) {
	others := map[string]func(http.Handler) *httptest.ResponseRecorder{
		"method": func(h http.Handler) *httptest.ResponseRecorder {
			return send(h, "PUT", "/a?x=1", "body", "Idempotency-Key", "k")
		},
		"path": func(h http.Handler) *httptest.ResponseRecorder {
			return send(h, "POST", "/b?x=1", "body", "Idempotency-Key", "k")
		},
		"query": func(h http.Handler) *httptest.ResponseRecorder {
			return send(h, "POST", "/a?x=2", "body", "Idempotency-Key", "k")
		},
		"body": func(h http.Handler) *httptest.ResponseRecorder {
			return send(h, "POST", "/a?x=1", "body2", "Idempotency-Key", "k")
		},
		"cut between path and query": func(h http.Handler) *httptest.ResponseRecorder {
			return send(h, "POST", "/a", "x=1body", "Idempotency-Key", "k")
		},
	}
	for name, other := range others {
		t.Run("with another "+name+" gets 422 while it runs and afterwards", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				h := &counting{answer: func(http.ResponseWriter, *http.Request) { <-release }}
				guarded := keyed(t, idemhttp.Options{}, h.ServeHTTP)
				var first sync.WaitGroup
				first.Go(func() { send(guarded, "POST", "/a?x=1", "body", "Idempotency-Key", "k") })
				synctest.Wait()
				requireProblem(t, 422, other(guarded))
				close(release)
				first.Wait()
				requireProblem(t, 422, other(guarded))
				require.Equal(t, 200, send(guarded, "POST", "/a?x=1", "body", "Idempotency-Key", "k").Code)
				require.EqualValues(t, 1, h.runs.Load())
			})
		})
	}
	t.Run("of another tenant is another key", func(t *testing.T) {
		h := &counting{answer: status(200)}
		guarded := keyed(t, idemhttp.Options{
			Scope: func(r *http.Request) string { return r.Header.Get("Tenant") },
		}, h.ServeHTTP)
		for _, tenant := range []string{"t", "u"} {
			require.Equal(t, 200, send(guarded, "POST", "/", tenant, "Idempotency-Key", "k", "Tenant", tenant).Code)
		}
		require.EqualValues(t, 2, h.runs.Load())
	})
}

func TestIdempotencyKeyRunningTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h := &counting{answer: func(http.ResponseWriter, *http.Request) { <-release }}
		guarded := keyed(t, idemhttp.Options{}, h.ServeHTTP)
		var first sync.WaitGroup
		first.Go(func() { send(guarded, "POST", "/", "", "Idempotency-Key", "k") })
		synctest.Wait()
		got := send(guarded, "POST", "/", "", "Idempotency-Key", "k")
		requireProblem(t, 409, got)
		require.NotEmpty(t, got.Header().Get("Retry-After"))
		close(release)
		first.Wait()
	})
}

func TestIdempotencyKeyKeepsAllButPassingFailures(t *testing.T) {
	for _, code := range []int{200, 201, 202, 204, 302, 400, 401, 402, 403, 404, 409, 410, 422, 451} {
		t.Run(fmt.Sprintf("%d is replayed", code), func(t *testing.T) {
			h := &counting{answer: status(code)}
			guarded := keyed(t, idemhttp.Options{}, h.ServeHTTP)
			send(guarded, "POST", "/", "", "Idempotency-Key", "k")
			h.answer = status(299)
			require.Equal(t, code, send(guarded, "POST", "/", "", "Idempotency-Key", "k").Code)
			require.EqualValues(t, 1, h.runs.Load())
		})
	}
	for _, code := range []int{408, 425, 429, 500, 502, 503, 504, 599} {
		t.Run(fmt.Sprintf("%d leaves the key free", code), func(t *testing.T) {
			h := &counting{answer: status(code)}
			guarded := keyed(t, idemhttp.Options{}, h.ServeHTTP)
			require.Equal(t, code, send(guarded, "POST", "/", "", "Idempotency-Key", "k").Code)
			h.answer = status(299)
			require.Equal(t, 299, send(guarded, "POST", "/", "", "Idempotency-Key", "k").Code)
			require.EqualValues(t, 2, h.runs.Load())
		})
	}
}
