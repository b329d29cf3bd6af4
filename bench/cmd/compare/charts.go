package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/idempotent-go/idempotent/bench"
)

// A bar is one peer in a comparison.
type bar struct {
	peer  string
	floor bool
	summary
}

// panels of the comparison.
var comparisons = []struct{ workload, metric, title, unit string }{
	{"replay", "time", "Replay", "ns per call, 1,000 string keys, one caller"},
	{"cold", "time", "Cold call", "ns per call, new string keys, one caller"},
	{"large", "bytes", "Memory", "bytes per kept result: key of 36, value of 16"},
	{"large", "gc", "Garbage collection", "ms per collection, all results of the memory panel kept"},
}

func (r *results) bars(workload, metric string) (bars []bar) {
	for _, p := range bench.Peers() {
		if s := r.summary(figure{workload, p.Name, metric}); s.n > 0 {
			bars = append(bars, bar{p.Name, p.Floor, s})
		}
	}
	slices.SortStableFunc(bars, func(a, b bar) int { return cmp.Compare(a.median, b.median) })
	return bars
}

// comparisonChart draws replay, cold call, memory and collection as bars, the
// best on top.
func comparisonChart(r *results) string {
	const (
		panelWidth, row, head, gap = 500.0, 20.0, 52.0, 18.0
	)
	most := 1
	for _, p := range comparisons {
		most = max(most, len(r.bars(p.workload, p.metric)))
	}
	panelHeight := head + float64(most)*row + gap
	c := &canvas{width: 2 * panelWidth, height: 2*panelHeight + 14}
	for i, p := range comparisons {
		x, y := float64(i%2)*panelWidth, float64(i/2)*panelHeight
		c.text(x+18, y+28, "title", "start", p.title)
		c.text(x+18, y+44, "quiet", "start", p.unit+", less is better")
		c.bars(x, y+head, panelWidth, row, r.bars(p.workload, p.metric))
	}
	c.text(18, c.height-8, "quiet", "start", "Medians; the thin line is the 95 % range. Dashed: the floor. "+r.made())
	return c.svg("Replay, cold call, memory and garbage collection of idempotent and its peers")
}

func (c *canvas) bars(x, y, width, row float64, bars []bar) {
	const labels, values = 244.0, 62.0
	if len(bars) == 0 {
		c.text(x+18, y+16, "quiet", "start", "not measured in this run")
		return
	}
	highest := 0.0
	for _, b := range bars {
		highest = max(highest, b.median, b.high)
	}
	length := scale{0, highest, 0, width - labels - values - 12, false}
	for i, b := range bars {
		middle := y + (float64(i)+0.5)*row
		text, shape := "", "bar"
		switch {
		case b.peer == bench.Ours:
			text, shape = "ours", "bar-ours"
		case b.floor:
			text, shape = "quiet", "bar-floor"
		}
		c.text(x+labels-8, middle+4, text, "end", b.peer)
		c.printf(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2" class="%s"/>`,
			x+labels, middle-row*0.33, math.Max(length.at(b.median), 1), row*0.66, shape)
		if b.high > b.low {
			c.line(x+labels+length.at(b.low), middle, x+labels+length.at(b.high), middle, "range")
		}
		c.text(x+labels+length.at(max(b.median, b.high))+6, middle+4, text, "start", number(b.median))
	}
}

// plots of the growth.
var plots = []struct {
	metric, title, unit string
	logarithms          bool
}{
	{"replay", "Replay", "ns per call, random keys, one caller", false},
	{"cold", "Cold call", "ns per call, one caller", false},
	{"bytes", "Memory", "bytes per kept result: key of 36, value of 16", false},
	{"gc", "Garbage collection", "ms per collection", true},
	{"pause", "Slowest replay", "ms, while %s results end at one instant", true},
}

// A curve is one peer's medians by the number of kept keys.
type curve struct {
	peer   string
	index  int // of its colour
	xs, ys []float64
}

