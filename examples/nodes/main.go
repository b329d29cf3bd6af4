// Nodes shows what a lease can promise and what it cannot. Three worker
// processes race over the same deliveries; each charges a card once it owns a
// delivery. Some are killed after the charge, before they could say so. Per
// delivery it prints how often the card was charged:
//
//	hold                what Redis cannot know is held for an operator
//	run again           the next worker runs the effect again
//	run again, keyed    the same, with a charge that is unique on the delivery
//
// It starts a redis-server if one is on PATH, and runs on an embedded stand-in
// otherwise. It exits with 1 when a card was charged twice, or never, where
// the effect was held or keyed.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/redis/go-redis/v9"
)

const (
	workers    = 3
	deliveries = 12
)

// modes are what the columns of the table show.
var modes = []string{"hold", control, "run again, keyed"}

// control is the mode that is expected to charge twice.
const control = "run again"

func delivery(i int) string { return fmt.Sprintf("evt_%02d", i+1) }

// doomed says whose first charge is its worker's last act.
func doomed(i int) bool { return i%3 == 1 }

func main() {
	run := work
	if os.Getenv("NODES_MODE") == "" {
		run = func(ctx context.Context) error { return program(ctx, os.Args[1:], os.Stdout, os.Stderr) }
	}
	switch err := run(context.Background()); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "nodes:", err)
		os.Exit(1)
	}
}

// program is what is started by hand; it starts the workers.
func program(ctx context.Context, args []string, out, usage io.Writer) error {
	flags := flag.NewFlagSet("nodes", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.Usage = func() {
		fmt.Fprintln(usage, "Usage of nodes: no flags. Workers race over deliveries and are killed; it prints how often each card was charged.")
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("there are no arguments: %s", strings.Join(flags.Args(), " "))
	}
	return supervise(ctx, out)
}

func supervise(ctx context.Context, out io.Writer) error {
	addr, stop, err := startRedis(out)
	if err != nil {
		return err
	}
	defer stop()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	for _, mode := range modes {
		kills, err := race(mode, addr)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-17s  %d workers, %d of them killed after a charge\n", mode+":", workers+kills, kills)
	}
	return report(ctx, client, out)
}

// race runs the workers of one mode until each has been through all deliveries.
// A worker that is killed is replaced.
func race(mode, addr string) (kills int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	var (
		mu    sync.Mutex // guards what follows
		first error
		dead  = make(map[string]bool) // deliveries that have cost a worker
		all   sync.WaitGroup
	)
	// cost says whether the delivery is to cost the worker that charged it.
	cost := func(charged string) bool {
		mu.Lock()
		defer mu.Unlock()
		for i := range deliveries {
			if charged == delivery(i) && doomed(i) && !dead[charged] {
				dead[charged] = true
				return true
			}
		}
		return false
	}
	for range workers {
		all.Go(func() {
			for killed := true; killed; {
				var err error
				if killed, err = supervised(self, mode, addr, cost); err != nil {
					mu.Lock()
					first = err
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return len(dead), first
}

// supervised runs one worker and kills it after a charge that costs it.
func supervised(self, mode, addr string, cost func(charged string) bool) (killed bool, err error) {
	worker := exec.Command(self)
	worker.Env = append(os.Environ(), "NODES_MODE="+mode, "NODES_REDIS="+addr)
	worker.Stderr = os.Stderr
	out, err := worker.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := worker.Start(); err != nil {
		return false, err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if charged, ok := strings.CutPrefix(lines.Text(), "charged "); ok && cost(charged) {
			killed = true
			_ = worker.Process.Kill()
		}
	}
	if err := worker.Wait(); !killed {
		return false, err
	}
	return true, nil
}

// report prints how often each card was charged. The error says where that was
// not once.
func report(ctx context.Context, client *redis.Client, out io.Writer) error {
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintf(table, "charges\t%s\n", strings.Join(modes, "\t"))
	wrong := make(map[string]int) // cards not charged once, by mode
	for i := range deliveries {
		cells := []string{delivery(i)}
		for _, mode := range modes {
			cell, charges, err := books(ctx, client, mode, delivery(i))
			if err != nil {
				return err
			}
			if charges != 1 {
				wrong[mode]++
			}
			cells = append(cells, cell)
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return conclude(out, wrong)
}

// conclude says what the table shows. Cards that were charged twice in the
// control are no error.
func conclude(out io.Writer, wrong map[string]int) error {
	fmt.Fprintf(out, "\nA lease that ran out cannot say whether its worker had charged. Run again without a key, %d cards were not charged once: "+
		"that is expected, and what the other two columns are for.\n", wrong[control])
	for _, mode := range modes {
		if mode != control && wrong[mode] > 0 {
			return fmt.Errorf("FAIL: %s: %d of %d cards were not charged just once", mode, wrong[mode], deliveries)
		}
	}
	_, err := fmt.Fprintf(out, "PASS: held, or run again with a key, each of %d cards was charged 1 time\n", deliveries)
	return err
}

// books says what the bank's books and the workers have of one delivery.
func books(ctx context.Context, client *redis.Client, mode, id string) (cell string, charges int64, err error) {
	charges, err = client.SCard(ctx, chargesOf(mode, id)).Result()
	if err != nil {
		return "", 0, err
	}
	runs, err := client.Get(ctx, runsOf(mode, id)).Int64()
	if err != nil {
		return "", 0, err
	}
	held, err := client.SIsMember(ctx, heldOf(mode), id).Result()
	switch {
	case held:
		cell = fmt.Sprintf("%d, held as unknown", charges)
	case charges > 1:
		cell = fmt.Sprintf("%d  TWICE", charges)
	case runs > 1:
		cell = fmt.Sprintf("%d, of %d runs", charges, runs)
	default:
		cell = fmt.Sprint(charges)
	}
	return cell, charges, err
}
