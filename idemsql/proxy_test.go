package idemsql_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemsql/internal/pgtest"
)

// A proxy stands between a client and the server and cuts the line at a chosen
// message of the client's.
type proxy struct {
	listener net.Listener
	server   string
	cut      atomic.Pointer[cut]
	gone     atomic.Bool // no new connections
	mu       sync.Mutex
	open     []net.Conn // guarded by mu
}

// A cut is made once: before the message that contains text reaches the
// server, or when the server has answered it.
type cut struct {
	text     []byte
	answered bool
	stay     bool // away, so that nothing can be looked up
}

func newProxy(t *testing.T, s *pgtest.Server) *proxy {
	target, err := url.Parse(s.DSN("postgres"))
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: l, server: target.Host}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() { l.Close(); p.close(); serving.Wait() })
	return p
}

func (p *proxy) dsn() string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", p.listener.Addr())
}

func (p *proxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		c.Close()
	}
	p.open = nil
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	if p.gone.Load() {
		return
	}
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.open = append(p.open, client, server)
	p.mu.Unlock()
	var muted atomic.Bool // answers are awaited and withheld
	var back sync.WaitGroup
	back.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := server.Read(buf)
			if err != nil || muted.Load() {
				client.Close()
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	p.forward(client, server, &muted)
	if !muted.Load() {
		server.Close()
	}
	back.Wait()
}

// forward passes the client's bytes on until it leaves or the line is cut.
func (p *proxy) forward(client io.Reader, server io.Writer, muted *atomic.Bool) {
	buf := make([]byte, 1<<16)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if c := p.cut.Load(); c != nil && bytes.Contains(buf[:n], c.text) && p.cut.CompareAndSwap(c, nil) {
			p.gone.Store(c.stay)
			if !c.answered {
				return
			}
			muted.Store(true)
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}
