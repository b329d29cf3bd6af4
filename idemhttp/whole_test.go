package idemhttp_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemhttp"
)

// breaking is a file that cannot be read to its end.
type breaking struct{ *strings.Reader }

func (b breaking) Read(p []byte) (int, error) {
	if b.Reader.Len() <= 5 {
		return 0, errors.New("disk error")
	}
	return b.Reader.Read(p[:min(len(p), 5)])
}

// A handler that writes less than it declared has cut its own client off. Nobody
// else may take that for the whole.
func TestACutBodyIsNotReplayed(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"http.ServeContent": func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "a.txt", time.Time{}, struct{ io.ReadSeeker }{breaking{strings.NewReader("0123456789abcdef")}})
		},
		"a proxy whose upstream broke off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "16")
			io.Copy(w, io.MultiReader(strings.NewReader("01234567"), failing{}))
		},
		"a write that is too long": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			w.Write([]byte("abcdef"))
		},
	} {
		spill, path := newDir(t, time.Hour)
		for where, opts := range map[string]idemhttp.Options{"in memory": {}, "spilled": {MaxResponse: 2, Spill: spill}} {
			t.Run(name+" "+where, func(t *testing.T) {
				s := serve(t, webhook(t, opts, h))
				_, err := try(s, "POST", "/", "", "Webhook-Id", "1")
				require.Error(t, err, "the first client can tell")
				got := ask(t, s, "POST", "/", "", "Webhook-Id", "1")
				require.True(t, got.replayed())
				require.Equal(t, "omitted", got.header.Get("Idempotency-Body"))
				require.Empty(t, got.body)
				require.Empty(t, files(t, path))
			})
		}
	}
	t.Run("what needs no body is whole without", func(t *testing.T) {
		for _, c := range []struct {
			method string
			status int
		}{{"HEAD", 200}, {"POST", 204}, {"GET", 304}} {
			s := serve(t, webhook(t, idemhttp.Options{}, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "16")
				w.WriteHeader(c.status)
			}))
			for range 2 {
				got := ask(t, s, c.method, "/", "", "Webhook-Id", "1")
				require.Equal(t, c.status, got.status)
				require.Empty(t, got.header.Get("Idempotency-Body"))
			}
		}
	})
}

// What is beyond the declared length does not reach the client, whatever the
// protocol calls that.
func TestTheReplayEndsWhereTheFirstAnswerDid(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(webhook(t, idemhttp.Options{}, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "3")
				w.Write([]byte("abc"))
				w.(http.Flusher).Flush()
				_, err := w.Write([]byte("def"))
				assert.Error(t, err)
			}))
			s.EnableHTTP2 = http2
			s.StartTLS()
			defer s.Close()
			for range 2 {
				got := ask(t, s, "POST", "/", "", "Webhook-Id", "1")
				require.Equal(t, "abc", got.body)
				require.Equal(t, "3", got.header.Get("Content-Length"))
			}
		})
	}
}

func TestHeadersThatTheHandlerTookAway(t *testing.T) {
	t.Run("no Content-Type is none", func(t *testing.T) {
		first, second := twice(t, idemhttp.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil // net/http's way to say none
			io.WriteString(w, "<!DOCTYPE html>")
		})
		require.Empty(t, first.header["Content-Type"])
		require.Empty(t, second.header["Content-Type"])
	})
	t.Run("what an outer middleware set stays away", func(t *testing.T) {
		inner := webhook(t, idemhttp.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Del("Cache-Control")
		})
		outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("X-Outer", "stays")
			inner.ServeHTTP(w, r)
		})
		for range 2 {
			got := send(outer, "POST", "/", "", "Webhook-Id", "1")
			require.Empty(t, got.Header()["Cache-Control"])
			require.Equal(t, "stays", got.Header().Get("X-Outer"))
		}
	})
}

func TestAWriteAfterHijackIsRefused(t *testing.T) {
	s := serve(t, webhook(t, idemhttp.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		assert.NoError(t, err)
		_, err = w.Write([]byte("x"))
		assert.ErrorIs(t, err, http.ErrHijacked)
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		conn.Close()
	}))
	require.Equal(t, 200, ask(t, s, "POST", "/", "", "Webhook-Id", "1").status)
}
