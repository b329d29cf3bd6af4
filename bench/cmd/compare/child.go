package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"

	"github.com/idempotent-go/idempotent/bench"
)

// childFlag makes the program measure one peer in one workload, for another.
const childFlag = "-child"

// An order is what a child finds in its standard input.
type order struct {
	Job, Peer string
	Scale     bench.Scale
}

// sample runs a peer. A heavy workload has a process of its own: some peers cannot
// be let go of, and what they hold would make every later collection of the same
// process longer.
func (t turn) sample(p bench.Peer, scale bench.Scale) (measured bench.Sample, err error) {
	if !t.Heavy {
		return t.Run(p, scale), nil
	}
	in, err := json.Marshal(order{t.id, p.Name, scale})
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	run := exec.Command(self, childFlag)
	run.Stdin, run.Stderr = bytes.NewReader(in), os.Stderr
	out, err := run.Output()
	if err == nil {
		err = json.Unmarshal(out, &measured)
	}
	if err != nil {
		return nil, fmt.Errorf("compare: %v, %s: %w", t, p.Name, err)
	}
	return measured, nil
}

// child does what sample asks for.
func child(in io.Reader, out io.Writer) error {
	var o order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return err
	}
	every := config{rounds: 1, heavyRounds: 1, growthRounds: 1, workloads: regexp.MustCompile("")}
	for _, j := range every.jobs(o.Scale) {
		for _, p := range j.Peers {
			if j.id == o.Job && p.Name == o.Peer {
				return json.NewEncoder(out).Encode(j.Run(p, o.Scale))
			}
		}
	}
	return fmt.Errorf("no workload %q with peer %q", o.Job, o.Peer)
}
