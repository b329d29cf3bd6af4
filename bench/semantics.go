package bench

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// soon is how long a probe waits for what should come at once.
const soon = time.Second

// An Observation is what a peer did when it was probed.
type Observation struct {
	Promises
	Doubles    int // keys whose effect ran again in the instant that its first run ended
	WindowKeys int
	Reruns     int // of CapacityKeys, because of a capacity of a third of them
	Refused    int
	FailedRuns int // runs of a failing effect with FailWaiters waiting on it
}

// How many keys and callers the probes take.
const (
	CapacityKeys = 3_000
	FailWaiters  = 50
)

// Observe probes a peer. The floor, which takes one caller only, is not probed.
func Observe(p Peer, windowKeys int) Observation {
	o := Observation{WindowKeys: windowKeys, Doubles: observeWindow(p, windowKeys)}
	o.Once = o.Doubles == 0
	o.Bounded = p.Bounded
	if p.Bounded {
		o.Reruns, o.Refused = observeCapacity(p)
		o.Refuses = o.Reruns == 0 && o.Refused > 0
	}
	o.FailedRuns = observeFailure(p)
	o.OneByOne = o.FailedRuns == FailWaiters+1
	o.Expires = observeExpiry(p, nil)
	o.WaiterLeave = observeWaiter(p)
	o.PanicFree = observePanic(p)
	o.GoexitFree = observeGoexit(p)
	o.Independent = observeIndependence(p)
	observeExpiry(p, func(r Runner[string, Value]) {
		s, ok := r.(interface{ Stale() uint64 })
		o.Stale = ok && s.Stale() > 0
	})
	return o
}

// observeWindow has callers meet on one key after the other, in the moment that
// its run ends, and counts the keys that ran again.
func observeWindow(p Peer, n int) (doubles int) {
	const callers = 4
	r := p.Strings(Config{TTL: time.Hour, Keys: n})
	defer r.Close()
	keys := MakeKeys(n)
	runs := make([]atomic.Int32, n)
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			draw := random(caller)
			for i := range n {
				_, _ = r.Do(context.Background(), keys.Own(i), func(context.Context) (Value, error) {
					runs[i].Add(1)
					for range i % 3 {
						runtime.Gosched()
					}
					return Value{Receipt: int64(i)}, nil
				})
				for range draw.below(100) {
					runtime.KeepAlive(draw)
				}
			}
		})
	}
	wg.Wait()
	for i := range runs {
		if runs[i].Load() > 1 {
			doubles++
		}
	}
	return doubles
}

// observeCapacity calls three times as many keys as may be kept, twice.
func observeCapacity(p Peer) (reruns, refused int) {
	r := p.Strings(Config{TTL: time.Hour, Keys: CapacityKeys, Capacity: CapacityKeys / 3})
	defer r.Close()
	keys := MakeKeys(CapacityKeys)
	runs := make([]int, CapacityKeys)
	for range 2 {
		for i := range CapacityKeys {
			_, err := r.Do(context.Background(), keys.Own(i), func(context.Context) (Value, error) {
				runs[i]++
				return Value{}, nil
			})
			if err != nil {
				refused++
			}
		}
	}
	for _, n := range runs {
		reruns += max(0, n-1)
	}
	return reruns, refused
}

// observeFailure counts the runs of an effect that fails, with all waiters
// called before it ends.
func observeFailure(p Peer) (runs int) {
	r := p.Strings(Config{TTL: time.Hour, Keys: 1})
	defer r.Close()
	var ran, called atomic.Int32
	fail := errors.New("failed")
	var wg sync.WaitGroup
	for range FailWaiters + 1 {
		wg.Go(func() {
			called.Add(1)
			_, _ = r.Do(context.Background(), "key", func(context.Context) (Value, error) {
				ran.Add(1)
				for called.Load() < FailWaiters+1 {
					runtime.Gosched()
				}
				for range 1000 { // the last ones are on their way in
					runtime.Gosched()
				}
				return Value{}, fail
			})
		})
	}
	wg.Wait()
	return int(ran.Load())
}

// observeExpiry says whether a key runs again soon after its window.
func observeExpiry(p Peer, afterwards func(Runner[string, Value])) (again bool) {
	r := p.Strings(Config{TTL: 20 * time.Millisecond, Keys: 1})
	defer r.Close()
	runs := 0
	effect := func(context.Context) (Value, error) { runs++; return Value{}, nil }
	for give := time.Now().Add(soon); runs < 2 && time.Now().Before(give); {
		_, _ = r.Do(context.Background(), "key", effect)
	}
	if afterwards != nil {
		afterwards(r)
	}
	return runs > 1
}

// observeWaiter says whether a waiter leaves when its context ends.
func observeWaiter(p Peer) bool {
	r := p.Strings(Config{TTL: time.Hour, Keys: 1})
	defer r.Close()
	running, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(release)
	wg.Go(func() {
		_, _ = r.Do(context.Background(), "key", func(context.Context) (Value, error) {
			close(running)
			<-release
			return Value{}, nil
		})
	})
	<-running
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	left := make(chan struct{})
	wg.Go(func() {
		defer close(left)
		_, _ = r.Do(ctx, "key", func(context.Context) (Value, error) { return Value{}, nil })
	})
	return within(left)
}

// observePanic says whether a panic reaches the caller and leaves the key free.
func observePanic(p Peer) bool {
	r := p.Strings(Config{TTL: time.Hour, Keys: 1})
	defer r.Close()
	reached := false
	func() {
		defer func() { reached = recover() != nil }()
		_, _ = r.Do(context.Background(), "key", func(context.Context) (Value, error) { panic("oops") })
	}()
	return reached && runsNow(r)
}

// observeGoexit says whether a Goexit keeps nothing and leaves the key free.
func observeGoexit(p Peer) bool {
	r := p.Strings(Config{TTL: time.Hour, Keys: 1})
	defer r.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { _ = recover() }() // sync.OnceValues makes it a panic
		_, _ = r.Do(context.Background(), "key", func(context.Context) (Value, error) { runtime.Goexit(); return Value{}, nil })
	}()
	return within(ended) && runsNow(r)
}

// runsNow says whether a call of "key" runs its effect and returns.
func runsNow(r Runner[string, Value]) bool {
	var ran atomic.Bool
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		defer func() { _ = recover() }()
		_, _ = r.Do(context.Background(), "key", func(context.Context) (Value, error) { ran.Store(true); return Value{}, nil })
	}()
	return within(returned) && ran.Load()
}

// observeIndependence says whether 1,000 keys get through while another one's
// effect is running.
func observeIndependence(p Peer) bool {
	r := p.Strings(Config{TTL: time.Hour, Keys: 1000})
	defer r.Close()
	running, release, through := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(release)
	wg.Go(func() {
		_, _ = r.Do(context.Background(), "slow", func(context.Context) (Value, error) {
			close(running)
			<-release
			return Value{}, nil
		})
	})
	<-running
	wg.Go(func() {
		defer close(through)
		keys := MakeKeys(1000)
		for i := range keys.Len() {
			_, _ = r.Do(context.Background(), keys.Own(i), func(context.Context) (Value, error) { return Value{}, nil })
		}
	})
	return within(through)
}

// within says whether done is closed soon.
func within(done <-chan struct{}) bool {
	timer := time.NewTimer(soon)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
