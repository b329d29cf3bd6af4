package idempotent

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// world is the endpoint as the contract describes it, moved by the critical
// sections of one interleaving in the order in which they ran. It says what
// every call must return.
type world struct {
	in     *interleaving
	cells  map[int]*cell // by key
	order  int           // of the latest result
	closed bool
	stats  Stats
	errs   []string
}

// cell is one key.
type cell struct {
	holder      *visit // whose claim it is; nil = free
	fingerprint string
	line        []*visit // longest first
	kept        *modelResult
	stale       bool
	completed   time.Duration // of the result that is remembered as stale
}

type modelResult struct {
	value           int
	err             error
	fingerprint     string
	completed, ends time.Duration
	order           int
}

// visitModel is what the world knows of a call.
type visitModel struct {
	want    string
	decided bool
	dead    error         // ctx's, where the call came in
	since   time.Duration // of its place in the line, then of its claim
	heir    bool          // the claim was handed to it
	waits   bool          // it sleeps until it is woken
	led     bool          // its effect is to be entered
	refused error
}

// check runs the world through the events and compares.
func (in *interleaving) check() []string {
	w := &world{in: in, cells: make(map[int]*cell)}
	events := in.ordered()
	for i, ev := range events {
		w.expire(ev.at)
		w.patience(ev.at)
		then := ""
		if n := slices.IndexFunc(events[i+1:], func(next event) bool { return next.call == ev.call }); n >= 0 {
			then = events[i+1+n].where
		}
		w.apply(ev, then)
	}
	for _, c := range in.calls {
		if !c.model.decided {
			w.fault("call %d returned %q, but nothing decided it", c.id, c.got)
		} else if c.got != c.model.want {
			w.fault("call %d returned %q, want %q", c.id, c.got, c.model.want)
		}
		if c.started != c.model.led {
			w.fault("call %d: effect entered: %t, want %t", c.id, c.started, c.model.led)
		}
	}
	w.compareStats()
	return append(in.violation, w.errs...)
}

func (w *world) compareStats() {
	got := w.in.e.Stats()
	w.expire(w.in.now())
	for _, cell := range w.cells {
		if cell.kept != nil {
			w.stats.Retained++
			if errors.Is(cell.kept.err, ErrOutcomeUnknown) {
				w.stats.Unknown++
			}
		}
		if cell.holder != nil {
			w.fault("key %v is still held by call %d", cell, cell.holder.id)
		}
	}
	if got != w.stats {
		w.fault("Stats are %+v, want %+v", got, w.stats)
	}
}

func (w *world) fault(format string, args ...any) {
	w.errs = append(w.errs, fmt.Sprintf(format, args...))
}

func (w *world) cell(key int) *cell {
	if w.cells[key] == nil {
		w.cells[key] = new(cell)
	}
	return w.cells[key]
}

// expire ends the windows that have ended at an instant.
func (w *world) expire(at time.Duration) {
	for _, cell := range w.cells {
		if cell.kept != nil && cell.kept.ends <= at {
			w.stats.Expired++
			w.drop(cell)
		}
	}
}

// patience finds those who wait on although their ctx has ended: they pause once
// more, and not for so long.
func (w *world) patience(at time.Duration) {
	for _, cell := range w.cells {
		for _, c := range cell.line {
			if c.model.waits && c.dead != nil && max(c.diesAt, c.model.since)+8*slotsPerTurn*w.in.grain < at {
				w.fault("call %d still waits, although its ctx ended at %d", c.id, c.diesAt/w.in.grain)
			}
		}
	}
}

// drop lets a result go and remembers its key as stale.
func (w *world) drop(cell *cell) {
	cell.stale, cell.completed = w.in.opts.StaleMemory >= 0, cell.kept.completed
	cell.kept = nil
}

// apply moves the world by one critical section. then is the call's next one.
func (w *world) apply(ev event, then string) {
	c, cell := ev.call, w.cell(ev.call.req.Key)
	m := &c.model
	switch ev.where {
	case "look":
		m.dead = c.deadBy(ev.at)
		// A look without the lock may miss what is there; "enter" looks again.
		if cell.kept != nil && then != "enter" {
			w.replay(c, cell)
		}
	case "enter", "make room": // the latter is another look, at all keys at once
		w.enter(ev, cell, then)
	case "leave":
		if i := slices.Index(cell.line, c); i >= 0 {
			cell.line = slices.Delete(cell.line, i, i+1)
			w.refuse(c, ErrInFlight, c.deadBy(ev.at))
		}
	case "settle":
		w.settle(ev, cell)
	case "give up":
		w.giveUp(ev, cell)
	case "forget":
		w.decide(c, fmt.Sprint(cell.kept != nil))
		cell.kept, cell.stale = nil, false
	case "lookup":
		w.lookup(c, cell)
	case "resolve":
		w.resolve(ev, cell)
	case "shutdown":
		w.shutdown(ev)
	case "wait":
		m.waits = true
		if cell.holder == c {
			w.takeUp(c, cell, ev.at)
		}
	case "slot", "start": // only pauses
	default:
		since, ok := strings.CutPrefix(ev.where, "stale since ")
		if !ok {
			w.fault("call %d: a pause that the model does not know: %q", c.id, ev.where)
		} else if want := cell.completed.String(); !cell.stale || since != want {
			w.fault("call %d was told that its key is %s, want %t %s", c.id, ev.where, cell.stale, want)
		}
		if c.refuseStale {
			m.refused = ErrStale
		}
	}
}

