package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program starts itself as the gateway, and in a test it is this binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-gateway" {
		main()
	}
	os.Exit(m.Run())
}

func program(t *testing.T, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

func TestNoOrderIsChargedTwice(t *testing.T) {
	code, out, errs := program(t, "-orders", "8")
	require.Zero(t, code, out+errs)
	require.Contains(t, out, "PASS: 8 orders, each charged 1 time")
	rows := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, rows, 11)
	require.Contains(t, rows[9], "sent once more after its receipt, on purpose")
	for _, row := range rows[1:9] {
		require.Regexp(t, ` 1$`, row)
		if strings.Contains(row, "after the charge") || strings.Contains(row, "during the charge") {
			require.Regexp(t, `  3 +1 +2  `, row, "the bank was really called again, after a restart")
		}
	}
}

func TestWithoutTheKeyOrdersAreChargedTwice(t *testing.T) {
	code, out, _ := program(t, "-orders", "4", "-unkeyed")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "FAIL: 2 of 4 orders")
}

func TestArguments(t *testing.T) {
	for want, args := range map[string][]string{
		"-orders is 0":      {"-orders", "0"},
		"not defined: -key": {"-key"},
	} {
		code, _, errs := program(t, args...)
		require.Equal(t, 2, code)
		require.Contains(t, errs, want)
	}
}
