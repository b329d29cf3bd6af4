package bench

import (
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// primitivesWorkload times what calls are made of, on this machine.
func primitivesWorkload() Workload {
	w := Workload{Name: "primitives", Title: "What calls are made of", About: "One caller, nothing contended.",
		Metrics: []Metric{{Name: "time", Unit: "ns"}}}
	for _, name := range primitiveNames {
		w.Peers = append(w.Peers, Peer{Name: name})
	}
	w.Run = func(p Peer, s Scale) Sample {
		work := primitives[p.Name]()
		return Sample{"time": measure(s.Replays, func() { work(s.Replays) }).ns}
	}
	return w
}

// The primitives that the report refers to.
const (
	PrimHash   = "maphash.Comparable of a string key"
	PrimMutex  = "Lock and Unlock of a free mutex"
	PrimLookup = "look-up in a map of 1,000 string keys"
	PrimClock  = "time.Now"
)

var primitiveNames = []string{PrimHash, "maphash.Comparable of an int key", PrimMutex, PrimLookup,
	"atomic load", "atomic add", PrimClock, "time.Since", "make a channel"}

// primitives set up and return what does the thing n times.
var primitives = map[string]func() func(n int){
	PrimHash: func() func(int) {
		keys, seed := thousand(), maphash.MakeSeed()
		return func(n int) {
			var sum uint64
			for i := range n {
				sum ^= maphash.Comparable(seed, keys[i%len(keys)])
			}
			runtime.KeepAlive(sum)
		}
	},
	"maphash.Comparable of an int key": func() func(int) {
		seed := maphash.MakeSeed()
		return func(n int) {
			var sum uint64
			for i := range n {
				sum ^= maphash.Comparable(seed, i)
			}
			runtime.KeepAlive(sum)
		}
	},
	PrimMutex: func() func(int) {
		var mu sync.Mutex
		return func(n int) {
			for range n {
				mu.Lock()
				//lint:ignore SA2001 the pair is what is timed
				mu.Unlock()
			}
		}
	},
	PrimLookup: func() func(int) {
		keys, m := thousand(), map[string]Value{}
		for i, k := range keys {
			m[k] = valueOf(i)
		}
		return func(n int) {
			var sum int64
			var draw random
			for range n {
				sum += m[keys[draw.below(len(keys))]].Receipt
			}
			runtime.KeepAlive(sum)
		}
	},
	"atomic load": func() func(int) {
		var word atomic.Int64
		return func(n int) {
			var sum int64
			for range n {
				sum += word.Load()
			}
			runtime.KeepAlive(sum)
		}
	},
	"atomic add": func() func(int) {
		var word atomic.Int64
		return func(n int) {
			for range n {
				word.Add(1)
			}
		}
	},
	PrimClock: func() func(int) {
		return func(n int) {
			var last time.Time
			for range n {
				last = time.Now()
			}
			runtime.KeepAlive(last)
		}
	},
	"time.Since": func() func(int) {
		epoch := time.Now()
		return func(n int) {
			var sum time.Duration
			for range n {
				sum += time.Since(epoch)
			}
			runtime.KeepAlive(sum)
		}
	},
	"make a channel": func() func(int) {
		return func(n int) {
			var last chan struct{}
			for range n {
				last = make(chan struct{})
			}
			runtime.KeepAlive(last)
		}
	},
}

func thousand() []string {
	block := MakeKeys(replayKeys)
	keys := make([]string, replayKeys)
	for i := range keys {
		keys[i] = block.At(i)
	}
	return keys
}
