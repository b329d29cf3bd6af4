// Storm looks for an effect that runs twice. Each trial takes a fresh endpoint
// through two phases: a fuzz, many calls on few random keys with an effect that
// fails now and then, and a storm, all callers at once on one key. Callers are
// as a producer that delivers at least once: they call until they succeed, and
// some call again afterwards. In the end each key must have been committed once.
//
//	go run ./examples/storm -callers 64 -fail 0.4 -seconds 3600
//
// It exits with 1 when an effect ran twice.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"

	"github.com/idempotent-go/idempotent"
)

// progressEvery is how often a long run shows that it lives.
const progressEvery = 5 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: 0 for PASS, 1 for an effect that ran twice, 2 for flags
// that make no sense.
func run(ctx context.Context, args []string, out, progress io.Writer) int {
	var s settings
	flags := flag.NewFlagSet("storm", flag.ContinueOnError)
	flags.SetOutput(progress)
	flags.IntVar(&s.callers, "callers", 16, "callers at once, in the fuzz and in the storm")
	flags.IntVar(&s.keys, "keys", 20, "keys of the fuzz")
	flags.IntVar(&s.calls, "calls", 300, "calls of the fuzz")
	flags.Float64Var(&s.fail, "fail", 0.2, "how often an effect fails: 0 or more, below 1")
	seconds := flags.Float64("seconds", 2, "time to go on for; one trial is always run")
	seed := flags.Uint64("seed", uint64(time.Now().UnixNano()), "seed of the random choices; the interleaving is not seeded")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if err := s.check(*seconds, flags.Args()); err != nil {
		fmt.Fprintln(progress, err)
		return 2
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(*seconds*float64(time.Second)))
	defer cancel()

	var sum totals
	start, shown := time.Now(), time.Now()
	for n := uint64(0); n == 0 || ctx.Err() == nil; n++ {
		endpoint, err := idempotent.New(idempotent.Options[string, int64]{})
		if err == nil {
			err = sum.trial(s, rand.New(rand.NewPCG(*seed, n)), endpoint)
		}
		if err != nil {
			fmt.Fprintf(out, "%sFAIL: trial %d of seed %d: %v\n", &sum, n+1, *seed, err)
			return 1
		}
		if time.Since(shown) >= progressEvery {
			shown = time.Now()
			fmt.Fprintf(progress, "%4.0f s of %.0f: %d trials, %d effects committed, none twice\n",
				time.Since(start).Seconds(), *seconds, sum.trials, sum.committed)
		}
	}
	fmt.Fprintf(out, "%sPASS\n", &sum)
	return 0
}
