package idemsql

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Handle is for work that is too long for a transaction, or is done elsewhere:
// it claims the key in one short transaction, runs effect outside any, and
// records the result in another. While effect runs its claim is renewed, and
// duplicates wait for it until ctx ends, looking again after growing pauses.
//
// An error of effect frees the key, unless it is marked idempotent.Permanent or
// Unknown: then it is the key's result. A panic or Goexit frees the key and
// goes on. The effect runs on the caller's goroutine; its context has ctx's
// values but not its cancellation.
//
// A process that dies leaves its claim, and nobody can say whether its effect
// happened. When the lease has lapsed, Options.OnLostLease says what that means.
// A claim that cannot be renewed in time, or is not there any more, cancels the
// effect's context with the cause ErrLeaseLost. If the result then cannot be
// recorded, or the effect fails, the error matches ErrLeaseLost too. An effect that
// was cancelled half way may have happened, so its error, panic or Goexit does not
// free the key. No lease can stop an effect that is on its way: give it idempotent
// keys of its own (see the package's documentation).
//
// If the result cannot be recorded, the value is returned with ErrNotRecorded,
// and the key is held until the lease has lapsed and then as OnLostLease says.
// Handle keeps trying to record for 10 s.
func (in *Inbox[V]) Handle(ctx context.Context, req idempotent.Request[string], effect func(context.Context) (V, error)) (V, idempotent.Verdict, error) {
	return in.run(ctx, req, func(t *turns) (*outcome[V], error) {
		return in.handleOnce(ctx, t, req, effect)
	})
}

// handleOnce returns an outcome, or the reason to look again.
func (in *Inbox[V]) handleOnce(ctx context.Context, t *turns, req idempotent.Request[string], effect func(context.Context) (V, error)) (*outcome[V], error) {
	asked := time.Now() // no later than the lease's beginning
	tx, c, o, err := in.enter(ctx, t, req, in.opts.Dialect.span(in.opts.Lease))
	if tx == nil {
		return o, err
	}
	defer rollBack(tx) // after a commit it does nothing
	if err := in.admitStale(ctx, t, req.Key, c); err != nil {
		return refused[V](err), nil
	}
	if time.Since(asked) > in.opts.Lease/10 {
		// The lease in the row began before the wait for another's transaction, and
		// before OnStale was asked.
		asked = time.Now()
		if _, err := tx.ExecContext(context.WithoutCancel(ctx), in.sql.renew,
			in.opts.Dialect.span(in.opts.Lease), c.token, req.Key, in.opts.Consumer); err != nil {
			return nil, err
		}
	}
	if err := tx.Commit(); err != nil {
		_ = in.giveUp(ctx, req, c) // the answer may have been lost, and the claim be there
		return nil, err
	}
	l := in.keepLease(ctx, req, c, asked)
	returned := false
	defer func() {
		if !returned {
			_ = in.release(ctx, req, c, l.stop()) // the panic goes on, and the lease ends by itself
		}
	}()
	t.entered = true
	value, failure := effect(l.ctx)
	returned = true
	return in.finish(ctx, req, c, value, failure, l.stop()), nil
}

// finish records what the effect left, or gives the claim up. lost is why its
// lease is not certain, or nil.
func (in *Inbox[V]) finish(ctx context.Context, req idempotent.Request[string], c claim, value V, failure, lost error) *outcome[V] {
	s, free, err := in.settlement(req, value, failure)
	if free {
		if err := in.release(ctx, req, c, lost); err != nil {
			return ended(value, errors.Join(failure, err))
		}
		return ended(value, failure)
	}
	if err != nil {
		// The effect has happened and has no result: nobody may take it for undone.
		s.state, s.failure = unknown, []byte(outcomeUnknown(req.Key, err).Error())
	}
	encoding := err
	err = in.write(ctx, req, true, in.sql.settle, s.args(in.opts.Dialect, c.token, req.Key, in.opts.Consumer)...)
	if err = errors.Join(encoding, err); err != nil {
		if !errors.Is(err, ErrLeaseLost) {
			err = errors.Join(err, lost)
		}
		if failure != nil {
			err = errors.Join(failure, err)
		}
		return ended(value, fail(req.Key, err, ErrNotRecorded))
	}
	return &outcome[V]{value: value, verdict: idempotent.Executed, err: failure, kept: true}
}

// release gives the claim of a failed effect up, unless its lease was lost: an effect
// whose context was cancelled half way may have happened, whatever its error says.
// Then the key is held until the lease has lapsed, and then as OnLostLease says.
func (in *Inbox[V]) release(ctx context.Context, req idempotent.Request[string], c claim, lost error) error {
	if lost != nil {
		return fail(req.Key, lost, ErrNotRecorded)
	}
	return in.giveUp(ctx, req, c)
}

// giveUp frees the key, or makes it stale as it was.
func (in *Inbox[V]) giveUp(ctx context.Context, req idempotent.Request[string], c claim) error {
	statement := in.sql.drop
	if c.stale {
		statement = in.sql.putBack
	}
	if err := in.write(ctx, req, false, statement, c.token, req.Key, in.opts.Consumer); err != nil {
		return fail(req.Key, err, ErrNotRecorded)
	}
	return nil
}

// write changes the claim's row, which only its own attempt may: the error
// matches ErrLeaseLost if the row is another's by now. It does not care if ctx
// has ended. It is done again if its answer is lost; stays says that the row is
// still the attempt's after the first time.
func (in *Inbox[V]) write(ctx context.Context, req idempotent.Request[string], stays bool, statement string, args ...any) error {
	ctx, cancel := detached(ctx, settleFor)
	defer cancel()
	first := true
	return in.insist(ctx, req, func() error {
		n, err := affected(in.db.ExecContext(ctx, statement, args...))
		if err == nil && n == 0 && (stays || first) {
			return ErrLeaseLost
		}
		first = false
		return err
	})
}

// A lease is a claim that is being renewed.
type lease struct {
	ctx  context.Context // the effect's
	stop func() error    // ends the renewal, waits for it, and returns why the lease was lost, or nil
}

// keepLease renews the claim at every third of the lease, until stop.
func (in *Inbox[V]) keepLease(ctx context.Context, req idempotent.Request[string], c claim, asked time.Time) lease {
	effectCtx, lost := context.WithCancelCause(in.effectContext(ctx, req.Key, false))
	renewing, end := context.WithCancel(context.WithoutCancel(ctx))
	var why error
	var renewer sync.WaitGroup
	renewer.Go(func() {
		if why = in.renew(renewing, req, c, asked); why != nil {
			lost(why)
		}
	})
	return lease{effectCtx, func() error {
		end()
		renewer.Wait()
		lost(nil)
		return why
	}}
}

// renew returns nil when ctx has ended, and ErrLeaseLost when the claim is no
// longer certain.
func (in *Inbox[V]) renew(ctx context.Context, req idempotent.Request[string], c claim, asked time.Time) error {
	third := time.NewTicker(max(in.opts.Lease/3, 1))
	defer third.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-third.C:
		}
		began := time.Now()
		until, cancel := context.WithDeadline(ctx, asked.Add(in.opts.Lease))
		err := in.insist(until, req, func() error {
			n, err := affected(in.db.ExecContext(until, in.sql.renew,
				in.opts.Dialect.span(in.opts.Lease), c.token, req.Key, in.opts.Consumer))
			if err == nil && n == 0 {
				return ErrLeaseLost
			}
			return err
		})
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return &keyError{req.Key, []error{ErrLeaseLost}, err}
		}
		asked = began
	}
}
