package idempotent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/stretchr/testify/require"
)

func TestRecordCrossesJSON(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)
	there := func(t *testing.T, r idempotent.Record[[]byte]) (back idempotent.Record[[]byte]) {
		data, err := json.Marshal(r)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, &back), "%s", data)
		return back
	}
	t.Run("a success as it was, to the nanosecond", func(t *testing.T) {
		r := idempotent.Record[[]byte]{Value: []byte{0, 255}, Fingerprint: "a\xff", CompletedAt: at, ExpiresAt: at.Add(time.Hour)}
		require.Equal(t, r, there(t, r))
	})
	t.Run("a window that never ends", func(t *testing.T) {
		require.True(t, there(t, idempotent.Record[[]byte]{CompletedAt: at}).ExpiresAt.IsZero())
	})
	t.Run("a permanent failure says and is what it was, but for its type", func(t *testing.T) {
		back := there(t, idempotent.Record[[]byte]{Err: idempotent.Permanent(errBoom), CompletedAt: at})
		require.EqualError(t, back.Err, errBoom.Error())
		require.True(t, idempotent.IsPermanent(back.Err))
		require.NotErrorIs(t, back.Err, idempotent.ErrOutcomeUnknown)
	})
	t.Run("an unknown outcome stays unknown, also twice", func(t *testing.T) {
		r := idempotent.Record[[]byte]{Err: idempotent.Unknown(errBoom), CompletedAt: at}
		back := there(t, there(t, r))
		require.EqualError(t, back.Err, r.Err.Error())
		require.ErrorIs(t, back.Err, idempotent.ErrOutcomeUnknown)
	})
	t.Run("an error around it keeps its text and the mark", func(t *testing.T) {
		for _, err := range []error{
			fmt.Errorf("charging card 42: %w", idempotent.Unknown(errBoom)),
			fmt.Errorf("charge: %w", idempotent.ErrOutcomeUnknown),
			errors.Join(errBoom, idempotent.Unknown(errBoom)),
		} {
			back := there(t, idempotent.Record[[]byte]{Err: err, CompletedAt: at})
			require.EqualError(t, back.Err, err.Error())
			require.ErrorIs(t, back.Err, idempotent.ErrOutcomeUnknown)
		}
	})
	t.Run("a form that nobody wrote is refused, and changes nothing", func(t *testing.T) {
		for _, data := range []string{
			`{"value": 1}`, `{"error": "x"}`, `{"error": "x", "mark": "perhaps"}`, `[]`, `{"completed_at": "noon"}`,
		} {
			before := idempotent.Record[[]byte]{Fingerprint: "before"}
			r := before
			require.Error(t, json.Unmarshal([]byte(data), &r), data)
			require.Equal(t, before, r)
		}
	})
}

func TestUnknownOutcomesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, options{TTL: time.Minute})
		require.Zero(t, e.Stats().Unknown)
		for _, key := range []string{"resolved", "forgotten", "ended"} {
			_, _, err := e.Do(bg, key, returns("", idempotent.Unknown(errors.New("timed out"))))
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		}
		_, _, err := e.Do(bg, "permanent", returns("", idempotent.Permanent(errBoom)))
		require.ErrorIs(t, err, errBoom)
		require.Equal(t, 3, e.Stats().Unknown)
		require.True(t, e.Resolve("resolved", "done"))
		require.Equal(t, 2, e.Stats().Unknown)
		require.True(t, e.Forget("forgotten"))
		require.Equal(t, 1, e.Stats().Unknown)
		time.Sleep(time.Minute)
		require.Zero(t, e.Stats().Unknown)
	})
}
