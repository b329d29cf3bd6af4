package idemredis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
)

// A claim is a key that this process owns while its effect runs.
type claim struct {
	name, token string
	renew       func(ctx context.Context) (bool, error) // false: the claim is not ours any more
	cancel      context.CancelCauseFunc                 // of the effect's context
	lease       time.Duration

	mu    sync.Mutex // guards what follows
	until time.Time  // the lease lives until then at least: it is counted from before Redis was asked
	timer *time.Timer
	ended bool // the effect has; the lease is of no interest any more
	lost  bool
}

// lead runs the effect in the claim that was asked for at sent.
func (g *Guard[V]) lead(ctx context.Context, e entry, sent time.Time, got answer, effect func(context.Context) (V, error)) (value V, verdict idempotent.Verdict, err error) {
	effectCtx, c := g.hold(ctx, e, sent)
	entered, ended := false, false
	defer func() {
		if ended {
			return
		}
		c.end()
		switch { // a panic or Goexit goes on; success is never inferred
		case !entered:
			g.giveBack(ctx, e)
		case !c.lost:
			_ = g.record(ctx, c, e.req.Key, settlement{to: free})
		}
	}()
	if err := g.admit(ctx, c, e, sent, got); err != nil {
		return refuse[V](err)
	}
	entered = true
	value, err = effect(effectCtx)
	ended = true // from here on a panic (of a codec) must not free the key
	defer c.end()
	return value, idempotent.Executed, g.finish(ctx, c, e.req, value, err)
}

// admit returns why the effect must not start in a claim that is made.
func (g *Guard[V]) admit(ctx context.Context, c *claim, e entry, sent time.Time, got answer) error {
	if got.stale && g.opts.OnStale != nil {
		if err := g.opts.OnStale(ctx, e.req.Key, sent.Add(-got.ago)); err != nil {
			return fmt.Errorf("idemredis: key %q: %w", e.req.Key, err)
		}
	}
	switch {
	case ctx.Err() != nil && e.waited:
		return inFlight(ctx, e.req.Key)
	case ctx.Err() != nil:
		return contextError(ctx, e.req.Key)
	case !c.live(): // the answer was slow, or this process was stopped
		return fmt.Errorf("%w: key %q: before its effect was entered", ErrLeaseLost, e.req.Key)
	}
	return nil
}

// giveBack gives up a claim whose effect will not be entered.
func (g *Guard[V]) giveBack(ctx context.Context, e entry) {
	if _, err := g.settle(context.WithoutCancel(ctx), e.name, e.token, settlement{to: never}); err != nil {
		g.drops.add(e.name, e.token)
	}
}

// finish records how the effect ended and returns the call's error.
func (g *Guard[V]) finish(ctx context.Context, c *claim, req idempotent.Request[string], value V, failure error) error {
	// Encoding and spilling may take long: the lease is still renewed.
	s, unkept := g.outcome(context.WithoutCancel(ctx), req, value, failure)
	c.end()
	// An effect whose context was cancelled half way may have happened, whatever
	// its error says: the key is not freed. Whether a success or a marked
	// failure still counts is for Redis's clock to say.
	trouble := ErrLeaseLost
	if !c.lost || s.to != free {
		trouble = g.record(ctx, c, req.Key, s)
	}
	if trouble != nil {
		trouble = fmt.Errorf("%w: key %q: %w", ErrNotRecorded, req.Key, trouble)
	}
	return join(failure, unkept, trouble)
}

// join leaves a single error as it is; of several the text stays on one line.
func join(errs ...error) (joined error) {
	for _, err := range errs {
		switch {
		case joined == nil:
			joined = err
		case err != nil:
			joined = fmt.Errorf("%w; %w", joined, err)
		}
	}
	return joined
}

// settlePatience bounds how long a call tries to record an outcome: an effect
// that happened is worth a restart of Redis, but no longer than its lease.
const settlePatience = 2 * time.Second

