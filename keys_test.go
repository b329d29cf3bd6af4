package idempotent_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// refusesKey checks that a key is never claimed, known or restored.
func refusesKey[K comparable](t *testing.T, key K) {
	t.Helper()
	e := openFor(t, idempotent.Options[K, string]{})
	for range 2 {
		_, verdict, err := e.Do(bg, key, forbidden(t))
		require.ErrorIs(t, err, idempotent.ErrInvalidKey)
		require.Equal(t, refused, verdict)
	}
	require.False(t, e.Forget(key))
	require.False(t, e.Resolve(key, "v"))
	_, held := e.Lookup(key)
	require.False(t, held)
	require.Zero(t, e.Restore(func(yield func(K, idempotent.Record[string]) bool) {
		yield(key, idempotent.Record[string]{Value: "v"})
	}))
	require.Zero(t, e.Stats().Retained)
	addsUp(t, e, 2)
}

func takesKey[K comparable](t *testing.T, key K) {
	t.Helper()
	e := openFor(t, idempotent.Options[K, string]{})
	gives(t, "v", executed)(e.Do(bg, key, returns("v", nil)))
	gives(t, "v", replayed)(e.Do(bg, key, forbidden(t)))
	require.True(t, e.Forget(key))
}

func TestKeys(t *testing.T) {
	type pair struct {
		name   string
		amount float64
	}
	nan := math.NaN()

	t.Run("the zero key is refused, of every type", func(t *testing.T) {
		refusesKey(t, "")
		refusesKey(t, 0)
		refusesKey(t, 0.0)
		refusesKey(t, math.Copysign(0, -1))
		refusesKey(t, false)
		refusesKey(t, pair{})
		refusesKey(t, [2]int{})
		refusesKey(t, (*int)(nil))
		refusesKey(t, any(nil))
		refusesKey(t, (error)(nil))
	})

	t.Run("a key that does not equal itself is refused, wherever the NaN is", func(t *testing.T) {
		refusesKey(t, nan)
		refusesKey(t, float32(nan))
		refusesKey(t, complex(1, nan))
		refusesKey(t, pair{"a", nan})
		refusesKey(t, [2]float64{1, nan})
		refusesKey(t, [1]pair{{"a", nan}})
		refusesKey(t, any(nan))
		refusesKey(t, any(pair{"a", nan}))
		refusesKey(t, struct{ v any }{nan})
	})

	t.Run("any other key is taken", func(t *testing.T) {
		takesKey(t, "k")
		takesKey(t, -1)
		takesKey(t, math.Inf(1))
		takesKey(t, pair{"a", 1})
		takesKey(t, [2]int{0, 1})
		takesKey(t, new(int))
		takesKey(t, any("k"))
		takesKey(t, any(pair{"a", 1}))
		takesKey(t, struct{ v any }{7})
	})

	t.Run("keys of different dynamic types are different keys", func(t *testing.T) {
		e := openFor(t, idempotent.Options[any, string]{})
		gives(t, "int", executed)(e.Do(bg, 1, returns("int", nil)))
		gives(t, "int64", executed)(e.Do(bg, int64(1), returns("int64", nil)))
		gives(t, "int", replayed)(e.Do(bg, 1, forbidden(t)))
	})

	promise(t, "a key that cannot be hashed panics as a map would, and leaves the endpoint usable", func(t *testing.T) {
		e := openFor(t, idempotent.Options[any, string]{Capacity: 1})
		unhashable := []any{[]int{1}, map[string]int{}, func() {}, struct{ v any }{[]int{1}}}
		for _, key := range unhashable {
			for _, use := range []func(){
				func() { e.Do(bg, key, forbidden(t)) },
				func() { e.Handle(bg, idempotent.Request[any]{Key: key, TTL: -1}, forbidden(t)) },
				func() { e.Forget(key) },
				func() { e.Lookup(key) },
				func() { e.Resolve(key, "v") },
				func() {
					e.Restore(func(yield func(any, idempotent.Record[string]) bool) { yield(key, idempotent.Record[string]{}) })
				},
			} {
				require.Panics(t, use)
			}
		}
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		addsUp(t, e, 2)
	})

	t.Run("the refusal names the key, and cannot forge a log line", func(t *testing.T) {
		e := openFor(t, idempotent.Options[pair, string]{})
		_, _, err := e.Do(bg, pair{"a\nb", nan}, forbidden(t))
		require.ErrorContains(t, err, `"a\nb"`)
		require.NotContains(t, err.Error(), "\n")
	})
}

