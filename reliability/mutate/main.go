// Mutate changes the root package, one small change at a time, and asks the
// tests whether they notice.
//
//	go run ./mutate all  [-files claims.go,...] [-log FILE]   every mutant; goes on where the log ends
//	go run ./mutate kept [-only NAME] [-every]                the kept concurrency mutants
//	go run ./mutate list [-files claims.go,...]
//
// The files themselves stay as they are: the go command is given an overlay.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: mutate all|kept|list [flags]")
		os.Exit(2)
	}
	flags := flag.NewFlagSet("mutate", flag.ExitOnError)
	root := flags.String("root", "..", "folder of the root package")
	files := flags.String("files", "endpoint.go,claims.go,claimset.go,line.go,ttl.go,ledger.go,shelf.go,sweep.go", "files to change")
	log := flags.String("log", "mutation.log", "results; a run goes on where it ends")
	workers := flags.Int("workers", 2, "mutants at one time")
	timeout := flags.Duration("timeout", time.Minute, "a layer's, after which a mutant counts as killed")
	only := flags.String("only", "", "kept mutants whose name contains this")
	every := flags.Bool("every", false, "every layer for every kept mutant, not only the one that is to kill it")
	flags.Parse(os.Args[2:])
	abs, err := filepath.Abs(*root)
	if err == nil {
		switch os.Args[1] {
		case "list":
			err = list(abs, strings.Split(*files, ","))
		case "all":
			err = all(ctx, abs, strings.Split(*files, ","), *log, *workers, *timeout)
		case "kept":
			err = runKept(ctx, abs, *only, *every, *timeout)
		default:
			err = fmt.Errorf("no such command: %s", os.Args[1])
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func list(root string, files []string) error {
	mutants, err := collect(root, files)
	for _, m := range mutants {
		fmt.Println(m)
	}
	return err
}

func collect(root string, files []string) (mutants []mutant, err error) {
	for _, file := range files {
		more, err := mutantsOf(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		mutants = append(mutants, more...)
	}
	// The same change twice in one function needs a number to tell them apart.
	seen := make(map[string]int)
	for i := range mutants {
		id := mutants[i].id()
		if seen[id]++; seen[id] > 1 {
			mutants[i].fn += fmt.Sprintf("#%d", seen[id])
		}
	}
	return mutants, nil
}

// tallyOf counts results by kind.
type tallyOf struct {
	mu        sync.Mutex
	log       *os.File
	began     time.Time
	total     int
	done      map[string]string // by id: "killed by ..." or "survived"
	fresh     int
	explained map[string]string
}

// all runs every mutant that the log does not know yet.
func all(ctx context.Context, root string, files []string, logFile string, workers int, timeout time.Duration) error {
	logFile, err := filepath.Abs(logFile)
	if err != nil {
		return err
	}
	mutants, err := collect(root, files)
	if err == nil {
		mutants, err = viable(root, mutants)
	}
	if err != nil {
		return err
	}
	t := &tallyOf{began: time.Now(), total: len(mutants), done: make(map[string]string)}
	if t.explained, err = readPairs(filepath.Join(root, "reliability", "mutate", "survivors.txt")); err != nil {
		return err
	}
	known, err := readPairs(logFile)
	if err != nil {
		return err
	}
	if t.log, err = os.OpenFile(logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
		return err
	}
	defer t.log.Close()
	var todo []mutant
	for _, m := range mutants {
		if result, ok := known[m.id()]; ok {
			t.done[m.id()] = result
		} else {
			todo = append(todo, m)
		}
	}
	fmt.Printf("%d viable mutants, %d judged before\n", len(mutants), len(t.done))
	for part := range slices.Chunk(todo, 300) {
		if err = judgeAll(ctx, bench{root: root, timeout: timeout, limits: make(map[string]time.Duration)}, part, workers, t); err != nil || ctx.Err() != nil {
			break
		}
	}
	t.summary(mutants, ctx.Err() != nil)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// judgeAll builds the layers once and runs them for each mutant.
func judgeAll(ctx context.Context, b bench, mutants []mutant, workers int, t *tallyOf) (err error) {
	if b.scratch, err = os.MkdirTemp("", "mutate"); err != nil {
		return err
	}
	defer os.RemoveAll(b.scratch)
	bins, err := b.buildAll(ctx, mutants, func(l layer) bool { return !l.race }) // too slow for what it adds here
	if err != nil {
		return err
	}
	numbers := make(chan int, len(mutants))
	for i := range mutants {
		numbers <- i
	}
	close(numbers)
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		wg.Go(func() {
			for i := range numbers {
				result, err := b.judge(ctx, bins, i+1)
				if err != nil {
					errs[w] = err
					return
				}
				t.add(mutants[i], result)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// judge asks one layer after another about a mutant.
func (b bench) judge(ctx context.Context, bins map[string]string, mutant int) (string, error) {
	for _, l := range layers {
		if bins[l.name] == "" {
			continue
		}
		v, err := b.run(ctx, l, bins[l.name], mutant)
		if err != nil {
			return "", err
		}
		if v.killed {
			return fmt.Sprintf("killed by %s: %s", l.name, v.how), nil
		}
	}
	return "survived", nil
}

func (t *tallyOf) add(m mutant, result string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done[m.id()] = result
	t.fresh++
	fmt.Fprintf(t.log, "%s\t%s\n", m.id(), result)
	if result == "survived" {
		fmt.Println("SURVIVED", m)
	}
	if t.fresh%10 == 0 {
		rest := time.Duration(float64(time.Since(t.began)) / float64(t.fresh) * float64(t.total-len(t.done)))
		fmt.Printf("%s  %d of %d mutants, about %v to go\n", time.Now().Format(time.TimeOnly), len(t.done), t.total, rest.Round(time.Second))
	}
}

// summary prints how far the run came, file by file.
func (t *tallyOf) summary(mutants []mutant, stopped bool) {
	type count struct{ viable, killed, explained int }
	counts := make(map[string]*count)
	var order []string
	for _, m := range mutants {
		c := counts[m.file]
		if c == nil {
			c = new(count)
			counts[m.file], order = c, append(order, m.file)
		}
		switch result := t.done[m.id()]; {
		case strings.HasPrefix(result, "killed"):
			c.viable++
			c.killed++
		case result == "survived":
			c.viable++
			if why, ok := t.explained[m.id()]; ok {
				c.explained++
				fmt.Printf("survivor %s: %s\n", m, why)
			} else {
				fmt.Printf("survivor %s: NOT EXPLAINED\n", m)
			}
		}
	}
	if stopped {
		fmt.Print("stopped; ")
	}
	fmt.Printf("%d of %d mutants judged\n", len(t.done), t.total)
	for _, file := range order {
		c := counts[file]
		fmt.Printf("%-12s %4d viable, %4d killed = %.1f %%, %d of %d survivors explained\n",
			file, c.viable, c.killed, 100*float64(c.killed)/float64(max(c.viable, 1)), c.explained, c.viable-c.killed)
	}
}

// readPairs reads lines of "id TAB text". A file that is not there is empty.
func readPairs(path string) (map[string]string, error) {
	pairs := make(map[string]string)
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return pairs, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if id, text, ok := strings.Cut(lines.Text(), "\t"); ok {
			pairs[id] = text
		}
	}
	return pairs, lines.Err()
}
