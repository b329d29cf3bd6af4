package bench

import "runtime"

var coldMetrics = []Metric{
	{Name: "time", Unit: "ns/call"},
	{Name: "allocs", Unit: "allocs/call", Exact: true},
	{Name: "bytes", Unit: "B/call", Exact: true},
	{Name: "runs", Unit: "runs/key", Exact: true},
}

func coldWorkloads() []Workload {
	return []Workload{
		{Name: "cold", Title: "Cold call: one caller", About: "New string keys, one after the other, into an empty peer; the key's own bytes are not counted.",
			Metrics: coldMetrics, Peers: Peers(), Run: func(p Peer, s Scale) Sample { return cold(p, s.Cold, 1) }},
		{Name: "cold-large", Title: "Cold call: a million keys", About: "The same up to a million keys, beyond any cache.", Heavy: true,
			Metrics: coldMetrics, Peers: Peers(), Run: func(p Peer, s Scale) Sample { return cold(p, s.Kept, 1) }},
		{Name: "cold-32", Title: "Cold call: 32 callers", About: "The same by 32 callers at once, each with keys of its own.",
			Metrics: coldMetrics, Peers: concurrent(), Run: func(p Peer, s Scale) Sample { return cold(p, s.Cold, manyCaller) }},
	}
}

func cold(p Peer, n, callers int) Sample {
	keys := keysOf(n)
	r := p.Strings(Config{TTL: DefaultWindow, Keys: n})
	defer r.Close()
	counts := make([]counted, callers)
	each := n / callers
	c := measure(each*callers, func() {
		together(callers, func(caller int) {
			effect := counts[caller].effect
			for i := caller * each; i < (caller+1)*each; i++ {
				must(r.Do(background, keys.At(i), effect))
			}
		})
	})
	return Sample{"time": c.ns, "allocs": c.allocs, "bytes": c.bytes, "runs": float64(sumRuns(counts)) / float64(each*callers)}
}

// emptyWorkload weighs a peer that keeps nothing.
func emptyWorkload() Workload {
	return Workload{Name: "empty", Title: "An empty peer", About: "Heap of one that has just been made, of 100.",
		Once:    true,
		Metrics: []Metric{{Name: "heap", Unit: "KiB", Exact: true}, {Name: "goroutines", Unit: "goroutines", Exact: true}}, Peers: Peers(),
		Run: func(p Peer, _ Scale) Sample {
			const n = 100
			runners := make([]Runner[string, Value], n)
			before, goroutines := live(), runtime.NumGoroutine()
			for i := range runners {
				runners[i] = p.Strings(Config{TTL: DefaultWindow})
			}
			more := runtime.NumGoroutine() - goroutines
			heap := live() - before
			for _, r := range runners {
				r.Close()
			}
			return Sample{"heap": thousandths(heap / n / 1024), "goroutines": float64(more) / n}
		}}
}