func TestRequestTTL(t *testing.T) {
	promise(t, "negative is refused, and names the field and the value", func(t *testing.T) {
		e := open(t, options{})
		_, verdict, err := e.Handle(bg, request{Key: "k", TTL: -time.Second}, forbidden(t))
		require.Equal(t, refused, verdict)
		require.ErrorIs(t, err, idempotent.ErrInvalidTTL)
		require.ErrorContains(t, err, "TTL")
		require.ErrorContains(t, err, "-1s")
		gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
		fails(t, refused, idempotent.ErrInvalidTTL)(e.Handle(bg, request{Key: "k", TTL: -1}, forbidden(t)))
		addsUp(t, e, 3)
	})

	promise(t, "of a waiter that takes over is its own", func(t *testing.T) {
		e := open(t, options{})
		leader := startRequest(e, bg, request{Key: "k", TTL: time.Minute}, after(time.Second, returns("", errBoom)))
		heir := startRequest(e, bg, request{Key: "k", TTL: time.Second}, returns("v", nil))
		<-leader.done
		gives(t, "v", executed)(heir.end(t))
		time.Sleep(time.Second - 1)
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		time.Sleep(time.Nanosecond)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
	})
}

func TestOptions(t *testing.T) {
	t.Run("negative values are refused, with the field and the value", func(t *testing.T) {
		for _, c := range []struct {
			field, value string
			opts         options
			isTTL        bool
		}{
			{"TTL", "-1ns", options{TTL: -1}, true},
			{"TTL", "-2562047h47m16.854775808s", options{TTL: math.MinInt64}, true},
			{"FailureTTL", "-1s", options{FailureTTL: -time.Second}, true},
			{"Capacity", "-3", options{Capacity: -3}, false},
			{"MaxConcurrent", "-4", options{MaxConcurrent: -4}, false},
			{"EffectTimeout", "-5ns", options{EffectTimeout: -5}, false},
			{"StaleMemory", "-2", options{StaleMemory: -2}, false},
		} {
			e, err := idempotent.New(c.opts)
			require.Nil(t, e)
			require.ErrorContains(t, err, c.field)
			require.ErrorContains(t, err, c.value)
			require.Regexp(t, "^idempotent: ", err.Error())
			if c.isTTL {
				require.ErrorIs(t, err, idempotent.ErrInvalidTTL)
			} else {
				require.NotErrorIs(t, err, idempotent.ErrInvalidTTL)
			}
		}
	})

	t.Run("the zero options and all the largest are taken", func(t *testing.T) {
		for _, opts := range []options{
			{},
			{TTL: idempotent.Forever, FailureTTL: idempotent.Forever, Capacity: math.MaxInt, MaxConcurrent: math.MaxInt, EffectTimeout: math.MaxInt64},
			{StaleMemory: -1},
		} {
			e, err := idempotent.New(opts)
			require.NoError(t, err)
			gives(t, "v", executed)(e.Do(bg, "k", returns("v", nil)))
			gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		}
	})

	t.Run("the constants are as documented", func(t *testing.T) {
		require.Equal(t, 24*time.Hour, idempotent.DefaultTTL)
		require.Equal(t, time.Duration(math.MaxInt64), idempotent.Forever)
	})
}

func TestVerdict(t *testing.T) {
	t.Run("has a name, and is Refused by default", func(t *testing.T) {
		var zero idempotent.Verdict
		require.Equal(t, refused, zero)
		require.Equal(t, "refused", refused.String())
		require.Equal(t, "executed", executed.String())
		require.Equal(t, "replayed", replayed.String())
		require.Equal(t, "shared", shared.String())
		require.Equal(t, "Verdict(9)", idempotent.Verdict(9).String())
	})
}

func TestErrors(t *testing.T) {
	t.Run("are distinct, and begin with the package's name", func(t *testing.T) {
		all := []error{
			idempotent.ErrInFlight, idempotent.ErrMismatch, idempotent.ErrFull, idempotent.ErrDeadlock, idempotent.ErrStale,
			idempotent.ErrOutcomeUnknown, idempotent.ErrShutdown, idempotent.ErrInvalidKey, idempotent.ErrInvalidTTL,
		}
		for i, a := range all {
			require.Regexp(t, "^idempotent: ", a.Error())
			for j, b := range all {
				require.Equal(t, i == j, a == b)
			}
		}
	})

	t.Run("IsPermanent sees the mark through the chain, and nothing else", func(t *testing.T) {
		require.True(t, idempotent.IsPermanent(idempotent.Permanent(errBoom)))
		require.True(t, idempotent.IsPermanent(&wrapped{idempotent.Permanent(errBoom)}))
		require.False(t, idempotent.IsPermanent(idempotent.Unknown(errBoom)))
		require.False(t, idempotent.IsPermanent(errBoom))
		require.False(t, idempotent.IsPermanent(nil))
	})

	promise(t, "an effect's error may call back into the endpoint when it is looked at", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "other", returns("v", nil))
		looked := false
		_, _, err := e.Do(bg, "k", func(context.Context) (string, error) {
			return "", &wrapped{&nosy{func() { looked = e.Stats().Executed == 1 && e.Forget("other") || looked }}}
		})
		require.Error(t, err)
		require.True(t, looked)
	})
}

type wrapped struct{ error }

func (w *wrapped) Unwrap() error { return w.error }

// nosy is an error that does something when it is unwrapped.
type nosy struct{ look func() }

func (*nosy) Error() string   { return "nosy" }
func (n *nosy) Unwrap() error { n.look(); return nil }
