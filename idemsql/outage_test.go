package idemsql_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemsql"
	"github.com/idempotent-go/idempotent/idemsql/internal/pgtest"
)

// never is an effect that must not run.
func never(t *testing.T) func(context.Context, *sql.Tx) (string, error) {
	return func(context.Context, *sql.Tx) (string, error) {
		t.Error("an effect started that must not")
		return "", nil
	}
}

func gives(value string) func(context.Context, *sql.Tx) (string, error) {
	return func(context.Context, *sql.Tx) (string, error) { return value, nil }
}

func TestTheServerGoesAway(t *testing.T) {
	own, err := pgtest.Start()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	s := postgresOn(t, own)
	in, db := inbox[string](t, s, idemsql.Options{})
	write, count := ledger(t, db)
	ctx := t.Context()

	t.Run("before the effect", func(t *testing.T) {
		require.NoError(t, own.Kill())
		_, verdict, err := in.Process(ctx, request("before"), never(t))
		require.ErrorIs(t, err, idemsql.ErrUnavailable)
		require.ErrorContains(t, err, `"before"`)
		require.Equal(t, idempotent.Refused, verdict)
		_, verdict, err = in.Handle(ctx, request("before"), func(context.Context) (string, error) { return "", nil })
		require.ErrorIs(t, err, idemsql.ErrUnavailable)
		require.Equal(t, idempotent.Refused, verdict)
		_, _, err = in.Lookup(ctx, "before")
		require.ErrorIs(t, err, idemsql.ErrUnavailable)
		require.NoError(t, own.Restart())
		_, verdict, err = in.Process(ctx, request("before"), gives("v"))
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
	})
	for name, heeds := range map[string]bool{"an effect that notices": true, "an effect that does not": false} {
		t.Run("during "+name, func(t *testing.T) {
			_, verdict, err := in.Process(ctx, request(name), func(ctx context.Context, tx *sql.Tx) (string, error) {
				require.NoError(t, write(ctx, tx, "v"))
				require.NoError(t, own.Kill())
				if heeds {
					return "", write(ctx, tx, "v")
				}
				return "v", nil
			})
			require.ErrorIs(t, err, idemsql.ErrUnavailable)
			require.Equal(t, idempotent.Executed, verdict)
			require.NoError(t, own.Restart())
			require.Zero(t, count(), "rolled back")
			_, verdict, err = in.Process(ctx, request(name), gives("v"))
			require.NoError(t, err)
			require.Equal(t, idempotent.Executed, verdict)
		})
	}
	t.Run("during the effect of Handle, and comes back: it is recorded", func(t *testing.T) {
		value, verdict, err := in.Handle(ctx, request("long"), func(context.Context) (string, error) {
			require.NoError(t, own.Kill())
			return "v", own.Restart()
		})
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
		require.Equal(t, "v", value)
		_, verdict, err = in.Handle(ctx, request("long"), nil)
		require.NoError(t, err)
		require.Equal(t, idempotent.Replayed, verdict)
	})
}

func TestTheAnswerToACommitIsLost(t *testing.T) {
	s := postgres(t)
	_, db := inbox[string](t, s, idemsql.Options{})
	write, count := ledger(t, db)
	for _, c := range []struct {
		name string
		cut
		check func(t *testing.T, value string, err error)
		rows  int
		next  idempotent.Verdict
	}{
		{"after it took effect: the call succeeds", cut{answered: true}, func(t *testing.T, value string, err error) {
			require.NoError(t, err)
			require.Equal(t, "v", value)
		}, 1, idempotent.Replayed},
		{"before it reached the server: nothing is recorded", cut{}, func(t *testing.T, _ string, err error) {
			require.ErrorIs(t, err, idemsql.ErrNotRecorded)
			require.ErrorIs(t, err, idemsql.ErrUnavailable)
		}, 0, idempotent.Executed},
		{"and the database stays away: the outcome is unknown, and the next call knows", cut{answered: true, stay: true}, func(t *testing.T, _ string, err error) {
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
			require.ErrorIs(t, err, idemsql.ErrUnavailable)
		}, 1, idempotent.Replayed},
	} {
		t.Run(c.name, func(t *testing.T) {
			line := newProxy(t, server)
			cutDB, err := sql.Open("pgx", line.dsn())
			require.NoError(t, err)
			defer cutDB.Close()
			in, err := idemsql.New[string](cutDB, idemsql.Options{Dialect: idemsql.Postgres, Table: s.table})
			require.NoError(t, err)
			before, entered := count(), 0
			value, verdict, err := in.Process(t.Context(), request(c.name), func(ctx context.Context, tx *sql.Tx) (string, error) {
				entered++
				c.text = []byte("commit")
				line.cut.Store(&c.cut)
				return "v", write(ctx, tx, "v")
			})
			require.Equal(t, idempotent.Executed, verdict)
			c.check(t, value, err)
			require.Equal(t, 1, entered, "never run again by itself")
			require.Equal(t, c.rows, count()-before)

			line.gone.Store(false)
			_, verdict, err = in.Process(t.Context(), request(c.name), gives("again"))
			require.NoError(t, err)
			require.Equal(t, c.next, verdict)
		})
	}
}

