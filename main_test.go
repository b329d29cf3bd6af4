package idempotent_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/idempotent-go/idempotent"
)

// TestMain runs the tests twice: as they are, and with every key under one hash,
// where nothing can hide behind a lucky spread of the keys; no goroutine may be
// left. Benchmarks and fuzzing, which keeps goroutines of its own, run once.
func TestMain(m *testing.M) {
	flag.Parse()
	before := runtime.NumGoroutine()
	code := m.Run()
	if given("test.bench") || given("test.fuzz") || given("test.list") {
		os.Exit(code)
	}
	if code == 0 {
		fmt.Println("once more, every key under one hash:")
		idempotent.OneHash = true
		code = m.Run()
	}
	if code == 0 && !eventually(func() bool { return runtime.NumGoroutine() <= before }) {
		stacks := make([]byte, 1<<16)
		fmt.Printf("%d goroutines before, %d left:\n%s\n", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
		code = 1
	}
	os.Exit(code)
}

func given(name string) bool {
	f := flag.Lookup(name)
	return f != nil && f.Value.String() != f.DefValue
}

// eventually polls a condition of the real world for up to ten seconds.
func eventually(holds func() bool) bool {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if holds() {
			return true
		}
	}
	return holds()
}

// many is n, or less where each step costs more: under the race detector, and
// under one hash, where a look-up compares all keys.
func many(n int) int {
	if idempotent.OneHash {
		return max(n/500, 100)
	}
	if raceEnabled {
		return max(n/20, 100)
	}
	return n
}
