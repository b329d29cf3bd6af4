package idemhttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
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

	// running is held while the handler runs, which may be on another goroutine
	// if the executor likes, and guards the fields below.
	running  sync.Mutex
	closed   bool // no handler may start any more: w is no longer ours
	entered  bool
	returned bool
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

	r := withBody(ctx, c.r, c.body)
	rec := &recorder{ResponseWriter: c.w, guard: c.guard, ctx: ctx, key: c.key}
	defer rec.abandon()
	c.next.ServeHTTP(rec, r)
	c.returned = true
	if r.MultipartForm != nil {
		r.MultipartForm.RemoveAll() // net/http does so for the request it made, and not for this copy
	}
	return rec.result()
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
func (c *call) settle(err error) {
	if c.returned {
		return
	}
	if panicked, ok := errors.AsType[*idempotent.PanicError](err); ok && !panicked.Goexit {
		panic(panicked.Value)
	}
	panic(http.ErrAbortHandler)
}

// withBody is r for a handler, with a context and a body to read again.
func withBody(ctx context.Context, r *http.Request, body []byte) *http.Request {
	r = r.WithContext(ctx)
	if len(body) == 0 {
		r.Body = http.NoBody
		return r
	}
	reader := &bodyReader{}
	reader.Reset(body)
	r.Body = reader
	return r
}

type bodyReader struct{ bytes.Reader }

func (*bodyReader) Close() error { return nil }

// trustedLength is the most bytes set aside on the word of a Content-Length.
const trustedLength = 64 << 10

// readBody reads r's body to its end; it is never longer than limit.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, *problem) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > limit {
		return nil, &tooLarge
	}
	body, err := readAll(http.MaxBytesReader(w, r.Body, limit), max(r.ContentLength, 0), limit)
	switch {
	case err == nil:
		return body, nil
	case isTooLarge(err):
		return nil, &tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &tooSlow
	}
	return nil, &unreadable
}

func isTooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
}

// readAll is io.ReadAll with a first size and a last one. The length is a hint
// alone: a middleware before this one may have decompressed the body. One byte
// more than there is to read lets the end be seen without growing.
func readAll(src io.Reader, length, limit int64) ([]byte, error) {
	body := make([]byte, 0, min(length, trustedLength)+1)
	for {
		if len(body) == cap(body) {
			grown := make([]byte, len(body), min(int64(cap(body))*2+512, limit+1))
			copy(grown, body)
			body = grown
		}
		n, err := src.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if err == io.EOF {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
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
