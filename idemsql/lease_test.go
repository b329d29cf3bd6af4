package idemsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemsql"
)

// lapse ends the lease of the key's claim, as if its process had been gone for long.
func lapse(t *testing.T, s store, db *sql.DB, key string) {
	past := "now() - interval '1 hour'"
	if s.dialect == idemsql.SQLite {
		past = "0"
	}
	res, err := db.Exec(fmt.Sprintf("UPDATE %s SET lease_until = %s WHERE event_id = $1 AND state = 'claimed'", tableOf(s), past), key)
	require.NoError(t, err)
	n, err := res.RowsAffected()
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

func value(v string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return v, nil }
}

// abandon leaves a lapsed claim of the key while the rest runs, in the effect
// of an attempt that is then cut off from its row.
func abandon(t *testing.T, s store, key string, rest func(db *sql.DB)) (string, idempotent.Verdict, error) {
	holder, db := inbox[string](t, s, idemsql.Options{Lease: time.Hour})
	return holder.Handle(t.Context(), request(key), func(context.Context) (string, error) {
		lapse(t, s, db, key)
		rest(db)
		return "the lost attempt's", nil
	})
}

func TestALapsedLease(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, _ := inbox[string](t, s, idemsql.Options{})
		ctx := t.Context()
		unknown := func(key string) {
			_, verdict, err := in.Handle(ctx, request(key), value("again"))
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
			require.ErrorContains(t, err, key)
			require.Equal(t, idempotent.Replayed, verdict)
			_, _, err = in.Process(ctx, request(key), never(t))
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
			rec, found, err := in.Lookup(ctx, key)
			require.NoError(t, err)
			require.True(t, found)
			require.ErrorIs(t, rec.Err, idempotent.ErrOutcomeUnknown)
		}
		t.Run("holds the key as unknown, and its owner may still settle it", func(t *testing.T) {
			v, verdict, err := abandon(t, s, "k", func(*sql.DB) { unknown("k") })
			require.NoError(t, err)
			require.Equal(t, idempotent.Executed, verdict)
			require.Equal(t, "the lost attempt's", v)
			v, verdict, err = in.Handle(ctx, request("k"), nil)
			require.NoError(t, err)
			require.Equal(t, idempotent.Replayed, verdict)
			require.Equal(t, "the lost attempt's", v)
		})
		t.Run("until Resolve, which the lost owner does not overwrite", func(t *testing.T) {
			v, verdict, err := abandon(t, s, "resolved", func(*sql.DB) {
				unknown("resolved")
				settled, err := in.Resolve(ctx, "resolved", "by hand")
				require.NoError(t, err)
				require.True(t, settled)
				settled, err = in.Resolve(ctx, "resolved", "twice")
				require.NoError(t, err)
				require.False(t, settled)
			})
			require.ErrorIs(t, err, idemsql.ErrLeaseLost)
			require.ErrorIs(t, err, idemsql.ErrNotRecorded)
			require.Equal(t, idempotent.Executed, verdict)
			require.Equal(t, "the lost attempt's", v)
			v, verdict, err = in.Handle(ctx, request("resolved"), nil)
			require.NoError(t, err)
			require.Equal(t, idempotent.Replayed, verdict)
			require.Equal(t, "by hand", v)
		})
		t.Run("until Forget, whose next attempt the lost owner does not disturb", func(t *testing.T) {
			_, _, err := abandon(t, s, "forgotten", func(*sql.DB) {
				unknown("forgotten")
				forgotten, err := in.Forget(ctx, "forgotten")
				require.NoError(t, err)
				require.True(t, forgotten)
				_, verdict, err := in.Handle(ctx, request("forgotten"), value("next"))
				require.NoError(t, err)
				require.Equal(t, idempotent.Executed, verdict)
			})
			require.ErrorIs(t, err, idemsql.ErrLeaseLost)
			v, _, err := in.Handle(ctx, request("forgotten"), nil)
			require.NoError(t, err)
			require.Equal(t, "next", v)
		})
		t.Run("lets the next call run with RunAgain", func(t *testing.T) {
			bold, _ := inbox[string](t, s, idemsql.Options{OnLostLease: idemsql.RunAgain})
			_, _, err := abandon(t, s, "bold", func(*sql.DB) {
				_, found, err := bold.Lookup(ctx, "bold")
				require.NoError(t, err)
				require.False(t, found)
				v, verdict, err := bold.Handle(ctx, request("bold"), value("next"))
				require.NoError(t, err)
				require.Equal(t, idempotent.Executed, verdict)
				require.Equal(t, "next", v)
			})
			require.ErrorIs(t, err, idemsql.ErrLeaseLost)
		})
		t.Run("is not pruned", func(t *testing.T) {
			_, _, err := abandon(t, s, "pruned", func(*sql.DB) {
				_, err := in.Prune(ctx)
				require.NoError(t, err)
				unknown("pruned")
			})
			require.NoError(t, err)
		})
	})
}

