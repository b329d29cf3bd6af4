package idempotent

import (
	"fmt"
	"runtime"
	"testing"

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
