// Package idemprom shows an endpoint's [idempotent.Stats] to Prometheus.
//
// Register one [New] for each endpoint; the endpoint label tells them apart:
//
//	payments, err := idempotent.New(idempotent.Options[string, Receipt]{})
//	...
//	prometheus.MustRegister(idemprom.New("payments", payments))
//
// The folder holds a Grafana dashboard (dashboard.json) and alert rules
// (alerts.yml) over these metrics.
package idemprom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idempotent-go/idempotent"
)

const (
	calls   = "Calls that have ended, by what became of them."
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// metrics are what an endpoint is measured by, but for the age of its oldest
// claim, which is not in its Stats.
var metrics = []metric{
	{"calls_total", calls, "executed", counter, func(s *idempotent.Stats) float64 { return float64(s.Executed) }},
	{"calls_total", calls, "failed", counter, func(s *idempotent.Stats) float64 { return float64(s.Failed) }},
	{"calls_total", calls, "replayed", counter, func(s *idempotent.Stats) float64 { return float64(s.Replayed) }},
	{"calls_total", calls, "shared", counter, func(s *idempotent.Stats) float64 { return float64(s.Shared) }},
	{"calls_total", calls, "refused", counter, func(s *idempotent.Stats) float64 { return float64(s.Refused) }},
	{"panics_total", "Effects that panicked or called Goexit; they count as failed too.", "",
		counter, func(s *idempotent.Stats) float64 { return float64(s.Panicked) }},
	{"stale_calls_total", "Calls for a key whose result was gone already: retries that came too late.", "",
		counter, func(s *idempotent.Stats) float64 { return float64(s.Stale) }},
	{"expired_results_total", "Results whose window ended.", "",
		counter, func(s *idempotent.Stats) float64 { return float64(s.Expired) }},
	{"evicted_results_total", "Results dropped before their window ended, for want of capacity.", "",
		counter, func(s *idempotent.Stats) float64 { return float64(s.Evicted) }},
	{"claims", "Keys whose effect is running.", "",
		gauge, func(s *idempotent.Stats) float64 { return float64(s.InFlight) }},
	{"waiting_calls", "Calls that wait for a running effect of their key.", "",
		gauge, func(s *idempotent.Stats) float64 { return float64(s.Waiting) }},
	{"results", "Results kept for replay.", "",
		gauge, func(s *idempotent.Stats) float64 { return float64(s.Retained) }},
	{"unknown_results", "Those of the kept results whose outcome is unknown: each waits for a person to settle it.", "",
		gauge, func(s *idempotent.Stats) float64 { return float64(s.Unknown) }},
}

type metric struct {
	name, help string
	outcome    string // the label's value; "" = a metric without it
	kind       prometheus.ValueType
	of         func(*idempotent.Stats) float64
}

func (m *metric) describe(endpoint string) *prometheus.Desc {
	labels := prometheus.Labels{"endpoint": endpoint}
	if m.outcome != "" {
		labels["outcome"] = m.outcome
	}
	return prometheus.NewDesc("idempotent_"+m.name, m.help, nil, labels)
}

type collector[K comparable, V any] struct {
	endpoint *idempotent.Endpoint[K, V]
	descs    []*prometheus.Desc // in the order of metrics
	oldest   *prometheus.Desc
}

// New returns a collector of e's metrics, each with the label endpoint=name.
// Two endpoints in one registry need two names: Register refuses the second
// otherwise.
//
// A scrape calls [idempotent.Endpoint.Stats] and, only while effects run,
// [idempotent.Endpoint.InFlight]. It keeps no state, so any number of scrapes
// may run at once. A registry that holds the collector holds the endpoint:
// Unregister lets both go.
func New[K comparable, V any](name string, e *idempotent.Endpoint[K, V]) prometheus.Collector {
	oldest := metric{name: "oldest_claim_age_seconds", help: "How long the longest running effect has been running; 0 when none runs."}
	c := &collector[K, V]{endpoint: e, oldest: oldest.describe(name)}
	for i := range metrics {
		c.descs = append(c.descs, metrics[i].describe(name))
	}
	return c
}

func (c *collector[K, V]) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		out <- desc
	}
	out <- c.oldest
}

func (c *collector[K, V]) Collect(out chan<- prometheus.Metric) {
	stats := c.endpoint.Stats()
	for i, desc := range c.descs {
		out <- prometheus.MustNewConstMetric(desc, metrics[i].kind, metrics[i].of(&stats))
	}
	out <- prometheus.MustNewConstMetric(c.oldest, gauge, c.oldestAge(stats.InFlight).Seconds())
}

// oldestAge lists the claims, which costs in proportion to them, unless none
// was running.
func (c *collector[K, V]) oldestAge(inFlight int) time.Duration {
	if inFlight == 0 {
		return 0
	}
	claims := c.endpoint.InFlight()
	if len(claims) == 0 {
		return 0
	}
	return max(0, time.Since(claims[0].Since))
}
