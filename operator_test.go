package idempotent_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

func TestForget(t *testing.T) {
	promise(t, "drops a kept result, so that the next call runs", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "k", returns("v", nil))
		require.True(t, e.Forget("k"))
		require.False(t, e.Forget("k"))
		require.Zero(t, e.Stats().Retained)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
		gives(t, "w", replayed)(e.Do(bg, "k", forbidden(t)))
		require.False(t, e.Forget("never seen"))
		s := e.Stats()
		require.Zero(t, s.Expired+s.Evicted)
	})

	promise(t, "does not touch a running claim, nor what it leaves", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "k", after(time.Second, returns("v", nil)))
		waiter := start(e, bg, "k", forbidden(t))
		require.False(t, e.Forget("k"))
		gives(t, "v", executed)(leader.end(t))
		gives(t, "v", shared)(waiter.end(t))
		gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
	})

	promise(t, "then a new run: the window of the old result does not end the new one", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "k", returns("v", nil))
		time.Sleep(window / 2)
		require.True(t, e.Forget("k"))
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
		time.Sleep(window - 1)
		gives(t, "w", replayed)(e.Do(bg, "k", forbidden(t)))
		time.Sleep(time.Nanosecond)
		require.Zero(t, e.Stats().Retained)
	})

	promise(t, "while a replay is being handed out gives nobody a zero value", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "k", returns("v", nil))
		for range 500 {
			calls := []*call{
				launch(e, bg, request{Key: "k"}, returns("v", nil)),
				launch(e, bg, request{Key: "k"}, returns("v", nil)),
			}
			e.Forget("k")
			for _, c := range calls {
				value, _, err := c.end(t)
				require.NoError(t, err)
				require.Equal(t, "v", value)
			}
		}
	})
}

func TestLookup(t *testing.T) {
	promise(t, "shows a kept result and changes nothing", func(t *testing.T) {
		e := open(t, options{})
		_, held := e.Lookup("k")
		require.False(t, held)
		time.Sleep(time.Minute)
		e.Handle(bg, request{Key: "k", Fingerprint: "a"}, after(time.Minute, returns("v", nil)))
		completed := time.Now()
		before := e.Stats()
		time.Sleep(window - 1)
		record, held := e.Lookup("k")
		require.True(t, held)
		require.Equal(t, "v", record.Value)
		require.NoError(t, record.Err)
		require.Equal(t, "a", record.Fingerprint)
		require.True(t, record.CompletedAt.Equal(completed), "%v, want %v", record.CompletedAt, completed)
		require.True(t, record.ExpiresAt.Equal(completed.Add(window)), "%v", record.ExpiresAt)
		require.Equal(t, before, e.Stats())
		time.Sleep(time.Nanosecond)
		_, held = e.Lookup("k")
		require.False(t, held)
	})

	promise(t, "shows a kept failure with its marks, and no running claim", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "k", returns("half", idempotent.Unknown(errBoom)))
		record, held := e.Lookup("k")
		require.True(t, held)
		require.Equal(t, "half", record.Value)
		require.ErrorIs(t, record.Err, idempotent.ErrOutcomeUnknown)
		running := start(e, bg, "l", after(time.Second, returns("v", nil)))
		_, held = e.Lookup("l")
		require.False(t, held)
		<-running.done
	})

	promise(t, "shows no result that failed", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "k", returns("v", errBoom))
		_, held := e.Lookup("k")
		require.False(t, held)
	})
}

func TestInFlight(t *testing.T) {
	promise(t, "shows the running claims, oldest first, with their waiters", func(t *testing.T) {
		e := open(t, options{})
		require.Empty(t, e.InFlight())
		begun := time.Now()
		var running []*call
		for i := range 20 {
			key := fmt.Sprint(i)
			running = append(running, start(e, bg, key, after(time.Hour, returns("v", nil))))
			for range i % 3 {
				running = append(running, start(e, bg, key, forbidden(t)))
			}
			time.Sleep(time.Second)
		}
		claims := e.InFlight()
		require.Len(t, claims, 20)
		for i, claim := range claims {
			require.Equal(t, fmt.Sprint(i), claim.Key)
			require.Equal(t, i%3, claim.Waiters)
			require.True(t, claim.Since.Equal(begun.Add(time.Duration(i)*time.Second)), "%v", claim.Since)
		}
		for _, c := range running {
			<-c.done
		}
		require.Empty(t, e.InFlight())
	})

	promise(t, "counts a claim that passed on from then", func(t *testing.T) {
		e := open(t, options{})
		leader := start(e, bg, "k", after(time.Minute, returns("", errBoom)))
		heir := start(e, bg, "k", after(time.Minute, returns("v", nil)))
		<-leader.done
		claims := e.InFlight()
		require.Len(t, claims, 1)
		require.Zero(t, claims[0].Waiters)
		require.True(t, claims[0].Since.Equal(time.Now()))
		<-heir.done
	})
}

