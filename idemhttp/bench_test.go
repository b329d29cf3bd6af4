package idemhttp_test

import (
	"bytes"
	"io"
	"net/http"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemhttp"
)

// A pair is a handler bare and behind Webhook, on one server over loopback.
type pair struct {
	client *http.Client
	url    string
	body   []byte
}

func newPair(t testing.TB) pair {
	// A real delivery is some ten kilobytes long; its answer is short.
	body := bytes.Repeat([]byte(`{"action":"opened","number":2},`), 330)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusAccepted)
		io.WriteString(w, `{"status":"accepted"}`)
	})
	mux := http.NewServeMux()
	mux.Handle("/bare", h)
	mux.Handle("/kept", idemhttp.Webhook(newEndpoint(t, config{}), idemhttp.Options{})(h))
	server := serve(t, mux)
	p := pair{server.Client(), server.URL, body}
	p.post(t, "/kept")
	return p
}

func (p pair) post(t testing.TB, path string) {
	r, err := http.NewRequest("POST", p.url+path, bytes.NewReader(p.body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
	resp, err := p.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		t.Fatalf("status %d", resp.StatusCode)
	}
}

// BenchmarkReplay takes turns between the bare handler and a replay, so that
// the machine's moods fall on both alike, and compares medians. One op is one
// request of each.
func BenchmarkReplay(b *testing.B) {
	p := newPair(b)
	p.post(b, "/bare")
	var spent [2][]time.Duration
	for i := 0; b.Loop(); i++ {
		for j := range 2 {
			side := (i + j) % 2
			began := time.Now()
			p.post(b, [2]string{"/bare", "/kept"}[side])
			spent[side] = append(spent[side], time.Since(began))
		}
	}
	bare, replay := median(spent[0]), median(spent[1])
	b.ReportMetric(float64(bare.Nanoseconds()), "bare-ns")
	b.ReportMetric(float64(replay.Nanoseconds()), "replay-ns")
	b.ReportMetric(float64(replay)/float64(bare), "replay/bare")
	b.ReportMetric(p.allocations(b, "/kept", 500)-p.allocations(b, "/bare", 500), "more-allocs")
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// allocations counts those of client and server together.
func (p pair) allocations(t testing.TB, path string, runs int) float64 {
	var before, after runtime.MemStats
	p.post(t, path)
	runtime.ReadMemStats(&before)
	for range runs {
		p.post(t, path)
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(runs)
}

func TestReplayAllocatesAtMostTwelveTimesMoreThanTheHandler(t *testing.T) {
	p := newPair(t)
	least := func(path string) float64 { // other goroutines allocate too; the least is ours
		n := p.allocations(t, path, 200)
		for range 4 {
			n = min(n, p.allocations(t, path, 200))
		}
		return n
	}
	require.LessOrEqual(t, least("/kept")-least("/bare"), 12.0)
}
