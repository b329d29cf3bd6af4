package idemhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
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

func goroutine() string {
	stack := make([]byte, 64)
	return string(bytes.Fields(stack[:runtime.Stack(stack, false)])[1])
}

type contextKey struct{}

func TestTheHandler(t *testing.T) {
	t.Run("runs on the request's goroutine, with the request's values", func(t *testing.T) {
		var ran string
		var value any
		guarded := webhook(t, idemhttp.Options{}, func(_ http.ResponseWriter, r *http.Request) {
			ran, value = goroutine(), r.Context().Value(contextKey{})
		})
		r := httptest.NewRequest("POST", "/", nil)
		guarded.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(r.Context(), contextKey{}, 7)))
		require.Equal(t, goroutine(), ran)
		require.Equal(t, 7, value)
	})
	t.Run("sees the whole body", func(t *testing.T) {
		for _, size := range []int{0, 1, 511, 512, 513, 64 << 10, 64<<10 + 1, 1 << 20} {
			body := strings.Repeat("x", size)
			server := serve(t, webhook(t, idemhttp.Options{}, func(w http.ResponseWriter, r *http.Request) {
				got, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.NoError(t, r.Body.Close())
				fmt.Fprint(w, len(got), string(got) == body)
			}))
			require.Equal(t, fmt.Sprint(size, true), ask(t, server, "POST", "/", body).body)
		}
	})
	t.Run("sees a form, whose files are removed afterwards", func(t *testing.T) {
		var path string
		guarded := webhook(t, idemhttp.Options{}, func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, r.ParseMultipartForm(1))
			file, _, err := r.FormFile("f")
			assert.NoError(t, err)
			defer file.Close()
			path = file.(interface{ Name() string }).Name()
			assert.FileExists(t, path)
		})
		part := "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n" + strings.Repeat("x", 100<<10) + "\r\n--b--\r\n"
		got := send(guarded, "POST", "/", part, "Content-Type", "multipart/form-data; boundary=b")
		require.Equal(t, 200, got.Code)
		require.NoFileExists(t, path)
	})
	t.Run("is not cancelled when the client leaves, who gets the result on the retry", func(t *testing.T) {
		started, release := make(chan struct{}), make(chan struct{})
		var cancelled error
		var runs atomic.Int64
		server := serve(t, webhook(t, idemhttp.Options{MaxWait: 20 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			close(started)
			<-release
			cancelled = r.Context().Err()
			for range 100 {
				if _, err := w.Write(bytes.Repeat([]byte("x"), 1000)); err != nil {
					return
				}
			}
		}))
		gone := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(gone)
			r, _ := http.NewRequestWithContext(ctx, "POST", server.URL, nil)
			r.Header.Set("Webhook-Id", "1")
			if resp, err := server.Client().Do(r); err == nil {
				resp.Body.Close()
			}
		}()
		<-started
		cancel()
		<-gone
		close(release)
		got := ask(t, server, "POST", "/", "", "Webhook-Id", "1")
		require.NoError(t, cancelled)
		require.Len(t, got.body, 100_000)
		require.True(t, got.replayed())
		require.EqualValues(t, 1, runs.Load())
	})
	t.Run("has a body of its own, also for what reads on after it has returned", func(t *testing.T) {
		var late io.Reader // as a proxy's transport may
		h := &counting{answer: func(_ http.ResponseWriter, r *http.Request) { late = r.Body }}
		guarded := webhook(t, idemhttp.Options{}, h.ServeHTTP)
		send(guarded, "POST", "/", "first", "Webhook-Id", "1")
		h.answer = func(http.ResponseWriter, *http.Request) {}
		for i := range 100 {
			send(guarded, "POST", "/", "other", "Webhook-Id", fmt.Sprint(i%2))
		}
		body, err := io.ReadAll(late)
		require.NoError(t, err)
		require.Equal(t, "first", string(body))
	})
	t.Run("is not ended by a flush that its client is gone for", func(t *testing.T) {
		h := &counting{answer: func(w http.ResponseWriter, _ *http.Request) {
			for range 10 {
				io.WriteString(w, "x")
				if http.NewResponseController(w).Flush() != nil {
					return
				}
			}
		}}
		guarded := webhook(t, idemhttp.Options{}, h.ServeHTTP)
		r := httptest.NewRequest("POST", "/", nil)
		guarded.ServeHTTP(&unflushable{ResponseWriter: httptest.NewRecorder()}, r)
		require.Equal(t, "xxxxxxxxxx", send(guarded, "POST", "/", "").Body.String())
		require.EqualValues(t, 1, h.runs.Load())
	})
	t.Run("of an executor that detaches it is waited for", func(t *testing.T) {
		e := newEndpoint(t, config{Detach: true})
		ctx, cancel := context.WithCancel(t.Context())
		ended := false
		guarded := idemhttp.Webhook(e, idemhttp.Options{})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			cancel() // the executor lets the caller go now
			for range 100 {
				runtime.Gosched()
				w.Write([]byte("x"))
			}
			ended = true
		}))
		r := httptest.NewRequestWithContext(ctx, "POST", "/", nil)
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, r)
		require.True(t, ended)
		require.Equal(t, 100, w.Body.Len())
	})
	t.Run("is not entered after the request was answered", func(t *testing.T) {
		late := &lateExecutor{}
		h := &counting{answer: status(200)}
		require.Equal(t, 503, send(idemhttp.Webhook(late, idemhttp.Options{})(h), "POST", "/", "").Code)
		_, err := late.effect(t.Context())
		require.Error(t, err)
		require.Zero(t, h.runs.Load())
	})
}