// record settles the claim, trying again for a while if Redis does not answer.
// That is safe: settle.lua knows its own earlier try by the token in the result.
// A claim that was given up has left none; but while its lease lives nobody else
// can have taken it away.
func (g *Guard[V]) record(ctx context.Context, c *claim, key string, s settlement) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(settlePatience, max(time.Until(c.until), g.opts.Lease/3)))
	defer cancel()
	pause := newPauses()
	for cause := error(nil); ; {
		ours, err := g.settle(ctx, c.name, c.token, s)
		switch {
		case err == nil && (ours || s.to == free && time.Now().Before(c.until)):
			return nil
		case err == nil:
			return ErrLeaseLost
		case cause == nil || ctx.Err() == nil: // that the time is over says less than what took it
			cause = err
		}
		if errors.Is(err, redis.ErrClosed) || !pause.wait(ctx) {
			return fmt.Errorf("%w: %w", ErrUnavailable, cause)
		}
	}
}

// settle asks Redis once; false says that the claim is not the token's any more.
func (g *Guard[V]) settle(ctx context.Context, name, token string, s settlement) (bool, error) {
	message := rangKept
	if s.to == free || s.to == never {
		message = rangFree
	}
	ours, err := g.yes(ctx, settleScript, name, token, s.to, window(s.window), milliseconds(g.opts.StaleFor),
		s.value, s.ref, s.text, g.bell.channel, message+name)
	if ours {
		g.bell.hear(message + name) // who waits here need not wait for the message
	}
	return ours, err
}

// hold starts to renew the claim, and returns the effect's context.
func (g *Guard[V]) hold(ctx context.Context, e entry, sent time.Time) (context.Context, *claim) {
	own := &owner{token: e.token, outer: owners(ctx)}
	effectCtx := context.WithValue(context.WithoutCancel(ctx), ownerName{}, own)
	effectCtx = idempotent.WithKey(effectCtx, e.req.Key)
	effectCtx, cancel := context.WithCancelCause(effectCtx)
	c := &claim{name: e.name, token: e.token, cancel: cancel, lease: g.opts.Lease, until: sent.Add(g.opts.Lease)}
	c.renew = func(ctx context.Context) (bool, error) {
		return g.yes(ctx, renewScript, e.name, e.token, g.lease, g.opts.OnLostLease.String())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(time.Until(c.until)-c.lease/3*2, c.tick)
	return effectCtx, c
}

// tick renews the lease on the timer's goroutine: a short effect costs a timer
// and nothing else.
func (c *claim) tick() {
	c.mu.Lock()
	until, ended := c.until, c.ended
	c.mu.Unlock()
	if ended {
		return
	}
	// The client may hang on a dead connection for longer than the lease lasts.
	alarm := time.AfterFunc(time.Until(until), c.lose)
	defer alarm.Stop()
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	sent := time.Now()
	ours, err := c.renew(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	left := time.Until(c.until)
	switch {
	case c.ended || c.lost:
	case err == nil && ours:
		c.until = sent.Add(c.lease)
		c.timer.Reset(c.lease / 3)
	case err == nil || left <= 0:
		c.loseLocked()
	default:
		c.timer.Reset(min(c.lease/30, left))
	}
}

// live says that the lease has certainly not ended yet.
func (c *claim) live() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.lost && time.Now().Before(c.until)
}

// lose tells the effect that the lease is lost, unless it has ended.
func (c *claim) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.loseLocked()
	}
}

// loseLocked requires that mu is held and that the effect has not ended.
func (c *claim) loseLocked() {
	c.lost = true
	c.cancel(ErrLeaseLost) // the first cause stays
}

// end stops the renewing. Afterwards lost and until do not change. The
// effect's context stays alive: as any caller's, it may outlive the effect.
func (c *claim) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.timer.Stop()
}

// An owner is a running effect of this process, seen from a context below it.
type owner struct {
	token string
	outer *owner
}

type ownerName struct{} // asks a context for the innermost owner

func owners(ctx context.Context) *owner {
	o, _ := ctx.Value(ownerName{}).(*owner)
	return o
}

// isOwn says that the call is made inside the effect that owns the token.
func isOwn(ctx context.Context, token string) bool {
	for o := owners(ctx); o != nil; o = o.outer {
		if o.token == token {
			return true
		}
	}
	return false
}