func TestALeaseIsRenewedWhileTheEffectRuns(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		const lease = 3 * time.Second
		holder, _ := inbox[string](t, s, idemsql.Options{Lease: lease})
		in, _ := inbox[string](t, s, idemsql.Options{MaxPause: 50 * time.Millisecond})
		started, finish, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			_, _, err := holder.Handle(context.Background(), request("k"), func(ctx context.Context) (string, error) {
				close(started)
				<-finish
				return "v", context.Cause(ctx)
			})
			ended <- err
		}()
		<-started
		ctx, cancel := context.WithTimeout(t.Context(), lease+lease/2)
		defer cancel()
		_, verdict, err := in.Handle(ctx, request("k"), value("again"))
		require.ErrorIs(t, err, idempotent.ErrInFlight, "and not ErrOutcomeUnknown")
		require.Equal(t, idempotent.Refused, verdict)
		close(finish)
		require.NoError(t, <-ended)
	})
}

// A call that waits is told that the key is in flight, whether its ctx ends
// between two looks or within one.
func TestAWaiterWhoseCtxEndsAsItLooks(t *testing.T) {
	s := postgres(t)
	holder, db := inbox[string](t, s, idemsql.Options{})
	name := "waiter-of-" + s.table
	waiting, err := sql.Open("pgx", server.DSN("postgres")+"&application_name="+url.QueryEscape(name))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, waiting.Close()) })
	waiter, err := idemsql.New[string](waiting, idemsql.Options{Dialect: s.dialect, Table: s.table, MaxPause: time.Millisecond})
	require.NoError(t, err)
	is := func(state string) {
		t.Helper()
		require.Eventually(t, func() (yes bool) {
			require.NoError(t, db.QueryRow("SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = $1 AND query LIKE $2 AND "+state,
				name, "%"+s.table+"%").Scan(&yes))
			return yes
		}, 20*time.Second, time.Millisecond)
	}

	_, _, err = holder.Handle(t.Context(), request("k"), func(context.Context) (string, error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		refused := make(chan error, 1)
		go func() {
			_, _, err := waiter.Handle(ctx, request("k"), nil)
			refused <- err
		}()
		// An idle line may only have prepared its look: the fourth statement comes
		// after a look that has found the key running.
		begun := make(map[time.Time]bool)
		require.Eventually(t, func() bool {
			var at time.Time
			err := db.QueryRow("SELECT query_start FROM pg_stat_activity WHERE application_name = $1 AND query LIKE $2", name, "%"+s.table+"%").Scan(&at)
			begun[at] = err == nil
			return len(begun) > 4
		}, 20*time.Second, time.Millisecond)
		tx, err := db.Begin()
		require.NoError(t, err)
		_, err = tx.Exec("LOCK TABLE " + s.table + " IN ACCESS EXCLUSIVE MODE")
		require.NoError(t, err)
		is("wait_event_type = 'Lock'")
		cancel()
		err = <-refused
		require.ErrorIs(t, err, idempotent.ErrInFlight)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, tx.Rollback())
		return "v", nil
	})
	require.NoError(t, err)
}

