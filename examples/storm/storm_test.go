package main

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

var small = settings{callers: 8, keys: 5, calls: 100, fail: 0.2}

// split looks a key up in one critical section and keeps its result in
// another: the bug that the storm is there to find.
type split struct {
	mu   sync.Mutex
	kept map[string]int64
}

func (s *split) Do(ctx context.Context, key string, effect func(context.Context) (int64, error)) (int64, idempotent.Verdict, error) {
	s.mu.Lock()
	value, ok := s.kept[key]
	s.mu.Unlock()
	if ok {
		return value, idempotent.Replayed, nil
	}
	value, err := effect(ctx)
	if err == nil {
		s.mu.Lock()
		s.kept[key] = value
		s.mu.Unlock()
	}
	return value, idempotent.Executed, err
}

func TestATrial(t *testing.T) {
	t.Run("passes on an endpoint", func(t *testing.T) {
		endpoint, err := idempotent.New(idempotent.Options[string, int64]{})
		require.NoError(t, err)
		var sum totals
		require.NoError(t, sum.trial(small, rand.New(rand.NewPCG(1, 1)), endpoint))
		require.EqualValues(t, small.keys+1, sum.committed)
		require.EqualValues(t, endpoint.Stats().Executed, sum.committed)
		require.EqualValues(t, endpoint.Stats().Failed, sum.failed)
		require.Positive(t, sum.failed)
	})
	t.Run("fails where looking up and claiming are two critical sections", func(t *testing.T) {
		var err error
		for n := range uint64(1000) {
			err = new(totals).trial(small, rand.New(rand.NewPCG(1, n)), &split{kept: map[string]int64{}})
			if err != nil {
				break
			}
		}
		require.ErrorContains(t, err, "the effect was committed")
	})
}

func TestTheProgram(t *testing.T) {
	t.Run("prints trials, storm verdicts and PASS", func(t *testing.T) {
		var out bytes.Buffer
		require.Zero(t, run(t.Context(), []string{"-seconds", "0", "-seed", "7"}, &out, io.Discard))
		require.Regexp(t, `^trials +1\n(.*\n)+storm verdicts  executed [1-9].*\nPASS\n$`, out.String())
	})
	for name, args := range map[string][]string{
		"-callers": {"-callers", "0"},
		"-keys":    {"-keys", "-1"},
		"-calls":   {"-calls", "-1"},
		"-fail":    {"-fail", "1"},
		"-seconds": {"-seconds", "NaN"},
		"extra":    {"extra"},
	} {
		t.Run("refuses a bad "+name+" and names it", func(t *testing.T) {
			var out, complaint bytes.Buffer
			require.Equal(t, 2, run(t.Context(), args, &out, &complaint))
			require.Contains(t, complaint.String(), name)
			require.Empty(t, out.String())
		})
	}
}
