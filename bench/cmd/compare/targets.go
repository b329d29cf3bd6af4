package main

import (
	"fmt"
	"math"

	"github.com/idempotent-go/idempotent/bench"
)

// A target is a bound that the endpoint set itself before it was measured.
type target struct {
	what    string
	limit   float64
	atLeast bool // the limit is a lower one
	unit    string
	got     summary
}

func (t target) met() bool {
	if t.atLeast {
		return t.got.median >= t.limit
	}
	return t.got.median <= t.limit
}

// targets are the bounds with what this run has to say to them. Those whose
// workloads were not run are left out.
func (r *results) targets() (measured []target) {
	for _, t := range r.allTargets() {
		if t.got.n > 0 {
			measured = append(measured, t)
		}
	}
	return measured
}

func (r *results) allTargets() []target {
	ours := func(workload, metric string) figure { return figure{workload, bench.Ours, metric} }
	beside := func(what string, limit float64, f figure, peer string) target {
		return target{what: fmt.Sprintf("%s, beside %s", what, peer), limit: limit, unit: "×", got: r.ratio(f, figure{f.workload, peer, f.metric})}
	}
	exactly := func(what, unit string, limit float64, f figure) target {
		return target{what: what, limit: limit, unit: unit, got: r.summary(f)}
	}
	replay, replay32, hot := ours("replay", "time"), ours("replay-32", "time"), ours("replay-hot", "time")
	coldLarge := ours("cold-large", "time")
	cold, share := ours("cold", "time"), figure{"failing", bench.OursShare, "time"}
	perWaiter := func(v []float64) float64 { return v[0] / 1000 }
	all := []target{
		beside("replay, one caller", 0.45, replay, bench.Otter),
		beside("replay, one caller", 0.80, replay, bench.OtterCoarse),
		beside("replay, one caller", 0.40, replay, bench.Port),
		beside("replay, one caller", 2.2, replay, bench.BareMap),
		exactly("replay", "allocs", 0, ours("replay", "allocs")),
		beside("replay, 32 callers", 0.50, replay32, bench.Otter),
		beside("replay, 32 callers", 0.75, replay32, bench.OtterCoarse),
		beside("replay, 32 callers", 0.12, replay32, bench.Port),
		beside("replay, 32 callers on one hot key", 0.5, hot, bench.OtterCoarse),
		{what: "replay, gain from the other cores", limit: 1.5, atLeast: true, unit: "×", got: r.ratio(replay, replay32)},
		beside("1 M keys, random replay", 0.65, ours("large", "time"), bench.Otter),
		beside("replay with a fingerprint", 1.25, figure{"replay", bench.OursFingerprint, "time"}, bench.Ours),
		beside("cold call, 200,000 keys", 1.4, cold, bench.BareMap),
		beside("cold call, 200,000 keys", 0.35, cold, bench.Otter),
		beside("cold call, 200,000 keys", 0.80, cold, bench.Xsync),
		beside("cold call, 200,000 keys", 0.55, cold, bench.Port),
		beside("cold call, 1 M keys", 1.4, coldLarge, bench.BareMap),
		beside("cold call, 1 M keys", 0.35, coldLarge, bench.Otter),
		beside("cold call, 1 M keys", 0.80, coldLarge, bench.Xsync),
		beside("cold call, 1 M keys", 0.55, coldLarge, bench.Port),
		exactly("cold call", "allocs", 1, ours("cold", "allocs")),
		exactly("cold call", "B", 120, ours("cold", "bytes")),
		exactly("kept result, 1 M", "B/key", 120, ours("large", "bytes")),
		beside("kept result, 1 M", 0.85, ours("large", "bytes"), bench.Otter),
		exactly("empty endpoint", "KiB", 32, ours("empty", "heap")),
		beside("garbage collection, 1 M kept", 0.6, ours("large", "gc"), bench.Otter),
		exactly("1 M end in the time it took to keep them: slowest replay", "ms", 2, ours("expire", "slowest")),
		exactly("1 M end in the time it took to keep them: held 0.2 s later, idle", "%", 10, ours("expire", "held")),
		exactly("1 M end at one instant: slowest replay", "ms", 2, ours("expire-instant", "slowest")),
		exactly("1 M end at one instant: held 0.2 s later, idle", "%", 10, ours("expire-instant", "held")),
		exactly("large results end: held 0.2 s later, idle", "%", 10, ours("blobs", "held")),
		r.growingTarget("growing to 1 M", "large"),
		exactly("storm of 1,000", "runs", 1, ours("storm", "runs")),
		beside("storm of 1,000", 1.25, ours("storm", "time"), bench.Channel),
		exactly("failing effect, 1,000 waiters, ShareFailure", "runs", 1, figure{"failing", bench.OursShare, "runs"}),
		{what: "failing effect, 1,000 waiters, ShareFailure", limit: 1, unit: "µs a waiter", got: r.combine(perWaiter, share)},
		{what: "failing effect, 1,000 waiters, hand-over beside waking all (" + bench.Port + ")", limit: 0.8, unit: "×",
			got: r.ratio(ours("failing", "time"), figure{"failing", bench.Port, "time"})},
		beside("90 % replays, 10 % new", 0.55, ours("mixed", "time"), bench.Otter),
		beside("90 % replays, 10 % new", 0.80, ours("mixed", "time"), bench.Xsync),
		exactly("90 % replays, 10 % new", "unexpected runs", 0, ours("mixed", "unexpected")),
	}
	return append(all, r.growthTargets()...)
}

// growingTarget bounds the slowest call by 10 ms or twice the machine's noise.
func (r *results) growingTarget(what, workload string) target {
	bound := func(v []float64) float64 { return v[0] / math.Max(10, 2*v[1]) }
	return target{what: what + ": slowest call, of 10 ms or twice the machine's noise", limit: 1, unit: "×",
		got: r.combine(bound, figure{workload, bench.Ours, "slowest"}, figure{workload, bench.Nothing, "slowest"})}
}

func (r *results) growthTargets() (targets []target) {
	if len(r.Scale.Growth) == 0 {
		return nil
	}
	few, most := r.Scale.Growth[0], r.Scale.Growth[len(r.Scale.Growth)-1]
	for _, n := range r.Scale.Growth[1:] {
		kept := fmt.Sprintf("kept result, %s", count(n))
		f := figure{growthID(n), bench.Ours, "bytes"}
		targets = append(targets, target{what: kept, limit: 120, unit: "B/key", got: r.summary(f)},
			target{what: kept + ", beside " + bench.Otter, limit: 0.85, unit: "×", got: r.ratio(f, figure{f.workload, bench.Otter, "bytes"})})
	}
	targets = append(targets, r.growingTarget("growing to "+count(most), growthID(most)))
	for _, metric := range []string{"replay", "cold"} {
		targets = append(targets, target{
			what:  fmt.Sprintf("%s from %s to %s, growth beside that of a %s", metric, count(few), count(most), bench.BareMap),
			limit: 1, unit: "×",
			got: r.combine(func(v []float64) float64 { return v[0] / v[1] / (v[2] / v[3]) },
				figure{growthID(most), bench.Ours, metric}, figure{growthID(few), bench.Ours, metric},
				figure{growthID(most), bench.BareMap, metric}, figure{growthID(few), bench.BareMap, metric}),
		})
	}
	return targets
}

// count writes a number of keys: 10 k, 20 M.
func count(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return fmt.Sprintf("%d M", n/1_000_000)
	case n >= 1000 && n%1000 == 0:
		return fmt.Sprintf("%d k", n/1000)
	}
	return fmt.Sprint(n)
}
