package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent/bench"
)

// results are all samples, and where and how they were made: by one run, or by
// several that measured different workloads.
type results struct {
	Runs         []about
	Scale        bench.Scale
	Observations []observation
	Samples      []sample
}

type observation struct {
	Peer string
	bench.Observation
}

type sample struct {
	Workload, Peer, Metric string
	Round                  int
	Value                  float64
}

// about is what a reader must know to judge the figures.
type about struct {
	Date, Command, Commit, Machine, Go string
	Modules                            []string
}

func describe(args []string) about {
	a := about{
		Date:    time.Now().UTC().Format("2006-01-02 15:04 UTC"),
		Command: strings.Join(append([]string{"go run ./bench/cmd/compare"}, args...), " "),
		Go:      fmt.Sprintf("%s %s/%s, GOMAXPROCS %d", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0)),
		Machine: fmt.Sprintf("%s, %d cores, %s of memory, Linux %s, load %s at the start", field("/proc/cpuinfo", "model name"),
			runtime.NumCPU(), gibibytes(field("/proc/meminfo", "MemTotal")), firstWord("/proc/sys/kernel/osrelease"), firstWord("/proc/loadavg")),
		Commit: "unknown",
	}
	if out, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		a.Commit = strings.TrimSpace(string(out))
	}
	var used []string
	for _, p := range bench.Peers() {
		used = append(used, p.Modules...)
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if slices.Contains(used, m.Path) {
				a.Modules = append(a.Modules, m.Path+" "+m.Version)
			}
		}
	}
	return a
}

// field is the value of the first line "name : value" of a file in /proc.
func field(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// gibibytes writes "24684092 kB" as "24 GiB".
func gibibytes(size string) string {
	var kibibytes float64
	if _, err := fmt.Sscanf(size, "%f kB", &kibibytes); err != nil {
		return size
	}
	return fmt.Sprintf("%.0f GiB", kibibytes/(1<<20))
}

func firstWord(file string) string {
	text, err := os.ReadFile(file)
	if words := strings.Fields(string(text)); err == nil && len(words) > 0 {
		return words[0]
	}
	return "unknown"
}

func (r *results) add(workload, peer string, round int, measured bench.Sample) {
	for metric, value := range measured {
		r.Samples = append(r.Samples, sample{workload, peer, metric, round, value})
	}
}

func (r *results) save(file string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return writeFile("", file, string(text))
}

// load takes what another run has saved. Where both have measured a workload,
// or observed the semantics, the later run's figures stand alone: figures of two
// runs are not comparable.
func (r *results) load(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var later results
	if err := json.Unmarshal(text, &later); err != nil {
		return fmt.Errorf("compare: %s: %w", file, err)
	}
	measured := map[string]bool{}
	for _, s := range later.Samples {
		measured[s.Workload] = true
	}
	r.Samples = slices.DeleteFunc(r.Samples, func(s sample) bool { return measured[s.Workload] })
	r.Samples = append(r.Samples, later.Samples...)
	if len(later.Observations) > 0 {
		r.Observations = later.Observations
	}
	r.Runs, r.Scale = append(r.Runs, later.Runs...), later.Scale
	return nil
}

// A figure is one metric of one peer in one workload.
type figure struct{ workload, peer, metric string }

// of returns the figure's values by round.
func (r *results) of(f figure) map[int]float64 {
	values := map[int]float64{}
	for _, s := range r.Samples {
		if (figure{s.Workload, s.Peer, s.Metric}) == f {
			values[s.Round] = s.Value
		}
	}
	return values
}

// summary is what a figure's rounds come to.
func (r *results) summary(f figure) summary {
	var values []float64
	for _, v := range r.of(f) {
		values = append(values, v)
	}
	return summarize(values)
}

// ratio divides two figures round by round: only what was measured in the same
// minute is comparable.
func (r *results) ratio(f, g figure) summary {
	return r.combine(func(v []float64) float64 { return v[0] / v[1] }, f, g)
}

// combine computes one value a round from figures that all have that round.
func (r *results) combine(compute func([]float64) float64, figures ...figure) summary {
	columns := make([]map[int]float64, len(figures))
	for i, f := range figures {
		columns[i] = r.of(f)
	}
	var values []float64
	for round := range columns[0] {
		row := make([]float64, 0, len(columns))
		for _, column := range columns {
			if v, ok := column[round]; ok {
				row = append(row, v)
			}
		}
		if len(row) == len(columns) {
			values = append(values, compute(row))
		}
	}
	return summarize(values)
}

// summary is a median and the range that holds the true one with 95 %
// confidence, by the order of the values alone, as benchstat has it. Fewer than
// six values cannot give that: the range is then all of them.
type summary struct {
	n                 int
	median, low, high float64
}

func summarize(values []float64) summary {
	n := len(values)
	if n == 0 {
		return summary{median: math.NaN(), low: math.NaN(), high: math.NaN()}
	}
	slices.Sort(values)
	k := confidenceRank(n)
	return summary{n, (values[(n-1)/2] + values[n/2]) / 2, values[k], values[n-1-k]}
}

// confidenceRank is the largest k for which the k-th value from below and from
// above enclose the median of the population with 95 % confidence: the number
// of values below it is binomial with probability one half.
func confidenceRank(n int) (k int) {
	below, term := 0.0, math.Pow(0.5, float64(n)) // P(X <= i-1), P(X = i)
	for i := 0; i < n/2; i++ {
		below += term
		if 2*below > 0.05 {
			break
		}
		k = i
		term *= float64(n-i) / float64(i+1)
	}
	return k
}

func relative(file, folder string) (string, error) {
	from, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	rel, err := filepath.Rel(from, to)
	return filepath.ToSlash(rel), err
}

func writeFile(folder, name, text string) error {
	if folder != "" {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644)
}

// made says with what and when the latest figures were.
func (r *results) made() string {
	last := r.Runs[len(r.Runs)-1]
	return last.Go + ", " + last.Date
}
