package idemredis_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A proxy stands between a client and a server and spoils their talk.
type proxy struct {
	addr   string
	delay  atomic.Int64 // ns that each answer is held back
	mute   atomic.Bool  // answers are swallowed
	refuse atomic.Bool  // new connections are closed at once

	mu    sync.Mutex
	conns []net.Conn
}

func startProxy(t testing.TB, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{addr: l.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server)
			if err != nil || p.refuse.Load() {
				_ = near.Close()
				if far != nil {
					_ = far.Close()
				}
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, near, far)
			p.mu.Unlock()
			serving.Go(func() { _, _ = io.Copy(far, near); _ = far.Close() })
			serving.Go(func() { p.answer(near, far); _ = near.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		serving.Wait()
	})
	return p
}

func (p *proxy) answer(near, far net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := far.Read(buf)
		if err != nil {
			return
		}
		if d := time.Duration(p.delay.Load()); d > 0 {
			<-time.After(d)
		}
		if p.mute.Load() {
			continue
		}
		if _, err := near.Write(buf[:n]); err != nil {
			return
		}
	}
}

// cut breaks every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// down cuts what there is and lets nothing new through, until up.
func (p *proxy) down() { p.refuse.Store(true); p.cut() }
func (p *proxy) up()   { p.refuse.Store(false); p.mute.Store(false) }
