package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotent-go/idempotent"
)

// do is Endpoint.Do, or what a test puts in its place.
type do func(ctx context.Context, key int, effect func(context.Context) (int, error)) (int, idempotent.Verdict, error)

// What became of a call: its verdict, with the failed effects by themselves.
const (
	executed = iota
	failed
	replayed
	shared
	refused
	outcomes
)

var outcomeNames = [outcomes]string{"executed", "failed", "replayed", "shared", "refused"}

// load is a run of the callers and what it has found.
type load struct {
	settings
	do   do
	next atomic.Int64 // call to be made

	committed []atomic.Uint32 // effects that succeeded, for each key
	running   []atomic.Int32  // effects that run, for each key

	doubled, overlapped, wrong atomic.Int64

	callers []caller
}

// caller's figures are its own until it has ended, but for calls.
type caller struct {
	calls     atomic.Int64
	latencies [outcomes]histogram
	_         [64]byte // the next one's calls are not on the same cache line
}

func newLoad(s settings, do do) *load {
	return &load{
		settings:  s,
		do:        do,
		committed: make([]atomic.Uint32, s.keys+1),
		running:   make([]atomic.Int32, s.keys+1),
		callers:   make([]caller, s.callers),
	}
}

// run makes the calls until all are made, the time is over or ctx ends, and says
// how long that took.
func (l *load) run(ctx context.Context, progress io.Writer) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	begun := time.Now()
	var callers sync.WaitGroup
	for i := range l.callers {
		callers.Go(func() { l.call(ctx, &l.callers[i]) })
	}
	done := make(chan struct{})
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		l.show(progress, begun, done)
	}()
	callers.Wait()
	took := time.Since(begun)
	close(done)
	<-shown
	return took
}

// block is the keys whose calls are mixed.
const block = 512

// keyOf is the key of the n-th call; 0 when there is no such call in its block.
// A block's keys get their first call and one duplicate side by side, so that
// the two meet, and their other duplicates one after another later.
func (l *load) keyOf(n int64) int {
	calls := int64(l.duplicates + 1)
	near := min(calls, 2)
	first, r := n/(block*calls)*block, n%(block*calls)
	index := first + r/near
	if r >= block*near {
		index = first + (r-block*near)%block
	}
	if index >= int64(l.keys) {
		return 0
	}
	return 1 + int(index)
}

// lastCall is how many calls there are, with those of the last block that have no key.
func (l *load) lastCall() int64 {
	return (int64(l.keys) + block - 1) / block * block * int64(l.duplicates+1)
}

// call is one caller.
func (l *load) call(ctx context.Context, c *caller) {
	last := l.lastCall()
	for ctx.Err() == nil {
		n := l.next.Add(1) - 1
		if n >= last {
			return
		}
		if key := l.keyOf(n); key != 0 {
			l.deliver(ctx, c, key)
		}
	}
}

// deliver calls until it succeeds or ctx ends.
func (l *load) deliver(ctx context.Context, c *caller, key int) {
	for {
		begun := time.Now()
		value, verdict, err := l.do(ctx, key, func(context.Context) (int, error) { return key, l.effect(key) })
		c.latencies[outcomeOf(verdict, err)].add(time.Since(begun))
		c.calls.Add(1)
		if err == nil && (value != key || l.committed[key].Load() == 0) {
			l.wrong.Add(1)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
	}
}

func outcomeOf(verdict idempotent.Verdict, err error) int {
	switch verdict {
	case idempotent.Executed:
		if err != nil {
			return failed
		}
		return executed
	case idempotent.Replayed:
		return replayed
	case idempotent.Shared:
		return shared
	}
	return refused
}

var errNow = errors.New("the effect fails now and then")

// effect notices when it runs beside itself or after it has succeeded.
func (l *load) effect(key int) error {
	if l.running[key].Add(1) > 1 {
		l.overlapped.Add(1)
	}
	defer l.running[key].Add(-1)
	if l.settings.effect > 0 {
		time.Sleep(l.settings.effect)
	}
	if l.fail > 0 && rand.Float64() < l.fail {
		return errNow
	}
	if l.committed[key].Add(1) > 1 {
		l.doubled.Add(1)
	}
	return nil
}

// calls made so far.
func (l *load) calls() (n int64) {
	for i := range l.callers {
		n += l.callers[i].calls.Load()
	}
	return n
}

// show writes a line each second until done.
func (l *load) show(out io.Writer, begun time.Time, done <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	before, total := int64(0), l.lastCall()
	for {
		select {
		case <-done:
			return
		case now := <-tick.C:
			calls := l.calls()
			fmt.Fprintf(out, "%4.0f s  %3d%%  %s calls, %s/s, %d doubled\n", now.Sub(begun).Seconds(),
				100*min(l.next.Load(), total)/total, count(calls), count(calls-before), l.doubled.Load()+l.overlapped.Load())
			before = calls
		}
	}
}
