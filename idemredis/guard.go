package idemredis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
)

// A Guard is one process's way to the keys that it shares through Redis with
// other guards. Make one with [New] and use it from any number of goroutines.
// It has goroutines only while calls wait or claims are renewed or given up,
// and needs no closing; the client is the caller's to close.
type Guard[V any] struct {
	client redis.UniversalClient
	opts   Options
	lease  string // Options.Lease in ms
	heeds  bool   // the client heeds a ctx's deadline
	bell   bell
	drops  drops
}

// New returns a guard that behaves as opts say, or an error that names the
// field that cannot be. It sends nothing to Redis.
func New[V any](client redis.UniversalClient, opts Options) (*Guard[V], error) {
	if client == nil {
		return nil, errors.New("idemredis: client is nil, want a connected one")
	}
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	g := &Guard[V]{client: client, opts: opts, lease: milliseconds(opts.Lease), heeds: heeds(client)}
	g.bell = bell{client: client, channel: g.name("")}
	g.drops.drop = func(name, token string) (bool, error) {
		return g.settle(context.Background(), name, token, settlement{to: never})
	}
	return g, nil
}

// name is the key's name in Redis. A consumer holds no colon, so no two keys of
// a prefix share a name. It is a channel's name too, for the empty key.
func (g *Guard[V]) name(key string) string {
	return g.opts.Prefix + g.opts.Consumer + ":" + key
}

// Handle runs effect, unless the key's result is kept (Replayed) or an attempt
// for the key is running in any process: then it waits until ctx or
// Options.Wait ends (Shared). If that attempt fails, one of those who wait
// takes the claim and runs its own effect (Executed). The verdict Refused comes
// with an error that says why, and no effect was entered.
//
// The effect runs on the caller's goroutine. Its context has the caller's
// values and the key (idempotent.Key), not the caller's cancellation; it is
// cancelled with cause [ErrLeaseLost] when the lease is lost. An error of the
// effect gives the claim up, unless it is marked idempotent.Permanent or
// idempotent.Unknown; of a kept error other callers see the text and the mark.
// A panic or Goexit gives the claim up and goes on unchanged.
//
// A call that finds the lease of an earlier attempt run out is told
// idempotent.ErrOutcomeUnknown (Replayed), or takes the claim over; see
// [LostLease]. If Redis cannot be asked, the call is refused with
// [ErrUnavailable] and no effect was entered. If the outcome cannot be
// recorded, the call returns the effect's value and an error that matches
// [ErrNotRecorded].
//
// A ctx that has ended runs no effect; a kept result is still replayed. An
// effect that calls its own key is refused with idempotent.ErrDeadlock; a
// circle over several keys and callers is not seen and waits until a ctx ends.
func (g *Guard[V]) Handle(ctx context.Context, req idempotent.Request[string], effect func(context.Context) (V, error)) (V, idempotent.Verdict, error) {
	if err := check(req); err != nil {
		return refuse[V](err)
	}
	e := entry{req: req, name: g.name(req.Key), token: rand.Text(), waits: !req.NoWait}
	if ctx.Err() != nil {
		return g.lookDead(ctx, e)
	}
	sent := time.Now()
	got, err := g.enter(ctx, e)
	waited := err == nil && got.what == busy && e.waits && !isOwn(ctx, got.owner)
	if waited {
		sent, got, err = g.wait(ctx, e, got)
		e.waited = true
	}
	switch {
	case err != nil:
		return refuse[V](err)
	case got.what == claimed:
		return g.lead(ctx, e, sent, got, effect)
	case got.what == mismatch:
		return refuse[V](fmt.Errorf("%w: key %q", idempotent.ErrMismatch, req.Key))
	case got.what == busy && isOwn(ctx, got.owner):
		return refuse[V](fmt.Errorf("%w: key %q", idempotent.ErrDeadlock, req.Key))
	case got.what == busy:
		return refuse[V](fmt.Errorf("%w: key %q", idempotent.ErrInFlight, req.Key))
	case waited:
		return g.replay(ctx, req.Key, got, idempotent.Shared)
	}
	return g.replay(ctx, req.Key, got, idempotent.Replayed)
}

func check(req idempotent.Request[string]) error {
	switch {
	case req.Key == "":
		return fmt.Errorf("%w: Request.Key is empty", idempotent.ErrInvalidKey)
	case req.TTL < 0:
		return fmt.Errorf("%w: key %q: Request.TTL is %v, want 0 or more", idempotent.ErrInvalidTTL, req.Key, req.TTL)
	}
	return nil
}

func refuse[V any](err error) (V, idempotent.Verdict, error) {
	var zero V
	return zero, idempotent.Refused, err
}