func TestALostLeaseCancelsTheEffect(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		for name, lose := range map[string]func(t *testing.T, db *sql.DB){
			"when another has the row": func(t *testing.T, db *sql.DB) {
				_, err := db.Exec("UPDATE " + tableOf(s) + " SET token = 'another'")
				require.NoError(t, err)
			},
			"when the row is gone": func(t *testing.T, db *sql.DB) {
				_, err := db.Exec("DELETE FROM " + tableOf(s))
				require.NoError(t, err)
			},
		} {
			t.Run(name, func(t *testing.T) {
				in, db := inbox[string](t, s, idemsql.Options{Lease: 300 * time.Millisecond})
				var cause error
				_, verdict, err := in.Handle(t.Context(), request(name), func(ctx context.Context) (string, error) {
					lose(t, db)
					select {
					case <-ctx.Done():
						cause = context.Cause(ctx)
					case <-time.After(20 * time.Second):
					}
					return "v", nil
				})
				require.ErrorIs(t, cause, idemsql.ErrLeaseLost)
				require.ErrorIs(t, err, idemsql.ErrLeaseLost)
				require.ErrorIs(t, err, idemsql.ErrNotRecorded)
				require.Equal(t, idempotent.Executed, verdict)
				_, err = db.Exec("DELETE FROM " + tableOf(s))
				require.NoError(t, err)
			})
		}
		t.Run("when the database is out of reach", func(t *testing.T) {
			in, db := inbox[string](t, s, idemsql.Options{Lease: 300 * time.Millisecond})
			db.SetMaxOpenConns(1)
			var cause error
			v, verdict, err := in.Handle(t.Context(), request("cut off"), func(ctx context.Context) (string, error) {
				held, err := db.Conn(ctx) // nobody else gets one
				require.NoError(t, err)
				defer held.Close()
				select {
				case <-ctx.Done():
					cause = context.Cause(ctx)
				case <-time.After(20 * time.Second):
				}
				return "v", nil
			})
			require.ErrorIs(t, cause, idemsql.ErrLeaseLost)
			require.NoError(t, err, "nobody has taken the key, so the result counts")
			require.Equal(t, idempotent.Executed, verdict)
			require.Equal(t, "v", v)
		})
		// An effect that was cancelled half way may have happened.
		for name, give := range map[string]func() (string, error){
			"an error": func() (string, error) { return "", errEffect },
			"a panic":  func() (string, error) { panic(errEffect) },
			"Goexit":   func() (string, error) { runtime.Goexit(); return "", nil },
		} {
			t.Run("and its key is not freed by "+name, func(t *testing.T) {
				in, db := inbox[string](t, s, idemsql.Options{Lease: 600 * time.Millisecond})
				db.SetMaxOpenConns(1)
				ended := make(chan error, 1)
				go func() {
					var err error
					defer func() {
						_ = recover()
						ended <- err
					}()
					_, _, err = in.Handle(t.Context(), request(name), func(ctx context.Context) (string, error) {
						held, err := db.Conn(ctx) // nobody else gets one
						if err != nil {
							return "", err
						}
						defer held.Close()
						<-ctx.Done()
						return give()
					})
				}()
				err := <-ended
				if name == "an error" {
					require.ErrorIs(t, err, errEffect)
					require.ErrorIs(t, err, idemsql.ErrLeaseLost)
					require.ErrorIs(t, err, idemsql.ErrNotRecorded)
				}
				_, verdict, err := in.Handle(t.Context(), request(name), value("again"))
				require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
				require.NotEqual(t, idempotent.Executed, verdict)

				bold, _ := inbox[string](t, s, idemsql.Options{OnLostLease: idemsql.RunAgain})
				v, verdict, err := bold.Handle(t.Context(), request(name), value("again"))
				require.NoError(t, err)
				require.Equal(t, idempotent.Executed, verdict)
				require.Equal(t, "again", v)
			})
		}
	})
}

func TestHandleHoldsAKeyWhoseResultDoesNotEncode(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, _ := inbox[func()](t, s, idemsql.Options{})
		done := func(context.Context) (func(), error) { return func() {}, nil }
		v, verdict, err := in.Handle(t.Context(), request("k"), done)
		require.ErrorIs(t, err, idemsql.ErrNotRecorded)
		require.Equal(t, idempotent.Executed, verdict)
		require.NotNil(t, v)
		_, verdict, err = in.Handle(t.Context(), request("k"), done)
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		require.Equal(t, idempotent.Replayed, verdict)
	})
}

