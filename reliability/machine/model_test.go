package machine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent"
)

// model is the contract for a world in which one thing happens at a time. Time
// counts from the start of the run.
type model struct {
	opts   idempotent.Options[int, int]
	now    time.Duration
	keys   map[int]*key
	queue  []*call // claims without a slot, longest first
	slots  int     // taken
	order  int
	stale  []int // remembered keys, most recent last
	closed bool
	stats  idempotent.Stats
}

// key is what is known of one key.
type key struct {
	holder      *call
	fingerprint string
	line        []*call
	result      *result
}

type result struct {
	value       int
	err         error
	fingerprint string
	ends        time.Duration
	order       int
}

// expectation is what the model knows of a call.
type expectation struct {
	want     string        // what it returns; "" = it has not returned
	deadline time.Duration // 0 = none
	ends     time.Duration // its effect; 0 = not running
	waits    bool
	queued   bool
}

func newModel(opts idempotent.Options[int, int]) *model {
	if opts.StaleMemory == 0 {
		opts.StaleMemory = 1 << 16
	}
	return &model{opts: opts, keys: make(map[int]*key)}
}

func (m *model) key(k int) *key {
	if m.keys[k] == nil {
		m.keys[k] = new(key)
	}
	return m.keys[k]
}

// next is the instant of the next thing that happens by itself.
func (m *model) next(calls []*call) time.Duration {
	next := time.Duration(math.MaxInt64)
	for _, c := range calls {
		if c.model.ends != 0 {
			next = min(next, c.model.ends)
		}
		if c.model.want == "" && c.model.deadline > m.now {
			next = min(next, c.model.deadline)
		}
	}
	for _, k := range m.keys {
		if k.result != nil {
			next = min(next, k.result.ends)
		}
	}
	return next
}

// advance lets everything happen that does by an instant.
func (m *model) advance(to time.Duration, calls []*call) {
	for next := m.next(calls); next <= to; next = m.next(calls) {
		m.now = next
		m.expire()
		for _, c := range calls {
			switch {
			case c.model.ends == next:
				m.settle(c)
			case c.model.deadline == next && c.model.want == "":
				m.leave(c)
			}
		}
	}
	m.now = to
}

func (m *model) expire() {
	for name, k := range m.keys {
		if k.result != nil && k.result.ends <= m.now {
			k.result = nil
			m.stats.Expired++
			m.remember(name)
		}
	}
}

func (m *model) remember(name int) {
	if m.opts.StaleMemory < 0 {
		return
	}
	m.forget(name)
	m.stale = append(m.stale, name)
	if len(m.stale) > m.opts.StaleMemory {
		m.stale = m.stale[1:]
	}
}

func (m *model) forget(name int) {
	m.stale = slices.DeleteFunc(m.stale, func(k int) bool { return k == name })
}

func differ(a, b string) bool { return a != "" && b != "" && a != b }

// call is what happens when c comes.
func (m *model) call(c *call) {
	k := m.key(c.Key)
	switch dead := c.dead(); {
	case k.result != nil && differ(k.result.fingerprint, c.Fingerprint),
		k.holder != nil && differ(k.fingerprint, c.Fingerprint):
		m.refuse(c, idempotent.ErrMismatch)
	case k.result != nil:
		m.stats.Replayed++
		c.model.want = answer(idempotent.Replayed, k.result.value, k.result.err)
	case k.holder != nil && c.NoWait:
		m.refuse(c, idempotent.ErrInFlight)
	case k.holder != nil && dead != nil:
		m.refuse(c, idempotent.ErrInFlight, dead)
	case k.holder != nil:
		c.model.waits = true
		k.line = append(k.line, c)
	case m.closed:
		m.refuse(c, idempotent.ErrShutdown)
	case dead != nil:
		m.refuse(c, dead)
	case m.full() && !m.evict():
		m.refuse(c, idempotent.ErrFull)
	default:
		k.fingerprint = c.Fingerprint
		m.lead(c, k)
	}
}

func (m *model) refuse(c *call, why ...error) {
	m.stats.Refused++
	c.model.want = answer(idempotent.Refused, 0, errors.Join(why...))
	c.model.waits = false
}

func (m *model) full() bool {
	held := 0
	for _, k := range m.keys {
		if k.holder != nil || k.result != nil {
			held++
		}
	}
	return m.opts.Capacity > 0 && held >= m.opts.Capacity
}

// evict drops the oldest result whose outcome is not unknown.
func (m *model) evict() bool {
	oldest := 0
	for name, k := range m.keys {
		if k.result != nil && !errors.Is(k.result.err, idempotent.ErrOutcomeUnknown) && (oldest == 0 || k.result.order < m.keys[oldest].result.order) {
			oldest = name
		}
	}
	if oldest == 0 || !m.opts.EvictOldest {
		return false
	}
	m.keys[oldest].result = nil
	m.stats.Evicted++
	m.remember(oldest)
	return true
}

// lead gives c the claim of its key.
func (m *model) lead(c *call, k *key) {
	k.holder, c.model.waits = c, false
	if slices.Contains(m.stale, c.Key) {
		m.stats.Stale++
		if c.RefuseStale && m.opts.OnStale != nil {
			m.giveUp(c, idempotent.ErrStale)
			return
		}
	}
	switch {
	case m.opts.MaxConcurrent == 0 || m.slots < m.opts.MaxConcurrent && len(m.queue) == 0:
		m.start(c)
	case c.NoWait:
		m.giveUp(c, idempotent.ErrInFlight)
	default:
		c.model.queued = true
		m.queue = append(m.queue, c)
	}
}

