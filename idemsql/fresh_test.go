package idemsql_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemsql"
)

// stale leaves the key with a result whose window has ended.
func stale(t *testing.T, in *idemsql.Inbox[string]) {
	_, _, err := in.Handle(t.Context(), idempotent.Request[string]{Key: "k", TTL: time.Microsecond}, value("old"))
	require.NoError(t, err)
	for {
		record, found, err := in.Lookup(t.Context(), "k")
		require.NoError(t, err)
		if !found {
			return
		}
		time.Sleep(time.Until(record.ExpiresAt))
	}
}

// works is an effect of that length, which must not be cancelled.
func works(t *testing.T, length time.Duration, meanwhile func(context.Context)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		meanwhile(ctx)
		select {
		case <-ctx.Done():
			t.Errorf("cancelled: %v", context.Cause(ctx))
		case <-time.After(length):
		}
		return "v", nil
	}
}

// A claim has waited for its row, for a connection, or for OnStale. Its lease
// begins after that.
func TestALeaseBeginsWhenTheClaimIsThere(t *testing.T) {
	const lease = time.Second
	onceMore := func(t *testing.T, in *idemsql.Inbox[string]) func(context.Context) {
		return func(context.Context) {
			_, _, err := in.Handle(t.Context(), idempotent.Request[string]{Key: "k", NoWait: true}, value("second"))
			assert.ErrorIs(t, err, idempotent.ErrInFlight)
		}
	}
	for name, c := range map[string]struct {
		stale bool
		lost  idemsql.LostLease
	}{
		"a new key":              {false, idemsql.RunAgain},
		"a new key, HoldUnknown": {false, idemsql.HoldUnknown},
		"a stale key":            {true, idemsql.RunAgain},
	} {
		t.Run("after another's transaction, "+name, func(t *testing.T) {
			t.Parallel()
			in, _ := inbox[string](t, postgres(t), idemsql.Options{Lease: lease, OnLostLease: c.lost})
			if c.stale {
				stale(t, in)
			}
			entered := make(chan struct{})
			go in.Process(t.Context(), request("k"), func(context.Context, *sql.Tx) (string, error) {
				close(entered)
				time.Sleep(lease + lease/4)
				return "", errors.New("rolls back")
			})
			<-entered
			_, _, err := in.Handle(t.Context(), request("k"), works(t, lease/2, onceMore(t, in)))
			assert.NoError(t, err)
		})
	}
	each(t, func(t *testing.T, s store) {
		t.Run("after a connection", func(t *testing.T) {
			in, db := inbox[string](t, s, idemsql.Options{Lease: lease})
			db.SetMaxOpenConns(1)
			conn, err := db.Conn(t.Context())
			require.NoError(t, err)
			time.AfterFunc(lease+lease/4, func() { conn.Close() })
			_, _, err = in.Handle(t.Context(), request("pooled"), works(t, lease/2, func(context.Context) {}))
			assert.NoError(t, err)
		})
		t.Run("after OnStale", func(t *testing.T) {
			opts := idemsql.Options{Lease: lease, OnLostLease: idemsql.RunAgain}
			other, _ := inbox[string](t, s, opts)
			opts.OnStale = func(context.Context, string, time.Time) error {
				time.Sleep(lease + lease/4)
				return nil
			}
			in, _ := inbox[string](t, s, opts)
			stale(t, other)
			_, _, err := in.Handle(t.Context(), request("k"), works(t, 0, onceMore(t, other)))
			assert.NoError(t, err)
		})
	})
}

// A result comes back as it was, by the type of the inbox.
func TestResultsOfAnyType(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, _ := inbox[any](t, s, idemsql.Options{})
		for _, want := range []any{"hello", "123", true, nil} {
			key, err := json.Marshal(want)
			require.NoError(t, err)
			for range 2 {
				got, _, err := in.Handle(t.Context(), request(string(key)), func(context.Context) (any, error) { return want, nil })
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
		}
		raw, _ := inbox[json.RawMessage](t, s, idemsql.Options{Consumer: "raw"})
		want := json.RawMessage(`{"a": 1, "b":"<x>"}`)
		for range 2 {
			got, _, err := raw.Handle(t.Context(), request("k"), func(context.Context) (json.RawMessage, error) { return want, nil })
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		}
	})
}

