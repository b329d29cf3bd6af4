package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// layer is a test binary and how to run it.
type layer struct {
	name string
	pkg  string // below the root's folder
	race bool
	args []string
}

// The first are the fastest.
var layers = []layer{
	{name: byOrder, pkg: ".", args: []string{"-test.run=Interleavings", "-interleave.seeds=5000"}},
	{name: byMachine, pkg: "./reliability/machine", args: []string{"-rapid.checks=2000", "-rapid.nofailfile", "-rapid.shrinktime=1s"}},
	{name: byContract, pkg: ".", args: []string{"-test.short", "-test.skip=Interleavings", "-test.failfast"}},
	{name: byHistories, pkg: "./reliability/linear", args: []string{"-ops=2000000"}},
	{name: byHistoriesR, pkg: "./reliability/linear", race: true, args: []string{"-ops=300000"}},
	{name: byLoad, pkg: "./reliability/load", args: []string{"-load.for=3s"}},
}

// verdict is what a layer said about a mutant.
type verdict struct {
	killed bool
	how    string // "after 1,234 operations", "timeout", ...
	output string
}

// bench is where mutants are built: the root's folder and a scratch folder.
type bench struct {
	root, scratch string
	timeout       time.Duration            // the longest that a layer may take
	limits        map[string]time.Duration // shorter ones, by the layer's name
}

// hangs is how many times as long as on the code as it is a layer may take: the
// workers share the processors, and a lock that is never released must not
// take a minute of each layer.
const hangs = 8

// build compiles a layer's test binary under an overlay.
func (b bench) build(ctx context.Context, l layer, overlay string) (bin string, err error) {
	bin = filepath.Join(b.scratch, strings.NewReplacer("/", "_", ".", "root").Replace(l.pkg)+fmt.Sprint(l.race)+".test")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil // another layer's too
	}
	args := []string{"test", "-c", "-vet=off", "-o", bin, "-overlay=" + overlay}
	if l.race {
		args = append(args, "-race")
	}
	dir := filepath.Join(b.root, l.pkg)
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go test -c in %s: %v\n%s", dir, err, out)
	}
	return bin, nil
}

// buildAll compiles the layers that use picks, and runs them with no mutant
// chosen: a layer that is red anyway would kill everything.
func (b bench) buildAll(ctx context.Context, mutants []mutant, use func(layer) bool) (bins map[string]string, err error) {
	overlay, err := b.weave(mutants)
	if err != nil {
		return nil, err
	}
	bins = make(map[string]string)
	for _, l := range layers {
		if !use(l) {
			continue
		}
		if bins[l.name], err = b.build(ctx, l, overlay); err != nil {
			return nil, err
		}
		began := time.Now()
		v, err := b.run(ctx, l, bins[l.name], 0)
		if err != nil {
			return nil, err
		}
		if v.killed {
			return nil, fmt.Errorf("%s fails on the code as it is: %s\n%s", l.name, v.how, v.output)
		}
		b.limits[l.name] = min(b.timeout, hangs*time.Since(began)+10*time.Second)
	}
	return bins, nil
}

var afterCount = regexp.MustCompile(`after [\d,]+ (?:operations|interleavings)|(\d+) interleavings, \d+ operations|(\d+) runs, \d+ actions|WARNING: DATA RACE|test timed out|an interleaving hangs|fatal error: [^\n]*|deadlock[^\n]*|--- FAIL: [\w/]+`)

// run runs a layer's binary with one mutant chosen.
func (b bench) run(ctx context.Context, l layer, bin string, mutant int) (verdict, error) {
	timeout := b.timeout
	if limit, ok := b.limits[l.name]; ok {
		timeout = limit
	}
	limited, cancel := context.WithTimeout(ctx, timeout+10*time.Second)
	defer cancel()
	args := append([]string{"-test.v", "-test.timeout=" + timeout.String()}, l.args...)
	cmd := exec.CommandContext(limited, bin, args...)
	cmd.Dir, cmd.Env = filepath.Join(b.root, l.pkg), append(os.Environ(), fmt.Sprint("MUTANT=", mutant))
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return verdict{}, ctx.Err()
	}
	v := verdict{killed: err != nil, output: string(out)}
	if v.killed {
		v.how = how(string(out))
	}
	return v, nil
}

// how sums up why a binary failed: the first count, and the first failed test.
func how(out string) string {
	var parts []string
	for _, m := range afterCount.FindAllString(out, -1) {
		if len(parts) == 0 || len(parts) == 1 && !strings.HasPrefix(parts[0], m[:5]) {
			parts = append(parts, strings.TrimPrefix(m, "--- FAIL: "))
		}
	}
	if len(parts) == 0 {
		return "failed"
	}
	return strings.Join(parts, "; ")
}
