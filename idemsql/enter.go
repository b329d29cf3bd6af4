package idemsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/idempotent-go/idempotent"
)

// An outcome is what a call returns.
type outcome[V any] struct {
	value   V
	verdict idempotent.Verdict
	err     error
	kept    bool // its own effect's result was recorded
}

func refused[V any](err error) *outcome[V] { return &outcome[V]{err: err} }

// A claim is a row that is this attempt's until its transaction or lease ends.
type claim struct {
	token string
	id    string // of the row, for as long as the claim's transaction lasts
	stale bool   // the key had a result whose window has ended
	// completed is when, in the dialect's units.
	completed int64
}

// A caller is the part of an effect's context that knows what the effect holds.
type caller struct {
	db                   *sql.DB
	table, consumer, key string
	writing              bool // in an open transaction
	parent               *caller
}

type callerName struct{}

func callerOf(ctx context.Context) *caller {
	c, _ := ctx.Value(callerName{}).(*caller)
	return c
}

// inside is ctx for what runs inside the claim: a call that would wait for that
// can be told.
func (in *Inbox[V]) inside(ctx context.Context, key string, writing bool) context.Context {
	c := &caller{in.db, in.opts.Table, in.opts.Consumer, key, writing, callerOf(ctx)}
	return idempotent.WithKey(context.WithValue(ctx, callerName{}, c), key)
}

// effectContext has ctx's values and the key, and not ctx's end.
func (in *Inbox[V]) effectContext(ctx context.Context, key string, writing bool) context.Context {
	return in.inside(context.WithoutCancel(ctx), key, writing)
}

// check refuses what needs no database to be refused.
func (in *Inbox[V]) check(ctx context.Context, req idempotent.Request[string]) error {
	if err := checkKey(req.Key); err != nil {
		return err
	}
	if req.TTL < 0 {
		return &keyError{req.Key, []error{idempotent.ErrInvalidTTL}, fmt.Errorf("Request.TTL is %v, want 0 or more", req.TTL)}
	}
	if ctx.Err() != nil {
		return &keyError{req.Key, nil, contextError(ctx)}
	}
	for c := callerOf(ctx); c != nil; c = c.parent {
		if c.db == in.db && c.table == in.opts.Table && c.consumer == in.opts.Consumer && c.key == req.Key {
			return deadlock(req.Key)
		}
	}
	return nil
}

func deadlock(key string) error { return &keyError{key, []error{idempotent.ErrDeadlock}, nil} }

// lockedOut reports that the call is made inside a Process on the same SQLite
// file, which admits no second writer.
func (in *Inbox[V]) lockedOut(ctx context.Context) bool {
	for c := callerOf(ctx); c != nil; c = c.parent {
		if c.writing && c.db == in.db && in.opts.Dialect == SQLite {
			return true
		}
	}
	return false
}

// blind reports that such a call cannot even look: the one connection is taken.
func (in *Inbox[V]) blind(ctx context.Context) bool {
	return in.lockedOut(ctx) && in.db.Stats().MaxOpenConnections == 1
}

// enter claims the key in a new transaction, which it leaves open, or answers
// the call without one. If it can do neither, the error says why, and turns
// knows whether another turn may help. lease nil: the claim is the
// transaction's.
func (in *Inbox[V]) enter(ctx context.Context, t *turns, req idempotent.Request[string], lease any) (*sql.Tx, claim, *outcome[V], error) {
	none := claim{}
	if lease != nil || in.opts.Dialect == SQLite {
		if in.blind(ctx) {
			return nil, none, nil, deadlock(req.Key)
		}
		// SQLite's one writer may be busy with another key: a replay must not wait for it.
		r, err := in.lookOnce(ctx, in.db, req.Key)
		if err != nil {
			kind := ErrUnavailable
			if t.running {
				kind = idempotent.ErrInFlight
			}
			return nil, none, nil, in.interrupted(ctx, err, kind)
		}
		if r != nil && !in.free(r) {
			o, err := in.answer(t, req, r)
			return nil, none, o, err
		}
		t.missed = true
		if in.lockedOut(ctx) {
			return nil, none, nil, deadlock(req.Key)
		}
	}
	waiting, cancel := in.patience(ctx, req)
	defer cancel()
	tx, err := in.begin(waiting)
	if err != nil {
		return nil, none, nil, in.interrupted(waiting, err, ErrUnavailable)
	}
	c, r, err := in.claimIn(waiting, tx, req, lease)
	if err == nil && c.id != "" {
		return tx, c, nil, nil
	}
	rollBack(tx)
	switch {
	case err != nil:
		return nil, none, nil, in.interrupted(waiting, err, idempotent.ErrInFlight)
	case r == nil:
		return nil, none, nil, errMoved
	}
	o, err := in.answer(t, req, r)
	return nil, none, o, err
}

// sqlitePatience is how long a call with NoWait asks for the writer's place:
// SQLite cannot say whether it is taken but by trying.
const sqlitePatience = 250 * time.Millisecond

func (in *Inbox[V]) patience(ctx context.Context, req idempotent.Request[string]) (context.Context, context.CancelFunc) {
	if req.NoWait && in.opts.Dialect == SQLite {
		return context.WithTimeoutCause(ctx, sqlitePatience, errRunning)
	}
	return ctx, func() {}
}

// claimIn is claim, but with NoWait it does not wait for a lock.
func (in *Inbox[V]) claimIn(ctx context.Context, tx *sql.Tx, req idempotent.Request[string], lease any) (claim, *row, error) {
	if !req.NoWait || in.opts.Dialect == SQLite {
		return in.claim(ctx, tx, req, lease)
	}
	var before string // the session's, which is the effect's
	const shorten = `SELECT current_setting('lock_timeout'), set_config('lock_timeout', '5ms', true)`
	if err := tx.QueryRowContext(ctx, shorten).Scan(&before, new(string)); err != nil {
		return claim{}, nil, err
	}
	c, r, err := in.claim(ctx, tx, req, lease)
	if state, ok := errors.AsType[sqlState](err); ok && state.SQLState() == "55P03" {
		return c, r, errRunning
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, `SELECT set_config('lock_timeout', $1, true)`, before)
	}
	return c, r, err
}

