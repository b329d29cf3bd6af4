package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// startRedis starts a server on a free port of the loopback and returns how to
// stop it.
func startRedis(out io.Writer) (addr string, stop func(), err error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return startEmbedded(out)
	}
	addr, port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "nodes-")
	if err != nil {
		return "", nil, err
	}
	server := exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "")
	if err := server.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		_ = os.RemoveAll(dir)
	}
	if err := ping(addr); err != nil {
		stop()
		return "", nil, err
	}
	fmt.Fprintf(out, "redis-server of %s on %s\n\n", path, addr)
	return addr, stop, nil
}

func startEmbedded(out io.Writer) (addr string, stop func(), err error) {
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		return "", nil, err
	}
	fmt.Fprintf(out, "No redis-server on PATH (Debian: apt-get install redis-server).\n"+
		"Running on an embedded stand-in, miniredis, on %s: the same protocol, no persistence.\n\n", server.Addr())
	return server.Addr(), server.Close, nil
}

func freePort() (addr, port string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	defer l.Close()
	addr = l.Addr().String()
	_, port, err = net.SplitHostPort(addr)
	return addr, port, err
}

// ping waits for the server to answer.
func ping(addr string) error {
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: 100, MaxRetryBackoff: 50 * time.Millisecond})
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return client.Ping(ctx).Err()
}
