package idemhttp_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
)

func ExampleWebhook() {
	endpoint, err := idempotent.New(idempotent.Options[string, idemhttp.Response]{
		TTL:      72 * time.Hour, // longer than the producer retries
		Capacity: 1_000_000,
	})
	if err != nil {
		panic(err)
	}
	orders := 0
	mux := http.NewServeMux()
	mux.Handle("POST /hooks/shop", idemhttp.Webhook(endpoint, idemhttp.Options{})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			orders++
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprintf(w, "order %d", orders)
		})))

	for range 2 {
		r := httptest.NewRequest("POST", "/hooks/shop", strings.NewReader(`{"id": "evt_1"}`))
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Printf("%d %s, replayed: %q\n", w.Code, w.Body, w.Header().Get("Idempotency-Replayed"))
	}
	// Output:
	// 202 order 1, replayed: ""
	// 202 order 1, replayed: "true"
}

func ExampleIdempotencyKey() {
	endpoint, err := idempotent.New(idempotent.Options[string, idemhttp.Response]{})
	if err != nil {
		panic(err)
	}
	api := idemhttp.IdempotencyKey(endpoint, idemhttp.Options{
		Scope: func(r *http.Request) string { return r.Header.Get("X-Account") }, // who is authenticated
	})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/charges/1")
		w.WriteHeader(http.StatusCreated)
	}))

	call := func(account, key, body string) {
		r := httptest.NewRequest("POST", "/charges", strings.NewReader(body))
		r.Header.Set("X-Account", account)
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		fmt.Printf("%d %q, replayed: %q\n", w.Code, w.Header().Get("Location"), w.Header().Get("Idempotency-Replayed"))
	}
	call("a", `"k1"`, "amount=5")
	call("a", `"k1"`, "amount=5")
	call("a", `"k1"`, "amount=6") // another request under the same key
	call("b", `"k1"`, "amount=6") // another account's key
	// Output:
	// 201 "/charges/1", replayed: ""
	// 201 "/charges/1", replayed: "true"
	// 422 "", replayed: ""
	// 201 "/charges/1", replayed: ""
}

func ExampleTransport() {
	bank := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path, r.Header.Get("Idempotency-Key"))
	}))
	defer bank.Close()
	client := &http.Client{Transport: &idemhttp.Transport{}}

	endpoint, err := idempotent.New(idempotent.Options[string, int]{})
	if err != nil {
		panic(err)
	}
	_, _, err = endpoint.Do(context.Background(), "evt_1", func(ctx context.Context) (int, error) {
		// The request must have the effect's ctx: that is where the key is.
		r, err := http.NewRequestWithContext(ctx, "POST", bank.URL+"/charges", strings.NewReader("amount=5"))
		if err != nil {
			return 0, err
		}
		resp, err := client.Do(r)
		if err != nil {
			return 0, idempotent.Unknown(err) // or a plain error, as the bank keeps by key
		}
		return resp.StatusCode, resp.Body.Close()
	})
	fmt.Println(err)
	// Output:
	// POST /charges evt_1
	// <nil>
}

// A bucket is what a blob store's client offers, by whatever names. Its
// lifecycle rule removes objects that are older than the executor's window.
type bucket interface {
	Upload(ctx context.Context, name string, body io.Reader) error
	Download(ctx context.Context, name string) (io.ReadCloser, error)
}

// blobs is the whole adapter.
type blobs struct{ bucket }

func (b blobs) Put(ctx context.Context, _ string, body io.Reader) (ref string, err error) {
	ref = fmt.Sprintf("responses/%d", time.Now().UnixNano()) // or a random name
	return ref, b.Upload(ctx, ref, body)
}

func (b blobs) Open(ctx context.Context, ref string) (io.ReadCloser, error) {
	return b.Download(ctx, ref)
}

func ExampleSpill() {
	endpoint, err := idempotent.New(idempotent.Options[string, idemhttp.Response]{})
	if err != nil {
		panic(err)
	}
	report := idemhttp.Webhook(endpoint, idemhttp.Options{
		MaxResponse: 1 << 10,
		Spill:       blobs{memory{}}, // or idemhttp.Dir("/var/lib/responses", 72*time.Hour)
	})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Repeat("a long report\n", 10_000))
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/reports", strings.NewReader(`{"id": "evt_1"}`))
		w := httptest.NewRecorder()
		report.ServeHTTP(w, r)
		fmt.Printf("%d bytes, replayed: %q\n", w.Body.Len(), w.Header().Get("Idempotency-Replayed"))
	}
	// Output:
	// 140000 bytes, replayed: ""
	// 140000 bytes, replayed: "true"
}

// memory stands for a real bucket.
type memory map[string][]byte

func (m memory) Upload(_ context.Context, name string, body io.Reader) (err error) {
	m[name], err = io.ReadAll(body)
	return err
}

func (m memory) Download(_ context.Context, name string) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(m[name])), nil
}
