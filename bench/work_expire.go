package bench

import (
	"context"
	"time"
)

// giveUp is how long memory may take to come back.
const giveUp = 5 * time.Second

func expireWorkload() Workload {
	return Workload{Name: "expire", Title: "1 million results end at one instant", Heavy: true,
		About: "A caller replays 1,000 other keys from 0.2 s before the end until 1.5 s after it, each call timed. " +
			"Then the same with nobody calling: how much is still on the heap 0.2 s after the end, and when nine tenths are back (at most 5 s are waited). " +
			"A peer with one window for all results ends them in the order and the time that it took to fill.",
		Metrics: []Metric{
			{Name: "slowest", Unit: "ms, slowest replay"},
			{Name: "held", Unit: "% held after 0.2 s"},
			{Name: "back", Unit: "s until 90 % are back"},
		},
		Peers: append(expiring(), nothingPeer()),
		Run: func(p Peer, s Scale) Sample {
			sample := Sample{"slowest": milliseconds(slowestDuringExpiry(p, s.Kept))}
			if p.Name != Nothing {
				keys := keysOf(s.Kept)
				sample["held"], sample["back"] = heapAfterExpiry(p.Strings, s.Kept, keys.Own, valueOf)
			}
			return sample
		}}
}

func blobWorkload() Workload {
	return Workload{Name: "blobs", Title: "Large results end at one instant", Heavy: true,
		About: "Results of 4 KiB, nobody calling.",
		Metrics: []Metric{
			{Name: "held", Unit: "% held after 0.2 s"},
			{Name: "back", Unit: "s until 90 % are back"},
		},
		Peers: expiring(),
		Run: func(p Peer, s Scale) Sample {
			keys := keysOf(s.Blobs)
			held, back := heapAfterExpiry(p.Blobs, s.Blobs, keys.Own, func(int) []byte { return make([]byte, 4096) })
			return Sample{"held": held, "back": back}
		}}
}

func expiring() (peers []Peer) {
	for _, p := range concurrent() {
		if p.Expires {
			peers = append(peers, p)
		}
	}
	return peers
}

func valueOf(i int) Value { return Value{Receipt: int64(i)} }

// windowFor is a window that is longer than filling takes.
func windowFor[V any](open func(Config) Runner[string, V], n int, key func(int) string, value func(int) V) time.Duration {
	few := max(n/20, 1)
	r := open(Config{TTL: DefaultWindow, Keys: n})
	defer r.Close()
	start := time.Now()
	fill(r, start.Add(DefaultWindow), few, key, value)
	return 2*time.Duration(n/few)*time.Since(start) + 500*time.Millisecond
}

// fill puts n results in that end at end, or as near to it as the peer can.
func fill[V any](r Runner[string, V], end time.Time, n int, key func(int) string, value func(int) V) {
	if f, ok := r.(Filler[string, V]); ok {
		f.Fill(end, n, key, value)
		return
	}
	for i := range n {
		_, err := r.Do(background, key(i), func(context.Context) (V, error) { return value(i), nil })
		if err != nil {
			panic(err)
		}
	}
}

// slowestDuringExpiry is the slowest replay around the end of n windows.
func slowestDuringExpiry(p Peer, n int) time.Duration {
	keys := keysOf(n + replayKeys)
	window := windowFor(p.Strings, n, keys.Own, valueOf)
	r := p.Strings(Config{TTL: window, Keys: n + replayKeys})
	defer r.Close()
	end := time.Now().Add(window)
	others := func(i int) string { return keys.Own(n + i) }
	fill(r, end.Add(DefaultWindow), replayKeys, others, valueOf)
	fill(r, end, n, keys.Own, valueOf)
	return slowestReplay(r, end, others)
}

// slowestReplay replays 1,000 keys from 0.2 s before end until 1.5 s after it.
func slowestReplay(r Runner[string, Value], end time.Time, key func(int) string) (worst time.Duration) {
	var count counted
	effect := count.effect
	kept := make([]string, replayKeys)
	for i := range kept {
		kept[i] = key(i)
	}
	time.Sleep(time.Until(end) - 200*time.Millisecond)
	var draw random
	for last := end.Add(1500 * time.Millisecond); ; {
		k := kept[draw.below(replayKeys)]
		start := time.Now()
		must(r.Do(background, k, effect))
		took := time.Since(start)
		worst = max(worst, took)
		if start.Add(took).After(last) {
			return worst
		}
	}
}

// heapAfterExpiry fills, waits for the end, and looks at the heap: the per cent
// still held 0.2 s after it, and the seconds until 90 % were back.
func heapAfterExpiry[V any](open func(Config) Runner[string, V], n int, key func(int) string, value func(int) V) (held, back float64) {
	window := windowFor(open, n, key, value)
	empty := live()
	r := open(Config{TTL: window, Keys: n})
	defer r.Close()
	end := time.Now().Add(window)
	fill(r, end, n, key, value)
	if _, ok := r.(Filler[string, V]); !ok {
		end = time.Now().Add(window) // the last one's
	}
	full := live()
	time.Sleep(time.Until(end))
	held, back = -1, giveUp.Seconds()
	for held < 0 || back == giveUp.Seconds() {
		after := time.Since(end)
		share := (live() - empty) / (full - empty)
		if share <= 0.1 && back == giveUp.Seconds() {
			back = after.Seconds()
		}
		if after >= 200*time.Millisecond && held < 0 {
			held = max(100*share, 0)
		}
		if after >= giveUp {
			break
		}
		time.Sleep(10 * time.Millisecond) // a collection after the other would be the load
	}
	return held, back
}
