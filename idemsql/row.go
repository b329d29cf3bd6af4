package idemsql

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/idempotent-go/idempotent"
)

// The states of a row.
const (
	claimed = "claimed" // an attempt runs, or its lease has lapsed
	done    = "done"
	failed  = "failed"  // a kept failure: Permanent
	unknown = "unknown" // a kept failure: Unknown
)

// A row is what the table knows of a key.
type row struct {
	state              string
	token              string // of the attempt that wrote it
	fingerprint        []byte
	result, failure    []byte
	checksum           sql.NullInt64
	processed, expires sql.NullInt64 // in the dialect's units; expires NULL: Forever
	over               bool          // it no longer holds the key
	now                int64         // when it was read, by the database's clock
	late               bool          // its attempt has ended since the reading transaction began
	leased             bool          // it is a claim of Handle's
}

// scan reads the line of statements.look.
func (r *row) scan(line *sql.Row) error {
	return line.Scan(&r.state, &r.token, &r.fingerprint, &r.result, &r.failure,
		&r.checksum, &r.processed, &r.expires, &r.over, &r.now, &r.late, &r.leased)
}

// mismatch reports that the row's request is known to be another one.
func (r *row) mismatch(fingerprint string) bool {
	return fingerprint != "" && len(r.fingerprint) > 0 && string(r.fingerprint) != fingerprint
}

// A keptError stands for the error that an earlier attempt left.
type keptError struct {
	text    string
	unknown bool
}

func (e *keptError) Error() string { return e.text }

func (e *keptError) Is(target error) bool {
	return e.unknown && target == idempotent.ErrOutcomeUnknown
}

// kept returns the failure that is the row's result, or nil.
func (r *row) kept() error {
	switch r.state {
	case failed:
		return idempotent.Permanent(&keptError{text: string(r.failure)})
	case unknown:
		return &keptError{text: string(r.failure), unknown: true}
	}
	return nil
}

// A settlement is what an attempt leaves in its row.
type settlement struct {
	state           string
	window          time.Duration
	result, failure []byte
}

// args are those of statements.settle and settleAt; where names the row.
func (s settlement) args(d Dialect, token string, where ...any) []any {
	return append([]any{s.state, d.window(s.window), s.result, s.failure, checksum(s.result), token}, where...)
}

// settlement makes one of the attempt's end. free says that nothing is kept:
// the key goes on to the next attempt.
func (in *Inbox[V]) settlement(req idempotent.Request[string], value V, failure error) (s settlement, free bool, err error) {
	s = settlement{state: done, window: in.opts.TTL}
	if req.TTL != 0 {
		s.window = req.TTL
	}
	if failure != nil {
		switch {
		case errors.Is(failure, idempotent.ErrOutcomeUnknown):
			s.state = unknown
		case idempotent.IsPermanent(failure):
			s.state = failed
		default:
			return s, true, nil
		}
		s.failure = []byte(failure.Error())
		if in.opts.FailureTTL != 0 {
			s.window = in.opts.FailureTTL
		}
	}
	s.result, err = in.codec.Marshal(value)
	if err != nil {
		return s, false, fmt.Errorf("encoding the result: %w", err)
	}
	return s, false, nil
}

// record decodes a settled row. Its instants are of the process's clock: as far
// from asked, which is no later than the reading, as they were from that by the
// database's. So ExpiresAt is never late.
func (in *Inbox[V]) record(key string, r *row, asked time.Time) (idempotent.Record[V], error) {
	local := func(units int64) time.Time {
		return asked.Add(time.Duration(units-r.now) * in.opts.Dialect.unit())
	}
	rec := idempotent.Record[V]{Err: r.kept(), Fingerprint: string(r.fingerprint), CompletedAt: local(r.processed.Int64)}
	if r.expires.Valid {
		rec.ExpiresAt = local(r.expires.Int64)
	}
	value, err := in.decode(key, r)
	if err != nil {
		return idempotent.Record[V]{}, err
	}
	rec.Value = value
	return rec, nil
}

// decode reads a settled row's value.
func (in *Inbox[V]) decode(key string, r *row) (value V, err error) {
	if !r.checksum.Valid || checksum(r.result) != r.checksum.Int64 {
		return value, fail(key, errors.New("checksum does not fit"), ErrCorrupt)
	}
	if r.state == unknown && r.result == nil {
		return value, nil // one that did not encode
	}
	if err := in.codec.Unmarshal(r.result, &value); err != nil {
		var zero V
		return zero, fail(key, err, ErrCorrupt)
	}
	return value, nil
}
