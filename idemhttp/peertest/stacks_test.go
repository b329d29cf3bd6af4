package peertest

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
)

type middleware = func(http.Handler) http.Handler

// A stack is a way to put a guarded handler at POST /hooks/{name}; name reads
// the path's parameter as the router gives it.
type stack struct {
	name  string
	build func(guard middleware, h http.Handler) http.Handler
	param func(r *http.Request) string
}

func pathValue(r *http.Request) string { return r.PathValue("name") }
func urlParam(r *http.Request) string  { return chi.URLParam(r, "name") }

var stacks = []stack{
	{"ServeMux", func(guard middleware, h http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/hooks/{name}", guard(h))
		return mux
	}, pathValue},
	{"before a ServeMux", func(guard middleware, h http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/hooks/{name}", h)
		return guard(mux)
	}, pathValue},
	{"chi route", func(guard middleware, h http.Handler) http.Handler {
		router := chi.NewRouter()
		router.With(guard).Handle("/hooks/{name}", h)
		return router
	}, urlParam},
	{"chi router", func(guard middleware, h http.Handler) http.Handler {
		router := chi.NewRouter()
		router.Use(guard)
		router.Handle("/hooks/{name}", h)
		return router
	}, urlParam},
	{"inside TimeoutHandler", func(guard middleware, h http.Handler) http.Handler {
		return http.TimeoutHandler(guard(h), time.Minute, "too late")
	}, func(*http.Request) string { return "github" }},
	{"around TimeoutHandler", func(guard middleware, h http.Handler) http.Handler {
		return guard(http.TimeoutHandler(h, time.Minute, "too late"))
	}, func(*http.Request) string { return "github" }},
}

// A protocol starts a server and gives the client for it.
type protocol struct {
	name  string
	major int
	start func(t *testing.T, h http.Handler) *httptest.Server
}

var protocols = []protocol{
	{"HTTP 1.1", 1, func(t *testing.T, h http.Handler) *httptest.Server {
		return start(t, h, (*httptest.Server).Start)
	}},
	{"HTTP 2 over TLS", 2, func(t *testing.T, h http.Handler) *httptest.Server {
		return start(t, h, func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() })
	}},
	{"HTTP 2 in the clear", 2, func(t *testing.T, h http.Handler) *httptest.Server {
		var clear http.Protocols
		clear.SetUnencryptedHTTP2(true)
		server := start(t, h, func(s *httptest.Server) { s.Config.Protocols = &clear; s.Start() })
		server.Client().Transport = &http.Transport{Protocols: &clear}
		return server
	}},
}

func start(t *testing.T, h http.Handler, how func(*httptest.Server)) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	how(server)
	t.Cleanup(server.Close)
	return server
}

// everywhere runs f for each stack over each protocol, with a guarded handler
// behind it.
func everywhere(t *testing.T, f func(t *testing.T, s *site)) {
	for _, p := range protocols {
		for _, st := range stacks {
			t.Run(st.name+" over "+p.name, func(t *testing.T) { f(t, newSite(t, p, st)) })
		}
	}
}

// A site is a server with one guarded handler, which each test sets.
type site struct {
	*httptest.Server
	t        *testing.T
	protocol protocol
	stack    stack
	endpoint *idempotent.Endpoint[string, idemhttp.Response]
	runs     atomic.Int32
	handler  atomic.Pointer[http.HandlerFunc]
}

func newSite(t *testing.T, p protocol, st stack) *site {
	endpoint, err := idempotent.New(idempotent.Options[string, idemhttp.Response]{})
	require.NoError(t, err)
	s := &site{t: t, protocol: p, stack: st, endpoint: endpoint}
	s.handle(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, st.param(r), " ", len(body), " ", err)
	})
	guard := idemhttp.Webhook(endpoint, idemhttp.Options{MaxWait: time.Minute})
	s.Server = p.start(t, st.build(guard, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		(*s.handler.Load())(w, r)
	})))
	return s
}

func (s *site) handle(h http.HandlerFunc) { s.handler.Store(&h) }

// request is a delivery of event id.
func (s *site) request(ctx context.Context, id string, body io.Reader) *http.Request {
	r, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/hooks/github", body)
	require.NoError(s.t, err)
	r.Header.Set("Webhook-Id", id)
	return r
}

type answer struct {
	status   int
	body     string
	replayed bool
	header   http.Header
}

func (s *site) send(r *http.Request) answer {
	s.t.Helper()
	resp, err := s.Client().Do(r)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	require.Equal(s.t, s.protocol.major, resp.ProtoMajor)
	body, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return answer{resp.StatusCode, string(body), resp.Header.Get("Idempotency-Replayed") == "true", resp.Header}
}

// eventually polls for what happens on the other side of a socket.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}
