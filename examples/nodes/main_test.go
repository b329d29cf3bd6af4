package main

import (
	"context"
	"os"
	"strings"
	"testing"
)

// TestMain makes the test binary its own worker, as the program is.
func TestMain(m *testing.M) {
	if os.Getenv("NODES_MODE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestOnlyARunWithoutAKeyChargesTwice(t *testing.T) {
	for name, path := range map[string]string{"redis-server, if there is one": os.Getenv("PATH"), "embedded": ""} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", path)
			var out strings.Builder
			if err := supervise(context.Background(), &out); err != nil {
				t.Fatal(err)
			}
			t.Log("\n" + out.String())
			for what, times := range map[string]int{"held as unknown": 4, "TWICE": 4, "1, of 2 runs": 4, "killed after a charge": 3} {
				if got := strings.Count(out.String(), what); got != times {
					t.Errorf("%q stands there %d times, want %d", what, got, times)
				}
			}
		})
	}
}
