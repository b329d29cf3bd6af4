package idemhttp_test

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
)

type (
	endpoint = idempotent.Endpoint[string, idemhttp.Response]
	config   = idempotent.Options[string, idemhttp.Response]
)

func newEndpoint(t testing.TB, opts config) *endpoint {
	t.Helper()
	e, err := idempotent.New(opts)
	require.NoError(t, err)
	return e
}

func webhook(t testing.TB, opts idemhttp.Options, h http.HandlerFunc) http.Handler {
	return idemhttp.Webhook(newEndpoint(t, config{}), opts)(h)
}

func keyed(t testing.TB, opts idemhttp.Options, h http.HandlerFunc) http.Handler {
	return idemhttp.IdempotencyKey(newEndpoint(t, config{}), opts)(h)
}

// send calls h without a socket. Headers are given as name, value, name, value.
func send(h http.Handler, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// An answer is a response as a client over a socket saw it.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) replayed() bool { return a.header.Get("Idempotency-Replayed") == "true" }

// ask sends over a socket.
func ask(t testing.TB, server *httptest.Server, method, path, body string, headers ...string) answer {
	t.Helper()
	a, err := try(server, method, path, body, headers...)
	require.NoError(t, err)
	return a
}

func try(server *httptest.Server, method, path, body string, headers ...string) (answer, error) {
	r, err := http.NewRequest(method, server.URL+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	r.Close = true // net/http closes a connection whose handler misbehaved, seen or unseen
	client := *server.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(text)}, err
}

func serve(t testing.TB, h http.Handler) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // handlers here misbehave on purpose
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// eventually polls for what happens on the other side of a socket.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// counting runs answer and counts the runs.
type counting struct {
	runs   atomic.Int64
	answer http.HandlerFunc
}

func (c *counting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.runs.Add(1)
	c.answer(w, r)
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

var errDown = errors.New("connection refused")
