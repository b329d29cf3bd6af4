package idemsql

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"time"

	"github.com/idempotent-go/idempotent"
)

// newToken names one attempt among all that ever were.
func newToken() string { return rand.Text() }

// Process runs effect in a transaction that also records its result: what the
// effect writes through tx and the key's record are committed together, or
// neither is. A kept result is returned instead (Replayed), and a duplicate of
// a running attempt waits for it until ctx ends (Shared, or it takes over if
// that attempt rolls back).
//
// An error of effect rolls everything back and frees the key, unless it is
// marked idempotent.Permanent or Unknown: then it is the result, and what the
// effect wrote is committed with it. In PostgreSQL a statement that fails breaks the
// transaction, the claim included: put a savepoint around one whose failure is to be
// kept. A panic or Goexit rolls back, frees the key, and goes on.
//
// The effect runs on the caller's goroutine. Its context has ctx's values but
// not its cancellation. It must not commit or roll back tx, nor use it after it
// has returned; the error matches ErrTxEnded if it has ended tx. On SQLite it
// must use no connection but tx to write: that would wait for the writer that the
// effect itself is. It is run again, in a new transaction, when the database breaks
// a tie against it (40001, 40P01; at most Options.MaxConflicts times), so what it
// does outside tx must bear repetition: see the package's documentation.
//
// If the answer to the commit is lost, the record is looked up, and nothing is
// run again: the call returns the value, or ErrNotRecorded, or, if the database
// stays away, idempotent.ErrOutcomeUnknown; the next call of the key finds the
// truth. With SQLite, effects of all keys take turns: the file has one writer.
func (in *Inbox[V]) Process(ctx context.Context, req idempotent.Request[string], effect func(ctx context.Context, tx *sql.Tx) (V, error)) (V, idempotent.Verdict, error) {
	return in.run(ctx, req, func(t *turns) (*outcome[V], error) {
		return in.processOnce(ctx, t, req, effect)
	})
}

// run makes turns of a call until one of them gives its outcome.
func (in *Inbox[V]) run(ctx context.Context, req idempotent.Request[string], once func(*turns) (*outcome[V], error)) (V, idempotent.Verdict, error) {
	o := &outcome[V]{verdict: idempotent.Executed} // stands if the effect does not return
	defer func() { in.stats.count(o.verdict, o.kept) }()
	if err := in.check(ctx, req); err != nil {
		o = refused[V](err)
		return o.value, o.verdict, o.err
	}
	t := in.newTurns(req)
	for {
		got, again := once(t)
		if conflicted(again) {
			in.stats.startedOver.Add(1)
		}
		if again != nil {
			err := t.again(ctx, again)
			if err == nil {
				continue
			}
			got = refused[V](err)
		}
		if t.entered && got.verdict == idempotent.Refused {
			got.verdict = idempotent.Executed // in an earlier turn
		}
		o = got
		return o.value, o.verdict, o.err
	}
}

// processOnce returns an outcome, or the reason to start over.
func (in *Inbox[V]) processOnce(ctx context.Context, t *turns, req idempotent.Request[string], effect func(context.Context, *sql.Tx) (V, error)) (*outcome[V], error) {
	tx, c, o, err := in.enter(ctx, t, req, nil)
	if tx == nil {
		return o, err
	}
	defer rollBack(tx) // after a commit it does nothing
	if err := in.admitStale(ctx, t, req.Key, c); err != nil {
		return refused[V](err), nil
	}
	t.entered = true
	value, failure := effect(in.effectContext(ctx, req.Key, true), tx)
	s, free, err := in.settlement(req, value, failure)
	var alive bool
	if free || err != nil {
		end := tx.Rollback()
		alive = end == nil
		if errors.Is(end, sql.ErrTxDone) {
			if o := in.endedItself(ctx, req, c.token, value, failure); o != nil {
				return o, nil
			}
		}
	}
	switch {
	case free && conflicted(failure):
		return nil, failure
	case free && alive && !in.opts.Dialect.own(failure): // trouble of another connection than ours
		return ended(value, failure), nil
	case free:
		return ended(value, t.typed(failure)), nil
	case err != nil:
		return notRecorded[V](req.Key, err, failure), nil
	}
	o = &outcome[V]{value: value, verdict: idempotent.Executed, err: failure, kept: true}
	n, err := affected(tx.ExecContext(context.WithoutCancel(ctx), in.sql.settleAt, s.args(in.opts.Dialect, c.token, c.id)...))
	switch {
	case conflicted(err):
		return nil, err
	case err != nil && broken(err) && failure != nil:
		rollBack(tx)
		return in.recordAlone(ctx, t, req, s, o), nil
	case errors.Is(err, sql.ErrTxDone):
		if o := in.endedItself(ctx, req, c.token, value, failure); o != nil {
			return o, nil
		}
		err = ErrTxEnded
	case err == nil && n != 1:
		err = errors.New("the effect has changed the key's row")
	}
	if err != nil {
		return notRecorded[V](req.Key, err, failure), nil
	}
	err = tx.Commit()
	if conflicted(err) || busy(err) { // SQLite's readers are in the way, outside WAL mode
		return nil, err
	}
	if err != nil {
		return in.confirm(ctx, req, c.token, o, err), nil
	}
	return o, nil
}

