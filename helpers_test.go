package idempotent_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// window is the TTL of endpoints in tests that do not choose another.
const window = time.Hour

const (
	refused  = idempotent.Refused
	executed = idempotent.Executed
	replayed = idempotent.Replayed
	shared   = idempotent.Shared
)

type (
	endpoint = idempotent.Endpoint[string, string]
	options  = idempotent.Options[string, string]
	request  = idempotent.Request[string]
	effect   = func(context.Context) (string, error)
)

var (
	bg      = context.Background()
	errBoom = errors.New("boom")
)

// promise is a subtest in a bubble of its own, where time is virtual.
func promise(t *testing.T, name string, body func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, body) })
}

// open returns an endpoint with opts and, unless they say otherwise, a window of
// an hour.
func open(t testing.TB, opts options) *endpoint {
	if opts.TTL == 0 {
		opts.TTL = window
	}
	return openFor(t, opts)
}

func openFor[K comparable, V any](t testing.TB, opts idempotent.Options[K, V]) *idempotent.Endpoint[K, V] {
	e, err := idempotent.New(opts)
	require.NoError(t, err)
	if idempotent.OneHash {
		e.PutAllInOnePlace()
	}
	return e
}

// returns is an effect that ends at once.
func returns(value string, err error) effect {
	return func(context.Context) (string, error) { return value, err }
}

// after is fx, d later.
func after(d time.Duration, fx effect) effect {
	return func(ctx context.Context) (string, error) {
		time.Sleep(d)
		return fx(ctx)
	}
}

func panics(value any) effect {
	return func(context.Context) (string, error) { panic(value) }
}

func exits(context.Context) (string, error) {
	runtime.Goexit()
	return "unreachable", nil
}

// counted is fx, with its runs counted as they start.
func counted(runs *atomic.Int64, fx effect) effect {
	return func(ctx context.Context) (string, error) {
		runs.Add(1)
		return fx(ctx)
	}
}

// forbidden is an effect that must not be entered.
func forbidden(t *testing.T) effect {
	return func(context.Context) (string, error) {
		t.Error("the effect has been entered")
		return "forbidden", nil
	}
}

// gives checks a call that ends without an error.
func gives(t *testing.T, value string, verdict idempotent.Verdict) func(string, idempotent.Verdict, error) {
	t.Helper()
	return func(gotValue string, gotVerdict idempotent.Verdict, err error) {
		t.Helper()
		require.NoError(t, err)
		require.Equal(t, verdict, gotVerdict)
		require.Equal(t, value, gotValue)
	}
}

// fails checks a call that ends with an error that matches all of targets.
func fails(t *testing.T, verdict idempotent.Verdict, targets ...error) func(string, idempotent.Verdict, error) {
	t.Helper()
	return func(value string, gotVerdict idempotent.Verdict, err error) {
		t.Helper()
		require.Error(t, err)
		for _, target := range targets {
			require.ErrorIs(t, err, target)
		}
		require.Equal(t, verdict, gotVerdict)
		if verdict == refused {
			require.Empty(t, value)
		}
	}
}

// call is a call on a goroutine of its own.
type call struct {
	done chan struct{}

	// What became of it; to be read once done is closed.
	value    string
	verdict  idempotent.Verdict
	err      error
	returned bool // false: it panicked with thrown or, if that is nil, called Goexit
	thrown   any
	took     time.Duration
}

// start begins a call and lets it go as far as it can for now.
func start(e *endpoint, ctx context.Context, key string, fx effect) *call {
	return startRequest(e, ctx, request{Key: key}, fx)
}

func startRequest(e *endpoint, ctx context.Context, req request, fx effect) *call {
	c := launch(e, ctx, req, fx)
	synctest.Wait()
	return c
}

// launch is start for the outside of bubbles: it does not wait.
func launch(e *endpoint, ctx context.Context, req request, fx effect) *call {
	c := &call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer func() { c.thrown = recover() }()
		begun := time.Now()
		defer func() { c.took = time.Since(begun) }()
		c.value, c.verdict, c.err = e.Handle(ctx, req, fx)
		c.returned = true
	}()
	return c
}

// end waits for the call and returns what it returned.
func (c *call) end(t *testing.T) (string, idempotent.Verdict, error) {
	t.Helper()
	<-c.done
	require.True(t, c.returned, "the call has panicked with %v", c.thrown)
	return c.value, c.verdict, c.err
}

// throws checks that the call panicked with value or, for nil, ended by Goexit.
func (c *call) throws(t *testing.T, value any) {
	t.Helper()
	<-c.done
	require.False(t, c.returned, "the call returned %q, %v, %v", c.value, c.verdict, c.err)
	require.Equal(t, value, c.thrown)
}

// running reports whether the call has not ended yet.
func (c *call) running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// addsUp checks that nothing is running and that each of the calls counts as
// exactly one thing.
func addsUp[K comparable, V any](t *testing.T, e *idempotent.Endpoint[K, V], calls uint64) {
	t.Helper()
	s := e.Stats()
	require.Equal(t, calls, s.Executed+s.Failed+s.Replayed+s.Shared+s.Refused, "%+v", s)
	require.LessOrEqual(t, s.Panicked, s.Failed)
	require.Zero(t, s.InFlight)
	require.Zero(t, s.Waiting)
	require.Empty(t, e.InFlight())
}
