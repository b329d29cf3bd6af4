package idemhttp

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/idempotent-go/idempotent"
)

// An Executor runs a key's effect once and keeps its response: an
// *idempotent.Endpoint[string, Response] in memory, or a guard over Redis or
// SQL with the same method. It gives the effect the caller's values and not the
// caller's cancellation; with an Endpoint whose PassCancel is set, a client that
// hangs up cancels the handler. It may run the effect on another goroutine and
// return before it ends: the middleware then waits for the handler, as nothing
// can be written to the client afterwards. Kept responses are shared and never
// changed, so no Clone is needed.
type Executor interface {
	Handle(ctx context.Context, req idempotent.Request[string],
		effect func(context.Context) (Response, error)) (Response, idempotent.Verdict, error)
}

// Options say how a middleware behaves; the zero value is a good start. A
// negative MaxBody or MaxResponse makes the middleware's constructor panic, as
// it can return no error.
type Options struct {
	// Key finds the request's key; nil means the middleware's own rule. "" says
	// that there is none. What it returns must be valid UTF-8 of at most 255
	// bytes without control characters. A request without a key, or with a bad
	// one, is refused with 400 and the beginning of the error's text. Webhook's
	// own rule lets a GET or HEAD without a body pass; one that is set here says
	// for every request what its key is. Key, Scope and Verify get a copy of the
	// request, whose body each may read from its beginning.
	Key func(r *http.Request, body []byte) (string, error)

	// Scope names the tenant or caller that the key belongs to. It is joined to
	// the key without ambiguity, and is stored with it: hash it if it is secret.
	// "" is a scope like any other: all requests for which it is returned share
	// their keys, so have the unauthenticated ones refused before this middleware.
	// nil means one scope for all.
	Scope func(r *http.Request) string

	// Verify checks the request's signature before any key is claimed; an error
	// is answered with 401, without its text. It is also asked for requests that
	// carry no key and are let through. nil means no check.
	Verify func(r *http.Request, body []byte) error

	// Optional makes IdempotencyKey let requests without a key through.
	Optional bool

	// MaxBody is the most bytes of a request body that are read, and held while
	// the handler runs; a longer body is refused with 413 and nothing is run. 0
	// means 1 MiB. While a body above 64 KiB grows, half as much again may be in
	// use for a moment; so with MaxResponse, whose copy is trimmed at the end.
	MaxBody int64

	// MaxResponse is the most bytes of a response body kept in memory. A longer
	// body goes to Spill. 0 means 1 MiB.
	MaxResponse int64

	// MaxWait is how long a duplicate waits for a running attempt. 0 means 2 s,
	// a negative value that it does not wait. It never bounds the handler.
	MaxWait time.Duration

	// Keep says which statuses are results, to be replayed; any other leaves the
	// key free. nil means the middleware's own rule. It is asked once for each
	// response, with its final status.
	Keep func(status int) bool

	// Spill takes bodies above MaxResponse. nil means that they are remembered
	// as omitted.
	Spill Spill
}

// A Spill stores response bodies that are too large for memory. Its methods
// are called by several goroutines at once. The body of one Put ends with an
// error other than io.EOF if the response is not to be kept, as after a panic of
// the handler; Put must then store nothing. It reads while the handler writes: a
// slow Put slows the first client's answer, and the body may be of any length.
type Spill interface {
	// Put stores body whole, or returns an error. ref is what Open finds it by.
	Put(ctx context.Context, key string, body io.Reader) (ref string, err error)
	// Open returns a stored body from its beginning. If the reader also has
	// Stat() (fs.FileInfo, error), its size becomes the Content-Length.
	Open(ctx context.Context, ref string) (io.ReadCloser, error)
}

const (
	defaultMaxBody     = 1 << 20
	defaultMaxResponse = 1 << 20
	defaultMaxWait     = 2 * time.Second
)

// withDefaults panics on values that no caller can mean.
func (o Options) withDefaults(keep func(int) bool) Options {
	if o.MaxBody < 0 {
		panic(fmt.Sprintf("idemhttp: Options.MaxBody is %d, want 0 or more", o.MaxBody))
	}
	if o.MaxResponse < 0 {
		panic(fmt.Sprintf("idemhttp: Options.MaxResponse is %d, want 0 or more", o.MaxResponse))
	}
	if o.MaxBody == 0 {
		o.MaxBody = defaultMaxBody
	}
	o.MaxBody = min(o.MaxBody, math.MaxInt64-1) // one more than it can be counted to
	if o.MaxResponse == 0 {
		o.MaxResponse = defaultMaxResponse
	}
	if o.MaxWait == 0 {
		o.MaxWait = defaultMaxWait
	}
	if o.Keep == nil {
		o.Keep = keep
	}
	return o
}
