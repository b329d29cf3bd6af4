// Package fuzz holds the fuzz targets of the root package. Those of other
// packages stand beside them.
package fuzz

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func one(context.Context) (int, error) { return 1, nil }

// New takes any options but negative ones, and says which one it is.
func FuzzOptions(f *testing.F) {
	f.Add(int64(0), int64(0), 0, 0, int64(0), 0, false)
	f.Add(int64(-1), int64(1), 1, 1, int64(1), -1, true)
	f.Add(int64(math.MaxInt64), int64(-1), -1, -1, int64(-1), -2, true)
	f.Add(int64(1), int64(math.MinInt64), math.MaxInt, math.MaxInt, int64(math.MaxInt64), math.MaxInt, true)
	f.Fuzz(func(t *testing.T, ttl, failureTTL int64, capacity, concurrent int, timeout int64, stale int, evict bool) {
		fields := []struct {
			name         string
			value        any
			wrong, isTTL bool
		}{
			{"TTL", time.Duration(ttl), ttl < 0, true},
			{"FailureTTL", time.Duration(failureTTL), failureTTL < 0, true},
			{"Capacity", capacity, capacity < 0, false},
			{"MaxConcurrent", concurrent, concurrent < 0, false},
			{"EffectTimeout", time.Duration(timeout), timeout < 0, false},
			{"StaleMemory", stale, stale < -1, false},
		}
		e, err := idempotent.New(idempotent.Options[string, int]{
			TTL: time.Duration(ttl), FailureTTL: time.Duration(failureTTL), Capacity: capacity, MaxConcurrent: concurrent,
			EffectTimeout: time.Duration(timeout), StaleMemory: stale, EvictOldest: evict,
		})
		for _, field := range fields {
			if field.wrong {
				require.Error(t, err)
				require.Nil(t, e)
			}
		}
		if err != nil {
			named := false
			for _, field := range fields {
				if field.wrong && strings.Contains(err.Error(), "Options."+field.name+" ") && strings.Contains(err.Error(), fmt.Sprint(field.value)) {
					named = true
					require.Equal(t, field.isTTL, strings.Contains(err.Error(), idempotent.ErrInvalidTTL.Error()))
				}
			}
			require.True(t, named, "%v", err)
			return
		}
		v, verdict, err := e.Do(context.Background(), "k", one)
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
		require.Equal(t, 1, v)
	})
}

// A key is whatever the caller says: it comes back as it was, and what an error
// says of it is one line, from which the key can be read back.
func FuzzStringKey(f *testing.F) {
	for _, key := range []string{"", "a", "a\nb", "\x00", "\xff\xfe", "key \"b\"", "\u2028", "\x1b[31m", strings.Repeat("k", 1000)} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		e, err := idempotent.New(idempotent.Options[string, int]{})
		require.NoError(t, err)
		var inside error
		_, verdict, err := e.Do(context.Background(), key, func(ctx context.Context) (int, error) {
			own, ok := idempotent.Key[string](ctx)
			require.True(t, ok)
			require.Equal(t, key, own)
			_, _, inside = e.Handle(context.Background(), idempotent.Request[string]{Key: key, NoWait: true}, one)
			return 1, nil
		})
		if key == "" {
			require.ErrorIs(t, err, idempotent.ErrInvalidKey)
			return
		}
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
		require.ErrorIs(t, inside, idempotent.ErrInFlight)
		require.NotContains(t, inside.Error(), "\n")
		require.Equal(t, -1, strings.IndexFunc(inside.Error(), unicode.IsControl), "%q", inside.Error())
		_, quoted, ok := strings.Cut(inside.Error(), "key ")
		require.True(t, ok)
		quoted, err = strconv.QuotedPrefix(quoted)
		require.NoError(t, err)
		back, err := strconv.Unquote(quoted)
		require.NoError(t, err)
		require.Equal(t, key, back)
	})
}

// A key that equals zero or does not equal itself is refused, every other works.
func FuzzFloatKey(f *testing.F) {
	for _, x := range []float64{0, math.Copysign(0, -1), 1, math.NaN(), math.Inf(1), math.SmallestNonzeroFloat64} {
		f.Add(math.Float64bits(x))
	}
	type key struct {
		A string
		B [2]float64
	}
	f.Fuzz(func(t *testing.T, bits uint64) {
		x := math.Float64frombits(bits)
		e, err := idempotent.New(idempotent.Options[key, int]{})
		require.NoError(t, err)
		k := key{B: [2]float64{0, x}}
		_, verdict, err := e.Do(context.Background(), k, one)
		if k == (key{}) || x != x {
			require.ErrorIs(t, err, idempotent.ErrInvalidKey)
			require.Equal(t, idempotent.Refused, verdict)
			return
		}
		require.NoError(t, err)
		_, verdict, err = e.Do(context.Background(), k, one)
		require.NoError(t, err)
		require.Equal(t, idempotent.Replayed, verdict)
	})
}

// Any window ends when it should, to the nanosecond, or not in this age.
func FuzzWindow(f *testing.F) {
	for _, d := range []int64{-1, 0, 1, 2, int64(50 * time.Millisecond), int64(time.Hour), math.MaxInt64 - 1, math.MaxInt64} {
		f.Add(d, int64(3), false)
		f.Add(d, int64(time.Hour), true)
	}
	f.Fuzz(func(t *testing.T, window, before int64, own bool) {
		synctest.Test(t, func(t *testing.T) {
			opts, req := idempotent.Options[int, int]{}, idempotent.Request[int]{Key: 1}
			if own {
				req.TTL = time.Duration(window)
			} else {
				opts.TTL = time.Duration(window)
			}
			e, err := idempotent.New(opts)
			if !own && window < 0 {
				require.ErrorIs(t, err, idempotent.ErrInvalidTTL)
				return
			}
			require.NoError(t, err)
			time.Sleep(time.Duration(max(before, 0) % int64(1000*time.Hour)))
			_, verdict, err := e.Handle(context.Background(), req, one)
			if own && window < 0 {
				require.ErrorIs(t, err, idempotent.ErrInvalidTTL)
				require.Equal(t, idempotent.Refused, verdict)
				return
			}
			require.NoError(t, err)
			if window == 0 {
				window = int64(idempotent.DefaultTTL)
			}
			time.Sleep(time.Duration(min(window-1, int64(100*365*24*time.Hour))))
			_, verdict, _ = e.Do(context.Background(), 1, one)
			require.Equal(t, idempotent.Replayed, verdict)
			if window <= int64(100*365*24*time.Hour) {
				time.Sleep(time.Nanosecond)
				_, verdict, _ = e.Do(context.Background(), 1, one)
				require.Equal(t, idempotent.Executed, verdict)
			}
		})
	})
}
