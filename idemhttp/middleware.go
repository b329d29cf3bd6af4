package idemhttp

import (
	"net/http"

	"github.com/idempotent-go/idempotent"
)

// Webhook answers a producer that delivers at least once and wants a 2xx. Its
// own key rule is the Webhook-Id header, then X-GitHub-Delivery, then the "id"
// string of a JSON object body, then [BodyHash]; method and path belong to the
// scope. A safe request (GET, HEAD) with neither an event id nor a body is no
// delivery and passes. Its own keep rule is 2xx and 3xx: after anything else
// the redelivery runs the handler again.
//
// A duplicate of a finished delivery gets the kept response, one of a running
// delivery waits up to Options.MaxWait and then gets 409 with Retry-After. A
// panic of the handler goes on to net/http and leaves the key free. It panics
// on a nil ex and on bad Options.
func Webhook(ex Executor, opts Options) func(http.Handler) http.Handler {
	g := newGuard(ex, opts, func(status int) bool { return status >= 200 && status < 400 })
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.serveWebhook(w, r, next)
		})
	}
}

// IdempotencyKey guards an API whose clients name each request by the
// Idempotency-Key header (draft-ietf-httpapi-idempotency-key-header). Only
// POST, PUT, PATCH and DELETE are guarded, others pass untouched and unread. A
// request that differs in method, path, query or body from the one its key is
// known with gets 422. Its own keep rule is every status but 408, 425, 429 and
// 5xx. Waiting, panics and bad arguments are as with [Webhook].
func IdempotencyKey(ex Executor, opts Options) func(http.Handler) http.Handler {
	g := newGuard(ex, opts, func(status int) bool {
		switch status {
		case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
			return false
		}
		return status < 500
	})
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.Method {
			case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
				g.serveClient(w, r, next)
			default:
				next.ServeHTTP(w, r)
			}
		})
	}
}

// guard is the mechanism that both middlewares share.
type guard struct {
	ex   Executor
	opts Options
}

func newGuard(ex Executor, opts Options, keep func(int) bool) *guard {
	if ex == nil {
		panic("idemhttp: the Executor is nil")
	}
	return &guard{ex, opts.withDefaults(keep)}
}

func (g *guard) serveWebhook(w http.ResponseWriter, r *http.Request, next http.Handler) {
	body, refused := g.read(w, r)
	if refused != nil {
		refused.write(w)
		return
	}
	rule, optional := g.opts.Key, false
	if rule == nil {
		rule, optional = eventID, true
	}
	id, refused := findKey(rule, r, body, optional)
	switch {
	case refused != nil:
		refused.write(w)
	case id == "":
		next.ServeHTTP(w, withBody(r.Context(), r, body))
	default:
		g.run(w, r, next, body, idempotent.Request[string]{Key: joinWebhook(r, g.scope(r), id)})
	}
}

func (g *guard) serveClient(w http.ResponseWriter, r *http.Request, next http.Handler) {
	rule := g.opts.Key
	if rule == nil {
		// The header alone decides here: a bad one is refused with the body
		// unread, and without one the handler may get the body as it comes.
		rule = clientKey
		id, refused := findKey(rule, r, nil, g.opts.Optional)
		if refused != nil {
			refused.write(w)
			return
		}
		if id == "" && g.opts.Verify == nil {
			next.ServeHTTP(w, r)
			return
		}
	}
	body, refused := g.read(w, r)
	if refused != nil {
		refused.write(w)
		return
	}
	id, refused := findKey(rule, r, body, g.opts.Optional)
	switch {
	case refused != nil:
		refused.write(w)
	case id == "":
		next.ServeHTTP(w, withBody(r.Context(), r, body))
	default:
		g.run(w, r, next, body, idempotent.Request[string]{
			Key:         joinClient(g.scope(r), id),
			Fingerprint: fingerprint(r, body),
		})
	}
}

// findKey asks the rule. "" is no key, and is refused unless it is optional.
func findKey(rule func(*http.Request, []byte) (string, error), r *http.Request, body []byte, optional bool) (string, *problem) {
	id, err := rule(r, body)
	if err == nil && id == "" && optional {
		return "", nil
	}
	if err == nil {
		err = checkKey(id)
	}
	if err != nil {
		return "", badKey(err)
	}
	return id, nil
}

func (g *guard) scope(r *http.Request) string {
	if g.opts.Scope == nil {
		return ""
	}
	return g.opts.Scope(r)
}

// read reads the whole body and verifies the request. Nothing is claimed yet,
// so a client that sends slowly holds nothing but its own connection.
func (g *guard) read(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	body, refused := readBody(w, r, g.opts.MaxBody)
	if refused == nil && g.opts.Verify != nil && g.opts.Verify(r, body) != nil {
		refused = &unverified
	}
	return body, refused
}

// run has the executor run next or hand over its kept response.
func (g *guard) run(w http.ResponseWriter, r *http.Request, next http.Handler, body []byte, req idempotent.Request[string]) {
	req.NoWait = g.opts.MaxWait < 0
	c := &call{guard: g, next: next, w: w, r: r, body: body, key: req.Key}
	c.wait.Context, c.wait.limit, c.wait.stopped = r.Context(), g.opts.MaxWait, req.NoWait
	defer c.wait.release()
	response, _, err := g.ex.Handle(&c.wait, req, c.effect)
	if c.close() {
		c.settle(err) // the handler has answered
		return
	}
	if g.opts.Key == nil && g.opts.Verify == nil { // else who knows who has kept it
		recycle(body)
	}
	switch {
	case err != nil:
		refusal(err).write(w)
	default:
		g.replay(w, r, response)
	}
}
