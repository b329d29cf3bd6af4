package idemotel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemotel"
)

var ctx = context.Background()

func done(context.Context) (string, error) { return "done", nil }

func endpoint(t *testing.T, opts idempotent.Options[string, string]) *idempotent.Endpoint[string, string] {
	e, err := idempotent.New(opts)
	require.NoError(t, err)
	return e
}

// collect is what reader sees: a number for each name, unit and attributes.
func collect(t *testing.T, reader sdk.Reader) map[string]float64 {
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(ctx, &all))
	seen := make(map[string]float64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			name := m.Name + " " + m.Unit
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					kind := "up-down"
					if data.IsMonotonic {
						kind = "counter"
					}
					seen[fmt.Sprint(name, " ", kind, " ", p.Attributes.Encoded(encoder{}))] = float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					seen[fmt.Sprint(name, " gauge ", p.Attributes.Encoded(encoder{}))] = p.Value
				}
			default:
				require.Failf(t, "unexpected kind of data", "%s: %T", m.Name, data)
			}
		}
	}
	return seen
}

func TestRegister(t *testing.T) {
	t.Run("every counter and gauge is the endpoint's own", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			reader := sdk.NewManualReader()
			e := endpoint(t, idempotent.Options[string, string]{TTL: time.Minute, Capacity: 4, EvictOldest: true})
			_, err := idemotel.Register(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"), "orders", e)
			require.NoError(t, err)
			call := func(key string, effect func(context.Context) (string, error)) { _, _, _ = e.Do(ctx, key, effect) }

			call("late", done)
			time.Sleep(time.Minute) // late's window ends
			call("late", done)      // and it comes again
			call("late", done)
			call("", done)
			call("fails", func(context.Context) (string, error) { return "", errors.New("no") })
			for i := range 4 { // the last of them drops late
				call(fmt.Sprint("new ", i), done)
			}
			func() {
				defer func() { require.NotNil(t, recover()) }()
				call("panics", func(context.Context) (string, error) { panic("!") }) // drops new 0
			}()
			slow, release := context.WithCancel(ctx)
			defer release()
			for range 3 {
				go call("slow", func(context.Context) (string, error) { <-slow.Done(); return "", nil })
			}
			synctest.Wait()
			time.Sleep(90 * time.Second) // the others' windows end

			require.Equal(t, map[string]float64{
				"idempotent.calls {call} counter endpoint=orders outcome=executed": 6,
				"idempotent.calls {call} counter endpoint=orders outcome=failed":   2,
				"idempotent.calls {call} counter endpoint=orders outcome=refused":  1,
				"idempotent.calls {call} counter endpoint=orders outcome=replayed": 1,
				"idempotent.calls {call} counter endpoint=orders outcome=shared":   0,
				"idempotent.panics {panic} counter endpoint=orders":                1,
				"idempotent.stale_calls {call} counter endpoint=orders":            1,
				"idempotent.expired_results {result} counter endpoint=orders":      4,
				"idempotent.evicted_results {result} counter endpoint=orders":      2,
				"idempotent.claims {claim} up-down endpoint=orders":                1,
				"idempotent.waiting_calls {call} up-down endpoint=orders":          2,
				"idempotent.results {result} up-down endpoint=orders":              0,
				"idempotent.unknown_results {result} up-down endpoint=orders":      0,
				"idempotent.oldest_claim_age s gauge endpoint=orders":              90,
			}, collect(t, reader))

			release()
			synctest.Wait()
			after := collect(t, reader)
			require.Zero(t, after["idempotent.oldest_claim_age s gauge endpoint=orders"])
			require.EqualValues(t, 2, after["idempotent.calls {call} counter endpoint=orders outcome=shared"])
		})
	})

	t.Run("an unknown outcome shows until it is settled", func(t *testing.T) {
		const name = "idempotent.unknown_results {result} up-down endpoint=orders"
		reader := sdk.NewManualReader()
		e := endpoint(t, idempotent.Options[string, string]{})
		_, err := idemotel.Register(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"), "orders", e)
		require.NoError(t, err)
		_, _, err = e.Do(ctx, "k", func(context.Context) (string, error) { return "", idempotent.Unknown(errors.New("no answer")) })
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		require.EqualValues(t, 1, collect(t, reader)[name])
		require.True(t, e.Resolve("k", "done"))
		require.Contains(t, collect(t, reader), name)
		require.Zero(t, collect(t, reader)[name])
	})

	t.Run("endpoints with different names share a meter, and leave it one by one", func(t *testing.T) {
		reader := sdk.NewManualReader()
		meter := sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test")
		first, err := idemotel.Register(meter, "first", endpoint(t, idempotent.Options[string, string]{}))
		require.NoError(t, err)
		_, err = idemotel.Register(meter, "second", endpoint(t, idempotent.Options[string, string]{}))
		require.NoError(t, err)
		require.Len(t, collect(t, reader), 28)

		require.NoError(t, first.Unregister())
		left := collect(t, reader)
		require.Len(t, left, 14)
		require.Contains(t, left, "idempotent.results {result} up-down endpoint=second")
	})

	t.Run("a meter's error is handed on", func(t *testing.T) {
		_, err := idemotel.Register(broken{}, "orders", endpoint(t, idempotent.Options[string, string]{}))
		require.ErrorIs(t, err, errBroken)
		require.ErrorContains(t, err, "idemotel: ")
	})
}

var errBroken = errors.New("broken")

// broken is a meter that cannot call back.
type broken struct{ noop.Meter }

func (broken) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return nil, errBroken
}

// encoder writes attributes as a=b c=d.
type encoder struct{}

func (encoder) ID() attribute.EncoderID { return attribute.EncoderID{} }

func (encoder) Encode(attributes attribute.Iterator) string {
	var all []string
	for attributes.Next() {
		a := attributes.Attribute()
		all = append(all, string(a.Key)+"="+a.Value.String())
	}
	return strings.Join(all, " ")
}
