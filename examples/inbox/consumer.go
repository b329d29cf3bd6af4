package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/idempotent-go/idempotent"
)

// consume is the consumer's main: it reads deliveries, books each, and answers
// with the verdict. INBOX_CRASH says where it dies.
func consume(ctx context.Context) error {
	s, err := open(os.Getenv("INBOX_STORE"), os.Getenv("INBOX_POSTGRES") == "true")
	if err != nil {
		return err
	}
	defer s.db.Close()
	deliveries := bufio.NewScanner(os.Stdin)
	for n := 1; deliveries.Scan(); n++ {
		var id string
		var cents int64
		if _, err := fmt.Sscan(deliveries.Text(), &id, &cents); err != nil {
			return fmt.Errorf("delivery %q: %w", deliveries.Text(), err)
		}
		dying := os.Getenv("INBOX_CRASH")
		if n < payments/2 {
			dying = ""
		}
		verdict, err := s.book(ctx, id, cents, dying == "transaction")
		if err != nil {
			return err
		}
		if dying == "commit" && verdict == idempotent.Executed {
			die()
		}
		fmt.Println(verdict)
	}
	return deliveries.Err()
}

func die() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }

// book makes the booking and the message about it, once for each payment.
func (s *store) book(ctx context.Context, id string, cents int64, dying bool) (idempotent.Verdict, error) {
	req := idempotent.Request[string]{Key: id, Fingerprint: fmt.Sprint(cents)}
	_, verdict, err := s.inbox.Process(ctx, req, func(ctx context.Context, tx *sql.Tx) (int64, error) {
		if _, err := tx.ExecContext(ctx, `INSERT INTO `+s.schema+`bookings (payment, cents) VALUES ($1, $2)`, id, cents); err != nil {
			return 0, err
		}
		if dying {
			die()
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO `+s.schema+`outbox (payment, message, sent) VALUES ($1, $2, false)`,
			id, fmt.Sprintf("payment %s of %d cents is booked", id, cents))
		return cents, err
	})
	return verdict, err
}

// relay sends what the outbox holds and marks it. A crash between the two
// sends a message again: its receiver needs an inbox of its own, with the
// payment as the key.
func (s *store) relay(ctx context.Context, send func(message string) error) (sent int, err error) {
	for {
		var id, message string
		err := s.db.QueryRowContext(ctx, `SELECT payment, message FROM `+s.schema+`outbox WHERE NOT sent LIMIT 1`).Scan(&id, &message)
		if errors.Is(err, sql.ErrNoRows) {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
		if err := send(message); err != nil {
			return sent, err
		}
		if _, err := s.db.ExecContext(ctx, `UPDATE `+s.schema+`outbox SET sent = true WHERE payment = $1`, id); err != nil {
			return sent, err
		}
		sent++
	}
}