func TestStats(t *testing.T) {
	promise(t, "each call is exactly one of five things", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "k", returns("v", nil))                          // executed
		e.Do(bg, "p", returns("", idempotent.Permanent(errBoom))) // executed: it kept a result
		e.Do(bg, "f", returns("", errBoom))                       // failed
		start(e, bg, "f", panics("oops"))                         // failed, panicked
		start(e, bg, "f", exits)                                  // failed, panicked
		e.Do(bg, "k", forbidden(t))                               // replayed
		e.Do(bg, "p", forbidden(t))                               // replayed
		leader := start(e, bg, "l", after(time.Second, returns("v", nil)))
		e.Do(bg, "l", forbidden(t)) // shared
		<-leader.done               // executed
		e.Do(bg, "", forbidden(t))  // refused
		require.Equal(t, idempotent.Stats{
			Executed: 3, Failed: 3, Panicked: 2, Replayed: 2, Shared: 1, Refused: 1, Retained: 3,
		}, e.Stats())
	})

	promise(t, "shows what is held", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "done", returns("v", nil))
		a := start(e, bg, "a", after(time.Second, returns("v", nil)))
		b := start(e, bg, "a", forbidden(t))
		c := start(e, bg, "a", forbidden(t))
		s := e.Stats()
		require.Equal(t, 1, s.InFlight)
		require.Equal(t, 2, s.Waiting)
		require.Equal(t, 1, s.Retained)
		<-a.done
		<-b.done
		<-c.done
		s = e.Stats()
		require.Zero(t, s.InFlight)
		require.Zero(t, s.Waiting)
		require.Equal(t, 2, s.Retained)
	})
}

func TestRecords(t *testing.T) {
	promise(t, "yield every kept result once, while others come and go", func(t *testing.T) {
		e := open(t, options{})
		const kept = 300
		for i := range kept {
			e.Do(bg, fmt.Sprint(i), returns(fmt.Sprint(i), nil))
			short := fmt.Sprint("short", i)
			e.Handle(bg, request{Key: short, TTL: time.Duration(i+1) * time.Millisecond}, returns(short, nil))
		}
		seen := make(map[string]int)
		n := 0
		for key, record := range e.Records() { // the body calls back in every way
			seen[key]++
			require.Equal(t, key, record.Value)
			late := fmt.Sprint("late", n)
			gives(t, late, executed)(e.Do(bg, late, returns(late, nil)))
			e.Forget(fmt.Sprint("short", n))
			e.Stats()
			time.Sleep(time.Millisecond)
			n++
		}
		for i := range kept {
			require.Equal(t, 1, seen[fmt.Sprint(i)])
		}
		for key, times := range seen {
			require.Equal(t, 1, times, key)
		}
	})

	promise(t, "stop where the loop stops, and start again", func(t *testing.T) {
		const kept = 60
		e := open(t, options{})
		for i := range kept { // with the endpoint's window and with windows of their own
			e.Handle(bg, request{Key: fmt.Sprint(i), TTL: time.Duration(i%2) * 2 * window}, returns("v", nil))
			time.Sleep(time.Second)
		}
		records := e.Records()
		for stop := 1; stop <= kept; stop++ {
			seen := 0
			for range records {
				if seen++; seen == stop {
					break
				}
			}
			require.Equal(t, stop, seen)
		}
		require.Len(t, maps.Collect(records), kept)
		gives(t, "v", replayed)(e.Do(bg, "0", forbidden(t)))
	})

	promise(t, "come in the order of completion, whatever their windows", func(t *testing.T) {
		e := open(t, options{})
		var order, got []string
		for i := range 60 {
			order = append(order, fmt.Sprint(i))
			e.Handle(bg, request{Key: fmt.Sprint(i), TTL: time.Duration(i/3%2) * 2 * window}, returns("v", nil))
			time.Sleep(time.Second)
		}
		for key := range e.Records() {
			got = append(got, key)
		}
		require.Equal(t, order, got)
	})

	promise(t, "show neither claims nor failures nor what has ended", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "failed", returns("", errBoom))
		e.Handle(bg, request{Key: "ended", TTL: 1}, returns("v", nil))
		time.Sleep(time.Nanosecond)
		running := start(e, bg, "running", after(time.Second, returns("v", nil)))
		require.Empty(t, maps.Collect(e.Records()))
		<-running.done
		require.Len(t, maps.Collect(e.Records()), 1)
	})
}