// decide says what the call must return.
func (w *world) decide(c *visit, want string) {
	if c.model.decided {
		w.fault("call %d is decided twice: %q, %q", c.id, c.model.want, want)
	}
	c.model.want, c.model.decided = want, true
}

func (w *world) refuse(c *visit, why ...error) {
	w.stats.Refused++
	w.decide(c, "refused 0 "+matches(errors.Join(why...)))
}

func differs(a, b string) bool { return a != "" && b != "" && a != b }

func (w *world) replay(c *visit, cell *cell) {
	if differs(cell.kept.fingerprint, c.req.Fingerprint) {
		w.refuse(c, ErrMismatch)
		return
	}
	w.stats.Replayed++
	w.decide(c, fmt.Sprint("replayed ", cell.kept.value, " ", matches(cell.kept.err)))
}

func (w *world) enter(ev event, cell *cell, then string) {
	c := ev.call
	switch {
	case cell.kept != nil:
		w.replay(c, cell)
	case cell.holder != nil && differs(cell.fingerprint, c.req.Fingerprint):
		w.refuse(c, ErrMismatch)
	case cell.holder != nil && c.req.NoWait:
		w.refuse(c, ErrInFlight)
	case cell.holder != nil && c.model.dead != nil:
		w.refuse(c, ErrInFlight, c.model.dead)
	case cell.holder != nil:
		c.model.since = ev.at
		cell.line = append(cell.line, c)
	case w.closed:
		w.refuse(c, ErrShutdown)
	case c.model.dead != nil:
		w.refuse(c, c.model.dead)
	case then == "make room":
		// Nothing is decided yet. It may be full only of results that have ended.
	case w.full() && !w.evict():
		w.refuse(c, ErrFull)
	default:
		cell.fingerprint = c.req.Fingerprint
		w.lead(c, cell, ev.at)
	}
}

func (w *world) full() bool {
	held := 0
	for _, cell := range w.cells {
		if cell.kept != nil || cell.holder != nil {
			held++
		}
	}
	return w.in.opts.Capacity > 0 && held >= w.in.opts.Capacity
}

func (w *world) oldest() (first *cell) {
	for _, cell := range w.cells {
		if cell.kept != nil && !errors.Is(cell.kept.err, ErrOutcomeUnknown) && (first == nil || cell.kept.order < first.kept.order) {
			first = cell
		}
	}
	return first
}

func (w *world) evict() bool {
	first := w.oldest()
	if first == nil || !w.in.opts.EvictOldest {
		return false // an unknown outcome stays until it is settled
	}
	w.stats.Evicted++
	w.drop(first)
	return true
}

// lead makes a call the holder of its key.
func (w *world) lead(c *visit, cell *cell, at time.Duration) {
	cell.holder, c.model.since, c.model.led = c, at, true
	if !c.model.heir || c.model.waits {
		w.takeUp(c, cell, at)
	}
}

// takeUp is the moment at which a call finds that it is the holder.
func (w *world) takeUp(c *visit, cell *cell, at time.Duration) {
	if cell.stale && !(c.model.heir && c.deadBy(at) != nil) {
		w.stats.Stale++
	}
}

// settle ends the attempt of the key's holder.
func (w *world) settle(ev event, cell *cell) {
	c, opts := ev.call, w.in.opts
	if cell.holder != c {
		w.fault("call %d settles a claim that it does not hold", c.id)
		return
	}
	value, err, isKept := w.outcome(c)
	left := opts.Detach && c.deadBy(ev.at) != nil
	switch {
	case left:
		w.decide(c, "executed 0 "+matches(errors.Join(ErrInFlight, c.dead)))
	case c.fault == panics && !opts.Detach:
		w.decide(c, fmt.Sprint("panic effect ", c.id))
	case c.fault == exits && !opts.Detach:
		w.decide(c, "goexit")
	default:
		w.decide(c, fmt.Sprint("executed ", value, " ", matches(err)))
	}
	if isKept {
		w.stats.Executed++
		ttl := opts.TTL
		if c.req.TTL != 0 {
			ttl = c.req.TTL
		}
		if err != nil && opts.FailureTTL != 0 {
			ttl = opts.FailureTTL
		}
		w.keep(cell, &modelResult{value: value, err: err, fingerprint: cell.fingerprint, completed: ev.at, ends: ev.at + ttl})
		cell.holder = nil
		w.share(cell, value, err)
		return
	}
	w.stats.Failed++
	if c.fault == panics || c.fault == exits {
		w.stats.Panicked++
	}
	if opts.ShareFailure {
		cell.holder = nil
		w.share(cell, 0, err)
		return
	}
	w.pass(cell, ev.at)
}

