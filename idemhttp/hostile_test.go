package idemhttp_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemhttp"
)

// raw writes bytes as they are and reads one answer.
func raw(t *testing.T, server *httptest.Server, request ...string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	go func() { // the server may answer, and stop reading, before it has all
		for _, part := range request {
			io.WriteString(conn, part)
		}
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	return resp
}

// A target is both middlewares on one server, with what must stay empty.
type target struct {
	*httptest.Server
	e *endpoint
	h *counting
}

func newTarget(t *testing.T, opts idemhttp.Options) target {
	e := newEndpoint(t, config{})
	h := &counting{answer: status(200)}
	mux := http.NewServeMux()
	mux.Handle("/hook", idemhttp.Webhook(e, opts)(h))
	mux.Handle("/api", idemhttp.IdempotencyKey(e, opts)(h))
	server := httptest.NewUnstartedServer(mux)
	server.Config.ReadTimeout = 500 * time.Millisecond
	server.Start()
	t.Cleanup(server.Close)
	return target{server, e, h}
}

func (to target) requireUntouched(t *testing.T) {
	t.Helper()
	require.Zero(t, to.h.runs.Load(), "no handler ran")
	require.Zero(t, to.e.Stats(), "no key was claimed")
}

func TestHostileRequests(t *testing.T) {
	const mebibyte = 1 << 20
	hook := func(rest string) string { return "POST /hook HTTP/1.1\r\nHost: x\r\nWebhook-Id: 1\r\n" + rest }
	for _, c := range []struct {
		name    string
		request string
		want    []int
	}{
		{"a header value of 1 MiB", "POST /api HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nIdempotency-Key: " + strings.Repeat("k", mebibyte-100) + "\r\n\r\n", []int{400, 431}},
		{"an event id of nearly 1 MiB", "POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nWebhook-Id: " + strings.Repeat("k", mebibyte-100) + "\r\n\r\n", []int{400, 431}},
		{"a NUL in the header", "POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nWebhook-Id: a\x00b\r\n\r\n", []int{400}},
		{"a folded header", "POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nWebhook-Id: a\r\n b\x01\r\n\r\n", []int{400}},
		{"repeated event ids", hook("Webhook-Id: 2\r\nContent-Length: 0\r\n\r\n"), []int{400}},
		{"a NUL and a newline in the id of the body", "POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 19\r\n\r\n{\"id\":\"a\\u0000\\nb\"}", []int{400}},
		{"an id of 64 KiB in the body", "POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 65545\r\n\r\n{\"id\":\"" + strings.Repeat("k", 65536) + "\"}", []int{400}},
		{"a Content-Length of 1 EiB", hook("Content-Length: 1152921504606846976\r\n\r\n"), []int{413}},
		{"a Content-Length just too large", hook("Content-Length: 1048577\r\n\r\n"), []int{413}},
		{"a negative Content-Length", hook("Content-Length: -1\r\n\r\n"), []int{400}},
		{"two Content-Lengths", hook("Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx"), []int{400}},
		{"a chunked body of 2 MiB", hook("Transfer-Encoding: chunked\r\n\r\n200000\r\n" + strings.Repeat("x", 2*mebibyte)), []int{413}},
		{"a malformed chunk", hook("Transfer-Encoding: chunked\r\n\r\nzz\r\n"), []int{400}},
		{"a body that never comes", hook("Content-Length: 10\r\n\r\n"), []int{408}},
		{"a body that stops half way", hook("Content-Length: 10\r\n\r\nhello"), []int{408}},
		{"a chunk that stops half way", hook("Transfer-Encoding: chunked\r\n\r\na\r\nhello"), []int{408}},
	} {
		t.Run(c.name+" gets a clear status, and claims nothing", func(t *testing.T) {
			to := newTarget(t, idemhttp.Options{})
			require.Contains(t, c.want, raw(t, to.Server, c.request).StatusCode)
			to.requireUntouched(t)
		})
	}
	t.Run("a Content-Length larger than the body, and a closed connection, claims nothing", func(t *testing.T) {
		to := newTarget(t, idemhttp.Options{})
		conn, err := net.Dial("tcp", to.Listener.Addr().String())
		require.NoError(t, err)
		io.WriteString(conn, hook("Content-Length: 10\r\n\r\nhello"))
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.Equal(t, 400, resp.StatusCode)
		to.requireUntouched(t)
	})
	t.Run("a slow body does not hold its key", func(t *testing.T) {
		to := newTarget(t, idemhttp.Options{})
		conn, err := net.Dial("tcp", to.Listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		io.WriteString(conn, hook("Content-Length: 5\r\n\r\nhell"))
		got := ask(t, to.Server, "POST", "/hook", "hello", "Webhook-Id", "1")
		require.Equal(t, 200, got.status)
		require.EqualValues(t, 1, to.h.runs.Load())
	})
	t.Run("what a client sends comes back escaped", func(t *testing.T) {
		guarded := webhook(t, idemhttp.Options{Key: func(_ *http.Request, body []byte) (string, error) {
			return "", fmt.Errorf("bad event %s", body)
		}}, status(200))
		got := send(guarded, "POST", "/", "\x1b[2J\r\n<script>\xff\x00")
		require.Equal(t, 400, got.Code)
		require.Less(t, send(guarded, "POST", "/", strings.Repeat("\x00", 1<<20)).Body.Len(), 2000, "and not in full")
		require.Contains(t, got.Body.String(), `bad event \u001b[2J\r\n\u003cscript\u003e\ufffd\u0000`)
	})
}

func TestMemoryOfOneRequestIsBounded(t *testing.T) {
	const limit = 8 << 20
	var before, during int64
	guarded := webhook(t, idemhttp.Options{MaxBody: limit, MaxResponse: limit}, func(w http.ResponseWriter, r *http.Request) {
		chunk := bytes.Repeat([]byte("x"), 1000)
		for range limit / len(chunk) {
			w.Write(chunk)
		}
		during = heap()
	})
	before = heap()
	body := io.LimitReader(zeros{}, limit) // of unknown length, so nothing can be sized beforehand
	r := httptest.NewRequest("POST", "/", body)
	w := &discarding{header: http.Header{}}
	guarded.ServeHTTP(w, r)
	require.Equal(t, 200, w.status)
	require.Less(t, during-before, int64(2*limit+1<<20))
	require.Greater(t, during-before, int64(2*limit-1<<20), "both bodies were there")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type discarding struct {
	header http.Header
	status int
}

func (d *discarding) Header() http.Header         { return d.header }
func (d *discarding) Write(p []byte) (int, error) { d.WriteHeader(200); return len(p), nil }
func (d *discarding) WriteHeader(status int)      { d.status = max(d.status, status) }

func TestThousandsOfDistinctKeys(t *testing.T) {
	const capacity = 1000
	keys := deliveries(t)
	storm := func(t *testing.T, opts config) (answers map[int]int, grown int64, e *endpoint) {
		e = newEndpoint(t, opts)
		guarded := idemhttp.Webhook(e, idemhttp.Options{})(status(200))
		answers = map[int]int{}
		before := heap()
		for i := range keys {
			w := &discarding{header: http.Header{}}
			r := httptest.NewRequest("POST", "/"+strings.Repeat("p", 2000), nil) // long, to be worth holding
			r.Header.Set("Webhook-Id", fmt.Sprint(i))
			guarded.ServeHTTP(w, r)
			answers[w.status]++
		}
		return answers, heap() - before, e
	}
	t.Run("are refused with 503 at Capacity, and memory stays flat", func(t *testing.T) {
		answers, grown, e := storm(t, config{Capacity: capacity})
		require.Equal(t, map[int]int{200: capacity, 503: keys - capacity}, answers)
		require.Less(t, grown, int64(1<<20), "a third of it is in use")
		require.Equal(t, capacity, e.Stats().Retained)
		require.Zero(t, e.Stats().InFlight)
	})
	t.Run("push the oldest out with EvictOldest, and memory stays flat", func(t *testing.T) {
		answers, grown, e := storm(t, config{Capacity: capacity, EvictOldest: true, StaleMemory: -1})
		require.Equal(t, map[int]int{200: keys}, answers)
		require.Less(t, grown, int64(1<<20), "a third of it is in use")
		require.Equal(t, capacity, e.Stats().Retained)
		require.Zero(t, e.Stats().InFlight)
	})
}

// FuzzHandler: whatever bytes come as a request, both middlewares answer it,
// and hold nothing afterwards.
func FuzzHandler(f *testing.F) {
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: x\r\nWebhook-Id: 1\r\nContent-Length: 2\r\n\r\n{}",
		"POST /?a=b HTTP/1.1\r\nHost: x\r\nIdempotency-Key: \"a\\\"b\"\r\nContent-Length: 2\r\n\r\n{}",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"id\"\r\n5\r\n:\"1\"}\r\n0\r\n\r\n",
		"PUT /%2f%00 HTTP/1.0\r\nX-GitHub-Delivery: x\r\nContent-Length: 5\r\n\r\nab",
		"DELETE * HTTP/1.1\r\nHost: x\r\nIdempotency-Key: a\r\nIdempotency-Key: a\r\n\r\n",
		"HEAD / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
	} {
		f.Add([]byte(request))
	}
	f.Fuzz(func(t *testing.T, request []byte) {
		e := newEndpoint(t, config{})
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
		opts := idemhttp.Options{MaxBody: 1000, MaxResponse: 100}
		for _, guarded := range []http.Handler{idemhttp.Webhook(e, opts)(h), idemhttp.IdempotencyKey(e, opts)(h)} {
			for range 2 {
				r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(request)))
				if err != nil {
					return
				}
				w := httptest.NewRecorder()
				guarded.ServeHTTP(w, r)
				require.NotZero(t, w.Code)
				require.Empty(t, e.InFlight())
			}
		}
		for key := range e.Records() {
			require.LessOrEqual(t, len(key), 1024)
		}
	})
}
