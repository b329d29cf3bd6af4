package bench

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotent-go/idempotent"
)

const waiters = 1000

// spin keeps the processor for d, as an effect does that works.
func spin(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
	}
}

func stormWorkload() Workload {
	return Workload{Name: "storm", Title: "Storm: 1,000 callers on one key", About: "All start at once on a new key whose effect works for 50 µs; time until the last has its result.",
		Metrics: []Metric{{Name: "time", Unit: "µs/storm"}, {Name: "runs", Unit: "runs/storm", Exact: true}},
		Peers:   append(concurrent(), channelPeer()),
		Run: func(p Peer, s Scale) Sample {
			var took time.Duration
			var runs atomic.Int64
			for range s.Storms {
				took += storm(p, &runs)
			}
			n := float64(s.Storms)
			return Sample{"time": float64(took.Microseconds()) / n, "runs": float64(runs.Load()) / n}
		}}
}

func storm(p Peer, runs *atomic.Int64) time.Duration {
	r := p.Strings(Config{TTL: DefaultWindow, Keys: 1})
	defer r.Close()
	gate := make(chan struct{})
	var ready, done sync.WaitGroup
	ready.Add(waiters)
	for range waiters {
		done.Go(func() {
			ready.Done()
			<-gate
			must(r.Do(background, "key", func(context.Context) (Value, error) {
				runs.Add(1)
				spin(50 * time.Microsecond)
				return Value{Receipt: 1}, nil
			}))
		})
	}
	ready.Wait()
	runtime.GC()
	start := time.Now()
	close(gate)
	done.Wait()
	return time.Since(start)
}

// bareChannel is the floor of a storm: the first caller runs, the others wait
// for a channel to be closed. It knows one key.
type bareChannel struct {
	taken atomic.Bool
	done  chan struct{}
	value Value
	err   error
}

func (b *bareChannel) Do(ctx context.Context, _ string, effect Effect[Value]) (Value, error) {
	if b.taken.CompareAndSwap(false, true) {
		b.value, b.err = effect(ctx)
		close(b.done)
	} else {
		<-b.done
	}
	return b.value, b.err
}

func (b *bareChannel) Close() {}

// Channel is the name of the storm's floor.
const Channel = "bare channel"

func channelPeer() Peer {
	return Peer{Name: Channel, Floor: true, Strings: func(Config) Runner[string, Value] { return &bareChannel{done: make(chan struct{})} }}
}

// OursShare is the endpoint with ShareFailure.
const OursShare = "idempotent, ShareFailure"

func sharePeer() Peer {
	return Peer{Name: OursShare, Strings: func(c Config) Runner[string, Value] {
		return runnerOf(idempotent.Options[string, Value]{TTL: c.TTL, ShareFailure: true})
	}}
}

func failingWorkload() Workload {
	return Workload{Name: "failing", Title: "A failing effect with 1,000 waiters",
		About: "The first attempt fails when 1,000 callers wait for it; each further attempt works for 20 µs and fails too. " +
			"Time from the first failure until the last caller has an error. The 80-line port wakes all waiters at each failure; the endpoint hands over to one.",
		Metrics: []Metric{{Name: "time", Unit: "µs"}, {Name: "runs", Unit: "runs", Exact: true}},
		Peers:   append(concurrent(), sharePeer()),
		Run: func(p Peer, s Scale) Sample {
			var took time.Duration
			var runs int64
			for range s.Storms {
				t, n := failing(p)
				took, runs = took+t, runs+n
			}
			n := float64(s.Storms)
			return Sample{"time": float64(took.Microseconds()) / n, "runs": float64(runs) / n}
		}}
}

var errFailing = errors.New("bench: the effect fails")

func failing(p Peer) (time.Duration, int64) {
	r := p.Strings(Config{TTL: DefaultWindow, Keys: 1})
	defer r.Close()
	var runs, called atomic.Int64
	var failed time.Time // written by the first attempt, read when all are done
	var done sync.WaitGroup
	for range waiters + 1 {
		done.Go(func() {
			called.Add(1)
			_, err := r.Do(background, "key", func(context.Context) (Value, error) {
				if runs.Add(1) > 1 {
					spin(20 * time.Microsecond)
					return Value{}, errFailing
				}
				for called.Load() <= waiters {
					runtime.Gosched()
				}
				for range 2 * waiters { // the last ones are on their way in
					runtime.Gosched()
				}
				failed = time.Now()
				return Value{}, errFailing
			})
			if err == nil {
				panic("bench: a result of a failing effect")
			}
		})
	}
	done.Wait()
	return time.Since(failed), runs.Load()
}
