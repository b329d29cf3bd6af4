// Inbox delivers payments at least once to a consumer that dies twice, once in
// the middle of a transaction and once between its commit and its
// acknowledgement, and shows that each payment is booked once and announced
// once: the inbox's record, the booking and the outbox row commit together.
//
//	go run ./examples/inbox                          on a SQLite file
//	go run ./examples/inbox -dsn postgres://...      on PostgreSQL
//
// The tables on PostgreSQL are made anew in the schema inbox_example.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/idempotent-go/idempotent/idemsql"
	"github.com/idempotent-go/idempotent/idemsql/sqlite"
)

const payments = 60

func main() {
	run := consume
	if os.Getenv("INBOX_STORE") == "" {
		run = func(ctx context.Context) error { return program(ctx, os.Args[1:], os.Stdout, os.Stderr) }
	}
	switch err := run(context.Background()); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "inbox:", err)
		os.Exit(1)
	}
}

// program is what is started by hand; it starts the consumers.
func program(ctx context.Context, args []string, out, usage io.Writer) error {
	flags := flag.NewFlagSet("inbox", flag.ContinueOnError)
	flags.SetOutput(usage)
	dsn := flags.String("dsn", "", "`URL` of the PostgreSQL to run on; a new SQLite file if empty")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return show(ctx, out, *dsn)
}

// A store is the database that holds the inbox and the application's tables.
type store struct {
	db     *sql.DB
	schema string // with its dot, or ""
	inbox  *idemsql.Inbox[int64]
}

// open opens a PostgreSQL by its URL or a SQLite file by its path.
func open(name string, postgres bool) (*store, error) {
	s := &store{}
	opts := idemsql.Options{Dialect: idemsql.SQLite, Consumer: "ledger"}
	var err error
	if postgres {
		s.schema = "inbox_example."
		opts.Dialect, opts.Table = idemsql.Postgres, s.schema+"webhook_inbox"
		s.db, err = sql.Open("pgx", name)
	} else {
		s.db, err = sqlite.Open(name)
	}
	if err != nil {
		return nil, err
	}
	s.inbox, err = idemsql.New[int64](s.db, opts)
	return s, err
}

func (s *store) create(ctx context.Context) error {
	var statements []string
	if s.schema != "" {
		statements = append(statements, `DROP SCHEMA IF EXISTS inbox_example CASCADE`, `CREATE SCHEMA inbox_example`)
	}
	statements = append(statements,
		`CREATE TABLE `+s.schema+`bookings (payment text NOT NULL, cents bigint NOT NULL)`,
		`CREATE TABLE `+s.schema+`outbox (payment text NOT NULL, message text NOT NULL, sent boolean NOT NULL)`)
	for _, statement := range statements {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return s.inbox.Migrate(ctx)
}

// show runs the whole story and writes it to out. The error says what does not
// add up.
func show(ctx context.Context, out io.Writer, dsn string) error {
	name := dsn
	if name == "" {
		dir, err := os.MkdirTemp("", "inbox")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		name = filepath.Join(dir, "inbox.db")
	}
	s, err := open(name, dsn != "")
	if err != nil {
		return err
	}
	defer s.db.Close()
	if err := s.create(ctx); err != nil {
		return err
	}
	b := newBroker(payments)
	for life, crash := range []string{"transaction", "commit", ""} {
		if err := b.deliver(ctx, name, dsn != "", crash); err != nil {
			return err
		}
		fmt.Fprintf(out, "life %d: %d of %d payments acknowledged%s\n", life+1, b.acknowledged(), payments, deaths[crash])
	}
	executed, replayed := b.verdicts["executed"], b.verdicts["replayed"]
	fmt.Fprintf(out, "%d deliveries: %d executed, %d replayed, %d lost with their process\n", b.delivered, executed, replayed, b.delivered-executed-replayed)
	fmt.Fprintln(out, "Of the lost ones the first was rolled back, and executed when it came again; the second had been committed, and was replayed.")
	return s.report(ctx, out)
}

var deaths = map[string]string{
	"transaction": ", killed in the middle of a transaction",
	"commit":      ", killed after a commit, before its acknowledgement",
	"":            "",
}

func (s *store) report(ctx context.Context, out io.Writer) error {
	sent, err := s.relay(ctx, func(message string) error { return nil })
	if err != nil {
		return err
	}
	var bookings, once, cents int64
	err = s.db.QueryRowContext(ctx, `SELECT count(*), count(DISTINCT payment), sum(cents) FROM `+s.schema+`bookings`).
		Scan(&bookings, &once, &cents)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d bookings of %d payments, %d cents; %d outbox messages sent\n", bookings, once, cents, sent)
	if bookings != payments || once != payments || sent != payments {
		return errors.New("FAIL: a payment was not booked and announced exactly once")
	}
	_, err = fmt.Fprintf(out, "PASS: %d payments, each booked 1 time and announced 1 time\n", payments)
	return err
}
