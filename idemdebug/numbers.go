package idemdebug

import (
	"fmt"
	"time"

	"github.com/idempotent-go/idempotent"
)

// number is a row of a table of counters or gauges.
type number struct {
	Name, Meaning string
	Now           string
	Rate          string // of a counter: per second, in the last minute
	Chart         chart
	Highest       string
	Bad           bool // a counter that has gone up recently, or a gauge that is not 0, and should not
}

func executed(s *idempotent.Stats) uint64 { return s.Executed }
func failed(s *idempotent.Stats) uint64   { return s.Failed }
func panicked(s *idempotent.Stats) uint64 { return s.Panicked }
func replayed(s *idempotent.Stats) uint64 { return s.Replayed }
func shared(s *idempotent.Stats) uint64   { return s.Shared }
func refused(s *idempotent.Stats) uint64  { return s.Refused }
func stale(s *idempotent.Stats) uint64    { return s.Stale }
func expired(s *idempotent.Stats) uint64  { return s.Expired }
func evicted(s *idempotent.Stats) uint64  { return s.Evicted }

func unknown(s *idempotent.Stats) int { return s.Unknown }

// calls is all that have ended.
func calls(s *idempotent.Stats) uint64 {
	return s.Executed + s.Failed + s.Replayed + s.Shared + s.Refused
}

var counters = []struct {
	name, meaning string
	of            func(*idempotent.Stats) uint64
	bad           bool
}{
	{"Executed", "effects that left a result", executed, false},
	{"Replayed", "calls that got a kept result", replayed, false},
	{"Shared", "calls that got the result of a running attempt", shared, false},
	{"Failed", "effects that left no result", failed, false},
	{"Panicked", "of those, effects that did not return", panicked, true},
	{"Refused", "calls that ran nothing and got nothing", refused, false},
	{"Stale", "calls whose key's result was gone", stale, true},
	{"Expired", "results whose window ended", expired, false},
	{"Evicted", "results dropped early, for room", evicted, true},
}

func numbers(s series, covers time.Duration) (rows []number) {
	for _, c := range counters {
		n := c.of(&s.now().stats)
		row := number{
			Name: c.name, Meaning: c.meaning, Bad: c.bad && s.grown(recent, c.of) > 0, Now: count(n),
			Rate:  frequency(s.rate(time.Minute, c.of)) + "/s",
			Chart: s.draw(covers, 1, func(i int) float64 { return rise(&s[i-1], &s[i], c.of) }),
		}
		row.Highest = frequency(row.Chart.Top) + "/s"
		rows = append(rows, row)
	}
	return rows
}

func gauges(s series, covers time.Duration) (rows []number) {
	for _, g := range []struct {
		name, meaning string
		of            func(*idempotent.Stats) int
		bad           bool
	}{
		{"Running effects", "keys in flight", func(s *idempotent.Stats) int { return s.InFlight }, false},
		{"Waiting calls", "duplicates of a running effect", func(s *idempotent.Stats) int { return s.Waiting }, false},
		{"Results kept", "replayed until their window ends", func(s *idempotent.Stats) int { return s.Retained }, false},
		{"Unknown outcomes", "of those kept; a person must settle them", unknown, true},
	} {
		n := g.of(&s.now().stats)
		row := number{
			Name: g.name, Meaning: g.meaning, Bad: g.bad && n > 0, Now: count(n),
			Chart: s.draw(covers, 0, func(i int) float64 { return float64(g.of(&s[i].stats)) }),
		}
		row.Highest = count(int(row.Chart.Top))
		rows = append(rows, row)
	}
	return rows
}

// Box is the coordinates of a chart's drawing.
func (chart) Box() string { return fmt.Sprintf("0 0 %d %d", chartWidth, chartHeight) }

// Says describes a row's chart to those who cannot see it.
func (n number) Says() string {
	now := n.Now
	if n.Rate != "" {
		now = n.Rate
	}
	return n.Name + ": now " + now + ", highest " + n.Highest
}
