package idemhttp_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
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
