package idemdebug

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// chart is a line over the time that a page's history can cover, with now at its
// right edge.
type chart struct {
	Line, Area string // SVG path data in a box of chartWidth by chartHeight; "" = nothing to draw yet
	Top        float64
}

const chartWidth, chartHeight = 240, 32

// draw makes a chart of a value for each sample from first on.
func (s series) draw(covers time.Duration, first int, value func(i int) float64) (c chart) {
	for i := first; i < len(s); i++ {
		c.Top = max(c.Top, value(i))
	}
	if len(s)-first < 2 {
		return c // one point is no line
	}
	x := func(i int) int {
		back := float64(s.now().at.Sub(s[i].at)) / float64(covers)
		return int(math.Round(chartWidth * (1 - back)))
	}
	y := func(i int) int {
		if c.Top == 0 {
			return chartHeight - 1
		}
		return 1 + int(math.Round((chartHeight-2)*(1-value(i)/c.Top)))
	}
	var line strings.Builder
	for i := first; i < len(s); i++ {
		fmt.Fprintf(&line, "L%d %d", x(i), y(i))
	}
	c.Line = "M" + line.String()[1:]
	c.Area = fmt.Sprintf("%sL%d %dL%d %dZ", c.Line, chartWidth, chartHeight, x(first), chartHeight)
	return c
}
