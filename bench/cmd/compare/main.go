// Compare measures the endpoint and its peers, interleaved in one run, and
// writes what it measured as BENCHMARKS.md and two charts. From the root:
//
//	go run ./bench/cmd/compare            # 10 rounds, about two hours on 2 cores
//	go run ./bench/cmd/compare -quick -out /tmp/b.md -charts /tmp
//
// Only ratios of one run mean anything: machines change their speed.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent/bench"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == childFlag {
		if err := child(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "compare:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(os.Args[1:], newTerminal(os.Stderr)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// config is what the flags say.
type config struct {
	rounds, heavyRounds, growthRounds int
	workloads, peers                  *regexp.Regexp
	quick                             bool
	out, charts, save                 string
	load                              []string
}

func parse(args []string) (config, error) {
	c := config{}
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.IntVar(&c.rounds, "rounds", 10, "rounds of the workloads that take milliseconds")
	flags.IntVar(&c.heavyRounds, "heavy-rounds", 10, "rounds of the workloads that take seconds; 0 leaves them out")
	flags.IntVar(&c.growthRounds, "growth-rounds", 3, "rounds of the growth to 20 million keys; 0 leaves it out")
	workloads := flags.String("workloads", "", "regular expression of the workloads to run, of "+strings.Join(names(), ", "))
	peers := flags.String("peers", "", "regular expression of the peers to run; the endpoint always is")
	flags.BoolVar(&c.quick, "quick", false, "small numbers: shows that everything runs, figures mean nothing")
	flags.StringVar(&c.out, "out", "BENCHMARKS.md", "report to write")
	flags.StringVar(&c.charts, "charts", "bench", "folder for comparison.svg and growth.svg")
	flags.StringVar(&c.save, "save", "", "file to keep the samples in, as JSON")
	flags.Func("load", "file of samples to report on again, instead of measuring; given twice, the second run's workloads replace the first's", func(file string) error {
		c.load = append(c.load, file)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("compare: unknown argument %q", flags.Arg(0))
	}
	if c.rounds < 1 || c.heavyRounds < 0 || c.growthRounds < 0 {
		return c, fmt.Errorf("compare: -rounds is %d, -heavy-rounds %d, -growth-rounds %d, want 1, 0 and 0 or more",
			c.rounds, c.heavyRounds, c.growthRounds)
	}
	var err error
	if c.workloads, err = regexp.Compile(*workloads); err != nil {
		return c, fmt.Errorf("compare: -workloads: %w", err)
	}
	if c.peers, err = regexp.Compile(*peers); err != nil {
		return c, fmt.Errorf("compare: -peers: %w", err)
	}
	return c, nil
}

func names() (all []string) {
	for _, w := range bench.Workloads() {
		all = append(all, w.Name)
	}
	return append(all, "growth", "semantics")
}

func run(args []string, progress *terminal) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	res := &results{}
	for _, file := range c.load {
		if err := res.load(file); err != nil {
			return err
		}
	}
	if len(c.load) == 0 {
		res.Runs = []about{describe(args)}
		if err := c.measure(res, progress); err != nil {
			return err
		}
	}
	if c.save != "" {
		if err := res.save(c.save); err != nil {
			return err
		}
	}
	return c.write(res)
}

// A job is one workload with its rounds; growth has a job for each size.
type job struct {
	bench.Workload
	id     string // under which its samples are kept
	rounds int
}

func (c config) jobs(scale bench.Scale) (jobs []job) {
	for _, w := range bench.Workloads() {
		rounds := c.rounds
		switch {
		case w.Once:
			rounds = 1
		case w.Heavy:
			rounds = c.heavyRounds
		}
		jobs = append(jobs, job{w, w.Name, rounds})
	}
	for _, n := range scale.Growth {
		jobs = append(jobs, job{bench.GrowthWorkload(n), growthID(n), c.growthRounds})
	}
	return slices.DeleteFunc(jobs, func(j job) bool { return j.rounds == 0 || !c.workloads.MatchString(j.Name) })
}

func growthID(n int) string { return fmt.Sprintf("growth %d", n) }

// measure runs all jobs, round by round, the peers in another order each time.
// An interrupt ends it after the running measurement, and what there is is
// reported.
func (c config) measure(res *results, progress *terminal) error {
	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, os.Interrupt)
	defer signal.Stop(interrupt)
	scale := bench.Full
	if c.quick {
		scale = bench.Quick
	}
	res.Scale = scale
	if c.workloads.MatchString("semantics") {
		c.observe(res, scale, progress)
	}
	jobs := c.jobs(scale)
	eta := newETA(jobs)
	for _, turn := range turns(jobs) {
		peers := c.order(turn)
		start := time.Now()
		for _, p := range peers {
			progress.now("%v  %s", turn, p.Name)
			measured, err := turn.sample(p, scale)
			select {
			case <-interrupt:
				progress.done("interrupted: reporting what there is")
				return nil
			default:
			}
			if err != nil {
				return err
			}
			res.add(turn.id, p.Name, turn.round, measured)
		}
		progress.done("%v  %d peers in %.1f s; %s",
			turn, len(peers), time.Since(start).Seconds(), eta.spent(turn.id, time.Since(start)))
	}
	return nil
}

// A turn is one round of one job.
type turn struct {
	job
	round int
}

func (t turn) String() string { return fmt.Sprintf("round %d of %d  %-15s", t.round+1, t.rounds, t.id) }

// turns goes through all jobs in each round; those that run once come last.
func turns(jobs []job) (all []turn) {
	var last []turn
	for round := 0; ; round++ {
		before := len(all)
		for _, j := range jobs {
			switch {
			case j.Once && round == 0:
				last = append(last, turn{j, 0})
			case !j.Once && round < j.rounds:
				all = append(all, turn{j, round})
			}
		}
		if len(all) == before {
			return append(all, last...)
		}
	}
}

// order is another one in each round.
func (c config) order(t turn) []bench.Peer {
	peers := slices.DeleteFunc(slices.Clone(t.Peers), func(p bench.Peer) bool { return !c.wants(p) })
	rand.New(rand.NewPCG(uint64(t.round), 0)).Shuffle(len(peers), func(a, b int) { peers[a], peers[b] = peers[b], peers[a] })
	return peers
}

// wants says whether a peer is to be run. Floors and the endpoint's variants
// are part of the workloads.
func (c config) wants(p bench.Peer) bool {
	return p.Floor || p.Ints == nil || p.Name == bench.Ours || c.peers.MatchString(p.Name)
}

func (c config) observe(res *results, scale bench.Scale, progress *terminal) {
	for _, p := range bench.Peers() {
		if !p.Floor && c.wants(p) {
			progress.now("semantics  %s", p.Name)
			res.Observations = append(res.Observations, observation{p.Name, bench.Observe(p, scale.Window)})
		}
	}
	progress.done("semantics of %d peers", len(res.Observations))
}

func (c config) write(res *results) error {
	where, err := relative(c.out, c.charts)
	if err != nil {
		return err
	}
	rep := report{results: res, comparison: path.Join(where, "comparison.svg"), growth: path.Join(where, "growth.svg")}
	if err := writeFile(c.charts, "comparison.svg", comparisonChart(res)); err != nil {
		return err
	}
	if err := writeFile(c.charts, "growth.svg", growthChart(res)); err != nil {
		return err
	}
	note, err := keptNote(c.out)
	if err != nil {
		return err
	}
	return writeFile("", c.out, rep.markdown(note))
}
