// Package pgtest starts a real PostgreSQL server for tests, for the crash rig
// and for anyone who wants to watch the inbox at work, from the binaries that
// Debian installs.
package pgtest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// A Server is one PostgreSQL server on a port of the loopback interface. Its
// methods are for one goroutine.
type Server struct {
	bin, dir string
	port     int
	cred     *syscall.Credential // nil: run as ourselves
	log      *os.File

	process *os.Process
	ended   <-chan struct{} // closed when process has been waited for
}

// Start makes a new database cluster in a temporary folder and serves it. It
// needs no privileges; as root, which PostgreSQL refuses to run under, it runs
// the server as the user postgres, or nobody. End it with [Server.Close].
func Start() (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin}
	if s.cred, err = unprivileged(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "pgtest"); err != nil {
		return nil, err
	}
	if err := s.init(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	if err := s.Restart(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// binaries finds the newest version that is installed.
func binaries() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	best, bin := 0, ""
	for _, path := range found {
		dir := filepath.Dir(path)
		if version, err := strconv.Atoi(filepath.Base(filepath.Dir(dir))); err == nil && version > best {
			best, bin = version, dir
		}
	}
	if bin == "" {
		return "", errors.New("pgtest: no /usr/lib/postgresql/*/bin/postgres: install the Debian package postgresql")
	}
	return bin, nil
}

func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		if account, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("pgtest: no user to run PostgreSQL as, for it refuses root: %w", err)
		}
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("pgtest: user %s: %w", account.Username, err)
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("pgtest: user %s: %w", account.Username, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func (s *Server) init() error {
	if s.cred != nil {
		if err := os.Chown(s.dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			return err
		}
	}
	out, err := s.command("initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N").CombinedOutput()
	if err != nil {
		return fmt.Errorf("pgtest: initdb: %w\n%s", err, out)
	}
	s.log, err = os.Create(filepath.Join(s.dir, "log"))
	return err
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	// A server must not outlive the tests, whatever ends them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Pdeathsig: syscall.SIGINT}
	return cmd
}

// Restart serves the cluster again after [Server.Kill] or [Server.Stop], on
// the port that it had.
func (s *Server) Restart() error {
	if s.port == 0 {
		port, err := freePort()
		if err != nil {
			return err
		}
		s.port = port
	}
	// The server refuses to start while the shared memory of a killed one is in
	// use, which its dying backends may keep for a moment.
	deadline := time.Now().Add(time.Minute)
	for {
		ended, err := s.launch()
		if err != nil {
			return err
		}
		if err = s.waitReady(ended, deadline); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// launch starts the server; ended is closed when it ends.
func (s *Server) launch() (ended <-chan struct{}, err error) {
	process := s.command("postgres", "-D", s.data(), "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "max_connections=200", "-c", "shared_buffers=64MB")
	process.Stdout, process.Stderr = s.log, s.log
	if err := process.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		_ = process.Wait() // how it ended is in its log
		close(done)
	}()
	s.process, s.ended = process.Process, done
	return done, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

func (s *Server) waitReady(ended <-chan struct{}, deadline time.Time) error {
	db, err := sql.Open("pgx", s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err = db.PingContext(ctx); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ended:
			return fmt.Errorf("pgtest: the server has ended\n%s", s.Log())
		case <-ctx.Done():
			return fmt.Errorf("pgtest: the server does not answer: %w\n%s", err, s.Log())
		}
	}
}

// DSN names a database of the server, for the driver "pgx". The server has one
// named postgres.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable&connect_timeout=10", s.port, database)
}

// Log returns the end of what the server has logged.
func (s *Server) Log() string {
	text, err := os.ReadFile(s.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-4096):]))
}

// Kill ends the server and all its backends at once, as a power cut would for
// everything but the disk's cache.
func (s *Server) Kill() error {
	// Backends notice that the postmaster is gone only when they next wait, so
	// they are killed before it could tell them to go in order.
	pid := s.process.Pid
	if err := s.process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for _, child := range children(pid) {
		_ = syscall.Kill(child, syscall.SIGKILL) // it may be gone already
	}
	return s.end(syscall.SIGKILL)
}

func children(pid int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var pids []int
	for _, field := range bytes.Fields(text) {
		if child, err := strconv.Atoi(string(field)); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// Stop shuts the server down: it breaks open connections and checkpoints.
func (s *Server) Stop() error { return s.end(syscall.SIGINT) }

func (s *Server) end(sig syscall.Signal) error {
	if s.process == nil {
		return nil
	}
	if err := s.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.ended
	s.process = nil
	return nil
}

// Close stops the server, without the care that Stop takes of its data, and
// removes it.
func (s *Server) Close() error {
	return errors.Join(s.end(syscall.SIGQUIT), s.log.Close(), os.RemoveAll(s.dir))
}
