package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

// The contract matrix: how an attempt ends, by the options that change what that
// means, as seen by the leader, by a call that waits for the attempt, and by one
// that comes after all is over. Every cell says in full what the call gets:
//
//	executed leader              its verdict and its value,
//	shared half: boom, unknown   or its value and what its error matches,
//	thrown oops                  or what was thrown at the caller
//
// The leader's effect begins at 0 s, the waiter comes 1 s later, the effect ends
// at 2 s, the later call comes at 10 s. The other two would run effects of 1 s.
type cells struct{ leader, waiter, later string }

const (
	plain        = "plain"
	shareFailure = "ShareFailure"
	detach       = "Detach"
	holdPanics   = "HoldPanics"
)

var modes = map[string]options{
	plain:        {},
	shareFailure: {ShareFailure: true},
	detach:       {Detach: true},
	holdPanics:   {HoldPanics: true},
}

var endings = map[string]struct {
	effect effect        // of the leader, once its time has come
	dead   time.Duration // when the leader's ctx ends; 0 = never
}{
	"a value":         {effect: returns("leader", nil)},
	"an error":        {effect: returns("half", errBoom)},
	"Permanent":       {effect: returns("half", idempotent.Permanent(errBoom))},
	"Unknown":         {effect: returns("half", idempotent.Unknown(errBoom))},
	"a panic":         {effect: panics("oops")},
	"panic(nil)":      {effect: panics(nil)},
	"Goexit":          {effect: exits},
	"ctx done before": {effect: returns("leader", nil), dead: -1},
	"ctx done during": {effect: returns("leader", nil), dead: 1500 * time.Millisecond},
	"ctx done after":  {effect: returns("leader", nil), dead: 3 * time.Second},
}

var matrix = map[string]map[string]cells{
	"a value": {
		plain:        {"executed leader", "shared leader", "replayed leader"},
		shareFailure: {"executed leader", "shared leader", "replayed leader"},
		detach:       {"executed leader", "shared leader", "replayed leader"},
		holdPanics:   {"executed leader", "shared leader", "replayed leader"},
	},
	"an error": {
		plain:        {"executed half: boom", "executed waiter", "replayed waiter"},
		shareFailure: {"executed half: boom", "shared : boom", "executed later"},
		detach:       {"executed half: boom", "executed waiter", "replayed waiter"},
		holdPanics:   {"executed half: boom", "executed waiter", "replayed waiter"},
	},
	"Permanent": {
		plain:        {"executed half: boom, permanent", "shared half: boom, permanent", "replayed half: boom, permanent"},
		shareFailure: {"executed half: boom, permanent", "shared half: boom, permanent", "replayed half: boom, permanent"},
		detach:       {"executed half: boom, permanent", "shared half: boom, permanent", "replayed half: boom, permanent"},
		holdPanics:   {"executed half: boom, permanent", "shared half: boom, permanent", "replayed half: boom, permanent"},
	},
	"Unknown": {
		plain:        {"executed half: boom, unknown", "shared half: boom, unknown", "replayed half: boom, unknown"},
		shareFailure: {"executed half: boom, unknown", "shared half: boom, unknown", "replayed half: boom, unknown"},
		detach:       {"executed half: boom, unknown", "shared half: boom, unknown", "replayed half: boom, unknown"},
		holdPanics:   {"executed half: boom, unknown", "shared half: boom, unknown", "replayed half: boom, unknown"},
	},
	"a panic": {
		plain:        {"thrown oops", "executed waiter", "replayed waiter"},
		shareFailure: {"thrown oops", "shared : panic oops", "executed later"},
		detach:       {"executed : panic oops", "executed waiter", "replayed waiter"},
		holdPanics:   {"thrown oops", "shared : panic oops, unknown", "replayed : panic oops, unknown"},
	},
	"panic(nil)": {
		plain:        {"thrown nil", "executed waiter", "replayed waiter"},
		shareFailure: {"thrown nil", "shared : panic nil", "executed later"},
		detach:       {"executed : panic nil", "executed waiter", "replayed waiter"},
		holdPanics:   {"thrown nil", "shared : panic nil, unknown", "replayed : panic nil, unknown"},
	},
	"Goexit": {
		plain:        {"thrown Goexit", "executed waiter", "replayed waiter"},
		shareFailure: {"thrown Goexit", "shared : Goexit", "executed later"},
		detach:       {"executed : Goexit", "executed waiter", "replayed waiter"},
		holdPanics:   {"thrown Goexit", "shared : Goexit, unknown", "replayed : Goexit, unknown"},
	},
	"ctx done before": { // there is no attempt to wait for
		plain:        {"refused : canceled", "executed waiter", "replayed waiter"},
		shareFailure: {"refused : canceled", "executed waiter", "replayed waiter"},
		detach:       {"refused : canceled", "executed waiter", "replayed waiter"},
		holdPanics:   {"refused : canceled", "executed waiter", "replayed waiter"},
	},
	"ctx done during": {
		plain:        {"executed leader", "shared leader", "replayed leader"},
		shareFailure: {"executed leader", "shared leader", "replayed leader"},
		detach:       {"executed : in flight, canceled", "shared leader", "replayed leader"},
		holdPanics:   {"executed leader", "shared leader", "replayed leader"},
	},
	"ctx done after": {
		plain:        {"executed leader", "shared leader", "replayed leader"},
		shareFailure: {"executed leader", "shared leader", "replayed leader"},
		detach:       {"executed leader", "shared leader", "replayed leader"},
		holdPanics:   {"executed leader", "shared leader", "replayed leader"},
	},
}