// ended is the outcome of an effect that was entered and left no result.
func ended[V any](value V, err error) *outcome[V] {
	return &outcome[V]{value: value, verdict: idempotent.Executed, err: err}
}

// notRecorded is the outcome of an effect whose transaction is rolled back
// against its will.
func notRecorded[V any](key string, cause, failure error) *outcome[V] {
	return &outcome[V]{verdict: idempotent.Executed, err: fail(key, errors.Join(cause, failure), ErrNotRecorded)}
}

// endedItself is the outcome of an effect that has ended its transaction, or nil
// if that is known to be rolled back.
func (in *Inbox[V]) endedItself(ctx context.Context, req idempotent.Request[string], token string, value V, failure error) *outcome[V] {
	ctx, cancel := detached(ctx, settleFor)
	defer cancel()
	committed, err := in.findOut(ctx, req, token)
	if err == nil && !committed {
		return nil
	}
	return ended(value, outcomeUnknown(req.Key, errors.Join(ErrTxEnded, err, failure)))
}

// broken reports that an earlier statement's failure has ended the transaction.
func broken(err error) bool {
	state, ok := errors.AsType[sqlState](err)
	return ok && state.SQLState() == "25P02"
}

// recordAlone keeps a failure whose transaction PostgreSQL has broken. A
// waiter may have taken the key over since: then its attempt counts.
func (in *Inbox[V]) recordAlone(ctx context.Context, t *turns, req idempotent.Request[string], s settlement, o *outcome[V]) *outcome[V] {
	ctx, cancel := detached(ctx, settleFor)
	defer cancel()
	tx, c, _, err := in.enter(ctx, t, req, nil)
	if err == nil && tx == nil {
		err = errors.New("another attempt has the key")
	}
	if err != nil {
		return notRecorded[V](req.Key, err, o.err)
	}
	defer rollBack(tx)
	if _, err := tx.ExecContext(ctx, in.sql.settleAt, s.args(in.opts.Dialect, c.token, c.id)...); err != nil {
		return notRecorded[V](req.Key, err, o.err)
	}
	if err := tx.Commit(); err != nil {
		return in.confirm(ctx, req, c.token, o, err)
	}
	return o
}

// settleFor is how long a call whose effect has ended tries to reach the
// database about it.
const settleFor = 10 * time.Second

// confirm finds out what became of a commit whose answer was lost.
func (in *Inbox[V]) confirm(ctx context.Context, req idempotent.Request[string], token string, o *outcome[V], lost error) *outcome[V] {
	ctx, cancel := detached(ctx, settleFor)
	defer cancel()
	committed, err := in.findOut(ctx, req, token)
	switch {
	case err != nil:
		return ended(o.value, outcomeUnknown(req.Key, errors.Join(lost, err)))
	case !committed:
		return notRecorded[V](req.Key, lost, o.err)
	}
	return o
}

// findOut asks committed until it gets an answer or ctx ends.
func (in *Inbox[V]) findOut(ctx context.Context, req idempotent.Request[string], token string) (committed bool, err error) {
	err = in.insist(ctx, req, func() (err error) {
		committed, err = in.committed(ctx, req, token)
		return err
	})
	return committed, err
}

// committed reports whether the attempt of that token is on record. The
// server may still be at that commit, so to read is not enough: an insertion
// waits for whoever is writing the key's row, and is rolled back.
func (in *Inbox[V]) committed(ctx context.Context, req idempotent.Request[string], token string) (bool, error) {
	if in.opts.Dialect == SQLite { // a commit is over when it returns
		r, err := in.lookOnce(ctx, in.db, req.Key)
		return r != nil && r.token == token, err
	}
	tx, err := in.begin(ctx)
	if err != nil {
		return false, err
	}
	defer rollBack(tx)
	probe := claim{token: newToken()}
	args := []any{req.Key, in.opts.Consumer, probe.token, []byte{}, nil}
	r, err := in.insert(ctx, tx, &probe, args)
	if err == nil && r == nil && probe.id == "" {
		err = errMoved
	}
	return err == nil && r != nil && r.token == token, err
}

// insist repeats what fails for a passing reason until ctx ends.
func (in *Inbox[V]) insist(ctx context.Context, req idempotent.Request[string], f func() error) error {
	t := in.newTurns(req)
	for {
		err := f()
		if err == nil || !passing(err) {
			return err
		}
		pause := time.NewTimer(t.pause())
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return err
		}
	}
}

// passing reports that err may be gone in a moment.
func passing(err error) bool {
	kind := kindOf(err)
	// A server that has just failed over is read-only for a while.
	return kind == ErrUnavailable || kind == ErrReadOnly || kind == ErrPoolExhausted || kind == ErrTimeout ||
		conflicted(err) || busy(err) || errors.Is(err, errMoved)
}
