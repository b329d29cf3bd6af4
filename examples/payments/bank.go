package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
)

// An order is what both services are asked to charge.
type order struct {
	ID     string `json:"order"`
	Amount int    `json:"amount"`
}

// A bank is the second service. It stays up; where it does not, its records
// belong into its database, together with the charges (idemsql).
type bank struct {
	http.Handler
	atWork func(o order, charges int) // called while an order is being charged

	mu      sync.Mutex
	calls   map[string]int // by order
	charges map[string]int
}

func newBank(atWork func(o order, charges int)) (*bank, error) {
	endpoint, err := idempotent.New(idempotent.Options[string, idemhttp.Response]{})
	if err != nil {
		return nil, err
	}
	b := &bank{atWork: atWork, calls: map[string]int{}, charges: map[string]int{}}
	charge := idemhttp.IdempotencyKey(endpoint, idemhttp.Options{Optional: true})(http.HandlerFunc(b.charge))
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges/{order}", func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		b.calls[r.PathValue("order")]++
		b.mu.Unlock()
		charge.ServeHTTP(w, r)
	})
	b.Handler = mux
	return b, nil
}

// charge takes the money. It knows nothing of keys.
func (b *bank) charge(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, "no order", http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	b.charges[o.ID]++
	n := b.charges[o.ID]
	b.mu.Unlock()
	b.atWork(o, n)
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "charge %s/%d of %d\n", o.ID, n, o.Amount)
}
