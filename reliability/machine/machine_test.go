// Package machine drives an endpoint through random runs in virtual time, beside
// a model that says what every call returns and what every counter shows.
package machine

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/idempotent-go/idempotent"
)

// turn is the grid of the run's time. Each call has a place of its own in a turn
// for the end of its effect and one for its deadline, and each Resolve has one: no
// two things happen, and no two windows end, at one instant.
const turn = 1024

type effectError int

func (e effectError) Error() string { return fmt.Sprintf("effect %d", int(e)) }

type ending int

const (
	succeeds ending = iota
	fails
	failsForGood
	failsUnknown
	panics
	exits
)

// action is one step of a run.
type action struct {
	Do      string // call, wait, edge, forget, lookup, resolve, restore, shutdown
	Key     int
	Turns   int // to wait
	Request request
}

// request is what a call brings along.
type request struct {
	Key         int
	Fingerprint string
	TTL         time.Duration
	NoWait      bool
	RefuseStale bool
	Ending      ending
	Takes       int // turns
	Patience    int // turns; 0 = endless, -1 = none
}

// call is a request that was made, and what came of it.
type call struct {
	request
	ID    int
	got   atomic.Pointer[string]
	model expectation
}

func (c *call) throws() bool { return c.Ending == panics || c.Ending == exits }

func (c *call) effectEnds(now time.Duration) time.Duration {
	return (now/turn+1+time.Duration(c.Takes))*turn + time.Duration(c.ID)
}

func (c *call) dead() error {
	if c.Patience < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

func (c *call) outcome(holdPanics bool) (value int, err error, kept bool) {
	value, err = c.ID, effectError(c.ID)
	switch c.Ending {
	case succeeds:
		return value, nil, true
	case failsForGood:
		return value, idempotent.Permanent(err), true
	case failsUnknown:
		return value, idempotent.Unknown(err), true
	case fails:
		return value, err, false
	}
	err = &idempotent.PanicError{Value: err, Goexit: c.Ending == exits}
	if c.Ending == exits {
		err = &idempotent.PanicError{Goexit: true}
	}
	if holdPanics {
		return 0, idempotent.Unknown(err), true
	}
	return 0, err, false
}

// run is an endpoint and the model beside it.
type run struct {
	e     *idempotent.Endpoint[int, int]
	m     *model
	began time.Time
	calls []*call
	log   []string

	resolved int
}

func drawOptions(t *rapid.T) idempotent.Options[int, int] {
	turns := rapid.IntRange(1, 30)
	opts := idempotent.Options[int, int]{
		TTL:           time.Duration(turns.Draw(t, "TTL")) * turn,
		FailureTTL:    time.Duration(rapid.IntRange(0, 20).Draw(t, "FailureTTL")) * turn,
		Capacity:      rapid.IntRange(0, 3).Draw(t, "Capacity"),
		EvictOldest:   rapid.Bool().Draw(t, "EvictOldest"),
		MaxConcurrent: rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "MaxConcurrent"),
		ShareFailure:  rapid.Bool().Draw(t, "ShareFailure"),
		Detach:        rapid.Bool().Draw(t, "Detach"),
		HoldPanics:    rapid.Bool().Draw(t, "HoldPanics"),
		StaleMemory:   rapid.SampledFrom([]int{0, -1, 1, 2}).Draw(t, "StaleMemory"),
	}
	if rapid.Bool().Draw(t, "long") {
		opts.TTL *= 100_000 // beyond what is looked at without the clock
	}
	return opts
}

var drawAction = rapid.Custom(func(t *rapid.T) action {
	a := action{
		Do: rapid.SampledFrom([]string{
			"call", "call", "call", "call", "call", "wait", "wait", "edge", "forget", "lookup", "resolve", "restore", "shutdown",
		}).Draw(t, "do"),
		Key:   rapid.IntRange(1, 4).Draw(t, "key"),
		Turns: rapid.IntRange(1, 12).Draw(t, "turns"),
	}
	if a.Do == "shutdown" && rapid.IntRange(0, 4).Draw(t, "really") > 0 {
		a.Do = "lookup"
	}
	if a.Do == "call" || a.Do == "edge" {
		a.Request = request{
			Key:         a.Key,
			Fingerprint: rapid.SampledFrom([]string{"", "", "", "a", "b"}).Draw(t, "fingerprint"),
			TTL:         time.Duration(rapid.SampledFrom([]int{0, 0, 0, 1, 7}).Draw(t, "ttl")) * turn,
			NoWait:      rapid.IntRange(0, 6).Draw(t, "noWait") == 6,
			RefuseStale: rapid.IntRange(0, 3).Draw(t, "refuseStale") == 3,
			Ending:      rapid.SampledFrom([]ending{succeeds, succeeds, fails, fails, failsForGood, failsUnknown, panics, exits}).Draw(t, "ending"),
			Takes:       rapid.IntRange(0, 10).Draw(t, "takes"),
			Patience:    rapid.SampledFrom([]int{0, 0, 0, -1, 1, 3, 8}).Draw(t, "patience"),
		}
	}
	return a
})