// interrupted makes an error of kind of one that the end of ctx has caused.
func (in *Inbox[V]) interrupted(ctx context.Context, err error, kind error) error {
	// A dial ends at ctx's deadline by a timer of its own, perhaps a moment before ctx's.
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	switch {
	case ctx.Err() == nil:
		return err
	case context.Cause(ctx) == errRunning:
		return errRunning
	}
	if stats := in.db.Stats(); kind == ErrUnavailable && stats.MaxOpenConnections > 0 && stats.InUse >= stats.MaxOpenConnections {
		kind = ErrPoolExhausted
	} else if in.opts.Dialect == SQLite {
		kind = idempotent.ErrInFlight // BEGIN waits for the one writer
	}
	return &callError{kind, contextError(ctx)}
}

// A callError is a keyError to be: turns adds the key.
type callError struct{ kind, cause error }

func (e *callError) Error() string   { return e.kind.Error() + ": " + e.cause.Error() }
func (e *callError) Unwrap() []error { return []error{e.kind, e.cause} }

// begin waits for a connection until ctx ends. The transaction is not bound to
// ctx: database/sql would roll it back under the effect.
func (in *Inbox[V]) begin(ctx context.Context) (*sql.Tx, error) {
	bound, release := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, release)
	tx, err := in.db.BeginTx(bound, &sql.TxOptions{Isolation: in.opts.Isolation})
	if !stop() && err == nil {
		rollBack(tx)
		err = ctx.Err()
	}
	return tx, err
}

// rollBack ends tx without effect. Its error changes nothing: a transaction
// whose connection is lost is rolled back by the server.
func rollBack(tx *sql.Tx) { _ = tx.Rollback() }

// claim makes the key's row this attempt's, or returns the row that is in the
// way, or neither: then the row has changed in between, and nothing may be
// concluded from that.
func (in *Inbox[V]) claim(ctx context.Context, q querier, req idempotent.Request[string], lease any) (claim, *row, error) {
	c := claim{token: newToken()}
	args := []any{req.Key, in.opts.Consumer, c.token, []byte(req.Fingerprint), lease}
	r, err := in.insert(ctx, q, &c, args)
	if err != nil || r == nil || !in.free(r) {
		return c, r, err
	}
	c.stale, c.completed = r.processed.Valid, r.processed.Int64
	return c, nil, in.takeOver(ctx, q, &c, args, r)
}

// insert inserts the row and notes its id, or returns the one that is there.
// Under Read Committed that one may be gone by then.
func (in *Inbox[V]) insert(ctx context.Context, q querier, c *claim, args []any) (*row, error) {
	err := q.QueryRowContext(ctx, in.sql.insert, args...).Scan(&c.id)
	if errors.Is(err, sql.ErrNoRows) {
		return in.lookOnce(ctx, q, args[0].(string))
	}
	return nil, err
}

// takeOver makes the row that was seen this attempt's and notes its id, unless
// it has changed.
func (in *Inbox[V]) takeOver(ctx context.Context, q querier, c *claim, args []any, seen *row) error {
	err := q.QueryRowContext(ctx, in.sql.takeOver, append(args, seen.token)...).Scan(&c.id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}

// free reports that the row does not stop a new attempt.
func (in *Inbox[V]) free(r *row) bool {
	return r.over && !in.held(r)
}

// held reports that the row is a lapsed claim that waits for Resolve or Forget.
// Without a lease it is Process's, whose effect has committed: RunAgain does not
// speak of that.
func (in *Inbox[V]) held(r *row) bool {
	return r.state == claimed && r.over && (in.opts.OnLostLease == HoldUnknown || !r.leased)
}

// answer makes the call's outcome of a row that is in its way, or errRunning.
func (in *Inbox[V]) answer(t *turns, req idempotent.Request[string], r *row) (*outcome[V], error) {
	o := &outcome[V]{verdict: idempotent.Replayed}
	if t.missed || r.late {
		o.verdict = idempotent.Shared // it was not there when this call came
	}
	switch {
	case r.mismatch(req.Fingerprint):
		return refused[V](&keyError{req.Key, []error{idempotent.ErrMismatch}, nil}), nil
	case r.state == claimed && r.over:
		o.err = abandoned(req.Key, r)
		return o, nil
	case r.state == claimed:
		return nil, errRunning
	}
	value, err := in.decode(req.Key, r)
	if err != nil {
		return refused[V](err), nil
	}
	o.value, o.err = value, r.kept()
	return o, nil
}

// abandoned is the outcome of a lapsed claim.
func abandoned(key string, r *row) error {
	if !r.leased {
		return outcomeUnknown(key, ErrTxEnded)
	}
	return outcomeUnknown(key, errors.New("the lease of its attempt has lapsed"))
}

func outcomeUnknown(key string, cause error) error {
	return fail(key, cause, idempotent.ErrOutcomeUnknown)
}

// admitStale asks OnStale whether a stale key may run again.
func (in *Inbox[V]) admitStale(ctx context.Context, t *turns, key string, c claim) error {
	if !c.stale {
		return nil
	}
	if !t.stale {
		t.stale = true
		in.stats.stale.Add(1)
	}
	if in.opts.OnStale == nil {
		return nil
	}
	return in.opts.OnStale(in.inside(ctx, key, true), key, in.opts.Dialect.time(c.completed))
}