func TestTheAnswerToAClaimsCommitIsLost(t *testing.T) {
	s := postgres(t)
	inbox[string](t, s, idemsql.Options{})
	for name, answered := range map[string]bool{"after it took effect": true, "before it reached the server": false} {
		t.Run(name, func(t *testing.T) {
			line := newProxy(t, server)
			db, err := sql.Open("pgx", line.dsn())
			require.NoError(t, err)
			defer db.Close()
			in, err := idemsql.New[string](db, idemsql.Options{Dialect: idemsql.Postgres, Table: s.table, Lease: time.Hour})
			require.NoError(t, err)
			line.cut.Store(&cut{text: []byte("commit"), answered: answered})
			_, verdict, err := in.Handle(t.Context(), request(name), func(context.Context) (string, error) {
				t.Error("the effect started without a claim that is certain")
				return "", nil
			})
			require.ErrorIs(t, err, idemsql.ErrUnavailable)
			require.Equal(t, idempotent.Refused, verdict)
			_, verdict, err = in.Handle(t.Context(), request(name), value("v"))
			require.NoError(t, err)
			require.Equal(t, idempotent.Executed, verdict, "the claim was given up")
		})
	}
}

func TestTheDatabaseRefuses(t *testing.T) {
	open := func(t *testing.T, dsn string, s store) *idemsql.Inbox[string] {
		db, err := sql.Open("pgx", dsn)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		in, err := idemsql.New[string](db, idemsql.Options{Dialect: idemsql.Postgres, Table: s.table})
		require.NoError(t, err)
		return in
	}
	dsn := server.DSN("postgres")
	t.Run("when its tables are missing", func(t *testing.T) {
		_, verdict, err := open(t, dsn, postgres(t)).Process(t.Context(), request("k"), never(t))
		require.ErrorIs(t, err, idemsql.ErrNotMigrated)
		require.Equal(t, idempotent.Refused, verdict)
		in, err := idemsql.New[string](sqliteFile(t).open(t), idemsql.Options{Dialect: idemsql.SQLite})
		require.NoError(t, err)
		_, _, err = in.Process(t.Context(), request("k"), never(t))
		require.ErrorIs(t, err, idemsql.ErrNotMigrated)
	})
	t.Run("when it is read-only", func(t *testing.T) {
		s := postgres(t)
		inbox[string](t, s, idemsql.Options{})
		in := open(t, dsn+"&default_transaction_read_only=on", s)
		_, verdict, err := in.Process(t.Context(), request("k"), never(t))
		require.ErrorIs(t, err, idemsql.ErrReadOnly)
		require.Equal(t, idempotent.Refused, verdict)
		require.ErrorIs(t, open(t, dsn+"&default_transaction_read_only=on", postgres(t)).Migrate(t.Context()), idemsql.ErrReadOnly)
	})
	t.Run("when the statement times out in the effect", func(t *testing.T) {
		s := postgres(t)
		inbox[string](t, s, idemsql.Options{})
		in := open(t, dsn+"&statement_timeout=50ms", s)
		_, verdict, err := in.Process(t.Context(), request("k"), func(ctx context.Context, tx *sql.Tx) (string, error) {
			_, err := tx.ExecContext(ctx, "SELECT pg_sleep(60)")
			return "", err
		})
		require.ErrorIs(t, err, idemsql.ErrTimeout)
		require.Equal(t, idempotent.Executed, verdict)
		_, verdict, err = in.Process(t.Context(), request("k"), gives("v"))
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
	})
	t.Run("when the statement times out waiting for a duplicate", func(t *testing.T) {
		s := postgres(t)
		leader, _ := inbox[string](t, s, idemsql.Options{})
		in := open(t, dsn+"&statement_timeout=50ms", s)
		_, _, err := leader.Process(t.Context(), request("k"), func(ctx context.Context, tx *sql.Tx) (string, error) {
			_, verdict, err := in.Process(context.Background(), request("k"), never(t))
			require.ErrorIs(t, err, idemsql.ErrTimeout)
			require.Equal(t, idempotent.Refused, verdict)
			return "v", nil
		})
		require.NoError(t, err)
	})
	t.Run("when the pool is exhausted", func(t *testing.T) {
		each(t, func(t *testing.T, s store) {
			in, db := inbox[string](t, s, idemsql.Options{})
			db.SetMaxOpenConns(1)
			held, err := db.Conn(t.Context())
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, verdict, err := in.Process(ctx, request("k"), never(t))
			require.ErrorIs(t, err, idemsql.ErrPoolExhausted)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, idempotent.Refused, verdict)
			require.NoError(t, held.Close())
			_, verdict, err = in.Process(t.Context(), request("k"), gives("v"))
			require.NoError(t, err)
			require.Equal(t, idempotent.Executed, verdict)
		})
	})
	t.Run("when the SQLite disk is full", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "inbox.db")
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=max_page_count(20)&_pragma=journal_mode(WAL)&_txlock=immediate")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		in, err := idemsql.New[[]byte](db, idemsql.Options{Dialect: idemsql.SQLite})
		require.NoError(t, err)
		require.NoError(t, in.Migrate(t.Context()))
		large := func(ctx context.Context, _ *sql.Tx) ([]byte, error) { return make([]byte, 1<<20), nil }
		value, verdict, err := in.Process(t.Context(), request("k"), large)
		require.ErrorIs(t, err, idemsql.ErrDiskFull)
		require.ErrorIs(t, err, idemsql.ErrNotRecorded)
		require.Equal(t, idempotent.Executed, verdict)
		require.Nil(t, value)
		_, found, err := in.Lookup(t.Context(), "k")
		require.NoError(t, err)
		require.False(t, found, "rolled back")

		value, verdict, err = in.Handle(t.Context(), request("k"), func(ctx context.Context) ([]byte, error) { return large(ctx, nil) })
		require.ErrorIs(t, err, idemsql.ErrDiskFull)
		require.ErrorIs(t, err, idemsql.ErrNotRecorded)
		require.Equal(t, idempotent.Executed, verdict)
		require.Len(t, value, 1<<20, "the work is done, so its value is not withheld")
		_, verdict, err = in.Handle(t.Context(), idempotent.Request[string]{Key: "k", NoWait: true}, nil)
		require.ErrorIs(t, err, idempotent.ErrInFlight, "held, for nobody may do it again")
		require.Equal(t, idempotent.Refused, verdict)
	})
	t.Run("when it is a read-only file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "inbox.db")
		db, err := sql.Open("sqlite", "file:"+path)
		require.NoError(t, err)
		defer db.Close()
		in, err := idemsql.New[string](db, idemsql.Options{Dialect: idemsql.SQLite})
		require.NoError(t, err)
		require.NoError(t, in.Migrate(t.Context()))
		readOnly, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
		require.NoError(t, err)
		defer readOnly.Close()
		in, err = idemsql.New[string](readOnly, idemsql.Options{Dialect: idemsql.SQLite})
		require.NoError(t, err)
		_, verdict, err := in.Process(t.Context(), request("k"), never(t))
		require.ErrorIs(t, err, idemsql.ErrReadOnly)
		require.Equal(t, idempotent.Refused, verdict)
	})
}

