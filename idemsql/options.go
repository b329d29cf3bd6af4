package idemsql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent"
)

// A Dialect is the database behind a *sql.DB. The zero value is none.
type Dialect uint8

const (
	// Postgres is PostgreSQL 13 or later. The inbox is tested with
	// github.com/jackc/pgx/v5/stdlib; a driver whose errors have an
	// SQLState method will do.
	Postgres Dialect = iota + 1
	// SQLite is SQLite 3.42 or later, through modernc.org/sqlite. Package
	// idemsql/sqlite opens a file as the inbox likes it.
	SQLite
)

// String returns "Postgres" or "SQLite".
func (d Dialect) String() string {
	switch d {
	case Postgres:
		return "Postgres"
	case SQLite:
		return "SQLite"
	}
	return fmt.Sprintf("Dialect(%d)", uint8(d))
}

// A LostLease says what a claim of [Inbox.Handle] means after its lease has run
// out: its process is gone or cut off, and the effect may have happened.
type LostLease uint8

const (
	// HoldUnknown holds the key: calls get [idempotent.ErrOutcomeUnknown] until
	// Resolve or Forget, with the verdict Shared if they were waiting when the
	// lease lapsed, and Replayed if they came later. A lapsed lease is no proof that nothing happened.
	HoldUnknown LostLease = iota
	// RunAgain lets the next call run its effect. It is for effects that do no
	// harm twice: upserts, remote calls that carry the key.
	RunAgain
)

// Options say how an [Inbox] behaves. Only Dialect must be set.
type Options struct {
	// Dialect is the database behind the *sql.DB.
	Dialect Dialect
	// Table is the inbox's table, "name" or "schema.name", in lower case;
	// "" means webhook_inbox. Its companions are named after it: Table_version
	// for Migrate and Table_sequence for Advance.
	Table string
	// Consumer names who processes the events: each consumer of one event
	// processes it once. "" is a name like any other.
	Consumer string

	// TTL is the window of a result, from its completion; 0 means
	// idempotent.DefaultTTL. Choose longer than the producer keeps retrying.
	TTL time.Duration
	// FailureTTL is the window of a kept failure (idempotent.Permanent and
	// Unknown); 0 means the window that a success would have had.
	FailureTTL time.Duration
	// StaleFor is how long Prune leaves a row after its window's end, so that
	// a late retry is recognised as stale; 0 means not at all.
	StaleFor time.Duration
	// OnStale is asked before a key runs again whose result, completed at
	// completedAt, has ended and is not yet pruned. An error refuses the call
	// and the key stays stale; idempotent.ErrStale is there for it. It runs on
	// the caller's goroutine while the key is claimed, within the claim's
	// transaction, and once in each that the call begins: again after a conflict.
	OnStale func(ctx context.Context, key string, completedAt time.Time) error

	// Isolation is the level of Process's transactions and of Handle's claims; 0 means the database's
	// default. All are right. SQLite knows only Serializable.
	Isolation sql.IsolationLevel
	// MaxConflicts is how often one call starts over because the database
	// broke a tie against it (40001, 40P01) before it gives up with
	// ErrConflict; 0 means 50.
	MaxConflicts int

	// Lease is how long a claim of Handle outlives its process. It is renewed
	// at every third of it. 0 means 30 s.
	Lease time.Duration
	// OnLostLease says what a lapsed lease means; the zero value is HoldUnknown.
	OnLostLease LostLease
	// MaxPause is the longest pause between two looks at a key that another
	// call of Handle holds; 0 means 250 ms. Pauses begin at a fiftieth of it.
	MaxPause time.Duration

	// PruneBatch is the number of rows that one statement of Prune deletes;
	// 0 means 1000.
	PruneBatch int
	// OnPruned is told after each batch how many rows this Prune has deleted.
	OnPruned func(deleted int64)

	// Codec writes results to bytes and back. nil means the bytes themselves
	// for []byte, json.RawMessage and string, and JSON for every other type.
	Codec Codec
}

// tableName leaves room for the companions' suffixes in PostgreSQL's 63 bytes.
var tableName = regexp.MustCompile(`^([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,49}$`)

// withDefaults checks the options and fills the zero values in.
func (o Options) withDefaults() (Options, error) {
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"TTL", o.TTL}, {"FailureTTL", o.FailureTTL}, {"StaleFor", o.StaleFor},
		{"Lease", o.Lease}, {"MaxPause", o.MaxPause},
	} {
		if d.value < 0 && strings.HasSuffix(d.field, "TTL") {
			return o, fmt.Errorf("%w: %w", idempotent.ErrInvalidTTL, optionError(d.field, d.value, "0 or more"))
		}
		if d.value < 0 {
			return o, optionError(d.field, d.value, "0 or more")
		}
	}
	o.Table = cmp.Or(o.Table, "webhook_inbox")
	o.TTL = cmp.Or(o.TTL, idempotent.DefaultTTL)
	o.Lease = min(cmp.Or(o.Lease, 30*time.Second), endless-1) // endless is NULL, which means no lease
	o.MaxPause = cmp.Or(o.MaxPause, 250*time.Millisecond)
	o.MaxConflicts = cmp.Or(o.MaxConflicts, 50)
	o.PruneBatch = cmp.Or(o.PruneBatch, 1000)
	switch {
	case o.Dialect != Postgres && o.Dialect != SQLite:
		return o, optionError("Dialect", o.Dialect, "Postgres or SQLite")
	case !tableName.MatchString(o.Table):
		return o, optionError("Table", fmt.Sprintf("%q", o.Table), `"name" or "schema.name" of at most 50 characters a-z, 0-9, _`)
	case checkText(o.Consumer) != nil:
		return o, optionError("Consumer", fmt.Sprintf("%q", o.Consumer), checkText(o.Consumer).Error())
	case o.MaxConflicts < 0:
		return o, optionError("MaxConflicts", o.MaxConflicts, "0 or more")
	case o.PruneBatch < 0:
		return o, optionError("PruneBatch", o.PruneBatch, "0 or more")
	case o.OnLostLease > RunAgain:
		return o, optionError("OnLostLease", o.OnLostLease, "HoldUnknown or RunAgain")
	case !o.isolated():
		return o, optionError("Isolation", o.Isolation, "a level that "+o.Dialect.String()+" has")
	}
	return o, nil
}

func (o Options) isolated() bool {
	switch o.Isolation {
	case sql.LevelDefault, sql.LevelSerializable:
		return true
	case sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSnapshot:
		return o.Dialect == Postgres
	}
	return false
}

func optionError(field string, value any, want string) error {
	return fmt.Errorf("idemsql: Options.%s is %v, want %s", field, value, want)
}
