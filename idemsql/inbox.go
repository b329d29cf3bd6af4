package idemsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/idempotent-go/idempotent"
)

// An Inbox is one consumer's table of keys and results. Make it with [New] and
// use it from any number of goroutines. It holds nothing but counters: all
// state is in the database, and any number of processes share it. It needs no
// closing.
type Inbox[V any] struct {
	db    *sql.DB
	opts  Options
	sql   *statements
	codec Codec
	stats counters
}

// New returns an inbox on db, or an error that names the option that cannot be.
// It does not touch the database: see [Inbox.Migrate].
func New[V any](db *sql.DB, opts Options) (*Inbox[V], error) {
	if db == nil {
		return nil, errors.New("idemsql: db is nil, want an open *sql.DB")
	}
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	in := &Inbox[V]{db: db, opts: opts, sql: newStatements(opts.Dialect, opts.Table), codec: opts.Codec}
	if in.codec == nil {
		in.codec = plain[V]{}
	}
	return in, nil
}

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// maxText is what fits a row of a PostgreSQL index twice, with room to spare.
const maxText = 1200

// checkText says what PostgreSQL's text and its index cannot hold. The same
// goes for SQLite, so that a key means the same in both.
func checkText(s string) error {
	switch {
	case len(s) > maxText:
		return fmt.Errorf("at most %d bytes", maxText)
	case !utf8.ValidString(s):
		return errors.New("valid UTF-8")
	}
	for i := range len(s) {
		if s[i] == 0 {
			return errors.New("text without a NUL")
		}
	}
	return nil
}

func checkKey(key string) error {
	if key == "" {
		return &keyError{key, []error{idempotent.ErrInvalidKey}, nil}
	}
	if err := checkText(key); err != nil {
		return &keyError{key, []error{idempotent.ErrInvalidKey}, fmt.Errorf("want %w", err)}
	}
	return nil
}

// Forget drops the key's kept result, or a claim whose lease has lapsed, so
// that the next call runs its effect, and says whether there was one. The key is
// then not stale either, also if its window had ended before. A running attempt is
// left alone.
func (in *Inbox[V]) Forget(ctx context.Context, key string) (bool, error) {
	// To look first keeps it from waiting for a running Process. The row goes only as
	// it was seen: PostgreSQL may still wait, for one that is just taking it over.
	r, err := in.look(ctx, key)
	if err != nil || r == nil || r.state == claimed && !r.over {
		return false, err
	}
	gone, err := in.change(ctx, key, in.sql.forget, key, in.opts.Consumer, r.token)
	return gone && (r.state == claimed || !r.over), err
}

// Resolve settles an unknown outcome as done, with value, for the window
// Options.TTL, and says whether there was one: a failure kept by
// idempotent.Unknown, or a claim whose lease has lapsed.
func (in *Inbox[V]) Resolve(ctx context.Context, key string, value V) (bool, error) {
	result, err := in.codec.Marshal(value)
	if err != nil {
		return false, fail(key, fmt.Errorf("encoding the result: %w", err))
	}
	if r, err := in.look(ctx, key); err != nil || r == nil {
		return false, err
	}
	return in.change(ctx, key, in.sql.resolve, in.opts.Dialect.window(in.opts.TTL),
		result, checksum(result), key, in.opts.Consumer)
}

// change runs a statement that changes one row if it changes any.
func (in *Inbox[V]) change(ctx context.Context, key, statement string, args ...any) (bool, error) {
	if in.lockedOut(ctx) {
		return false, deadlock(key)
	}
	t := in.newTurns(idempotent.Request[string]{Key: key})
	for {
		n, err := affected(in.db.ExecContext(ctx, statement, args...))
		if err == nil {
			return n > 0, nil
		}
		if err := t.again(ctx, err); err != nil {
			return false, err
		}
	}
}

func affected(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// Lookup returns the key's kept result and whether there is one, and changes
// nothing. Its instants are counted from this process's clock, so that they are
// right where that differs from the database's. A claim whose lease has lapsed
// is a result of unknown outcome, without a CompletedAt. The error matches ErrCorrupt if the result cannot be read.
func (in *Inbox[V]) Lookup(ctx context.Context, key string) (idempotent.Record[V], bool, error) {
	asked := time.Now()
	r, err := in.look(ctx, key)
	switch {
	case err != nil || r == nil:
		return idempotent.Record[V]{}, false, err
	case in.held(r):
		return idempotent.Record[V]{Err: abandoned(key, r), Fingerprint: string(r.fingerprint)}, true, nil
	case r.state == claimed || r.over:
		return idempotent.Record[V]{}, false, nil
	}
	rec, err := in.record(key, r, asked)
	return rec, err == nil, err
}

// look reads the key's row, which is nil if there is none.
func (in *Inbox[V]) look(ctx context.Context, key string) (*row, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if in.blind(ctx) {
		return nil, deadlock(key)
	}
	t := in.newTurns(idempotent.Request[string]{Key: key})
	for {
		r, err := in.lookOnce(ctx, in.db, key)
		if err == nil {
			return r, nil
		}
		if err := t.again(ctx, err); err != nil {
			return nil, err
		}
	}
}

func (in *Inbox[V]) lookOnce(ctx context.Context, q querier, key string) (*row, error) {
	r := new(row)
	err := r.scan(q.QueryRowContext(ctx, in.sql.look, key, in.opts.Consumer))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return r, err
}

// Stats are the calls of this Inbox since New, by what became of them: each is
// one of Executed (and kept a result), Failed, Replayed, Shared and Refused.
// Stale counts keys met after their window's end; StartedOver counts
// transactions begun again because the database broke a tie against them.
type Stats struct {
	Executed, Failed, Replayed, Shared, Refused, Stale, StartedOver uint64
}

type counters struct {
	executed, failed, replayed, shared, refused, stale, startedOver atomic.Uint64
}

// Stats returns the counters. They are read one after another.
func (in *Inbox[V]) Stats() Stats {
	c := &in.stats
	return Stats{c.executed.Load(), c.failed.Load(), c.replayed.Load(), c.shared.Load(),
		c.refused.Load(), c.stale.Load(), c.startedOver.Load()}
}

// count notes the end of a call. kept says that its own effect's result was kept.
func (c *counters) count(v idempotent.Verdict, kept bool) {
	switch {
	case v == idempotent.Executed && kept:
		c.executed.Add(1)
	case v == idempotent.Executed:
		c.failed.Add(1)
	case v == idempotent.Replayed:
		c.replayed.Add(1)
	case v == idempotent.Shared:
		c.shared.Add(1)
	default:
		c.refused.Add(1)
	}
}

// detached is a ctx with ctx's values and an end of its own.
func detached(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), most)
}
