package idempotent

import "sync/atomic"

// tally counts what happens outside every lock. One counter would be a cache
// line that all callers fight for, so there are several, picked by the caller's
// stack: another one for each goroutine, mostly.
type tally struct {
	counts [2]atomic.Uint64
	_      [112]byte // two cache lines: they are fetched in pairs
}

const tallies = 16

const (
	replayed = iota
	refused
)

func (e *Endpoint[K, V]) tally(what int) {
	e.tallies[stackHash()%tallies].counts[what].Add(1)
}
