package main

import (
	"context"
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
	require.NoError(t, show(context.Background(), &out, ""))
	require.Equal(t, `life 1: 15 of 60 payments acknowledged, killed in the middle of a transaction
life 2: 30 of 60 payments acknowledged, killed after a commit, before its acknowledgement
life 3: 60 of 60 payments acknowledged
122 deliveries: 59 executed, 61 replayed
60 bookings of 60 payments, 7770 cents; 60 outbox messages sent
`, out.String())
}
