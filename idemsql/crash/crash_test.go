package crash

import (
	"cmp"
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemsql"
	"github.com/idempotent-go/idempotent/idemsql/internal/pgtest"
)

// number is what the variable says, or standard.
func number(t *testing.T, variable string, standard int) int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv(variable), strconv.Itoa(standard)))
	require.NoError(t, err, variable)
	return n
}

func startServer(t *testing.T) *pgtest.Server {
	server, err := pgtest.Start()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server
}

// check judges a run and logs its figures.
func (r *rig) check(disturbance string) {
	v := r.settle()
	r.Logf("%s: %d keys, %d acknowledgements: %d double, %d acknowledged but lost, %d held",
		disturbance, v.keys, v.acknowledged, v.double, v.lost, v.held)
	require.Greater(r, v.acknowledged, 0, "nothing was acknowledged: the run shows nothing")
	if r.control {
		require.NotZero(r, v.double, "the rig is blind: an order known to be wrong shows no double effect")
		return
	}
	require.Zero(r, v.double, "double effects")
	require.Zero(r, v.lost, "acknowledged but lost")
}

func TestWorkersAreKilled(t *testing.T) {
	server := startServer(t)
	kills := number(t, "IDEMSQL_KILLS", 500)
	for _, p := range protocols {
		if p.opts.Isolation != sql.LevelDefault {
			continue // the next test's
		}
		t.Run(p.name, func(t *testing.T) {
			r := newRig(t, p, server)
			kills := kills
			if p.control {
				kills = min(kills, 150) // enough to see by
			}
			r.crash(kills, 0)
			r.check(fmt.Sprintf("%d SIGKILLs (0 means a rate below %.2g at 95%%)", kills, 3/float64(kills)))
		})
	}
}

func TestWorkersAreStoppedPastTheirLeases(t *testing.T) {
	server := startServer(t)
	stops := number(t, "IDEMSQL_STOPS", 20)
	for _, p := range protocols {
		if p.control || p.dialect == idemsql.SQLite || p.opts.Isolation != sql.LevelDefault {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			r := newRig(t, p, server)
			r.crash(stops, stops)
			r.check(fmt.Sprintf("%d SIGSTOPs of %v", stops, 2*lease))
		})
	}
}

func TestTheServerIsKilled(t *testing.T) {
	server := startServer(t)
	kills := number(t, "IDEMSQL_SERVER_KILLS", 2)
	for _, p := range protocols {
		if p.control || p.dialect == idemsql.SQLite {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			r := newRig(t, p, server)
			var workers sync.WaitGroup
			end := make(chan struct{})
			for range 2 {
				cmd, ready, ended := r.start(0, 0)
				<-ready
				workers.Go(func() {
					<-end
					if err := cmd.Process.Kill(); err != nil {
						t.Errorf("a worker ended by itself: %v", err)
					}
					<-ended
				})
			}
			for range kills {
				r.awaitAcks(20)
				require.NoError(t, server.Kill())
				require.NoError(t, server.Restart())
			}
			r.awaitAcks(20)
			close(end)
			workers.Wait()
			r.check(fmt.Sprintf("%d SIGKILLs of the server", kills))
		})
	}
}

// awaitAcks waits for n more acknowledgements.
func (r *rig) awaitAcks(n int) {
	count := func() int { r.mu.Lock(); defer r.mu.Unlock(); return r.count }
	want := count() + n
	require.Eventually(r, func() bool { return count() >= want }, time.Minute, time.Millisecond)
}

func TestProcessesShareTheWork(t *testing.T) {
	server := startServer(t)
	for _, processes := range []int{2, 8} {
		for _, p := range protocols {
			if p.control {
				continue
			}
			t.Run(fmt.Sprintf("%d processes, %s", processes, p.name), func(t *testing.T) {
				const keys = 40
				r := newRig(t, p, server)
				var workers sync.WaitGroup
				for range processes {
					_, _, ended := r.start(0, keys)
					workers.Go(func() {
						if err := <-ended; err != nil {
							t.Errorf("a worker: %v", err)
						}
					})
				}
				workers.Wait()
				require.Equal(t, keys*processes, r.count, "every caller gets every result")
				r.check("undisturbed")
			})
		}
	}
}
