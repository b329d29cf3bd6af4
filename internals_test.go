package idempotent

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestShardsByProcessors(t *testing.T) {
	for processors, shards := range map[int]int{1: 8, 2: 16, 3: 32, 4: 32, 5: 64, 8: 64, 9: 64, 128: 64} {
		t.Run(fmt.Sprint(processors), func(t *testing.T) { require.Equal(t, shards, shardsFor(processors)) })
	}
	before := runtime.GOMAXPROCS(0)
	e, err := New(Options[int, int]{})
	require.NoError(t, err)
	require.Len(t, e.shards, shardsFor(before))
	require.Equal(t, before, runtime.GOMAXPROCS(0), "New has changed it")
}

func TestKeysAreInAllShards(t *testing.T) {
	e, err := New(Options[int, int]{})
	require.NoError(t, err)
	used := make(map[*shard[int, int]]bool)
	for key := range 10_000 {
		used[e.shard(e.hash(key))] = true
	}
	require.Len(t, used, len(e.shards))
}

func TestAfterNeverOverflows(t *testing.T) {
	for _, c := range []struct {
		at     int64
		window time.Duration
		ends   int64
	}{
		{0, 1, 1}, {1, 1, 2}, {-1, 1, 0},
		{0, Forever, never}, {1, Forever, never}, {-1, Forever, never - 1},
		{never - 1, 1, never}, {never, 1, never}, {never, Forever, never}, {never - 2, 1, never - 1},
	} {
		require.Equal(t, c.ends, after(c.at, c.window), "%d + %d", c.at, c.window)
	}
}