func TestOnStaleMayNotWaitForItself(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		plain, _ := inbox[string](t, s, idemsql.Options{})
		var in *idemsql.Inbox[string]
		in, _ = inbox[string](t, s, idemsql.Options{OnStale: func(ctx context.Context, key string, _ time.Time) error {
			_, _, err := in.Handle(ctx, request(key), value("own"))
			return err
		}})
		stale(t, plain)
		_, verdict, err := in.Process(ctx, request("k"), func(context.Context, *sql.Tx) (string, error) { return "x", nil })
		require.Equal(t, idempotent.Refused, verdict)
		require.ErrorIs(t, err, idempotent.ErrDeadlock)
	})
}

func TestANestedCallWithOneConnection(t *testing.T) {
	in, db := inbox[string](t, sqliteFile(t), idemsql.Options{})
	db.SetMaxOpenConns(1)
	_, _, err := in.Process(t.Context(), request("k"), func(ctx context.Context, _ *sql.Tx) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, _, err := in.Handle(ctx, request("other"), value("v"))
		assert.ErrorIs(t, err, idempotent.ErrDeadlock)
		_, err = in.Forget(ctx, "other")
		assert.ErrorIs(t, err, idempotent.ErrDeadlock)
		_, _, err = in.Lookup(ctx, "other")
		assert.ErrorIs(t, err, idempotent.ErrDeadlock)
		_, err = in.Resolve(ctx, "other", "v")
		assert.ErrorIs(t, err, idempotent.ErrDeadlock)
		return "v", nil
	})
	require.NoError(t, err)
}

