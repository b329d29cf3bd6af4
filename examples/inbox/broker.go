package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// A broker delivers every payment until it is acknowledged, and each one twice
// in a row, as brokers may.
type broker struct {
	acked     []bool
	delivered int
	verdicts  map[string]int // of the acknowledgements
}

func newBroker(payments int) *broker {
	return &broker{acked: make([]bool, payments), verdicts: map[string]int{}}
}

func payment(n int) string { return fmt.Sprintf("pay_%03d", n) }

func (b *broker) acknowledged() (n int) {
	for _, acked := range b.acked {
		if acked {
			n++
		}
	}
	return n
}

// deliver starts a consumer, which is to die as crash says, and gives it what
// is not acknowledged until it dies or all is.
func (b *broker) deliver(ctx context.Context, name string, postgres bool, crash string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), "INBOX_STORE="+name, fmt.Sprint("INBOX_POSTGRES=", postgres), "INBOX_CRASH="+crash)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	b.serve(in, bufio.NewReader(out))
	in.Close()
	return b.expect(cmd.Wait(), crash)
}

// serve returns when everything is acknowledged, or the consumer is gone.
func (b *broker) serve(in io.Writer, out *bufio.Reader) {
	for n := range b.acked {
		for !b.acked[n] {
			for range 2 {
				if _, err := fmt.Fprintln(in, payment(n), 100+n); err != nil {
					return
				}
				b.delivered++
				answer, err := out.ReadString('\n')
				if err != nil {
					return
				}
				b.verdicts[strings.TrimSpace(answer)]++
				b.acked[n] = true
			}
		}
	}
}

// expect checks that the consumer died as it was meant to, or not at all.
func (b *broker) expect(ended error, crash string) error {
	exit, exited := errors.AsType[*exec.ExitError](ended)
	switch {
	case crash == "":
		return ended
	case !exited || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL:
		return fmt.Errorf("the consumer was to be killed, and ended with %v", ended)
	}
	return nil
}