// An entry is one call's attempt to get in.
type entry struct {
	req   idempotent.Request[string]
	name  string // of the key in Redis
	token string // the call's own
	look  bool   // claim nothing
	waits bool   // the call waits if the key is busy

	waited bool // and has
}

// An answer is what Redis says to an entry.
type answer struct {
	what  string        // see scripts.go
	owner string        // busy: the token of the claim
	left  time.Duration // busy: of the lease
	stale bool          // claimed: the window of an earlier result has ended
	ago   time.Duration // claimed, stale: since that result was completed
	kept  kept          // of a kept result
}

// enter asks Redis once, for as long as ctx lives. A client heeds a ctx's deadline
// at best, and never its cancellation: if it can be cancelled, the client is asked
// on another goroutine, which costs as much as a fast network.
// A caller that leaves does not call the question back: it may be on its way,
// and only the answer says whether there is a claim to give up.
func (g *Guard[V]) enter(ctx context.Context, e entry) (answer, error) {
	if ctx.Done() == nil {
		return g.ask(ctx, e)
	}
	asking := ctx
	if !g.heeds {
		asking = context.WithoutCancel(ctx)
	}
	type said struct {
		answer
		err error
	}
	reply := make(chan said, 1)
	go func() {
		got, err := g.ask(asking, e)
		reply <- said{got, err}
	}()
	select {
	case got := <-reply:
		return got.answer, got.err
	case <-ctx.Done():
		go func() {
			if got := <-reply; got.what == claimed {
				g.drops.add(e.name, e.token)
			}
		}()
		return answer{}, contextError(ctx, e.req.Key)
	}
}

// ask asks Redis once. If its answer is lost, the claim that may have been made
// is given up behind the caller's back: the effect has not run.
func (g *Guard[V]) ask(ctx context.Context, e entry) (answer, error) {
	lease := g.lease
	if e.look {
		lease = "0"
	}
	reply, err := enterScript.Run(ctx, g.client, []string{e.name}, e.token, lease, e.req.Fingerprint,
		g.opts.OnLostLease.String(), flag(e.waits && !e.look)).Slice()
	if err == nil {
		return parse(reply)
	}
	if !e.look && (!answered(err) || starting(err)) {
		g.drops.add(e.name, e.token)
	}
	// A connection's deadline may be a moment earlier than the ctx it is of.
	if end, ok := ctx.Deadline(); ctx.Err() != nil || ok && !time.Now().Before(end) {
		<-ctx.Done()
		return answer{}, contextError(ctx, e.req.Key)
	}
	return answer{}, unavailable(e.req.Key, err)
}

// heeds says that the client ends a command with its ctx.
func heeds(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		return c.Options().ContextTimeoutEnabled
	}
	return false
}

// lookDead is Handle for a ctx that has ended.
func (g *Guard[V]) lookDead(ctx context.Context, e entry) (V, idempotent.Verdict, error) {
	e.look = true
	got, err := g.enter(context.WithoutCancel(ctx), e)
	switch {
	case err != nil:
		return refuse[V](err)
	case got.what == mismatch:
		return refuse[V](fmt.Errorf("%w: key %q", idempotent.ErrMismatch, e.req.Key))
	case got.what == busy:
		return refuse[V](inFlight(ctx, e.req.Key))
	case got.what == free:
		return refuse[V](contextError(ctx, e.req.Key))
	}
	return g.replay(ctx, e.req.Key, got, idempotent.Replayed)
}

// answered says that the error is Redis's own, so that the last try did nothing or
// all that it would; any other leaves open whether it was carried out.
func answered(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// starting says that a server that has just come up has answered. The client tries
// again by itself: the one before may have carried the command out and gone.
func starting(err error) bool {
	for _, kind := range []string{"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN "} {
		if strings.HasPrefix(err.Error(), kind) {
			return true
		}
	}
	return false
}

func unavailable(key string, cause error) error {
	return fmt.Errorf("%w: key %q: %w", ErrUnavailable, key, cause)
}

// contextError is ctx's error, with its cause where that says more.
func contextError(ctx context.Context, key string) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("idemredis: key %q: %w: %w", key, ctx.Err(), cause)
	}
	return fmt.Errorf("idemredis: key %q: %w", key, ctx.Err())
}

// inFlight is the error of a call that waited until its ctx ended.
func inFlight(ctx context.Context, key string) error {
	return fmt.Errorf("%w: %w", idempotent.ErrInFlight, contextError(ctx, key))
}

func flag(set bool) string {
	if set {
		return "1"
	}
	return "0"
}
