package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// asService makes the test's own program the service, so that a signal can be
// sent to it.
const asService = "RESTART_AS_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is the service in a process of its own.
type child struct {
	t       *testing.T
	folder  string
	command *exec.Cmd
	url     string
	greeted string // its first line
	rest    chan string
}

func start(t *testing.T, folder string, args ...string) *child {
	t.Helper()
	c := &child{t: t, folder: folder, rest: make(chan string, 1)}
	c.command = exec.CommandContext(t.Context(), os.Args[0], append([]string{"-addr", "127.0.0.1:0"}, args...)...)
	c.command.Dir = folder
	c.command.Env = append(os.Environ(), asService+"=1")
	stdout, err := c.command.StdoutPipe()
	require.NoError(t, err)
	c.command.Stderr = c.command.Stdout
	require.NoError(t, c.command.Start())
	t.Cleanup(func() { _ = c.command.Process.Kill(); _ = c.command.Wait() })
	lines := bufio.NewReader(stdout)
	c.greeted, err = lines.ReadString('\n')
	require.NoError(t, err)
	go func() {
		rest, _ := io.ReadAll(lines)
		c.rest <- string(rest)
	}()
	if _, addr, ok := strings.Cut(strings.TrimSpace(c.greeted), "serving on "); ok {
		c.url = "http://" + addr
	}
	return c
}

// pay posts a payment, and returns the receipt's number and the verdict.
func (c *child) pay(key string) (number, verdict string) {
	r, err := http.Post(c.url+"/payments/"+key, "", nil)
	require.NoError(c.t, err)
	defer r.Body.Close()
	require.Equal(c.t, http.StatusOK, r.StatusCode)
	var paid receipt
	require.NoError(c.t, json.NewDecoder(r.Body).Decode(&paid))
	return paid.Number, r.Header.Get("Verdict")
}

// end waits for the process and returns what else it said.
func (c *child) end() (rest string, exit int) {
	c.t.Helper()
	rest = <-c.rest
	_ = c.command.Wait()
	return rest, c.command.ProcessState.ExitCode()
}

func (c *child) signal(s os.Signal) { require.NoError(c.t, c.command.Process.Signal(s)) }

func ledger(t *testing.T, folder string) string {
	text, err := os.ReadFile(filepath.Join(folder, "ledger.out"))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	require.NoError(t, err)
	return string(text)
}

func TestRestart(t *testing.T) {
	t.Run("a result is replayed after SIGTERM and a new start", func(t *testing.T) {
		folder := t.TempDir()
		first := start(t, folder)
		require.Contains(t, first.greeted, "0 results restored")
		number, verdict := first.pay("order-1")
		require.Equal(t, "executed", verdict)
		first.signal(syscall.SIGTERM)
		rest, exit := first.end()
		require.Equal(t, "1 results saved\n", rest)
		require.Zero(t, exit)

		second := start(t, folder)
		require.Contains(t, second.greeted, "1 results restored")
		again, verdict := second.pay("order-1")
		require.Equal(t, "replayed", verdict)
		require.Equal(t, number, again)
		require.Equal(t, "charged \"order-1\"\n", ledger(t, folder))
	})

	t.Run("an effect that runs when SIGTERM comes ends, and its result is saved", func(t *testing.T) {
		folder := t.TempDir()
		first := start(t, folder, "-takes", "300ms")
		paid := make(chan string, 1)
		go func() { number, _ := first.pay("order-1"); paid <- number }()
		require.Eventually(t, func() bool { return ledger(t, folder) != "" }, 10*time.Second, time.Millisecond)
		first.signal(syscall.SIGTERM)
		number := <-paid
		rest, exit := first.end()
		require.Equal(t, "1 results saved\n", rest)
		require.Zero(t, exit)

		again, verdict := start(t, folder).pay("order-1")
		require.Equal(t, "replayed", verdict)
		require.Equal(t, number, again)
	})

	t.Run("an effect that outlasts the grace is told of, and the other results are saved", func(t *testing.T) {
		folder := t.TempDir()
		first := start(t, folder)
		first.pay("order-1")
		first.signal(syscall.SIGTERM)
		first.end()
		second := start(t, folder, "-takes", "1h", "-grace", "50ms")
		go func() { _, _ = http.Post(second.url+"/payments/order-2", "", nil) }()
		require.Eventually(t, func() bool { return strings.Contains(ledger(t, folder), "order-2") }, 10*time.Second, time.Millisecond)
		second.signal(syscall.SIGTERM)
		rest, exit := second.end()
		require.Contains(t, rest, "1 results saved\n")
		require.Contains(t, rest, "effects are still running")
		require.Equal(t, 1, exit)
	})

	t.Run("a damaged snapshot stops the start, and stays as it is", func(t *testing.T) {
		folder := t.TempDir()
		first := start(t, folder)
		first.pay("order-1")
		first.signal(syscall.SIGTERM)
		first.end()
		path := filepath.Join(folder, "results.out")
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		altered := strings.Replace(string(text), "order-1", "order-2", 1)
		require.NoError(t, os.WriteFile(path, []byte(altered), 0o600))

		second := start(t, folder)
		_, exit := second.end()
		require.Equal(t, 1, exit)
		require.Contains(t, second.greeted, `restart: restoring "results.out": the snapshot is damaged`)
		left, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, altered, string(left))
	})

	t.Run("a crash loses what was not saved, and the effect runs again", func(t *testing.T) {
		folder := t.TempDir()
		first := start(t, folder)
		first.pay("order-1")
		first.signal(syscall.SIGKILL)
		first.end()
		_, verdict := start(t, folder).pay("order-1")
		require.Equal(t, "executed", verdict)
		require.Equal(t, 2, strings.Count(ledger(t, folder), "order-1"))
	})
}

