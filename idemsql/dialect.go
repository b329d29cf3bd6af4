package idemsql

import (
	"math"
	"strings"
	"time"
)

// statements are one dialect's SQL for one table. All times are the database's:
// no process's clock decides anything. "over" is true of a row that no longer
// holds its key: a result after its window, a claim after its lease. Process's
// claims have none: one that others can see was committed by its own effect, and
// counts as lapsed.
type statements struct {
	insert   string // event, consumer, token, fingerprint, lease -> row id, or nothing
	look     string // event, consumer -> row.scan
	takeOver string // event, consumer, token, fingerprint, lease, the token that was seen -> row id, or nothing
	settleAt string // state, window, result, failure, checksum, token, row id
	settle   string // state, window, result, failure, checksum, token, event, consumer
	renew    string // lease, token, event, consumer
	drop     string // token, event, consumer: a claim of a key that was not known
	putBack  string // token, event, consumer: a claim of a stale key
	forget   string // event, consumer, token
	resolve  string // window, result, checksum, event, consumer
	prune    string // consumer, stale time, rows
	advance  string // consumer, resource, sequence -> 1, or nothing
}

const (
	over    = `(CASE WHEN state = 'claimed' THEN COALESCE(lease_until <= {now}, true) ELSE expires_at <= {now} END)`
	settled = `SET state = $1, processed_at = {now}, expires_at = COALESCE({now} + $2{span}, {forever}),
	result = $3, failure = $4, checksum = $5, lease_until = NULL`
	byKey = ` WHERE event_id = $1 AND consumer = $2`
)

// newStatements writes the SQL for a table whose name has been checked.
func newStatements(d Dialect, table string) *statements {
	s := &statements{
		insert: `INSERT INTO {table} (event_id, consumer, state, token, fingerprint, received_at, lease_until)
	VALUES ($1, $2, 'claimed', $3, $4, {now}, {now} + $5{span})
	ON CONFLICT (event_id, consumer) DO NOTHING RETURNING {row}`,
		look: `SELECT state, token, fingerprint, result, failure, checksum,
	{int processed_at}, {int expires_at}, {over}, {int now}, COALESCE(processed_at > {began}, false),
	lease_until IS NOT NULL FROM {table}` + byKey,
		// The lease is looked at again: its owner may have renewed it just now.
		takeOver: `UPDATE {table} SET state = 'claimed', token = $3, fingerprint = $4, received_at = {now},
	lease_until = {now} + $5{span}` + byKey + ` AND token = $6 AND {over} RETURNING {row}`,
		settleAt: `UPDATE {table} ` + settled + ` WHERE {is row $7} AND token = $6`,
		settle:   `UPDATE {table} ` + settled + ` WHERE event_id = $7 AND consumer = $8 AND token = $6`,
		renew: `UPDATE {table} SET lease_until = {now} + $1{span}
	WHERE event_id = $3 AND consumer = $4 AND token = $2 AND state = 'claimed'`,
		drop:    `DELETE FROM {table} WHERE event_id = $2 AND consumer = $3 AND token = $1 AND state = 'claimed'`,
		putBack: `UPDATE {table} SET state = 'done', lease_until = NULL WHERE event_id = $2 AND consumer = $3 AND token = $1 AND state = 'claimed'`,
		forget:  `DELETE FROM {table}` + byKey + ` AND token = $3 AND (state <> 'claimed' OR {over})`,
		// An empty token: if the lost owner comes back, its settling finds nothing.
		resolve: `UPDATE {table} SET state = 'done', processed_at = {now}, expires_at = COALESCE({now} + $1{span}, {forever}),
	result = $2, failure = NULL, checksum = $3, lease_until = NULL, token = ''
	WHERE event_id = $4 AND consumer = $5 AND (state = 'unknown' AND NOT {over} OR state = 'claimed' AND {over})`,
		advance: `INSERT INTO {table}_sequence AS seen (consumer, resource, sequence) VALUES ($1, $2, $3)
	ON CONFLICT (consumer, resource) DO UPDATE SET sequence = excluded.sequence
	WHERE seen.sequence < excluded.sequence RETURNING 1`,
	}
	words := []string{"{over}", over, "{table}", table}
	if d == Postgres {
		// clock_timestamp() is volatile, which would keep the planner from the index.
		s.prune = `DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table}
	WHERE consumer = $1 AND expires_at <= statement_timestamp() - $2{span} AND state <> 'claimed'
	ORDER BY expires_at LIMIT $3 FOR UPDATE SKIP LOCKED))`
		words = append(words, "{now}", "clock_timestamp()", "{span}", "::bigint * interval '1 microsecond'",
			"{forever}", "'infinity'::timestamptz", "{row}", "ctid::text", "{is row $7}", "ctid = $7::text::tid",
			"{began}", "transaction_timestamp()", "{int now}", "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
			"{int processed_at}", "(extract(epoch FROM processed_at) * 1000000)::bigint",
			"{int expires_at}", "CASE WHEN expires_at < 'infinity' THEN (extract(epoch FROM expires_at) * 1000000)::bigint END")
	} else {
		s.prune = `DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table}
	WHERE consumer = $1 AND expires_at <= {now} - $2 AND state <> 'claimed' ORDER BY expires_at LIMIT $3)`
		words = append(words, "{now}", "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)", "{span}", "",
			"{forever}", "9223372036854775807", "{row}", "rowid", "{is row $7}", "rowid = $7",
			"{began}", "{now}", "{int now}", "{now}", "{int processed_at}", "processed_at", "{int expires_at}", "nullif(expires_at, 9223372036854775807)", "$", "?")
	}
	for _, text := range []*string{&s.insert, &s.look, &s.takeOver, &s.settleAt, &s.settle, &s.renew,
		&s.drop, &s.putBack, &s.forget, &s.resolve, &s.prune, &s.advance} {
		*text = expand(*text, words)
	}
	return s
}

// expand replaces the words, and those that their replacements bring in.
func expand(text string, words []string) string {
	r := strings.NewReplacer(words...)
	return r.Replace(r.Replace(text))
}

// endless is the shortest span that never ends: beyond it, instants leave what a
// time.Duration from now can reach.
const endless = math.MaxInt64 - 10*365*24*time.Hour

// span is a duration in the database's unit, rounded up: PostgreSQL counts
// microseconds and SQLite milliseconds. nil means for ever.
func (d Dialect) span(t time.Duration) any {
	if t >= endless {
		return nil
	}
	unit := d.unit()
	units := int64(t / unit)
	if t%unit != 0 {
		units++
	}
	return units
}

// window is a span that begins at a stamp that SQLite has rounded down.
func (d Dialect) window(t time.Duration) any {
	units, finite := d.span(t).(int64)
	switch {
	case !finite:
		return nil
	case d == SQLite:
		return units + 1
	}
	return units
}

func (d Dialect) unit() time.Duration {
	if d == Postgres {
		return time.Microsecond
	}
	return time.Millisecond
}

// time is the instant that the database counts units up to.
func (d Dialect) time(units int64) time.Time {
	if d == Postgres {
		return time.UnixMicro(units)
	}
	return time.UnixMilli(units)
}
