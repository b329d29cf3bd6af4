package idemsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/idempotent-go/idempotent"
)

// Errors that say what the database could not do; match them with [errors.Is].
// What a call returns also names the key, and wraps the driver's own error. An
// error that comes with the verdict Refused means that no effect was entered.
var (
	// ErrUnavailable: the server cannot be reached, is shutting down, or went
	// away in the middle.
	ErrUnavailable = errors.New("idemsql: database unavailable")
	// ErrPoolExhausted: the ctx ended while the call waited for a connection,
	// of the pool or of the server.
	ErrPoolExhausted = errors.New("idemsql: no free connection")
	// ErrTimeout: a time-out of the server (statement, lock, idle transaction)
	// cut a statement off.
	ErrTimeout = errors.New("idemsql: timed out by the database")
	// ErrReadOnly: the database takes no writes: a replica, or a read-only file.
	ErrReadOnly = errors.New("idemsql: database is read-only")
	// ErrDiskFull: there is no room for the row.
	ErrDiskFull = errors.New("idemsql: disk full")
	// ErrConflict: the call started over Options.MaxConflicts times because
	// other transactions were in its way (40001, 40P01).
	ErrConflict = errors.New("idemsql: too many conflicts")
	// ErrNotMigrated: the tables are missing; see [Inbox.Migrate].
	ErrNotMigrated = errors.New("idemsql: tables are missing")
	// ErrNewerSchema: the tables were made by a later version of this package.
	ErrNewerSchema = errors.New("idemsql: tables are of a newer version")
	// ErrCorrupt: the kept result is not the bytes that were written, or does
	// not decode. The key is held until Forget or the end of its window: no
	// effect runs.
	ErrCorrupt = errors.New("idemsql: corrupt result")
	// ErrTxEnded: an effect of Process committed or rolled back its transaction,
	// so that nothing could be recorded. With [ErrNotRecorded] it was rolled
	// back, and the key is free. With [idempotent.ErrOutcomeUnknown] what it wrote
	// is committed, or the database could not be asked: the key may be held
	// until Resolve or Forget.
	ErrTxEnded = errors.New("idemsql: the effect ended its transaction")
	// ErrNotRecorded: the effect was entered and its result is not kept. After
	// Process, what the effect wrote through its transaction is rolled back and
	// the key is free. After Handle, the value is returned all the same, and
	// the key is held until its lease ends.
	ErrNotRecorded = errors.New("idemsql: result not recorded")
	// ErrLeaseLost: another process may have the key. It is the cause of the
	// effect's context being cancelled, and what settling reports.
	ErrLeaseLost = errors.New("idemsql: lease lost")
)

// A keyError is what went wrong with one key.
type keyError struct {
	key   string
	kinds []error // of those above and idempotent's; may be empty
	cause error   // or nil
}

func (e *keyError) Error() string {
	var text strings.Builder
	for _, kind := range e.kinds {
		text.WriteString(kind.Error() + ": ")
	}
	if len(e.kinds) == 0 {
		text.WriteString("idemsql: ")
	}
	fmt.Fprintf(&text, "key %q", e.key)
	if e.cause != nil {
		text.WriteString(": " + e.cause.Error())
	}
	return text.String()
}

func (e *keyError) Unwrap() []error {
	errs := append([]error(nil), e.kinds...)
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	return errs
}

// fail makes cause an error of the key, of these kinds and of the kind that the
// driver's error shows.
func fail(key string, cause error, kinds ...error) error {
	if kind := kindOf(cause); kind != nil {
		kinds = append(kinds, kind)
	}
	return &keyError{key, kinds, cause}
}

// sqlState is what the errors of PostgreSQL's drivers have.
type sqlState interface {
	error
	SQLState() string
}

// unsentError is pgx's for a statement that never left, for want of a connection.
type unsentError interface {
	error
	SafeToRetry() bool
}

// kindOf returns which of the errors above a driver's error is, or nil.
func kindOf(err error) error {
	if err == nil {
		return nil
	}
	if state, ok := errors.AsType[sqlState](err); ok {
		return kindOfState(state.SQLState())
	}
	if code, ok := sqliteCode(err); ok {
		return kindOfCode(code, err)
	}
	if isContext(err) {
		return nil // a ctx's error may look like the network's
	}
	_, network := errors.AsType[net.Error](err)
	_, unsent := errors.AsType[unsentError](err)
	if network || unsent || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return ErrUnavailable
	}
	return nil
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// kindOfState sorts PostgreSQL's SQLSTATEs.
func kindOfState(state string) error {
	switch state {
	case "57014", "55P03", "25P03", "25P04":
		return ErrTimeout
	case "25006":
		return ErrReadOnly
	case "53100":
		return ErrDiskFull
	case "53300":
		return ErrPoolExhausted
	case "42P01":
		return ErrNotMigrated
	case "57P01", "57P02", "57P03":
		return ErrUnavailable
	}
	if strings.HasPrefix(state, "08") {
		return ErrUnavailable
	}
	return nil
}

// sqliteCode is the primary result code of an error of SQLite's.
func sqliteCode(err error) (int, bool) {
	coded, ok := errors.AsType[interface {
		error
		Code() int
	}](err)
	if !ok {
		return 0, false
	}
	return coded.Code() & 0xff, true
}

const (
	sqliteError    = 1
	sqliteBusy     = 5
	sqliteLocked   = 6
	sqliteReadOnly = 8
	sqliteIOErr    = 10
	sqliteCorrupt  = 11
	sqliteFull     = 13
	sqliteCantOpen = 14
	sqliteNotADB   = 26
)

// kindOfCode sorts SQLite's result codes.
func kindOfCode(code int, err error) error {
	switch code {
	case sqliteReadOnly:
		return ErrReadOnly
	case sqliteFull:
		return ErrDiskFull
	case sqliteCorrupt, sqliteNotADB:
		return ErrCorrupt
	case sqliteIOErr, sqliteCantOpen:
		return ErrUnavailable
	case sqliteError: // has no code of its own
		if strings.Contains(err.Error(), "no such table") {
			return ErrNotMigrated
		}
	}
	return nil
}

// own reports that err came from a statement of this dialect's database.
func (d Dialect) own(err error) bool {
	if d == SQLite {
		_, ok := sqliteCode(err)
		return ok
	}
	_, ok := errors.AsType[sqlState](err)
	return ok
}

// conflicted reports that the database broke a tie against this transaction,
// which may be tried again from its start.
func conflicted(err error) bool {
	state, ok := errors.AsType[sqlState](err)
	return ok && (state.SQLState() == "40001" || state.SQLState() == "40P01")
}

// busy reports that SQLite's one writer is another.
func busy(err error) bool {
	code, ok := sqliteCode(err)
	return ok && (code == sqliteBusy || code == sqliteLocked)
}

// inFlight is the refusal of a call that does not wait (any longer).
func inFlight(key string, cause error) error {
	return &keyError{key, []error{idempotent.ErrInFlight}, cause}
}
