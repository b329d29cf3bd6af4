package main

import (
	"context"
	"errors"
	"flag"
	"io"
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
			if err := program(context.Background(), nil, &out, io.Discard); err != nil {
				t.Fatal(err)
			}
			t.Log("\n" + out.String())
			for what, times := range map[string]int{"held as unknown": 4, "TWICE": 4, "1, of 2 runs": 4, "killed after a charge": 3,
				"4 cards were not charged once: that is expected": 1, "PASS: ": 1} {
				if got := strings.Count(out.String(), what); got != times {
					t.Errorf("%q stands there %d times, want %d", what, got, times)
				}
			}
		})
	}
}

func TestACardChargedTwiceInSpiteOfAKeyFails(t *testing.T) {
	var out strings.Builder
	err := conclude(&out, map[string]int{control: 4, "run again, keyed": 1})
	if err == nil || err.Error() != "FAIL: run again, keyed: 1 of 12 cards were not charged just once" || strings.Contains(out.String(), "PASS") {
		t.Errorf("%v, after %q", err, out.String())
	}
}

func TestArguments(t *testing.T) {
	var usage strings.Builder
	if err := program(context.Background(), []string{"-help"}, io.Discard, &usage); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
	if !strings.HasPrefix(usage.String(), "Usage of nodes: no flags.") {
		t.Error(usage.String())
	}
	if err := program(context.Background(), []string{"more"}, io.Discard, io.Discard); err == nil {
		t.Error("an argument was taken")
	}
}
