package idemsql_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// The example cannot start a server: pgtest is this module's alone.
func TestTheExampleRunsOnPostgreSQL(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "run", ".", "-dsn", server.DSN("postgres"))
	cmd.Dir = "../examples/inbox"
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "60 bookings of 60 payments, 7770 cents; 60 outbox messages sent\n")
}