// unflushable is a connection that is found broken when it is flushed.
type unflushable struct{ http.ResponseWriter }

func (*unflushable) FlushError() error { return errDown }

// lateExecutor gives up before it runs the effect.
type lateExecutor struct {
	effect func(context.Context) (idemhttp.Response, error)
}

func (e *lateExecutor) Handle(_ context.Context, _ idempotent.Request[string], effect func(context.Context) (idemhttp.Response, error)) (idemhttp.Response, idempotent.Verdict, error) {
	e.effect = effect
	return idemhttp.Response{}, idempotent.Executed, errDown
}

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
		require.NoError(t, conn.(*net.TCPConn).SetLinger(0))
		require.NoError(t, conn.Close())
		require.Error(t, <-ended)
		eventually(t, "the retry is answered from the record", func() bool {
			return ask(t, server, "POST", "/", "", "Webhook-Id", "1").header.Get("Idempotency-Body") == "omitted"
		})
	})
}

// FuzzResponseJSON: a response comes back from JSON byte for byte.
func FuzzResponseJSON(f *testing.F) {
	f.Add(200, "", "", []byte(nil), "", false)
	f.Add(201, `"v1"`, "a, b", []byte("\x00\xff<html>"), "", false)
	f.Add(200, "\xe9\xff\xc3\xa9 é", "\u2028", []byte(nil), "ref-\xff", true)
	f.Fuzz(func(t *testing.T, status int, etag, link string, body []byte, ref string, omitted bool) {
		if len(body) == 0 {
			body = nil
		}
		want := idemhttp.Response{Status: status, Header: http.Header{"Etag": {etag}, "Link": {link, ""}}, Body: body, BodyRef: ref, Omitted: omitted}
		text, err := json.Marshal(want)
		require.NoError(t, err)
		var got idemhttp.Response
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, want, got)
	})
}

func TestResponseJSON(t *testing.T) {
	for _, want := range []idemhttp.Response{{}, {Status: 200, Header: http.Header{}}, {Status: 204, Header: http.Header{"Vary": {}}}} {
		text, err := json.Marshal(want)
		require.NoError(t, err)
		var got idemhttp.Response
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, want, got)
	}
	for _, bad := range []string{`{"status":"x"}`, `{"header":{"Etag":["\u0100"]}}`, `{"header":{"\u0100":[]}}`, `{"bodyRef":"\u20ac"}`, `[]`} {
		require.ErrorContains(t, json.Unmarshal([]byte(bad), new(idemhttp.Response)), "idemhttp: response: ", bad)
	}
	t.Run("an executor that stores JSON replays the same bytes", func(t *testing.T) {
		store := &jsonStore{records: map[string][]byte{}}
		h := &counting{answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Disposition"] = []string{"attachment; filename=\"\xe9\""}
			w.WriteHeader(201)
			w.Write([]byte("\x00\xff"))
		}}
		guarded := idemhttp.Webhook(store, idemhttp.Options{})(h)
		first := send(guarded, "POST", "/", "", "Webhook-Id", "1")
		second := send(guarded, "POST", "/", "", "Webhook-Id", "1")
		require.Equal(t, first.Code, second.Code)
		require.Equal(t, first.Body, second.Body)
		require.Equal(t, first.Header()["Content-Disposition"], second.Header()["Content-Disposition"])
		require.EqualValues(t, 1, h.runs.Load())
	})
}

// jsonStore is an executor for one caller at a time.
type jsonStore struct{ records map[string][]byte }

func (s *jsonStore) Handle(ctx context.Context, req idempotent.Request[string], effect func(context.Context) (idemhttp.Response, error)) (idemhttp.Response, idempotent.Verdict, error) {
	var response idemhttp.Response
	if text, ok := s.records[req.Key]; ok {
		return response, idempotent.Replayed, json.Unmarshal(text, &response)
	}
	response, err := effect(ctx)
	if err == nil {
		s.records[req.Key], err = json.Marshal(response)
	}
	return response, idempotent.Executed, err
}
