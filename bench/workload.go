package bench

import (
	"context"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A Workload measures one peer from a clean state.
type Workload struct {
	Name    string // short, for flags
	Title   string // of its table
	About   string // what is done, in a sentence
	Metrics []Metric
	Heavy   bool   // takes seconds a peer
	Once    bool   // needs one round only, after all others: it leaves goroutines behind
	Peers   []Peer // whom it makes sense for
	Run     func(Peer, Scale) Sample
}

// A Metric is one column.
type Metric struct {
	Name, Unit string
	Exact      bool // a count: the same in each round, or something is wrong
}

// A Sample is what one run measured, by the metric's name.
type Sample map[string]float64

// A Scale says how much is done.
type Scale struct {
	Replays int // calls of a workload that replays
	Cold    int // calls with new keys
	Kept    int // keys of the large workloads
	Blobs   int // results of 4 KiB
	Window  int // keys of the probe for doubled effects
	Storms  int // repetitions of a storm, of a failure
	Mixed   time.Duration
	Growth  []int // numbers of kept keys
	Expire  int   // of them, results that end at one instant
}

// The scales: Full for figures, Quick to see that everything runs.
var (
	Full = Scale{Replays: 1_000_000, Cold: 200_000, Kept: 1_000_000, Blobs: 25_000, Window: 60_000, Storms: 20,
		Mixed: 2500 * time.Millisecond, Growth: []int{10_000, 1_000_000, 5_000_000, 10_000_000, 20_000_000}, Expire: 1_000_000}
	Quick = Scale{Replays: 50_000, Cold: 20_000, Kept: 50_000, Blobs: 2_000, Window: 5_000, Storms: 2,
		Mixed: 1200 * time.Millisecond, Growth: []int{1_000, 20_000, 100_000, 200_000}, Expire: 20_000}
)

// Workloads returns all workloads but the growth's.
func Workloads() []Workload {
	return slices.Concat(replayWorkloads(), coldWorkloads(), []Workload{largeWorkload()}, expireWorkloads(),
		[]Workload{mixedWorkload(), stormWorkload(), failingWorkload(), emptyWorkload(), primitivesWorkload()})
}

// concurrent are the peers that more than one caller may use.
func concurrent() []Peer {
	return slices.DeleteFunc(Peers(), func(p Peer) bool { return p.Floor })
}

// A cost is what one call took, on average.
type cost struct{ ns, allocs, bytes float64 }

// measure times ops calls made by work, from a clean heap.
func measure(ops int, work func()) cost {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	work()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	each := func(total uint64) float64 { return float64(total) / float64(ops) }
	return cost{
		ns:     each(uint64(took.Nanoseconds())),
		allocs: thousandths(each(after.Mallocs - before.Mallocs)),
		bytes:  thousandths(each(after.TotalAlloc - before.TotalAlloc)),
	}
}

// thousandths leaves out the few allocations that the runtime makes beside the
// calls in each measurement.
func thousandths(v float64) float64 { return math.Round(v*1000) / 1000 }

// together runs the callers at once and waits for them.
func together(callers int, call func(caller int)) {
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() { call(caller) })
	}
	wg.Wait()
}

// live is what is on the heap after a collection.
func live() float64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools held on to
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

// collection is the median time of a garbage collection, in milliseconds.
func collection() float64 {
	times := make([]float64, 5)
	for i := range times {
		start := time.Now()
		runtime.GC()
		times[i] = milliseconds(time.Since(start))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// counted is an effect that counts its runs, padded so that callers who own one
// each do not share a cache line.
type counted struct {
	runs int
	_    [56]byte
}

func (c *counted) effect(context.Context) (Value, error) {
	c.runs++
	return Value{Receipt: int64(c.runs)}, nil
}

// background is every call's context.
var background = context.Background()

// must is for calls whose effect cannot fail.
func must(_ Value, err error) {
	if err != nil {
		panic(err)
	}
}

var keyCache struct {
	sync.Mutex
	keys Keys
}

// keysOf returns the first n keys. The last block is kept for the next call, but
// not for one that needs far fewer: how often the collector runs depends on what
// is live, and that must be the same in each round.
func keysOf(n int) Keys {
	keyCache.Lock()
	defer keyCache.Unlock()
	if have := keyCache.keys.Len(); have < n || have > 2*n {
		keyCache.keys = MakeKeys(n)
	}
	return keyCache.keys[:n*keyLen]
}
