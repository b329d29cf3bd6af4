package sequence_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/sequence"
)

// FuzzApply compares with a model: each byte is an event of one of four
// resources; some fail.
func FuzzApply(f *testing.F) {
	f.Add([]byte{0, 1, 2, 255, 128, 7, 7, 64, 3})
	f.Fuzz(func(t *testing.T, events []byte) {
		g := newGuard(t, sequence.Options{})
		last := map[string]uint64{}
		for _, event := range events {
			resource, seq, fails := fmt.Sprint(event>>6), uint64(event>>1&31), event&1 == 1
			effect := succeed
			if fails {
				effect = fail
			}
			applied, err := g.Apply(t.Context(), resource, seq, effect)
			was, known := last[resource]
			newer := !known || seq > was
			require.Equal(t, newer && !fails, applied)
			require.Equal(t, newer && fails, err != nil)
			if applied {
				last[resource] = seq
			}
			got, ok := g.Last(resource)
			want, known := last[resource]
			require.Equal(t, known, ok)
			require.Equal(t, want, got)
		}
	})
}

// The newest event must be the one that is left, whatever the order and the
// failures, if each is delivered until it is not refused.
func TestStormLeavesTheNewestState(t *testing.T) {
	const resources, events = 20, 100
	g := newGuard(t, sequence.Options{})
	var state [resources]uint64
	var calls sync.WaitGroup
	for r := range resources {
		for seq := range uint64(events) {
			calls.Go(func() {
				attempts := 0
				for {
					_, err := g.Apply(t.Context(), fmt.Sprint(r+1), seq, func(context.Context) error {
						if attempts++; seq%3 == 0 && attempts == 1 {
							return errFailed
						}
						if state[r] > seq {
							t.Errorf("%d after %d", seq, state[r])
						}
						state[r] = seq
						return nil
					})
					if err == nil {
						return
					}
				}
			})
		}
	}
	calls.Wait()
	for r := range state {
		require.EqualValues(t, events-1, state[r])
	}
	stats := g.Stats()
	require.EqualValues(t, resources*events, stats.Applied+stats.Dropped)
}

func ExampleGuard() {
	guard, err := sequence.New[string](sequence.Options{TTL: 72 * time.Hour, Capacity: 100_000})
	if err != nil {
		panic(err)
	}
	state := ""
	update := func(version uint64, to string) {
		applied, err := guard.Apply(context.Background(), "invoice_7", version, func(context.Context) error {
			state = to
			return nil
		})
		fmt.Println(version, applied, err)
	}
	update(2, "paid")
	update(1, "open") // was delayed on its way
	fmt.Println(state)
	// Output:
	// 2 true <nil>
	// 1 false <nil>
	// paid
}
