package peertest

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemhttp"
)

func TestADeliveryAndItsDuplicate(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		first := s.send(s.request(t.Context(), "1", strings.NewReader("hello")))
		second := s.send(s.request(t.Context(), "1", strings.NewReader("hello")))
		require.Equal(t, 202, first.status)
		require.Equal(t, "github 5 <nil>", first.body)
		require.False(t, first.replayed)
		require.Equal(t, 202, second.status)
		require.Equal(t, first.body, second.body)
		require.True(t, second.replayed)
		require.EqualValues(t, 1, s.runs.Load())
	})
}

func TestKeepAlive(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		reused := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
			if c.Reused {
				reused++
			}
		}})
		for i := range 50 {
			got := s.send(s.request(ctx, fmt.Sprint(i/2), strings.NewReader(strings.Repeat("x", i*100))))
			require.Equal(t, i%2 == 1, got.replayed)
		}
		require.EqualValues(t, 25, s.runs.Load())
		require.Equal(t, 49, reused, "all on one connection")
	})
}

func TestChunkedBodies(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		for i := range 2 {
			body, writer := io.Pipe()
			go func() {
				for range 100 {
					fmt.Fprint(writer, strings.Repeat("x", 100))
				}
				writer.Close()
			}()
			got := s.send(s.request(t.Context(), "1", body))
			require.Equal(t, "github 10000 <nil>", got.body)
			require.Equal(t, i == 1, got.replayed)
		}
	})
}

func TestHEAD(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		for i := range 2 {
			r := s.request(t.Context(), "1", nil)
			r.Method = "HEAD"
			got := s.send(r)
			require.Equal(t, 202, got.status)
			require.Empty(t, got.body)
			require.Equal(t, i == 1, got.replayed)
		}
		r := s.request(t.Context(), "1", nil)
		require.False(t, s.send(r).replayed, "POST is another method")
		require.EqualValues(t, 2, s.runs.Load())
	})
}

func zipped(text string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	return b.Bytes()
}

func TestGzipBodies(t *testing.T) {
	t.Run("reach the handler as they were sent, and are hashed so", func(t *testing.T) {
		everywhere(t, func(t *testing.T, s *site) {
			body := zipped(`{"id":"evt_1"}`)
			s.handle(func(w http.ResponseWriter, r *http.Request) {
				got, err := io.ReadAll(r.Body)
				assert.NoError(s.t, err)
				assert.Equal(s.t, body, got)
				assert.Equal(s.t, "gzip", r.Header.Get("Content-Encoding"))
			})
			for i := range 2 {
				r := s.request(t.Context(), "", bytes.NewReader(body))
				r.Header.Del("Webhook-Id")
				r.Header.Set("Content-Encoding", "gzip")
				require.Equal(t, i == 1, s.send(r).replayed)
			}
		})
	})
	t.Run("have their id found behind a middleware that decompresses", func(t *testing.T) {
		decompress := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := gzip.NewReader(r.Body)
				if err != nil {
					http.Error(w, "no gzip", http.StatusBadRequest)
					return
				}
				r.Body = body // and Content-Length stays the compressed one's
				next.ServeHTTP(w, r)
			})
		}
		for _, p := range protocols {
			t.Run(p.name, func(t *testing.T) {
				s := newSite(t, p, stack{"", func(guard middleware, h http.Handler) http.Handler {
					return decompress(guard(h))
				}, func(*http.Request) string { return "github" }})
				for i, text := range []string{`{"id":"evt_1"}`, `{"id":"evt_1","attempt":2}` + strings.Repeat(" ", 5000)} {
					r := s.request(t.Context(), "", bytes.NewReader(zipped(text)))
					r.Header.Del("Webhook-Id")
					got := s.send(r)
					require.Equal(t, i == 1, got.replayed)
					require.Equal(t, "github 14 <nil>", got.body)
				}
			})
		}
	})
	t.Run("responses that chi compresses are kept plain and compressed anew", func(t *testing.T) {
		for _, p := range protocols {
			t.Run(p.name, func(t *testing.T) {
				s := newSite(t, p, stack{"", func(guard middleware, h http.Handler) http.Handler {
					router := chi.NewRouter()
					router.Use(chimiddleware.Compress(5), guard)
					router.Handle("/hooks/{name}", h)
					return router
				}, urlParam})
				text := strings.Repeat("hello ", 1000)
				s.handle(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "text/plain")
					io.WriteString(w, text)
				})
				for i := range 2 {
					r := s.request(t.Context(), "1", nil)
					r.Header.Set("Accept-Encoding", "gzip") // so the client leaves it as it is
					resp, err := s.Client().Do(r)
					require.NoError(t, err)
					defer resp.Body.Close()
					require.Equal(t, "gzip", resp.Header.Get("Content-Encoding"))
					plain, err := gzip.NewReader(resp.Body)
					require.NoError(t, err)
					got, err := io.ReadAll(plain)
					require.NoError(t, err)
					require.Equal(t, text, string(got))
					require.Equal(t, i == 1, resp.Header.Get("Idempotency-Replayed") == "true")
				}
			})
		}
	})
}

