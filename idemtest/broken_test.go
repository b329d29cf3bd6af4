package idemtest_test

import (
	"bytes"
	"context"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemtest"
)

type (
	request = idempotent.Request[string]
	effect  = func(context.Context) ([]byte, error)
	call    = func(context.Context, request, effect) ([]byte, idempotent.Verdict, error)
)

// A broken guard does one thing wrong.
type broken struct {
	idemtest.Guard
	handle func(call) call                       // nil: as the guard does
	forget func(g idemtest.Guard, k string) bool // nil: likewise
}

func (b broken) Handle(ctx context.Context, req request, run effect) ([]byte, idempotent.Verdict, error) {
	if b.handle == nil {
		return b.Guard.Handle(ctx, req, run)
	}
	return b.handle(b.Guard.Handle)(ctx, req, run)
}

func (b broken) Forget(ctx context.Context, key string) (bool, error) {
	if b.forget == nil {
		return b.Guard.Forget(ctx, key)
	}
	return b.forget(b.Guard, key), nil
}

// asks breaks what a guard is asked.
func asks(spoil func(ctx *context.Context, req *request, run *effect)) func() broken {
	return func() broken {
		return broken{handle: func(handle call) call {
			return func(ctx context.Context, req request, run effect) ([]byte, idempotent.Verdict, error) {
				spoil(&ctx, &req, &run)
				return handle(ctx, req, run)
			}
		}}
	}
}

// answers breaks what a guard says.
func answers(spoil func(value *[]byte, verdict *idempotent.Verdict, err *error)) func() broken {
	return func() broken {
		return broken{handle: func(handle call) call {
			return func(ctx context.Context, req request, run effect) ([]byte, idempotent.Verdict, error) {
				value, verdict, err := handle(ctx, req, run)
				spoil(&value, &verdict, &err)
				return value, verdict, err
			}
		}}
	}
}

// apart is the fault of two guards that do not share their store.
const apart = "shares nothing between guards"

var faults = map[string]func() broken{
	"looks, acts and then marks": func() broken {
		var mu sync.Mutex
		marks := map[string][]byte{}
		return broken{handle: func(handle call) call {
			return func(ctx context.Context, req request, run effect) ([]byte, idempotent.Verdict, error) {
				mu.Lock()
				value, done := marks[req.Key]
				mu.Unlock()
				if done {
					return value, idempotent.Replayed, nil
				}
				value, err := run(context.WithoutCancel(ctx))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					marks[req.Key] = value
				}
				return value, idempotent.Executed, err
			}
		}}
	},
	"keeps every failure": asks(func(_ *context.Context, _ *request, run *effect) {
		inner := *run
		*run = func(ctx context.Context) ([]byte, error) {
			value, err := inner(ctx)
			return value, idempotent.Permanent(err)
		}
	}),
	"takes a panic for success": asks(func(_ *context.Context, _ *request, run *effect) {
		inner := *run
		*run = func(ctx context.Context) (value []byte, err error) {
			defer func() { _ = recover() }()
			return inner(ctx)
		}
	}),
	"hands the caller's end to the effect": asks(func(ctx *context.Context, _ *request, run *effect) {
		inner, caller := *run, *ctx
		*run = func(context.Context) ([]byte, error) { return inner(caller) }
	}),
	"loses the caller's values": asks(func(_ *context.Context, _ *request, run *effect) {
		inner := *run
		*run = func(context.Context) ([]byte, error) { return inner(context.Background()) }
	}),
	"waits beyond the waiter's ctx": asks(func(ctx *context.Context, _ *request, _ *effect) { *ctx = context.WithoutCancel(*ctx) }),
	"waits in spite of NoWait":      asks(func(_ *context.Context, req *request, _ *effect) { req.NoWait = false }),
	"never waits":                   asks(func(_ *context.Context, req *request, _ *effect) { req.NoWait = true }),
	"compares no fingerprints":      asks(func(_ *context.Context, req *request, _ *effect) { req.Fingerprint = "" }),
	"takes keys for equal but for case": asks(func(_ *context.Context, req *request, _ *effect) {
		req.Key = strings.ToLower(req.Key)
	}),
	"takes keys for equal but for space": asks(func(_ *context.Context, req *request, _ *effect) {
		req.Key = strings.TrimSpace(req.Key)
	}),
	"cuts keys off":           asks(func(_ *context.Context, req *request, _ *effect) { req.Key = req.Key[:min(len(req.Key), 254)] }),
	"ends no window":          asks(func(_ *context.Context, req *request, _ *effect) { req.TTL = idempotent.Forever }),
	"ends windows early":      asks(func(_ *context.Context, req *request, _ *effect) { req.TTL -= req.TTL / 4 }),
	"ends windows late":       asks(func(_ *context.Context, req *request, _ *effect) { req.TTL += req.TTL / 4 }),
	"takes a negative window": asks(func(_ *context.Context, req *request, _ *effect) { req.TTL = max(req.TTL, 0) }),
	"counts the window from the start": asks(func(_ *context.Context, req *request, run *effect) {
		inner, began := *run, time.Now()
		ttl := req.TTL
		*run = func(ctx context.Context) ([]byte, error) {
			value, err := inner(ctx)
			if ttl > 0 && time.Since(began) > ttl {
				err = context.DeadlineExceeded // its window ended meanwhile: nothing is kept
			}
			return value, err
		}
	}),
	"cuts results at a zero byte": answers(func(value *[]byte, _ *idempotent.Verdict, _ *error) {
		*value, _, _ = bytes.Cut(*value, []byte{0})
	}),
	"says Executed of every success": answers(func(_ *[]byte, v *idempotent.Verdict, err *error) {
		if *err == nil {
			*v = idempotent.Executed
		}
	}),
	"loses the text of failures": answers(func(_ *[]byte, _ *idempotent.Verdict, err *error) {
		if *err != nil {
			*err = idempotent.ErrOutcomeUnknown
		}
	}),
	apart:             func() broken { return broken{} },
	"forgets nothing": func() broken { return broken{forget: func(idemtest.Guard, string) bool { return true }} },
	"denies forgetting": func() broken {
		return broken{forget: func(g idemtest.Guard, k string) bool { _, _ = g.Forget(context.Background(), k); return false }}
	},
}

// TestBrokenGuard is run by the next test, and fails.
func TestBrokenGuard(t *testing.T) {
	fault, named := faults[os.Getenv("IDEMTEST_FAULT")]
	if !named {
		require.Empty(t, os.Getenv("IDEMTEST_FAULT"), "no such fault")
		return
	}
	can := memoryCan
	can.Bubble = true
	open := func(t *testing.T) idemtest.Guard {
		b := fault()
		b.Guard = openMemory(t)
		return b
	}
	if os.Getenv("IDEMTEST_FAULT") == apart {
		can.Second = func(t *testing.T, _ idemtest.Guard) idemtest.Guard { return open(t) }
	}
	idemtest.Run(t, open, can)
}

func TestTheSuiteNoticesABrokenGuard(t *testing.T) {
	for _, fault := range slices.Sorted(maps.Keys(faults)) {
		t.Run("that "+fault, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBrokenGuard$", "-test.timeout=1m")
			cmd.Env = append(os.Environ(), "IDEMTEST_FAULT="+fault)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "the suite passes it:\n%s", out)
			require.Contains(t, string(out), "--- FAIL: TestBrokenGuard/")
		})
	}
}
