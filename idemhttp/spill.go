package idemhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// spilling is one running Spill.Put, fed through a pipe: whatever the body's
// size, memory holds the part that was there when it outgrew MaxResponse.
type spilling struct {
	pipe *io.PipeWriter
	done chan struct{} // closed after ref and err were written
	ref  string
	err  error
}

var errAborted = errors.New("idemhttp: the response was not completed")

func startSpill(ctx context.Context, to Spill, key string, head []byte) *spilling {
	reader, writer := io.Pipe()
	s := &spilling{pipe: writer, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer reader.CloseWithError(errAborted) // a Put that left early must not block the handler
		defer func() {
			if v := recover(); v != nil { // here it would end the process, not the request
				s.err = fmt.Errorf("idemhttp: Spill.Put panicked: %v", v)
			}
		}()
		s.ref, s.err = to.Put(ctx, key, io.MultiReader(bytes.NewReader(head), reader))
	}()
	return s
}

func (s *spilling) write(p []byte) bool {
	_, err := s.pipe.Write(p)
	return err == nil
}

// finish marks the body's end and waits for Put.
func (s *spilling) finish() (ref string, ok bool) {
	s.pipe.Close()
	<-s.done
	return s.ref, s.err == nil && s.ref != ""
}

// abort does nothing after finish.
func (s *spilling) abort() {
	s.pipe.CloseWithError(errAborted)
	<-s.done
}
