package idemsql_test

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemsql"
)

func TestLookup(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, _ := inbox[string](t, s, idemsql.Options{TTL: time.Hour, FailureTTL: time.Minute})
		ctx := t.Context()
		_, found, err := in.Lookup(ctx, "unknown")
		require.NoError(t, err)
		require.False(t, found)

		before := time.Now().Truncate(time.Millisecond)
		_, _, err = in.Handle(ctx, idempotent.Request[string]{Key: "k", Fingerprint: "print\x00\xff"}, value("v"))
		require.NoError(t, err)
		asked := time.Now()
		rec, found, err := in.Lookup(ctx, "k")
		early := time.Since(asked) // at most
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, "v", rec.Value)
		require.NoError(t, rec.Err)
		require.Equal(t, "print\x00\xff", rec.Fingerprint)
		require.WithinRange(t, rec.CompletedAt, before.Add(-early), time.Now())
		require.InDelta(t, time.Hour, rec.ExpiresAt.Sub(rec.CompletedAt), float64(2*time.Millisecond))

		for _, ttl := range []time.Duration{idempotent.Forever, idempotent.Forever - 1} {
			_, _, err = in.Handle(ctx, idempotent.Request[string]{Key: ttl.String(), TTL: ttl}, value("v"))
			require.NoError(t, err)
			rec, found, err = in.Lookup(ctx, ttl.String())
			require.NoError(t, err)
			require.True(t, found)
			require.True(t, rec.ExpiresAt.IsZero())
		}
		long := 280 * 365 * 24 * time.Hour
		_, _, err = in.Handle(ctx, idempotent.Request[string]{Key: "long", TTL: long}, value("v"))
		require.NoError(t, err)
		rec, _, err = in.Lookup(ctx, "long")
		require.NoError(t, err)
		require.InDelta(t, long, rec.ExpiresAt.Sub(rec.CompletedAt), float64(2*time.Millisecond))

		_, _, err = in.Handle(ctx, request("no"), func(context.Context) (string, error) { return "why", idempotent.Permanent(errEffect) })
		require.ErrorIs(t, err, errEffect)
		rec, found, err = in.Lookup(ctx, "no")
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, "why", rec.Value)
		require.EqualError(t, rec.Err, errEffect.Error())
		require.InDelta(t, time.Minute, rec.ExpiresAt.Sub(rec.CompletedAt), float64(2*time.Millisecond))

		_, _, err = in.Handle(ctx, request("running"), func(context.Context) (string, error) {
			_, found, err := in.Lookup(ctx, "running")
			require.NoError(t, err)
			require.False(t, found)
			return "", nil
		})
		require.NoError(t, err)
	})
}

func TestResolve(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, _ := inbox[string](t, s, idemsql.Options{})
		ctx := t.Context()
		_, _, err := in.Handle(ctx, request("k"), func(context.Context) (string, error) { return "", idempotent.Unknown(errEffect) })
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		settled, err := in.Resolve(ctx, "k", "it was done")
		require.NoError(t, err)
		require.True(t, settled)
		v, verdict, err := in.Handle(ctx, request("k"), nil)
		require.NoError(t, err)
		require.Equal(t, idempotent.Replayed, verdict)
		require.Equal(t, "it was done", v)
		for _, key := range []string{"k", "never seen"} {
			settled, err = in.Resolve(ctx, key, "twice")
			require.NoError(t, err)
			require.False(t, settled, key)
		}
	})
}

// fill puts n settled rows into the table that end at the instant given in SQL.
func fill(t *testing.T, s store, db *sql.DB, n int, expires string) {
	series, received := "SELECT generate_series(1, $1::int) AS i", "now()"
	if s.dialect == idemsql.SQLite {
		series, received = "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < $1) SELECT i FROM g", "0"
	}
	_, err := db.Exec(fmt.Sprintf(`INSERT INTO %s (event_id, consumer, received_at, processed_at, expires_at, fingerprint, state, token, checksum)
	SELECT 'old' || i, '', %s, %s, %s, '', 'done', '', 0 FROM (%s) AS s`, tableOf(s), received, received, expires, series), n)
	require.NoError(t, err)
}

func past(s store) string {
	if s.dialect == idemsql.SQLite {
		return "(unixepoch() - 60) * 1000"
	}
	return "now() - interval '1 minute'"
}

func rows(t *testing.T, s store, db *sql.DB) (n int) {
	require.NoError(t, db.QueryRow("SELECT count(*) FROM "+tableOf(s)).Scan(&n))
	return n
}