func TestCorruptResultsAreRefusedAndNeverRunAgain(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, db := inbox[map[string]int](t, s, idemsql.Options{})
		for name, change := range map[string]string{
			"other bytes":      "result = $2",
			"no bytes":         "result = NULL",
			"no checksum":      "checksum = NULL",
			"another checksum": "checksum = 1",
		} {
			t.Run(name, func(t *testing.T) {
				key := "k " + name
				effect := func(context.Context) (map[string]int, error) { return map[string]int{"a": 1}, nil }
				_, _, err := in.Handle(t.Context(), request(key), effect)
				require.NoError(t, err)
				args := []any{key}
				if change == "result = $2" {
					args = append(args, []byte(`{"a":2}`))
				}
				statement := fmt.Sprintf("UPDATE %s SET %s WHERE event_id = $1", tableOf(s), change)
				_, err = db.Exec(statement, args...)
				require.NoError(t, err)
				for range 2 {
					_, verdict, err := in.Handle(t.Context(), request(key), nil)
					require.ErrorIs(t, err, idemsql.ErrCorrupt)
					require.ErrorContains(t, err, key)
					require.Equal(t, idempotent.Refused, verdict)
				}
				_, _, err = in.Lookup(t.Context(), key)
				require.ErrorIs(t, err, idemsql.ErrCorrupt)
				forgotten, err := in.Forget(t.Context(), key)
				require.NoError(t, err)
				require.True(t, forgotten)
				_, verdict, err := in.Handle(t.Context(), request(key), effect)
				require.NoError(t, err)
				require.Equal(t, idempotent.Executed, verdict)
			})
		}
	})
}
