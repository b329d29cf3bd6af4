package idemsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemsql"
)

// expire ends the window of the key's result.
func expire(t *testing.T, s store, db *sql.DB, key string) {
	ended := "now() - interval '1 second'"
	if s.dialect == idemsql.SQLite {
		ended = "1"
	}
	_, err := db.Exec("UPDATE "+tableOf(s)+" SET expires_at = "+ended+" WHERE event_id = $1", key)
	require.NoError(t, err)
}

func TestAStaleKeyRunsOnceForAllWhoComeAtOnce(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		var guards []*idemsql.Inbox[[]byte]
		var db *sql.DB
		for range 6 {
			var in *idemsql.Inbox[[]byte]
			in, db = inbox[[]byte](t, s, idemsql.Options{MaxPause: 20 * time.Millisecond})
			guards = append(guards, in)
		}
		for _, process := range []bool{true, false} {
			for round := range 10 {
				key := fmt.Sprint(process, round)
				_, _, err := guards[0].Handle(t.Context(), request(key), func(context.Context) ([]byte, error) { return []byte("old"), nil })
				require.NoError(t, err)
				expire(t, s, db, key)
				var runs atomic.Int64
				var callers sync.WaitGroup
				for _, in := range guards {
					guard := in.Handle
					if process {
						guard = processing{in}.Handle
					}
					callers.Go(func() {
						got, _, err := guard(context.Background(), request(key), func(context.Context) ([]byte, error) {
							<-time.After(10 * time.Millisecond)
							runs.Add(1)
							return []byte("new"), nil
						})
						if err != nil || string(got) != "new" {
							t.Errorf("%q, %v", got, err)
						}
					})
				}
				callers.Wait()
				require.EqualValues(t, 1, runs.Load())
			}
		}
	})
}

// A slow owner may renew between another's look at its lapsed lease and the
// attempt to take it over.
func TestALeaseThatWasRenewedAfterAllIsNotTakenOver(t *testing.T) {
	each(t, func(t *testing.T, s store) {
		in, db := inbox[string](t, s, idemsql.Options{Lease: time.Hour, OnLostLease: idemsql.RunAgain})
		_, _, err := in.Handle(t.Context(), request("k"), func(ctx context.Context) (string, error) {
			var token, id string
			require.NoError(t, db.QueryRow("SELECT token FROM "+tableOf(s)).Scan(&token))
			take := func() error {
				return db.QueryRow(in.TakeOverStatement(), "k", "", "thief", []byte{}, 1000, token).Scan(&id)
			}
			require.ErrorIs(t, take(), sql.ErrNoRows, "its lease lives")
			lapse(t, s, db, "k")
			require.NoError(t, take(), "its lease has lapsed")
			return "v", nil
		})
		require.ErrorIs(t, err, idemsql.ErrLeaseLost)
	})
}

func TestWhatBecameOfACommit(t *testing.T) {
	s := postgres(t)
	in, db := inbox[string](t, s, idemsql.Options{})
	ctx := t.Context()
	_, _, err := in.Process(ctx, request("k"), gives("v"))
	require.NoError(t, err)
	var token string
	require.NoError(t, db.QueryRow("SELECT token FROM "+s.table).Scan(&token))
	is := func(want bool, key, token string) {
		t.Helper()
		committed, err := in.Committed(ctx, key, token)
		require.NoError(t, err)
		require.Equal(t, want, committed)
	}
	is(true, "k", token)
	is(false, "k", "another attempt's")
	is(false, "never seen", token)
	expire(t, s, db, "k")
	is(true, "k", token)
	is(false, "k", "another attempt's")
	require.Equal(t, 1, rows(t, s, db), "asking leaves nothing behind")

	t.Run("is not said while it may still happen", func(t *testing.T) {
		for name, end := range map[string]error{
			"it commits": nil, "it rolls back": errors.New("no"),
			"a stale key commits": nil, "a stale key rolls back": errors.New("no"),
		} {
			if strings.HasPrefix(name, "a stale key") {
				_, _, err := in.Process(ctx, request(name), gives("old"))
				require.NoError(t, err)
				expire(t, s, db, name)
			}
			_, _, err := in.Process(ctx, request(name), func(ctx context.Context, tx *sql.Tx) (string, error) {
				require.NoError(t, tx.QueryRow("SELECT token FROM "+s.table+" WHERE event_id = $1", name).Scan(&token))
				brief, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
				defer cancel()
				_, err := in.Committed(brief, name, token)
				require.Error(t, err)
				return "v", end
			})
			require.ErrorIs(t, err, end)
			is(end == nil, name, token)
		}
	})
}