func TestPrune(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		var told []int64
		in, db := inbox[string](t, s, idemsql.Options{PruneBatch: 10, OnPruned: func(n int64) { told = append(told, n) }})
		ctx := t.Context()
		for _, ttl := range []time.Duration{time.Hour, idempotent.Forever} {
			_, _, err := in.Handle(ctx, idempotent.Request[string]{Key: ttl.String(), TTL: ttl}, value("v"))
			require.NoError(t, err)
		}
		fill(t, s, db, 25, past(s))

		patient, _ := inbox[string](t, s, idemsql.Options{StaleFor: time.Hour})
		n, err := patient.Prune(ctx)
		require.NoError(t, err)
		require.Zero(t, n, "StaleFor keeps them")
		other, _ := inbox[string](t, s, idemsql.Options{Consumer: "other"})
		n, err = other.Prune(ctx)
		require.NoError(t, err)
		require.Zero(t, n, "another consumer's")

		n, err = in.Prune(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 25, n)
		require.Equal(t, []int64{10, 20, 25}, told)
		require.Equal(t, 2, rows(t, s, db))

		dead, cancel := context.WithCancel(ctx)
		cancel()
		_, err = in.Prune(dead)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestPrunersShareTheWork(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		_, db := inbox[string](t, s, idemsql.Options{})
		fill(t, s, db, 5000, past(s))
		var total int64
		var mu sync.Mutex
		var done sync.WaitGroup
		for range 4 {
			in, _ := inbox[string](t, s, idemsql.Options{PruneBatch: 100, MaxPause: 10 * time.Millisecond})
			done.Go(func() {
				n, err := in.Prune(context.Background())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				total += n
				mu.Unlock()
			})
		}
		done.Wait()
		require.EqualValues(t, 5000, total)
		require.Zero(t, rows(t, s, db))
	})
}

func TestAdvance(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, db := inbox[string](t, s, idemsql.Options{})
		other, _ := inbox[string](t, s, idemsql.Options{Consumer: "other"})
		ctx := t.Context()
		advance := func(in *idemsql.Inbox[string], resource string, sequence int64, end func(*sql.Tx) error) bool {
			tx, err := db.BeginTx(ctx, nil)
			require.NoError(t, err)
			fresh, err := in.Advance(ctx, tx, resource, sequence)
			require.NoError(t, err)
			require.NoError(t, end(tx))
			return fresh
		}
		for _, step := range []struct {
			resource string
			sequence int64
			fresh    bool
		}{
			{"a", 5, true}, {"a", 4, false}, {"a", 5, false}, {"a", 6, true}, {"b", 1, true}, {"", 0, true},
			{"a", math.MaxInt64, true}, {"a", 7, false}, {"c", math.MinInt64, true}, {"c", -1, true}, {"c", -2, false},
		} {
			require.Equal(t, step.fresh, advance(in, step.resource, step.sequence, (*sql.Tx).Commit), "%+v", step)
		}
		require.True(t, advance(other, "a", 1, (*sql.Tx).Commit), "consumers are apart")
		require.True(t, advance(in, "b", 2, (*sql.Tx).Rollback))
		require.True(t, advance(in, "b", 2, (*sql.Tx).Commit), "what was rolled back was not seen")
	})
}

