package idemsql

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Reasons for a call to take another turn, beside those of the database's.
var (
	errRunning = errors.New("another attempt holds the key")
	errMoved   = errors.New("the row changed while it was looked at")
)

// A turns paces one call's turns. It is for one goroutine.
type turns struct {
	key                     string
	noWait                  bool
	maxPause, nextPause     time.Duration
	conflicts, maxConflicts int
	missed                  bool // a look has not found the key's result
	running                 bool // the last look has found another attempt
	entered                 bool // the effect was, in some turn
	stale                   bool // the key was found stale, and counted
}

func newTurns(opts Options, req idempotent.Request[string]) *turns {
	return &turns{
		key: req.Key, noWait: req.NoWait,
		maxPause: opts.MaxPause, nextPause: opts.MaxPause / 50,
		maxConflicts: opts.MaxConflicts,
	}
}

func (in *Inbox[V]) newTurns(req idempotent.Request[string]) *turns { return newTurns(in.opts, req) }

// again returns nil when it is time for another turn, and otherwise the error
// that why, or the end of ctx meanwhile, makes of the call.
func (t *turns) again(ctx context.Context, why error) error {
	t.missed, t.running = true, errors.Is(why, errRunning)
	switch {
	case errors.Is(why, errMoved):
	case conflicted(why), busy(why) && t.entered:
		t.conflicts++
		if t.conflicts > t.maxConflicts {
			return fail(t.key, why, ErrConflict)
		}
	case t.running, busy(why):
		if t.noWait {
			return inFlight(t.key, nil)
		}
	default:
		return t.give(why)
	}
	pause := time.NewTimer(t.pause())
	defer pause.Stop()
	select {
	case <-pause.C:
		return nil
	case <-ctx.Done():
		return inFlight(t.key, contextError(ctx))
	}
}

// pause grows from turn to turn, and is jittered so that waiters spread.
func (t *turns) pause() time.Duration {
	pause := t.nextPause/2 + rand.N(t.nextPause/2+1)
	t.nextPause = min(t.nextPause+t.nextPause/2+1, t.maxPause)
	return pause
}

// give types an error that ends the call, unless that was done already.
func (t *turns) give(err error) error {
	if _, typed := errors.AsType[*keyError](err); typed {
		return err
	}
	if cut, ok := errors.AsType[*callError](err); ok {
		return &keyError{t.key, []error{cut.kind}, cut.cause}
	}
	return fail(t.key, err)
}

// typed types an error of the effect's if it is the database's, and leaves
// others as they are.
func (t *turns) typed(err error) error {
	if kindOf(err) == nil {
		return err
	}
	return t.give(err)
}

// contextError is ctx's error, with its cause where that says more.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || cause == err {
		return err
	}
	return errors.Join(err, cause)
}
