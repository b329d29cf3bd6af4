package idemhttp_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
)

// deliveries is the size of the load runs: 6,000, or what IDEMHTTP_DELIVERIES says.
func deliveries(t *testing.T) int {
	text, ok := os.LookupEnv("IDEMHTTP_DELIVERIES")
	if !ok {
		return 6_000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "IDEMHTTP_DELIVERIES")
	require.Positive(t, n, "IDEMHTTP_DELIVERIES")
	return n
}

// TestLoad delivers every event twice over 64 connections, in an order that
// brings duplicates together and apart. One in five first attempts fails and
// is delivered again.
func TestLoad(t *testing.T) {
	const connections, window, mixed = 64, 5 * time.Second, 512
	events := deliveries(t) / 2
	payload, answered := strings.Repeat("x", 500), strings.Repeat("y", 2000) // to be worth holding
	answer := func(i int) string { return fmt.Sprintf("event %d %s", i, answered) }
	effects := make([]atomic.Int32, events)
	failed := make([]atomic.Bool, events)
	e := newEndpoint(t, config{
		TTL: window, StaleMemory: -1,
		OnStale: func(context.Context, string, time.Time) error { return idempotent.ErrStale },
	})
	server := serve(t, idemhttp.Webhook(e, idemhttp.Options{MaxWait: 30 * time.Second})(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			i, err := strconv.Atoi(r.Header.Get("Webhook-Id"))
			if err != nil {
				t.Error(err)
			}
			if i%5 == 0 && !failed[i].Swap(true) {
				w.WriteHeader(500)
				return
			}
			effects[i].Add(1)
			io.WriteString(w, answer(i))
		})))
	transport := &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	// deliver does what a producer does: again, until it is told 200.
	deliver := func(i int) error {
		for {
			r, err := http.NewRequest("POST", server.URL, strings.NewReader(payload))
			if err != nil {
				return err
			}
			r.Header.Set("Webhook-Id", strconv.Itoa(i))
			resp, err := client.Do(r)
			if err != nil {
				return err
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			switch {
			case err != nil:
				return err
			case resp.StatusCode == 200 && string(body) != answer(i):
				return fmt.Errorf("event %d was answered with %q", i, body)
			case resp.StatusCode == 200:
				return nil
			case resp.StatusCode != 500:
				return fmt.Errorf("event %d: status %d", i, resp.StatusCode)
			}
		}
	}

	before := heap()
	queue := make(chan int, mixed)
	var workers sync.WaitGroup
	for range connections {
		workers.Go(func() {
			for i := range queue {
				if err := deliver(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	began := time.Now()
	for start := 0; start < events; start += mixed {
		var batch []int
		for i := start; i < min(start+mixed, events); i++ {
			batch = append(batch, i, i)
		}
		rand.Shuffle(len(batch), func(a, b int) { batch[a], batch[b] = batch[b], batch[a] })
		for _, i := range batch {
			queue <- i
		}
	}
	close(queue)
	workers.Wait()
	t.Logf("%d deliveries of %d events in %v", 2*events, events, time.Since(began).Round(time.Millisecond))

	for i := range effects {
		if n := effects[i].Load(); n != 1 {
			t.Errorf("event %d ran %d times", i, n)
		}
	}
	stats := e.Stats()
	require.EqualValues(t, events, stats.Executed)
	require.EqualValues(t, events, stats.Replayed+stats.Shared, "each duplicate was answered from the first")
	eventually(t, "the window ends by itself", func() bool { return e.Stats().Retained == 0 })
	transport.CloseIdleConnections()
	require.Less(t, heap()-before, int64(4<<20), "memory is back where it was")
	runtime.KeepAlive(e)
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what a pool held goes with the second
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