func (r *results) curves(metric string) (curves []curve) {
	for i, p := range bench.GrowthWorkload(0).Peers {
		v := curve{peer: p.Name, index: i}
		for _, n := range r.Scale.Growth {
			if s := r.summary(figure{growthID(n), p.Name, metric}); s.n > 0 && s.median > 0 {
				v.xs, v.ys = append(v.xs, float64(n)), append(v.ys, s.median)
			}
		}
		if len(v.xs) > 0 {
			curves = append(curves, v)
		}
	}
	return curves
}

// growthChart draws what grows with the number of kept keys, and a legend.
func growthChart(r *results) string {
	const panelWidth, panelHeight = 500.0, 290.0
	c := &canvas{width: 2 * panelWidth, height: 3*panelHeight + 22}
	for i, p := range plots {
		x, y := float64(i%2)*panelWidth, float64(i/2)*panelHeight
		unit := p.unit
		if strings.Contains(unit, "%s") {
			unit = fmt.Sprintf(unit, count(r.Scale.Expire))
		}
		c.text(x+18, y+28, "title", "start", p.title)
		c.text(x+18, y+44, "quiet", "start", unit)
		c.plot(x+62, y+60, panelWidth-62-24, panelHeight-60-40, r.Scale.Growth, r.curves(p.metric), p.logarithms)
	}
	c.legend(panelWidth+62, 2*panelHeight+60, r.curves("pause"))
	c.text(18, c.height-8, "quiet", "start", "Medians. "+r.made())
	return c.svg("Replay, cold call, memory, collection and slowest replay, by the number of kept keys")
}

func (c *canvas) plot(x, y, width, height float64, sizes []int, curves []curve, logarithms bool) {
	if len(curves) == 0 || len(sizes) < 2 {
		c.text(x, y+16, "quiet", "start", "not measured in this run")
		return
	}
	var values []float64
	for _, v := range curves {
		values = append(values, v.ys...)
	}
	vertical := upTo(values, y+height, y, logarithms)
	horizontal := scale{float64(sizes[0]), float64(sizes[len(sizes)-1]), x + 8, x + width, true}
	for _, tick := range vertical.ticks() {
		c.line(x, vertical.at(tick), x+width, vertical.at(tick), "grid")
		c.text(x-7, vertical.at(tick)+4, "quiet", "end", fmt.Sprintf("%g", tick))
	}
	c.line(x, y+height, x+width, y+height, "axis")
	lastLabel := math.Inf(-1)
	for _, n := range sizes {
		at := horizontal.at(float64(n))
		c.line(at, y+height, at, y+height+4, "axis")
		if at-lastLabel >= 34 { // labels do not touch
			lastLabel = at
			c.text(at, y+height+18, "quiet", "middle", count(n))
		}
	}
	c.text(x+width, y+height+34, "quiet", "end", "kept keys")
	for i := len(curves) - 1; i >= 0; i-- { // ours on top
		v := curves[i]
		points := make([]string, len(v.xs))
		for j := range v.xs {
			points[j] = fmt.Sprintf("%.1f,%.1f", horizontal.at(v.xs[j]), vertical.at(v.ys[j]))
		}
		c.printf(`<polyline points="%s" class="line s%d"/>`, strings.Join(points, " "), v.index)
		for j := range v.xs {
			c.printf(`<circle cx="%.1f" cy="%.1f" r="3" class="m%d"/>`, horizontal.at(v.xs[j]), vertical.at(v.ys[j]), v.index)
		}
	}
}

func (c *canvas) legend(x, y float64, curves []curve) {
	for i, v := range curves {
		at := y + float64(i)*24
		c.line(x, at, x+36, at, fmt.Sprintf("line s%d", v.index))
		c.printf(`<circle cx="%.1f" cy="%.1f" r="3" class="m%d"/>`, x+18, at, v.index)
		class := ""
		if v.peer == bench.Ours {
			class = "ours"
		}
		c.text(x+46, at+4, class, "start", v.peer)
	}
}