func TestAdvanceTakesTurnsInProcess(t *testing.T) {
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			in, db := inbox[bool](t, postgres(t), idemsql.Options{Isolation: level, MaxConflicts: 1000, MaxPause: 20 * time.Millisecond})
			_, err := db.Exec("CREATE TABLE IF NOT EXISTS resource (version bigint); DELETE FROM resource; INSERT INTO resource VALUES (0)")
			require.NoError(t, err)
			var done sync.WaitGroup
			for n := range int64(16) {
				done.Go(func() {
					_, _, err := in.Process(context.Background(), request(fmt.Sprint("event", n)), func(ctx context.Context, tx *sql.Tx) (bool, error) {
						fresh, err := in.Advance(ctx, tx, "r", n+1)
						if err != nil || !fresh {
							return false, err
						}
						res, err := tx.ExecContext(ctx, "UPDATE resource SET version = $1 WHERE version < $1", n+1)
						if err != nil {
							return false, err
						}
						if changed, err := res.RowsAffected(); err != nil || changed != 1 {
							return false, fmt.Errorf("version %d was fresh and is not newer: %w", n+1, err)
						}
						return true, nil
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			done.Wait()
			var version int
			require.NoError(t, db.QueryRow("SELECT version FROM resource").Scan(&version))
			require.Equal(t, 16, version)
		})
	}
}

func TestMigrate(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		t.Run("from many processes at once", func(t *testing.T) {
			var done sync.WaitGroup
			for range 8 {
				db := s.open(t)
				in, err := idemsql.New[string](db, idemsql.Options{Dialect: s.dialect, Table: s.table, MaxPause: 10 * time.Millisecond})
				require.NoError(t, err)
				done.Go(func() {
					if err := in.Migrate(context.Background()); err != nil {
						t.Error(err)
					}
				})
			}
			done.Wait()
		})
		in, db := inbox[string](t, s, idemsql.Options{})
		version := tableOf(s) + "_version"
		t.Run("from an older version, keeping its rows", func(t *testing.T) {
			_, _, err := in.Handle(t.Context(), request("k"), value("v"))
			require.NoError(t, err)
			_, err = db.Exec("DELETE FROM " + version + " WHERE version = 2")
			require.NoError(t, err)
			_, err = db.Exec("DROP TABLE " + tableOf(s) + "_sequence")
			require.NoError(t, err)
			require.NoError(t, in.Migrate(t.Context()))
			_, verdict, err := in.Handle(t.Context(), request("k"), nil)
			require.NoError(t, err)
			require.Equal(t, idempotent.Replayed, verdict)
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			defer tx.Rollback()
			fresh, err := in.Advance(t.Context(), tx, "r", 1)
			require.NoError(t, err)
			require.True(t, fresh)
		})
		t.Run("refuses tables of a newer version", func(t *testing.T) {
			_, err := db.Exec("INSERT INTO " + version + " VALUES (99)")
			require.NoError(t, err)
			require.ErrorIs(t, in.Migrate(t.Context()), idemsql.ErrNewerSchema)
		})
	})
	t.Run("in a schema of PostgreSQL's", func(t *testing.T) {
		s := postgres(t)
		_, err := s.open(t).Exec("CREATE SCHEMA IF NOT EXISTS app")
		require.NoError(t, err)
		s.table = "app." + s.table
		in, _ := inbox[string](t, s, idemsql.Options{})
		_, verdict, err := in.Process(t.Context(), request("k"), gives("v"))
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
	})
}

func TestBadOptionsAreNamed(t *testing.T) {
	db := sqliteFile(t).open(t)
	good := idemsql.Options{Dialect: idemsql.SQLite}
	for want, spoil := range map[string]func(*idemsql.Options){
		"Options.Dialect is Dialect(0)":   func(o *idemsql.Options) { o.Dialect = 0 },
		"Options.Dialect is Dialect(9)":   func(o *idemsql.Options) { o.Dialect = 9 },
		`Options.Table is "a; DROP"`:      func(o *idemsql.Options) { o.Table = "a; DROP" },
		"Options.Table is":                func(o *idemsql.Options) { o.Table = strings.Repeat("t", 51) },
		`Options.Consumer is "\x00"`:      func(o *idemsql.Options) { o.Consumer = "\x00" },
		"Options.TTL is -1ns":             func(o *idemsql.Options) { o.TTL = -1 },
		"Options.FailureTTL is -1ns":      func(o *idemsql.Options) { o.FailureTTL = -1 },
		"Options.StaleFor is -1ns":        func(o *idemsql.Options) { o.StaleFor = -1 },
		"Options.Lease is -1ns":           func(o *idemsql.Options) { o.Lease = -1 },
		"Options.MaxPause is -1ns":        func(o *idemsql.Options) { o.MaxPause = -1 },
		"Options.MaxConflicts is -1":      func(o *idemsql.Options) { o.MaxConflicts = -1 },
		"Options.PruneBatch is -1":        func(o *idemsql.Options) { o.PruneBatch = -1 },
		"Options.OnLostLease is 7":        func(o *idemsql.Options) { o.OnLostLease = 7 },
		"Options.Isolation is Read Commi": func(o *idemsql.Options) { o.Isolation = sql.LevelReadCommitted },
	} {
		t.Run(want, func(t *testing.T) {
			opts := good
			spoil(&opts)
			_, err := idemsql.New[string](db, opts)
			require.ErrorContains(t, err, want)
			if strings.Contains(want, "TTL") {
				require.ErrorIs(t, err, idempotent.ErrInvalidTTL)
			}
		})
	}
	_, err := idemsql.New[string](nil, good)
	require.ErrorContains(t, err, "db is nil")
}