func TestMatrix(t *testing.T) {
	for _, mode := range slices.Sorted(maps.Keys(modes)) {
		for _, name := range slices.Sorted(maps.Keys(endings)) {
			opts, ending := modes[mode], endings[name]
			want, ok := matrix[name][mode]
			require.True(t, ok, "no cells for %s, %s", name, mode)
			var got cells
			synctest.Test(t, func(t *testing.T) { got = play(t, opts, ending.effect, ending.dead) })
			for _, cell := range []struct{ who, want, got string }{
				{"leader", want.leader, got.leader},
				{"waiter", want.waiter, got.waiter},
				{"later caller", want.later, got.later},
			} {
				t.Run(mode+"/"+name+"/"+cell.who, func(t *testing.T) { require.Equal(t, cell.want, cell.got) })
			}
		}
	}
}

func play(t *testing.T, opts options, fx effect, dead time.Duration) cells {
	e := open(t, opts)
	var running atomic.Int64
	alone := func(fx effect) effect {
		return func(ctx context.Context) (string, error) {
			if running.Add(1) != 1 {
				t.Error("two attempts at one time")
			}
			defer running.Add(-1)
			return fx(ctx)
		}
	}
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	if dead < 0 {
		cancel()
	} else if dead > 0 {
		time.AfterFunc(dead, cancel)
	}
	leader := start(e, ctx, "k", alone(after(2*time.Second, fx)))
	time.Sleep(time.Second)
	waiter := start(e, bg, "k", alone(after(time.Second, returns("waiter", nil))))
	time.Sleep(9 * time.Second)
	later := start(e, bg, "k", alone(after(time.Second, returns("later", nil))))
	time.Sleep(10 * time.Second)
	addsUp(t, e, 3)
	return cells{told(leader), told(waiter), told(later)}
}

// ownMatrix is the ctx of the waiter, or of the later caller, in place of the
// leader's. The leader's effect gives a value or, in "of a failure", an error.
var ownMatrix = map[string]map[string]string{
	"a waiter's ctx done before": {
		plain: "refused : in flight, canceled", shareFailure: "refused : in flight, canceled",
		detach: "refused : in flight, canceled", holdPanics: "refused : in flight, canceled",
	},
	"a waiter's ctx done during": {
		plain: "refused : in flight, canceled", shareFailure: "refused : in flight, canceled",
		detach: "refused : in flight, canceled", holdPanics: "refused : in flight, canceled",
	},
	"a waiter's ctx done after": {
		plain: "shared leader", shareFailure: "shared leader", detach: "shared leader", holdPanics: "shared leader",
	},
	"a waiter's ctx done during its own run": {
		plain: "executed waiter", shareFailure: "shared : boom", detach: "executed : in flight, canceled", holdPanics: "executed waiter",
	},
	"a later caller's ctx done before": {
		plain: "replayed leader", shareFailure: "replayed leader", detach: "replayed leader", holdPanics: "replayed leader",
	},
	"a later caller's ctx done during": { // while Clone copies the kept value for it
		plain: "replayed leader", shareFailure: "replayed leader", detach: "replayed leader", holdPanics: "replayed leader",
	},
	"a later caller's ctx done after": {
		plain: "replayed leader", shareFailure: "replayed leader", detach: "replayed leader", holdPanics: "replayed leader",
	},
	"a later caller's ctx done before, after a failure": {
		plain: "refused : canceled", shareFailure: "refused : canceled", detach: "refused : canceled", holdPanics: "refused : canceled",
	},
}

