package bench

import "time"

// GrowthWorkload measures a peer that keeps n keys.
func GrowthWorkload(n int) Workload {
	return Workload{Name: "growth", Title: "Growth", Heavy: true,
		About: "Keys of 36 bytes, values of 16. Replay: one caller, random order. Cold: one caller's next 100,000 new keys. " +
			"Pause: the slowest replay while further results end at one instant.",
		Metrics: []Metric{
			{Name: "replay", Unit: "ns/replay"},
			{Name: "cold", Unit: "ns/cold call"},
			{Name: "bytes", Unit: "B/key"},
			{Name: "gc", Unit: "ms/GC"},
			{Name: "pause", Unit: "ms, slowest replay"},
			{Name: "slowest", Unit: "ms, slowest call while growing"},
			{Name: "runs", Unit: "runs beyond the first", Exact: true},
		},
		Peers: growthPeers(),
		Run:   func(p Peer, s Scale) Sample { return growth(p, n, s) }}
}

func growthPeers() (peers []Peer) {
	for _, p := range Peers() {
		switch p.Name {
		case Ours, Otter, Xsync, Port, BareMap:
			peers = append(peers, p)
		}
	}
	return append(peers, nothingPeer())
}

func growth(p Peer, n int, s Scale) Sample {
	more := min(n, s.Growth[len(s.Growth)-1]/200) // 100,000 beside 20 million
	keys := keysOf(n + more + s.Expire)
	before := live()
	r := p.Strings(Config{TTL: DefaultWindow, Keys: n + more + s.Expire})
	defer r.Close()
	var count counted
	sample := Sample{"slowest": milliseconds(fillTimed(r, keys, n, count.effect))}
	if p.Name != Nothing {
		sample["bytes"] = (live() - before) / float64(n)
		sample["gc"] = collection()
		sample["replay"] = randomReplay(r, keys, n, s.Replays, count.effect)
		sample["cold"] = measure(more, func() {
			for i := n; i < n+more; i++ {
				must(r.Do(background, keys.At(i), count.effect))
			}
		}).ns
		sample["runs"] = float64(count.runs - n - more)
	}
	sample["pause"] = milliseconds(pause(r, keys, n+more, s.Expire))
	return sample
}

func randomReplay(r Runner[string, Value], keys Keys, n, calls int, effect Effect[Value]) float64 {
	var draw random
	return measure(calls, func() {
		for range calls {
			must(r.Do(background, keys.At(draw.below(n)), effect))
		}
	}).ns
}

// pause lets further results end at one instant, beside those that stay. How
// long filling takes is tried out first, so that none ends before all are in.
func pause(r Runner[string, Value], keys Keys, kept, n int) time.Duration {
	f := r.(Filler[string, Value])
	few := max(n/20, 1)
	further := func(i int) string { return keys.Own(kept + i) }
	start := time.Now()
	f.Fill(start.Add(DefaultWindow), few, further, valueOf)
	window := 2*time.Duration(n/few)*time.Since(start) + 500*time.Millisecond
	if s, ok := r.(Sweeper); ok {
		s.Sweep(time.Second)
	}
	for ; ; window *= 2 {
		end := time.Now().Add(window)
		f.Fill(end, n-few, func(i int) string { return further(few + i) }, valueOf)
		if time.Until(end) > 350*time.Millisecond {
			return slowestReplay(r, end, end, keys.At)
		}
		time.Sleep(time.Until(end)) // it took too long: again when they have ended
	}
}
