package idemhttp

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotent-go/idempotent"
)

// A call is one guarded request's way through the executor.
type call struct {
	*guard
	next http.Handler
	w    http.ResponseWriter
	r    *http.Request
	body []byte
	key  string
	wait waiting

	doubt atomic.Pointer[error] // what Unknown was told, by whatever goroutine of the handler

	// running is held while the handler runs, which may be on another goroutine
	// if the executor likes, and guards the fields below.
	running  sync.Mutex
	closed   bool // no handler may start any more: w is no longer ours
	entered  bool
	returned bool
	thrown   any // what the handler panicked with
}

var (
	errNotKept = errors.New("idemhttp: the response is not one to keep")
	errClosed  = errors.New("idemhttp: the request has been answered")
)

// effect runs the handler, which answers the client at the same time. Its error
// gives the key up, and is not the client's business.
func (c *call) effect(ctx context.Context) (Response, error) {
	c.running.Lock()
	defer c.running.Unlock()
	if c.closed || c.entered {
		return Response{}, errClosed
	}
	c.entered = true
	c.wait.over()

	r := withBody(context.WithValue(ctx, callKey{}, c), c.r, c.body)
	defer removeParts(r)
	rec := &recorder{ResponseWriter: c.w, guard: c.guard, ctx: ctx, method: r.Method, key: c.key}
	defer rec.abandon()
	defer func() {
		if c.thrown = recover(); c.thrown != nil {
			panic(c.thrown) // the handler's frames are still on the stack
		}
	}()
	c.next.ServeHTTP(rec, r)
	c.returned = true
	if doubt := c.doubt.Load(); doubt != nil {
		return Response{}, idempotent.Unknown(*doubt)
	}
	return rec.result()
}

type callKey struct{}

// Unknown says that the handler cannot tell whether its effect has happened, as
// after a call to another service that was sent and not answered; err says why.
// When the handler has returned, its response goes to its own client as any
// other, but is no result whatever its status: the key is held, and its other
// requests are answered with 409, until an operator settles it (Resolve, Forget)
// or FailureTTL ends. After a panic the executor's rule for panics holds instead.
//
// ctx is the handler's, or made from it. It reports whether there is a key to
// hold: false, and nothing done, outside the middlewares' handlers, for a
// request that was let through without a key, and for a nil err. It may be called
// by any goroutine of the handler, before the handler returns; of several calls
// the last counts.
func Unknown(ctx context.Context, err error) bool {
	c, guarded := ctx.Value(callKey{}).(*call)
	if !guarded || err == nil {
		return false
	}
	c.doubt.Store(&err)
	return true
}

// close waits for a handler that still runs and says whether there was one.
func (c *call) close() (entered bool) {
	c.running.Lock()
	defer c.running.Unlock()
	c.closed = true
	return c.entered
}

// settle passes a handler's panic on where the executor could not, because it
// ran the handler on another goroutine.
func (c *call) settle() {
	switch {
	case c.returned:
	case c.thrown != nil:
		panic(c.thrown)
	default: // Goexit
		panic(http.ErrAbortHandler)
	}
}

// waiting is the request's context with a limit on waiting. The clock starts
// with the first look at Done, so that a replay sets no timer, and stops when
// the handler starts.
type waiting struct {
	context.Context // the request's
	limit           time.Duration

	mu      sync.Mutex
	limited context.Context // nil until Done was asked for
	cancel  context.CancelCauseFunc
	timer   *time.Timer
	stopped bool
}

func (c *waiting) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limited == nil {
		limited, cancel := context.WithCancelCause(c.Context)
		c.limited, c.cancel = limited, cancel
		if !c.stopped {
			c.timer = time.AfterFunc(c.limit, func() { cancel(context.DeadlineExceeded) })
		}
	}
	return c.limited.Done()
}

func (c *waiting) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limited == nil {
		return c.Context.Err()
	}
	if err := c.limited.Err(); err == nil || context.Cause(c.limited) != context.DeadlineExceeded {
		return err
	}
	return context.DeadlineExceeded
}

// over ends the limit.
func (c *waiting) over() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

// release frees what the wait took up.
func (c *waiting) release() {
	c.over()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel(nil)
	}
}
