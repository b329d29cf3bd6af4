package idempotent

import (
	"errors"
	"fmt"
	"strconv"
)

// A Verdict says what became of one call. Its zero value is Refused.
type Verdict uint8

const (
	// Refused: no effect of this call was entered and no result is returned;
	// the error says why.
	Refused Verdict = iota
	// Executed: this call's own effect was entered. Its error, if any, is the
	// effect's, or says that the caller left before the effect ended
	// ([Options].Detach).
	Executed
	// Replayed: a kept result, value and error as they were.
	Replayed
	// Shared: the outcome of an attempt that was running when this call came.
	Shared
)

// String returns "refused", "executed", "replayed" or "shared".
func (v Verdict) String() string {
	switch v {
	case Refused:
		return "refused"
	case Executed:
		return "executed"
	case Replayed:
		return "replayed"
	case Shared:
		return "shared"
	}
	return "Verdict(" + strconv.Itoa(int(v)) + ")"
}

// Errors that calls are refused with; match them with [errors.Is]. A refusal also
// names the key.
var (
	// ErrInFlight: an attempt for the key is running and this call does not
	// wait for it (any longer), or with NoWait for a slot. If a context ended the wait, the error matches
	// the context's error too.
	ErrInFlight = errors.New("idempotent: in flight")
	// ErrMismatch: the key is known with another fingerprint.
	ErrMismatch = errors.New("idempotent: another request under the same key")
	// ErrFull: Capacity keys are held and none of them may go.
	ErrFull = errors.New("idempotent: full")
	// ErrDeadlock: the call is made inside an effect that the call would wait
	// for, itself or through other keys and callers.
	ErrDeadlock = errors.New("idempotent: the call would wait for itself")
	// ErrStale: for [Options].OnStale to return. The endpoint itself never does.
	ErrStale = errors.New("idempotent: the key's window has ended")
	// ErrOutcomeUnknown: the effect may or may not have happened. See [Unknown]. An
	// effect that returns this error itself holds its key as Unknown does.
	ErrOutcomeUnknown = errors.New("idempotent: outcome unknown")
	// ErrShutdown: [Endpoint.Shutdown] was called and the key has no kept result.
	ErrShutdown = errors.New("idempotent: shut down")
	// ErrInvalidKey: the zero key, or a key that does not equal itself (NaN).
	ErrInvalidKey = errors.New("idempotent: invalid key")
	// ErrInvalidTTL: a negative window.
	ErrInvalidTTL = errors.New("idempotent: invalid TTL")
)

// keyError is a refusal of one key. The text is made when it is read: most
// refusals are only matched.
type keyError[K comparable] struct {
	key   K
	kind  error // one of the errors above, or nil
	cause error // what ended the wait, or nil
}

// Error quotes the key as Go source would, so that a key with control
// characters cannot forge a log line.
func (e *keyError[K]) Error() string {
	text := "idempotent: "
	if e.kind != nil {
		text = e.kind.Error() + ": "
	}
	text += fmt.Sprintf("key %#v", e.key)
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

func (e *keyError[K]) Unwrap() []error {
	errs := make([]error, 0, 2)
	for _, err := range []error{e.kind, e.cause} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Permanent marks a failure as the key's result: it is kept for
// [Options].FailureTTL together with the value and replayed, and the effect
// does not run again until then. The mark may stand anywhere in the error
// chain. errors.Is and errors.As see through it; the text is err's.
// Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

// Unknown marks a failure after which nobody can say whether the side effect
// happened, such as a time-out of a remote call. The key is held: calls replay
// the error, which also matches [ErrOutcomeUnknown], until [Endpoint.Resolve],
// [Endpoint.Forget] or the end of [Options].FailureTTL; EvictOldest does not drop
// it. The mark may stand
// anywhere in the error chain and outweighs [Permanent]. errors.Is and
// errors.As see through it. Unknown(nil) is nil.
func Unknown(err error) error {
	if err == nil {
		return nil
	}
	return &unknownError{err}
}

type unknownError struct{ error }

func (e *unknownError) Error() string {
	return ErrOutcomeUnknown.Error() + ": " + e.error.Error()
}

func (e *unknownError) Unwrap() error { return e.error }

func (e *unknownError) Is(target error) bool { return target == ErrOutcomeUnknown }

// outcome is how an attempt ended. Only a kept one is a result.
type outcome[V any] struct {
	value    V
	err      error
	kept     bool
	unknown  bool // kept, and may be settled by Resolve
	panicked bool // the effect did not return
}

// outcomeOf reads the marks in err's chain. It runs the Unwrap and As methods of
// the caller's errors, so it must be called outside every lock.
func outcomeOf[V any](value V, err error) outcome[V] {
	end := outcome[V]{value: value, err: err, kept: err == nil}
	if err != nil {
		end.unknown = errors.Is(err, ErrOutcomeUnknown)
		_, permanent := errors.AsType[*permanentError](err)
		end.kept = end.unknown || permanent
	}
	return end
}

// A PanicError stands for an effect that did not return, where the panic
// itself cannot go on: it is what waiters get with [Options].ShareFailure, the
// caller with [Options].Detach, and what a key is held with after
// [Options].HoldPanics. *PanicError is the error.
type PanicError struct {
	Value  any    // what was passed to panic; nil after Goexit
	Goexit bool   // the effect called runtime.Goexit
	Stack  []byte // of the effect's goroutine, as by runtime/debug.Stack
}

// Error gives the panic's value, without the stack.
func (e *PanicError) Error() string {
	if e.Goexit {
		return "idempotent: the effect called runtime.Goexit"
	}
	return fmt.Sprintf("idempotent: the effect panicked: %v", e.Value)
}

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
