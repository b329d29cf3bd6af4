package idempotent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/idempotent-go/idempotent"
)

// charge stands for the side effect: it must happen once for each order.
func charge(ctx context.Context) (string, error) {
	order, _ := idempotent.Key[string](ctx)
	return "receipt of " + order, nil
}

// The quick start: a webhook that is delivered twice charges once.
func Example() {
	endpoint, err := idempotent.New(idempotent.Options[string, string]{TTL: 72 * time.Hour})
	if err != nil {
		panic(err)
	}
	for range 2 {
		receipt, verdict, err := endpoint.Do(context.Background(), "order-7", charge)
		fmt.Println(receipt, verdict, err)
	}
	// Output:
	// receipt of order-7 executed <nil>
	// receipt of order-7 replayed <nil>
}

func ExampleEndpoint_Do() {
	endpoint, _ := idempotent.New(idempotent.Options[string, int]{})
	sent := 0
	send := func(context.Context) (int, error) {
		sent++
		return sent, nil
	}
	for _, event := range []string{"evt_1", "evt_2", "evt_1"} {
		n, verdict, err := endpoint.Do(context.Background(), event, send)
		fmt.Println(event, n, verdict, err)
	}
	// Output:
	// evt_1 1 executed <nil>
	// evt_2 2 executed <nil>
	// evt_1 1 replayed <nil>
}

// A failure leaves nothing behind: the retry runs.
func ExampleEndpoint_Do_retry() {
	endpoint, _ := idempotent.New(idempotent.Options[string, string]{})
	deliveries := 0
	effect := func(context.Context) (string, error) {
		deliveries++
		if deliveries == 1 {
			return "", errors.New("database is restarting")
		}
		return "done", nil
	}
	for range 3 {
		value, verdict, err := endpoint.Do(context.Background(), "evt_1", effect)
		fmt.Printf("%q %v %v\n", value, verdict, err)
	}
	// Output:
	// "" executed database is restarting
	// "done" executed <nil>
	// "done" replayed <nil>
}

// A duplicate that comes while the first call is running waits for it on its own
// context, or with NoWait is refused.
func ExampleRequest_noWait() {
	endpoint, _ := idempotent.New(idempotent.Options[string, string]{})
	ctx := context.Background()
	_, _, _ = endpoint.Do(ctx, "evt_1", func(context.Context) (string, error) {
		// Another delivery of the same event comes in, as a request of its own.
		_, verdict, err := endpoint.Handle(ctx, idempotent.Request[string]{Key: "evt_1", NoWait: true}, charge)
		fmt.Println(verdict, errors.Is(err, idempotent.ErrInFlight))
		return "done", nil
	})
	// Output: refused true
}

// A failure that no retry will mend is the key's result.
func ExamplePermanent() {
	endpoint, _ := idempotent.New(idempotent.Options[string, string]{FailureTTL: time.Hour})
	declined := errors.New("card declined")
	effect := func(context.Context) (string, error) { return "", idempotent.Permanent(declined) }
	for range 2 {
		_, verdict, err := endpoint.Do(context.Background(), "order-7", effect)
		fmt.Println(verdict, err, errors.Is(err, declined))
	}
	// Output:
	// executed card declined true
	// replayed card declined true
}

// Where nobody can say whether it happened the key is held, until somebody finds
// out.
func ExampleUnknown() {
	endpoint, _ := idempotent.New(idempotent.Options[string, string]{})
	ctx := context.Background()
	pay := func(context.Context) (string, error) {
		return "", idempotent.Unknown(errors.New("no answer from the bank"))
	}
	for range 2 {
		_, verdict, err := endpoint.Do(ctx, "order-7", pay)
		fmt.Println(verdict, errors.Is(err, idempotent.ErrOutcomeUnknown))
	}

	// The bank's statement shows the payment.
	fmt.Println("resolved:", endpoint.Resolve("order-7", "payment 4711"))
	value, verdict, err := endpoint.Do(ctx, "order-7", pay)
	fmt.Println(value, verdict, err)
	// Output:
	// executed true
	// replayed true
	// resolved: true
	// payment 4711 replayed <nil>
}

// A key that comes again after its window has ended is recognised, and OnStale
// decides.
func ExampleOptions_onStale() {
	endpoint, _ := idempotent.New(idempotent.Options[string, string]{
		TTL: time.Millisecond,
		OnStale: func(_ context.Context, key string, _ time.Time) error {
			fmt.Println("a late retry of", key)
			return idempotent.ErrStale
		},
	})
	ctx := context.Background()
	_, verdict, err := endpoint.Do(ctx, "order-7", charge)
	fmt.Println(verdict, err)

	for endpoint.Stats().Retained > 0 { // until the window has ended
		time.Sleep(time.Millisecond)
	}
	_, verdict, err = endpoint.Do(ctx, "order-7", charge)
	fmt.Println(verdict, errors.Is(err, idempotent.ErrStale))
	fmt.Println("stale calls:", endpoint.Stats().Stale)
	// Output:
	// executed <nil>
	// a late retry of order-7
	// refused true
	// stale calls: 1
}

