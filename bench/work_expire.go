package bench

import (
	"context"
	"time"
)

// giveUp is how long memory may take to come back.
const giveUp = 5 * time.Second

var (
	slowestMetric = Metric{Name: "slowest", Unit: "ms, slowest replay"}
	heldMetric    = Metric{Name: "held", Unit: "% held after 0.2 s"}
	backMetric    = Metric{Name: "back", Unit: "s until 90 % are back"}
)

const expireAbout = "A caller replays 1,000 other keys from 0.2 s before the first end until 1.5 s after the last, each call timed. " +
	"Then the same with nobody calling: how much is still on the heap 0.2 s after the last end, and when nine tenths are back (at most 5 s are waited)."

func expireWorkloads() []Workload {
	return []Workload{
		{Name: "expire", Title: "1 million results end in the time that it took to keep them", Heavy: true,
			About:   "Kept by two callers as fast as the peer can, with one window for all. " + expireAbout,
			Metrics: []Metric{slowestMetric, heldMetric, backMetric}, Peers: append(expiring(), noStalePeer(), nothingPeer()),
			Run: func(p Peer, s Scale) Sample { return expire(p, s.Kept, byCalls[Value]) }},
		{Name: "expire-instant", Title: "1 million results end at one instant", Heavy: true,
			About:   "Put in with the same end for all, where the peer can (the endpoint takes them as a snapshot, by Restore). " + expireAbout,
			Metrics: []Metric{slowestMetric, heldMetric, backMetric}, Peers: append(filling(), noStalePeer(), nothingPeer()),
			Run: func(p Peer, s Scale) Sample { return expire(p, s.Kept, atOnce[Value]) }},
		{Name: "blobs", Title: "Large results end", Heavy: true,
			About:   "Results of 4 KiB, kept by two callers; nobody calls when they end.",
			Metrics: []Metric{heldMetric, backMetric}, Peers: expiring(),
			Run: func(p Peer, s Scale) Sample {
				large := func(int) []byte { return make([]byte, 4096) }
				held, back := heapAfterExpiry(p.Blobs, s.Blobs, keysOf(s.Blobs).Own, large, byCalls[[]byte])
				return Sample{"held": held, "back": back}
			}},
	}
}

// expiring are the peers whose windows end.
func expiring() (peers []Peer) {
	for _, p := range concurrent() {
		if p.Expires {
			peers = append(peers, p)
		}
	}
	return peers
}

// filling are those of them that can give results an end of their own.
func filling() (peers []Peer) {
	for _, p := range expiring() {
		r := p.Strings(Config{TTL: DefaultWindow})
		if _, ok := r.(Filler[string, Value]); ok {
			peers = append(peers, p)
		}
		r.Close()
	}
	return peers
}

func valueOf(i int) Value { return Value{Receipt: int64(i)} }

// A fill puts n results in and returns when the last of them ends: at end, or
// after the peer's one window.
type fill[V any] func(r Runner[string, V], window time.Duration, end time.Time, n int, key func(int) string, value func(int) V) (last time.Time)

func byCalls[V any](r Runner[string, V], window time.Duration, _ time.Time, n int, key func(int) string, value func(int) V) time.Time {
	const callers = 2
	together(callers, func(caller int) {
		for i := caller; i < n; i += callers {
			if _, err := r.Do(background, key(i), func(context.Context) (V, error) { return value(i), nil }); err != nil {
				panic(err)
			}
		}
	})
	return time.Now().Add(window)
}

func atOnce[V any](r Runner[string, V], _ time.Duration, end time.Time, n int, key func(int) string, value func(int) V) time.Time {
	r.(Filler[string, V]).Fill(end, n, key, value)
	return end
}

// filled opens a peer with a window that is longer than filling takes, fills it,
// and says when the first and the last result end. How long it takes is tried
// on a twentieth; where that was wrong, with twice the window again.
func filled[V any](open func(Config) Runner[string, V], n int, key func(int) string, value func(int) V, put fill[V]) (r Runner[string, V], first, last time.Time) {
	try := open(Config{TTL: DefaultWindow, Keys: n})
	start := time.Now()
	put(try, DefaultWindow, start.Add(DefaultWindow), n/20, key, value)
	window := 40*time.Since(start) + 2500*time.Millisecond
	try.Close()
	for ; ; window *= 2 {
		r = open(Config{TTL: window, Keys: n + replayKeys})
		first = time.Now().Add(window)
		last = put(r, window, first, n, key, value)
		if time.Until(first) > time.Second {
			return r, first, last
		}
		r.Close()
	}
}

func expire(p Peer, n int, put fill[Value]) Sample {
	keys := keysOf(n + replayKeys)
	r, first, last := filled(p.Strings, n, keys.Own, valueOf, put)
	worst := slowestReplay(r, first, last, func(i int) string { return keys.Own(n + i) })
	r.Close()
	sample := Sample{"slowest": milliseconds(worst)}
	if p.Name != Nothing {
		sample["held"], sample["back"] = heapAfterExpiry(p.Strings, n, keys.Own, valueOf, put)
	}
	return sample
}

// slowestReplay keeps 1,000 keys shortly before first, and replays them from
// 0.2 s before it until 1.5 s after last.
func slowestReplay(r Runner[string, Value], first, last time.Time, key func(int) string) (worst time.Duration) {
	var count counted
	effect := count.effect
	kept := make([]string, replayKeys)
	time.Sleep(time.Until(first) - 300*time.Millisecond)
	for i := range kept {
		kept[i] = key(i)
		must(r.Do(background, kept[i], effect))
	}
	time.Sleep(time.Until(first) - 200*time.Millisecond)
	var draw random
	for last = last.Add(1500 * time.Millisecond); ; {
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

// heapAfterExpiry fills, waits for the last end, and looks at the heap: the per
// cent still held 0.2 s after it, and the seconds until 90 % were back.
func heapAfterExpiry[V any](open func(Config) Runner[string, V], n int, key func(int) string, value func(int) V, put fill[V]) (held, back float64) {
	empty := live()
	r, _, end := filled(open, n, key, value, put)
	defer r.Close()
	full := live()
	time.Sleep(time.Until(end))
	back = giveUp.Seconds()
	for looked := false; !looked || back == giveUp.Seconds(); {
		after := time.Since(end)
		share := max((live()-empty)/(full-empty), 0)
		if share <= 0.1 {
			back = min(back, after.Seconds())
		}
		if !looked && after >= 200*time.Millisecond {
			held, looked = 100*share, true
		}
		if after >= giveUp {
			break
		}
		time.Sleep(10 * time.Millisecond) // one collection after the other would be the load
	}
	return held, back
}
