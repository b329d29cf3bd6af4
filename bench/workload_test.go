package bench

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

var tiny = Scale{Replays: 640, Cold: 640, Kept: 1000, Blobs: 20, Window: 100, Storms: 1, Growth: []int{1000}, Expire: 100}

func TestEveryWorkloadMeasuresWhatItSays(t *testing.T) {
	for _, w := range Workloads() {
		switch w.Name {
		case "expire", "expire-instant", "blobs", "mixed", "empty":
			continue // these wait for windows; the command's -quick runs them
		}
		for _, p := range w.Peers {
			t.Run(w.Name+": "+p.Name, func(t *testing.T) {
				sample := w.Run(p, tiny)
				require.NotEmpty(t, sample)
				for _, m := range w.Metrics {
					if value, ok := sample[m.Name]; ok {
						require.False(t, math.IsNaN(value), m.Name)
						delete(sample, m.Name)
					} else {
						require.Equal(t, Nothing, p.Name, "%s is missing", m.Name)
					}
				}
				require.Empty(t, sample, "metrics without a column")
			})
		}
	}
}

func TestKeysDiffer(t *testing.T) {
	keys := MakeKeys(10_000)
	require.Equal(t, 10_000, keys.Len())
	seen := map[string]bool{}
	for i := range keys.Len() {
		require.Len(t, keys.At(i), 36)
		seen[keys.Own(i)] = true
	}
	require.Len(t, seen, 10_000)
}
