package idemdebug

import (
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/idempotent-go/idempotent"
)

// samplesKept at the default interval make an hour.
const samplesKept = 240

type sample struct {
	at    time.Time
	stats idempotent.Stats
}

// history is the counters as they were.
type history struct {
	mu      sync.Mutex
	samples series // guarded by mu
}

// sample remembers the counters, now and every SampleEvery, so that there is
// something to see at the first look. No goroutine waits for the next time, and
// the timer holds the page weakly: a pending timer is a root of the garbage
// collector.
func (p *Page[K, V]) sample() {
	p.history.add(p.present())
	page := weak.Make(p)
	time.AfterFunc(p.opts.SampleEvery, func() {
		if p := page.Value(); p != nil {
			p.sample()
		}
	})
}

func (p *Page[K, V]) present() sample { return sample{time.Now(), p.endpoint.Stats()} }

func (h *history) add(s sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.samples) == samplesKept {
		h.samples = slices.Delete(h.samples, 0, 1)
	}
	h.samples = append(h.samples, s)
}

// with returns the kept samples and now.
func (h *history) with(now sample) series {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(slices.Clone(h.samples), now)
}

// series is samples, oldest first; at least one.
type series []sample

func (s series) now() *sample { return &s[len(s)-1] }

// since returns the latest sample that is at least as old as span, or the oldest.
func (s series) since(span time.Duration) *sample {
	for i := len(s) - 1; i > 0; i-- {
		if s.now().at.Sub(s[i].at) >= span {
			return &s[i]
		}
	}
	return &s[0]
}

// span is the time that the samples cover.
func (s series) span() time.Duration { return s.now().at.Sub(s[0].at) }

// rate is how often a counter went up in a second, over the last span.
func (s series) rate(span time.Duration, of func(*idempotent.Stats) uint64) float64 {
	return rise(s.since(span), s.now(), of)
}

// grown is by how much a counter went up over the last span.
func (s series) grown(span time.Duration, of func(*idempotent.Stats) uint64) uint64 {
	return of(&s.now().stats) - of(&s.since(span).stats)
}

func rise(from, to *sample, of func(*idempotent.Stats) uint64) float64 {
	seconds := to.at.Sub(from.at).Seconds()
	if seconds <= 0 {
		return 0
	}
	return float64(of(&to.stats)-of(&from.stats)) / seconds
}
