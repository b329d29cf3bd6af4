package idemsql_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemsql"
)

func explain(t *testing.T, db *sql.DB, statement string, args ...any) string {
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	lines, err := tx.Query("EXPLAIN "+statement, args...)
	require.NoError(t, err)
	defer lines.Close()
	var plan strings.Builder
	for lines.Next() {
		var line string
		require.NoError(t, lines.Scan(&line))
		plan.WriteString(line + "\n")
	}
	require.NoError(t, lines.Err())
	return plan.String()
}

func TestPostgreSQLReadsThroughIndexes(t *testing.T) {
	s := postgres(t)
	in, db := inbox[string](t, s, idemsql.Options{})
	fill(t, s, db, 20_000, "now() + interval '1 hour'")
	_, err := db.Exec("ANALYZE " + s.table)
	require.NoError(t, err)
	t.Run("to prune, only the rows that it deletes", func(t *testing.T) {
		plan := explain(t, db, in.PruneStatement(), "", 0, 1000)
		require.Contains(t, plan, "Index Scan using "+s.table+"_expires")
		require.Regexp(t, `Index Cond: .*expires_at <=`, plan)
		require.NotContains(t, plan, "Seq Scan")
	})
	t.Run("to replay, only the key's row", func(t *testing.T) {
		plan := explain(t, db, in.LookStatement(), "old1", "")
		require.Contains(t, plan, "Index Scan using "+s.table+"_pkey")
		require.NotContains(t, plan, "Seq Scan")
	})
}

// number is what the variable says, or standard.
func number(t *testing.T, variable string, standard int) int {
	text := cmp.Or(os.Getenv(variable), strconv.Itoa(standard))
	n, err := strconv.Atoi(text)
	require.NoError(t, err, variable)
	return n
}

// inserts runs 8 callers of new events until stop and returns how long each took.
func inserts(t *testing.T, in *idemsql.Inbox[string], name string, stop func() bool) []time.Duration {
	var mu sync.Mutex
	var took []time.Duration
	var done sync.WaitGroup
	var last atomic.Int64
	for range 8 {
		done.Go(func() {
			var own []time.Duration
			for !stop() {
				began := time.Now()
				_, verdict, err := in.Process(context.Background(), request(fmt.Sprint(name, last.Add(1))), gives("v"))
				own = append(own, time.Since(began))
				if err != nil || verdict != idempotent.Executed {
					t.Errorf("%v, %v", verdict, err)
					return
				}
			}
			mu.Lock()
			took = append(took, own...)
			mu.Unlock()
		})
	}
	done.Wait()
	slices.Sort(took)
	return took
}

// TestPruneDoesNotHoldInsertersUp deletes IDEMSQL_PRUNE_ROWS rows (100,000; one
// million before a release) under eight inserters.
func TestPruneDoesNotHoldInsertersUp(t *testing.T) {
	s := postgres(t)
	in, db := inbox[string](t, s, idemsql.Options{MaxConflicts: 1})
	want := number(t, "IDEMSQL_PRUNE_ROWS", 100_000)
	fill(t, s, db, want, past(s))
	p99 := func(took []time.Duration) time.Duration { return took[len(took)*99/100] }

	inserts(t, in, "warm", until(time.Now().Add(time.Second)))
	quiet := inserts(t, in, "quiet", until(time.Now().Add(2*time.Second)))
	var pruned atomic.Bool
	var deleted int64
	var prune sync.WaitGroup
	prune.Go(func() {
		defer pruned.Store(true)
		var err error
		if deleted, err = in.Prune(context.Background()); err != nil {
			t.Error(err)
		}
	})
	beside := inserts(t, in, "beside", pruned.Load)
	prune.Wait()
	require.EqualValues(t, want, deleted)
	require.Greater(t, len(beside), 100, "too few inserts to say anything")
	t.Logf("p99 of an insert: %v in %d without pruning, %v in %d beside the pruning of %d rows",
		p99(quiet), len(quiet), p99(beside), len(beside), deleted)
	require.Less(t, p99(beside), 3*p99(quiet))
	require.Zero(t, in.Stats().StartedOver, "deadlocks")
}

func until(end time.Time) func() bool { return func() bool { return time.Now().After(end) } }

// BenchmarkProcess compares a new event of Process with the same transaction
// by hand, a round of each in turn, and reports the median of the rounds'
// ratios: what else the machine does hits neighbours alike.
func BenchmarkProcess(b *testing.B) {
	for _, workers := range []int{1, 8} {
		b.Run(fmt.Sprintf("%d callers", workers), func(b *testing.B) { benchmark(b, workers) })
	}
}

func benchmark(b *testing.B, workers int) {
	db, err := sql.Open("pgx", server.DSN("postgres"))
	require.NoError(b, err)
	defer db.Close()
	db.SetMaxIdleConns(workers)
	table := fmt.Sprintf("inbox%d", tables.Add(1))
	in, err := idemsql.New[[]byte](db, idemsql.Options{Dialect: idemsql.Postgres, Table: table})
	require.NoError(b, err)
	require.NoError(b, in.Migrate(b.Context()))
	_, err = db.Exec("CREATE TABLE effect_" + table + " (key text)")
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.Background()) // as a request's
	defer cancel()
	result := []byte("result")
	effect := func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO effect_"+table+" VALUES ($1)", "k")
		return result, err
	}
	byHand := func(key string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		_, err = tx.ExecContext(ctx, `INSERT INTO `+table+` (event_id, consumer, received_at, fingerprint, state, token)
	VALUES ($1, 'hand', now(), '', 'claimed', '') ON CONFLICT DO NOTHING`, key)
		if err != nil {
			return err
		}
		if _, err := effect(ctx, tx); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE `+table+` SET state = 'done', processed_at = now(), expires_at = now() + interval '1 day', result = $1
	WHERE event_id = $2 AND consumer = 'hand'`, result, key)
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	ours := func(key string) error {
		_, _, err := in.Process(ctx, request(key), effect)
		return err
	}
	replay := func(string) error {
		_, _, err := in.Process(ctx, request("ours 0 0"), nil)
		return err
	}
	const round = 160
	times := map[string][]float64{}
	measure := func(name string, turn int, call func(key string) error) {
		began := time.Now()
		var done sync.WaitGroup
		for w := range workers {
			done.Go(func() {
				for i := w; i < round; i += workers {
					if err := call(fmt.Sprint(name, " ", turn, " ", i)); err != nil {
						b.Error(err)
					}
				}
			})
		}
		done.Wait()
		times[name] = append(times[name], float64(time.Since(began))/round)
	}
	for turn := 0; b.Loop(); turn++ {
		measure("hand", turn, byHand)
		measure("ours", turn, ours)
		measure("replay", turn, replay)
	}
	for i, hand := range times["hand"] {
		times["ours/hand"] = append(times["ours/hand"], times["ours"][i]/hand)
		times["replay/hand"] = append(times["replay/hand"], times["replay"][i]/hand)
	}
	for name, unit := range map[string]string{"hand": "-ns", "ours": "-ns", "replay": "-ns", "ours/hand": "", "replay/hand": ""} {
		slices.Sort(times[name])
		b.ReportMetric(times[name][len(times[name])/2], name+unit)
	}
	b.ReportMetric(0, "ns/op")
}
