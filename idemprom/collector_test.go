package idemprom_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemprom"
)

var ctx = context.Background()

func done(context.Context) (string, error) { return "done", nil }

func endpoint(t testing.TB, opts idempotent.Options[string, string]) *idempotent.Endpoint[string, string] {
	e, err := idempotent.New(opts)
	require.NoError(t, err)
	return e
}

// expose is what a scrape would read of the named metrics.
func expose(t *testing.T, c prometheus.Collector, want string, names ...string) {
	t.Helper()
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(want), names...))
}

func TestCollector(t *testing.T) {
	t.Run("every counter and gauge is the endpoint's own", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := endpoint(t, idempotent.Options[string, string]{TTL: time.Minute, Capacity: 4, EvictOldest: true})
			call := func(key string, effect func(context.Context) (string, error)) { _, _, _ = e.Do(ctx, key, effect) }

			call("late", done)
			time.Sleep(time.Minute) // late's window ends
			call("late", done)      // and it comes again
			call("late", done)
			call("", done)
			call("fails", func(context.Context) (string, error) { return "", errors.New("no") })
			for i := range 4 { // the first of them drops late
				call(fmt.Sprint("new ", i), done)
			}
			func() {
				defer func() { require.NotNil(t, recover()) }()
				call("panics", func(context.Context) (string, error) { panic("!") })
			}()

			slow, release := context.WithCancel(ctx)
			defer release()
			for range 3 {
				go call("slow", func(context.Context) (string, error) { <-slow.Done(); return "", nil })
			}
			synctest.Wait()
			time.Sleep(90 * time.Second) // the others' windows end

			expose(t, idemprom.New("orders", e), `
# HELP idempotent_calls_total Calls that have ended, by what became of them.
# TYPE idempotent_calls_total counter
idempotent_calls_total{endpoint="orders",outcome="executed"} 6
idempotent_calls_total{endpoint="orders",outcome="failed"} 2
idempotent_calls_total{endpoint="orders",outcome="refused"} 1
idempotent_calls_total{endpoint="orders",outcome="replayed"} 1
idempotent_calls_total{endpoint="orders",outcome="shared"} 0
# HELP idempotent_claims Keys whose effect is running.
# TYPE idempotent_claims gauge
idempotent_claims{endpoint="orders"} 1
# HELP idempotent_evicted_results_total Results dropped before their window ended, for want of capacity.
# TYPE idempotent_evicted_results_total counter
idempotent_evicted_results_total{endpoint="orders"} 2
# HELP idempotent_expired_results_total Results whose window ended.
# TYPE idempotent_expired_results_total counter
idempotent_expired_results_total{endpoint="orders"} 4
# HELP idempotent_oldest_claim_age_seconds How long the longest running effect has been running; 0 when none runs.
# TYPE idempotent_oldest_claim_age_seconds gauge
idempotent_oldest_claim_age_seconds{endpoint="orders"} 90
# HELP idempotent_panics_total Effects that panicked or called Goexit; they count as failed too.
# TYPE idempotent_panics_total counter
idempotent_panics_total{endpoint="orders"} 1
# HELP idempotent_results Results kept for replay.
# TYPE idempotent_results gauge
idempotent_results{endpoint="orders"} 0
# HELP idempotent_stale_calls_total Calls for a key whose result was gone already: retries that came too late.
# TYPE idempotent_stale_calls_total counter
idempotent_stale_calls_total{endpoint="orders"} 1
# HELP idempotent_unknown_results Those of the kept results whose outcome is unknown: each waits for a person to settle it.
# TYPE idempotent_unknown_results gauge
idempotent_unknown_results{endpoint="orders"} 0
# HELP idempotent_waiting_calls Calls that wait for a running effect of their key.
# TYPE idempotent_waiting_calls gauge
idempotent_waiting_calls{endpoint="orders"} 2
`)
			release()
			synctest.Wait()
			expose(t, idemprom.New("orders", e), `
# HELP idempotent_calls_total Calls that have ended, by what became of them.
# TYPE idempotent_calls_total counter
idempotent_calls_total{endpoint="orders",outcome="executed"} 7
idempotent_calls_total{endpoint="orders",outcome="failed"} 2
idempotent_calls_total{endpoint="orders",outcome="refused"} 1
idempotent_calls_total{endpoint="orders",outcome="replayed"} 1
idempotent_calls_total{endpoint="orders",outcome="shared"} 2
# HELP idempotent_oldest_claim_age_seconds How long the longest running effect has been running; 0 when none runs.
# TYPE idempotent_oldest_claim_age_seconds gauge
idempotent_oldest_claim_age_seconds{endpoint="orders"} 0
# HELP idempotent_results Results kept for replay.
# TYPE idempotent_results gauge
idempotent_results{endpoint="orders"} 1
`, "idempotent_calls_total", "idempotent_oldest_claim_age_seconds", "idempotent_results")
		})
	})

	t.Run("an unknown outcome shows until it is settled", func(t *testing.T) {
		e := endpoint(t, idempotent.Options[string, string]{})
		shows := func(n int) {
			t.Helper()
			expose(t, idemprom.New("orders", e), fmt.Sprintf(`
# HELP idempotent_unknown_results Those of the kept results whose outcome is unknown: each waits for a person to settle it.
# TYPE idempotent_unknown_results gauge
idempotent_unknown_results{endpoint="orders"} %d
`, n), "idempotent_unknown_results")
		}
		for _, key := range []string{"a", "b"} {
			_, _, err := e.Do(ctx, key, func(context.Context) (string, error) { return "", idempotent.Unknown(errors.New("no answer")) })
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		}
		_, _, err := e.Do(ctx, "declined", func(context.Context) (string, error) { return "", idempotent.Permanent(errors.New("no")) })
		require.Error(t, err)
		shows(2)
		require.True(t, e.Resolve("a", "done"))
		shows(1)
		require.True(t, e.Forget("b"))
		shows(0)
	})

	t.Run("several endpoints share a registry under different names", func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		orders := endpoint(t, idempotent.Options[string, string]{})
		refunds, err := idempotent.New(idempotent.Options[int, []byte]{})
		require.NoError(t, err)
		require.NoError(t, reg.Register(idemprom.New("orders", orders)))
		require.NoError(t, reg.Register(idemprom.New("refunds", refunds)))
		require.Error(t, reg.Register(idemprom.New("orders", orders)), "the same name twice")

		n, err := testutil.GatherAndCount(reg, "idempotent_results")
		require.NoError(t, err)
		require.Equal(t, 2, n)
	})

	t.Run("the names keep Prometheus' conventions", func(t *testing.T) {
		problems, err := testutil.CollectAndLint(idemprom.New("orders", endpoint(t, idempotent.Options[string, string]{})))
		require.NoError(t, err)
		require.Empty(t, problems)
	})
}