func (m *model) start(c *call) {
	m.slots++
	c.model.ends = c.effectEnds(m.now)
}

// giveUp refuses the holder of a key.
func (m *model) giveUp(c *call, why error) {
	m.refuse(c, why)
	m.pass(m.key(c.Key))
}

// leave is what happens when c's ctx ends.
func (m *model) leave(c *call) {
	k := m.key(c.Key)
	switch {
	case c.model.waits:
		k.line = slices.DeleteFunc(k.line, func(o *call) bool { return o == c })
		m.refuse(c, idempotent.ErrInFlight, context.DeadlineExceeded)
	case c.model.queued:
		c.model.queued = false
		m.queue = slices.DeleteFunc(m.queue, func(o *call) bool { return o == c })
		m.giveUp(c, context.DeadlineExceeded)
	case c.model.ends != 0 && m.opts.Detach:
		c.model.want = answer(idempotent.Executed, 0, errors.Join(idempotent.ErrInFlight, context.DeadlineExceeded))
	}
}

// settle is the end of c's effect.
func (m *model) settle(c *call) {
	k := m.key(c.Key)
	c.model.ends = 0
	value, err, kept := c.outcome(m.opts.HoldPanics)
	if c.model.want == "" {
		c.model.want = answer(idempotent.Executed, value, err)
		if c.throws() && !m.opts.Detach {
			c.model.want = fmt.Sprint("thrown by ", c.ID)
		}
	}
	switch {
	case kept:
		m.stats.Executed++
		ttl := m.opts.TTL
		if c.TTL != 0 {
			ttl = c.TTL
		}
		if err != nil && m.opts.FailureTTL != 0 {
			ttl = m.opts.FailureTTL
		}
		m.keep(c.Key, &result{value: value, err: err, fingerprint: k.fingerprint}, ttl)
		k.holder = nil
		m.share(k, value, err)
	case m.opts.ShareFailure:
		m.failed(c)
		k.holder = nil
		m.share(k, 0, err)
	default:
		m.failed(c)
		m.passSlot(func() { m.pass(k) })
		return
	}
	m.passSlot(func() {})
}

func (m *model) failed(c *call) {
	m.stats.Failed++
	if c.throws() {
		m.stats.Panicked++
	}
}

// shut refuses those who queue for a slot, and all that would start.
func (m *model) shut() {
	m.closed = true
	queue := m.queue
	m.queue = nil
	for _, c := range queue {
		c.model.queued = false
		m.giveUp(c, idempotent.ErrShutdown)
	}
}

// passSlot gives a slot back. The claims that queue for one come before an heir.
func (m *model) passSlot(then func()) {
	m.slots--
	if m.opts.MaxConcurrent == 0 {
		then()
		return
	}
	for m.slots < m.opts.MaxConcurrent && len(m.queue) > 0 {
		c := m.queue[0]
		m.queue = m.queue[1:]
		c.model.queued = false
		m.start(c)
	}
	then()
}

func (m *model) keep(name int, r *result, ttl time.Duration) {
	m.order++
	r.order = m.order
	if r.ends = m.now + ttl; r.ends < m.now {
		r.ends = math.MaxInt64
	}
	m.key(name).result = r
	m.forget(name)
}

func (m *model) share(k *key, value int, err error) {
	for _, c := range k.line {
		m.stats.Shared++
		c.model.want = answer(idempotent.Shared, value, err)
		c.model.waits = false
	}
	k.line = nil
}

// pass gives the claim to the one that has waited longest.
func (m *model) pass(k *key) {
	k.holder = nil
	if m.closed {
		for _, c := range k.line {
			m.refuse(c, idempotent.ErrShutdown)
		}
		k.line = nil
	}
	if len(k.line) == 0 {
		return
	}
	heir := k.line[0]
	k.line = k.line[1:]
	k.fingerprint = heir.Fingerprint
	k.line = slices.DeleteFunc(k.line, func(c *call) bool {
		gone := differ(k.fingerprint, c.Fingerprint)
		if gone {
			m.refuse(c, idempotent.ErrMismatch)
		}
		return gone
	})
	m.lead(heir, k)
}

// statsNow is what Stats must return.
func (m *model) statsNow() idempotent.Stats {
	s := m.stats
	for _, k := range m.keys {
		if k.holder != nil {
			s.InFlight++
		}
		if k.result != nil {
			s.Retained++
			if errors.Is(k.result.err, idempotent.ErrOutcomeUnknown) {
				s.Unknown++
			}
		}
		s.Waiting += len(k.line)
	}
	return s
}

// answer is a call's return as text: verdict, value and what the error matches.
func answer(verdict idempotent.Verdict, value int, err error) string {
	var matches []string
	for _, kind := range []error{
		idempotent.ErrInFlight, idempotent.ErrMismatch, idempotent.ErrFull, idempotent.ErrDeadlock, idempotent.ErrStale,
		idempotent.ErrOutcomeUnknown, idempotent.ErrShutdown, context.DeadlineExceeded,
	} {
		if errors.Is(err, kind) {
			matches = append(matches, strings.TrimPrefix(kind.Error(), "idempotent: "))
		}
	}
	if e, ok := errors.AsType[effectError](err); ok {
		matches = append(matches, e.Error())
	}
	if p, ok := errors.AsType[*idempotent.PanicError](err); ok {
		matches = append(matches, fmt.Sprint("PanicError ", p.Goexit))
	}
	return fmt.Sprintf("%v %d %q", verdict, value, matches)
}