func TestStateMachine(t *testing.T) {
	var runs, actions, calls atomic.Int64
	defer func() {
		t.Logf("%d runs, %d actions, %d calls, shrinking included", runs.Load(), actions.Load(), calls.Load())
	}()
	rapid.Check(t, func(rt *rapid.T) {
		opts := drawOptions(rt)
		stepwise := opts.StaleMemory > 0 || rapid.Bool().Draw(rt, "stepwise")
		asks := rapid.Bool().Draw(rt, "OnStale")
		plan := rapid.SliceOfN(drawAction, 12, 60).Draw(rt, "plan")
		runs.Add(1)
		fault, r := "", new(run)
		synctest.Test(t, func(*testing.T) { fault = r.play(opts, asks, stepwise, plan) })
		actions.Add(int64(len(r.log)))
		calls.Add(int64(len(r.calls)))
		if fault != "" {
			rt.Fatalf("%+v\n%s\n%s", opts, strings.Join(r.log, "\n"), fault)
		}
	})
}

// play carries the plan out and returns the first difference to the model.
func (r *run) play(opts idempotent.Options[int, int], asks, stepwise bool, plan []action) (fault string) {
	r.began = time.Now()
	if asks {
		opts.OnStale = func(ctx context.Context, _ int, _ time.Time) error {
			if ctx.Value(callName{}).(*call).RefuseStale {
				return idempotent.ErrStale
			}
			return nil
		}
	}
	r.m = newModel(opts)
	var err error
	if r.e, err = idempotent.New(opts); err != nil {
		return err.Error()
	}
	for _, a := range plan {
		if fault = r.act(a, stepwise); fault == "" {
			fault = r.compare()
		}
		if fault != "" {
			break
		}
	}
	// Whatever still runs comes to its end, or the bubble would not.
	r.sleepTo(r.m.now+1000*turn, stepwise)
	if fault == "" {
		fault = r.compare()
	}
	if s := r.e.Stats(); fault == "" && s.InFlight+s.Waiting > 0 {
		fault = fmt.Sprintf("at rest: %+v", s)
	}
	return fault
}

type callName struct{}

func (r *run) act(a action, stepwise bool) string {
	r.log = append(r.log, fmt.Sprintf("%8d %s %d", r.m.now, a.Do, a.Key))
	var got, want any
	switch k := r.m.key(a.Key); a.Do {
	case "call":
		r.call(a.Request)
		return ""
	case "wait":
		r.sleepTo((r.m.now/turn+time.Duration(a.Turns))*turn, stepwise)
		return ""
	case "edge": // the last instant of the window, then the first after it
		if k.result == nil || k.result.ends > 1<<50 {
			return ""
		}
		end := k.result.ends
		r.sleepTo(end-1, stepwise)
		r.call(request{Key: a.Key, Patience: -1}) // replays, or is refused
		r.sleepTo(end, stepwise)
		r.call(a.Request)
		return ""
	case "forget":
		got, want = r.e.Forget(a.Key), k.result != nil
		k.result = nil
		r.m.forget(a.Key)
	case "lookup":
		rec, ok := r.e.Lookup(a.Key)
		got, want = "none", "none"
		if ok {
			got = fmt.Sprint(answer(0, rec.Value, rec.Err), " ", rec.Fingerprint, " until ", rec.ExpiresAt.Sub(r.began))
		}
		if k.result != nil {
			want = fmt.Sprint(answer(0, k.result.value, k.result.err), " ", k.result.fingerprint, " until ", k.result.ends)
		}
	case "resolve":
		r.resolved++
		r.sleepTo((r.m.now/turn+1)*turn+turn*3/4+time.Duration(r.resolved), stepwise)
		got, want = r.e.Resolve(a.Key, 1000+a.Turns), r.m.resolve(k, a.Key, 1000+a.Turns)
	case "restore": // of what is there: nothing is taken, nothing changes
		got, want = r.e.Restore(r.e.Records()), 0
		seen := 0
		for range r.e.Records() {
			seen++
		}
		if retained := r.m.statsNow().Retained; seen != retained {
			return fmt.Sprintf("%d records, want %d", seen, retained)
		}
	case "shutdown":
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		got, want = r.e.Shutdown(ctx) == nil, r.m.statsNow().InFlight == 0
		r.m.shut()
		synctest.Wait() // those who queued for a slot go
	}
	if got != want {
		return fmt.Sprintf("%s %d returned %v, want %v", a.Do, a.Key, got, want)
	}
	return ""
}

