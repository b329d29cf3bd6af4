package main

import (
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/bench"
)

var silent = &terminal{Writer: io.Discard}

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childFlag {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestAHeavyWorkloadRunsInAnotherProcess(t *testing.T) {
	otter := func(p bench.Peer) bool { return p.Name == bench.Otter }
	every := config{rounds: 1, heavyRounds: 1, growthRounds: 1, workloads: regexp.MustCompile("")}
	jobs := every.jobs(bench.Quick)
	for _, id := range []string{"large", growthID(bench.Quick.Growth[0])} {
		j := jobs[slices.IndexFunc(jobs, func(j job) bool { return j.id == id })]
		here := j.Run
		j.Run = func(bench.Peer, bench.Scale) bench.Sample { panic("ran here") }
		p := j.Peers[slices.IndexFunc(j.Peers, otter)]
		measured, err := turn{j, 0}.sample(p, bench.Quick)
		require.NoError(t, err)
		require.ElementsMatch(t, slices.Collect(maps.Keys(here(p, bench.Quick))), slices.Collect(maps.Keys(measured)))

		p.Name = "nobody"
		_, err = turn{j, 0}.sample(p, bench.Quick)
		require.ErrorContains(t, err, "nobody")
	}
}

func TestSummaries(t *testing.T) {
	t.Run("the range of ten values is the second to the ninth, as benchstat has it", func(t *testing.T) {
		require.Equal(t, summary{10, 5.5, 2, 9}, summarize([]float64{10, 1, 9, 2, 8, 3, 7, 4, 6, 5}))
	})
	t.Run("fewer than six values give the whole range", func(t *testing.T) {
		require.Equal(t, summary{5, 3, 1, 5}, summarize([]float64{5, 4, 3, 2, 1}))
		require.Equal(t, summary{1, 3, 3, 3}, summarize([]float64{3}))
	})
	t.Run("no value gives no number", func(t *testing.T) {
		require.True(t, math.IsNaN(summarize(nil).median))
	})
	t.Run("the rank is that of the binomial tables", func(t *testing.T) {
		for n, rank := range map[int]int{6: 0, 8: 0, 9: 1, 12: 2, 20: 5, 30: 9} {
			require.Equal(t, rank, confidenceRank(n), "n = %d", n)
		}
	})
	t.Run("a ratio is taken round by round, of rounds that have both", func(t *testing.T) {
		r := &results{}
		for round, speed := range []float64{1, 2} { // the machine halves its speed
			r.add("w", "a", round, bench.Sample{"time": 10 * speed})
			r.add("w", "b", round, bench.Sample{"time": 40 * speed})
		}
		r.add("w", "a", 2, bench.Sample{"time": 1000})
		require.Equal(t, summary{2, 0.25, 0.25, 0.25}, r.ratio(figure{"w", "a", "time"}, figure{"w", "b", "time"}))
	})
}

func TestNumbers(t *testing.T) {
	for v, text := range map[float64]string{0: "0", 0.00001: "0", 0.0123: "0.012", 0.45: "0.45", 1: "1", 12.34: "12.3", 123.4: "123",
		59310: "59,310", 1242300.4: "1,242,300", -1500: "-1,500"} {
		require.Equal(t, text, number(v))
	}
	for n, text := range map[int]string{500: "500", 10_000: "10 k", 20_000_000: "20 M"} {
		require.Equal(t, text, count(n))
	}
}

func TestScales(t *testing.T) {
	require.Equal(t, []float64{0, 20, 40, 60, 80}, upTo([]float64{13, 74}, 0, 1, false).ticks())
	require.Equal(t, []float64{1, 10, 100}, upTo([]float64{2, 74}, 0, 1, true).ticks())
	s := upTo([]float64{2, 74}, 100, 0, true)
	require.InDelta(t, 50, s.at(10), 1e-9)
}

func TestTurnsGoThroughAllJobsInEachRound(t *testing.T) {
	of := func(id string, rounds int, once bool) job { return job{bench.Workload{Once: once}, id, rounds} }
	var got []string
	for _, turn := range turns([]job{of("light", 3, false), of("once", 1, true), of("heavy", 2, false)}) {
		got = append(got, turn.id)
	}
	require.Equal(t, []string{"light", "heavy", "light", "heavy", "light", "once"}, got)
}

func TestTheReport(t *testing.T) {
	dir := t.TempDir()
	out, saved := filepath.Join(dir, "B.md"), filepath.Join(dir, "samples.json")
	args := []string{"-quick", "-rounds", "2", "-heavy-rounds", "0", "-growth-rounds", "0", "-workloads", "^(replay|cold|empty)$",
		"-peers", "^otter v2$", "-out", out, "-charts", filepath.Join(dir, "charts")}
	require.NoError(t, run(append(args, "-save", saved), silent))
	first := read(t, out)

	t.Run("has a table for each workload that ran, and a target's verdict", func(t *testing.T) {
		require.Contains(t, first, "| replay, one caller, beside otter v2 | ≤ 0.45 × |")
		require.Contains(t, first, "## Cold call: one caller")
		require.Contains(t, first, "| **idempotent** |")
		require.NotContains(t, first, "80-line port |")
		require.NotContains(t, first, "NaN")
	})
	t.Run("keeps the note that was written into it", func(t *testing.T) {
		require.NoError(t, os.WriteFile(out, []byte(strings.Replace(first, noteBegin+"\n", noteBegin+"\nWhere the time goes.\n", 1)), 0o644))
		require.NoError(t, run(append(args, "-load", saved), silent))
		require.Equal(t, first, strings.Replace(read(t, out), "Where the time goes.\n", "", 1))
		require.Contains(t, read(t, out), "Where the time goes.")
	})
	t.Run("of two runs takes a workload from the second that measured it", func(t *testing.T) {
		later := filepath.Join(dir, "later.json")
		require.NoError(t, (&results{Runs: []about{{Date: "another day"}}, Samples: []sample{{"cold", bench.Ours, "time", 0, 12345}}}).save(later))
		require.NoError(t, run(append(args, "-load", saved, "-load", later), silent))
		both := read(t, out)
		require.Contains(t, both, "on another day")
		require.Contains(t, both, "| **idempotent** | 12,345 |")
		require.NotContains(t, both, "| otter v2 | 12,345 |")
		require.Contains(t, both, "## Replay: string keys, one caller")
	})
	t.Run("draws well-formed charts", func(t *testing.T) {
		for _, name := range []string{"comparison.svg", "growth.svg"} {
			decoder := xml.NewDecoder(strings.NewReader(read(t, filepath.Join(dir, "charts", name))))
			var err error
			for err == nil {
				_, err = decoder.Token()
			}
			require.True(t, errors.Is(err, io.EOF), "%s: %v", name, err)
		}
	})
}

func TestGrowthIsDrawn(t *testing.T) {
	r := &results{Runs: []about{{}}, Scale: bench.Quick}
	for _, n := range r.Scale.Growth {
		r.add(growthID(n), bench.Ours, 0, bench.Sample{"replay": float64(n), "gc": 1 + float64(n)/1e6})
	}
	chart := growthChart(r)
	require.Equal(t, 2, strings.Count(chart, "<polyline"))
	require.Equal(t, 3, strings.Count(chart, "not measured in this run"))
}

func TestBadFlags(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"-workloads", "("}, {"-peers", "("}, {"extra"}} {
		require.ErrorContains(t, run(args, silent), strings.TrimPrefix(args[0], "-"))
	}
}

func read(t *testing.T, file string) string {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}
