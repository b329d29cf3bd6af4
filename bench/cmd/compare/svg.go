package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// canvas collects an SVG. Its colours follow the reader's light or dark mode;
// the background is painted, so that it is readable on any page.
type canvas struct {
	width, height float64
	body          strings.Builder
}

const style = `
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 12px; fill: #1f2937 }
.page { fill: #ffffff }
.title { font-size: 15px; font-weight: 600 }
.quiet { fill: #6b7280; font-size: 11px }
.ours { font-weight: 700; fill: #1d4ed8 }
.grid { stroke: #e5e7eb; stroke-width: 1 }
.axis { stroke: #9ca3af; stroke-width: 1 }
.range { stroke: #111827; stroke-width: 1.2; opacity: 0.55 }
.bar { fill: #cbd5e1 }
.bar-ours { fill: #2563eb }
.bar-floor { fill: none; stroke: #9ca3af; stroke-dasharray: 3 2 }
.line { fill: none; stroke-width: 2 }
.s0 { stroke: #2563eb; stroke-width: 3 } .m0 { fill: #2563eb }
.s1 { stroke: #d97706 } .m1 { fill: #d97706 }
.s2 { stroke: #059669 } .m2 { fill: #059669 }
.s3 { stroke: #9333ea } .m3 { fill: #9333ea }
.s4 { stroke: #6b7280; stroke-dasharray: 5 3 } .m4 { fill: #6b7280 }
.s5 { stroke: #9ca3af; stroke-dasharray: 1 3 } .m5 { fill: #9ca3af }
`

const darkStyle = `
text { fill: #e5e7eb }
.page { fill: #0d1117 }
.quiet { fill: #9ca3af }
.ours { fill: #93c5fd }
.grid { stroke: #21262d }
.axis { stroke: #6b7280 }
.range { stroke: #f9fafb }
.bar { fill: #475569 }
.bar-ours { fill: #3b82f6 }
.bar-floor { stroke: #6b7280 }
.s0 { stroke: #60a5fa } .m0 { fill: #60a5fa }
.s1 { stroke: #fbbf24 } .m1 { fill: #fbbf24 }
.s2 { stroke: #34d399 } .m2 { fill: #34d399 }
.s3 { stroke: #c084fc } .m3 { fill: #c084fc }
.s4 { stroke: #9ca3af } .m4 { fill: #9ca3af }
.s5 { stroke: #6b7280 } .m5 { fill: #6b7280 }
`

func (c *canvas) printf(format string, args ...any) { fmt.Fprintf(&c.body, format+"\n", args...) }

func (c *canvas) text(x, y float64, class, anchor, text string) {
	c.printf(`<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`, x, y, class, anchor, html.EscapeString(text))
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	c.printf(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

// svg closes the picture. The title is what a screen reader says.
func (c *canvas) svg(title string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]g %[2]g" width="%[1]g" height="%[2]g" role="img">
<title>%[3]s</title>
<style>%[4]s@media (prefers-color-scheme: dark) {%[5]s}</style>
<rect class="page" width="%[1]g" height="%[2]g" rx="6"/>
%[6]s</svg>
`, c.width, c.height, html.EscapeString(title), style, darkStyle, c.body.String())
}

// scale maps values to pixels, straight or by their logarithm.
type scale struct {
	low, high  float64 // values
	from, to   float64 // pixels
	logarithms bool
}

func (s scale) at(v float64) float64 {
	low, high := s.low, s.high
	if s.logarithms {
		v, low, high = math.Log10(v), math.Log10(low), math.Log10(high)
	}
	return s.from + (v-low)/(high-low)*(s.to-s.from)
}

// upTo is a scale from 0, or from a power of ten, to a round number beyond the
// values.
func upTo(values []float64, from, to float64, logarithms bool) scale {
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		low, high = math.Min(low, v), math.Max(high, v)
	}
	if logarithms {
		low, high = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high)))
		if low == high {
			high *= 10
		}
		return scale{low, high, from, to, true}
	}
	step := roundStep(high)
	return scale{0, math.Max(step, step*math.Ceil(high/step)), from, to, false}
}

// ticks are the round numbers of a scale.
func (s scale) ticks() (ticks []float64) {
	if s.logarithms {
		for v := s.low; v <= s.high*1.001; v *= 10 {
			ticks = append(ticks, v)
		}
		return ticks
	}
	step := roundStep(s.high)
	for i := 0.0; i*step <= s.high*1.001; i++ {
		ticks = append(ticks, i*step)
	}
	return ticks
}

// roundStep divides a range into at most five steps of 1, 2 or 5.
func roundStep(high float64) float64 {
	if high <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(high)))
	for _, step := range []float64{0.2, 0.5, 1, 2} {
		if high/(step*power) <= 5 {
			return step * power
		}
	}
	return 2 * power
}
