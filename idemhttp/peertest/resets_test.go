package peertest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// reset closes a connection in the rudest way there is.
func reset(t *testing.T, conn net.Conn) {
	require.NoError(t, conn.(*net.TCPConn).SetLinger(0))
	require.NoError(t, conn.Close())
}

// TestResetBeforeTheClaim: a connection that breaks before the request is
// whole runs nothing, and the retry runs once.
func TestResetBeforeTheClaim(t *testing.T) {
	const header = "POST /hooks/github HTTP/1.1\r\nHost: x\r\nWebhook-Id: 1\r\n"
	for name, sent := range map[string]string{
		"before anything is sent":  "",
		"within the header":        header[:40],
		"after the header":         header + "Content-Length: 10\r\n\r\n",
		"within the body":          header + "Content-Length: 10\r\n\r\nhello",
		"within a chunk":           header + "Transfer-Encoding: chunked\r\n\r\na\r\nhello",
		"after a chunk":            header + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"after Expect, without it": header + "Expect: 100-continue\r\nContent-Length: 10\r\n\r\n",
	} {
		for _, st := range stacks {
			t.Run(name+", "+st.name, func(t *testing.T) {
				s := newSite(t, protocols[0], st)
				conn, err := net.Dial("tcp", s.Listener.Addr().String())
				require.NoError(t, err)
				_, err = io.WriteString(conn, sent)
				require.NoError(t, err)
				reset(t, conn)
				got := s.send(s.request(t.Context(), "1", strings.NewReader("hello")))
				require.Equal(t, 202, got.status)
				require.False(t, got.replayed)
				require.EqualValues(t, 1, s.runs.Load())
				require.Empty(t, s.endpoint.InFlight())
			})
		}
	}
}

// leave starts a delivery whose client goes away when the test says so.
func leave(t *testing.T, s *site, id string) (gone func()) {
	if s.protocol.major == 1 {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		require.NoError(t, err)
		_, err = fmt.Fprintf(conn, "POST /hooks/github HTTP/1.1\r\nHost: x\r\nWebhook-Id: %s\r\nContent-Length: 5\r\n\r\nhello", id)
		require.NoError(t, err)
		return func() { reset(t, conn) }
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := s.request(ctx, id, strings.NewReader("hello"))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := s.Client().Do(r); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}()
	return func() { cancel(); <-ended }
}

func TestResetWhileTheHandlerRuns(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		started, release := make(chan struct{}), make(chan struct{})
		s.handle(func(w http.ResponseWriter, r *http.Request) {
			close(started)
			<-release
			if err := r.Context().Err(); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Write(bytes.Repeat([]byte("x"), 100_000))
		})
		gone := leave(t, s, "1")
		<-started
		gone()
		close(release)
		got := s.send(s.request(t.Context(), "1", strings.NewReader("hello")))
		require.Equal(t, 200, got.status)
		require.True(t, got.replayed)
		require.Len(t, got.body, 100_000)
		require.EqualValues(t, 1, s.runs.Load())
	})
}

func TestResetWhileTheResponseStreams(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		const chunk, chunks = 10_000, 90 // below the default MaxResponse, above any socket's buffer
		started, release := make(chan struct{}), make(chan struct{})
		s.handle(func(w http.ResponseWriter, _ *http.Request) {
			for i := range chunks {
				if _, err := w.Write(bytes.Repeat([]byte("x"), chunk)); err != nil {
					return // must not happen: the copy is not complete
				}
				if i == 0 {
					close(started)
					<-release
				}
			}
		})
		gone := leave(t, s, "1")
		<-started
		gone()
		close(release)
		got := s.send(s.request(t.Context(), "1", strings.NewReader("hello")))
		require.True(t, got.replayed)
		require.Len(t, got.body, chunk*chunks, "never a cut body")
		require.EqualValues(t, 1, s.runs.Load())
	})
}

func TestResetWhileADuplicateWaits(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		release := make(chan struct{})
		s.handle(func(w http.ResponseWriter, _ *http.Request) { <-release; io.WriteString(w, "done") })
		waiting := func() int {
			claims := s.endpoint.InFlight()
			if len(claims) == 0 {
				return -1
			}
			return claims[0].Waiters
		}
		first := make(chan answer)
		go func() { first <- s.send(s.request(t.Context(), "1", strings.NewReader("hello"))) }()
		eventually(t, "the handler runs", func() bool { return waiting() == 0 })
		gone := leave(t, s, "1")
		eventually(t, "a duplicate waits", func() bool { return waiting() == 1 })
		gone()
		eventually(t, "the duplicate has left its place", func() bool { return waiting() == 0 })
		close(release)
		require.Equal(t, "done", (<-first).body)
		require.Equal(t, "done", s.send(s.request(t.Context(), "1", strings.NewReader("hello"))).body)
		require.EqualValues(t, 1, s.runs.Load())
	})
}

func TestResetWhileAReplayIsSent(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		s.handle(func(w http.ResponseWriter, _ *http.Request) { w.Write(bytes.Repeat([]byte("x"), 900_000)) })
		s.send(s.request(t.Context(), "1", strings.NewReader("hello")))
		for range 5 {
			leave(t, s, "1")()
		}
		got := s.send(s.request(t.Context(), "1", strings.NewReader("hello")))
		require.Len(t, got.body, 900_000)
		require.EqualValues(t, 1, s.runs.Load())
	})
}

func TestResetOfAPipelinedConnection(t *testing.T) {
	s := newSite(t, protocols[0], stacks[0])
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	request := "POST /hooks/github HTTP/1.1\r\nHost: x\r\nWebhook-Id: 1\r\nContent-Length: 5\r\n\r\nhello"
	_, err = io.WriteString(conn, request+request+request)
	require.NoError(t, err)
	answers := bufio.NewReader(conn)
	for i := range 3 {
		resp, err := http.ReadResponse(answers, nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.Equal(t, i > 0, resp.Header.Get("Idempotency-Replayed") == "true")
	}
	reset(t, conn)
	require.EqualValues(t, 1, s.runs.Load())
}
