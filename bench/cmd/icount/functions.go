package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// showFunctions prints the functions that take at least a hundredth of a call's
// instructions, their own ones only, what the compiler inlined into them included.
func showFunctions(out io.Writer, work string) error {
	dir, err := os.MkdirTemp("", "icount")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// go run leaves out the symbols that callgrind reads.
	self := filepath.Join(dir, "icount")
	if text, err := exec.Command("go", "build", "-o", self, "github.com/idempotent-go/idempotent/bench/cmd/icount").CombinedOutput(); err != nil {
		return fmt.Errorf("icount: go build: %w\n%s", err, text)
	}
	few, err := byFunction(self, work, fewCalls)
	if err != nil {
		return err
	}
	each, err := byFunction(self, work, manyCalls)
	if err != nil {
		return err
	}
	total := 0.0
	for name := range each {
		each[name] = (each[name] - few[name]) / (manyCalls - fewCalls)
		total += each[name]
	}
	names := slices.SortedFunc(maps.Keys(each), func(a, b string) int { return cmp.Compare(each[b], each[a]) })
	fmt.Fprintf(out, "%8.1f  instructions of a call: %s\n", total, work)
	for _, name := range names {
		if each[name] >= total/100 {
			fmt.Fprintf(out, "%8.1f  %4.1f %%  %s\n", each[name], 100*each[name]/total, name)
		}
	}
	return nil
}

// byFunction runs calls under callgrind and returns the instructions of each
// function.
func byFunction(self, work string, calls int) (map[string]float64, error) {
	profile := self + "." + strconv.Itoa(calls)
	if _, err := callgrind(self, work, calls, profile); err != nil {
		return nil, err
	}
	text, err := exec.Command("callgrind_annotate", "--threshold=100", "--auto=no", profile).Output()
	if err != nil {
		return nil, fmt.Errorf("icount: callgrind_annotate: %w", err)
	}
	return parseFunctions(string(text))
}

var (
	annotated = regexp.MustCompile(`^\s*([0-9,]+) \([ 0-9.]+%\)\s+[^:]*:(.*?)( \[[^\[\]]*\])?$`)
	shapes    = regexp.MustCompile(`\[go\.shape.*\]`)
)

func parseFunctions(text string) (map[string]float64, error) {
	instructions := map[string]float64{}
	for line := range strings.Lines(text) {
		found := annotated.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if found == nil {
			continue
		}
		n, err := strconv.ParseFloat(strings.ReplaceAll(found[1], ",", ""), 64)
		if err != nil {
			return nil, err
		}
		name := shapes.ReplaceAllString(found[2], "")
		instructions[strings.TrimPrefix(name, "github.com/idempotent-go/")] += n
	}
	if len(instructions) == 0 {
		return nil, fmt.Errorf("icount: no function in callgrind_annotate's output")
	}
	return instructions, nil
}
