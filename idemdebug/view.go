package idemdebug

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/idempotent-go/idempotent"
)

// recent is how far back the findings look.
const recent = 5 * time.Minute

// What a page lists of each kind at most.
const (
	mostClaims = 50
	mostHeld   = 100
)

// view is what the layout fills in.
type view struct {
	Name, Host, Problem string
	PID                 int
	Style               template.CSS
	Now, Since          moment
	Live                bool   // the browser loads the page again and again
	Steady, Lively      string // addresses of this page without that and with it

	Findings []finding
	Claims   []claimRow
	More     int // claims that are not listed
	CanParse bool
	Query    string
	Look     *look
	Covers   string // the time that a chart's box stands for
	Known    string // the time that there are samples of
	Numbers  []number
	Gauges   []number
	Late     []lateRow
	Watching bool
	Held     *held
	Changes  bool // allowed
	Actions  []action
}

// moment is an instant as a page shows it.
type moment struct {
	UTC, RFC3339 string
	Ago          string // or how long until then
}

func (v *view) moment(at, now time.Time) moment {
	m := moment{UTC: at.UTC().Format("2006-01-02 15:04:05"), RFC3339: at.UTC().Format(time.RFC3339), Ago: age(now.Sub(at)) + " ago"}
	if at.After(now) {
		m.Ago = "in " + age(at.Sub(now))
	}
	return m
}

// keyCell is a key in a table, with the address that looks it up.
type keyCell struct {
	Text string
	Link string // "" if keys cannot be looked up
}

type claimRow struct {
	Key     keyCell
	Age     string
	Since   moment
	Waiters int
	Slow    bool
}

type lateRow struct {
	Key           keyCell
	At, Completed moment
	Answer        string
}

// show answers with the page.
func (p *Page[K, V]) show(w http.ResponseWriter, r *http.Request, query url.Values, status int, problem error) {
	v := p.view(r.Context(), query)
	if problem != nil {
		v.Problem = problem.Error()
	}
	var page bytes.Buffer
	if err := layout.Execute(&page, v); err != nil {
		http.Error(w, "500 the page could not be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(page.Bytes()) // the browser has gone: nobody to tell
}

func (p *Page[K, V]) view(ctx context.Context, query url.Values) *view {
	now := p.present()
	samples := p.history.with(now)
	covers := samplesKept * p.opts.SampleEvery
	v := &view{
		Name: p.opts.Name, Host: p.host, PID: os.Getpid(), Style: template.CSS(style),
		CanParse: p.opts.ParseKey != nil,
		Watching: p.opts.Stale != nil,
		Changes:  p.opts.AllowForget || p.opts.AllowResolve,
		Covers:   age(covers),
		Known:    age(min(samples.span(), covers)),
		Numbers:  numbers(samples, covers),
		Gauges:   gauges(samples, covers),
	}
	v.Now, v.Since = v.moment(now.at, now.at), v.moment(p.since, now.at)

	claims := p.endpoint.InFlight()
	for _, c := range claims[:min(len(claims), mostClaims)] {
		running := now.at.Sub(c.Since)
		v.Claims = append(v.Claims, claimRow{p.cell(c.Key), age(running), v.moment(c.Since, now.at), c.Waiters, running >= p.opts.SlowClaim})
	}
	v.More = len(claims) - len(v.Claims)
	v.Findings = findings(samples, claims, p.opts.SlowClaim)

	for _, late := range p.opts.Stale.latest() {
		row := lateRow{p.cell(late.key), v.moment(late.at, now.at), v.moment(late.completedAt, now.at), "ran again"}
		if late.refusal != nil {
			row.Answer = "refused: " + brief(late.refusal.Error())
		}
		v.Late = append(v.Late, row)
	}
	p.mu.Lock()
	v.Actions = append(v.Actions, p.actions...)
	p.mu.Unlock()
	for i := range v.Actions {
		v.Actions[i].At = v.moment(v.Actions[i].at, now.at)
	}

	if query.Has("key") {
		v.Query = query.Get("key")
		v.Look = p.look(v, v.Query, claims, now.at)
	}
	if query.Has("held") {
		v.Held = p.held(ctx, v, now)
	}
	v.Live = query.Has("live")
	query.Del("live")
	v.Steady = "?" + query.Encode()
	query.Set("live", "1")
	v.Lively = "?" + query.Encode()
	return v
}

func (p *Page[K, V]) cell(key K) keyCell {
	text := p.opts.FormatKey(key)
	cell := keyCell{Text: brief(text)}
	if p.opts.ParseKey != nil {
		cell.Link = address(text)
	}
	return cell
}

// address is where the key with this text is looked up, relative to the page.
func address(text string) string { return "?" + url.Values{"key": {text}}.Encode() }

// A finding is a sentence on what stands out, and where there is more of it.
type finding struct{ Text, Link string }

// findings say what stands out, worst first.
func findings[K comparable](s series, claims []idempotent.Claim[K], slow time.Duration) (found []finding) {
	now := s.now()
	say := func(format string, args ...any) { found = append(found, finding{Text: fmt.Sprintf(format, args...)}) }
	if n := now.stats.Unknown; n > 0 {
		say("%s unknown and a person must settle %s: each may or may not have happened, its calls get an error, "+
			"and when its window ends the next one runs the effect again.", are(n, "outcome"), them(n))
		found[0].Link = "?held=1#heldback"
	}
	slowClaims, waiters := 0, 0
	for _, c := range claims {
		if now.at.Sub(c.Since) >= slow {
			slowClaims++
			waiters += c.Waiters
		}
	}
	if slowClaims > 0 {
		say("%s been running for more than %s, the oldest for %s. %s for %s.",
			have(slowClaims, "effect"), age(slow), age(now.at.Sub(claims[0].Since)), plural(waiters, "call")+wait(waiters), them(slowClaims))
	}
	over := func(of func(*idempotent.Stats) uint64) uint64 { return s.grown(recent, of) }
	in := "in the last " + age(min(recent, s.span())) + "."
	if n := over(panicked); n > 0 {
		say("%s panicked %s What each had done before that is not known.", plural(n, "effect"), in)
	}
	if n := over(stale); n > 0 {
		say("%s came after the key's result was gone %s Unless OnStale refused, the effect ran again: see late retries.", plural(n, "call"), in)
	}
	if n := over(evicted); n > 0 {
		say("%s had to make room before the window ended %s A retry of such a key runs its effect again.", plural(n, "result"), in)
	}
	if n, of := over(failed), over(executed)+over(failed); n*10 > of {
		say("%s of %s failed %s Their callers got the error, and the keys are free to try again.", count(n), plural(of, "effect"), in)
	}
	if n, of := over(refused), over(calls); n*20 > of {
		say("%s of %s got nothing %s The callers' errors say why: in flight, another request under the key, full, shut down, "+
			"a key or a window that cannot be, a call that would have waited for itself, a late retry that OnStale refused, "+
			"or a ctx that ended before the effect began.", count(n), plural(of, "call"), in)
	}
	return found
}

func are(n int, thing string) string {
	if n == 1 {
		return "1 " + thing + " is"
	}
	return plural(n, thing) + " are"
}

func have(n int, thing string) string {
	if n == 1 {
		return "1 " + thing + " has"
	}
	return plural(n, thing) + " have"
}

func them(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

func wait(n int) string {
	if n == 1 {
		return " waits"
	}
	return " wait"
}

// kind says what sort of result a record is.
func kind(err error) string {
	switch {
	case err == nil:
		return "success"
	case errors.Is(err, idempotent.ErrOutcomeUnknown):
		return "outcome unknown"
	}
	return "kept failure"
}
