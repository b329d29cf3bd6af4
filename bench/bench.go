// Package bench puts the endpoint beside what a Go user would otherwise take:
// the same workloads, each library in its best honest shape behind one small
// interface. The command cmd/compare runs them interleaved and writes
// BENCHMARKS.md; cmd/icount counts instructions.
package bench

import (
	"context"
	"errors"
	"strconv"
	"time"
)

// An Effect is what must happen once.
type Effect[V any] = func(context.Context) (V, error)

// A Runner gives each key's effect to its first caller, and its result to all
// others, as well as the library behind it can.
type Runner[K comparable, V any] interface {
	Do(ctx context.Context, key K, effect Effect[V]) (V, error)
	// Close stops the library's goroutines and lets go of what it kept.
	Close()
}

// A Filler can keep results whose windows all end at one instant. A Runner
// without it has one window for all results.
type Filler[K comparable, V any] interface {
	Fill(end time.Time, n int, key func(i int) K, value func(i int) V)
}

// A Sweeper lets the interval of its sweeps be changed.
type Sweeper interface{ Sweep(every time.Duration) }

// A Config says what a workload needs. A library that must have a bound gets
// one that the workload does not reach, unless Capacity asks for one.
type Config struct {
	TTL      time.Duration // window of a result
	Keys     int           // most keys that the workload keeps
	Capacity int           // most keys that may be kept; 0 = no bound wanted
}

// bound is the maximum for libraries that cannot do without.
func (c Config) bound() int {
	if c.Capacity > 0 {
		return c.Capacity
	}
	return max(2*c.Keys, 10_000)
}

// sweepEvery is the interval of sweepers that have one to choose: often enough
// to give memory back soon after the window, seldom enough to cost little.
func (c Config) sweepEvery() time.Duration {
	return min(max(c.TTL/4, 250*time.Millisecond), time.Minute)
}

// A Value is a result of 16 bytes without pointers.
type Value struct{ Receipt, Cents int64 }

// errNoResult is what a caller gets where a library hands on the end of
// another's attempt without its error.
var errNoResult = errors.New("bench: the attempt that this call joined left no result")

// keyText is the key for libraries that take strings only.
func keyText[K comparable](key K) string {
	switch k := any(key).(type) {
	case string:
		return k
	case int:
		return strconv.Itoa(k)
	}
	panic("bench: a key that is neither string nor int")
}

// A Peer is one library, or one way to do it by hand, for each type that the
// workloads use.
type Peer struct {
	Name    string
	Modules []string // what it is made of
	Strings func(Config) Runner[string, Value]
	Ints    func(Config) Runner[int, Value]
	Blobs   func(Config) Runner[string, []byte]
	Floor   bool // no lock, no window: what the machine allows, not a peer
	Promises
}

// Promises are what a peer says that it does, under test in TestPromises.
type Promises struct {
	Once        bool // no second run in the instant that the first one ends
	Bounded     bool // has a bound on the keys kept
	Refuses     bool // at the bound it refuses new keys, instead of running old ones again
	Expires     bool // a result's window ends
	WaiterLeave bool // a waiter's context ends its wait
	OneByOne    bool // waiters of a failed attempt try in turn; otherwise they share its error
	PanicFree   bool // a panic goes to its caller and leaves the key free
	GoexitFree  bool // a runtime.Goexit keeps nothing and leaves the key free
	Independent bool // a slow effect does not hold other keys up
	Stale       bool // notices a retry that comes after the window
}

// shared is the promise that all but a few have in common.
var shared = Promises{Once: true, Expires: true, PanicFree: true, GoexitFree: true, Independent: true}

// Peers returns all peers, the endpoint first and the floor last.
func Peers() []Peer {
	return []Peer{
		idempotentPeer(), otterPeer(Otter, 0), otterPeer(OtterCoarse, 10*time.Millisecond),
		xsyncPeer(), portPeer(), recheckPeer(), naivePeer(), goCachePeer(), syncMapPeer(),
		ttlcachePeer(), ristrettoPeer(), sturdycPeer(), theinePeer(), mapPeer(),
	}
}
