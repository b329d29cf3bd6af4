package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestRun(t *testing.T) {
	t.Run("a clean load passes, with every call made", func(t *testing.T) {
		var out, progress bytes.Buffer
		code := run(t.Context(), strings.Fields("-keys 3000 -duplicates 3 -fail 0 -concurrency 8 -seconds 60"), &out, &progress)
		require.Zero(t, code, progress.String())
		require.Contains(t, out.String(), "3,000 keys of 4 calls each, by 8 callers at once")
		require.Regexp(t, `(?m)^executed +3,000 +25\.0%`, out.String())
		require.Regexp(t, `(?m)^all +12,000 +100\.0%`, out.String())
		require.Contains(t, out.String(), "PASS: of 3,000 keys, each effect succeeded once.")
		require.NotContains(t, out.String(), "The time was over")
	})
	t.Run("failures are tried again until each key has its result", func(t *testing.T) {
		var out bytes.Buffer
		require.Zero(t, run(t.Context(), strings.Fields("-keys 1000 -fail 0.5 -concurrency 8 -seconds 60"), &out, io.Discard))
		require.Regexp(t, `(?m)^executed +1,000 `, out.String())
		require.Regexp(t, `(?m)^failed +\d`, out.String())
	})
	t.Run("it ends with the time, shows that it lives, and says that it was not done", func(t *testing.T) {
		var out, progress bytes.Buffer
		require.Zero(t, run(t.Context(), strings.Fields("-keys 1000000 -effect 5ms -concurrency 4 -seconds 1.2"), &out, &progress))
		require.Regexp(t, `^   1 s    0%  [\d,]+ calls, [\d,]+/s, 0 doubled\n$`, progress.String())
		require.Contains(t, out.String(), "The time was over before all calls were made.")
	})
	t.Run("flags that make no sense are refused, and named", func(t *testing.T) {
		for args, want := range map[string]string{
			"-keys 0":        "-keys is 0",
			"-duplicates -1": "-duplicates is -1",
			"-concurrency 0": "-concurrency is 0",
			"-fail 1":        "-fail is 1",
			"-fail NaN":      "-fail is NaN",
			"-effect -1s":    "-effect is -1s",
			"-seconds 0":     "-seconds is 0",
			"more":           "no arguments beside the flags: more",
			"-nonsense":      "flag provided but not defined",
		} {
			var progress bytes.Buffer
			require.Equal(t, 2, run(t.Context(), strings.Fields(args), io.Discard, &progress), args)
			require.Contains(t, progress.String(), want)
		}
	})
	t.Run("a chart that cannot be written is an error", func(t *testing.T) {
		var progress bytes.Buffer
		require.Equal(t, 1, run(t.Context(), strings.Fields("-keys 1 -svg /nowhere/load.svg"), io.Discard, &progress))
		require.Contains(t, progress.String(), "idemload: open /nowhere/load.svg")
	})
}

func TestVerdict(t *testing.T) {
	small := settings{keys: 100, duplicates: 1, callers: 4, limit: time.Minute}
	for name, c := range map[string]struct {
		do   do
		want string
	}{
		"an effect that runs again": {func(ctx context.Context, key int, effect func(context.Context) (int, error)) (int, idempotent.Verdict, error) {
			value, err := effect(ctx)
			return value, idempotent.Executed, err
		}, "FAIL: 100 effects ran again"},
		"an effect that runs beside itself": {func(ctx context.Context, key int, effect func(context.Context) (int, error)) (int, idempotent.Verdict, error) {
			slow := make(chan error)
			for range 2 {
				go func() { _, err := effect(ctx); slow <- err }()
			}
			return key, idempotent.Executed, errors.Join(<-slow, <-slow)
		}, ", [1-9]\\d* ran beside themselves"},
		"another key's result": {func(ctx context.Context, key int, effect func(context.Context) (int, error)) (int, idempotent.Verdict, error) {
			return key + 1, idempotent.Replayed, nil
		}, "200 results were not the key's own"},
		"a result without an effect": {func(ctx context.Context, key int, effect func(context.Context) (int, error)) (int, idempotent.Verdict, error) {
			return key, idempotent.Replayed, nil
		}, "200 results were not the key's own"},
	} {
		t.Run(name+" fails the load", func(t *testing.T) {
			var out bytes.Buffer
			l := newLoad(small, c.do)
			if strings.Contains(c.want, "beside") {
				l.settings.effect = 5 * time.Millisecond // long enough for the two to meet
			}
			l.run(t.Context(), io.Discard)
			require.Equal(t, 1, l.verdict(&out))
			require.Contains(t, out.String(), "FAIL: ")
			require.Regexp(t, c.want, out.String())
			require.NotContains(t, out.String(), "PASS")
		})
	}
}

