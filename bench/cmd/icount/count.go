package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Each kind of call is counted this often, with fewer and with more calls; the
// median stands, for hash seeds differ from run to run.
const (
	repeats   = 3
	fewCalls  = 20_000
	manyCalls = 120_000
)

func countAll(progress io.Writer) (all []counts, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for _, w := range works {
		fmt.Fprintf(progress, "\r\033[Kcounting %s", w.name)
		c, err := count(self, w.name)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	fmt.Fprint(progress, "\r\033[K")
	return all, nil
}

func count(self, work string) (counts, error) {
	var instructions, allocs, size []float64
	for range repeats {
		few, err := callgrind(self, work, fewCalls, os.DevNull)
		if err != nil {
			return counts{}, err
		}
		many, err := callgrind(self, work, manyCalls, os.DevNull)
		if err != nil {
			return counts{}, err
		}
		each := func(i int) float64 { return (many[i] - few[i]) / (manyCalls - fewCalls) }
		instructions, allocs, size = append(instructions, each(0)), append(allocs, each(1)), append(size, each(2))
	}
	return counts{work, median(instructions), median(allocs), median(size)}, nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

var executed = regexp.MustCompile(`I\s+refs:\s+([0-9,]+)`)

// callgrind runs self, this program, under valgrind, on one processor, without
// collections, and without the runtime's preemption signals, which callgrind does
// not survive. It returns the instructions, allocations and bytes of the whole run.
func callgrind(self, work string, calls int, profile string) (total [3]float64, err error) {
	cmd := exec.Command("valgrind", "--tool=callgrind", "--callgrind-out-file="+profile,
		self, "-work", work, "-calls", strconv.Itoa(calls))
	// The runtime reads the cycle counter where it has to wait for one of its own
	// locks; valgrind shows it a processor with RDTSCP, and stops at that instruction.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1,cpu.rdtscp=off")
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		return total, fmt.Errorf("icount: %s under valgrind: %w\n%s", work, err, log.String())
	}
	found := executed.FindStringSubmatch(log.String())
	if found == nil {
		return total, fmt.Errorf("icount: no count in valgrind's output:\n%s", log.String())
	}
	if total[0], err = strconv.ParseFloat(strings.ReplaceAll(found[1], ",", ""), 64); err != nil {
		return total, err
	}
	if _, err := fmt.Sscan(out.String(), &total[1], &total[2]); err != nil {
		return total, fmt.Errorf("icount: %s printed %q: %w", work, out.String(), err)
	}
	return total, nil
}
