package browsertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemdebug"
)

// hostile is a key that would be markup if it were not escaped.
const hostile = `"><script>document.title='pwned'</script><img src=x onerror=alert(1)>`

// unscoped is a key as idemhttp makes it when there is no scope.
const unscoped = "key  order-1"

// scene is an endpoint on a bad night, and its page.
type scene struct {
	*idempotent.Endpoint[string, string]
	url string
}

// newScene has running and waiting calls, results of each kind, late retries,
// and enough samples for the charts to have a shape.
func newScene(t *testing.T) scene {
	var late idemdebug.StaleLog[string]
	e, err := idempotent.New(idempotent.Options[string, string]{
		TTL: time.Hour,
		OnStale: late.Watch(func(_ context.Context, key string, _ time.Time) error {
			if strings.HasSuffix(key, "2") {
				return fmt.Errorf("the refund desk decides: %w", idempotent.ErrStale)
			}
			return nil
		}),
	})
	require.NoError(t, err)
	page, err := idemdebug.New(e, idemdebug.Options[string, string]{
		Name: "payments", Stale: &late, SlowClaim: 50 * time.Millisecond, SampleEvery: 10 * time.Millisecond,
		FormatValue: func(s string) string { return s }, AllowForget: true, AllowResolve: true,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	require.NoError(t, err)
	server := httptest.NewServer(page)
	t.Cleanup(server.Close)
	s := scene{e, server.URL + "/debug/payments"}
	s.play(t)
	return s
}

func (s scene) play(t *testing.T) {
	ctx := t.Context()
	ok := func(value string) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return value, nil }
	}
	fail := func(err error) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return "", err }
	}
	short := func(key string) idempotent.Request[string] { return idempotent.Request[string]{Key: key, TTL: 1} }

	running, release := context.WithCancel(context.Background())
	var calls sync.WaitGroup
	t.Cleanup(func() { release(); calls.Wait() })
	for key, n := range map[string]int{"pay_8Qm1kR-order-20261129-000417": 6, hostile: 2, "pay_77-fresh": 1} {
		for range n {
			calls.Go(func() {
				_, _, _ = s.Do(context.Background(), key, func(context.Context) (string, error) { <-running.Done(); return "", nil })
			})
		}
	}
	until := time.Now().Add(2 * time.Second)
	for i := 0; time.Now().Before(until); i++ {
		key := fmt.Sprintf("pay_%d", rand.IntN(i+1))
		effect := ok(`{"status":"paid"}`)
		if i%23 == 0 {
			effect = fail(errors.New("bank is away"))
		}
		_, _, _ = s.Do(ctx, key, effect)
		time.Sleep(time.Duration(rand.IntN(1+i%7)) * time.Millisecond) // the pace of the traffic, nothing waits for it
	}
	for i := range 3 {
		key := fmt.Sprintf("evt_late_%d", i)
		_, _, _ = s.Handle(ctx, short(key), ok("first"))
		_, _, _ = s.Handle(ctx, short(key), ok("again"))
	}
	_, _, _ = s.Do(ctx, "pay_unknown", fail(idempotent.Unknown(errors.New("bank: no answer within 30s"))))
	_, _, _ = s.Do(ctx, "pay_declined", fail(idempotent.Permanent(errors.New("card declined"))))
	_, _, _ = s.Handle(ctx, idempotent.Request[string]{Key: "pay_done", Fingerprint: "sha256:9f86d081884c7d65"}, ok(`{"status":"paid","amount":4200}`))
	_, _, _ = s.Do(ctx, unscoped, fail(idempotent.Permanent(errors.New("no such account"))))
	_, _, _ = s.Do(ctx, "line\nbreak", ok("a key with a line break"))
	require.Equal(t, 3, s.Stats().InFlight)
}
