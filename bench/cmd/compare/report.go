package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/idempotent-go/idempotent/bench"
)

// report writes the results as Markdown.
type report struct {
	*results
	comparison, growth string // the charts' paths, as seen from the report
	text               strings.Builder
}

// A note written by hand stands between these and outlives the next run.
const (
	noteBegin = "<!-- note -->"
	noteEnd   = "<!-- end of note -->"
)

// keptNote is the note in the report that is about to be written over.
func keptNote(file string) (string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "\n", nil
	}
	if err != nil {
		return "", err
	}
	_, rest, begun := strings.Cut(string(text), noteBegin)
	note, _, ended := strings.Cut(rest, noteEnd)
	if !begun || !ended {
		return "\n", nil
	}
	return note, nil
}

func (r *report) printf(format string, args ...any) { fmt.Fprintf(&r.text, format, args...) }

func (r *report) markdown(note string) string {
	r.printf("# Benchmarks\n\n")
	for _, run := range r.Runs {
		r.printf("Written by `%s` on %s, at commit %s.\n\n", run.Command, run.Date, run.Commit)
		r.printf("- Machine: %s\n- Go: %s\n- Peers: %s\n\n", run.Machine, run.Go, strings.Join(run.Modules, ", "))
	}
	if len(r.Runs) > 1 {
		r.printf("A workload that more than one of these runs measured is shown as the last of them found it.\n\n")
	}
	r.printf("Peers ran in turn, in another order each round, each from a clean heap with the same keys and the same value type: " +
		"what takes seconds in a process of its own, the rest in one. A figure is the median over the rounds; ± is the range that holds the true median with 95 %% " +
		"confidence (fewer than six rounds: the whole range). Ratios are taken round by round: machines change their speed, " +
		"and only what ran in the same round is comparable.\n\n")
	r.printf("![Replay, cold call, memory and garbage collection, beside the peers](%s)\n\n", r.comparison)
	r.targetTable()
	r.semanticsTable()
	r.printf("%s%s%s\n\n", noteBegin, note, noteEnd)
	for _, w := range bench.Workloads() {
		r.workloadTable(w)
	}
	r.growthTable()
	return strings.TrimRight(r.text.String(), "\n") + "\n"
}

func (r *report) targetTable() {
	targets := r.targets()
	if len(targets) == 0 {
		return
	}
	met := 0
	for _, t := range targets {
		if t.met() {
			met++
		}
	}
	r.printf("## Targets: %d of %d met\n\n| what | target | measured | |\n|---|---:|---:|---|\n", met, len(targets))
	for _, t := range targets {
		sign, verdict := "≤", "**missed**"
		if t.atLeast {
			sign = "≥"
		}
		if t.met() {
			verdict = "met"
		}
		r.printf("| %s | %s %s %s | %s | %s |\n", t.what, sign, number(t.limit), t.unit, between(t.got), verdict)
	}
	r.printf("\n")
}

func (r *report) semanticsTable() {
	if len(r.Observations) == 0 {
		return
	}
	r.printf("## Who really runs an effect once?\n\n")
	r.printf("%s keys, each called by four callers that meet in the instant its run ends; then %s keys called twice where a third of "+
		"them may be kept; then one failing effect with %d waiters. The rest says what else a caller can count on.\n\n",
		thousands(r.Observations[0].WindowKeys), thousands(bench.CapacityKeys), bench.FailWaiters)
	r.printf("| peer | doubled | run again at capacity | refused there | runs of a failure | window ends | waiter's ctx ends its wait | " +
		"panic frees the key | Goexit frees it | other keys go on | late retry noticed |\n|---|---:|---:|---:|---:|---|---|---|---|---|---|\n")
	for _, o := range r.Observations {
		reruns, refused := "no bound", ""
		if o.Bounded {
			reruns, refused = thousands(o.Reruns), thousands(o.Refused)
		}
		r.printf("| %s | %s | %s | %s | %d | %s | %s | %s | %s | %s | %s |\n", o.Peer, thousands(o.Doubles), reruns, refused, o.FailedRuns,
			yes(o.Expires), yes(o.WaiterLeave), yes(o.PanicFree), yes(o.GoexitFree), yes(o.Independent), yes(o.Stale))
	}
	r.printf("\n")
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "**no**"
}

