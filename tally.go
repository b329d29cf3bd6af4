package idempotent

import (
	"sync/atomic"
	"unsafe"
)

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

// stackHash is a number that differs between goroutines that run at one time,
// for the most part, and costs next to nothing. Nothing is read through the
// pointer.
func stackHash() uint64 {
	var here byte
	return uint64(uintptr(unsafe.Pointer(&here))) * 0x9e3779b97f4a7c15 >> 40
}
