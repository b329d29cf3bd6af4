package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sequence"
)

func newGuard(t testing.TB, opts sequence.Options) *sequence.Guard[string] {
	g, err := sequence.New[string](opts)
	require.NoError(t, err)
	return g
}

var (
	errFailed = errors.New("disk full")
	succeed   = func(context.Context) error { return nil }
	fail      = func(context.Context) error { return errFailed }
)

// apply applies an event that must reach its turn, and says whether it was applied.
func apply(t testing.TB, g *sequence.Guard[string], resource string, seq uint64) bool {
	t.Helper()
	ran := false
	applied, err := g.Apply(t.Context(), resource, seq, func(context.Context) error { ran = true; return nil })
	require.NoError(t, err)
	require.Equal(t, ran, applied)
	return applied
}

func TestApply(t *testing.T) {
	t.Run("drops what is not newer than the last applied", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		for _, c := range []struct {
			seq  uint64
			want bool
		}{{5, true}, {4, false}, {5, false}, {0, false}, {6, true}, {9, true}, {7, false}, {math.MaxUint64, true}, {math.MaxUint64, false}} {
			require.Equal(t, c.want, apply(t, g, "r", c.seq), "%d", c.seq)
		}
		require.Equal(t, sequence.Stats{Applied: 4, Dropped: 5, Resources: 1}, g.Stats())
	})
	t.Run("applies a first event of number 0", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		require.True(t, apply(t, g, "r", 0))
		require.False(t, apply(t, g, "r", 0))
	})
	t.Run("keeps resources apart", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		require.True(t, apply(t, g, "a", 5))
		require.True(t, apply(t, g, "b", 1))
	})
	t.Run("does not advance when the effect fails, so an older event is not blocked", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		require.True(t, apply(t, g, "r", 1))
		applied, err := g.Apply(t.Context(), "r", 3, fail)
		require.False(t, applied)
		require.Equal(t, errFailed, err, "as it was")
		last, ok := g.Last("r")
		require.True(t, ok)
		require.EqualValues(t, 1, last)
		require.True(t, apply(t, g, "r", 2))
		require.True(t, apply(t, g, "r", 3), "and the failed one may come again")
		require.EqualValues(t, 1, g.Stats().Failed)
	})
	for name, mark := range map[string]func(error) error{"Permanent": idempotent.Permanent, "Unknown": idempotent.Unknown} {
		t.Run("hands "+name+" on and keeps nothing of it", func(t *testing.T) {
			g := newGuard(t, sequence.Options{})
			_, err := g.Apply(t.Context(), "r", 1, func(context.Context) error { return mark(errFailed) })
			require.ErrorIs(t, err, errFailed)
			require.True(t, apply(t, g, "r", 1))
		})
	}
	t.Run("lets a panic through, does not advance, and frees the resource", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		require.PanicsWithValue(t, "boom", func() {
			g.Apply(t.Context(), "r", 2, func(context.Context) error { panic("boom") })
		})
		require.True(t, apply(t, g, "r", 1))
		require.EqualValues(t, 1, g.Stats().Failed)
	})
	t.Run("does not advance on Goexit, and frees the resource", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		var call sync.WaitGroup
		call.Go(func() {
			g.Apply(context.Background(), "r", 2, func(context.Context) error { runtime.Goexit(); return nil })
		})
		call.Wait()
		require.True(t, apply(t, g, "r", 1))
		require.EqualValues(t, 1, g.Stats().Failed)
	})
	t.Run("refuses the zero resource", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		applied, err := g.Apply(t.Context(), "", 1, succeed)
		require.False(t, applied)
		require.ErrorIs(t, err, idempotent.ErrInvalidKey)
		require.ErrorContains(t, err, `sequence: `)
		require.Zero(t, g.Stats())
	})
	t.Run("refuses a resource that does not equal itself", func(t *testing.T) {
		g, err := sequence.New[float64](sequence.Options{})
		require.NoError(t, err)
		_, err = g.Apply(t.Context(), math.NaN(), 1, succeed)
		require.ErrorIs(t, err, idempotent.ErrInvalidKey)
	})
	t.Run("runs nothing on a dead ctx", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := g.Apply(ctx, "r", 1, succeed)
		require.ErrorIs(t, err, context.Canceled)
		require.Contains(t, err.Error(), `key "r"`, "the resource is named as it is")
		require.Zero(t, g.Stats())
	})
}

