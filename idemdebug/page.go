// Package idemdebug is a page to look at an endpoint with, as net/http/pprof is
// for a process: what runs and for how long, how often what happened in the last
// hour, which retries came too late, and what is kept for one key.
//
//	var late idemdebug.StaleLog[string]
//	payments, err := idempotent.New(idempotent.Options[string, Receipt]{OnStale: late.Watch(nil)})
//	...
//	page, err := idemdebug.New(payments, idemdebug.Options[string, Receipt]{Name: "payments", Stale: &late})
//	...
//	internal.Handle("/debug/payments", page)
//
// The page shows keys and errors, and can be allowed to change things. Like
// pprof it asks nobody who they are: serve it where only operators come. It
// needs no JavaScript and loads nothing.
package idemdebug

import (
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Options say what a [Page] shows and allows. The zero value is a good start for
// keys that are strings or integers, or that read and write themselves as text
// (encoding.TextMarshaler).
type Options[K comparable, V any] struct {
	// Name is the page's heading. "" means "idempotent".
	Name string

	// FormatKey writes a key for people. nil means its text.
	FormatKey func(K) string
	// ParseKey reads what FormatKey wrote, or what an operator typed. nil means
	// the reverse of the default FormatKey. Without one, for other kinds of keys
	// or beside a FormatKey, no key can be looked up.
	ParseKey func(string) (K, error)

	// FormatValue writes a kept value for people. nil means that values are not
	// shown: they may be nobody else's business.
	FormatValue func(V) string
	// ParseValue reads the value that an operator settles an unknown outcome
	// with. nil means a default for strings, []byte, integers, struct{} and what
	// reads itself as text. For the responses of idemhttp see the example.
	ParseValue func(string) (V, error)

	// Stale has the late retries to show. nil shows only how many there were.
	Stale *StaleLog[K]

	// SlowClaim is the age from which a running effect is pointed out.
	// 0 means a minute.
	SlowClaim time.Duration

	// SampleEvery is the time between two looks at the counters. The last 240 are
	// kept. 0 means 15 seconds, which makes an hour.
	SampleEvery time.Duration

	// AllowForget and AllowResolve let the page call Endpoint.Forget and
	// Endpoint.Resolve. AllowResolve needs a ParseValue, or a type that has a
	// default.
	AllowForget, AllowResolve bool

	// Logger gets a line for each change made through the page.
	// nil means slog.Default().
	Logger *slog.Logger
}

func (o Options[K, V]) withDefaults() (Options[K, V], error) {
	if o.SlowClaim < 0 {
		return o, fmt.Errorf("idemdebug: Options.SlowClaim is %v, want 0 or more", o.SlowClaim)
	}
	if o.SampleEvery < 0 {
		return o, fmt.Errorf("idemdebug: Options.SampleEvery is %v, want 0 or more", o.SampleEvery)
	}
	format, parse := textOf[K]()
	if o.FormatKey == nil {
		o.FormatKey = format
		if o.ParseKey == nil {
			o.ParseKey = parse
		}
	}
	if o.ParseValue == nil {
		_, o.ParseValue = textOf[V]()
	}
	if o.AllowResolve && o.ParseValue == nil {
		var zero V
		return o, fmt.Errorf("idemdebug: Options.ParseValue is nil, and AllowResolve needs one for values of type %T", zero)
	}
	if (o.AllowForget || o.AllowResolve) && o.ParseKey == nil {
		var zero K
		return o, fmt.Errorf("idemdebug: Options.ParseKey is nil, and AllowForget and AllowResolve need one for keys of type %T", zero)
	}
	if o.Name == "" {
		o.Name = "idempotent"
	}
	if o.SlowClaim == 0 {
		o.SlowClaim = time.Minute
	}
	if o.SampleEvery == 0 {
		o.SampleEvery = 15 * time.Second
	}
	return o, nil
}

// A Page is an [http.Handler] that serves one endpoint's page at whatever path
// it is mounted on. Make one with [New]. It can be used by any number of
// goroutines, and needs no closing: one that is no longer referenced is
// collected, and its samples end with it.
type Page[K comparable, V any] struct {
	endpoint *idempotent.Endpoint[K, V]
	opts     Options[K, V]
	host     string
	since    time.Time
	token    string // in every form: a page of another site, or of another process, does not know it

	history history

	mu      sync.Mutex
	actions []action // last ones made through the page, latest first; guarded by mu
}

// New returns a page that looks at e, or an error that names the option that
// cannot be. From now on, it samples e's counters every Options.SampleEvery.
func New[K comparable, V any](e *idempotent.Endpoint[K, V], opts Options[K, V]) (*Page[K, V], error) {
	if e == nil {
		return nil, errors.New("idemdebug: the endpoint is nil")
	}
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	p := &Page[K, V]{endpoint: e, opts: opts, host: host, since: time.Now(), token: rand.Text()}
	p.sample()
	return p, nil
}

//go:embed style.css
var style string

//go:embed page.html
var markup string

var (
	layout = template.Must(template.New("page").Parse(markup))
	policy = "default-src 'none'; style-src 'sha256-" + hash(style) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// ServeHTTP shows the page (GET, HEAD), or makes a change and sends the browser
// back to the page (POST).
func (p *Page[K, V]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer") // the address has a key in it
	header.Set("Cache-Control", "no-store")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		p.show(w, r, r.URL.Query(), http.StatusOK, nil)
	case http.MethodPost:
		p.change(w, r)
	default:
		header.Set("Allow", "GET, HEAD, POST")
		http.Error(w, "405 method not allowed", http.StatusMethodNotAllowed)
	}
}
