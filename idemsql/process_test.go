package idemsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemsql"
)

var errEffect = errors.New("the effect failed")

func request(key string) idempotent.Request[string] { return idempotent.Request[string]{Key: key} }

// ledger makes a table for effects to write to.
func ledger(t *testing.T, db *sql.DB) (write func(ctx context.Context, tx *sql.Tx, key string) error, count func() int) {
	name := fmt.Sprintf("ledger%d", tables.Add(1))
	_, err := db.Exec("CREATE TABLE " + name + " (key text)")
	require.NoError(t, err)
	write = func(ctx context.Context, tx *sql.Tx, key string) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO "+name+" VALUES ($1)", key)
		return err
	}
	count = func() (n int) {
		require.NoError(t, db.QueryRow("SELECT count(*) FROM "+name).Scan(&n))
		return n
	}
	return write, count
}

func TestProcess(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, db := inbox[string](t, s, idemsql.Options{})
		write, count := ledger(t, db)
		ctx := t.Context()
		entered := 0
		with := func(value string, err error) func(context.Context, *sql.Tx) (string, error) {
			return func(ctx context.Context, tx *sql.Tx) (string, error) {
				entered++
				if err := write(ctx, tx, value); err != nil {
					return "", err
				}
				return value, err
			}
		}

		t.Run("commits the effect's rows with the record", func(t *testing.T) {
			value, verdict, err := in.Process(ctx, request("ok"), with("v", nil))
			require.NoError(t, err)
			require.Equal(t, idempotent.Executed, verdict)
			require.Equal(t, "v", value)
			require.Equal(t, 1, count())
			value, verdict, err = in.Process(ctx, request("ok"), with("w", nil))
			require.NoError(t, err)
			require.Equal(t, idempotent.Replayed, verdict)
			require.Equal(t, "v", value)
			require.Equal(t, 1, count())
		})
		t.Run("rolls the effect's rows back with an error, and is free", func(t *testing.T) {
			before := count()
			_, verdict, err := in.Process(ctx, request("fails"), with("v", errEffect))
			require.Same(t, errEffect, err)
			require.Equal(t, idempotent.Executed, verdict)
			require.Equal(t, before, count())
			_, found, err := in.Lookup(ctx, "fails")
			require.NoError(t, err)
			require.False(t, found)
		})
		t.Run("rolls the effect's rows back with a panic", func(t *testing.T) {
			before := count()
			require.PanicsWithValue(t, "a bug", func() {
				_, _, _ = in.Process(ctx, request("panics"), func(ctx context.Context, tx *sql.Tx) (string, error) {
					require.NoError(t, write(ctx, tx, "v"))
					panic("a bug")
				})
			})
			require.Equal(t, before, count())
			_, verdict, err := in.Process(ctx, request("panics"), with("v", nil))
			require.NoError(t, err)
			require.Equal(t, idempotent.Executed, verdict)
		})
		t.Run("commits the effect's rows with a kept failure", func(t *testing.T) {
			before := count()
			_, verdict, err := in.Process(ctx, request("declined"), with("v", idempotent.Permanent(errEffect)))
			require.ErrorIs(t, err, errEffect)
			require.Equal(t, idempotent.Executed, verdict)
			require.Equal(t, before+1, count())
			value, verdict, err := in.Process(ctx, request("declined"), with("w", nil))
			require.EqualError(t, err, errEffect.Error())
			require.True(t, idempotent.IsPermanent(err), "so that an endpoint in front keeps it too")
			require.Equal(t, idempotent.Replayed, verdict)
			require.Equal(t, "v", value)
			require.Equal(t, before+1, count())
		})
		t.Run("an effect cannot drop its own record in silence", func(t *testing.T) {
			before := count()
			_, verdict, err := in.Process(ctx, request("drops"), func(ctx context.Context, tx *sql.Tx) (string, error) {
				require.NoError(t, write(ctx, tx, "v"))
				_, err := tx.ExecContext(ctx, "DELETE FROM "+tableOf(s)+" WHERE event_id = 'drops'")
				return "v", err
			})
			require.ErrorIs(t, err, idemsql.ErrNotRecorded)
			require.Equal(t, idempotent.Executed, verdict)
			require.Equal(t, before, count())
		})
		t.Run("a result that does not encode is not recorded, nor are the rows", func(t *testing.T) {
			broken, _ := inbox[func()](t, s, idemsql.Options{})
			before := count()
			_, verdict, err := broken.Process(ctx, request("codec"), func(ctx context.Context, tx *sql.Tx) (func(), error) {
				return func() {}, write(ctx, tx, "v")
			})
			require.ErrorIs(t, err, idemsql.ErrNotRecorded)
			require.Equal(t, idempotent.Executed, verdict)
			require.Equal(t, before, count())
		})
		t.Run("counts each call once", func(t *testing.T) {
			stats := in.Stats()
			require.EqualValues(t, entered+2, stats.Executed+stats.Failed, "two effects here count by themselves")
			require.EqualValues(t, 2, stats.Replayed)
			require.Zero(t, stats.Shared+stats.Refused)
		})
	})
}

