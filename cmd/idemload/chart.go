package main

import (
	"bytes"
	"fmt"
	"os"
	"time"
)

// Of the chart: its size and the box that the bars are in.
const (
	chartWidth, chartHeight   = 760, 380
	boxLeft, boxTop, boxRight = 64, 84, 744
	boxBottom                 = 320
	barGap                    = 2
	chartStyle                = `text{font:13px system-ui,sans-serif;fill:#1b1f24}.dim{fill:#57606a}.title{font-size:16px;font-weight:600}.rule{stroke:#d5d9de}.ground{fill:#fff}` +
		`.executed{fill:#1a7f37}.failed{fill:#cf222e}.replayed{fill:#2f6fd0}.shared{fill:#9a5fd4}.refused{fill:#d4872f}` +
		`@media(prefers-color-scheme:dark){text{fill:#e4e8ec}.dim{fill:#9aa5b1}.rule{stroke:#333c46}.ground{fill:#101418}` +
		`.executed{fill:#3fb950}.failed{fill:#ff7b72}.replayed{fill:#6ea8ff}.shared{fill:#c297ff}.refused{fill:#f0a356}}`
)

// writeChart draws the latencies as a histogram, each bar divided by what became
// of the calls.
func writeChart(path string, l *load, took time.Duration) error {
	if err := os.WriteFile(path, chart(l, took), 0o644); err != nil {
		return fmt.Errorf("idemload: %w", err)
	}
	return nil
}

func chart(l *load, took time.Duration) []byte {
	byOutcome := l.latencies()
	var all histogram
	var parts [outcomes][64]uint64
	for o := range byOutcome {
		all.merge(&byOutcome[o])
		parts[o] = byOutcome[o].octaves()
	}
	sums := all.octaves()
	first, last := bounds(sums)
	var most uint64
	for _, n := range sums {
		most = max(most, n)
	}

	var svg bytes.Buffer
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title"><style>%s</style>`+"\n",
		chartWidth, chartHeight, chartWidth, chartHeight, chartStyle)
	title := fmt.Sprintf("Latency of %s by %s in %s", plural(int(all.count), "call"), plural(len(l.callers), "caller"), took.Round(time.Millisecond))
	fmt.Fprintf(&svg, `<title id="title">%s</title><rect class="ground" width="100%%" height="100%%"/><text class="title" x="16" y="28">%s</text>`+"\n", title, title)
	legend(&svg, &byOutcome)
	grid(&svg, most, all.count)

	labelled := 1 + (last-first)/10 // every so many bars: more would run into each other
	width := float64(boxRight-boxLeft) / float64(max(1, last-first+1))
	for i := first; i <= last; i++ {
		x := boxLeft + float64(i-first)*width
		top := float64(boxBottom)
		for o := range parts {
			if parts[o][i] > 0 {
				height := max(1, float64(boxBottom-boxTop)*float64(parts[o][i])/float64(most)) // rare calls are to be seen too
				top -= height
				fmt.Fprintf(&svg, `<rect class="%s" x="%.1f" y="%.2f" width="%.1f" height="%.2f"><title>%s to %s: %s %s</title></rect>`+"\n",
					outcomeNames[o], x+barGap/2, top, width-barGap, height, brief(1<<i), brief(1<<(i+1)), count(parts[o][i]), outcomeNames[o])
			}
		}
		if (i-first)%labelled == 0 {
			fmt.Fprintf(&svg, `<text class="dim" x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x, boxBottom+20, brief(1<<i))
		}
	}
	fmt.Fprintf(&svg, `<text class="dim" x="%d" y="%d" text-anchor="middle">a call takes, from the bar's left edge to the next</text></svg>`+"\n", (boxLeft+boxRight)/2, boxBottom+44)
	return svg.Bytes()
}

// legend names the colours, with the medians.
func legend(svg *bytes.Buffer, byOutcome *[outcomes]histogram) {
	fmt.Fprint(svg, `<text class="dim" x="16" y="56">median</text>`+"\n")
	x := 80
	for o := range byOutcome {
		if byOutcome[o].count > 0 {
			text := fmt.Sprintf("%s %s", outcomeNames[o], brief(byOutcome[o].quantile(0.5)))
			fmt.Fprintf(svg, `<rect class="%s" x="%d" y="45" width="12" height="12"/><text x="%d" y="56">%s</text>`+"\n", outcomeNames[o], x, x+17, text)
			x += 135
		}
	}
}

// grid draws the scale of the calls' share.
func grid(svg *bytes.Buffer, most, all uint64) {
	for _, part := range []float64{0, 0.25, 0.5, 0.75, 1} {
		y := boxBottom - part*(boxBottom-boxTop)
		share := 100 * part * float64(most) / float64(max(1, all))
		fmt.Fprintf(svg, `<line class="rule" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/><text class="dim" x="%d" y="%.1f" text-anchor="end">%.0f%%</text>`+"\n",
			boxLeft, y, boxRight, y, boxLeft-8, y+4, share)
	}
}