func TestRestore(t *testing.T) {
	promise(t, "takes a snapshot back with the ends it had", func(t *testing.T) {
		old := open(t, options{})
		old.Handle(bg, request{Key: "k", Fingerprint: "a"}, returns("v", nil))
		old.Handle(bg, request{Key: "forever", TTL: idempotent.Forever}, returns("w", nil))
		old.Do(bg, "declined", returns("details", idempotent.Permanent(errBoom)))
		old.Do(bg, "unknown", returns("", idempotent.Unknown(errBoom)))
		snapshot := maps.Collect(old.Records())
		require.Len(t, snapshot, 4)

		time.Sleep(window / 2) // the restart
		e := open(t, options{})
		require.Equal(t, 4, e.Restore(maps.All(snapshot)))
		require.Equal(t, 4, e.Stats().Retained)
		for key, was := range snapshot {
			record, held := e.Lookup(key)
			require.True(t, held)
			require.True(t, record.CompletedAt.Equal(was.CompletedAt))
			require.True(t, record.ExpiresAt.Equal(was.ExpiresAt))
			require.Equal(t, was.Fingerprint, record.Fingerprint)
			require.Equal(t, was.Value, record.Value)
			require.Equal(t, was.Err, record.Err)
		}
		time.Sleep(window/2 - 1)
		gives(t, "v", replayed)(e.Handle(bg, request{Key: "k", Fingerprint: "a"}, forbidden(t)))
		fails(t, refused, idempotent.ErrMismatch)(e.Handle(bg, request{Key: "k", Fingerprint: "b"}, forbidden(t)))
		_, _, err := e.Do(bg, "declined", forbidden(t))
		require.ErrorIs(t, err, errBoom)
		require.True(t, e.Resolve("unknown", "settled"))
		time.Sleep(time.Nanosecond)
		gives(t, "x", executed)(e.Do(bg, "k", returns("x", nil)))
		require.EqualValues(t, 1, e.Stats().Stale, "a restored key becomes stale like any other")
		gives(t, "settled", replayed)(e.Do(bg, "unknown", forbidden(t)))
		time.Sleep(1000 * window)
		gives(t, "w", replayed)(e.Do(bg, "forever", forbidden(t)))
	})

	promise(t, "takes only records whose window still runs", func(t *testing.T) {
		e := open(t, options{})
		now := time.Now()
		record := func(ends time.Time) idempotent.Record[string] {
			return idempotent.Record[string]{Value: "v", CompletedAt: now.Add(-time.Hour), ExpiresAt: ends}
		}
		require.Equal(t, 2, e.Restore(maps.All(map[string]idempotent.Record[string]{
			"past":   record(now.Add(-1)),
			"now":    record(now),
			"next":   record(now.Add(1)),
			"future": record(now.Add(time.Hour)),
		})))
		gives(t, "v", replayed)(e.Do(bg, "next", forbidden(t)))
		time.Sleep(time.Nanosecond)
		require.Equal(t, 1, e.Stats().Retained)
	})

	promise(t, "skips keys that are held", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "done", returns("own", nil))
		running := start(e, bg, "running", after(time.Second, returns("own", nil)))
		old := map[string]idempotent.Record[string]{"done": {Value: "old"}, "running": {Value: "old"}, "other": {Value: "old"}}
		require.Equal(t, 1, e.Restore(maps.All(old)))
		gives(t, "own", executed)(running.end(t))
		gives(t, "own", replayed)(e.Do(bg, "done", forbidden(t)))
		gives(t, "own", replayed)(e.Do(bg, "running", forbidden(t)))
		gives(t, "old", replayed)(e.Do(bg, "other", forbidden(t)))
	})

	promise(t, "stops at Capacity, but what has expired makes room", func(t *testing.T) {
		for _, evict := range []bool{false, true} {
			e := open(t, options{Capacity: 3, EvictOldest: evict})
			e.Handle(bg, request{Key: "ended", TTL: 1}, returns("v", nil))
			e.Do(bg, "own", returns("own", nil))
			time.Sleep(time.Nanosecond)
			old := make(map[string]idempotent.Record[string])
			for i := range 10 {
				old[fmt.Sprint(i)] = idempotent.Record[string]{Value: "old"}
			}
			require.Equal(t, 2, e.Restore(maps.All(old)))
			require.Equal(t, 3, e.Stats().Retained)
			gives(t, "own", replayed)(e.Do(bg, "own", forbidden(t)))
		}
	})

	promise(t, "what was restored is older than what ran here", func(t *testing.T) {
		e := open(t, options{Capacity: 3, EvictOldest: true})
		e.Do(bg, "own", returns("own", nil))
		past := time.Now().Add(-time.Hour)
		e.Restore(maps.All(map[string]idempotent.Record[string]{
			"older":   {Value: "v", CompletedAt: past},
			"younger": {Value: "v", CompletedAt: past.Add(time.Minute)},
		}))
		for _, gone := range []string{"older", "younger", "own"} {
			_, held := e.Lookup(gone)
			require.True(t, held, gone)
			e.Do(bg, "after "+gone, returns("v", nil))
			_, held = e.Lookup(gone)
			require.False(t, held, gone)
		}
	})

	promise(t, "makes a key that was stale known again", func(t *testing.T) {
		e := open(t, options{OnStale: func(context.Context, string, time.Time) error { return idempotent.ErrStale }})
		e.Do(bg, "k", returns("v", nil))
		time.Sleep(window)
		fails(t, refused, idempotent.ErrStale)(e.Do(bg, "k", forbidden(t)))
		require.Equal(t, 1, e.Restore(maps.All(map[string]idempotent.Record[string]{"k": {Value: "old"}})))
		gives(t, "old", replayed)(e.Do(bg, "k", forbidden(t)))
		require.True(t, e.Forget("k"))
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
	})

	promise(t, "takes ends beyond the clock as never, and replays an error whose mark was lost", func(t *testing.T) {
		e := open(t, options{})
		require.Equal(t, 1, e.Restore(maps.All(map[string]idempotent.Record[string]{
			"k": {Value: "half", Err: errBoom, ExpiresAt: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)},
		})))
		time.Sleep(100 * 365 * 24 * time.Hour)
		fails(t, replayed, errBoom)(e.Do(bg, "k", forbidden(t)))
	})

	promise(t, "takes a record without a completion time as completed in the past", func(t *testing.T) {
		asked := false
		e := open(t, options{OnStale: func(_ context.Context, _ string, completed time.Time) error {
			asked = true
			require.True(t, completed.Before(time.Now()), "%v", completed)
			return nil
		}})
		ends := time.Now().Add(time.Minute)
		require.Equal(t, 1, e.Restore(maps.All(map[string]idempotent.Record[string]{"k": {Value: "v", ExpiresAt: ends}})))
		time.Sleep(time.Minute)
		gives(t, "w", executed)(e.Do(bg, "k", returns("w", nil)))
		require.True(t, asked)
	})

	promise(t, "may be fed by a loop that calls back", func(t *testing.T) {
		e := open(t, options{})
		e.Do(bg, "own", returns("own", nil))
		require.Equal(t, 1, e.Restore(func(yield func(string, idempotent.Record[string]) bool) {
			gives(t, "own", replayed)(e.Do(bg, "own", forbidden(t)))
			yield("k", idempotent.Record[string]{Value: "v"})
			gives(t, "v", replayed)(e.Do(bg, "k", forbidden(t)))
		}))
	})
}
