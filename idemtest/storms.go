package idemtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// work takes some time, so that effects can overlap if anything lets them.
func work() { <-time.After(rand.N(2 * time.Millisecond)) }

func stormOnce(r *rig) {
	const keys, callers = 12, 16
	var runs [keys]tally
	var executed, finished atomic.Int64
	r.crowd(callers, func(n int) {
		for _, k := range rand.Perm(keys) {
			value := fmt.Sprint("value of ", k)
			o := r.do(n, fmt.Sprint("k", k), func(context.Context) ([]byte, error) {
				defer runs[k].enter()()
				work()
				return []byte(value), nil
			})
			assert.NoError(r, o.err)
			assert.Equal(r, value, string(o.value))
			assert.NotEqual(r, idempotent.Refused, o.verdict)
			if o.verdict == idempotent.Executed {
				executed.Add(1)
			}
			finished.Add(1)
		}
	})
	for k := range runs {
		require.EqualValues(r, 1, runs[k].runs.Load(), "runs of key %d", k)
	}
	require.EqualValues(r, keys, executed.Load())
	require.EqualValues(r, keys*callers, finished.Load())
}

func stormFailing(r *rig) {
	const keys, callers, good = 6, 8, 3 // run number good is the first to succeed
	var runs [keys]tally
	var failed, succeeded [keys]atomic.Int64
	r.crowd(callers, func(n int) {
		for _, k := range rand.Perm(keys) {
			o := r.do(n, fmt.Sprint("k", k), func(context.Context) ([]byte, error) {
				defer runs[k].enter()()
				work()
				if runs[k].runs.Load() < good {
					return nil, errEffect
				}
				return []byte("v"), nil
			})
			if o.err == nil {
				succeeded[k].Add(1)
				assert.Equal(r, "v", string(o.value))
				continue
			}
			failed[k].Add(1)
			assert.ErrorIs(r, o.err, errEffect)
			assert.Equal(r, idempotent.Executed, o.verdict)
		}
	})
	for k := range runs {
		require.EqualValues(r, good, runs[k].runs.Load(), "runs of key %d", k)
		require.Zero(r, runs[k].overlaps.Load(), "overlaps of key %d", k)
		require.EqualValues(r, good-1, failed[k].Load())
		require.EqualValues(r, callers-good+1, succeeded[k].Load())
	}
}

// stormChaos holds two promises against everything at once: attempts of a key
// never overlap, and a success is only followed by another if it was forgotten
// in between.
func stormChaos(r *rig) {
	const keys, callers, rounds = 3, 12, 4
	var runs [keys]tally
	var successes, forgotten [keys]atomic.Int64
	attempt := func(k int) effect {
		return func(context.Context) ([]byte, error) {
			defer runs[k].enter()()
			work()
			switch rand.N(4) {
			case 0:
				return nil, errEffect
			case 1:
				panic(errEffect)
			}
			successes[k].Add(1)
			return []byte("v"), nil
		}
	}
	r.crowd(callers, func(n int) {
		for range rounds {
			k := rand.N(keys)
			key := fmt.Sprint("k", k)
			if rand.N(4) == 0 {
				had, err := r.guards[n%len(r.guards)].Forget(context.Background(), key)
				assert.NoError(r, err)
				if had {
					forgotten[k].Add(1)
				}
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), rand.N(20*time.Millisecond)+time.Millisecond)
			o := <-r.start(ctx, n, idempotent.Request[string]{Key: key}, attempt(k))
			cancel()
			r.tolerable(o)
		}
	})
	for k := range runs {
		require.Zero(r, runs[k].overlaps.Load(), "overlaps of key %d", k)
		o := r.do(0, fmt.Sprint("k", k), gives("new"))
		require.NoError(r, o.err)
		kept := successes[k].Load() - forgotten[k].Load()
		if o.verdict == idempotent.Replayed {
			require.EqualValues(r, 1, kept, "successes less forgotten of key %d, which is kept", k)
		} else {
			require.Zero(r, kept, "successes less forgotten of key %d, which is not kept", k)
		}
	}
}

// tolerable reports a call that ended in a way in which none of stormChaos may.
func (r *rig) tolerable(o outcome) {
	leftEarly := errors.Is(o.err, context.DeadlineExceeded)
	switch {
	case o.exited:
		assert.Equal(r, errEffect, o.panic)
	case o.err == nil:
		assert.Equal(r, "v", string(o.value))
		assert.NotEqual(r, idempotent.Refused, o.verdict)
	case o.verdict == idempotent.Executed:
		assert.ErrorIs(r, o.err, errEffect)
	default:
		assert.True(r, leftEarly, "refused with %v", o.err)
		assert.Equal(r, idempotent.Refused, o.verdict)
	}
}