func tableOf(s store) string {
	if s.table == "" {
		return "webhook_inbox"
	}
	return s.table
}

func TestConsumersOfOneEventAreApart(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		for _, consumer := range []string{"", "mail", "ledger"} {
			in, _ := inbox[string](t, s, idemsql.Options{Consumer: consumer})
			for _, want := range []idempotent.Verdict{idempotent.Executed, idempotent.Replayed} {
				value, verdict, err := in.Handle(t.Context(), request("event"), func(context.Context) (string, error) {
					return "by " + consumer, nil
				})
				require.NoError(t, err)
				require.Equal(t, want, verdict)
				require.Equal(t, "by "+consumer, value)
			}
		}
	})
}

func TestAFailedStatementBreaksAPostgreSQLTransaction(t *testing.T) {
	s := postgres(t)
	in, db := inbox[string](t, s, idemsql.Options{})
	write, count := ledger(t, db)
	ctx := t.Context()
	broken := func(end func(error) error) func(context.Context, *sql.Tx) (string, error) {
		return func(ctx context.Context, tx *sql.Tx) (string, error) {
			require.NoError(t, write(ctx, tx, "v"))
			_, err := tx.ExecContext(ctx, "SELECT 1/0")
			require.Error(t, err)
			return "v", end(err)
		}
	}
	t.Run("and an effect that hides it is not recorded", func(t *testing.T) {
		_, verdict, err := in.Process(ctx, request("hides"), broken(func(error) error { return nil }))
		require.ErrorIs(t, err, idemsql.ErrNotRecorded)
		require.Equal(t, idempotent.Executed, verdict)
		require.Zero(t, count())
	})
	t.Run("and a kept failure is recorded after it, without the rows", func(t *testing.T) {
		_, verdict, err := in.Process(ctx, request("kept"), broken(idempotent.Permanent))
		require.ErrorContains(t, err, "division by zero")
		require.NotErrorIs(t, err, idemsql.ErrNotRecorded)
		require.Equal(t, idempotent.Executed, verdict)
		_, verdict, err = in.Process(ctx, request("kept"), broken(idempotent.Permanent))
		require.ErrorContains(t, err, "division by zero")
		require.Equal(t, idempotent.Replayed, verdict)
		require.Zero(t, count())
	})
}

