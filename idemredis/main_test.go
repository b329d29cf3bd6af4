package idemredis_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemredis"
)

// TestMain makes the test binary its own worker process.
func TestMain(m *testing.M) {
	if role := os.Getenv("IDEMREDIS_WORKER"); role != "" {
		work(role)
		return
	}
	os.Exit(m.Run())
}

// patience is how long anything that must happen may take.
const patience = 30 * time.Second

// A server is a redis-server process that a test owns.
type server struct {
	addr string
	dir  string
	args []string
	cmd  *exec.Cmd
}

// startServer starts a redis-server on a free port of the loopback, with its
// data in a folder of the test's. extra are its command-line settings.
func startServer(t testing.TB, extra ...string) *server {
	t.Helper()
	port := freePort(t)
	s := &server{addr: "127.0.0.1:" + port, dir: t.TempDir()}
	s.args = append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--loglevel", "warning"}, extra...)
	s.start(t)
	t.Cleanup(s.kill)
	return s
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

// start returns when the server answers and has loaded its data.
func (s *server) start(t testing.TB) {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	require.NoError(t, err, "these tests need a redis-server; on Debian: apt-get install redis-server")
	s.cmd = exec.Command(path, s.args...)
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	// The server must not outlive a test binary that is killed.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, s.cmd.Start())
	client := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1})
	defer client.Close()
	eventually(t, "redis-server to answer", func() bool { return client.Ping(context.Background()).Err() == nil })
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// reset empties the store.
func (s *server) reset(t *testing.T) {
	t.Helper()
	require.NoError(t, dial(t, s.addr).FlushAll(t.Context()).Err())
}

// dial returns a client of its own, as another process would have.
func dial(t testing.TB, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// dialHeedless is dial with go-redis's defaults: the ctx of a command is not
// heeded while it waits for its answer.
func dialHeedless(t testing.TB, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// miniServer starts an in-process stand-in for Redis whose keys expire in time.
func miniServer(t testing.TB) string {
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	return m.Addr()
}

func newGuard(t testing.TB, client redis.UniversalClient, opts idemredis.Options) *idemredis.Guard[string] {
	t.Helper()
	g, err := idemredis.New[string](client, opts)
	require.NoError(t, err)
	return g
}

func request(key string) idempotent.Request[string] { return idempotent.Request[string]{Key: key} }

// gives is an effect that leaves the value.
func gives(value string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return value, nil }
}

// mustNotRun is an effect that must not start.
func mustNotRun(t testing.TB) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		t.Error("an effect started that must not")
		return "", nil
	}
}

// eventually polls until the condition holds, or fails the test.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		require.True(t, time.Now().Before(deadline), "timed out waiting for %s", what)
		<-tick.C
	}
}
