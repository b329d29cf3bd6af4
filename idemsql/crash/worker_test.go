package crash

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemsql"
	"github.com/idempotent-go/idempotent/idemsql/sqlite"
)

// lease is short, so that abandoned claims lapse during a run.
const lease = 200 * time.Millisecond

// A protocol is a way to run an effect once.
type protocol struct {
	name    string
	dialect idemsql.Dialect
	opts    idemsql.Options
	run     func(w *worker, ctx context.Context, key string) (value string, err error)
	control bool // it is wrong, and must show doubles
	holds   bool // an abandoned key is held for an operator
	leased  bool // a crash leaves a claim for a while
	keyed   bool // the effect's own store is unique on the key
}

var protocols = []protocol{
	{name: "Process on PostgreSQL", dialect: idemsql.Postgres, run: (*worker).process},
	{name: "Process on PostgreSQL, serializable", dialect: idemsql.Postgres, run: (*worker).process,
		opts: idemsql.Options{Isolation: sql.LevelSerializable, MaxConflicts: 1000}},
	{name: "Process on PostgreSQL, repeatable read", dialect: idemsql.Postgres, run: (*worker).process,
		opts: idemsql.Options{Isolation: sql.LevelRepeatableRead, MaxConflicts: 1000}},
	{name: "Process on SQLite", dialect: idemsql.SQLite, run: (*worker).process},
	{name: "Handle, held when lost", dialect: idemsql.Postgres, run: (*worker).handle, leased: true, holds: true},
	{name: "Handle, run again when lost, keyed effect", dialect: idemsql.Postgres, run: (*worker).handleKeyed, leased: true, keyed: true,
		opts: idemsql.Options{OnLostLease: idemsql.RunAgain}},
	{name: "control: look, act, mark", dialect: idemsql.Postgres, run: (*worker).naive, control: true},
	{name: "control: a lease alone", dialect: idemsql.Postgres, run: (*worker).handle, leased: true, control: true,
		opts: idemsql.Options{OnLostLease: idemsql.RunAgain}},
}

func protocolNamed(name string) (protocol, error) {
	for _, p := range protocols {
		if p.name == name {
			return p, nil
		}
	}
	return protocol{}, fmt.Errorf("no protocol %q", name)
}

// TestMain is also the worker's main.
func TestMain(m *testing.M) {
	if os.Getenv("CRASH_PROTOCOL") == "" {
		os.Exit(m.Run())
	}
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A worker is one process's connection to the store.
type worker struct {
	protocol
	db      *sql.DB
	in      *idemsql.Inbox[string]
	patient bool // wait for other attempts, where a crash may have left a claim
}

func (w *worker) request(key string) idempotent.Request[string] {
	return idempotent.Request[string]{Key: key, NoWait: !w.patient && w.leased}
}

func newWorker(p protocol, dsn string) (*worker, error) {
	open := func() (*sql.DB, error) { return sql.Open("pgx", dsn) }
	if p.dialect == idemsql.SQLite {
		open = func() (*sql.DB, error) { return sqlite.Open(dsn) }
	}
	db, err := open()
	if err != nil {
		return nil, err
	}
	opts := p.opts
	opts.Dialect, opts.Lease, opts.MaxPause = p.dialect, lease, 20*time.Millisecond
	in, err := idemsql.New[string](db, opts)
	return &worker{protocol: p, db: db, in: in}, err
}

// work says "ready", runs keys from CRASH_FROM upwards, several workers near the
// same ones, and says "ack n value" for each that it would tell its caller is
// done: for ever, or CRASH_COUNT keys if that is not 0.
func work() error {
	p, err := protocolNamed(os.Getenv("CRASH_PROTOCOL"))
	if err != nil {
		return err
	}
	from, err := strconv.Atoi(os.Getenv("CRASH_FROM"))
	if err != nil {
		return err
	}
	count, err := strconv.Atoi(os.Getenv("CRASH_COUNT"))
	if err != nil {
		return err
	}
	w, err := newWorker(p, os.Getenv("CRASH_DSN"))
	if err != nil {
		return err
	}
	if err := w.db.Ping(); err != nil {
		return err
	}
	fmt.Println("ready")
	if count > 0 {
		return w.finish(from, count)
	}
	for n := from; ; n++ {
		key := n + rand.N(3)
		if rand.N(4) == 0 {
			key = max(0, n-rand.N(20)) // what others may have abandoned
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		value, err := w.run(w, ctx, name(key))
		cancel()
		if err == nil {
			fmt.Println("ack", key, value)
		} else if errors.Is(err, idemsql.ErrUnavailable) {
			<-time.After(10 * time.Millisecond) // the server may be on its way back
		}
	}
}

// finish runs count keys, however long it takes.
func (w *worker) finish(from, count int) error {
	w.patient = true
	for key := from; key < from+count; key++ {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		value, err := w.run(w, ctx, name(key))
		cancel()
		if err != nil {
			return err
		}
		fmt.Println("ack", key, value)
	}
	return nil
}

func name(n int) string { return fmt.Sprintf("key%06d", n) }

// mine is a value that no other attempt has.
func mine() string { return fmt.Sprint(os.Getpid(), "-", rand.Uint64()) }

// dawdle leaves time to be killed in.
func dawdle() { <-time.After(rand.N(3 * time.Millisecond)) }

func (w *worker) process(ctx context.Context, key string) (string, error) {
	value, _, err := w.in.Process(ctx, w.request(key), func(ctx context.Context, tx *sql.Tx) (string, error) {
		value := mine()
		_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES ($1, $2)", key, value)
		dawdle()
		return value, err
	})
	return value, err
}

func (w *worker) handle(ctx context.Context, key string) (string, error) {
	value, _, err := w.in.Handle(ctx, w.request(key), func(ctx context.Context) (string, error) {
		value := mine()
		dawdle()
		_, err := w.db.ExecContext(ctx, "INSERT INTO effects VALUES ($1, $2)", key, value)
		dawdle()
		if err != nil {
			return "", idempotent.Unknown(err) // it may be there: its answer may be lost
		}
		return value, nil
	})
	return value, err
}

// handleKeyed's effect answers a second request of the same key with the first
// one's result, as a remote service does that takes an Idempotency-Key.
func (w *worker) handleKeyed(ctx context.Context, key string) (string, error) {
	value, _, err := w.in.Handle(ctx, w.request(key), func(ctx context.Context) (value string, err error) {
		dawdle()
		// The table of this protocol is unique on the key.
		if _, err = w.db.ExecContext(ctx, "INSERT INTO effects VALUES ($1, $2) ON CONFLICT DO NOTHING", key, mine()); err != nil {
			return "", err
		}
		dawdle()
		err = w.db.QueryRowContext(ctx, "SELECT value FROM effects WHERE key = $1", key).Scan(&value)
		return value, err
	})
	return value, err
}

func (w *worker) naive(ctx context.Context, key string) (string, error) {
	var value string
	err := w.db.QueryRowContext(ctx, "SELECT value FROM marks WHERE key = $1", key).Scan(&value)
	if !errors.Is(err, sql.ErrNoRows) {
		return value, err
	}
	value = mine()
	if _, err := w.db.ExecContext(ctx, "INSERT INTO effects VALUES ($1, $2)", key, value); err != nil {
		return "", err
	}
	dawdle()
	_, err = w.db.ExecContext(ctx, "INSERT INTO marks VALUES ($1, $2) ON CONFLICT DO NOTHING", key, value)
	return value, err
}
