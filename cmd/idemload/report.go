package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// latencies are all callers' together.
func (l *load) latencies() (sums [outcomes]histogram) {
	for i := range l.callers {
		for o := range sums {
			sums[o].merge(&l.callers[i].latencies[o])
		}
	}
	return sums
}

// report writes what the calls came to and how long they took.
func report(out io.Writer, l *load, took time.Duration) {
	byOutcome := l.latencies()
	var all histogram
	for o := range byOutcome {
		all.merge(&byOutcome[o])
	}
	fmt.Fprintf(out, "\n%-9s %12s %6s %9s %9s %9s %9s\n", "", "calls", "", "median", "99%", "99.9%", "longest")
	row := func(name string, h *histogram) {
		if h.count > 0 {
			fmt.Fprintf(out, "%-9s %12s %5.1f%% %9s %9s %9s %9s\n", name, count(h.count), 100*float64(h.count)/float64(all.count),
				brief(h.quantile(0.5)), brief(h.quantile(0.99)), brief(h.quantile(0.999)), brief(h.longest))
		}
	}
	for o := range byOutcome {
		row(outcomeNames[o], &byOutcome[o])
	}
	row("all", &all)
	fmt.Fprintf(out, "\n%s in %s: %s/s\n\n", plural(int(all.count), "call"), took.Round(time.Millisecond), count(int(float64(all.count)/took.Seconds())))
	bars(out, &all)
}

// bars draws a histogram, a line for each power of two.
func bars(out io.Writer, h *histogram) {
	sums := h.octaves()
	first, last := bounds(sums)
	var most uint64
	for _, n := range sums {
		most = max(most, n)
	}
	for i := first; i <= last; i++ {
		fmt.Fprintf(out, "%7s … %7s │%-40s %6.2f%%\n", brief(1<<i), brief(1<<(i+1)), bar(sums[i], most), 100*float64(sums[i])/float64(max(1, h.count)))
	}
	fmt.Fprintln(out)
}

// bounds are the first and the last that are not zero.
func bounds(sums [64]uint64) (first, last int) {
	first = len(sums)
	for i, n := range sums {
		if n > 0 {
			first, last = min(first, i), i
		}
	}
	return first, last
}

// bar is up to 40 characters long, to an eighth; what is there is seen.
func bar(n, most uint64) string {
	if n == 0 {
		return ""
	}
	eighths := max(1, int(320*float64(n)/float64(most)+0.5))
	text := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		text += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return text
}

// verdict says what was found, and returns the program's exit code.
func (l *load) verdict(out io.Writer) int {
	committed := 0
	for i := range l.committed {
		if l.committed[i].Load() > 0 {
			committed++
		}
	}
	doubled, overlapped, wrong := l.doubled.Load(), l.overlapped.Load(), l.wrong.Load()
	if doubled+overlapped+wrong > 0 {
		fmt.Fprintf(out, "FAIL: %d effects ran again after they had succeeded, %d ran beside themselves, %d results were not the key's own.\n",
			doubled, overlapped, wrong)
		return 1
	}
	if l.next.Load() < l.lastCall() {
		fmt.Fprintln(out, "The time was over before all calls were made.")
	}
	fmt.Fprintf(out, "PASS: of %s, each effect succeeded once.\n", plural(committed, "key"))
	return 0
}

// brief writes a duration with three digits at most.
func brief(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		if d >= u.unit {
			n := float64(d) / float64(u.unit)
			digits := 0
			if n < 10 {
				digits = 1
			}
			return fmt.Sprintf("%.*f %s", digits, n, u.name)
		}
	}
	return fmt.Sprintf("%d ns", d)
}

// count writes n with its thousands apart.
func count[N int | int64 | uint64](n N) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return count(n) + " " + thing + "s"
}
