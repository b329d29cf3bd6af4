package idemsql_test

import (
	"context"
	"database/sql"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemsql"
)

// lapsedQuery is the README's, for the store's table.
func lapsedQuery(t *testing.T, s store) string {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	name := map[idemsql.Dialect]string{idemsql.Postgres: "PostgreSQL", idemsql.SQLite: "SQLite"}[s.dialect]
	_, rest, found := strings.Cut(string(readme), "-- "+name+": lapsed claims\n")
	require.True(t, found, name)
	query, _, found := strings.Cut(rest, ";")
	require.True(t, found, name)
	return strings.Replace(query, "webhook_inbox", tableOf(s), 1)
}

// lapsedKeys are what an operator finds with it.
func lapsedKeys(t *testing.T, s store, db *sql.DB) (keys []string) {
	lines, err := db.Query(lapsedQuery(t, s))
	require.NoError(t, err)
	defer lines.Close()
	for lines.Next() {
		var key, consumer string
		var received any
		require.NoError(t, lines.Scan(&key, &consumer, &received))
		keys = append(keys, key)
	}
	require.NoError(t, lines.Err())
	return keys
}

func TestAnEffectThatCommitsItsTransaction(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, db := inbox[string](t, s, idemsql.Options{})
		bold, _ := inbox[string](t, s, idemsql.Options{OnLostLease: idemsql.RunAgain})
		write, count := ledger(t, db)
		ctx := t.Context()
		committing := func(end func() error) func(context.Context, *sql.Tx) (string, error) {
			return func(ctx context.Context, tx *sql.Tx) (string, error) {
				require.NoError(t, write(ctx, tx, "v"))
				require.NoError(t, tx.Commit())
				return "v", end()
			}
		}
		held := func(t *testing.T, key string) {
			for _, in := range []*idemsql.Inbox[string]{in, bold} {
				_, verdict, err := in.Process(ctx, request(key), never(t))
				require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
				require.ErrorIs(t, err, idemsql.ErrTxEnded)
				require.Equal(t, idempotent.Replayed, verdict)
				_, verdict, err = in.Handle(ctx, request(key), value("again"))
				require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
				require.Equal(t, idempotent.Replayed, verdict)
				rec, found, err := in.Lookup(ctx, key)
				require.NoError(t, err)
				require.True(t, found)
				require.ErrorIs(t, rec.Err, idempotent.ErrOutcomeUnknown)
			}
			require.Contains(t, lapsedKeys(t, s, db), key)
		}
		for name, end := range map[string]func() error{
			"and succeeds":            func() error { return nil },
			"and fails":               func() error { return errEffect },
			"and has a kept failure":  func() error { return idempotent.Permanent(errEffect) },
			"and reports a conflict":  func() error { return tie{} },
			"and has unknown outcome": func() error { return idempotent.Unknown(errEffect) },
		} {
			t.Run(name+" gets a typed error, and holds its key as unknown", func(t *testing.T) {
				before := count()
				v, verdict, err := in.Process(ctx, request(name), committing(end))
				require.ErrorIs(t, err, idemsql.ErrTxEnded)
				require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
				require.NotErrorIs(t, err, idemsql.ErrNotRecorded, "which promises a free key")
				require.ErrorContains(t, err, `"`+name+`"`)
				if why := end(); why != nil {
					require.ErrorContains(t, err, why.Error())
				}
				require.Equal(t, idempotent.Executed, verdict)
				require.Equal(t, "v", v)
				held(t, name)
				require.Equal(t, before+1, count())
			})
		}
		t.Run("and panics holds its key too", func(t *testing.T) {
			require.PanicsWithValue(t, "a bug", func() {
				_, _, _ = in.Process(ctx, request("panics"), committing(func() error { panic("a bug") }))
			})
			held(t, "panics")
		})
		t.Run("of a result that does not encode is not promised a free key", func(t *testing.T) {
			broken, _ := inbox[func()](t, s, idemsql.Options{})
			_, _, err := broken.Process(ctx, request("codec"), func(_ context.Context, tx *sql.Tx) (func(), error) {
				return func() {}, tx.Commit()
			})
			require.ErrorIs(t, err, idemsql.ErrTxEnded)
			require.NotErrorIs(t, err, idemsql.ErrNotRecorded)
			held(t, "codec")
		})
		t.Run("is settled by Resolve", func(t *testing.T) {
			settled, err := in.Resolve(ctx, "and succeeds", "by hand")
			require.NoError(t, err)
			require.True(t, settled)
			v, verdict, err := in.Process(ctx, request("and succeeds"), never(t))
			require.NoError(t, err)
			require.Equal(t, idempotent.Replayed, verdict)
			require.Equal(t, "by hand", v)
		})
		t.Run("is freed by Forget", func(t *testing.T) {
			forgotten, err := in.Forget(ctx, "and fails")
			require.NoError(t, err)
			require.True(t, forgotten)
			_, verdict, err := in.Process(ctx, request("and fails"), gives("v"))
			require.NoError(t, err)
			require.Equal(t, idempotent.Executed, verdict)
			require.NotContains(t, lapsedKeys(t, s, db), "and fails")
		})
		t.Run("is held over a stale result as well", func(t *testing.T) {
			_, _, err := in.Process(ctx, idempotent.Request[string]{Key: "stale", TTL: 1}, gives("v"))
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				_, found, err := in.Lookup(ctx, "stale")
				return err == nil && !found
			}, 10*time.Second, time.Millisecond)
			_, _, err = in.Process(ctx, request("stale"), committing(func() error { return nil }))
			require.ErrorIs(t, err, idemsql.ErrTxEnded)
			held(t, "stale")
		})
	})
}

