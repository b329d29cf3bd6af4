package bench

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPromises(t *testing.T) {
	for _, p := range Peers() {
		if p.Floor {
			continue
		}
		t.Run(p.Name+" keeps its promises and makes no fewer", func(t *testing.T) {
			t.Parallel()
			o := Observe(p, 5_000)
			want := p.Promises
			if !want.Once {
				t.Logf("%d of %d keys ran twice", o.Doubles, o.WindowKeys)
				want.Once = o.Once // a race that is not always lost
			}
			require.Equal(t, want, o.Promises, "%+v", o)
		})
	}
}

// Each workload counts on these: a peer that ran an effect again, or handed out
// another key's value, would be measured at something else.
func TestEveryPeerReplays(t *testing.T) {
	config := Config{TTL: time.Hour, Keys: 1000}
	for _, p := range Peers() {
		t.Run(p.Name+": string keys", func(t *testing.T) { replays(t, p.Strings(config), MakeKeys(1000).Own) })
		t.Run(p.Name+": int keys", func(t *testing.T) { replays(t, p.Ints(config), func(i int) int { return i + 1 }) })
		t.Run(p.Name+": fills", func(t *testing.T) {
			r := p.Strings(config)
			defer r.Close()
			f, ok := r.(Filler[string, Value])
			if !ok {
				return // its windows are all of one length
			}
			keys := MakeKeys(100)
			f.Fill(time.Now().Add(time.Hour), 100, keys.Own, func(i int) Value { return Value{Receipt: int64(i)} })
			for i := range 100 {
				value, err := r.Do(context.Background(), keys.At(i), func(context.Context) (Value, error) { return Value{Receipt: -1}, nil })
				require.NoError(t, err)
				require.Equal(t, Value{Receipt: int64(i)}, value)
			}
		})
	}
}

func replays[K comparable](t *testing.T, r Runner[K, Value], key func(int) K) {
	defer r.Close()
	call := func(i int) {
		want := Value{Receipt: int64(i), Cents: 1}
		require.Eventually(t, func() bool { // ristretto keeps a result some time after the call
			runs := 0
			value, err := r.Do(context.Background(), key(i), func(context.Context) (Value, error) { runs++; return want, nil })
			require.NoError(t, err)
			require.Equal(t, want, value)
			return runs == 0
		}, 5*time.Second, time.Microsecond)
	}
	for range 2 {
		for i := range 1000 {
			call(i)
		}
	}
}
