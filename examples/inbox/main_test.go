package main

import (
	"context"
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain is also the consumer's main: the example starts its own executable.
func TestMain(m *testing.M) {
	if os.Getenv("INBOX_STORE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestEveryPaymentIsBookedOnceInSpiteOfTwoCrashes(t *testing.T) {
	var out strings.Builder
	require.NoError(t, program(context.Background(), nil, &out, io.Discard))
	require.Equal(t, `life 1: 15 of 60 payments acknowledged, killed in the middle of a transaction
life 2: 30 of 60 payments acknowledged, killed after a commit, before its acknowledgement
life 3: 60 of 60 payments acknowledged
122 deliveries: 59 executed, 61 replayed, 2 lost with their process
Of the lost ones the first was rolled back, and executed when it came again; the second had been committed, and was replayed.
60 bookings of 60 payments, 7770 cents; 60 outbox messages sent
PASS: 60 payments, each booked 1 time and announced 1 time
`, out.String())
}

func TestHelpNamesTheProgram(t *testing.T) {
	var usage strings.Builder
	require.ErrorIs(t, program(context.Background(), []string{"-help"}, io.Discard, &usage), flag.ErrHelp)
	require.Contains(t, usage.String(), "Usage of inbox:\n  -dsn URL\n")
}
