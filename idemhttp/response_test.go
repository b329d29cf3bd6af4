package idemhttp_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemhttp"
)

// twice delivers the same event twice over a socket and returns both answers.
func twice(t *testing.T, opts idemhttp.Options, h http.HandlerFunc) (first, second answer) {
	t.Helper()
	var runs atomic.Int64
	server := serve(t, webhook(t, opts, func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		h(w, r)
	}))
	first = ask(t, server, "POST", "/", "payload", "Webhook-Id", "1")
	second = ask(t, server, "POST", "/", "payload", "Webhook-Id", "1")
	require.EqualValues(t, 1, runs.Load())
	require.False(t, first.replayed())
	require.True(t, second.replayed())
	return first, second
}

func TestReplayedResponse(t *testing.T) {
	first, second := twice(t, idemhttp.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		for name, values := range map[string][]string{
			"Content-Type":        {"text/plain; charset=koi8-r"},
			"Content-Encoding":    {"x-none"},
			"Content-Language":    {"de, en"},
			"Content-Disposition": {"attachment; filename=\"\xe9,b.txt\""},
			"Location":            {"/charges/1?a=b,c"},
			"Last-Modified":       {"Thu, 01 Jan 1970 00:00:00 GMT"},
			"Link":                {"</a>; rel=next, </b>; rel=last", "</c>; rel=prev"},
			"Vary":                {"Accept", "Origin"},
			"Cache-Control":       {"no-store"},
			"Set-Cookie":          {"session=1", "other=2"},
			"Www-Authenticate":    {"Basic"},
			"Date":                {"Thu, 01 Jan 1970 00:00:00 GMT"},
			"Keep-Alive":          {"timeout=5"},
			"X-Request-Id":        {"1"},
		} {
			h[name] = values
		}
		h["ETag"] = []string{`"v1"`} // as some write it, past Header.Set
		w.WriteHeader(201)
		w.Write([]byte("ab\x00\xff"))
	})
	t.Run("has status and body as they were", func(t *testing.T) {
		require.Equal(t, 201, second.status)
		require.Equal(t, "ab\x00\xff", second.body)
		require.Equal(t, first.body, second.body)
	})
	for _, name := range []string{
		"Content-Type", "Content-Encoding", "Content-Language", "Content-Disposition", "Location",
		"Etag", "Last-Modified", "Link", "Vary", "Cache-Control",
	} {
		t.Run("has "+name+" as it was, line by line", func(t *testing.T) {
			require.NotEmpty(t, first.header[name])
			require.Equal(t, first.header[name], second.header[name])
		})
	}
	for _, name := range []string{"Set-Cookie", "Www-Authenticate", "Keep-Alive", "X-Request-Id"} {
		t.Run("never has "+name, func(t *testing.T) {
			require.NotEmpty(t, first.header[name])
			require.Empty(t, second.header[name])
		})
	}
	t.Run("has a Date and a Content-Length of its own", func(t *testing.T) {
		require.NotEqual(t, first.header.Get("Date"), second.header.Get("Date"))
		require.Equal(t, "4", second.header.Get("Content-Length"))
	})
	t.Run("is not hurt by what is done to an answer's header", func(t *testing.T) {
		guarded := webhook(t, idemhttp.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Vary"] = []string{"a", "b"}
		})
		send(guarded, "POST", "/", "", "Webhook-Id", "1").Header()["Vary"][0] = "changed"
		second := send(guarded, "POST", "/", "", "Webhook-Id", "1")
		second.Header()["Vary"][1] = "changed"
		second.Header().Add("Vary", "c")
		require.Equal(t, []string{"a", "b"}, send(guarded, "POST", "/", "", "Webhook-Id", "1").Header()["Vary"])
	})
}

func TestEachWayOfAnsweringSettlesTheKey(t *testing.T) {
	modified := time.Unix(1e9, 0)
	for _, c := range []struct {
		name   string
		h      http.HandlerFunc
		status int
		body   string
	}{
		{"nothing at all", func(http.ResponseWriter, *http.Request) {}, 200, ""},
		{"WriteHeader only", status(204), 204, ""},
		{"implicit 200", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("a")) }, 200, "a"},
		{"an empty Write", func(w http.ResponseWriter, _ *http.Request) { w.Write(nil) }, 200, ""},
		{"many Writes", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 5000 {
				fmt.Fprintf(w, "%d\n", i)
			}
		}, 200, fmt.Sprint(join(5000))},
		{"io.WriteString", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "a") }, 200, "a"},
		{"ReadFrom", func(w http.ResponseWriter, _ *http.Request) {
			w.(io.ReaderFrom).ReadFrom(strings.NewReader("abc"))
		}, 200, "abc"},
		{"io.Copy from a file-like source", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(202)
			io.Copy(w, io.LimitReader(strings.NewReader("abcdef"), 5))
		}, 202, "abcde"},
		{"http.ServeContent", func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "a.txt", modified, strings.NewReader("content"))
		}, 200, "content"},
		{"http.Redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusSeeOther)
		}, 303, ""},
		{"a declared length", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			w.Write([]byte("abc"))
		}, 200, "abc"},
		{"more than was declared", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			w.Write([]byte("abc"))
			_, err := w.Write([]byte("def"))
			assert.ErrorIs(t, err, http.ErrContentLength)
		}, 200, "abc"},
		{"a body where none may be", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			_, err := w.Write([]byte("abc"))
			assert.ErrorIs(t, err, http.ErrBodyNotAllowed)
		}, 204, ""},
		{"two statuses", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			w.WriteHeader(500)
		}, 201, ""},
		{"informational responses first", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(201)
			w.Write([]byte("a"))
		}, 201, "a"},
		{"Flush", func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte("a"))
			w.(http.Flusher).Flush()
			w.Write([]byte("b"))
		}, 200, "ab"},
		{"Flush alone", func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }, 200, ""},
		{"HTML without a type", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "<!DOCTYPE html>")
		}, 200, "<!DOCTYPE html>"},
		{"HTML after a flushed letter", func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte("\x00"))
			w.(http.Flusher).Flush()
			io.WriteString(w, "<!DOCTYPE html>")
		}, 200, "\x00<!DOCTYPE html>"},
		{"HTML after an empty flush", func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			io.WriteString(w, "<!DOCTYPE html>")
		}, 200, "<!DOCTYPE html>"},
		{"an encoded body without a type", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			io.WriteString(w, "<!DOCTYPE html>")
		}, 200, "<!DOCTYPE html>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			first, second := twice(t, idemhttp.Options{}, c.h)
			require.Equal(t, c.status, first.status)
			require.Equal(t, c.body, first.body)
			require.Equal(t, c.status, second.status)
			require.Equal(t, c.body, second.body)
			for _, name := range []string{"Content-Type", "Content-Encoding", "Location", "Last-Modified"} {
				require.Equal(t, first.header[name], second.header[name], name)
			}
		})
	}
}

func join(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d\n", i)
	}
	return b.String()
}
