package idemhttp_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
	"github.com/idempotent-go/idempotent/sequence"
)

func TestTransport(t *testing.T) {
	var got http.Header
	server := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
	call := func(t *testing.T, ctx context.Context, transport *idemhttp.Transport, method string, header http.Header) {
		r, err := http.NewRequestWithContext(ctx, method, server.URL, nil)
		require.NoError(t, err)
		r.Header = header.Clone()
		resp, err := (&http.Client{Transport: transport}).Do(r)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, header, r.Header, "the caller's request is not changed")
	}
	inside := func(t *testing.T, key string, f func(ctx context.Context)) {
		_, _, err := newEndpoint(t, config{}).Do(t.Context(), key, func(ctx context.Context) (idemhttp.Response, error) {
			f(ctx)
			return idemhttp.Response{}, nil
		})
		require.NoError(t, err)
	}
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "MKCOL"} {
		t.Run("sends the running effect's key with "+method, func(t *testing.T) {
			inside(t, "evt_1", func(ctx context.Context) {
				call(t, ctx, &idemhttp.Transport{}, method, nil)
				require.Equal(t, []string{"evt_1"}, got["Idempotency-Key"])
			})
		})
	}
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE"} {
		t.Run("sends none with "+method, func(t *testing.T) {
			inside(t, "evt_1", func(ctx context.Context) {
				call(t, ctx, &idemhttp.Transport{}, method, nil)
				require.Empty(t, got["Idempotency-Key"])
			})
		})
	}
	t.Run("sends none outside an effect", func(t *testing.T) {
		call(t, t.Context(), &idemhttp.Transport{}, "POST", nil)
		require.Empty(t, got["Idempotency-Key"])
	})
	t.Run("leaves a key that is there", func(t *testing.T) {
		inside(t, "evt_1", func(ctx context.Context) {
			call(t, ctx, &idemhttp.Transport{}, "POST", http.Header{"Idempotency-Key": {"mine"}})
			require.Equal(t, []string{"mine"}, got["Idempotency-Key"])
		})
	})
	t.Run("uses another header if asked to", func(t *testing.T) {
		inside(t, "evt_1", func(ctx context.Context) {
			call(t, ctx, &idemhttp.Transport{Header: "paypal-request-id"}, "POST", nil)
			require.Equal(t, []string{"evt_1"}, got["Paypal-Request-Id"])
			require.Empty(t, got["Idempotency-Key"])
		})
	})
	t.Run("sends through Base", func(t *testing.T) {
		var sent http.Header
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			sent = r.Header
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(""))}, nil
		})
		inside(t, "evt_1", func(ctx context.Context) {
			call(t, ctx, &idemhttp.Transport{Base: base}, "POST", http.Header{"A": {"b"}})
			require.Equal(t, http.Header{"A": {"b"}, "Idempotency-Key": {"evt_1"}}, sent)
		})
	})
	t.Run("makes the header of a request that has none", func(t *testing.T) {
		inside(t, "evt_1", func(ctx context.Context) {
			r, err := http.NewRequestWithContext(ctx, "POST", server.URL, nil)
			require.NoError(t, err)
			r.Header = nil
			resp, err := (&idemhttp.Transport{}).RoundTrip(r)
			require.NoError(t, err)
			resp.Body.Close()
			require.Nil(t, r.Header)
			require.Equal(t, []string{"evt_1"}, got["Idempotency-Key"])
		})
	})
	t.Run("sends the digest of a key that does not fit a header", func(t *testing.T) {
		seen := map[string]bool{}
		keys := []string{"a b", "a\nb", "a\x00b", "ä", `"a"`, strings.Repeat("x", 256), "a,b"}
		for _, key := range keys {
			inside(t, key, func(ctx context.Context) {
				for range 2 {
					call(t, ctx, &idemhttp.Transport{}, "POST", nil)
					require.Regexp(t, "^[0-9a-f]{64}$", got.Get("Idempotency-Key"))
					seen[got.Get("Idempotency-Key")] = true
				}
			})
		}
		require.Len(t, seen, len(keys))
	})
	t.Run("sends the event's key from within a sequence guard too", func(t *testing.T) {
		guard, err := sequence.New[string](sequence.Options{})
		require.NoError(t, err)
		inside(t, "evt_1", func(ctx context.Context) {
			_, err := guard.Apply(ctx, "invoice_7", 1, func(ctx context.Context) error {
				call(t, ctx, &idemhttp.Transport{}, "POST", nil)
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, []string{"evt_1"}, got["Idempotency-Key"])
		})
	})
	t.Run("sends one key for all attempts of one request through a middleware", func(t *testing.T) {
		seen := map[string]int{}
		h := &counting{}
		h.answer = func(w http.ResponseWriter, r *http.Request) {
			call(t, r.Context(), &idemhttp.Transport{}, "POST", nil)
			seen[got.Get("Idempotency-Key")]++
			w.WriteHeader(500)
		}
		for _, tenant := range []string{"t", "u"} {
			for range 3 { // a new endpoint each time: the process was restarted
				guarded := idemhttp.IdempotencyKey(newEndpoint(t, config{}), idemhttp.Options{
					Scope: func(*http.Request) string { return tenant },
				})(h)
				send(guarded, "POST", "/", "", "Idempotency-Key", "k")
			}
		}
		require.Len(t, seen, 2)
		for key, n := range seen {
			require.Equal(t, 3, n)
			require.NotContains(t, key, "k ", "no tenant's name goes out")
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

var _ idemhttp.Executor = (*idempotent.Endpoint[string, idemhttp.Response])(nil)

func TestTransportClosesIdleConnections(t *testing.T) {
	s := serve(t, status(200))
	base := &http.Transport{}
	closed := make(chan struct{})
	base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return noticed{conn, closed}, err
	}
	client := &http.Client{Transport: &idemhttp.Transport{Base: base}}
	resp, err := client.Get(s.URL)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	client.CloseIdleConnections()
	<-closed
	(&idemhttp.Transport{Base: roundTripper(nil)}).CloseIdleConnections() // which cannot
}

// noticed is a connection whose end is told.
type noticed struct {
	net.Conn
	closed chan struct{}
}

func (n noticed) Close() error {
	close(n.closed)
	return n.Conn.Close()
}
