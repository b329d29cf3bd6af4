package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/idempotent-go/idempotent"
)

// settings are one run's flags.
type settings struct {
	callers, keys, calls int
	fail                 float64
}

func (s settings) check(seconds float64, rest []string) error {
	switch {
	case s.callers < 1:
		return fmt.Errorf("storm: -callers is %d, want 1 or more", s.callers)
	case s.keys < 1:
		return fmt.Errorf("storm: -keys is %d, want 1 or more", s.keys)
	case s.calls < 0:
		return fmt.Errorf("storm: -calls is %d, want 0 or more", s.calls)
	case !(s.fail >= 0 && s.fail < 1):
		return fmt.Errorf("storm: -fail is %v, want 0 or more and below 1", s.fail)
	case !(seconds >= 0 && seconds <= 1e9):
		return fmt.Errorf("storm: -seconds is %v, want 0 to 1e9", seconds)
	case len(rest) > 0:
		return fmt.Errorf("storm: unknown argument %q", rest[0])
	}
	return nil
}

// executor is what a trial puts to the test.
type executor interface {
	Do(ctx context.Context, key string, effect func(context.Context) (int64, error)) (int64, idempotent.Verdict, error)
}

// totals are summed over the trials.
type totals struct {
	trials, calls, failed, committed int64
	fuzz, storm                      tally // of all calls, those whose effect failed included
}

// tally counts calls by their verdict.
type tally [idempotent.Shared + 1]atomic.Int64

func (t *totals) String() string {
	return fmt.Sprintf(`trials          %d
calls           %d
effects         %d committed, %d failed and were tried again
fuzz verdicts   %v
storm verdicts  %v
`, t.trials, t.calls, t.committed, t.failed, &t.fuzz, &t.storm)
}

func (t *tally) String() string {
	return fmt.Sprintf("executed %d, shared %d, replayed %d", t[idempotent.Executed].Load(),
		t[idempotent.Shared].Load(), t[idempotent.Replayed].Load())
}

// trial runs a fuzz and a storm on a fresh executor, and adds them to the
// totals. Its error names each key that was not committed exactly once.
func (t *totals) trial(s settings, random *rand.Rand, ex executor) error {
	fuzz := make([]*operation, s.keys)
	for i := range fuzz {
		fuzz[i] = newOperation("key "+strconv.Itoa(i), s.fail, random.Uint64())
	}
	calls := make([]*operation, s.calls)
	for i := range calls {
		calls[i] = fuzz[random.IntN(len(fuzz))]
	}
	storm := newOperation("storm", s.fail, random.Uint64())
	same := make([]*operation, s.callers)
	for i := range same {
		same[i] = storm
	}

	err := errors.Join(
		deliver(ex, calls, s.callers, &t.fuzz),
		deliver(ex, same, s.callers, &t.storm),
	)
	called := make(map[*operation]bool)
	for _, op := range append(calls, storm) {
		called[op] = true
	}
	for _, op := range append(fuzz, storm) {
		err = errors.Join(err, op.verify(called[op]))
		t.calls += op.calls.Load()
		t.failed += op.failed.Load()
		t.committed += op.committed.Load()
	}
	t.trials++
	return err
}

// deliver has each operation called until it succeeds, by callers that start
// together and take one operation after the other.
func deliver(ex executor, operations []*operation, callers int, verdicts *tally) error {
	var (
		next  atomic.Int64
		start = make(chan struct{})
		wg    sync.WaitGroup
		errs  = make([]error, callers)
	)
	for caller := range callers {
		wg.Go(func() {
			<-start
			for errs[caller] == nil {
				i := int(next.Add(1)) - 1
				if i >= len(operations) {
					return
				}
				errs[caller] = operations[i].deliver(ex, verdicts)
			}
		})
	}
	close(start)
	wg.Wait()
	return errors.Join(errs...)
}

// errTryAgain is how an effect fails: before it has done anything.
var errTryAgain = errors.New("try again")

// An operation is one key and what its effect did.
type operation struct {
	key                                string
	fail                               float64
	running, calls, failed, overlapped atomic.Int64
	committed                          atomic.Int64 // the side effect: how often it happened

	mu     sync.Mutex
	random *rand.Rand // guarded by mu: a broken executor runs effects at once
}

func newOperation(key string, fail float64, seed uint64) *operation {
	return &operation{key: key, fail: fail, random: rand.New(rand.NewPCG(seed, 0))}
}

// deliver calls until it succeeds, as a producer does.
func (op *operation) deliver(ex executor, verdicts *tally) error {
	for {
		op.calls.Add(1)
		value, verdict, err := ex.Do(context.Background(), op.key, op.effect)
		verdicts[verdict].Add(1)
		switch {
		case err == nil && value != 1:
			return fmt.Errorf("%s: a caller got the result of commit %d, want 1", op.key, value)
		case err == nil:
			return nil
		case !errors.Is(err, errTryAgain):
			return fmt.Errorf("%s: %w", op.key, err)
		}
	}
}

// effect takes long enough for others to come meanwhile, and returns the number
// of its commit.
func (op *operation) effect(context.Context) (int64, error) {
	if op.running.Add(1) > 1 {
		op.overlapped.Add(1)
	}
	defer op.running.Add(-1)
	yields, fails := op.draw()
	for range yields {
		runtime.Gosched()
	}
	if fails {
		op.failed.Add(1)
		return 0, errTryAgain
	}
	return op.committed.Add(1), nil
}

func (op *operation) draw() (yields int, fails bool) {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.random.IntN(8), op.random.Float64() < op.fail
}

// verify says what is wrong with the operation at its end.
func (op *operation) verify(called bool) error {
	var want int64
	if called {
		want = 1
	}
	var err error
	if n := op.committed.Load(); n != want {
		err = fmt.Errorf("%s: the effect was committed %d times, want %d", op.key, n, want)
	}
	if n := op.overlapped.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%s: the effect started %d times while it was running", op.key, n))
	}
	return err
}