// outcome is what the plan says about the end of a call's effect.
func (w *world) outcome(c *visit) (value int, err error, isKept bool) {
	value, err = c.id+1, fmt.Errorf("effect %d", c.id)
	switch c.fault {
	case succeeds:
		return value, nil, true
	case failsForGood:
		return value, Permanent(err), true
	case failsUnknown:
		return value, Unknown(err), true
	case panics:
		value, err = 0, &PanicError{Value: err}
	case exits:
		value, err = 0, &PanicError{Goexit: true}
	}
	if c.fault != fails && w.in.opts.HoldPanics {
		return value, Unknown(err), true
	}
	return value, err, false
}

func (w *world) keep(cell *cell, k *modelResult) {
	w.order++
	k.order = w.order
	if k.ends < k.completed {
		k.ends = math.MaxInt64
	}
	cell.kept, cell.stale = k, false
}

// share gives all who wait the end of the attempt.
func (w *world) share(cell *cell, value int, err error) {
	for _, c := range cell.line {
		w.stats.Shared++
		w.decide(c, fmt.Sprint("shared ", value, " ", matches(err)))
	}
	cell.line = nil
}

// pass hands the claim to the one that has waited longest.
func (w *world) pass(cell *cell, at time.Duration) {
	cell.holder = nil
	if w.closed {
		for _, c := range cell.line {
			w.refuse(c, ErrShutdown)
		}
		cell.line = nil
	}
	if len(cell.line) == 0 {
		return
	}
	heir := cell.line[0]
	cell.line = cell.line[1:]
	heir.model.heir, cell.fingerprint = true, heir.req.Fingerprint
	cell.line = slices.DeleteFunc(cell.line, func(c *visit) bool {
		gone := differs(cell.fingerprint, c.req.Fingerprint)
		if gone {
			w.refuse(c, ErrMismatch)
		}
		return gone
	})
	w.lead(heir, cell, at)
}

// giveUp refuses a holder whose effect was not entered, and asks why it was not.
func (w *world) giveUp(ev event, cell *cell) {
	c := ev.call
	if cell.holder != c {
		w.fault("call %d gives up a claim that it does not hold", c.id)
		return
	}
	c.model.led = false
	switch dead := c.deadBy(ev.at); {
	case c.model.refused != nil:
		w.refuse(c, c.model.refused)
	case c.model.heir && c.deadBy(c.model.since) != nil: // its ctx ended before the claim came
		w.refuse(c, ErrInFlight, dead)
	case strings.HasPrefix(c.got, "refused 0 "+ErrShutdown.Error()) && w.closed:
		w.refuse(c, ErrShutdown)
	case c.req.NoWait && w.in.opts.MaxConcurrent > 0 && c.got == "refused 0 "+ErrInFlight.Error(): // no slot
		w.refuse(c, ErrInFlight)
	default:
		w.refuse(c, dead)
	}
	w.pass(cell, ev.at)
}

func (w *world) lookup(c *visit, cell *cell) {
	if cell.kept == nil {
		w.decide(c, "false 0 ok")
		return
	}
	w.decide(c, fmt.Sprint("true ", cell.kept.value, " ", matches(cell.kept.err)))
}

func (w *world) resolve(ev event, cell *cell) {
	settled := cell.kept != nil && errors.Is(cell.kept.err, ErrOutcomeUnknown)
	if settled {
		w.keep(cell, &modelResult{
			value: ev.call.id + 1, fingerprint: cell.kept.fingerprint,
			completed: ev.at, ends: ev.at + w.in.opts.TTL,
		})
	}
	w.decide(ev.call, fmt.Sprint(settled))
}

// shutdown cannot know yet how it returns: that is when all claims of this
// moment have ended, or ctx has.
func (w *world) shutdown(ev event) {
	w.closed = true
	w.decide(ev.call, ev.call.got)
	dead := ev.call.deadBy(ev.call.returned)
	if want := matches(dead); ev.call.got != want && ev.call.got != "ok" {
		w.fault("Shutdown of call %d returned %q, want %q", ev.call.id, ev.call.got, want)
	}
}
