package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// terminal shows progress: what is done, a line each, and on a screen also what
// is being done.
type terminal struct {
	io.Writer
	screen bool
}

func newTerminal(f *os.File) *terminal {
	info, err := f.Stat()
	return &terminal{f, err == nil && info.Mode()&os.ModeCharDevice != 0}
}

func (t *terminal) now(format string, args ...any) {
	if t.screen {
		fmt.Fprintf(t, "\r\033[K"+format, args...)
	}
}

func (t *terminal) done(format string, args ...any) {
	if t.screen {
		format = "\r\033[K" + format
	}
	fmt.Fprintf(t, format+"\n", args...)
}

// eta guesses the time left from what each job's rounds took so far.
type eta struct {
	start time.Time
	left  map[string]int           // rounds
	took  map[string]time.Duration // of the last one
}

func newETA(jobs []job) *eta {
	e := &eta{start: time.Now(), left: map[string]int{}, took: map[string]time.Duration{}}
	for _, j := range jobs {
		e.left[j.id] = j.rounds
	}
	return e
}

// spent takes note of a round and says what is left.
func (e *eta) spent(id string, took time.Duration) string {
	e.left[id]--
	e.took[id] = took
	var left time.Duration
	for id, rounds := range e.left {
		if _, known := e.took[id]; !known {
			return fmt.Sprintf("%v so far", time.Since(e.start).Round(time.Second))
		}
		left += time.Duration(rounds) * e.took[id]
	}
	return fmt.Sprintf("%v so far, about %v left", time.Since(e.start).Round(time.Second), left.Round(time.Second))
}