// ownContexts says when the call comes, how long Clone takes, and when ctx ends.
var ownContexts = map[string]struct {
	comes, clone, dead time.Duration
	leader             effect
}{
	"a waiter's ctx done before":                        {comes: 1000, dead: 500, leader: returns("leader", nil)},
	"a waiter's ctx done during":                        {comes: 1000, dead: 1500, leader: returns("leader", nil)},
	"a waiter's ctx done after":                         {comes: 1000, dead: 2500, leader: returns("leader", nil)},
	"a waiter's ctx done during its own run":            {comes: 1000, dead: 2500, leader: returns("", errBoom)},
	"a later caller's ctx done before":                  {comes: 5000, dead: 500, leader: returns("leader", nil)},
	"a later caller's ctx done during":                  {comes: 5000, clone: 1000, dead: 5500, leader: returns("leader", nil)},
	"a later caller's ctx done after":                   {comes: 5000, dead: 5500, leader: returns("leader", nil)},
	"a later caller's ctx done before, after a failure": {comes: 5000, dead: 500, leader: returns("", errBoom)},
}

func TestMatrixOfOwnContexts(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(ownContexts)) {
		for _, mode := range slices.Sorted(maps.Keys(modes)) {
			opts, c := modes[mode], ownContexts[name]
			promise(t, mode+"/"+name, func(t *testing.T) {
				opts.Clone = func(v string) string { time.Sleep(c.clone * time.Millisecond); return v }
				e := open(t, opts)
				ctx, cancel := context.WithTimeout(bg, c.dead*time.Millisecond)
				defer cancel()
				leader := start(e, bg, "k", after(2*time.Second, c.leader))
				time.Sleep(c.comes * time.Millisecond)
				call := start(e, ctx, "k", after(time.Second, returns("waiter", nil)))
				time.Sleep(20 * time.Second)
				<-leader.done
				require.Equal(t, ownMatrix[name][mode], told(call))
				addsUp(t, e, 2)
			})
		}
	}
}

// told says what a call got, as the cells do.
func told(c *call) string {
	select {
	case <-c.done:
	default:
		return "still running"
	}
	if !c.returned {
		return "thrown " + thrown(c.thrown)
	}
	text := fmt.Sprintf("%v %s", c.verdict, c.value)
	for i, kind := range kinds(c.err) {
		text += map[bool]string{true: ": ", false: ", "}[i == 0] + kind
	}
	return text
}

// kinds are the things that err matches.
func kinds(err error) (kinds []string) {
	var panicked *idempotent.PanicError
	switch {
	case errors.As(err, &panicked) && panicked.Goexit:
		kinds = append(kinds, "Goexit")
	case panicked != nil:
		kinds = append(kinds, "panic "+thrown(panicked.Value))
	}
	if errors.Is(err, errBoom) {
		kinds = append(kinds, "boom")
	}
	if idempotent.IsPermanent(err) {
		kinds = append(kinds, "permanent")
	}
	if errors.Is(err, idempotent.ErrOutcomeUnknown) {
		kinds = append(kinds, "unknown")
	}
	if errors.Is(err, idempotent.ErrInFlight) {
		kinds = append(kinds, "in flight")
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		kinds = append(kinds, "canceled")
	}
	if err != nil && kinds == nil {
		kinds = append(kinds, err.Error())
	}
	return kinds
}

func thrown(value any) string {
	switch value.(type) {
	case nil:
		return "Goexit"
	case *runtime.PanicNilError:
		return "nil"
	}
	return fmt.Sprint(value)
}
