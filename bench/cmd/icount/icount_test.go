package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var stored = table{"go1.26.0 linux/amd64", []counts{{"replay", 500, 0, 0}, {"cold", 2000, 1.03, 120}}}

func TestTheTableReadsBackWhatItWrote(t *testing.T) {
	back, err := parse(stored.String())
	require.NoError(t, err)
	require.Equal(t, stored, back)
	for _, text := range []string{"", "# only a heading\n", "replay 12\n"} {
		_, err := parse(text)
		require.Error(t, err, "%q", text)
	}
}

func TestComparing(t *testing.T) {
	with := func(c counts) table { return table{stored.toolchain, []counts{c, stored.counts[1]}} }
	t.Run("lets pass what is within the tolerance, and what shrank", func(t *testing.T) {
		require.NoError(t, compare(stored, stored, 0))
		require.NoError(t, compare(stored, with(counts{"replay", 514, 0, 0}), 3))
		require.NoError(t, compare(stored, with(counts{"replay", 100, 0, 0}), 0))
	})
	t.Run("names what grew", func(t *testing.T) {
		require.ErrorContains(t, compare(stored, with(counts{"replay", 516, 0, 0}), 3), "replay: instructions grew from 500.00 to 516.00")
		require.ErrorContains(t, compare(stored, with(counts{"replay", 500, 0.02, 0}), 3), "replay: allocations grew")
		require.ErrorContains(t, compare(stored, with(counts{"replay", 500, 0, 8}), 3), "replay: bytes grew")
	})
	t.Run("says when the toolchain is another", func(t *testing.T) {
		now := with(counts{"replay", 600, 0, 0})
		now.toolchain = "go1.27.0 linux/amd64"
		require.ErrorContains(t, compare(stored, now, 3), "go1.27.0")
	})
	t.Run("misses a kind of call that is gone", func(t *testing.T) {
		require.ErrorContains(t, compare(stored, table{stored.toolchain, stored.counts[:1]}, 3), "cold is stored but no longer counted")
	})
}

func TestEveryKindOfCallIsMade(t *testing.T) {
	for _, w := range works {
		var out strings.Builder
		require.NoError(t, run([]string{"-work", w.name, "-calls", "100"}, &out, io.Discard))
		require.Regexp(t, `^\d+ \d+\n$`, out.String(), w.name)
	}
	require.ErrorContains(t, makeCalls(io.Discard, "unknown", 1), `"unknown"`)
}

func TestFunctionsAreReadFromTheAnnotation(t *testing.T) {
	const text = `27,846,473 (100.0%)  PROGRAM TOTALS
2,322,588 ( 8.34%)  /src/ledger.go:github.com/idempotent-go/idempotent.(*ledger[go.shape.string,go.shape.struct { Receipt int64; Cents int64 }]).read [/tmp/ic]
  234,552 ( 0.84%)  /go/type.go:github.com/idempotent-go/idempotent.(*ledger[go.shape.string,go.shape.struct { Receipt int64; Cents int64 }]).read
  980,351 ( 3.52%)  /go/asm_amd64.s:aeshashbody [/tmp/ic]
`
	got, err := parseFunctions(text)
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"idempotent.(*ledger).read": 2_557_140, "aeshashbody": 980_351}, got)
	_, err = parseFunctions("nothing of it")
	require.Error(t, err)
}
