package idemhttp_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemhttp"
)

func TestFlushStreamsLive(t *testing.T) {
	next := make(chan struct{})
	var runs atomic.Int64
	server := serve(t, webhook(t, idemhttp.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		runs.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			assert.NoError(t, http.NewResponseController(w).Flush())
			<-next
		}
	}))
	r, err := http.NewRequest("POST", server.URL, nil)
	require.NoError(t, err)
	r.Header.Set("Webhook-Id", "1")
	resp, err := server.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for i := range 3 {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("data: %d\n", i), line)
		lines.ReadString('\n')
		next <- struct{}{} // the handler is only half way through
	}
	_, err = lines.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	again := ask(t, server, "POST", "/", "", "Webhook-Id", "1")
	require.Equal(t, "data: 0\n\ndata: 1\n\ndata: 2\n\n", again.body)
	require.Equal(t, "text/event-stream", again.header.Get("Content-Type"))
	require.EqualValues(t, 1, runs.Load())
}

func TestResponseController(t *testing.T) {
	t.Run("works through the wrapper", func(t *testing.T) {
		twice(t, idemhttp.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			c := http.NewResponseController(w)
			assert.NoError(t, c.SetReadDeadline(time.Now().Add(time.Hour)))
			assert.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Hour)))
			assert.NoError(t, c.EnableFullDuplex())
			assert.NoError(t, c.Flush())
		})
	})
	t.Run("says so where the connection cannot", func(t *testing.T) {
		guarded := webhook(t, idemhttp.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			c := http.NewResponseController(w)
			assert.ErrorIs(t, c.Flush(), http.ErrNotSupported)
			_, _, err := c.Hijack()
			assert.ErrorIs(t, err, http.ErrNotSupported)
			w.WriteHeader(202) // neither has settled anything
		})
		for range 2 {
			w := httptest.NewRecorder()
			guarded.ServeHTTP(struct{ http.ResponseWriter }{w}, httptest.NewRequest("POST", "/", nil))
			require.Equal(t, 202, w.Code)
		}
	})
	t.Run("a hijacked connection is kept as done with no body", func(t *testing.T) {
		var runs atomic.Int64
		server := serve(t, webhook(t, idemhttp.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			runs.Add(1)
			conn, _, err := w.(http.Hijacker).Hijack()
			assert.NoError(t, err)
			io.WriteString(conn, "HTTP/1.1 299 Mine\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmine")
			conn.Close()
		}))
		first := ask(t, server, "POST", "/", "", "Webhook-Id", "1")
		require.Equal(t, "mine", first.body)
		second := ask(t, server, "POST", "/", "", "Webhook-Id", "1")
		require.Equal(t, 200, second.status)
		require.Empty(t, second.body)
		require.True(t, second.replayed())
		require.EqualValues(t, 1, runs.Load())
	})
}

func TestLargeResponseWithoutSpill(t *testing.T) {
	const size = 3000
	for _, chunk := range []int{1, 999, size} {
		t.Run(fmt.Sprintf("in chunks of %d is remembered as omitted", chunk), func(t *testing.T) {
			first, second := twice(t, idemhttp.Options{MaxResponse: size - 1}, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Etag", `"v1"`)
				w.WriteHeader(201)
				for rest := size; rest > 0; rest -= chunk {
					w.Write(bytes.Repeat([]byte("x"), min(chunk, rest)))
				}
			})
			require.Len(t, first.body, size, "the first client gets it whole")
			require.Equal(t, 201, second.status)
			require.Equal(t, `"v1"`, second.header.Get("Etag"))
			require.Equal(t, first.header.Get("Content-Type"), second.header.Get("Content-Type"))
			require.Empty(t, second.body)
			require.Equal(t, "omitted", second.header.Get("Idempotency-Body"))
		})
	}
	t.Run("of just MaxResponse is kept", func(t *testing.T) {
		_, second := twice(t, idemhttp.Options{MaxResponse: size}, func(w http.ResponseWriter, _ *http.Request) {
			w.Write(bytes.Repeat([]byte("x"), size))
		})
		require.Len(t, second.body, size)
		require.Empty(t, second.header.Get("Idempotency-Body"))
	})
	t.Run("an endless stream learns that its client has gone", func(t *testing.T) {
		ended := make(chan error, 1)
		server := serve(t, webhook(t, idemhttp.Options{MaxResponse: 1000}, func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(bytes.Repeat([]byte("x"), 100)); err != nil {
					ended <- err
					return
				}
				w.(http.Flusher).Flush()
			}
		}))
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nWebhook-Id: 1\r\nContent-Length: 0\r\n\r\n")
		_, err = conn.Read(make([]byte, 1)) // before that, the request itself might be lost with the connection
		require.NoError(t, err)
		require.NoError(t, conn.(*net.TCPConn).SetLinger(0))
		require.NoError(t, conn.Close())
		require.Error(t, <-ended)
		eventually(t, "the retry is answered from the record", func() bool {
			return ask(t, server, "POST", "/", "", "Webhook-Id", "1").header.Get("Idempotency-Body") == "omitted"
		})
	})
}
