package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
)

// crashHeader asks the gateway to die before or after its call to the bank.
const crashHeader = "X-Crash"

// serveGateway is the first service. It tells its address on out and serves
// until in ends, which is when its parent has gone.
func serveGateway(s settings, in io.Reader, out io.Writer) error {
	endpoint, err := idempotent.New(idempotent.Options[string, idemhttp.Response]{})
	if err != nil {
		return err
	}
	client := http.DefaultClient
	if !s.unkeyed {
		client = &http.Client{Transport: &idemhttp.Transport{}}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("payments: %w", err)
	}
	pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { pay(w, r, client, s.gateway) })
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idemhttp.IdempotencyKey(endpoint, idemhttp.Options{})(pay))
	go http.Serve(listener, mux)
	fmt.Fprintln(out, listener.Addr())
	_, err = io.Copy(io.Discard, in)
	return err
}

// pay has the bank charge the order. Whatever goes wrong between the two is
// answered with 502, which is not kept: the client's retry runs this again, and
// the bank sees the same key again.
func pay(w http.ResponseWriter, r *http.Request, client *http.Client, bankURL string) {
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.ID == "" {
		http.Error(w, "no order", http.StatusBadRequest)
		return
	}
	dieIf(r.Header.Get(crashHeader) == "before")
	body, err := json.Marshal(o)
	if err != nil {
		http.Error(w, "no order", http.StatusBadRequest)
		return
	}
	// The request's context is the effect's: the Transport finds the key there.
	call, err := http.NewRequestWithContext(r.Context(), "POST", bankURL+"/charges/"+o.ID, bytes.NewReader(body))
	if err != nil {
		http.Error(w, "no order", http.StatusBadRequest)
		return
	}
	resp, err := client.Do(call)
	if err != nil {
		http.Error(w, "the bank does not answer", http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	receipt, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusCreated {
		http.Error(w, "the bank has not charged", http.StatusBadGateway)
		return
	}
	dieIf(r.Header.Get(crashHeader) == "after")
	w.WriteHeader(http.StatusCreated)
	w.Write(receipt)
}

// dieIf ends the process as a power cut does.
func dieIf(die bool) {
	if !die {
		return
	}
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		self.Kill()
	}
	select {}
}
