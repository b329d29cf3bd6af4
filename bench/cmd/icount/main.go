// Icount counts what a call costs in instructions, allocations and bytes: figures
// that are the same on a busy machine, so that a build may fail when they grow.
// It runs itself under valgrind's callgrind (Debian: valgrind), twice for each kind
// of call, and takes the difference: set-up and the runtime's start fall out.
//
//	go run ./bench/cmd/icount           # compare with bench/icount.txt; exit 1 if something grew
//	go run ./bench/cmd/icount -write    # store what is counted now
//	go run ./bench/cmd/icount -functions cold   # where a call's instructions go
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("icount", flag.ContinueOnError)
	file := flags.String("file", "bench/icount.txt", "where the counts are stored")
	write := flags.Bool("write", false, "store what is counted, instead of comparing")
	tolerance := flags.Float64("tolerance", 3, "per cent by which instructions and bytes may grow")
	functions := flags.String("functions", "", "show which functions a call of this kind spends its instructions in")
	work := flags.String("work", "", "used by the program itself: make calls of this kind, and print what was allocated")
	calls := flags.Int("calls", 0, "used by the program itself: how many")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *work != "" {
		return makeCalls(out, *work, *calls)
	}
	if *tolerance < 0 {
		return fmt.Errorf("icount: -tolerance is %v, want 0 or more", *tolerance)
	}
	if *functions != "" {
		return showFunctions(out, *functions)
	}
	counted, err := countAll(progress)
	if err != nil {
		return err
	}
	now := table{toolchain(), counted}
	fmt.Fprint(out, now)
	if *write {
		return os.WriteFile(*file, []byte(now.String()), 0o644)
	}
	text, err := os.ReadFile(*file)
	if err != nil {
		return err
	}
	stored, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("icount: %s: %w", *file, err)
	}
	return compare(stored, now, *tolerance)
}

func toolchain() string { return runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH }

// compare returns an error that names all that grew.
func compare(stored, now table, tolerance float64) error {
	var grown []error
	for _, was := range stored.counts {
		i := slices.IndexFunc(now.counts, func(c counts) bool { return c.work == was.work })
		if i < 0 {
			grown = append(grown, fmt.Errorf("icount: %s is stored but no longer counted", was.work))
			continue
		}
		grown = append(grown, was.growth(now.counts[i], tolerance)...)
	}
	if len(grown) > 0 && stored.toolchain != now.toolchain {
		grown = append(grown, fmt.Errorf("icount: stored with %s, counted with %s: if only that changed, store again with -write",
			stored.toolchain, now.toolchain))
	}
	return errors.Join(grown...)
}

// growth is what grew from c to now. An allocation more in a hundred calls is
// growth: amortized ones count.
func (c counts) growth(now counts, tolerance float64) (grown []error) {
	for _, f := range []struct {
		name           string
		was, is, allow float64
	}{
		{"instructions", c.instructions, now.instructions, c.instructions * tolerance / 100},
		{"allocations", c.allocs, now.allocs, 0.01},
		{"bytes", c.bytes, now.bytes, c.bytes*tolerance/100 + 1},
	} {
		if f.is > f.was+f.allow {
			grown = append(grown, fmt.Errorf("icount: %s: %s grew from %.2f to %.2f per call", c.work, f.name, f.was, f.is))
		}
	}
	return grown
}
