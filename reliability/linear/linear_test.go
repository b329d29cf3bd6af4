package linear

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

var (
	linearOps  = flag.Int("ops", 200_000, "operations to record and check")
	linearSeed = flag.Uint64("seed", 0, "of the histories' plans; 0 = the time")
)

// action is what one critical section does to one key.
type action uint8

const (
	nothing      action = iota
	claims              // the key was free and there was room; id holds it
	gives               // id held it; it is free
	keeps               // id held it; its result is kept
	keepsUnknown        // the same, and Resolve may settle it
	ends                // id's window, if its result is still there
	replays             // id's result is kept
	joins               // id holds it
	findsRunning        // somebody holds it
	findsNone           // no result is kept
	findsFull           // it is free, and there is no room
	forgets             // a result was kept; it is free
	resolves            // an unknown outcome was kept; now id's result is
	resolvesNot         // no unknown outcome was kept
)

type section struct {
	does action
	key  int
	id   int
	most int // Options.Capacity
}

type phase uint8

const (
	free phase = iota
	held
	known
	unknown
)

// cell is a key in the sequential model.
type cell struct {
	phase phase
	by    int
}

type state [keys]cell

// step is the whole contract of one critical section.
func step(s state, in section) (bool, state) {
	c := &s[in.key]
	kept := c.phase == known || c.phase == unknown
	switch in.does {
	case claims:
		ok := c.phase == free && s.room(in.most)
		*c = cell{held, in.id}
		return ok, s
	case gives, keeps, keepsUnknown:
		ok := *c == cell{held, in.id}
		*c = map[action]cell{gives: {}, keeps: {known, in.id}, keepsUnknown: {unknown, in.id}}[in.does]
		return ok, s
	case ends:
		if kept && c.by == in.id {
			*c = cell{}
		}
		return true, s
	case replays:
		return kept && c.by == in.id, s
	case joins:
		return *c == cell{held, in.id}, s
	case findsRunning:
		return c.phase == held, s
	case findsNone:
		return !kept, s
	case findsFull:
		return c.phase == free && !s.room(in.most), s
	case forgets:
		*c = cell{}
		return kept, s
	case resolves:
		ok := c.phase == unknown
		*c = cell{known, in.id}
		return ok, s
	case resolvesNot:
		return c.phase != unknown, s
	}
	return false, s
}

func (s state) room(most int) bool {
	n := 0
	for _, c := range s {
		if c.phase != free {
			n++
		}
	}
	return most == 0 || n < most
}

// model is step as porcupine wants it. Under a Capacity the keys depend on each
// other, so the history is not taken apart.
func model(capacity int) porcupine.Model {
	m := porcupine.Model{
		Init: func() any { return state{} },
		Step: func(s, in, _ any) (bool, any) { return step(s.(state), in.(section)) },
		Hash: func(s any) uint64 {
			var h uint64
			for _, c := range s.(state) {
				h = h*0x9E3779B97F4A7C15 + uint64(c.by)<<2 + uint64(c.phase)
			}
			return h
		},
		DescribeOperation: func(in, _ any) string { return fmt.Sprintf("%+v", in) },
	}
	if capacity == 0 {
		m.Partition = byKey
	}
	return m
}

func byKey(ops []porcupine.Operation) [][]porcupine.Operation {
	parts := make([][]porcupine.Operation, keys)
	for _, op := range ops {
		key := op.Input.(section).key
		parts[key] = append(parts[key], op)
	}
	return parts
}

func TestHistoriesAreLinearizable(t *testing.T) {
	seed := *linearSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	var recorded, sections, stalled atomic.Int64
	var counts sync.Map // verdicts and answers
	var wg sync.WaitGroup
	var once sync.Once
	began := time.Now()
	for w := range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)))
			var buf []porcupine.Operation
			for !t.Failed() && recorded.Load() < int64(*linearOps) {
				h := draw(rng)
				h.run()
				if h.stalled() {
					stalled.Add(1)
					continue
				}
				n := recorded.Add(int64(len(h.calls)))
				ops, err := h.operations(buf)
				buf = ops
				sections.Add(int64(len(ops)))
				for i := range h.calls {
					n, _ := counts.LoadOrStore(h.calls[i].answer(), new(atomic.Int64))
					n.(*atomic.Int64).Add(1)
				}
				result := porcupine.Illegal
				if err == nil {
					result = porcupine.CheckOperationsTimeout(model(h.opts.Capacity), ops, time.Minute)
				}
				if result != porcupine.Ok {
					once.Do(func() { t.Errorf("after %d operations: %v %v\n%s", n, result, err, h) })
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	// What was not recorded proves nothing.
	require.GreaterOrEqual(t, recorded.Load(), int64(*linearOps))
	var all []string
	counts.Range(func(name, n any) bool {
		all = append(all, fmt.Sprint(name, " ", n.(*atomic.Int64).Load()))
		return true
	})
	slices.Sort(all)
	t.Logf("seed %d: %d operations, %d critical sections in %v, 0 illegal, 0 unknown, %d stalled histories left out: %s", seed, recorded.Load(),
		sections.Load(), time.Since(began).Round(time.Millisecond), stalled.Load(), strings.Join(all, ", "))
}

func (c *call) answer() string {
	switch {
	case c.op != "do":
		return fmt.Sprint(c.op, " ", c.ok)
	case c.thrown != nil:
		return "thrown"
	}
	return c.verdict.String()
}

func (h *history) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%+v\n", h.opts)
	for i := range h.calls {
		fmt.Fprintln(&b, &h.calls[i])
	}
	return b.String()
}
