package idemredis_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
	"github.com/idempotent-go/idempotent/idemredis"
)

var (
	_ idemhttp.Executor = (*idemredis.Guard[idemhttp.Response])(nil)
	_ idemredis.Spill   = idemhttp.Spill(nil)
)

func TestMiddleware(t *testing.T) {
	s := startServer(t)
	p := startProxy(t, s.addr)
	var runs atomic.Int64
	node := func(addr string, opts idemredis.Options) http.Handler {
		guard, err := idemredis.New[idemhttp.Response](dial(t, addr), opts)
		require.NoError(t, err)
		tier, err := idempotent.NewTier(guard, idempotent.TierOptions[idemhttp.Response]{})
		require.NoError(t, err)
		return idemhttp.Webhook(tier, idemhttp.Options{})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			runs.Add(1)
			w.Header().Set("Location", "/orders/7")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, strings.Repeat("order 7 ", 100))
		}))
	}
	deliver := func(to http.Handler, id string) *http.Response {
		r := httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader("{}"))
		r.Header.Set("Webhook-Id", id)
		w := httptest.NewRecorder()
		to.ServeHTTP(w, r)
		return w.Result()
	}
	text := func(r *http.Response) string {
		raw, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return string(raw)
	}

	t.Run("what one node answered another replays as it was, from Redis or from a folder that both have", func(t *testing.T) {
		folder, err := idemhttp.Dir(t.TempDir(), time.Hour)
		require.NoError(t, err)
		for name, opts := range map[string]idemredis.Options{"kept": {}, "spilled": {MaxValue: 100, Spill: folder}} {
			runs.Store(0)
			first, second := deliver(node(s.addr, opts), name), deliver(node(s.addr, opts), name)
			require.EqualValues(t, 1, runs.Load(), name)
			require.Equal(t, http.StatusCreated, second.StatusCode)
			require.Equal(t, "/orders/7", second.Header.Get("Location"))
			require.Equal(t, "true", second.Header.Get("Idempotency-Replayed"))
			require.Equal(t, text(first), text(second))
		}
	})
	t.Run("a node that has lost Redis asks to retry, and runs nothing", func(t *testing.T) {
		runs.Store(0)
		cut := node(p.addr, idemredis.Options{})
		p.down()
		answer := deliver(cut, "down")
		require.Equal(t, http.StatusServiceUnavailable, answer.StatusCode)
		require.NotEmpty(t, answer.Header.Get("Retry-After"))
		require.Zero(t, runs.Load())
	})
}
