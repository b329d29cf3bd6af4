package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/idempotent-go/idempotent"
)

// report prints what became of each event, and says whether each had its
// effect once.
func report(out io.Writer, events []*event, p *producer, rec *receiver) (passed bool) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "EVENT ID\tEVENT\tDELIVERIES\tFAILED\tEXECUTED\tREPLAYED\tSHARED\tREFUSED\tSTATE\tEFFECT RAN")
	deliveries, doubled, lost := 0, 0, 0
	for _, e := range events {
		c := rec.counts[e.id]
		if c == nil {
			c = &counts{}
		}
		id := e.id
		if e.anonymous {
			id = id[:13] + "…" // body_ and the digest's first digits
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%d\n", id, e.name, p.deliveries[e], c.failed,
			c.verdicts[idempotent.Executed], c.verdicts[idempotent.Replayed], c.verdicts[idempotent.Shared], c.verdicts[idempotent.Refused],
			c.state, c.effects)
		deliveries += p.deliveries[e]
		switch {
		case c.effects > 1:
			doubled++
		case c.effects == 0:
			lost++
		}
	}
	table.Flush()
	fmt.Fprintln(out, "STATE is what an event did to its resource. \"not newer\": its effect ran, and left the state to a newer event that came before it.")

	s, q := rec.endpoint.Stats(), rec.guard.Stats()
	fmt.Fprintf(out, "\nendpoint: %d executed, %d failed, %d replayed, %d shared, %d refused, %d stale, %d expired, %d retained\n",
		s.Executed, s.Failed, s.Replayed, s.Shared, s.Refused, s.Stale, s.Expired, s.Retained)
	fmt.Fprintf(out, "sequence: %d applied, %d dropped as not newer, %d resources\n", q.Applied, q.Dropped, q.Resources)
	if passed = doubled == 0 && lost == 0; !passed {
		fmt.Fprintf(out, "FAIL: %d events in %d deliveries: the effect of %d ran more than once, of %d never\n", len(events), deliveries, doubled, lost)
		return false
	}
	fmt.Fprintf(out, "PASS: %d events in %d deliveries, each event's effect ran 1 time\n", len(events), deliveries)
	return true
}