func TestExpectContinue(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		if transport, ok := s.Client().Transport.(*http.Transport); ok {
			transport.ExpectContinueTimeout = 20 * time.Second
		}
		for i := range 2 {
			r := s.request(t.Context(), "1", strings.NewReader("hello"))
			r.Header.Set("Expect", "100-continue")
			got := s.send(r)
			require.Equal(t, "github 5 <nil>", got.body)
			require.Equal(t, i == 1, got.replayed)
		}
	})
	t.Run("a request without a usable key is refused before its body is sent", func(t *testing.T) {
		s := newSite(t, protocols[0], stacks[0])
		guarded := idemhttp.IdempotencyKey(s.endpoint, idemhttp.Options{})(http.NotFoundHandler())
		server := httptest.NewServer(guarded)
		defer server.Close()
		continued := false
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { continued = true }})
		r, err := http.NewRequestWithContext(ctx, "POST", server.URL, strings.NewReader("hello"))
		require.NoError(t, err)
		r.Header.Set("Expect", "100-continue")
		client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: 20 * time.Second}}
		defer client.CloseIdleConnections()
		resp, err := client.Do(r)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, 400, resp.StatusCode)
		require.False(t, continued)
	})
}

func TestLargeBodyIsRefusedEverywhere(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		r := s.request(t.Context(), "1", strings.NewReader(strings.Repeat("x", 1<<20+1)))
		resp, err := s.Client().Do(r)
		if err == nil { // else the server closed the connection while the client was sending
			resp.Body.Close()
			require.Equal(t, 413, resp.StatusCode)
		}
		require.Zero(t, s.runs.Load())
	})
}

func TestTimeoutHandler(t *testing.T) {
	for _, p := range protocols {
		t.Run("outside: the client gets 503 and its retry the result, over "+p.name, func(t *testing.T) {
			release := make(chan struct{})
			s := newSite(t, p, stack{"", func(guard middleware, h http.Handler) http.Handler {
				guarded := guard(h)
				hasty := http.TimeoutHandler(guarded, 10*time.Millisecond, "too late")
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Hasty") != "" {
						hasty.ServeHTTP(w, r)
						return
					}
					guarded.ServeHTTP(w, r)
				})
			}, pathValue})
			s.handle(func(w http.ResponseWriter, r *http.Request) {
				<-release
				if r.Context().Err() != nil {
					http.Error(w, "cancelled", http.StatusInternalServerError)
					return
				}
				io.WriteString(w, "done")
			})
			r := s.request(t.Context(), "1", nil)
			r.Header.Set("Hasty", "1")
			got := s.send(r)
			require.Equal(t, 503, got.status)
			require.Equal(t, "too late", got.body)
			close(release)
			got = s.send(s.request(t.Context(), "1", nil))
			require.Equal(t, 200, got.status)
			require.Equal(t, "done", got.body)
			require.True(t, got.replayed)
			require.EqualValues(t, 1, s.runs.Load())
		})
		t.Run("inside: its 503 leaves the key free, over "+p.name, func(t *testing.T) {
			s := newSite(t, p, stack{"", func(guard middleware, h http.Handler) http.Handler {
				return guard(http.TimeoutHandler(h, 10*time.Millisecond, "too late"))
			}, pathValue})
			s.handle(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			require.Equal(t, 503, s.send(s.request(t.Context(), "1", nil)).status)
			s.handle(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "done") })
			require.Equal(t, "done", s.send(s.request(t.Context(), "1", nil)).body)
			require.EqualValues(t, 2, s.runs.Load())
		})
	}
}

func TestStreamingIsLive(t *testing.T) {
	for _, p := range protocols {
		for _, st := range stacks[:4] { // TimeoutHandler has no Flush
			t.Run(st.name+" over "+p.name, func(t *testing.T) {
				s := newSite(t, p, st)
				next := make(chan struct{})
				s.handle(func(w http.ResponseWriter, _ *http.Request) {
					for i := range 3 {
						fmt.Fprintf(w, "data: %d\n\n", i)
						assert.NoError(t, http.NewResponseController(w).Flush())
						<-next
					}
				})
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				resp, err := s.Client().Do(s.request(ctx, "1", nil))
				require.NoError(t, err)
				defer resp.Body.Close()
				part := make([]byte, len("data: 0\n\n"))
				for i := range 3 {
					_, err := io.ReadFull(resp.Body, part)
					require.NoError(t, err)
					require.Equal(t, fmt.Sprintf("data: %d\n\n", i), string(part))
					next <- struct{}{}
				}
				got := s.send(s.request(t.Context(), "1", nil))
				require.True(t, got.replayed)
				require.Equal(t, "data: 0\n\ndata: 1\n\ndata: 2\n\n", got.body)
			})
		}
	}
}
