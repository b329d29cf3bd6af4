package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
	"github.com/idempotent-go/idempotent/sequence"
)

// A receiver records each event once and keeps the newest state of each
// resource. The counts stand outside of what they measure.
type receiver struct {
	http.Handler
	endpoint *idempotent.Endpoint[string, idemhttp.Response]
	guard    *sequence.Guard[string]

	mu     sync.Mutex
	counts map[string]*counts // by event
}

// counts is what the receiver saw of one event.
type counts struct {
	verdicts [4]int // of calls that ended without an error, by idempotent.Verdict
	failed   int    // handler runs that answered 500
	effects  int    // handler runs that had their effect
	state    string // what became of the resource's state
}

func newReceiver(window time.Duration, unguarded bool) (*receiver, error) {
	endpoint, err := idempotent.New(idempotent.Options[string, idemhttp.Response]{
		TTL: window,
		// A retry after the window: the producer has been told 2xx, so this is a
		// mistake of its own, and running again would be worse than refusing.
		OnStale: func(context.Context, string, time.Time) error { return idempotent.ErrStale },
	})
	if err != nil {
		return nil, err
	}
	guard, err := sequence.New[string](sequence.Options{})
	if err != nil {
		return nil, err
	}
	rec := &receiver{endpoint: endpoint, guard: guard, counts: map[string]*counts{}}
	var handler http.Handler = http.HandlerFunc(rec.receive)
	if !unguarded {
		handler = idemhttp.Webhook(observed{rec}, idemhttp.Options{
			Key:     eventKey,
			MaxWait: 10 * time.Second,
		})(handler)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /webhook", handler)
	rec.Handler = mux
	return rec, nil
}

// eventKey is the delivery's id, or the digest of its body. GitHub's payloads
// have no event id inside.
var eventKey = idemhttp.FirstOf(idemhttp.Header("X-GitHub-Delivery"), idemhttp.BodyHash)

// work is what recording one event takes.
const work = 2 * time.Millisecond

// receive is the application: it knows nothing of duplicates.
func (rec *receiver) receive(w http.ResponseWriter, r *http.Request) {
	payload, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "unreadable", http.StatusBadRequest)
		return
	}
	id, err := eventKey(r, payload)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if rec.fails(id) {
		http.Error(w, "the database is restarting", http.StatusInternalServerError)
		return
	}
	time.Sleep(work)
	state := "-"
	if resource, asOf, ok := subject(payload); ok {
		applied, err := rec.guard.Apply(r.Context(), resource, asOf, func(context.Context) error { return nil })
		if err != nil {
			http.Error(w, "not applied", http.StatusInternalServerError)
			return
		}
		state = "not newer"
		if applied {
			state = "updated"
		}
	}
	rec.count(id, func(c *counts) { c.effects++; c.state = state })
	fmt.Fprintf(w, "recorded %s\n", r.Header.Get("X-GitHub-Event"))
}

// fails has the first attempt of every third event fail.
func (rec *receiver) fails(id string) (failed bool) {
	digest := fnv.New32a()
	io.WriteString(digest, id)
	rec.count(id, func(c *counts) {
		if failed = digest.Sum32()%3 == 0 && c.failed == 0; failed {
			c.failed++
		}
	})
	return failed
}

func (rec *receiver) count(id string, change func(*counts)) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	c := rec.counts[id]
	if c == nil {
		c = &counts{}
		rec.counts[id] = c
	}
	change(c)
}

// observed is the endpoint, with the verdicts noted.
type observed struct{ *receiver }

func (o observed) Handle(ctx context.Context, req idempotent.Request[string], effect func(context.Context) (idemhttp.Response, error)) (idemhttp.Response, idempotent.Verdict, error) {
	response, verdict, err := o.endpoint.Handle(ctx, req, effect)
	if err == nil || verdict == idempotent.Refused {
		id := req.Key[strings.LastIndexByte(req.Key, ' ')+1:] // the executor's key ends in the event's
		o.count(id, func(c *counts) { c.verdicts[verdict]++ })
	}
	return response, verdict, err
}
