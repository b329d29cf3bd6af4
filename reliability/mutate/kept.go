package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// runKept plants the kept mutants, one after another. It is an error if the
// layer that has to notice one does not, or if one can no longer be planted.
// With every it prints what each layer says, as a table.
func runKept(ctx context.Context, root, only string, every bool, timeout time.Duration) error {
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	b := bench{root, scratch, timeout, make(map[string]time.Duration)}
	var mutants []mutant
	for _, k := range keptMutants {
		m, err := b.find(k)
		if err != nil {
			return err
		}
		mutants = append(mutants, m)
	}
	compile, err := viable(root, slices.Clone(mutants))
	if err != nil || len(compile) < len(mutants) {
		return fmt.Errorf("only %d of %d kept mutants compile: %v", len(compile), len(mutants), err)
	}
	bins, err := b.buildAll(ctx, mutants, func(l layer) bool {
		return every || slices.ContainsFunc(keptMutants, func(k keptMutant) bool { return k.by == l.name })
	})
	if err != nil {
		return err
	}
	if every {
		fmt.Print("| planted bug | file |")
		for _, l := range layers {
			fmt.Printf(" %s |", l.name)
		}
		fmt.Print("\n|---|---|" + strings.Repeat("---|", len(layers)) + "\n")
	}
	alive, judged := 0, 0
	for i, k := range keptMutants {
		if !strings.Contains(k.name, only) {
			continue
		}
		row, killed, err := b.plant(ctx, bins, i+1, k, mutants[i].file, every)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		judged++
		if !killed {
			alive++
			row += " ALIVE"
		}
		fmt.Println(row)
	}
	fmt.Printf("\n%d of %d kept mutants judged, %d alive\n", judged, len(keptMutants), alive)
	if alive > 0 {
		return fmt.Errorf("%d kept mutants live", alive)
	}
	return nil
}

// plant runs the layers against one kept mutant. killed says that the layer that
// has to notice it did.
func (b bench) plant(ctx context.Context, bins map[string]string, number int, k keptMutant, file string, every bool) (row string, killed bool, err error) {
	row = fmt.Sprintf("| %s | %s |", k.name, file)
	for _, l := range layers {
		if !every && l.name != k.by {
			continue
		}
		v, err := b.run(ctx, l, bins[l.name], number)
		if err != nil {
			return "", false, err
		}
		cell := "–"
		if v.killed {
			cell = v.how
		}
		if l.name == k.by {
			killed = v.killed
			cell = "**" + cell + "**"
		}
		if !every {
			cell = l.name + ": " + cell
		}
		row += " " + cell + " |"
	}
	return row, killed, nil
}

// find returns a kept mutant as a change of the one root file in which its text
// stands, and stands once.
func (b bench) find(k keptMutant) (m mutant, err error) {
	paths, err := filepath.Glob(filepath.Join(b.root, "*.go"))
	if err != nil {
		return m, err
	}
	n := 0
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return m, err
		}
		if found := bytes.Count(source, []byte(k.old)); found > 0 {
			n += found
			from := bytes.Index(source, []byte(k.old))
			m = mutant{file: filepath.Base(path), fn: k.name, from: from, to: from + len(k.old), old: k.old, new: k.new}
		}
	}
	if n != 1 {
		return m, fmt.Errorf("kept mutant %q: its text stands %d times in the root's code:\n%s", k.name, n, k.old)
	}
	return m, nil
}
