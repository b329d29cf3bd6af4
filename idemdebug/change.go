package idemdebug

import (
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// mostForm bounds what a form may send, the value of Resolve above all.
const mostForm = 1 << 20

// actionsKept is how many changes the page lists.
const actionsKept = 20

// action is a change that was made through the page.
type action struct {
	at      time.Time
	At      moment // filled in when it is shown
	What    string
	Key     keyCell
	By, Did string
}

// refusal is why a change was not made.
type refusal struct {
	error
	status int
}

// change does what a form asks for. On success it sends the browser to the key's
// page, so that loading that again repeats nothing.
func (p *Page[K, V]) change(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, mostForm)
	text, err := p.apply(r)
	if err == nil {
		w.Header().Set("Location", address(text)) // relative: whoever mounted the page may have cut r.URL's path
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	status := http.StatusBadRequest
	if no, ok := errors.AsType[*refusal](err); ok {
		status = no.status
	}
	about := url.Values{}
	if text != "" {
		about.Set("key", text)
	}
	p.show(w, r, about, status, err)
}

// apply checks the form and makes the change. It returns the key's text as soon
// as the form has proved to be ours.
func (p *Page[K, V]) apply(r *http.Request) (text string, err error) {
	if err := r.ParseForm(); err != nil {
		return "", fmt.Errorf("the form cannot be read: %w", err)
	}
	form := r.PostForm
	if subtle.ConstantTimeCompare([]byte(form.Get("token")), []byte(p.token)) != 1 {
		return "", &refusal{errors.New("nothing was changed: the form is not from this process as it runs now. " +
			"It may have been restarted, or another one behind the same address answered. Load the page again"), http.StatusForbidden}
	}
	raw, err := base64.RawURLEncoding.DecodeString(form.Get("key"))
	if err != nil {
		return "", fmt.Errorf("the form's key cannot be read: %w", err)
	}
	text = string(raw)
	key, err := p.parseKey(text)
	if err != nil {
		return text, err
	}
	if form.Get("sure") == "" {
		return text, errors.New("nothing was changed: the box was not ticked")
	}
	switch what := form.Get("do"); {
	case what == "forget" && p.opts.AllowForget:
		err = p.forget(r, text, key, form.Get("seen"))
	case what == "resolve" && p.opts.AllowResolve:
		err = p.resolve(r, text, key, form.Get("seen"), form.Get("value"))
	default:
		err = &refusal{errors.New("nothing was changed: the program does not allow that"), http.StatusForbidden}
	}
	return text, err
}

func (p *Page[K, V]) forget(r *http.Request, text string, key K, seen string) error {
	if !p.unchanged(key, seen) {
		return &refusal{errChanged, http.StatusConflict}
	}
	did := "there was no result; the key is not stale any more"
	if p.endpoint.Forget(key) {
		did = "the result was dropped"
	}
	p.record(r, "Forget", text, key, did)
	return nil
}

func (p *Page[K, V]) resolve(r *http.Request, text string, key K, seen, value string) error {
	// A browser ends the lines of a form with \r\n, whatever the page had.
	v, err := p.opts.ParseValue(strings.ReplaceAll(value, "\r\n", "\n"))
	if err != nil {
		return fmt.Errorf("nothing was changed: the value cannot be read: %w", err)
	}
	if !p.unchanged(key, seen) || !p.endpoint.Resolve(key, v) {
		return &refusal{errChanged, http.StatusConflict}
	}
	p.record(r, "Resolve", text, key, "settled as done")
	return nil
}

// unchanged reports whether the key's result is the one that the operator saw
// when it completed ("" = none): a page may be hours old, and the effect may have
// run since. What comes between this and the change is still possible.
func (p *Page[K, V]) unchanged(key K, seen string) bool {
	record, ok := p.endpoint.Lookup(key)
	if !ok || seen == "" {
		return !ok && seen == ""
	}
	nano, err := strconv.ParseInt(seen, 10, 64)
	// The instant is counted from the wall clock as it is at each look, and so
	// comes out a little different each time.
	return err == nil && record.CompletedAt.Sub(time.Unix(0, nano)).Abs() < time.Second
}

// record leaves a trace of a change, for the next operator and in the log.
func (p *Page[K, V]) record(r *http.Request, what, text string, key K, did string) {
	p.mu.Lock()
	latest := action{at: time.Now(), What: what, Key: p.cell(key), By: r.RemoteAddr, Did: did}
	p.actions = append([]action{latest}, p.actions[:min(len(p.actions), actionsKept-1)]...)
	p.mu.Unlock()
	log := p.opts.Logger
	if log == nil {
		log = slog.Default()
	}
	log.WarnContext(r.Context(), "idemdebug: "+what, "endpoint", p.opts.Name, "key", text, "from", r.RemoteAddr, "did", did)
}
