package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// A process is a running gateway.
type process struct {
	*exec.Cmd
	address string
	lives   io.Closer // its standard input: it ends when this does, and with us
}

func startGateway(s settings, bankURL string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	p := &process{Cmd: exec.Command(self, "-gateway", bankURL, fmt.Sprintf("-unkeyed=%t", s.unkeyed))}
	p.Stderr = os.Stderr
	if p.lives, err = p.StdinPipe(); err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("payments: the gateway does not start: %w", err)
	}
	p.address = strings.TrimSpace(line)
	return p, nil
}

func (p *process) kill() {
	p.Process.Kill() // it may be dead already
	p.Wait()
}

// crashes are the moments at which the gateway dies, in turn. "" is none.
var crashes = []string{"", "before", "during", "after"}

// A payment is what the client saw of one order.
type payment struct {
	order
	crash    string
	attempts int
	restarts int
	receipts []string
}

// A shop is the client: it has its orders paid through whatever gateway runs.
type shop struct {
	settings
	orders  []*payment
	bankURL string
	gateway atomic.Pointer[process] // the bank's goroutines kill it
}

// charge pays all orders, and says whether each was charged once.
func charge(ctx context.Context, s settings, out io.Writer) (passed bool, err error) {
	shop := &shop{settings: s}
	crash := map[string]string{}
	for i := range s.orders {
		p := &payment{order: order{fmt.Sprintf("order-%d", i+1), 100 * (i + 1)}, crash: crashes[i%len(crashes)]}
		shop.orders, crash[p.ID] = append(shop.orders, p), p.crash
	}
	bank, err := newBank(func(o order, charges int) {
		if crash[o.ID] == "during" && charges == 1 {
			shop.gateway.Load().Process.Kill()
		}
	})
	if err != nil {
		return false, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return false, fmt.Errorf("payments: %w", err)
	}
	server := &http.Server{Handler: bank}
	go server.Serve(listener)
	defer server.Close()
	shop.bankURL = "http://" + listener.Addr().String()

	defer shop.stop()
	if err := shop.start(); err != nil {
		return false, err
	}
	for _, p := range shop.orders {
		if err := shop.pay(ctx, p); err != nil {
			return false, err
		}
	}
	return report(out, shop.orders, bank), nil
}

// pay asks until it has been answered twice: a client that has its receipt may
// still ask again. When the gateway has died it starts another and asks with
// the same key.
func (s *shop) pay(ctx context.Context, p *payment) error {
	for len(p.receipts) < 2 {
		receipt, err := p.ask(ctx, s.gateway.Load().address)
		switch {
		case err == nil:
			p.receipts = append(p.receipts, receipt)
		case ctx.Err() != nil || p.attempts > 10:
			return fmt.Errorf("payments: %s: %w", p.ID, err)
		default:
			p.restarts++
			s.stop()
			if err := s.start(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *shop) start() error {
	gateway, err := startGateway(s.settings, s.bankURL)
	if err == nil {
		s.gateway.Store(gateway)
	}
	return err
}

func (s *shop) stop() {
	if gateway := s.gateway.Load(); gateway != nil {
		gateway.kill()
	}
}

// ask is one attempt of the client. The key is the order's: whatever attempt
// this is, it is the same payment.
func (p *payment) ask(ctx context.Context, address string) (receipt string, err error) {
	p.attempts++
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	body, err := json.Marshal(p.order)
	if err != nil {
		return "", err
	}
	r, err := http.NewRequestWithContext(ctx, "POST", "http://"+address+"/payments", strings.NewReader(string(body)))
	if err != nil {
		return "", err
	}
	r.GetBody = nil // no retry but our own, so that attempts are counted
	r.Header.Set("Idempotency-Key", `"`+p.ID+`"`)
	if p.attempts == 1 {
		r.Header.Set(crashHeader, p.crash)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusCreated {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	return strings.TrimSpace(string(text)), err
}

// report prints what became of each order, and says whether each was charged once.
func report(out io.Writer, orders []*payment, b *bank) (passed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ORDER\tGATEWAY KILLED\tATTEMPTS\tRESTARTS\tCALLS TO THE BANK\tRECEIPT\tCHARGED")
	wrong := 0
	for _, p := range orders {
		killed := "-"
		if p.crash != "" {
			killed = p.crash + " the charge"
		}
		receipt := p.receipts[0]
		if p.receipts[1] != receipt {
			receipt += ", then " + p.receipts[1]
		}
		if b.charges[p.ID] != 1 || p.receipts[1] != p.receipts[0] {
			wrong++
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%d\n", p.ID, killed, p.attempts, p.restarts, b.calls[p.ID], receipt, b.charges[p.ID])
	}
	table.Flush()
	fmt.Fprintln(out, "Each order was sent once more after its receipt, on purpose: that last attempt must get the same receipt.")
	if wrong > 0 {
		fmt.Fprintf(out, "FAIL: %d of %d orders were not charged just once\n", wrong, len(orders))
		return false
	}
	fmt.Fprintf(out, "PASS: %d orders, each charged 1 time\n", len(orders))
	return true
}