func TestAStaleKey(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		refuse := true
		var asked []time.Time
		in, db := inbox[string](t, s, idemsql.Options{OnStale: func(_ context.Context, key string, completedAt time.Time) error {
			asked = append(asked, completedAt)
			if refuse {
				return fmt.Errorf("%s: %w", key, idempotent.ErrStale)
			}
			return nil
		}})
		ctx := t.Context()
		calls := map[string]func(effect func(context.Context) (string, error)) (string, idempotent.Verdict, error){
			"Handle": func(effect func(context.Context) (string, error)) (string, idempotent.Verdict, error) {
				return in.Handle(ctx, request("Handle"), effect)
			},
			"Process": func(effect func(context.Context) (string, error)) (string, idempotent.Verdict, error) {
				return in.Process(ctx, request("Process"), func(ctx context.Context, _ *sql.Tx) (string, error) { return effect(ctx) })
			},
		}
		for name, call := range calls {
			t.Run(name, func(t *testing.T) {
				before := time.Now()
				_, _, err := call(value("first"))
				require.NoError(t, err)
				ended := "expires_at = now()"
				if s.dialect == idemsql.SQLite {
					ended = "expires_at = 1"
				}
				_, err = db.Exec("UPDATE "+tableOf(s)+" SET "+ended+" WHERE event_id = $1", name)
				require.NoError(t, err)

				asked, refuse = nil, true
				stale := in.Stats().Stale
				for range 2 {
					_, found, err := in.Lookup(ctx, name)
					require.NoError(t, err)
					require.False(t, found, "absent to readers before any pruning")
					_, verdict, err := call(value("late"))
					require.ErrorIs(t, err, idempotent.ErrStale)
					require.Equal(t, idempotent.Refused, verdict)
				}
				require.Len(t, asked, 2, "it stays stale")
				require.WithinRange(t, asked[0], before.Add(-time.Second), time.Now().Add(time.Second))
				require.EqualValues(t, stale+2, in.Stats().Stale)

				refuse = false
				_, verdict, err := call(func(context.Context) (string, error) { return "", errEffect })
				require.ErrorIs(t, err, errEffect)
				require.Equal(t, idempotent.Executed, verdict)
				require.Len(t, asked, 3)
				v, verdict, err := call(value("second"))
				require.NoError(t, err)
				require.Equal(t, idempotent.Executed, verdict)
				require.Equal(t, "second", v)
				require.Len(t, asked, 4, "a failed attempt leaves it stale")
				v, verdict, err = call(value("third"))
				require.NoError(t, err)
				require.Equal(t, idempotent.Replayed, verdict)
				require.Equal(t, "second", v)
			})
		}
		t.Run("runs, and counts, without OnStale", func(t *testing.T) {
			plain, _ := inbox[string](t, s, idemsql.Options{})
			req := idempotent.Request[string]{Key: "plain", TTL: 1}
			_, _, err := plain.Handle(ctx, req, value("first"))
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				_, verdict, err := plain.Handle(ctx, request("plain"), value("second"))
				require.NoError(t, err)
				return verdict == idempotent.Executed
			}, 10*time.Second, time.Millisecond)
			require.EqualValues(t, 1, plain.Stats().Stale)
		})
	})
}

func TestNestedCallsDoNotHang(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, _ := inbox[string](t, s, idemsql.Options{})
		_, _, err := in.Handle(t.Context(), request("kept"), value("v"))
		require.NoError(t, err)
		_, _, err = in.Process(t.Context(), request("outer"), func(ctx context.Context, _ *sql.Tx) (string, error) {
			_, _, err := in.Process(ctx, request("outer"), never(t))
			require.ErrorIs(t, err, idempotent.ErrDeadlock)
			_, _, err = in.Handle(ctx, request("outer"), value("inner"))
			require.ErrorIs(t, err, idempotent.ErrDeadlock)
			v, verdict, err := in.Process(ctx, request("kept"), never(t))
			require.NoError(t, err)
			require.Equal(t, idempotent.Replayed, verdict)
			require.Equal(t, "v", v)
			_, _, err = in.Handle(ctx, request("other"), value("inner"))
			if s.dialect == idemsql.SQLite {
				require.ErrorIs(t, err, idempotent.ErrDeadlock, "the file has one writer, and it is this effect")
				_, err = in.Forget(ctx, "kept")
				require.ErrorIs(t, err, idempotent.ErrDeadlock)
				_, err = in.Prune(ctx)
				require.ErrorIs(t, err, idempotent.ErrDeadlock)
			} else {
				require.NoError(t, err)
			}
			return "", errors.New("done")
		})
		require.EqualError(t, err, "done")
	})
}