func endpoint(t *testing.T) *idempotent.Endpoint[string, string] {
	e, err := idempotent.New(idempotent.Options[string, string]{})
	require.NoError(t, err)
	return e
}

// full has a result of each kind.
func full(t *testing.T) *idempotent.Endpoint[string, string] {
	e := endpoint(t)
	for key, fails := range map[string]error{
		"paid":       nil,
		"declined":   idempotent.Permanent(errors.New("no money")),
		"silent":     idempotent.Permanent(errors.New("")),
		"unknown":    idempotent.Unknown(errors.New("no answer")),
		"odd \n\xff": nil,
	} {
		_, _, _ = e.Handle(t.Context(), idempotent.Request[string]{Key: key, Fingerprint: "of " + key, TTL: time.Hour},
			func(context.Context) (string, error) { return "value " + strconv.Quote(key), fails })
	}
	_, _, _ = e.Handle(t.Context(), idempotent.Request[string]{Key: "eternal", TTL: idempotent.Forever},
		func(context.Context) (string, error) { return "", nil })
	return e
}

func TestSnapshot(t *testing.T) {
	t.Run("every kind of result comes back as it was", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		before, after := full(t), endpoint(t)
		n, err := save(path, before.Records())
		require.NoError(t, err)
		require.Equal(t, 6, n)
		n, err = restore(path, after)
		require.NoError(t, err)
		require.Equal(t, 6, n)
		for key, was := range before.Records() {
			is, ok := after.Lookup(key)
			require.True(t, ok, "%q", key)
			require.Equal(t, was.Value, is.Value)
			require.Equal(t, was.Fingerprint, is.Fingerprint)
			require.Equal(t, fmt.Sprint(was.Err), fmt.Sprint(is.Err))
			require.Equal(t, errors.Is(was.Err, idempotent.ErrOutcomeUnknown), errors.Is(is.Err, idempotent.ErrOutcomeUnknown))
			require.Equal(t, idempotent.IsPermanent(was.Err), idempotent.IsPermanent(is.Err))
			require.WithinDuration(t, was.CompletedAt, is.CompletedAt, time.Second)
			require.WithinDuration(t, was.ExpiresAt, is.ExpiresAt, time.Second)
		}
	})

	t.Run("no file is no results", func(t *testing.T) {
		n, err := restore(filepath.Join(t.TempDir(), "none"), endpoint(t))
		require.NoError(t, err)
		require.Zero(t, n)
	})

	t.Run("nothing is taken from a file that was cut or altered anywhere", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		_, err := save(path, full(t).Records())
		require.NoError(t, err)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		refused := func(text []byte, what string, at int) {
			require.NoError(t, os.WriteFile(path, text, 0o600))
			e := endpoint(t)
			_, err := restore(path, e)
			require.ErrorIs(t, err, errDamaged, "%s at byte %d", what, at)
			require.ErrorContains(t, err, fmt.Sprintf("restart: restoring %q: ", path))
			require.Zero(t, e.Stats().Retained, "%s at byte %d", what, at)
		}
		for at := range text {
			refused(text[:at], "cut", at)
			flipped := append([]byte(nil), text...)
			flipped[at] ^= 1 << rand.IntN(8)
			refused(flipped, "altered", at)
		}
		refused(append(text, text...), "twice", 0)
		refused(append(text, '\n'), "longer", len(text))
	})

	t.Run("a save that fails leaves the old file and nothing else", func(t *testing.T) {
		folder := t.TempDir()
		path := filepath.Join(folder, "s")
		_, err := save(path, full(t).Records())
		require.NoError(t, err)
		old, err := os.ReadFile(path)
		require.NoError(t, err)

		var bad iter.Seq2[string, idempotent.Record[func()]] = func(yield func(string, idempotent.Record[func()]) bool) {
			yield("bad", idempotent.Record[func()]{})
		}
		_, err = save(path, bad)
		require.ErrorContains(t, err, fmt.Sprintf(`restart: saving %q: key "bad": `, path))
		left, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, old, left)
		files, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.Len(t, files, 1)
	})

	t.Run("its lines can be read by a person", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		_, err := save(path, full(t).Records())
		require.NoError(t, err)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Regexp(t, regexp.MustCompile(`"Key":"\\"declined\\"".*"error":"no money","mark":"permanent"`), string(text))
	})
}
