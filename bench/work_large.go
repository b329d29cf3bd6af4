package bench

import (
	"context"
	"time"
)

// largeWorkload fills a peer and weighs it.
func largeWorkload() Workload {
	return Workload{Name: "large", Title: "1 million kept keys", Heavy: true,
		About: "Keys of 36 bytes, values of 16, put in by one caller; their own bytes are counted. " +
			"Then all are replayed in random order by two callers.",
		Metrics: []Metric{
			{Name: "slowest", Unit: "ms, slowest call while growing"},
			{Name: "bytes", Unit: "B/key", Exact: true},
			{Name: "gc", Unit: "ms/GC"},
			{Name: "time", Unit: "ns/replay, 2 callers"},
			{Name: "runs", Unit: "runs beyond the first", Exact: true},
		},
		Peers: append(Peers(), nothingPeer()),
		Run:   func(p Peer, s Scale) Sample { return large(p, s.Kept) }}
}

func large(p Peer, n int) Sample {
	keys := keysOf(n)
	before := live()
	r := p.Strings(Config{TTL: DefaultWindow, Keys: n})
	defer r.Close()
	var first counted
	worst := fillTimed(r, keys, n, first.effect)
	sample := Sample{"slowest": milliseconds(worst)}
	if p.Name == Nothing {
		return sample
	}
	sample["bytes"] = (live() - before) / float64(n)
	sample["gc"] = collection()
	callers := 2
	if p.Floor {
		callers = 1
	}
	counts := make([]counted, callers)
	c := measure(n, func() {
		together(callers, func(caller int) {
			effect, draw := counts[caller].effect, random(caller)
			for range n / callers {
				must(r.Do(background, keys.At(draw.below(n)), effect))
			}
		})
	})
	sample["time"] = c.ns
	sample["runs"] = float64(first.runs - n + sumRuns(counts))
	return sample
}

// fillTimed calls each key for the first time and returns the slowest call.
func fillTimed(r Runner[string, Value], keys Keys, n int, effect Effect[Value]) (worst time.Duration) {
	for i := range n {
		key := keys.Own(i)
		start := time.Now()
		must(r.Do(background, key, effect))
		worst = max(worst, time.Since(start))
	}
	return worst
}

// nothing runs every effect. What its calls cost is the machine's noise.
type nothing struct{}

func (nothing) Do(ctx context.Context, _ string, effect Effect[Value]) (Value, error) {
	return effect(ctx)
}
func (nothing) Fill(time.Time, int, func(int) string, func(int) Value) {}
func (nothing) Close()                                                 {}

// Nothing is the name of the peer that keeps nothing.
const Nothing = "nothing kept (the machine's noise)"

func nothingPeer() Peer {
	return Peer{Name: Nothing, Floor: true, Strings: func(Config) Runner[string, Value] { return nothing{} }}
}
