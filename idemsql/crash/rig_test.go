package crash

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemsql"
	"github.com/idempotent-go/idempotent/idemsql/internal/pgtest"
)

// A rig is one protocol's store and what its workers have acknowledged.
type rig struct {
	*testing.T
	*worker
	dsn string

	mu    sync.Mutex
	acks  map[int]map[string]bool // guarded by mu: the values acknowledged for each key
	last  int                     // guarded by mu: the highest of these keys
	count int                     // guarded by mu: of acknowledgements

	kills, stops atomic.Int64
}

func newRig(t *testing.T, p protocol, server *pgtest.Server) *rig {
	r := &rig{T: t, acks: map[int]map[string]bool{}, dsn: filepath.Join(t.TempDir(), "inbox.db")}
	if p.dialect == idemsql.Postgres {
		r.dsn = newDatabase(t, server)
	}
	var err error
	r.worker, err = newWorker(p, r.dsn)
	require.NoError(t, err)
	r.patient = true
	t.Cleanup(func() { require.NoError(t, r.db.Close()) })
	require.NoError(t, r.in.Migrate(t.Context()))
	unique := ""
	if p.keyed {
		unique = " PRIMARY KEY"
	}
	for _, statement := range []string{
		"CREATE TABLE effects (key text" + unique + ", value text)",
		"CREATE TABLE marks (key text PRIMARY KEY, value text)",
	} {
		_, err := r.db.Exec(statement)
		require.NoError(t, err)
	}
	return r
}

var databases atomic.Int64

func newDatabase(t *testing.T, server *pgtest.Server) string {
	admin, err := sql.Open("pgx", server.DSN("postgres"))
	require.NoError(t, err)
	defer admin.Close()
	name := fmt.Sprintf("crash%d", databases.Add(1))
	_, err = admin.Exec("CREATE DATABASE " + name)
	require.NoError(t, err)
	return server.DSN(name)
}

// start starts a worker process at this key; its acknowledgements are noted
// until it ends. ready is closed when its first line comes.
func (r *rig) start(from, count int) (cmd *exec.Cmd, ready <-chan struct{}, ended <-chan error) {
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CRASH_PROTOCOL="+r.name, "CRASH_DSN="+r.dsn,
		fmt.Sprint("CRASH_FROM=", from), fmt.Sprint("CRASH_COUNT=", count))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	isReady, hasEnded := make(chan struct{}), make(chan error, 1)
	if err != nil {
		close(isReady)
		hasEnded <- err
		return cmd, isReady, hasEnded
	}
	go func() {
		lines := bufio.NewScanner(out)
		if lines.Scan() {
			close(isReady)
		}
		for lines.Scan() {
			r.note(lines.Text())
		}
		hasEnded <- cmd.Wait()
	}()
	return cmd, isReady, hasEnded
}

// note keeps an acknowledgement. A line that was cut off by a kill is none: its
// caller has not got it.
func (r *rig) note(line string) {
	var key int
	var value string
	if n, err := fmt.Sscanf(line, "ack %d %s", &key, &value); n != 2 || err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.acks[key] == nil {
		r.acks[key] = map[string]bool{}
	}
	r.acks[key][value] = true
	r.last = max(r.last, key)
	r.count++
}

func (r *rig) from() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(0, r.last-2)
}

// crash keeps three workers running until kills of them were killed; stops of
// them are stopped past the lease first, and go on for a moment.
func (r *rig) crash(kills, stops int) {
	var slots sync.WaitGroup
	for range 3 {
		slots.Go(func() {
			for r.kills.Add(1) <= int64(kills) {
				stop := r.stops.Add(1) <= int64(stops)
				if err := r.killOne(stop); err != nil {
					r.Error(err)
					return
				}
			}
		})
	}
	slots.Wait()
	r.kills.Store(int64(kills))
}

func (r *rig) killOne(stop bool) error {
	cmd, ready, ended := r.start(r.from(), 0)
	select {
	case <-ready:
	case err := <-ended:
		return fmt.Errorf("a worker ended by itself: %w", err)
	}
	<-time.After(rand.N(life))
	if stop {
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		<-time.After(lease * 2)
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		<-time.After(rand.N(life))
	}
	if err := cmd.Process.Kill(); err != nil {
		return fmt.Errorf("a worker ended by itself: %w", err)
	}
	<-ended
	return nil
}

// life is the longest that a worker lives once it is ready.
const life = 40 * time.Millisecond

// redeliver calls the key until the database answers, in time for the lease: the
// connections that the pool has kept may be of a server that was killed since.
func (r *rig) redeliver(key string) (value string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		value, err = r.run(r.worker, ctx, key)
		if !errors.Is(err, idemsql.ErrUnavailable) && !errors.Is(err, idemsql.ErrLeaseLost) {
			break
		}
	}
	return value, err
}

// A verdict is what is found when all is quiet again.
type verdict struct {
	keys, acknowledged int
	double, lost, held int
}

// settle calls every key once more and then counts.
func (r *rig) settle() (v verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v.keys, v.acknowledged = r.last+3, r.count // workers look at most 2 past the last
	for key := range v.keys {
		value, err := r.redeliver(name(key))
		if errors.Is(err, idempotent.ErrOutcomeUnknown) && r.holds {
			v.held++
			if len(r.acks[key]) > 0 {
				v.lost++
			}
			continue
		}
		require.NoError(r, err, "key %d", key)
		if n := len(r.acks[key]); n > 1 || n == 1 && !r.acks[key][value] {
			v.lost++ // someone was told something else than what is kept
		}
	}
	require.NoError(r, r.db.QueryRow(`SELECT count(*) FROM (SELECT key FROM effects GROUP BY key HAVING count(*) > 1) AS doubled`).Scan(&v.double))
	var without int
	require.NoError(r, r.db.QueryRow(`SELECT count(DISTINCT key) FROM effects`).Scan(&without))
	without = v.keys - v.held - without
	if without > 0 {
		v.lost += without // a result is kept and its effect is not there
	}
	return v
}
