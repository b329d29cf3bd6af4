package main

import (
	"fmt"
	"time"
)

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
