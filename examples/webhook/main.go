// Webhook is a receiver of GitHub's webhooks and a producer that delivers to it
// as producers do: at least once, out of order, in parallel, again after a 500,
// and to a client that hangs up. It prints how often each event was delivered
// and how often its effect ran.
//
//	go run ./examples/webhook
//	go run ./examples/webhook -unguarded     # what happens without the library
//	go run ./examples/webhook -payloads DIR  # other payloads: a folder of JSON files
//	go run ./examples/webhook -serve :8080   # goes on serving, for curl
//
// It exits with 1 when an effect ran twice or never.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"
)

//go:embed testdata/*.json
var testdata embed.FS

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

type settings struct {
	serve, payloads string
	window          time.Duration
	deliveries      int
	seed            uint64
	unguarded       bool
}

// run is the program: 0 for PASS, 1 for FAIL, 2 for what kept it from running.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	var s settings
	flags := flag.NewFlagSet("webhook", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.StringVar(&s.serve, "serve", "", "listen on this `address` and go on serving after the run")
	flags.StringVar(&s.payloads, "payloads", "", "deliver the JSON files of this `folder`: EVENT.json or EVENT.ACTION.json, or index.json as in @octokit/webhooks-examples")
	flags.DurationVar(&s.window, "window", 0, "how long a delivery is remembered; 0 means 3s, and 24h with -serve")
	flags.IntVar(&s.deliveries, "deliveries", 5, "times that each event is delivered in the storm")
	flags.Uint64Var(&s.seed, "seed", uint64(time.Now().UnixNano()), "seed of the random choices; the interleaving is not seeded")
	flags.BoolVar(&s.unguarded, "unguarded", false, "leave the middleware out, to see what it is for")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	passed, err := s.run(ctx, out)
	switch {
	case err != nil:
		fmt.Fprintln(errs, err)
		return 2
	case !passed:
		return 1
	}
	return 0
}

func (s settings) run(ctx context.Context, out io.Writer) (passed bool, err error) {
	if s.deliveries < 1 {
		return false, fmt.Errorf("webhook: -deliveries is %d, want 1 or more", s.deliveries)
	}
	if s.window == 0 {
		s.window = 3 * time.Second
		if s.serve != "" {
			s.window = 24 * time.Hour
		}
	}
	folder, err := s.folder()
	if err != nil {
		return false, err
	}
	random := rand.New(rand.NewPCG(s.seed, 0))
	events, err := load(folder, random)
	if err != nil {
		return false, err
	}
	rec, err := newReceiver(s.window, s.unguarded)
	if err != nil {
		return false, err
	}
	address := s.serve
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return false, fmt.Errorf("webhook: %w", err)
	}
	server := &http.Server{Handler: rec, ReadTimeout: 10 * time.Second}
	go server.Serve(listener)
	defer server.Close()

	fmt.Fprintf(out, "%d events to http://%s/webhook, seed %d\n\n", len(events), listener.Addr(), s.seed)
	p := &producer{address: listener.Addr().String(), random: random, receiver: rec}
	if err := p.run(ctx, events, s); err != nil {
		return false, err
	}
	passed = report(out, events, p, rec)
	if s.serve != "" {
		fmt.Fprintf(out, "\nserving; send one twice:\n  curl -i -H 'X-GitHub-Delivery: 1' -H 'X-GitHub-Event: ping' -d '{}' http://%s/webhook\n", listener.Addr())
		<-ctx.Done()
	}
	return passed, nil
}

func (s settings) folder() (fs.FS, error) {
	if s.payloads != "" {
		return os.DirFS(s.payloads), nil
	}
	return fs.Sub(testdata, "testdata")
}