// workloadTable has a row for each peer, the best first by the main metric:
// the one named time, or else the first.
func (r *report) workloadTable(w bench.Workload) {
	main := w.Metrics[0]
	for _, m := range w.Metrics {
		if m.Name == "time" {
			main = m
		}
	}
	type row struct {
		peer string
		main summary
	}
	var rows []row
	for _, p := range w.Peers {
		if got := r.summary(figure{w.Name, p.Name, w.Metrics[0].Name}); got.n > 0 {
			rows = append(rows, row{p.Name, r.summary(figure{w.Name, p.Name, main.Name})})
		}
	}
	if len(rows) == 0 {
		return
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.main.median, b.main.median) })
	compared := r.summary(figure{w.Name, bench.Ours, main.Name}).n > 0
	r.printf("## %s\n\n%s\n\n| peer |", w.Title, w.About)
	for _, m := range w.Metrics {
		r.printf(" %s |", m.Unit)
	}
	if compared {
		r.printf(" × ours |")
	}
	r.printf("\n|---|%s", strings.Repeat("---:|", len(w.Metrics)))
	if compared {
		r.printf("---:|")
	}
	r.printf("\n")
	for _, row := range rows {
		r.printf("| %s |", emphasize(row.peer))
		for _, m := range w.Metrics {
			r.printf(" %s |", plusMinus(r.summary(figure{w.Name, row.peer, m.Name}), m.Exact))
		}
		if compared {
			r.printf(" %s |", between(r.ratio(figure{w.Name, row.peer, main.Name}, figure{w.Name, bench.Ours, main.Name})))
		}
		r.printf("\n")
	}
	r.printf("\n")
}

func (r *report) growthTable() {
	growth := bench.GrowthWorkload(0)
	started := false
	for _, n := range r.Scale.Growth {
		for _, p := range growth.Peers {
			if r.summary(figure{growthID(n), p.Name, "slowest"}).n == 0 {
				continue
			}
			if !started {
				started = true
				r.printf("## %s\n\n%s\n\n![%s](%s)\n\n| keys | peer |", growth.Title, growth.About, "Replay, cold call, memory, collection and pause by the number of kept keys", r.growth)
				for _, m := range growth.Metrics {
					r.printf(" %s |", m.Unit)
				}
				r.printf("\n|---:|---|%s\n", strings.Repeat("---:|", len(growth.Metrics)))
			}
			r.printf("| %s | %s |", count(n), emphasize(p.Name))
			for _, m := range growth.Metrics {
				r.printf(" %s |", plusMinus(r.summary(figure{growthID(n), p.Name, m.Name}), m.Exact))
			}
			r.printf("\n")
		}
	}
}

func emphasize(peer string) string {
	if peer == bench.Ours {
		return "**" + peer + "**"
	}
	return peer
}

// plusMinus writes a median and its range as benchstat does; a count that was
// the same in all rounds stands alone.
func plusMinus(s summary, exact bool) string {
	if s.n == 0 {
		return "–"
	}
	if exact && s.low == s.high || s.n == 1 || s.median == 0 {
		return number(s.median)
	}
	spread := 100 * math.Max(s.high-s.median, s.median-s.low) / s.median
	if exact && spread < 0.5 {
		return number(s.median)
	}
	return fmt.Sprintf("%s ± %.0f %%", number(s.median), spread)
}

// between writes a median and its range in full, for ratios.
func between(s summary) string {
	if s.n == 0 || math.IsNaN(s.median) {
		return "–"
	}
	if number(s.low) == number(s.high) {
		return number(s.median)
	}
	return fmt.Sprintf("%s (%s to %s)", number(s.median), number(s.low), number(s.high))
}

// number writes three significant digits.
func number(v float64) string {
	switch abs := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case v == math.Trunc(v) && abs < 1e6, abs >= 1000:
		return thousands(int(math.Round(v)))
	case abs >= 100:
		return fmt.Sprintf("%.0f", v)
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	case abs >= 0.095:
		return fmt.Sprintf("%.2f", v)
	case abs >= 0.0005:
		return fmt.Sprintf("%.3f", v)
	}
	return "0"
}

// thousands writes 59310 as 59,310.
func thousands(n int) string {
	if n < 0 {
		return "-" + thousands(-n)
	}
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
