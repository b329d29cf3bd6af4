package idemredis_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemredis"
)

// exampleClient is a client of an embedded stand-in for Redis.
func exampleClient() (client *redis.Client, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	client = redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	return client, func() { _ = client.Close(); server.Close() }
}

func ExampleGuard_Handle() {
	client, stop := exampleClient()
	defer stop()
	guard, err := idemredis.New[string](client, idemredis.Options{Consumer: "billing"})
	if err != nil {
		panic(err)
	}
	charge := func(ctx context.Context) (string, error) {
		key, _ := idempotent.Key[string](ctx)
		return "receipt for " + key, nil
	}
	for range 2 {
		receipt, verdict, err := guard.Handle(context.Background(), idempotent.Request[string]{Key: "evt_1"}, charge)
		fmt.Println(receipt, verdict, err)
	}
	// Output:
	// receipt for evt_1 executed <nil>
	// receipt for evt_1 replayed <nil>
}

// A worker dies while its effect runs. Nobody can say whether the card was
// charged, so the key is held until somebody has looked.
func ExampleGuard_Resolve() {
	client, stop := exampleClient()
	defer stop()
	opts := idemredis.Options{Lease: 50 * time.Millisecond}
	dying := redis.NewClient(&redis.Options{Addr: client.Options().Addr})
	worker, err := idemredis.New[string](dying, opts)
	if err != nil {
		panic(err)
	}
	ctx, evt := context.Background(), idempotent.Request[string]{Key: "evt_1"}
	_, _, err = worker.Handle(ctx, evt, func(context.Context) (string, error) {
		return "charged", dying.Close() // it is not heard of again
	})
	fmt.Println("not recorded:", errors.Is(err, idemredis.ErrNotRecorded))

	guard, err := idemredis.New[string](client, opts)
	if err != nil {
		panic(err)
	}
	charge := func(context.Context) (string, error) { return "charged twice", nil }
	_, _, err = guard.Handle(ctx, evt, charge)
	fmt.Println("unknown:", errors.Is(err, idempotent.ErrOutcomeUnknown))

	resolved, err := guard.Resolve(ctx, "evt_1", "charged, says the bank")
	fmt.Println(resolved, err)
	value, verdict, err := guard.Handle(ctx, evt, charge)
	fmt.Println(value, verdict, err)
	// Output:
	// not recorded: true
	// unknown: true
	// true <nil>
	// charged, says the bank replayed <nil>
}

func ExampleGuard_tier() {
	client, stop := exampleClient()
	defer stop()
	guard, err := idemredis.New[string](client, idemredis.Options{})
	if err != nil {
		panic(err)
	}
	tier, err := idempotent.NewTier(guard, idempotent.TierOptions[string]{Memory: time.Minute})
	if err != nil {
		panic(err)
	}
	effect := func(context.Context) (string, error) { return "v", nil }
	value, verdict, _ := tier.Handle(context.Background(), idempotent.Request[string]{Key: "k"}, effect)
	fmt.Println(value, verdict)
	stop() // Redis is gone, and the result is still replayed
	value, verdict, _ = tier.Handle(context.Background(), idempotent.Request[string]{Key: "k"}, effect)
	fmt.Println(value, verdict)
	// Output:
	// v executed
	// v replayed
}
