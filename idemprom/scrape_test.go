package idemprom_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemprom"
)

// BenchmarkReplayBesideScrape says what a scrape every 10 ms costs the callers:
// short turns of replays alone and beside it, in change, and the median of the
// pairs' ratios. "nothing" is the control: pairs of turns that are both alone.
//
//	go test -run '^$' -bench Scrape -benchtime 200x ./idemprom
func BenchmarkReplayBesideScrape(b *testing.B) {
	e, keys := filled(b)
	for name, scrape := range scrapes(e) {
		for _, callers := range []int{1, runtime.GOMAXPROCS(0)} {
			b.Run(fmt.Sprintf("beside=%s/callers=%d", name, callers), func(b *testing.B) {
				ratios := make([]float64, 0, b.N)
				for i := range b.N {
					first, second := (func())(nil), scrape
					if i%2 == 1 { // in change, so that a machine that slows down or wakes up favours neither
						first, second = second, first
					}
					one, other := turn(e, keys, callers, first), turn(e, keys, callers, second)
					if i%2 == 1 {
						one, other = other, one
					}
					ratios = append(ratios, other.Seconds()/one.Seconds())
				}
				slices.Sort(ratios)
				b.ReportMetric(ratios[len(ratios)/2], "beside/alone")
				b.ReportMetric(0, "ns/op") // of a pair of turns: says nothing
			})
		}
	}
}

// BenchmarkScrape is one scrape by itself. A hundred times its time is the part
// of a second that a hundred scrapes a second keep one core busy for.
func BenchmarkScrape(b *testing.B) {
	e, _ := filled(b)
	for name, scrape := range scrapes(e) {
		if scrape != nil {
			b.Run(name, func(b *testing.B) {
				for b.Loop() {
					scrape()
				}
			})
		}
	}
}

// filled is an endpoint with 100,000 results.
func filled(b *testing.B) (e *idempotent.Endpoint[string, string], keys []string) {
	e = endpoint(b, idempotent.Options[string, string]{})
	keys = make([]string, 100_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("order-%08d", i)
		_, _, err := e.Do(ctx, keys[i], done)
		require.NoError(b, err)
	}
	return e, keys
}

// scrapes are ways to look at e's numbers. The one that is nil is a control.
func scrapes(e *idempotent.Endpoint[string, string]) map[string]func() {
	registry := prometheus.NewRegistry()
	registry.MustRegister(idemprom.New("orders", e))
	return map[string]func(){
		"nothing": nil,
		"Stats":   func() { e.Stats() },
		"Gather": func() {
			if _, err := registry.Gather(); err != nil {
				panic(err)
			}
		},
	}
}

// turn is how long so many replays of each caller take, beside a scrape every
// 10 ms if there is one.
func turn(e *idempotent.Endpoint[string, string], keys []string, callers int, scrape func()) time.Duration {
	const replays = 400_000
	stop, cancel := context.WithCancel(ctx)
	var scraper, calls sync.WaitGroup
	scraper.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop.Done():
				return
			case <-tick.C:
				if scrape != nil {
					scrape()
				}
			}
		}
	})
	begun := time.Now()
	for c := range callers {
		calls.Go(func() {
			for i := range replays {
				_, _, _ = e.Do(ctx, keys[(c*7919+i*31)%len(keys)], done)
			}
		})
	}
	calls.Wait()
	took := time.Since(begun)
	cancel()
	scraper.Wait()
	return took
}
