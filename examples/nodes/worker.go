package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemredis"
)

// lease is short, so that the example is. A real one outlasts a pause of its
// worker.
const lease = 500 * time.Millisecond

// chargesOf names the set of charges of one delivery's card: the bank's books.
func chargesOf(mode, delivery string) string { return "bank:" + mode + ":" + delivery }

// runsOf names the counter of the effect's runs for one delivery.
func runsOf(mode, delivery string) string { return "runs:" + mode + ":" + delivery }

// heldOf names the set of deliveries that some worker was told are unknown.
func heldOf(mode string) string { return "held:" + mode }

// work goes through all deliveries, as each of several consumers of one queue
// does that delivers at least once.
func work(ctx context.Context) error {
	mode := os.Getenv("NODES_MODE")
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("NODES_REDIS")})
	defer client.Close()
	opts := idemredis.Options{Consumer: mode, Lease: lease}
	if mode != "hold" {
		opts.OnLostLease = idemredis.RunAgain
	}
	guard, err := idemredis.New[string](client, opts)
	if err != nil {
		return err
	}
	for i := range deliveries {
		id := delivery(i)
		_, _, err := guard.Handle(ctx, idempotent.Request[string]{Key: id}, func(ctx context.Context) (string, error) {
			return charge(ctx, client, mode, id)
		})
		if errors.Is(err, idempotent.ErrOutcomeUnknown) {
			err = client.SAdd(ctx, heldOf(mode), id).Err()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// charge is the effect. The bank books it at once and takes a while to answer.
func charge(ctx context.Context, client *redis.Client, mode, id string) (string, error) {
	if err := client.Incr(ctx, runsOf(mode, id)).Err(); err != nil {
		return "", err
	}
	number := fmt.Sprintf("charge %d of worker %d", time.Now().UnixNano(), os.Getpid())
	if mode == "run again, keyed" {
		number = "charge for " + id // the bank knows a repeated charge by the key
	}
	if err := client.SAdd(ctx, chargesOf(mode, id), number).Err(); err != nil {
		return "", err
	}
	fmt.Println("charged", id)
	select {
	case <-time.After(100 * time.Millisecond):
		return number, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}
