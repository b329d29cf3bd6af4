package idemredis

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent"
)

// DefaultPrefix begins the names of a guard's keys when Options.Prefix is "".
const DefaultPrefix = "idempotent:"

// DefaultLease is the lease of a claim when Options.Lease is 0.
const DefaultLease = 10 * time.Second

// DefaultMaxValue is the most bytes of a value kept in Redis when
// Options.MaxValue is 0.
const DefaultMaxValue = 1 << 20

// LostLease says what a call does that finds a claim whose lease ran out.
type LostLease uint8

const (
	// HoldUnknown: the effect may have happened, so it does not run again. Calls
	// are told ErrOutcomeUnknown until the key is resolved or forgotten; there
	// is no window, for nobody knows of a completion.
	HoldUnknown LostLease = iota
	// RunAgain: the caller claims the key and runs its own effect. For effects
	// of which a second run changes nothing: an upsert on the key, a remote call
	// with the key as its Idempotency-Key.
	RunAgain
)

// String returns "hold" or "again".
func (p LostLease) String() string {
	switch p {
	case HoldUnknown:
		return "hold"
	case RunAgain:
		return "again"
	}
	return "LostLease(" + strconv.Itoa(int(p)) + ")"
}

// Options say how a [Guard] behaves. The zero value is a good start. All
// guards of the same keys must have the same Prefix, Consumer, OnLostLease and
// Codec.
type Options struct {
	// Prefix begins the name of every key in Redis, as it stands. "" means
	// DefaultPrefix. It must hold no brace: a hash tag in it would put all keys
	// on one node of a cluster.
	Prefix string

	// Consumer names who handles the keys, so that two services each handle the
	// same event once. It must hold neither colon nor brace.
	Consumer string

	// TTL is the window of a result, from its completion, by Redis's clock,
	// rounded up to a millisecond. 0 means idempotent.DefaultTTL;
	// idempotent.Forever keeps it without an expiry.
	TTL time.Duration

	// FailureTTL is the window of a kept failure (idempotent.Permanent,
	// idempotent.Unknown). 0 means the window that a success would have had.
	FailureTTL time.Duration

	// Lease is how long a claim lives without news of its owner, by Redis's
	// clock, rounded up to a millisecond. 0 means DefaultLease. It is renewed
	// each third of it while the effect runs: choose it longer than any pause of
	// a worker or outage of Redis that shall pass unnoticed. A claim whose
	// worker died is held no shorter.
	Lease time.Duration

	// OnLostLease is what follows a lease that ran out. The zero value is
	// HoldUnknown.
	OnLostLease LostLease

	// StaleFor is how long after its window's end a key is remembered, so that a
	// late retry is recognised as stale. Redis holds its record for that much
	// longer. 0 means not at all: to Redis the key is a new one. A result that is
	// kept for ever never becomes stale.
	StaleFor time.Duration

	// OnStale is asked before a remembered key runs again, whose result was
	// completed at completedAt. An error refuses the call and the key stays
	// stale; idempotent.ErrStale is there for it. It is called inside the claim
	// (duplicates wait meanwhile) on the caller's goroutine, with the caller's
	// ctx. A panic in it gives the claim up and goes on to the caller.
	OnStale func(ctx context.Context, key string, completedAt time.Time) error

	// Wait is the longest that a call waits for an attempt that runs elsewhere;
	// then it is refused with ErrInFlight. 0 means as long as its ctx lives.
	Wait time.Duration

	// Codec turns values into what Redis keeps, and back. nil means encoding/json.
	Codec Codec

	// MaxValue is the most bytes of an encoded value that Redis keeps. 0 means
	// DefaultMaxValue. A larger one goes to Spill; without Spill the key is kept
	// as done without its value, and calls are told ErrNoValue.
	MaxValue int

	// Spill takes the larger values. nil means nothing does.
	Spill Spill
}

// A Codec turns values into bytes and back. It is called by several goroutines
// at once.
type Codec interface {
	Marshal(value any) ([]byte, error)
	Unmarshal(data []byte, pointer any) error
}

type jsonCodec struct{}

func (jsonCodec) Marshal(value any) ([]byte, error)        { return json.Marshal(value) }
func (jsonCodec) Unmarshal(data []byte, pointer any) error { return json.Unmarshal(data, pointer) }

// Errors that calls return, besides those of package idempotent; match them
// with [errors.Is]. What a call returns also names the key and the cause.
var (
	// ErrUnavailable: Redis did not answer, or refused the command (out of
	// memory, read-only, moved). The cause is Redis's or the client's error.
	ErrUnavailable = errors.New("idemredis: Redis is not available")
	// ErrLeaseLost: the claim's lease ran out while the effect ran. It is the
	// cause with which the effect's context is cancelled, and what the call
	// reports, together with ErrNotRecorded, beside the effect's value or error.
	// With the verdict Refused it ran out before the effect was entered, and the
	// key is free.
	ErrLeaseLost = errors.New("idemredis: the lease was lost")
	// ErrNotRecorded: the effect was entered, and how it ended is not recorded.
	// The call's value and error are the effect's all the same. What later calls
	// are told is up to OnLostLease.
	ErrNotRecorded = errors.New("idemredis: the outcome is not recorded")
	// ErrNoValue: the effect happened, and its value is not kept: it was too
	// large, could not be encoded, or is gone from Spill.
	ErrNoValue = errors.New("idemredis: the value is not kept")
)

func (o Options) withDefaults() (Options, error) {
	bad := func(field string, value any, want string) (Options, error) {
		return o, fmt.Errorf("idemredis: Options.%s is %v, want %s", field, value, want)
	}
	badTTL := func(field string, value time.Duration) (Options, error) {
		return o, fmt.Errorf("%w: idemredis.Options.%s is %v, want 0 or more", idempotent.ErrInvalidTTL, field, value)
	}
	switch {
	case strings.ContainsAny(o.Prefix, "{}"):
		return bad("Prefix", strconv.Quote(o.Prefix), "no brace")
	case strings.ContainsAny(o.Consumer, ":{}"):
		return bad("Consumer", strconv.Quote(o.Consumer), "neither colon nor brace")
	case o.TTL < 0:
		return badTTL("TTL", o.TTL)
	case o.FailureTTL < 0:
		return badTTL("FailureTTL", o.FailureTTL)
	case o.Lease < 0:
		return bad("Lease", o.Lease, "0 or more")
	case o.OnLostLease > RunAgain:
		return bad("OnLostLease", o.OnLostLease, "HoldUnknown or RunAgain")
	case o.StaleFor < 0:
		return bad("StaleFor", o.StaleFor, "0 or more")
	case o.Wait < 0:
		return bad("Wait", o.Wait, "0 or more")
	case o.MaxValue < 0:
		return bad("MaxValue", o.MaxValue, "0 or more")
	}
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	o.TTL = cmp.Or(o.TTL, idempotent.DefaultTTL)
	o.Lease = cmp.Or(o.Lease, DefaultLease)
	o.MaxValue = cmp.Or(o.MaxValue, DefaultMaxValue)
	if o.Codec == nil {
		o.Codec = jsonCodec{}
	}
	return o, nil
}
