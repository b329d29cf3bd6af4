package idemsql_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemsql"
	"github.com/idempotent-go/idempotent/idemsql/internal/pgtest"
	"github.com/idempotent-go/idempotent/idemsql/sqlite"
	"github.com/idempotent-go/idempotent/idemtest"
)

// server is the PostgreSQL that all tests share, each with a database of its
// own; tests that stop it start their own.
var server *pgtest.Server

func TestMain(m *testing.M) {
	var err error
	if server, err = pgtest.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := server.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// A store is an empty table in a database, which can be opened any number of
// times.
type store struct {
	dialect idemsql.Dialect
	table   string
	open    func(t *testing.T) *sql.DB
}

var tables atomic.Int64

func postgres(t *testing.T) store { return postgresOn(t, server) }

func postgresOn(_ *testing.T, s *pgtest.Server) store {
	return store{idemsql.Postgres, fmt.Sprintf("inbox%d", tables.Add(1)), func(t *testing.T) *sql.DB {
		db, err := sql.Open("pgx", s.DSN("postgres"))
		require.NoError(t, err)
		db.SetMaxIdleConns(20)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return db
	}}
}

func sqliteFile(t *testing.T) store {
	path := filepath.Join(t.TempDir(), "inbox.db")
	return store{idemsql.SQLite, "", func(t *testing.T) *sql.DB {
		db, err := sqlite.Open(path)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return db
	}}
}

// sqliteBare is a file opened without patience, whose transactions take the
// writer's place when they first write.
func sqliteBare(t *testing.T) store {
	path := filepath.Join(t.TempDir(), "inbox.db")
	return store{idemsql.SQLite, "", func(t *testing.T) *sql.DB {
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return db
	}}
}

// each runs the test on both databases.
func each(t *testing.T, test func(t *testing.T, s store)) {
	t.Run("PostgreSQL", func(t *testing.T) { test(t, postgres(t)) })
	t.Run("SQLite", func(t *testing.T) { test(t, sqliteFile(t)) })
}

// inbox opens the store once more, as another process would.
func inbox[V any](t *testing.T, s store, opts idemsql.Options) (*idemsql.Inbox[V], *sql.DB) {
	db := s.open(t)
	opts.Dialect, opts.Table = s.dialect, s.table
	in, err := idemsql.New[V](db, opts)
	require.NoError(t, err)
	require.NoError(t, in.Migrate(t.Context()))
	return in, db
}

// processing makes a Guard of Process, by an effect that leaves its
// transaction alone.
type processing struct{ *idemsql.Inbox[[]byte] }

func (p processing) Handle(ctx context.Context, req idempotent.Request[string], effect func(context.Context) ([]byte, error)) ([]byte, idempotent.Verdict, error) {
	return p.Process(ctx, req, func(ctx context.Context, _ *sql.Tx) ([]byte, error) { return effect(ctx) })
}

// conform runs the suite on a store of which each case has a new one.
func conform(t *testing.T, newStore func(*testing.T) store, opts idemsql.Options, process bool, can idemtest.Abilities) {
	var current store // cases run one after another
	another := func(t *testing.T) idemtest.Guard {
		in, _ := inbox[[]byte](t, current, opts)
		if process {
			return processing{in}
		}
		return in
	}
	can.Second = func(t *testing.T, _ idemtest.Guard) idemtest.Guard { return another(t) }
	idemtest.Run(t, func(t *testing.T) idemtest.Guard {
		current = newStore(t)
		return another(t)
	}, can)
}

func TestHandleConforms(t *testing.T) {
	can := idemtest.Abilities{SeesClaims: true, Parallel: true, NamesKey: true, Deadlock: true}
	opts := idemsql.Options{TTL: time.Hour, MaxPause: 20 * time.Millisecond}
	t.Run("PostgreSQL", func(t *testing.T) { conform(t, postgres, opts, false, can) })
	t.Run("SQLite", func(t *testing.T) { conform(t, sqliteFile, opts, false, can) })
	t.Run("SQLite, opened without care", func(t *testing.T) { conform(t, sqliteBare, opts, false, can) })
}

func TestProcessConformsAtEveryIsolationLevel(t *testing.T) {
	can := idemtest.Abilities{Parallel: true, NamesKey: true, Deadlock: true}
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		opts := idemsql.Options{TTL: time.Hour, MaxPause: 20 * time.Millisecond, Isolation: level}
		t.Run("PostgreSQL, "+level.String(), func(t *testing.T) { conform(t, postgres, opts, true, can) })
	}
	can.Parallel = false // the file has one writer
	opts := idemsql.Options{TTL: time.Hour, MaxPause: 20 * time.Millisecond}
	t.Run("SQLite", func(t *testing.T) { conform(t, sqliteFile, opts, true, can) })
	t.Run("SQLite, opened without care", func(t *testing.T) { conform(t, sqliteBare, opts, true, can) })
}

func TestATierInFrontConforms(t *testing.T) {
	idemtest.Run(t, func(t *testing.T) idemtest.Guard {
		in, _ := inbox[[]byte](t, sqliteFile(t), idemsql.Options{MaxPause: 20 * time.Millisecond})
		tier, err := idempotent.NewTier(in, idempotent.TierOptions[[]byte]{})
		require.NoError(t, err)
		return tier
	}, idemtest.Abilities{SeesClaims: true, Parallel: true, DeadReplay: true, NamesKey: true, Deadlock: true})
}