func (m *model) resolve(k *key, name, value int) bool {
	if k.result == nil || !strings.Contains(answer(0, 0, k.result.err), "outcome unknown") {
		return false
	}
	m.keep(name, &result{value: value, fingerprint: k.result.fingerprint}, m.opts.TTL)
	return true
}

// sleepTo lets time pass in the endpoint and in the model. Stepwise, it stops
// wherever something happens and makes the endpoint look.
func (r *run) sleepTo(to time.Duration, stepwise bool) {
	for stepwise {
		next := r.m.next(r.calls)
		if next > to {
			break
		}
		time.Sleep(next - time.Since(r.began))
		synctest.Wait()
		r.m.advance(next, r.calls)
		r.e.Stats()
	}
	time.Sleep(to - time.Since(r.began))
	synctest.Wait()
	r.m.advance(to, r.calls)
}

func (r *run) call(req request) {
	c := &call{request: req, ID: len(r.calls) + 1}
	r.calls = append(r.calls, c)
	ctx, cancel := context.WithValue(context.Background(), callName{}, c), func() {}
	switch {
	case c.Patience > 0:
		c.model.deadline = (r.m.now/turn+time.Duration(c.Patience))*turn + turn/2 + time.Duration(c.ID)
		ctx, cancel = context.WithDeadline(ctx, r.began.Add(c.model.deadline))
	case c.Patience < 0:
		ctx, cancel = context.WithDeadline(ctx, r.began)
	}
	go func() {
		defer cancel()
		returned := false
		defer func() {
			if v := recover(); v != nil || !returned {
				got := fmt.Sprint("thrown by ", c.ID)
				if v != nil && v != any(effectError(c.ID)) {
					got = fmt.Sprint("thrown: ", v)
				}
				c.got.Store(&got)
			}
		}()
		req := idempotent.Request[int]{Key: c.Key, Fingerprint: c.Fingerprint, TTL: c.TTL, NoWait: c.NoWait}
		v, verdict, err := r.e.Handle(ctx, req, func(context.Context) (int, error) { return r.effect(c) })
		got := answer(verdict, v, err)
		c.got.Store(&got)
		returned = true
	}()
	synctest.Wait()
	r.m.call(c)
}

func (r *run) effect(c *call) (int, error) {
	now := time.Since(r.began)
	time.Sleep(c.effectEnds(now) - now)
	switch c.Ending {
	case panics:
		panic(effectError(c.ID))
	case exits:
		runtime.Goexit()
	}
	value, err, _ := c.outcome(false)
	return value, err
}

// compare sets the endpoint against the model.
func (r *run) compare() string {
	for _, c := range r.calls {
		got := ""
		if p := c.got.Load(); p != nil {
			got = *p
		}
		if got != c.model.want {
			return fmt.Sprintf("call %d of key %d returned %q, want %q (\"\" = not yet)", c.ID, c.Key, got, c.model.want)
		}
	}
	if got, want := r.e.Stats(), r.m.statsNow(); got != want {
		return fmt.Sprintf("Stats are\n%+v, want\n%+v", got, want)
	}
	claims := r.e.InFlight()
	for _, claim := range claims {
		if k := r.m.key(claim.Key); k.holder == nil || claim.Waiters != len(k.line) {
			return fmt.Sprintf("InFlight shows %+v, want %d waiters", claim, len(k.line))
		}
	}
	return ""
}