func TestConflictsStartOver(t *testing.T) {
	s := postgres(t)
	in, db := inbox[string](t, s, idemsql.Options{MaxConflicts: 3})
	write, count := ledger(t, db)
	ctx := t.Context()
	conflict := func(ctx context.Context, tx *sql.Tx, state string) error {
		_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE EXCEPTION 'a tie' USING ERRCODE = '`+state+`'; END $$`)
		return err
	}
	for _, state := range []string{"40001", "40P01"} {
		t.Run(state+" of the effect's own statements", func(t *testing.T) {
			before, tries := count(), 0
			value, verdict, err := in.Process(ctx, request(state), func(ctx context.Context, tx *sql.Tx) (string, error) {
				tries++
				if err := write(ctx, tx, "v"); err != nil || tries == 3 {
					return "v", err
				}
				return "", conflict(ctx, tx, state)
			})
			require.NoError(t, err)
			require.Equal(t, idempotent.Executed, verdict)
			require.Equal(t, "v", value)
			require.Equal(t, 3, tries)
			require.Equal(t, before+1, count())
		})
	}
	t.Run("with a bound", func(t *testing.T) {
		before, tries := count(), 0
		_, verdict, err := in.Process(ctx, request("never"), func(ctx context.Context, tx *sql.Tx) (string, error) {
			tries++
			return "", conflict(ctx, tx, "40001")
		})
		require.ErrorIs(t, err, idemsql.ErrConflict)
		require.Equal(t, idempotent.Executed, verdict)
		require.Equal(t, 1+3, tries)
		require.Equal(t, before, count())
		require.EqualValues(t, 2+2+4, in.Stats().StartedOver)
	})
	t.Run("when two effects lock two rows in opposite order", func(t *testing.T) {
		in, _ := inbox[string](t, s, idemsql.Options{})
		_, err := db.Exec(`CREATE TABLE accounts (id int PRIMARY KEY, balance int); INSERT INTO accounts VALUES (1, 0), (2, 0)`)
		require.NoError(t, err)
		var both sync.WaitGroup
		both.Add(2)
		var calls sync.WaitGroup
		for i, order := range [][]int{{1, 2}, {2, 1}} {
			calls.Go(func() {
				first := true
				_, verdict, err := in.Process(ctx, request(fmt.Sprint("transfer", i)), func(ctx context.Context, tx *sql.Tx) (string, error) {
					for n, id := range order {
						if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + 1 WHERE id = $1", id); err != nil {
							return "", err
						}
						if n == 0 && first {
							first = false
							both.Done()
							both.Wait()
						}
					}
					return "", nil
				})
				if err != nil || verdict != idempotent.Executed {
					t.Errorf("transfer %d: %v, %v", i, verdict, err)
				}
			})
		}
		calls.Wait()
		var sum int
		require.NoError(t, db.QueryRow("SELECT sum(balance) FROM accounts").Scan(&sum))
		require.Equal(t, 4, sum)
		require.NotZero(t, in.Stats().StartedOver)
	})
}

// TestEffectsRowsAreWrittenOnce counts what effects have written, not how often
// they were entered: under Serializable an effect may be run again.
func TestEffectsRowsAreWrittenOnceAtEveryLevel(t *testing.T) {
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			s := postgres(t)
			const keys, callers = 20, 8
			_, db := inbox[string](t, s, idemsql.Options{})
			write, count := ledger(t, db)
			_, err := db.Exec(`CREATE TABLE IF NOT EXISTS total (n int); DELETE FROM total; INSERT INTO total VALUES (0)`)
			require.NoError(t, err)
			var executed atomic.Int64
			var done sync.WaitGroup
			for range callers {
				in, _ := inbox[string](t, s, idemsql.Options{Isolation: level, MaxConflicts: 1000, MaxPause: 20 * time.Millisecond})
				done.Go(func() {
					for k := range keys {
						_, verdict, err := in.Process(context.Background(), request(fmt.Sprint("k", k)), func(ctx context.Context, tx *sql.Tx) (string, error) {
							// All effects meet in one row.
							if _, err := tx.ExecContext(ctx, "UPDATE total SET n = n + 1"); err != nil {
								return "", err
							}
							return "", write(ctx, tx, fmt.Sprint("k", k))
						})
						if err != nil {
							t.Error(err)
						}
						if verdict == idempotent.Executed {
							executed.Add(1)
						}
					}
				})
			}
			done.Wait()
			var total int
			require.NoError(t, db.QueryRow("SELECT n FROM total").Scan(&total))
			require.Equal(t, keys, total)
			require.Equal(t, keys, count())
			require.EqualValues(t, keys, executed.Load())
		})
	}
}

func TestAReplayWritesNothing(t *testing.T) {
	in, db := inbox[string](t, postgres(t), idemsql.Options{})
	ctx := t.Context()
	_, _, err := in.Process(ctx, request("k"), func(context.Context, *sql.Tx) (string, error) { return "v", nil })
	require.NoError(t, err)
	next := func() (xid int64) { // the next transaction that writes
		require.NoError(t, db.QueryRow("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&xid))
		return xid
	}
	// The server's own maintenance writes at times: one quiet round is proof.
	require.Eventually(t, func() bool {
		before := next()
		for range 10 {
			_, verdict, err := in.Process(ctx, request("k"), nil)
			require.NoError(t, err)
			require.Equal(t, idempotent.Replayed, verdict)
		}
		return next() == before
	}, 20*time.Second, time.Millisecond)
}