func TestApplyWaits(t *testing.T) {
	t.Run("calls for one resource run one after another, in the order in which they came", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, sequence.Options{})
			var order []uint64
			var running atomic.Int32
			var calls sync.WaitGroup
			for _, seq := range []uint64{1, 3, 2, 4, 4, 6, 5} {
				calls.Go(func() {
					g.Apply(t.Context(), "r", seq, func(context.Context) error {
						if running.Add(1) != 1 {
							t.Error("two at once")
						}
						time.Sleep(time.Second)
						order = append(order, seq)
						running.Add(-1)
						return nil
					})
				})
				synctest.Wait()
			}
			calls.Wait()
			require.Equal(t, []uint64{1, 3, 4, 6}, order)
			require.Equal(t, sequence.Stats{Applied: 4, Dropped: 3, Resources: 1}, g.Stats())
		})
	})
	t.Run("different resources run side by side", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, sequence.Options{})
			began := time.Now()
			var calls sync.WaitGroup
			for i := range 100 {
				calls.Go(func() {
					g.Apply(t.Context(), fmt.Sprint(i), 1, func(context.Context) error { time.Sleep(time.Second); return nil })
				})
			}
			calls.Wait()
			require.Equal(t, time.Second, time.Since(began))
		})
	})
	t.Run("a caller leaves its place when its ctx ends, and disturbs nobody", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, sequence.Options{})
			var calls sync.WaitGroup
			calls.Go(func() {
				g.Apply(t.Context(), "r", 1, func(context.Context) error { time.Sleep(time.Hour); return nil })
			})
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			began := time.Now()
			calls.Go(func() {
				if _, err := g.Apply(t.Context(), "r", 3, succeed); err != nil {
					t.Error(err)
				}
			})
			_, err := g.Apply(ctx, "r", 2, succeed)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, 10*time.Millisecond, time.Since(began))
			calls.Wait()
			require.Equal(t, sequence.Stats{Applied: 2, Resources: 1}, g.Stats())
		})
	})
	t.Run("a call inside an effect of its own resource is refused", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		_, err := g.Apply(t.Context(), "r", 1, func(ctx context.Context) error {
			_, err := g.Apply(ctx, "r", 2, succeed)
			return err
		})
		require.ErrorIs(t, err, idempotent.ErrDeadlock)
	})
	t.Run("a call inside an effect of another resource is not", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		applied, err := g.Apply(t.Context(), "a", 1, func(ctx context.Context) error {
			_, err := g.Apply(ctx, "b", 1, succeed)
			return err
		})
		require.NoError(t, err)
		require.True(t, applied)
	})
	t.Run("a circle through an endpoint is refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, sequence.Options{})
			e, err := idempotent.New(idempotent.Options[string, int]{})
			require.NoError(t, err)
			var circle error
			_, _, err = e.Do(t.Context(), "evt", func(ctx context.Context) (int, error) {
				_, err := g.Apply(ctx, "r", 1, func(ctx context.Context) error {
					_, _, circle = e.Do(ctx, "evt", func(context.Context) (int, error) { return 0, nil })
					return nil
				})
				return 0, err
			})
			require.NoError(t, err)
			require.ErrorIs(t, circle, idempotent.ErrDeadlock)
		})
	})
}

func TestTheEffectsContext(t *testing.T) {
	type value struct{}
	t.Run("carries the caller's values, and the event's key rather than the resource", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		e, err := idempotent.New(idempotent.Options[string, int]{})
		require.NoError(t, err)
		_, _, err = e.Do(context.WithValue(t.Context(), value{}, 7), "evt_1", func(ctx context.Context) (int, error) {
			_, err := g.Apply(ctx, "resource", 1, func(ctx context.Context) error {
				key, ok := idempotent.Key[string](ctx)
				require.True(t, ok)
				require.Equal(t, "evt_1", key)
				require.Equal(t, 7, ctx.Value(value{}))
				return nil
			})
			return 0, err
		})
		require.NoError(t, err)
	})
	t.Run("has no key where there is no event", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		_, err := g.Apply(t.Context(), "resource", 1, func(ctx context.Context) error {
			_, ok := idempotent.Key[string](ctx)
			require.False(t, ok)
			return nil
		})
		require.NoError(t, err)
	})
	t.Run("has the caller's deadline and cancellation", func(t *testing.T) {
		g := newGuard(t, sequence.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		_, err := g.Apply(ctx, "r", 1, func(inner context.Context) error {
			want, _ := ctx.Deadline()
			got, ok := inner.Deadline()
			require.True(t, ok)
			require.Equal(t, want, got)
			require.NoError(t, inner.Err())
			cancel()
			<-inner.Done()
			return inner.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
	})
}

// An event that is dropped leaves no number behind that is being forgotten.
func TestForgetBesideADroppedEvent(t *testing.T) {
	nothing := func(context.Context) error { return nil }
	g := newGuard(t, sequence.Options{})
	for range 20_000 {
		_, err := g.Apply(t.Context(), "r", 5, nothing)
		require.NoError(t, err)
		var both sync.WaitGroup
		var applied, had bool
		both.Go(func() { applied, _ = g.Apply(t.Context(), "r", 3, nothing) })
		both.Go(func() { had = g.Forget("r") })
		both.Wait()
		if last, ok := g.Last("r"); !applied && had && ok {
			t.Fatalf("%d is back", last)
		}
		g.Forget("r")
	}
}
