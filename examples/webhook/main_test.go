package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func program(args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(context.Background(), args, &o, &e)
	return code, o.String(), e.String()
}

// column returns the numbers of a column, counted from the right.
func column(t *testing.T, out string, fromRight int) (numbers []int) {
	for line := range strings.Lines(out) {
		if !regexp.MustCompile(`^([0-9a-f]{8}-|body_)`).MatchString(line) {
			continue
		}
		fields := strings.Fields(strings.ReplaceAll(line, "not newer", "not-newer"))
		n, err := strconv.Atoi(fields[len(fields)-fromRight])
		require.NoError(t, err)
		numbers = append(numbers, n)
	}
	return numbers
}

func sum(numbers []int) (n int) {
	for _, m := range numbers {
		n += m
	}
	return n
}

func TestProgram(t *testing.T) {
	code, out, errs := program("-window", "500ms")
	require.Zero(t, code, out+errs)
	effects := column(t, out, 1)
	require.GreaterOrEqual(t, len(effects), 25)
	for _, n := range effects {
		require.Equal(t, 1, n, out)
	}
	require.Contains(t, out, "PASS: ")
	require.Regexp(t, `[1-9]\d* stale`, out, "the late delivery is recognised")
	require.Regexp(t, `[1-9]\d* dropped as not newer`, out)
	require.Contains(t, out, "\"not newer\": its effect ran, and left the state to a newer event")
	require.Equal(t, sum(column(t, out, 8)), sum(column(t, out, 7))+sum(column(t, out, 6))+sum(column(t, out, 5))+sum(column(t, out, 4))+sum(column(t, out, 3)),
		"each delivery has one verdict: %s", out)
}

func TestProgramSeesDoubledEffects(t *testing.T) {
	code, out, _ := program("-unguarded", "-deliveries", "2")
	require.Equal(t, 1, code)
	require.Contains(t, out, "FAIL: ")
	require.Greater(t, sum(column(t, out, 1)), len(column(t, out, 1)))
}

func TestProgramArguments(t *testing.T) {
	for want, args := range map[string][]string{
		"-deliveries is 0":          {"-deliveries", "0"},
		"the folder has no JSON":    {"-payloads", t.TempDir()},
		"not defined: -nope":        {"-nope"},
		"Options.TTL is -1s":        {"-window", "-1s"},
		"listen tcp: address nope:": {"-serve", "nope"},
	} {
		code, _, errs := program(args...)
		require.Equal(t, 2, code)
		require.Contains(t, errs, want)
	}
	t.Run("-payloads delivers the files of a folder", func(t *testing.T) {
		folder := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(folder, "push.json"), []byte(`{"ref": "main"}`), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(folder, "index.json"), []byte(`[{"name": "ping", "examples": [{"zen": 1}, {"zen": 2}]}]`), 0o600))
		code, out, errs := program("-payloads", folder, "-window", "100ms")
		require.Zero(t, code, errs)
		require.Contains(t, out, "PASS: 3 events")
		require.NoError(t, os.WriteFile(filepath.Join(folder, "bad.json"), []byte(`{`), 0o600))
		code, _, errs = program("-payloads", folder)
		require.Equal(t, 2, code)
		require.Contains(t, errs, "bad.json")
	})
	t.Run("-serve goes on serving until it is interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var out, errs bytes.Buffer
		ended := make(chan int)
		served := make(chan struct{})
		go func() {
			ended <- run(ctx, []string{"-serve", "127.0.0.1:0", "-deliveries", "1"}, writer(func(p []byte) {
				out.Write(p)
				if bytes.Contains(p, []byte("curl")) {
					close(served)
				}
			}), &errs)
		}()
		<-served
		cancel()
		require.Zero(t, <-ended, errs.String())
		require.Contains(t, out.String(), "PASS: ")
	})
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

// TestStormOfRealPayloads delivers each payload five times, shuffled, eight at
// once, with a third of the first attempts failing. WEBHOOK_PAYLOADS names a
// folder with others, such as the whole of @octokit/webhooks-examples.
func TestStormOfRealPayloads(t *testing.T) {
	s := settings{payloads: os.Getenv("WEBHOOK_PAYLOADS"), deliveries: 5}
	folder, err := s.folder()
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	events, err := load(folder, random)
	require.NoError(t, err)
	rec, err := newReceiver(time.Hour, false)
	require.NoError(t, err)
	server := httptest.NewServer(rec)
	defer server.Close()
	p := &producer{address: server.Listener.Addr().String(), random: random, receiver: rec, deliveries: map[*event]int{}}
	require.NoError(t, p.storm(t.Context(), events, s.deliveries))
	failed := 0
	for _, e := range events {
		c := rec.counts[e.id]
		require.NotNil(t, c)
		require.Equal(t, 1, c.effects, "%s %s", e.name, e.id)
		require.Equal(t, s.deliveries+c.failed, p.deliveries[e])
		failed += c.failed
	}
	require.Positive(t, failed)
	require.EqualValues(t, len(events), rec.endpoint.Stats().Executed)
	t.Logf("%d events, %d of which failed first", len(events), failed)
}

func TestSampleIsAsLargeAsPromised(t *testing.T) {
	names, err := fs.Glob(testdata, "testdata/*.json")
	require.NoError(t, err)
	kinds := map[string]bool{}
	for _, name := range names {
		kind, _, _ := strings.Cut(filepath.Base(name), ".")
		kinds[kind] = true
	}
	require.GreaterOrEqual(t, len(kinds), 25, fmt.Sprint(kinds))
}
