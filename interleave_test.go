package idempotent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	interleaveSeeds = flag.Int("interleave.seeds", 3000, "interleavings to run")
	interleaveFirst = flag.Uint64("interleave.seed", 1, "the first one's seed")
)

// Every interleaving is replayed by its seed alone:
//
//	go test . -run TestInterleavings -interleave.seed=SEED -interleave.seeds=1
func TestInterleavings(t *testing.T) {
	seeds, operations := 0, 0
	ends := make(map[string]int)
	// A failing bubble ends the test.
	defer func() { t.Logf("%d interleavings, %d operations: %v", seeds, operations, ends) }()
	for range *interleaveSeeds {
		seed := *interleaveFirst + uint64(seeds)
		seeds++
		in := interleave(t, seed)
		operations += len(in.calls)
		for _, c := range in.calls {
			ends[c.op+" "+strings.FieldsFunc(c.got, func(r rune) bool { return '0' <= r && r <= '9' })[0]]++
		}
		if seed%100 == 0 {
			require.Equal(t, in.hash(), interleave(t, seed).hash(), "seed %d does not replay", seed)
		}
	}
}

// slotsPerTurn is how many calls have an instant of their own in each turn of
// the clock. Two critical sections never fall on one instant, so their order is
// the seed's. Contexts end at the last slot, where no call has a section.
const slotsPerTurn = 64

// interleaving is one seed's endpoint, its clients, and what happened.
type interleaving struct {
	opts   Options[int, int]
	grain  time.Duration // between two slots
	spread uint64        // all keys apart, in one shard, or in one chain
	began  time.Time
	e      *Endpoint[int, int]
	calls  []*visit

	mu        sync.Mutex
	events    []event
	running   map[int]int // effects by key
	violation []string
}

// event is the moment after a pause: the critical section that follows it runs
// at this very instant.
type event struct {
	at    time.Duration
	call  *visit
	where string
}

type fault int

const (
	succeeds fault = iota
	fails
	failsForGood
	failsUnknown
	panics
	exits
)

// visit is one operation of a client: its plan, and what came of it.
type visit struct {
	id          int
	op          string
	req         Request[int]
	fault       fault
	takes       int // turns that the effect takes
	before      int // turns to wait before the operation
	deadline    int // turns after which ctx ends; 0 = never
	cancelAt    int // the pause at which ctx is cancelled; 0 = none
	refuseStale bool
	rng         *rand.Rand // one goroutine at a time draws from it

	cancel   context.CancelFunc
	dead     error // why ctx ends, at diesAt; nil = it does not
	diesAt   time.Duration
	pauses   int
	started  bool
	returned time.Duration
	got      string

	model visitModel
}

type visitName struct{}

