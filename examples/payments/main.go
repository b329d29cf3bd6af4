// Payments charges orders through two services, of which the first is killed
// at the worst moments: before it has called the second, while the second is
// at work, and after the second has charged but before the first has recorded
// it. The first (the gateway) is guarded by idemhttp.IdempotencyKey and keeps
// its results in memory, so a restart loses them; it calls the second (the
// bank) through idemhttp.Transport, which sends a key made from its client's.
// The bank keeps by key, so no order is charged twice.
//
//	go run ./examples/payments
//	go run ./examples/payments -unkeyed   # without the outbound key
//
// The gateway is a process of its own and is really killed. It exits with 1
// when an order was charged twice or never.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

type settings struct {
	orders  int
	unkeyed bool
	gateway string // the bank's URL, in the gateway's process
}

// run is the program: 0 for PASS, 1 for FAIL, 2 for what kept it from running.
func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	var s settings
	flags := flag.NewFlagSet("payments", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.IntVar(&s.orders, "orders", 12, "orders to charge")
	flags.BoolVar(&s.unkeyed, "unkeyed", false, "call the bank without a key, to see what the key is for")
	flags.StringVar(&s.gateway, "gateway", "", "be the gateway before the bank at this `URL`; the program starts itself so")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	passed, err := true, error(nil)
	switch {
	case s.gateway != "":
		err = serveGateway(s, in, out)
	case s.orders < 1:
		err = fmt.Errorf("payments: -orders is %d, want 1 or more", s.orders)
	default:
		passed, err = charge(ctx, s, out)
	}
	switch {
	case err != nil:
		fmt.Fprintln(errs, err)
		return 2
	case !passed:
		return 1
	}
	return 0
}