// tie is an error like the one by which PostgreSQL breaks a tie.
type tie struct{}

func (tie) Error() string    { return "a tie" }
func (tie) SQLState() string { return "40001" }

func TestAnEffectThatRollsItsTransactionBack(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, db := inbox[string](t, s, idemsql.Options{})
		write, count := ledger(t, db)
		ctx := t.Context()
		rollingBack := func(failure error) func(context.Context, *sql.Tx) (string, error) {
			return func(ctx context.Context, tx *sql.Tx) (string, error) {
				require.NoError(t, write(ctx, tx, "v"))
				return "v", rolledBack(tx, failure)
			}
		}
		free := func(t *testing.T, key string) {
			require.Zero(t, count())
			require.Empty(t, lapsedKeys(t, s, db))
			_, verdict, err := in.Process(ctx, request(key), gives("next"))
			require.NoError(t, err)
			require.Equal(t, idempotent.Executed, verdict)
		}
		for name, failure := range map[string]error{"success": nil, "kept failure": idempotent.Permanent(errEffect)} {
			t.Run("is told that its "+name+" is not recorded, and the key is free", func(t *testing.T) {
				_, verdict, err := in.Process(ctx, request(name), rollingBack(failure))
				require.ErrorIs(t, err, idemsql.ErrTxEnded)
				require.ErrorIs(t, err, idemsql.ErrNotRecorded)
				require.NotErrorIs(t, err, idempotent.ErrOutcomeUnknown)
				if failure != nil {
					require.ErrorIs(t, err, errEffect)
				}
				require.Equal(t, idempotent.Executed, verdict)
				free(t, name)
			})
		}
		t.Run("and fails has its own error, and the key is free", func(t *testing.T) {
			_, verdict, err := in.Process(ctx, request("fails"), rollingBack(errEffect))
			require.Same(t, errEffect, err)
			require.Equal(t, idempotent.Executed, verdict)
			free(t, "fails")
		})
		t.Run("and reports a conflict starts over", func(t *testing.T) {
			tries := 0
			_, verdict, err := in.Process(ctx, request("tie"), func(_ context.Context, tx *sql.Tx) (string, error) {
				if tries++; tries < 3 {
					return "", rolledBack(tx, tie{})
				}
				return "v", nil
			})
			require.NoError(t, err)
			require.Equal(t, idempotent.Executed, verdict)
			require.Equal(t, 3, tries)
		})
	})
}

// rolledBack returns failure, or why the transaction could not be rolled back.
func rolledBack(tx *sql.Tx, failure error) error {
	if err := tx.Rollback(); err != nil {
		return err
	}
	return failure
}

func TestTheLongestLeaseIsALease(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, db := inbox[string](t, s, idemsql.Options{Lease: math.MaxInt64, OnLostLease: idemsql.RunAgain})
		other, _ := inbox[string](t, s, idemsql.Options{})
		v, _, err := in.Handle(t.Context(), request("k"), func(ctx context.Context) (string, error) {
			_, verdict, err := other.Handle(ctx, idempotent.Request[string]{Key: "k", NoWait: true}, value("again"))
			require.ErrorIs(t, err, idempotent.ErrInFlight)
			require.Equal(t, idempotent.Refused, verdict)
			require.Empty(t, lapsedKeys(t, s, db))
			return "v", nil
		})
		require.NoError(t, err)
		require.Equal(t, "v", v)
	})
}

func TestTheREADMEsQueryFindsALapsedLease(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		_, _, err := abandon(t, s, "lapsed", func(db *sql.DB) {
			require.Equal(t, []string{"lapsed"}, lapsedKeys(t, s, db))
		})
		require.NoError(t, err)
	})
}

func TestAWaiterSharesALapsedLease(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, one := inbox[string](t, s, idemsql.Options{MaxPause: 10 * time.Millisecond})
		one.SetMaxOpenConns(1)
		_, _, err := abandonAfter(t, s, "k", func(lapse func()) {
			gate, err := one.Conn(t.Context())
			require.NoError(t, err)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, verdict, err := in.Handle(context.Background(), request("k"), value("again"))
				assert.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
				assert.Equal(t, idempotent.Shared, verdict)
			}()
			require.Eventually(t, func() bool { return one.Stats().WaitCount == 1 }, 10*time.Second, time.Millisecond)
			require.NoError(t, gate.Close()) // the waiter, alone in the queue, has the connection now
			gate, err = one.Conn(t.Context())
			require.NoError(t, err) // and has seen the claim alive
			lapse()
			require.NoError(t, gate.Close())
			<-ended
		})
		require.NoError(t, err)
	})
}

// abandonAfter is abandon, but the rest says when the lease lapses.
func abandonAfter(t *testing.T, s store, key string, rest func(lapse func())) (string, idempotent.Verdict, error) {
	holder, db := inbox[string](t, s, idemsql.Options{Lease: time.Hour})
	return holder.Handle(t.Context(), request(key), func(context.Context) (string, error) {
		rest(func() { lapse(t, s, db, key) })
		return "the lost attempt's", nil
	})
}
