// Package idemotel shows an endpoint's [idempotent.Stats] to OpenTelemetry. It
// needs the metrics API alone; the SDK is the program's choice.
//
//	payments, err := idempotent.New(idempotent.Options[string, Receipt]{})
//	...
//	_, err = idemotel.Register(otel.Meter("payments"), "payments", payments)
package idemotel

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/idempotent-go/idempotent"
)

const calls = "Calls that have ended, by what became of them."

// instruments are what an endpoint is measured by, but for the age of its oldest
// claim, which is not in its Stats.
var instruments = []instrument{
	{"calls", calls, "{call}", "executed", counter, func(s *idempotent.Stats) int64 { return int64(s.Executed) }},
	{"calls", calls, "{call}", "failed", counter, func(s *idempotent.Stats) int64 { return int64(s.Failed) }},
	{"calls", calls, "{call}", "replayed", counter, func(s *idempotent.Stats) int64 { return int64(s.Replayed) }},
	{"calls", calls, "{call}", "shared", counter, func(s *idempotent.Stats) int64 { return int64(s.Shared) }},
	{"calls", calls, "{call}", "refused", counter, func(s *idempotent.Stats) int64 { return int64(s.Refused) }},
	{"panics", "Effects that panicked or called Goexit; they count as failed too.", "{panic}", "",
		counter, func(s *idempotent.Stats) int64 { return int64(s.Panicked) }},
	{"stale_calls", "Calls for a key whose result was gone already: retries that came too late.", "{call}", "",
		counter, func(s *idempotent.Stats) int64 { return int64(s.Stale) }},
	{"expired_results", "Results whose window ended.", "{result}", "",
		counter, func(s *idempotent.Stats) int64 { return int64(s.Expired) }},
	{"evicted_results", "Results dropped before their window ended, for want of capacity.", "{result}", "",
		counter, func(s *idempotent.Stats) int64 { return int64(s.Evicted) }},
	{"claims", "Keys whose effect is running.", "{claim}", "",
		gauge, func(s *idempotent.Stats) int64 { return int64(s.InFlight) }},
	{"waiting_calls", "Calls that wait for a running effect of their key.", "{call}", "",
		gauge, func(s *idempotent.Stats) int64 { return int64(s.Waiting) }},
	{"results", "Results kept for replay.", "{result}", "",
		gauge, func(s *idempotent.Stats) int64 { return int64(s.Retained) }},
	{"unknown_results", "Those of the kept results whose outcome is unknown: each waits for a person to settle it.", "{result}", "",
		gauge, func(s *idempotent.Stats) int64 { return int64(s.Unknown) }},
}

type instrument struct {
	name, help, unit string
	outcome          string // the attribute's value; "" = an instrument without it
	make             func(m metric.Meter, name, help, unit string) (metric.Int64Observable, error)
	of               func(*idempotent.Stats) int64
}

func counter(m metric.Meter, name, help, unit string) (metric.Int64Observable, error) {
	return m.Int64ObservableCounter(name, metric.WithDescription(help), metric.WithUnit(unit))
}

// gauge is an up-down counter to OpenTelemetry: its values add up over endpoints.
func gauge(m metric.Meter, name, help, unit string) (metric.Int64Observable, error) {
	return m.Int64ObservableUpDownCounter(name, metric.WithDescription(help), metric.WithUnit(unit))
}

// Register has meter observe e at each collection, under the attribute
// endpoint=name, until the registration's Unregister is called. Endpoints with
// different names can share a meter. It returns the meter's errors.
//
// A collection calls [idempotent.Endpoint.Stats] and, only while effects run,
// [idempotent.Endpoint.InFlight]. A meter that observes an endpoint holds it:
// Unregister lets it go.
func Register[K comparable, V any](meter metric.Meter, name string, e *idempotent.Endpoint[K, V]) (metric.Registration, error) {
	oldest, err := meter.Float64ObservableGauge("idempotent.oldest_claim_age", metric.WithUnit("s"),
		metric.WithDescription("How long the longest running effect has been running; 0 when none runs."))
	if err != nil {
		return nil, fmt.Errorf("idemotel: %w", err)
	}
	endpoint := attribute.String("endpoint", name)
	alone := metric.WithAttributeSet(attribute.NewSet(endpoint))
	all := []metric.Observable{oldest}
	numbers := make([]metric.Int64Observable, len(instruments))
	attributes := make([]metric.ObserveOption, len(instruments))
	for i, in := range instruments {
		numbers[i], err = in.make(meter, "idempotent."+in.name, in.help, in.unit)
		if err != nil {
			return nil, fmt.Errorf("idemotel: %w", err)
		}
		all = append(all, numbers[i])
		attributes[i] = alone
		if in.outcome != "" {
			attributes[i] = metric.WithAttributeSet(attribute.NewSet(endpoint, attribute.String("outcome", in.outcome)))
		}
	}
	registration, err := meter.RegisterCallback(func(_ context.Context, out metric.Observer) error {
		stats := e.Stats()
		for i, in := range instruments {
			out.ObserveInt64(numbers[i], in.of(&stats), attributes[i])
		}
		out.ObserveFloat64(oldest, oldestAge(e, stats.InFlight).Seconds(), alone)
		return nil
	}, all...)
	if err != nil {
		return nil, fmt.Errorf("idemotel: %w", err)
	}
	return registration, nil
}

// oldestAge lists the claims, which costs in proportion to them, unless none
// was running.
func oldestAge[K comparable, V any](e *idempotent.Endpoint[K, V], inFlight int) time.Duration {
	if inFlight == 0 {
		return 0
	}
	claims := e.InFlight()
	if len(claims) == 0 {
		return 0
	}
	return max(0, time.Since(claims[0].Since))
}
