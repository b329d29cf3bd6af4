package idemredis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// workers is how many processes race. Each has its own tormentor.
const workers = 3

// A tormentor does something to a running worker; false says that it is dead.
type tormentor func(worker *exec.Cmd) (alive bool)

// kill lets the worker run for a moment and kills it.
func kill(worker *exec.Cmd) bool {
	<-time.After(rand.N(30 * time.Millisecond))
	_ = worker.Process.Kill()
	return false
}

// freeze stops the worker for longer than its lease, and lets it go on.
func freeze(worker *exec.Cmd) bool {
	<-time.After(rand.N(20 * time.Millisecond))
	_ = worker.Process.Signal(syscall.SIGSTOP)
	<-time.After(crashLease + rand.N(crashLease/2))
	_ = worker.Process.Signal(syscall.SIGCONT)
	return true
}

// torment has workers race and be tormented, so many times in all, then has
// every key that was begun called once more, and returns what is left.
func torment(t *testing.T, protocol string, s *server, times int, do tormentor) *crew {
	c, err := newCrew(protocol, s.addr, t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.client.Close() })
	var left atomic.Int64
	left.Store(int64(times))
	var crew sync.WaitGroup
	for range workers {
		crew.Go(func() {
			for left.Load() > 0 {
				worker := c.startWorker(protocol, s.addr)
				for left.Add(-1) >= 0 && do(worker) {
				}
				_ = worker.Process.Kill()
				_ = worker.Wait()
			}
		})
	}
	crew.Wait()
	keys := c.begun()
	require.Greater(t, len(keys), times/20, "the workers hardly came to work: the rig is blind")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, key := range keys {
		for !c.handle(ctx, key) {
			require.NoError(t, ctx.Err(), "key %d is never over", key)
		}
	}
	return c
}

// startWorker returns when the worker is at work.
func (c *crew) startWorker(protocol, addr string) *exec.Cmd {
	worker := exec.Command(os.Args[0])
	worker.Env = append(os.Environ(), "IDEMREDIS_WORKER="+protocol, "IDEMREDIS_ADDR="+addr, "IDEMREDIS_DIR="+c.dir)
	worker.Stderr = os.Stderr
	worker.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := worker.StdoutPipe()
	if err == nil {
		err = worker.Start()
	}
	if err == nil {
		_, err = out.Read(make([]byte, 1)) // "at work"
	}
	if err != nil {
		panic(err)
	}
	return worker
}

// An account is what a crew left.
type account struct{ keys, doubled, lost, unknown, repeated int }

func (c *crew) account() (a account) {
	acknowledged, unknown, effects := c.notes("acknowledged"), c.notes("unknown"), c.notes("effect")
	for _, key := range c.begun() {
		if c.keyed {
			if _, err := os.Stat(filepath.Join(c.dir, "row-"+strconv.Itoa(key))); err == nil {
				effects[key] = 1 // the store's uniqueness is what makes it so
			}
		}
		a.keys++
		if effects[key] > 1 {
			a.doubled++
		}
		if acknowledged[key] > 0 && effects[key] == 0 {
			a.lost++
		}
		if unknown[key] > 0 {
			a.unknown++
		}
	}
	for _, times := range c.notes("tried") {
		if times > 1 {
			a.repeated++
		}
	}
	return a
}

// times is how often per push; before a release an environment variable says more.
func times(t *testing.T, variable string, push int) int {
	text := os.Getenv(variable)
	if text == "" {
		return push
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "%s must be a number", variable)
	return n
}

func (a account) log(t *testing.T, what string, times int) {
	t.Logf("%d %s over %d keys: %d doubled, %d acknowledged and lost, %d unknown, %d tried again; none means a rate below %.3g %% at 95 %%",
		times, what, a.keys, a.doubled, a.lost, a.unknown, a.repeated, 300/float64(times))
}

func TestKilledWorkers(t *testing.T) {
	s := startServer(t)
	n := times(t, "IDEMREDIS_KILLS", 500)
	t.Run("by default no effect happens twice, and what is not known is held", func(t *testing.T) {
		a := torment(t, "hold", s, n, kill).account()
		a.log(t, "kills", n)
		require.Zero(t, a.doubled)
		require.Zero(t, a.lost)
		require.Zero(t, a.repeated, "an effect was entered again after its worker died")
		require.Positive(t, a.unknown, "no kill hit a running effect: the rig is blind")
	})
	s.reset(t)
	t.Run("run again with a keyed effect: none twice, none lost, none unknown", func(t *testing.T) {
		a := torment(t, "again, keyed", s, n, kill).account()
		a.log(t, "kills", n)
		require.Zero(t, a.doubled)
		require.Zero(t, a.lost)
		require.Zero(t, a.unknown)
		require.Positive(t, a.repeated, "no effect was entered again: the rig is blind")
	})
	s.reset(t)
	t.Run("control: run again without a keyed effect doubles", func(t *testing.T) {
		a := torment(t, "again", s, n/5, kill).account()
		a.log(t, "kills", n/5)
		require.Positive(t, a.doubled, "the rig is blind")
	})
	t.Run("control: look, act, mark doubles", func(t *testing.T) {
		a := torment(t, "naive", s, 30, kill).account()
		a.log(t, "kills", 30)
		require.Positive(t, a.doubled, "the rig is blind")
	})
}

func TestFiftyProcesses(t *testing.T) {
	s := startServer(t)
	c, err := newCrew("once", s.addr, t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.client.Close() })
	const processes = 50
	var all []*exec.Cmd
	for range processes {
		all = append(all, c.startWorker("once", s.addr))
	}
	require.NoError(t, c.client.RPush(t.Context(), "go", make([]any, processes)...).Err())
	for _, worker := range all {
		require.NoError(t, worker.Wait())
	}
	require.Equal(t, map[int]int{0: processes}, c.notes("acknowledged"))
	require.Equal(t, map[int]int{0: 1}, c.notes("effect"))
}

func TestFrozenWorkers(t *testing.T) {
	n := times(t, "IDEMREDIS_STOPS", 100)
	for _, c := range []struct {
		protocol string
		doubles  bool
	}{{"hold", false}, {"again, keyed", false}, {"again", true}} {
		t.Run(fmt.Sprintf("%s: doubles %v", c.protocol, c.doubles), func(t *testing.T) {
			t.Parallel()
			a := torment(t, c.protocol, startServer(t), n, freeze).account()
			a.log(t, "stops past the lease", n)
			require.Zero(t, a.lost)
			if c.doubles {
				require.Positive(t, a.doubled, "the rig is blind")
				return
			}
			require.Zero(t, a.doubled)
			require.Positive(t, a.unknown+a.repeated, "no stop hit a running effect: the rig is blind")
		})
	}
}

func TestKilledServer(t *testing.T) {
	n := times(t, "IDEMREDIS_SERVER_KILLS", 20)
	for _, protocol := range []string{"hold", "again, keyed"} {
		t.Run(protocol+": nothing doubles and nothing acknowledged is lost", func(t *testing.T) {
			s := startServer(t, "--appendonly", "yes", "--appendfsync", "always")
			var one sync.Mutex
			a := torment(t, protocol, s, n, func(*exec.Cmd) bool {
				one.Lock()
				defer one.Unlock()
				<-time.After(50*time.Millisecond + rand.N(100*time.Millisecond))
				s.kill()
				s.start(t)
				return true
			}).account()
			a.log(t, "kills of the server", n)
			require.Zero(t, a.doubled)
			require.Zero(t, a.lost)
		})
	}
}
