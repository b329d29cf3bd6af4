package idemsql

import (
	"context"
	"database/sql"

	"fmt"
	"strings"

	"github.com/idempotent-go/idempotent"
)

// migrations are the versions of the tables, in order: version n is made from
// n-1 by migrations[n-1]. What has been released is never changed.
var migrations = [...]map[Dialect]string{
	{
		Postgres: `CREATE TABLE {table} (
	event_id     text COLLATE "C" NOT NULL,
	consumer     text COLLATE "C" NOT NULL,
	received_at  timestamptz NOT NULL,
	processed_at timestamptz,
	expires_at   timestamptz,
	fingerprint  bytea NOT NULL,
	state        text NOT NULL CHECK (state IN ('claimed', 'done', 'failed', 'unknown')),
	token        text NOT NULL,
	lease_until  timestamptz,
	result       bytea,
	failure      bytea,
	checksum     bigint,
	PRIMARY KEY (event_id, consumer));
CREATE INDEX {name}_expires ON {table} (consumer, expires_at) WHERE state <> 'claimed';`,
		SQLite: `CREATE TABLE {table} (
	event_id     TEXT NOT NULL,
	consumer     TEXT NOT NULL,
	received_at  INTEGER NOT NULL,
	processed_at INTEGER,
	expires_at   INTEGER,
	fingerprint  BLOB NOT NULL,
	state        TEXT NOT NULL CHECK (state IN ('claimed', 'done', 'failed', 'unknown')),
	token        TEXT NOT NULL,
	lease_until  INTEGER,
	result       BLOB,
	failure      BLOB,
	checksum     INTEGER,
	PRIMARY KEY (event_id, consumer));
CREATE INDEX {index}_expires ON {name} (consumer, expires_at) WHERE state <> 'claimed';`,
	},
	{
		Postgres: `CREATE TABLE {table}_sequence (
	consumer text COLLATE "C" NOT NULL,
	resource text COLLATE "C" NOT NULL,
	sequence bigint NOT NULL,
	PRIMARY KEY (consumer, resource));`,
		SQLite: `CREATE TABLE {table}_sequence (
	consumer TEXT NOT NULL,
	resource TEXT NOT NULL,
	sequence INTEGER NOT NULL,
	PRIMARY KEY (consumer, resource)) WITHOUT ROWID;`,
	},
}

// Migrate makes the tables, or brings older ones up to this version. Any number
// of processes may call it at once, and it is cheap to call at every start. The
// error matches ErrNewerSchema if the tables are ahead of this package, and
// ErrReadOnly, ErrUnavailable and so on.
func (in *Inbox[V]) Migrate(ctx context.Context) error {
	return migrate(ctx, in.db, in.opts)
}

func migrate(ctx context.Context, db *sql.DB, opts Options) error {
	version, err := schemaVersion(ctx, db, opts)
	if err == nil && version == len(migrations) {
		return nil
	}
	t := newTurns(opts, idempotent.Request[string]{Key: opts.Table})
	for {
		err := migrateOnce(ctx, db, opts)
		if err == nil {
			return nil
		}
		if err := t.again(ctx, err); err != nil {
			return err
		}
	}
}

// schemaVersion fails if there is no version table.
func schemaVersion(ctx context.Context, q querier, opts Options) (int, error) {
	var version sql.NullInt64
	err := q.QueryRowContext(ctx, `SELECT max(version) FROM `+opts.Table+`_version`).Scan(&version)
	if err == nil && version.Int64 > int64(len(migrations)) {
		return 0, fmt.Errorf("%w: table %q is of version %d, want at most %d",
			ErrNewerSchema, opts.Table, version.Int64, len(migrations))
	}
	return int(version.Int64), err
}

func migrateOnce(ctx context.Context, db *sql.DB, opts Options) error {
	level := sql.LevelDefault
	if opts.Dialect == Postgres {
		level = sql.LevelReadCommitted // stricter levels would look with a snapshot from before the lock
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if opts.Dialect == Postgres {
		// IF NOT EXISTS does not hold between two that create at once.
		if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtext('idemsql'), hashtext($1))`, opts.Table); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS `+opts.Table+`_version (version integer NOT NULL PRIMARY KEY)`); err != nil {
		return err
	}
	version, err := schemaVersion(ctx, tx, opts)
	if err != nil {
		return err
	}
	for ; version < len(migrations); version++ {
		if err := step(ctx, tx, opts, version); err != nil {
			return fmt.Errorf("idemsql: migrating table %q to version %d: %w", opts.Table, version+1, err)
		}
	}
	return tx.Commit()
}

// step makes version+1 of version.
func step(ctx context.Context, tx *sql.Tx, opts Options, version int) error {
	schema, name, qualified := strings.Cut(opts.Table, ".")
	if !qualified {
		schema, name = "", opts.Table
	}
	index := name // SQLite qualifies the index, PostgreSQL the table
	if qualified {
		index = schema + "." + name
	}
	text := strings.NewReplacer("{table}", opts.Table, "{name}", name, "{index}", index).
		Replace(migrations[version][opts.Dialect])
	for statement := range strings.SplitSeq(strings.TrimSuffix(text, ";"), ";") {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	ahead := fmt.Sprintf(`INSERT INTO %s_version (version) VALUES (%d)`, opts.Table, version+1)
	_, err := tx.ExecContext(ctx, ahead)
	return err
}
