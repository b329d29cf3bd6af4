package idemprom_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemprom"
)

func ExampleNew() {
	payments, err := idempotent.New(idempotent.Options[string, int]{})
	if err != nil {
		panic(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(idemprom.New("payments", payments))

	for range 3 {
		_, _, _ = payments.Do(context.Background(), "order-1", func(context.Context) (int, error) { return 4200, nil })
	}
	text, err := testutil.CollectAndFormat(registry, expfmt.TypeTextPlain, "idempotent_calls_total")
	if err != nil {
		panic(err)
	}
	fmt.Print(string(text))
	// Output:
	// # HELP idempotent_calls_total Calls that have ended, by what became of them.
	// # TYPE idempotent_calls_total counter
	// idempotent_calls_total{endpoint="payments",outcome="executed"} 1
	// idempotent_calls_total{endpoint="payments",outcome="failed"} 0
	// idempotent_calls_total{endpoint="payments",outcome="refused"} 0
	// idempotent_calls_total{endpoint="payments",outcome="replayed"} 2
	// idempotent_calls_total{endpoint="payments",outcome="shared"} 0
}
