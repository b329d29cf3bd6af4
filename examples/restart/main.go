// Restart is a service whose results survive its restart: on SIGTERM it lets the
// running effects end and saves the kept results to a file; at its start it
// takes them back, each for what is left of its window.
//
//	go build -o restart.out ./examples/restart    # go run would stand between it and the signal
//	./restart.out &                               # wait for "serving on"
//	curl -X POST localhost:8080/payments/order-1  # charges
//	kill -TERM %1; wait                           # "1 results saved"
//	./restart.out &                               # wait for "1 results restored; serving on"
//	curl -X POST localhost:8080/payments/order-1  # the same receipt, replayed
//	kill -TERM %1; wait
//
// Charges are lines in ledger.out, results are kept in results.out, both where it
// is started; delete them to begin anew.
//
// What it does not survive is a crash: results are saved only at SIGTERM (or
// SIGINT), those made since the start are gone, and a retry of such a key runs
// its effect again. Where that must not be, the effect and its record belong in
// one transaction (idemsql).
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/idempotent-go/idempotent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// service takes payments.
type service struct {
	addr, ledger, snapshot string
	grace, takes, window   time.Duration

	payments *idempotent.Endpoint[string, receipt]
}

type receipt struct {
	Key    string
	Number string
}

// run serves until ctx ends and then saves. It returns an error if it could not
// start with what was saved, or not end with everything saved.
func run(ctx context.Context, args []string, out, usage io.Writer) error {
	var s service
	flags := flag.NewFlagSet("restart", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&s.addr, "addr", "localhost:8080", "address to serve on")
	flags.StringVar(&s.ledger, "ledger", "ledger.out", "file that gets a line for each charge")
	flags.StringVar(&s.snapshot, "snapshot", "results.out", "file that the results are kept in between two runs")
	flags.DurationVar(&s.grace, "grace", 20*time.Second, "time for running effects to end after SIGTERM")
	flags.DurationVar(&s.takes, "takes", 0, "time that a charge takes")
	flags.DurationVar(&s.window, "window", 24*time.Hour, "time that a result is kept for")
	if err := flags.Parse(args); err != nil {
		return err
	}

	var err error
	s.payments, err = idempotent.New(idempotent.Options[string, receipt]{TTL: s.window})
	if err != nil {
		return err
	}
	// A snapshot that cannot be trusted is no reason to start with nothing: the
	// effects of its keys would run again. A person decides.
	taken, err := restore(s.snapshot, s.payments)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d results restored; serving on %s\n", taken, listener.Addr())
	return s.serve(ctx, listener, out)
}

func (s *service) serve(ctx context.Context, listener net.Listener, out io.Writer) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments/{key}", s.pay)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}

	grace, cancel := context.WithTimeout(context.Background(), s.grace)
	defer cancel()
	// Save also if an effect does not end in time: the others' results are not to
	// be lost for that. Only Shutdown makes sure that none is missed.
	err = errors.Join(err, server.Shutdown(grace), s.payments.Shutdown(grace))
	saved, saveErr := save(s.snapshot, s.payments.Records())
	if saveErr == nil {
		fmt.Fprintf(out, "%d results saved\n", saved)
	}
	return errors.Join(err, saveErr)
}

func (s *service) pay(w http.ResponseWriter, r *http.Request) {
	paid, verdict, err := s.payments.Do(r.Context(), r.PathValue("key"), s.charge)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Verdict", verdict.String())
	_ = json.NewEncoder(w).Encode(paid) // a client that has gone asks again
}

// charge is the effect: a line in the ledger for each time that it runs.
func (s *service) charge(ctx context.Context) (receipt, error) {
	key, _ := idempotent.Key[string](ctx)
	ledger, err := os.OpenFile(s.ledger, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return receipt{}, err
	}
	defer ledger.Close()
	if _, err := fmt.Fprintf(ledger, "charged %q\n", key); err != nil {
		return receipt{}, err
	}
	time.Sleep(s.takes)
	return receipt{Key: key, Number: rand.Text()}, ledger.Close()
}
