package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/bench"
)

// A kind of call: prepare sets up, the same for any number of calls, and returns
// what makes the i-th.
type kind struct {
	name    string
	prepare func() func(i int)
}

var works = []kind{
	{"replay", func() func(int) {
		e, keys := endpoint[string](), bench.MakeKeys(kept)
		return calls(kept, keys.At, func(key string) { do(e, key) })
	}},
	{"replay-int", func() func(int) {
		e := endpoint[int]()
		return calls(kept, func(i int) int { return i + 1 }, func(key int) { do(e, key) })
	}},
	{"replay-fingerprint", func() func(int) {
		e, keys := endpoint[string](), bench.MakeKeys(kept)
		return calls(kept, keys.At, func(key string) {
			_, _, _ = e.Handle(context.Background(), idempotent.Request[string]{Key: key, Fingerprint: "sha256:9f86d081884c7d65"}, pay)
		})
	}},
	{"cold", func() func(int) {
		e, keys := endpoint[string](), bench.MakeKeys(manyCalls)
		return func(i int) { do(e, keys.At(i)) }
	}},
	{"cold-int", func() func(int) {
		e := endpoint[int]()
		return func(i int) { do(e, i+1) }
	}},
	{"failed", func() func(int) {
		e, keys := endpoint[string](), bench.MakeKeys(manyCalls)
		return func(i int) { _, _, _ = e.Do(context.Background(), keys.At(i), decline) }
	}},
	{"bare-map-replay", func() func(int) {
		m, keys := map[string]bench.Value{}, bench.MakeKeys(kept)
		return calls(kept, keys.At, func(key string) {
			if _, ok := m[key]; !ok {
				m[key], _ = pay(context.Background())
			}
		})
	}},
	{"bare-map-cold", func() func(int) {
		m, keys := map[string]bench.Value{}, bench.MakeKeys(manyCalls)
		return func(i int) { m[keys.At(i)], _ = pay(context.Background()) }
	}},
}

const kept = 1000 // keys that are replayed

// calls makes each key's first call and returns what repeats them in turn.
func calls[K any](n int, key func(int) K, call func(K)) func(int) {
	keys := make([]K, n)
	for i := range keys {
		keys[i] = key(i)
		call(keys[i])
	}
	return func(i int) { call(keys[i%n]) }
}

func endpoint[K comparable]() *idempotent.Endpoint[K, bench.Value] {
	return bench.NewEndpoint(idempotent.Options[K, bench.Value]{})
}

func do[K comparable](e *idempotent.Endpoint[K, bench.Value], key K) {
	_, _, _ = e.Do(context.Background(), key, pay)
}

func pay(context.Context) (bench.Value, error) { return bench.Value{Receipt: 1}, nil }

var errDeclined = errors.New("declined")

func decline(context.Context) (bench.Value, error) { return bench.Value{}, errDeclined }

// makeCalls makes calls of one kind and prints the allocations and bytes.
func makeCalls(out io.Writer, work string, n int) error {
	i := slices.IndexFunc(works, func(w kind) bool { return w.name == work })
	if i < 0 {
		return fmt.Errorf("icount: -work is %q, no such kind of call", work)
	}
	call := works[i].prepare()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range n {
		call(i)
	}
	runtime.ReadMemStats(&after)
	_, err := fmt.Fprintln(out, after.Mallocs-before.Mallocs, after.TotalAlloc-before.TotalAlloc)
	return err
}
