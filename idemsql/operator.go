package idemsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/idempotent-go/idempotent"
)

// Prune deletes this consumer's rows whose windows ended more than
// Options.StaleFor ago, and says how many. It works in batches, each a
// transaction of its own that passes over rows that are locked, so that it
// holds nobody up for long and any number of processes may prune at once. What
// was deleted before an error or the end of ctx stays deleted.
//
// Nothing depends on it but the table's size: rows whose window has ended are
// absent to every reader. Claims, lapsed ones too, are never pruned.
func (in *Inbox[V]) Prune(ctx context.Context) (deleted int64, err error) {
	if in.lockedOut(ctx) {
		return 0, deadlock(in.opts.Table)
	}
	t := in.newTurns(idempotent.Request[string]{Key: in.opts.Table})
	for {
		n, err := affected(in.db.ExecContext(ctx, in.sql.prune,
			in.opts.Consumer, in.opts.Dialect.span(in.opts.StaleFor), in.opts.PruneBatch))
		if err != nil {
			if err := t.again(ctx, err); err != nil {
				return deleted, err
			}
			continue
		}
		deleted += n
		if n > 0 && in.opts.OnPruned != nil {
			in.opts.OnPruned(deleted)
		}
		if n < int64(in.opts.PruneBatch) {
			return deleted, nil
		}
	}
}

// Advance says whether the event of that sequence is news of the resource: of
// a higher sequence than every one before it. If so, the sequence is noted in
// the caller's transaction. An event that is not fresh is older than what was
// applied already, or that very one: leave it out and return success. Events of
// one resource take turns from here to the transaction's end.
//
// Sequences must come from where the resource changes (a version, a log
// position); timestamps tie. Under Repeatable Read and Serializable the error
// may be a conflict (40001): return it from the effect, and Process starts over.
func (in *Inbox[V]) Advance(ctx context.Context, tx *sql.Tx, resource string, sequence int64) (fresh bool, err error) {
	if err := checkText(resource); err != nil {
		return false, fmt.Errorf("idemsql: resource is %q, want %w", resource, err)
	}
	var one int
	err = tx.QueryRowContext(ctx, in.sql.advance, in.opts.Consumer, resource, sequence).Scan(&one)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		// The statement locks the resource's row, or has made it: no row is an answer here.
		return false, nil
	case conflicted(err):
		return false, err
	case err != nil:
		return false, fail(resource, err)
	}
	return true, nil
}