func interleave(t *testing.T, seed uint64) (in *interleaving) {
	in = &interleaving{running: make(map[int]int)}
	clients := in.plan(rand.New(rand.NewPCG(seed, 0)))
	replay := fmt.Sprintf("go test . -run TestInterleavings -interleave.seed=%d -interleave.seeds=1", seed)
	synctest.Test(t, func(t *testing.T) {
		in.began = time.Now()
		var err error
		in.e, err = New(in.opts)
		require.NoError(t, err)
		in.e.spread = in.spread
		in.e.pause = in.pause
		var wg sync.WaitGroup
		for _, calls := range clients {
			wg.Go(func() {
				for _, c := range calls {
					in.perform(c)
				}
			})
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		select {
		case <-done:
			time.Sleep(slotsPerTurn * 1000 * in.grain) // what was left behind by Detach ends too
			synctest.Wait()
		case <-time.After(time.Hour):
			// The blocked goroutines make the bubble panic: say first what to replay.
			fmt.Fprintf(os.Stderr, "an interleaving hangs; replay: %s\n", replay)
		}
		if faults := in.check(); len(faults) > 0 {
			t.Errorf("%+v\n%s%s\nreplay: %s", in.opts, in.story(), strings.Join(faults, "\n"), replay)
		}
	})
	return in
}

// plan draws the options, the calls and their faults.
func (in *interleaving) plan(rng *rand.Rand) (clients [][]*visit) {
	oneIn := func(n int) bool { return rng.IntN(n) == 0 }
	in.grain = []time.Duration{1, 99991}[rng.IntN(2)]
	turn := slotsPerTurn * in.grain
	in.spread = []uint64{math.MaxUint64, math.MaxUint32 << 32, 0}[rng.IntN(3)]
	in.opts = Options[int, int]{
		TTL:          time.Duration(1+rng.IntN(60)) * turn,
		ShareFailure: oneIn(3),
		Detach:       oneIn(4),
		HoldPanics:   oneIn(4),
		PassCancel:   oneIn(4),
	}
	if oneIn(3) {
		in.opts.FailureTTL = time.Duration(1+rng.IntN(60)) * turn
	}
	if oneIn(3) {
		in.opts.Capacity = 1 + rng.IntN(2)
		in.opts.EvictOldest = oneIn(2)
	}
	if oneIn(4) {
		in.opts.MaxConcurrent = 1 + rng.IntN(2)
	}
	if oneIn(2) {
		in.opts.StaleMemory = -1
		if in.opts.Capacity == 0 {
			in.opts.TTL += time.Duration(rng.IntN(3)) * in.grain // may end on another call's very instant
		}
	} else {
		in.opts.OnStale = in.onStale
	}
	keys, faulty, ended := 1+rng.IntN(3), 1+rng.IntN(5), 1+rng.IntN(6)
	clients = make([][]*visit, 2+rng.IntN(4))
	for i := range clients {
		for range 1 + rng.IntN(5) {
			c := &visit{
				id: len(in.calls), op: "do", req: Request[int]{Key: 1 + rng.IntN(keys), NoWait: oneIn(8)},
				takes: rng.IntN(12), before: rng.IntN(20), refuseStale: oneIn(3),
				rng: rand.New(rand.NewPCG(rng.Uint64(), 1)),
			}
			if oneIn(faulty) {
				c.fault = fault(rng.IntN(int(exits) + 1))
			}
			if oneIn(ended) {
				c.deadline = rng.IntN(30)
				c.cancelAt = rng.IntN(6)
			}
			if oneIn(6) {
				c.req.Fingerprint = []string{"a", "b"}[rng.IntN(2)]
			}
			if oneIn(8) {
				c.takes *= 10 // longer than most windows
			}
			if oneIn(8) {
				c.req.TTL = time.Duration(1+rng.IntN(20)) * turn
			}
			if oneIn(5) {
				c.op = []string{"forget", "forget", "lookup", "resolve", "shutdown"}[rng.IntN(5)]
				if c.op == "shutdown" && !oneIn(3) {
					c.op = "lookup"
				}
			}
			clients[i] = append(clients[i], c)
			in.calls = append(in.calls, c)
		}
	}
	return clients
}

// end notes when and why the call's ctx ends; the first time counts.
func (c *visit) end(at time.Duration, why error) {
	if c.dead == nil || at < c.diesAt {
		c.diesAt, c.dead = at, why
	}
}

// deadBy is ctx's error at an instant.
func (c *visit) deadBy(at time.Duration) error {
	if c.dead != nil && c.diesAt <= at {
		return c.dead
	}
	return nil
}

func (in *interleaving) now() time.Duration { return time.Since(in.began) }

// sleep ends at the call's own slot, turns later.
func (in *interleaving) sleep(c *visit, turns int) {
	turn := slotsPerTurn * in.grain
	now := in.now()
	time.Sleep((now/turn+1+time.Duration(turns))*turn + time.Duration(c.id)*in.grain - now)
}

// pause is the endpoint's hook.
func (in *interleaving) pause(ctx context.Context, where string) {
	c := ctx.Value(visitName{}).(*visit)
	// A select with two ready cases draws lots that no seed fixes. So a call whose
	// ctx may end goes from its place in the line straight into the wait.
	if where != "wait" || c.deadline == 0 && c.cancelAt == 0 {
		in.sleep(c, c.rng.IntN(6))
	}
	c.pauses++
	if c.pauses == c.cancelAt && where != "settle" { // there the caller of a detached effect has two ready cases
		c.end(in.now(), context.Canceled)
		c.cancel()
	}
	in.log(c, where)
}

func (in *interleaving) log(c *visit, where string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.events = append(in.events, event{in.now(), c, where})
}

func (in *interleaving) onStale(ctx context.Context, key int, completed time.Time) error {
	c := ctx.Value(visitName{}).(*visit)
	in.log(c, fmt.Sprint("stale since ", completed.Sub(in.began)))
	if c.refuseStale {
		return ErrStale
	}
	return nil
}

// perform runs one operation, on a goroutine of its own where the effect may
// take it along.
func (in *interleaving) perform(c *visit) {
	in.sleep(c, c.before)
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.WithValue(context.Background(), visitName{}, c))
	defer c.cancel()
	if c.deadline > 0 {
		turn := slotsPerTurn * in.grain
		at := (in.now()/turn + 1 + time.Duration(c.deadline)) * turn
		c.end(at-in.grain, context.DeadlineExceeded)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, in.began.Add(at-in.grain))
		defer cancel()
	}
	done := make(chan struct{})
	run := func() {
		returned := false
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				c.got = fmt.Sprint("panic ", v)
			} else if !returned {
				c.got = "goexit"
			}
			c.returned = in.now()
		}()
		c.got = in.operate(ctx, c)
		returned = true
	}
	if c.fault == exits {
		go run()
	} else {
		run()
	}
	<-done
}

