package bench

import (
	"context"
	"time"

	"github.com/idempotent-go/idempotent"
)

const (
	replayKeys = 1000
	manyCaller = 32

	// DefaultWindow is a window that does not end while something is measured.
	DefaultWindow = time.Hour
)

var replayMetrics = []Metric{
	{Name: "time", Unit: "ns/call"},
	{Name: "allocs", Unit: "allocs/call", Exact: true},
	{Name: "bytes", Unit: "B/call", Exact: true},
	{Name: "runs", Unit: "runs beyond the first", Exact: true},
}

func replayWorkloads() []Workload {
	return []Workload{
		{Name: "replay", Title: "Replay: string keys, one caller", About: "1,000 kept keys of 36 bytes, called again in random order by one caller.",
			Metrics: replayMetrics, Peers: append(Peers(), fingerprintPeer()),
			Run: func(p Peer, s Scale) Sample {
				return replay(p.Strings, keysOf(replayKeys).At, replayKeys, 1, s.Replays)
			}},
		{Name: "replay-int", Title: "Replay: int keys, one caller", About: "The same with int keys.",
			Metrics: replayMetrics, Peers: Peers(),
			Run: func(p Peer, s Scale) Sample {
				return replay(p.Ints, func(i int) int { return i + 1 }, replayKeys, 1, s.Replays)
			}},
		{Name: "replay-32", Title: "Replay: 32 callers", About: "1,000 kept string keys, 32 callers at once. Time is wall time over all calls.",
			Metrics: replayMetrics, Peers: concurrent(),
			Run: func(p Peer, s Scale) Sample {
				return replay(p.Strings, keysOf(replayKeys).At, replayKeys, manyCaller, s.Replays)
			}},
		{Name: "replay-hot", Title: "Replay: 32 callers, one hot key", About: "One kept string key, 32 callers at once.",
			Metrics: replayMetrics, Peers: concurrent(),
			Run: func(p Peer, s Scale) Sample {
				return replay(p.Strings, keysOf(1).At, 1, manyCaller, s.Replays)
			}},
	}
}

func replay[K comparable](open func(Config) Runner[K, Value], key func(int) K, n, callers, calls int) Sample {
	r := open(Config{TTL: DefaultWindow, Keys: n})
	defer r.Close()
	keys := make([]K, n)
	for i := range keys {
		keys[i] = key(i)
	}
	// All keys are kept, and known to be: some libraries keep them a little later.
	for settled := false; !settled; {
		var first counted
		for _, k := range keys {
			must(r.Do(background, k, first.effect))
		}
		settled = first.runs == 0
	}
	counts := make([]counted, callers)
	each := calls / callers
	c := measure(each*callers, func() {
		if callers == 1 {
			replayCalls(r, keys, each, 1, &counts[0])
			return
		}
		together(callers, func(caller int) { replayCalls(r, keys, each, random(caller), &counts[caller]) })
	})
	return Sample{"time": c.ns, "allocs": c.allocs, "bytes": c.bytes, "runs": float64(sumRuns(counts))}
}

func replayCalls[K comparable](r Runner[K, Value], keys []K, calls int, draw random, count *counted) {
	effect := count.effect
	for range calls {
		must(r.Do(background, keys[draw.below(len(keys))], effect))
	}
}

func sumRuns(counts []counted) (sum int) {
	for i := range counts {
		sum += counts[i].runs
	}
	return sum
}

// fingerprinted calls with a payload's digest.
type fingerprinted struct{ endpointRunner[string, Value] }

const digest = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

func (f fingerprinted) Do(ctx context.Context, key string, effect Effect[Value]) (Value, error) {
	value, _, err := f.Handle(ctx, idempotent.Request[string]{Key: key, Fingerprint: digest}, effect)
	return value, err
}

// OursFingerprint is the endpoint whose calls carry a fingerprint.
const OursFingerprint = "idempotent, with Fingerprint"

func fingerprintPeer() Peer {
	return Peer{Name: OursFingerprint, Strings: func(c Config) Runner[string, Value] {
		return fingerprinted{runnerOf(idempotent.Options[string, Value]{TTL: c.TTL})}
	}}
}
