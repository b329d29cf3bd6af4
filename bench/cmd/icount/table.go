package main

import (
	"fmt"
	"strings"
)

// counts are what one call of a kind costs.
type counts struct {
	work                        string
	instructions, allocs, bytes float64
}

// table is what is stored.
type table struct {
	toolchain string
	counts    []counts
}

const heading = "# Per call, counted by callgrind: go run ./bench/cmd/icount -write"

func (t table) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n# toolchain: %s\n%-28s %12s %12s %12s\n", heading, t.toolchain, "# call", "instructions", "allocations", "bytes")
	for _, c := range t.counts {
		fmt.Fprintf(&text, "%-28s %12.1f %12.3f %12.1f\n", c.work, c.instructions, c.allocs, c.bytes)
	}
	return text.String()
}

func parse(text string) (t table, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "# toolchain: "); ok {
			t.toolchain = name
		}
		if line == "" || line[0] == '#' {
			continue
		}
		var c counts
		if n, err := fmt.Sscan(line, &c.work, &c.instructions, &c.allocs, &c.bytes); n != 4 {
			return table{}, fmt.Errorf("line %q: want a name and three numbers: %w", line, err)
		}
		t.counts = append(t.counts, c)
	}
	if len(t.counts) == 0 {
		return table{}, fmt.Errorf("no counts in it")
	}
	return t, nil
}