func TestCalls(t *testing.T) {
	t.Run("each key has its calls, whatever the numbers", func(t *testing.T) {
		for _, keys := range []int{1, 511, 512, 513, 2000} {
			for duplicates := range 5 {
				l := newLoad(settings{keys: keys, duplicates: duplicates, callers: 1}, nil)
				calls := make([]int, keys+1)
				for n := range l.lastCall() {
					calls[l.keyOf(n)]++
				}
				for key, n := range calls[1:] {
					require.Equal(t, duplicates+1, n, "key %d of %d", key+1, keys)
				}
			}
		}
	})
	t.Run("one duplicate comes at once", func(t *testing.T) {
		l := newLoad(settings{keys: 10, duplicates: 3, callers: 1}, nil)
		require.Equal(t, []int{1, 1, 2, 2}, []int{l.keyOf(0), l.keyOf(1), l.keyOf(2), l.keyOf(3)})
	})
}

func TestHistogram(t *testing.T) {
	t.Run("quantiles are right to an eighth", func(t *testing.T) {
		var h histogram
		var all []time.Duration
		for range 20000 {
			d := time.Duration(rand.Int64N(1 << rand.IntN(62)))
			h.add(d)
			all = append(all, d)
		}
		slices.Sort(all)
		for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.999} {
			exact := all[int(q*float64(len(all)))]
			require.GreaterOrEqual(t, h.quantile(q), exact)
			require.LessOrEqual(t, float64(h.quantile(q)), 1.125*float64(exact)+1)
		}
		require.Equal(t, all[len(all)-1], h.longest)
	})
	t.Run("every duration has a bucket, and each bucket begins where the last ends", func(t *testing.T) {
		require.Equal(t, 0, bucketOf(-1))
		require.Less(t, bucketOf(1<<63-1), len(histogram{}.buckets))
		for b := range len(histogram{}.buckets) {
			require.Equal(t, b, bucketOf(floor(b)))
			if b > 0 {
				require.Equal(t, b-1, bucketOf(floor(b)-1))
			}
		}
	})
	t.Run("bars have the length of their share, and none that is there is not seen", func(t *testing.T) {
		require.Equal(t, strings.Repeat("█", 40), bar(1000, 1000))
		require.Equal(t, strings.Repeat("█", 20), bar(500, 1000))
		require.Equal(t, "▏", bar(1, 1<<40))
		require.Empty(t, bar(0, 1000))
	})
	t.Run("an empty one divides by nothing", func(t *testing.T) {
		var h histogram
		require.Zero(t, h.quantile(0.5))
		bars(io.Discard, &h)
	})
}

func TestChart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "load.svg")
	require.Zero(t, run(t.Context(), []string{"-keys", "2000", "-fail", "0.2", "-svg", path}, io.Discard, io.Discard))
	text, err := os.ReadFile(path)
	require.NoError(t, err)

	seen := map[string]int{}
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "it is well-formed")
		if e, ok := token.(xml.StartElement); ok {
			for _, a := range e.Attr {
				if a.Name.Local == "class" {
					seen[a.Value]++
				}
				require.NotContains(t, a.Value, "NaN")
				require.NotContains(t, a.Value, "Inf")
			}
		}
	}
	for _, class := range []string{"executed", "failed", "replayed"} {
		require.GreaterOrEqual(t, seen[class], 2, "in the legend and in the bars")
	}
	require.Contains(t, string(text), "Latency of ")
}
