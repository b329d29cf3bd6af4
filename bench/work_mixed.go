package bench

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// mixedWorkload is a service's day: most calls repeat recent keys, some are
// new, windows end all the time.
func mixedWorkload() Workload {
	return Workload{Name: "mixed", Title: "90 % replays, 10 % new keys, zipf, window 1 s", Heavy: true,
		About: "Two callers. A run is unexpected when the key's last one ended less than its window before.",
		Metrics: []Metric{
			{Name: "time", Unit: "ns/call, wall time over calls"},
			{Name: "allocs", Unit: "allocs/call"},
			{Name: "bytes", Unit: "B/call"},
			{Name: "unexpected", Unit: "unexpected runs", Exact: true},
		},
		Peers: expiring(),
		Run:   func(p Peer, s Scale) Sample { return mixed(p, s.Mixed) }}
}

// ranks are draws from a zipf distribution, made once: how far behind the newest
// key a repeated one is.
var ranks = sync.OnceValue(func() []int32 {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, 100_000)
	drawn := make([]int32, 1<<16)
	for i := range drawn {
		drawn[i] = int32(zipf.Uint64())
	}
	return drawn
})

type mixture struct {
	Runner[string, Value]
	keys       Keys
	ends       []atomic.Int64 // by key: when its last run ended, in ns since start; 0 = none
	start      time.Time
	newest     atomic.Int64
	calls      atomic.Int64
	unexpected atomic.Int64
}

const mixedWindow = time.Second

func mixed(p Peer, length time.Duration) Sample {
	const callers = 2
	keys := keysOf(int(length.Seconds() * 1_000_000)) // more new ones than any peer gets through
	m := &mixture{keys: keys, ends: make([]atomic.Int64, keys.Len()),
		Runner: p.Strings(Config{TTL: mixedWindow, Keys: 500_000})}
	defer m.Close()
	c := measure(1, func() {
		m.start = time.Now()
		together(callers, func(caller int) { m.call(random(caller), length) })
	})
	calls := float64(m.calls.Load())
	return Sample{"time": c.ns / calls, "allocs": thousandths(c.allocs / calls), "bytes": thousandths(c.bytes / calls),
		"unexpected": float64(m.unexpected.Load())}
}

// call goes on for as long as there are new keys.
func (m *mixture) call(draw random, length time.Duration) {
	const batch = 256
	ranks := ranks()
	var i int64
	effect := func(context.Context) (Value, error) { return m.effect(i) }
	for time.Since(m.start) < length {
		for range batch {
			if draw.below(10) == 0 {
				i = m.newest.Add(1)
				if int(i) >= m.keys.Len() {
					return
				}
			} else {
				i = max(0, m.newest.Load()-int64(ranks[draw.below(len(ranks))]))
			}
			must(m.Do(background, m.keys.At(int(i)), effect))
		}
		m.calls.Add(batch)
	}
}

func (m *mixture) effect(i int64) (Value, error) {
	now := int64(time.Since(m.start))
	if last := m.ends[i].Swap(now); last != 0 && now < last+int64(mixedWindow) {
		m.unexpected.Add(1)
	}
	return Value{Receipt: i}, nil
}