func (in *interleaving) operate(ctx context.Context, c *visit) string {
	key := c.req.Key
	if c.op != "do" {
		in.log(c, c.op)
	}
	switch c.op {
	case "forget":
		return fmt.Sprint(in.e.Forget(key))
	case "lookup":
		r, ok := in.e.Lookup(key)
		return fmt.Sprint(ok, " ", r.Value, " ", matches(r.Err))
	case "resolve":
		return fmt.Sprint(in.e.Resolve(key, c.id+1))
	case "shutdown":
		err := in.e.Shutdown(ctx)
		return fmt.Sprint(matches(err))
	}
	v, verdict, err := in.e.Handle(ctx, c.req, func(ctx context.Context) (int, error) { return in.effect(ctx, c) })
	return fmt.Sprint(verdict, " ", v, " ", matches(err))
}

func (in *interleaving) effect(ctx context.Context, c *visit) (int, error) {
	in.enterEffect(c, ctx)
	defer in.leaveEffect(c)
	in.sleep(c, c.takes)
	err := fmt.Errorf("effect %d", c.id)
	switch c.fault {
	case fails:
		return c.id + 1, err
	case failsForGood:
		return c.id + 1, Permanent(err)
	case failsUnknown:
		return c.id + 1, Unknown(err)
	case panics:
		panic(err)
	case exits:
		runtime.Goexit()
	}
	return c.id + 1, nil
}

func (in *interleaving) enterEffect(c *visit, ctx context.Context) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if c.started {
		in.violation = append(in.violation, fmt.Sprintf("the effect of call %d was entered twice", c.id))
	}
	c.started = true
	if in.running[c.req.Key]++; in.running[c.req.Key] > 1 {
		in.violation = append(in.violation, fmt.Sprintf("call %d: two effects of key %d at once", c.id, c.req.Key))
	}
	if most := in.opts.MaxConcurrent; most > 0 && len(in.running) > most {
		in.violation = append(in.violation, fmt.Sprintf("call %d: %d effects at once", c.id, len(in.running)))
	}
	if key, ok := Key[int](ctx); !ok || key != c.req.Key {
		in.violation = append(in.violation, fmt.Sprintf("call %d: the effect's key is %d", c.id, key))
	}
}

func (in *interleaving) leaveEffect(c *visit) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.running[c.req.Key]--; in.running[c.req.Key] == 0 {
		delete(in.running, c.req.Key)
	}
}

// matches is what an error matches, in a fixed order.
func matches(err error) string {
	if err == nil {
		return "ok"
	}
	var names []string
	for _, kind := range []error{
		ErrInFlight, ErrMismatch, ErrFull, ErrDeadlock, ErrStale, ErrOutcomeUnknown, ErrShutdown,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, kind) {
			names = append(names, kind.Error())
		}
	}
	if p, ok := errors.AsType[*PanicError](err); ok {
		names = append(names, fmt.Sprintf("PanicError %v %t", p.Value, p.Goexit))
	}
	if i := strings.LastIndex(err.Error(), "effect "); i >= 0 && len(names) == 0 {
		names = append(names, err.Error()[i:])
	}
	return strings.Join(names, ", ")
}

// hash is of everything that happened, in its order.
func (in *interleaving) hash() uint64 {
	h := fnv.New64a()
	h.Write([]byte(in.story()))
	return h.Sum64()
}

func (in *interleaving) story() string {
	var b strings.Builder
	for _, ev := range in.ordered() {
		fmt.Fprintf(&b, "%12d  call %2d key %d  %s\n", ev.at/in.grain, ev.call.id, ev.call.req.Key, ev.where)
	}
	for _, c := range in.calls {
		fmt.Fprintf(&b, "call %2d %s %+v fault %d: got %q at %d, want %q\n", c.id, c.op, c.req, c.fault, c.got, c.returned/in.grain, c.model.want)
	}
	return b.String()
}

// ordered returns the events by instant. Events of one instant belong to one call.
func (in *interleaving) ordered() []event {
	events := slices.Clone(in.events)
	slices.SortStableFunc(events, func(a, b event) int { return int(a.at - b.at) })
	return events
}
