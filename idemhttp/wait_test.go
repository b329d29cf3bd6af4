package idemhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
)

func TestWebhookDuplicateOfARunningDelivery(t *testing.T) {
	// start has a handler run that ends when the returned function is called.
	start := func(t *testing.T, opts idemhttp.Options) (http.Handler, *counting, func()) {
		release := make(chan struct{})
		h := &counting{}
		h.answer = func(w http.ResponseWriter, _ *http.Request) { <-release; w.Write([]byte("done")) }
		guarded := webhook(t, opts, h.ServeHTTP)
		var first sync.WaitGroup
		first.Go(func() { send(guarded, "POST", "/", "", "Webhook-Id", "1") })
		synctest.Wait()
		return guarded, h, func() { close(release); first.Wait() }
	}
	for name, c := range map[string]struct{ option, waits time.Duration }{
		"waits 2 s by default":                 {0, 2 * time.Second},
		"waits MaxWait":                        {30 * time.Millisecond, 30 * time.Millisecond},
		"does not wait if MaxWait is negative": {-1, 0},
	} {
		t.Run(name+" and is told 409 with Retry-After", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				guarded, h, release := start(t, idemhttp.Options{MaxWait: c.option})
				began := time.Now()
				got := send(guarded, "POST", "/", "", "Webhook-Id", "1")
				require.Equal(t, c.waits, time.Since(began))
				require.Equal(t, 409, got.Code)
				require.Equal(t, "1", got.Header().Get("Retry-After"))
				require.Equal(t, "application/problem+json", got.Header().Get("Content-Type"))
				release()
				require.EqualValues(t, 1, h.runs.Load())
			})
		})
	}
	t.Run("gets the response if it comes in time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			guarded, h, release := start(t, idemhttp.Options{})
			var second *httptest.ResponseRecorder
			var waits sync.WaitGroup
			waits.Go(func() { second = send(guarded, "POST", "/", "", "Webhook-Id", "1") })
			time.Sleep(1999 * time.Millisecond)
			release()
			waits.Wait()
			require.Equal(t, 200, second.Code)
			require.Equal(t, "done", second.Body.String())
			require.Equal(t, "true", second.Header().Get("Idempotency-Replayed"))
			require.EqualValues(t, 1, h.runs.Load())
		})
	})
	t.Run("runs the handler itself if the attempt failed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := &counting{}
			h.answer = func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(time.Second)
				if h.runs.Load() == 1 {
					w.WriteHeader(500)
				}
			}
			guarded := webhook(t, idemhttp.Options{}, h.ServeHTTP)
			codes := make([]int, 2)
			var calls sync.WaitGroup
			for i := range codes {
				calls.Go(func() { codes[i] = send(guarded, "POST", "/", "", "Webhook-Id", "1").Code })
				synctest.Wait()
			}
			calls.Wait()
			require.Equal(t, []int{500, 200}, codes)
		})
	})
	t.Run("that has become the runner is not bounded by MaxWait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEndpoint(t, config{PassCancel: true}) // hands even the wait's end on
			h := &counting{}
			h.answer = func(w http.ResponseWriter, r *http.Request) {
				if h.runs.Load() == 1 {
					time.Sleep(time.Second)
					w.WriteHeader(500)
					return
				}
				select {
				case <-r.Context().Done():
					w.WriteHeader(599)
				case <-time.After(time.Hour):
				}
			}
			guarded := idemhttp.Webhook(e, idemhttp.Options{})(h)
			codes := make([]int, 2)
			var calls sync.WaitGroup
			for i := range codes {
				calls.Go(func() { codes[i] = send(guarded, "POST", "/", "", "Webhook-Id", "1").Code })
				synctest.Wait()
			}
			calls.Wait()
			require.Equal(t, []int{500, 200}, codes)
		})
	})
	t.Run("MaxWait does not bound the first runner either", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEndpoint(t, config{PassCancel: true})
			guarded := idemhttp.Webhook(e, idemhttp.Options{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-r.Context().Done():
					w.WriteHeader(599)
				case <-time.After(time.Hour):
				}
			}))
			require.Equal(t, 200, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
		})
	})
	t.Run("whose client leaves leaves the others alone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			guarded, h, release := start(t, idemhttp.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			var leaver, stayer *httptest.ResponseRecorder
			var calls sync.WaitGroup
			calls.Go(func() {
				leaver = httptest.NewRecorder()
				r := httptest.NewRequestWithContext(ctx, "POST", "/", nil)
				r.Header.Set("Webhook-Id", "1")
				guarded.ServeHTTP(leaver, r)
			})
			calls.Go(func() { stayer = send(guarded, "POST", "/", "", "Webhook-Id", "1") })
			synctest.Wait()
			cancel()
			synctest.Wait()
			release()
			calls.Wait()
			require.Equal(t, 409, leaver.Code)
			require.Equal(t, 200, stayer.Code)
			require.EqualValues(t, 1, h.runs.Load())
		})
	})
}

func TestWebhookStormRunsOnce(t *testing.T) {
	var runs atomic.Int64
	server := serve(t, webhook(t, idemhttp.Options{MaxWait: 20 * time.Second}, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "run %d", runs.Add(1))
	}))
	var calls sync.WaitGroup
	for range 100 {
		calls.Go(func() {
			got, err := try(server, "POST", "/", "{}", "Webhook-Id", "1")
			if err != nil || got.status != 200 || got.body != "run 1" {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	calls.Wait()
	require.EqualValues(t, 1, runs.Load())
}

func TestAStaleDeliveryIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &counting{answer: status(200)}
		guarded := idemhttp.Webhook(newEndpoint(t, config{
			TTL:     time.Hour,
			OnStale: func(context.Context, string, time.Time) error { return idempotent.ErrStale },
		}), idemhttp.Options{})(h)
		require.Equal(t, 200, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
		time.Sleep(time.Hour)
		require.Equal(t, 410, send(guarded, "POST", "/", "", "Webhook-Id", "1").Code)
		require.EqualValues(t, 1, h.runs.Load())
	})
}
