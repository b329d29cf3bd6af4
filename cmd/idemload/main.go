// Idemload puts a bounded load on an endpoint and shows how long calls take on
// this machine: so many keys, each called so many times, by so many callers at
// once, with effects that take time and fail now and then. Callers are as a
// producer that delivers at least once: they call until they succeed.
//
//	go run ./cmd/idemload -keys 200000 -duplicates 4 -fail 0.05 -concurrency 64 -effect 1ms -svg load.svg
//
// It ends when every key has had its calls or the time is over. It exits with 1
// when an effect ran twice, or a caller got another key's result.
//
// Each call is timed by two looks at the clock, which the figures include.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// settings are what the flags say.
type settings struct {
	keys, duplicates, callers int
	fail                      float64
	effect, limit             time.Duration
}

func (s *settings) check() error {
	switch {
	case s.keys < 1:
		return fmt.Errorf("idemload: -keys is %d, want 1 or more", s.keys)
	case s.duplicates < 0:
		return fmt.Errorf("idemload: -duplicates is %d, want 0 or more", s.duplicates)
	case s.callers < 1:
		return fmt.Errorf("idemload: -concurrency is %d, want 1 or more", s.callers)
	case !(s.fail >= 0 && s.fail < 1):
		return fmt.Errorf("idemload: -fail is %v, want 0 or more and below 1: callers call until they succeed", s.fail)
	case s.effect < 0:
		return fmt.Errorf("idemload: -effect is %v, want 0 or more", s.effect)
	case s.limit <= 0:
		return fmt.Errorf("idemload: -seconds is %v, want more than 0", s.limit.Seconds())
	}
	return nil
}

// run is the program: 0 for a clean load, 1 for an effect that ran twice or a
// chart that could not be written, 2 for flags that make no sense.
func run(ctx context.Context, args []string, out, progress io.Writer) int {
	s, svg, err := parse(args, progress)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(progress, err)
		return 2
	}
	endpoint, err := idempotent.New(idempotent.Options[int, int]{TTL: idempotent.Forever})
	if err != nil {
		fmt.Fprintln(progress, err)
		return 2
	}
	l := newLoad(s, endpoint.Do)
	fmt.Fprintf(out, "%s keys of %s each, by %s at once; %g%% of the effects fail, after %v; at most %v\n",
		count(s.keys), plural(s.duplicates+1, "call"), plural(s.callers, "caller"), 100*s.fail, s.effect, s.limit)
	took := l.run(ctx, progress)

	report(out, l, took)
	code := l.verdict(out)
	if svg != "" {
		if err := writeChart(svg, l, took); err != nil {
			fmt.Fprintln(progress, err)
			return 1
		}
		fmt.Fprintf(out, "The chart is in %s.\n", svg)
	}
	return code
}

func parse(args []string, usage io.Writer) (s settings, svg string, err error) {
	flags := flag.NewFlagSet("idemload", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.IntVar(&s.keys, "keys", 100_000, "keys, at most")
	flags.IntVar(&s.duplicates, "duplicates", 3, "calls for a key after its first: one at once, the others later")
	flags.Float64Var(&s.fail, "fail", 0.01, "part of the effects that fail: 0 or more, below 1")
	flags.IntVar(&s.callers, "concurrency", 32, "callers at once")
	flags.DurationVar(&s.effect, "effect", 0, "time that an effect takes")
	seconds := flags.Float64("seconds", 10, "time, at most")
	flags.StringVar(&svg, "svg", "", "file to draw the latencies in")
	if err := flags.Parse(args); err != nil {
		return s, svg, err
	}
	if flags.NArg() > 0 {
		return s, svg, fmt.Errorf("idemload: there are no arguments beside the flags: %s", strings.Join(flags.Args(), " "))
	}
	s.limit = time.Duration(*seconds * float64(time.Second))
	return s, svg, s.check()
}
