package idemredis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/idempotent-go/idempotent"
)

// A Spill keeps values that are too large for Redis; idemhttp.Dir makes one of
// a folder. It is called by several goroutines at once. It must keep a value
// for as long as the window that its key has, or callers are told [ErrNoValue].
type Spill interface {
	Put(ctx context.Context, key string, body io.Reader) (ref string, err error)
	Open(ctx context.Context, ref string) (io.ReadCloser, error)
}

// A kept outcome as Redis has it.
type kept struct {
	value, ref, text string
}

// A settlement is what becomes of a claim.
type settlement struct {
	to     string // a state of a kept result, or free or never
	window time.Duration
	kept
}

// never gives a claim up whose effect was not entered.
const never = "never"

// outcome says what an ended effect leaves. The effect's error is not an error
// here: only what keeps the value from being kept is.
func (g *Guard[V]) outcome(ctx context.Context, req idempotent.Request[string], value V, failure error) (settlement, error) {
	s := settlement{to: stateValue, window: g.opts.TTL}
	if req.TTL > 0 {
		s.window = req.TTL
	}
	if failure == nil {
		var err error
		if s.value, s.ref, err = g.encode(ctx, req.Key, value); err != nil {
			s.to, s.text = stateOmitted, err.Error()
			return s, err
		}
		return s, nil
	}
	switch {
	case errors.Is(failure, idempotent.ErrOutcomeUnknown):
		s.to = stateUnknown
	case idempotent.IsPermanent(failure):
		s.to = stateFailure
	default:
		return settlement{to: free}, nil
	}
	if g.opts.FailureTTL > 0 {
		s.window = g.opts.FailureTTL
	}
	s.text = failure.Error()
	// A failure is worth keeping without the value that came with it.
	s.value, s.ref, _ = g.encode(ctx, req.Key, value)
	return s, nil
}

// encode returns the value's bytes, or where Spill put them.
func (g *Guard[V]) encode(ctx context.Context, key string, value V) (data, ref string, err error) {
	raw, err := g.opts.Codec.Marshal(value)
	switch {
	case err != nil:
		return "", "", fmt.Errorf("%w: key %q: cannot encode it: %w", ErrNoValue, key, err)
	case len(raw) <= g.opts.MaxValue:
		return string(raw), "", nil
	case g.opts.Spill == nil:
		return "", "", fmt.Errorf("%w: key %q: %d bytes, Options.MaxValue is %d", ErrNoValue, key, len(raw), g.opts.MaxValue)
	}
	ref, err = g.opts.Spill.Put(ctx, key, bytes.NewReader(raw))
	if err == nil && ref == "" {
		err = errors.New("an empty reference")
	}
	if err != nil {
		return "", "", fmt.Errorf("%w: key %q: cannot spill it: %w", ErrNoValue, key, err)
	}
	return "", ref, nil
}

// replay hands a kept outcome out.
func (g *Guard[V]) replay(ctx context.Context, key string, got answer, verdict idempotent.Verdict) (V, idempotent.Verdict, error) {
	value, err := g.decode(ctx, key, got.what, got.kept)
	return value, verdict, err
}

// decode returns a kept outcome as the effect left it.
func (g *Guard[V]) decode(ctx context.Context, key, state string, k kept) (value V, err error) {
	switch state {
	case stateOmitted:
		return value, &keptError{k.text, ErrNoValue}
	case lost:
		return value, fmt.Errorf("%w: key %q: the lease ran out and the effect was not seen to end", idempotent.ErrOutcomeUnknown, key)
	}
	value, err = g.decodeValue(ctx, key, k)
	switch state {
	case stateFailure:
		return value, idempotent.Permanent(errors.New(k.text))
	case stateUnknown:
		return value, &keptError{k.text, idempotent.ErrOutcomeUnknown}
	}
	return value, err
}

func (g *Guard[V]) decodeValue(ctx context.Context, key string, k kept) (value V, err error) {
	raw := []byte(k.value)
	if k.ref != "" {
		if raw, err = g.fetch(ctx, k.ref); err != nil {
			return value, fmt.Errorf("%w: key %q: %w", ErrNoValue, key, err)
		}
	}
	if err = g.opts.Codec.Unmarshal(raw, &value); err != nil {
		var zero V
		return zero, fmt.Errorf("%w: key %q: cannot decode it: %w", ErrNoValue, key, err)
	}
	return value, nil
}

func (g *Guard[V]) fetch(ctx context.Context, ref string) ([]byte, error) {
	body, err := g.opts.Spill.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

// A keptError has the text that the effect's error had, and what it matches.
type keptError struct {
	text string
	kind error
}

func (e *keptError) Error() string { return e.text }
func (e *keptError) Unwrap() error { return e.kind }

// milliseconds is a duration as Redis takes it, rounded up: 0 ms would be
// refused by PEXPIRE, or taken for none.
func milliseconds(d time.Duration) string {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return strconv.FormatInt(ms, 10)
}

// parseMilliseconds reads what a script has written with %.0f; nothing is 0.
func parseMilliseconds(text string) time.Duration {
	ms, _ := strconv.ParseInt(text, 10, 64)
	return time.Duration(ms) * time.Millisecond
}

// window is a window as the scripts take it: "" never ends, as does one that
// would, rounded up, not be a Duration any more.
func window(d time.Duration) string {
	if d > math.MaxInt64-time.Millisecond {
		return ""
	}
	return milliseconds(d)
}

// parse reads enter.lua's answer.
func parse(reply []any) (answer, error) {
	a := answer{what: text(reply, 0)}
	switch a.what {
	case free, lost, mismatch:
	case claimed:
		a.stale = len(reply) > 1
		a.ago = parseMilliseconds(text(reply, 1))
	case busy:
		a.owner, a.left = text(reply, 1), parseMilliseconds(text(reply, 2))
	case stateValue, stateFailure, stateUnknown, stateOmitted:
		a.kept = kept{value: text(reply, 1), ref: text(reply, 2), text: text(reply, 3)}
	default:
		return a, fmt.Errorf("idemredis: a record in Redis has state %q; is a newer version at work?", a.what)
	}
	return a, nil
}

// text is the reply's i-th element; what is missing in Redis is "".
func text(reply []any, i int) string {
	if i >= len(reply) {
		return ""
	}
	s, _ := reply[i].(string)
	return s
}
