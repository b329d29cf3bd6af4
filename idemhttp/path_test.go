package idemhttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemhttp"
)

// A router takes all spellings of a path for one: so do the keys.
func TestSpellingsOfAPath(t *testing.T) {
	for _, c := range []struct {
		a, b string
		one  bool
	}{
		{"/hooks/github", "/hooks/%67ithub", true},
		{"/hooks/a!b", "/hooks/a%21b", true},
		{"/hooks/%c3%a9", "/hooks/%C3%A9", true},
		{"/hooks/a%2fb", "/hooks/a%2Fb", true},
		{"/hooks/a%2Fb", "/hooks/a/b", false},
		{"/hooks/%2567", "/hooks/%67", false},
		{"/hooks/a%20b", "/hooks/a+b", false},
	} {
		for name, wrap := range map[string]func(idemhttp.Executor, idemhttp.Options) func(http.Handler) http.Handler{
			"Webhook": idemhttp.Webhook, "IdempotencyKey": idemhttp.IdempotencyKey,
		} {
			t.Run(name+" "+c.a+" "+c.b, func(t *testing.T) {
				s := serve(t, wrap(newEndpoint(t, config{}), idemhttp.Options{})(status(200)))
				ids := []string{"Webhook-Id", "1", "Idempotency-Key", "1"}
				require.Equal(t, 200, ask(t, s, "POST", c.a, "x", ids...).status)
				got := ask(t, s, "POST", c.b, "x", ids...)
				require.Equal(t, c.one, got.replayed(), "%d", got.status)
			})
		}
	}
}

// The handlers behind two mounts are two, though their paths are cut to one.
func TestMountsBehindStripPrefix(t *testing.T) {
	says := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) })
	}
	e := newEndpoint(t, config{})
	t.Run("Webhook", func(t *testing.T) {
		wrap, mux := idemhttp.Webhook(e, idemhttp.Options{}), http.NewServeMux()
		mux.Handle("/billing/", http.StripPrefix("/billing", wrap(says("billing"))))
		mux.Handle("/mail/", http.StripPrefix("/mail", wrap(says("mail"))))
		require.Equal(t, "billing", send(mux, "POST", "/billing/events", "x", "Webhook-Id", "1").Body.String())
		require.Equal(t, "mail", send(mux, "POST", "/mail/events", "x", "Webhook-Id", "1").Body.String())
	})
	t.Run("IdempotencyKey", func(t *testing.T) {
		wrap, mux := idemhttp.IdempotencyKey(e, idemhttp.Options{}), http.NewServeMux()
		mux.Handle("/billing/", http.StripPrefix("/billing", wrap(says("billing"))))
		mux.Handle("/mail/", http.StripPrefix("/mail", wrap(says("mail"))))
		require.Equal(t, "billing", send(mux, "POST", "/billing/events", "x", "Idempotency-Key", "1").Body.String())
		require.Equal(t, 422, send(mux, "POST", "/mail/events", "x", "Idempotency-Key", "1").Code)
	})
	t.Run("a request that no server read", func(t *testing.T) {
		g := webhook(t, idemhttp.Options{}, says("it").ServeHTTP)
		for _, c := range []struct{ target, replayed string }{{"/a", ""}, {"/b", ""}, {"/a", "true"}} {
			r, err := http.NewRequest("POST", c.target, nil)
			require.NoError(t, err)
			r.Header.Set("Webhook-Id", "1")
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			require.Equal(t, c.replayed, w.Header().Get("Idempotency-Replayed"))
		}
	})
}