// digest is the same for all ways of writing a JSON document: members sorted,
// white space gone, numbers as they were written.
func digest(payload []byte) (string, error) {
	var document any
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	if err := decoder.Decode(&document); err != nil {
		return "", err
	}
	canonical, err := json.Marshal(document) // sorts the members of objects
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

// The endpoint compares fingerprints as they are given: what counts as the same
// payload is for the caller to say.
func ExampleRequest_fingerprint() {
	endpoint, _ := idempotent.New(idempotent.Options[string, string]{})
	for _, payload := range []string{
		`{"order": 7, "amount": "9.90"}`,
		`{"amount":"9.90","order":7}`,
		`{"amount":"99.0","order":7}`,
	} {
		fingerprint, err := digest([]byte(payload))
		if err != nil {
			fmt.Println(err)
			continue
		}
		_, verdict, err := endpoint.Handle(context.Background(), idempotent.Request[string]{Key: "order-7", Fingerprint: fingerprint}, charge)
		fmt.Println(verdict, errors.Is(err, idempotent.ErrMismatch))
	}
	// Output:
	// executed false
	// replayed false
	// refused true
}

// What was kept can be written down before the process ends and taken back
// after. Windows end when they would have.
func ExampleEndpoint_Restore() {
	ctx := context.Background()
	before, _ := idempotent.New(idempotent.Options[string, string]{TTL: time.Hour})
	_, _, _ = before.Do(ctx, "order-7", charge)
	_, _, _ = before.Do(ctx, "order-8", charge)
	_ = before.Shutdown(ctx)
	file, err := json.Marshal(maps.Collect(before.Records())) // of successes: JSON cannot hold an error
	if err != nil {
		panic(err)
	}

	var records map[string]idempotent.Record[string]
	if err := json.Unmarshal(file, &records); err != nil {
		panic(err)
	}
	after, _ := idempotent.New(idempotent.Options[string, string]{TTL: time.Hour})
	fmt.Println("taken:", after.Restore(maps.All(records)))
	value, verdict, err := after.Do(ctx, "order-7", charge)
	fmt.Println(value, verdict, err)
	// Output:
	// taken: 2
	// receipt of order-7 replayed <nil>
}

// Shutdown lets what is running finish, and starts nothing more.
func ExampleEndpoint_Shutdown() {
	endpoint, _ := idempotent.New(idempotent.Options[string, string]{})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, _, _ = endpoint.Do(ctx, "order-7", charge)

	fmt.Println(endpoint.Shutdown(ctx))
	_, verdict, err := endpoint.Do(ctx, "order-8", charge)
	fmt.Println(verdict, errors.Is(err, idempotent.ErrShutdown))
	receipt, verdict, err := endpoint.Do(ctx, "order-7", charge)
	fmt.Println(receipt, verdict, err)
	// Output:
	// <nil>
	// refused true
	// receipt of order-7 replayed <nil>
}

// Without Clone all callers are handed one and the same slice.
func ExampleOptions_clone() {
	endpoint, _ := idempotent.New(idempotent.Options[string, []string]{Clone: slices.Clone[[]string]})
	lines := func(context.Context) ([]string, error) { return []string{"3 apples", "1 pear"}, nil }
	first, _, _ := endpoint.Do(context.Background(), "order-7", lines)
	first[0] = "scribbled over"
	second, verdict, _ := endpoint.Do(context.Background(), "order-7", lines)
	fmt.Println(second[0], verdict)
	// Output: 3 apples replayed
}

// A caller who may not wait leaves; the effect goes on, and the retry gets its
// result.
func ExampleOptions_detach() {
	endpoint, _ := idempotent.New(idempotent.Options[string, string]{Detach: true})
	ctx, cancel := context.WithCancel(context.Background())
	release := make(chan struct{})
	_, verdict, err := endpoint.Do(ctx, "order-7", func(ctx context.Context) (string, error) {
		cancel() // the client hangs up
		<-release
		return charge(ctx)
	})
	fmt.Println(verdict, errors.Is(err, idempotent.ErrInFlight), errors.Is(err, context.Canceled))

	close(release)
	receipt, _, err := endpoint.Do(context.Background(), "order-7", charge)
	fmt.Println(receipt, err)
	// Output:
	// executed true true
	// receipt of order-7 <nil>
}

// In an effect its key names the operation to those whom it calls.
func ExampleKey() {
	endpoint, _ := idempotent.New(idempotent.Options[string, string]{})
	_, _, _ = endpoint.Do(context.Background(), "order-7", func(ctx context.Context) (string, error) {
		key, ok := idempotent.Key[string](ctx)
		fmt.Println("Idempotency-Key:", key, ok)
		return "", nil
	})
	// Output: Idempotency-Key: order-7 true
}