// conflict has PostgreSQL break a tie against tx.
func conflict(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$`)
	return err
}

func TestEffectsErrorsAreTheirs(t *testing.T) {
	t.Run("a marked conflict is the key's result", func(t *testing.T) {
		for name, own := range map[string]bool{"of another database": false, "of this one": true} {
			t.Run(name, func(t *testing.T) {
				in, _ := inbox[string](t, postgres(t), idemsql.Options{MaxConflicts: 3})
				for _, want := range []idempotent.Verdict{idempotent.Executed, idempotent.Replayed} {
					runs := 0
					_, verdict, err := in.Process(t.Context(), request("k"), func(ctx context.Context, tx *sql.Tx) (string, error) {
						runs++
						if own {
							return "", idempotent.Unknown(conflict(ctx, tx))
						}
						return "", idempotent.Unknown(&pgconn.PgError{Code: "40001"})
					})
					require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
					require.Equal(t, want, verdict)
					require.Equal(t, want == idempotent.Executed, runs == 1)
				}
			})
		}
	})
	t.Run("a cut body is no trouble of the database", func(t *testing.T) {
		each(t, func(t *testing.T, s store) {
			in, _ := inbox[string](t, s, idemsql.Options{})
			own := []error{io.ErrUnexpectedEOF, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("the mail server refuses")}}
			if s.dialect == idemsql.Postgres {
				own = append(own, coded(13)) // SQLite's for a full disk
			}
			for _, want := range own {
				_, _, err := in.Process(t.Context(), request("k"), func(context.Context, *sql.Tx) (string, error) { return "", want })
				require.Equal(t, want, err)
			}
		})
	})
}

// coded is an error with a number, as many libraries have.
type coded int

func (c coded) Error() string { return "a code" }
func (c coded) Code() int     { return int(c) }

// As after a failover: nothing is lost as long as there is time.
func TestADatabaseThatIsReadOnlyForAMoment(t *testing.T) {
	const lease = 3 * time.Second
	in, db := inbox[string](t, postgres(t), idemsql.Options{Lease: lease})
	db.SetMaxOpenConns(1) // its session is what is read-only
	readOnly := func(is string) {
		_, err := db.Exec("SET default_transaction_read_only = " + is)
		require.NoError(t, err)
	}
	_, _, err := in.Handle(t.Context(), request("renewed"), works(t, lease+lease/4, func(context.Context) {
		readOnly("on")
		time.AfterFunc(lease*2/5, func() { readOnly("off") })
	}))
	require.NoError(t, err)
	_, _, err = in.Handle(t.Context(), request("recorded"), func(context.Context) (string, error) {
		readOnly("on")
		time.AfterFunc(lease/10, func() { readOnly("off") })
		return "v", nil
	})
	require.NoError(t, err)
	_, verdict, err := in.Handle(t.Context(), request("lost"), func(ctx context.Context) (string, error) {
		readOnly("on")
		<-ctx.Done()
		return "v", nil
	})
	readOnly("off")
	require.Equal(t, idempotent.Executed, verdict)
	require.ErrorIs(t, err, idemsql.ErrNotRecorded)
	require.ErrorIs(t, err, idemsql.ErrLeaseLost)
}

func TestTurnsAreOneCall(t *testing.T) {
	t.Run("a key is stale once", func(t *testing.T) {
		in, _ := inbox[string](t, postgres(t), idemsql.Options{})
		stale(t, in)
		runs := 0
		_, _, err := in.Process(t.Context(), request("k"), func(ctx context.Context, tx *sql.Tx) (string, error) {
			if runs++; runs < 4 {
				return "", conflict(ctx, tx)
			}
			return "v", nil
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, in.Stats().Stale)
	})
	t.Run("an effect that was entered is not refused", func(t *testing.T) {
		in, _ := inbox[string](t, postgres(t), idemsql.Options{})
		var other sync.WaitGroup
		var once sync.Once
		_, verdict, err := in.Process(t.Context(), idempotent.Request[string]{Key: "k", Fingerprint: "a"}, func(ctx context.Context, tx *sql.Tx) (string, error) {
			once.Do(func() {
				other.Go(func() { in.Handle(t.Context(), idempotent.Request[string]{Key: "k", Fingerprint: "b"}, value("b")) })
			})
			time.Sleep(50 * time.Millisecond) // for it to wait at the row; if it does not, the effect runs again
			return "", conflict(ctx, tx)
		})
		require.Equal(t, idempotent.Executed, verdict)
		require.Error(t, err)
		other.Wait()
	})
	t.Run("NoWait leaves the session's lock_timeout alone", func(t *testing.T) {
		in, db := inbox[string](t, postgres(t), idemsql.Options{})
		db.SetMaxOpenConns(1)
		_, err := db.Exec("SET lock_timeout = '7s'")
		require.NoError(t, err)
		got, _, err := in.Process(t.Context(), idempotent.Request[string]{Key: "k", NoWait: true}, func(ctx context.Context, tx *sql.Tx) (timeout string, err error) {
			err = tx.QueryRowContext(ctx, "SHOW lock_timeout").Scan(&timeout)
			return timeout, err
		})
		require.NoError(t, err)
		require.Equal(t, "7s", got)
	})
}

// Whatever Forget has seen, it drops nothing that has become something else.
func TestForgetLeavesWhatTookItsKeyOver(t *testing.T) {
	s := postgres(t)
	in, db := inbox[string](t, s, idemsql.Options{OnLostLease: idemsql.RunAgain, Lease: time.Minute})
	_, _, err := in.Handle(t.Context(), request("k"), func(ctx context.Context) (string, error) {
		_, err := db.ExecContext(ctx, "UPDATE "+tableOf(s)+" SET lease_until = now() - interval '1 s'")
		require.NoError(t, err)
		entered, forgotten := make(chan struct{}), make(chan bool)
		go func() {
			<-entered
			had, err := in.Forget(t.Context(), "k")
			assert.NoError(t, err)
			forgotten <- had
		}()
		_, verdict, err := in.Process(t.Context(), request("k"), func(ctx context.Context, _ *sql.Tx) (string, error) {
			close(entered)
			for waiting := 0; waiting == 0; { // for the row
				err := db.QueryRowContext(ctx, "SELECT count(*) FROM pg_locks WHERE NOT granted").Scan(&waiting)
				require.NoError(t, err)
			}
			return "of the next", nil
		})
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
		require.False(t, <-forgotten)
		return "", errors.New("too late")
	})
	require.Error(t, err)
	got, verdict, err := in.Process(t.Context(), request("k"), never(t))
	require.NoError(t, err)
	require.Equal(t, idempotent.Replayed, verdict)
	require.Equal(t, "of the next", got)
}

func TestAForgottenKeyIsNotStale(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		plain, _ := inbox[string](t, s, idemsql.Options{})
		in, _ := inbox[string](t, s, idemsql.Options{OnStale: func(context.Context, string, time.Time) error { return idempotent.ErrStale }})
		stale(t, plain)
		_, _, err := in.Handle(t.Context(), request("k"), value("new"))
		require.ErrorIs(t, err, idempotent.ErrStale)
		had, err := in.Forget(t.Context(), "k")
		require.NoError(t, err)
		require.False(t, had, "its result had ended")
		got, _, err := in.Handle(t.Context(), request("k"), value("new"))
		require.NoError(t, err)
		require.Equal(t, "new", got)
		require.EqualValues(t, 1, in.Stats().Stale)
	})
}
