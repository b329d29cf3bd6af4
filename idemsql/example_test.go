package idemsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemsql"
	"github.com/idempotent-go/idempotent/idemsql/sqlite"
)

// open is a new inbox in a new file, for the examples below.
func open(opts idemsql.Options) (in *idemsql.Inbox[string], db *sql.DB, remove func()) {
	dir, err := os.MkdirTemp("", "idemsql")
	if err != nil {
		panic(err)
	}
	if db, err = sqlite.Open(filepath.Join(dir, "inbox.db")); err != nil {
		panic(err)
	}
	opts.Dialect = idemsql.SQLite
	if in, err = idemsql.New[string](db, opts); err != nil {
		panic(err)
	}
	if err := in.Migrate(context.Background()); err != nil {
		panic(err)
	}
	return in, db, func() { db.Close(); os.RemoveAll(dir) }
}

func ExampleInbox_Process() {
	in, db, remove := open(idemsql.Options{Consumer: "ledger", TTL: 7 * 24 * time.Hour})
	defer remove()
	db.Exec(`CREATE TABLE bookings (payment text, cents int)`)

	for range 3 { // the producer delivers at least once
		receipt, verdict, err := in.Process(context.Background(), idempotent.Request[string]{Key: "evt_1"},
			func(ctx context.Context, tx *sql.Tx) (string, error) {
				_, err := tx.ExecContext(ctx, `INSERT INTO bookings VALUES ('evt_1', 500)`)
				return "booked", err
			})
		fmt.Println(receipt, verdict, err)
	}
	var bookings int
	db.QueryRow(`SELECT count(*) FROM bookings`).Scan(&bookings)
	fmt.Println(bookings, "booking")
	// Output:
	// booked executed <nil>
	// booked replayed <nil>
	// booked replayed <nil>
	// 1 booking
}

func ExampleInbox_Handle() {
	in, _, remove := open(idemsql.Options{Lease: time.Minute})
	defer remove()
	charge := func(ctx context.Context) (string, error) {
		// A remote call. It timed out: the card may be charged.
		return "", idempotent.Unknown(errors.New("no answer from the bank"))
	}
	ctx, req := context.Background(), idempotent.Request[string]{Key: "order_7"}
	for range 2 {
		_, verdict, err := in.Handle(ctx, req, charge)
		fmt.Println(verdict, errors.Is(err, idempotent.ErrOutcomeUnknown))
	}
	// The operator asks the bank: it is charged.
	in.Resolve(ctx, "order_7", "charge_99")
	receipt, verdict, err := in.Handle(ctx, req, charge)
	fmt.Println(receipt, verdict, err)
	// Output:
	// executed true
	// replayed true
	// charge_99 replayed <nil>
}

func ExampleInbox_Advance() {
	in, _, remove := open(idemsql.Options{})
	defer remove()
	for _, event := range []struct {
		id      string
		version int64
	}{{"evt_1", 1}, {"evt_3", 3}, {"evt_2", 2}} { // the second one comes last
		applied, _, err := in.Process(context.Background(), idempotent.Request[string]{Key: event.id},
			func(ctx context.Context, tx *sql.Tx) (string, error) {
				fresh, err := in.Advance(ctx, tx, "customer 42", event.version)
				if err != nil || !fresh {
					return "too old", err
				}
				return "applied", nil
			})
		fmt.Println(event.id, applied, err)
	}
	// Output:
	// evt_1 applied <nil>
	// evt_3 applied <nil>
	// evt_2 too old <nil>
}

func ExampleInbox_Prune() {
	in, _, remove := open(idemsql.Options{OnPruned: func(deleted int64) { fmt.Println(deleted, "so far") }})
	defer remove()
	ctx := context.Background()
	for _, id := range []string{"evt_1", "evt_2"} {
		req := idempotent.Request[string]{Key: id, TTL: time.Nanosecond}
		in.Handle(ctx, req, func(context.Context) (string, error) { return "", nil })
	}
	<-time.After(10 * time.Millisecond) // longer than both windows
	fmt.Println(in.Prune(ctx))
	// Output:
	// 2 so far
	// 2 <nil>
}
