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
	body, refused := readBody(w, r, g.opts.MaxBody)
	if refused != nil {
		refused.write(w)
		return
	}
	ask := g.question(r, body)
	defer ask.end()
	rule, optional := g.opts.Key, false
	if rule == nil {
		rule, optional = eventID, true
	}
	id, refused := ask.verifiedKey(rule, optional)
	switch {
	case refused != nil:
		refused.write(w)
	case id == "":
		pass(w, r, next, body)
	default:
		g.run(w, r, next, body, idempotent.Request[string]{Key: joinWebhook(r, ask.scope(), id)})
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
	body, refused := readBody(w, r, g.opts.MaxBody)
	if refused != nil {
		refused.write(w)
		return
	}
	ask := g.question(r, body)
	defer ask.end()
	id, refused := ask.verifiedKey(rule, g.opts.Optional)
	switch {
	case refused != nil:
		refused.write(w)
	case id == "":
		pass(w, r, next, body)
	default:
		g.run(w, r, next, body, idempotent.Request[string]{
			Key:         joinClient(ask.scope(), id),
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

// pass lets a request through that has no key.
func pass(w http.ResponseWriter, r *http.Request, next http.Handler, body []byte) {
	r = withBody(r.Context(), r, body)
	defer removeParts(r)
	next.ServeHTTP(w, r)
}

// A question is the request as Verify, Key and Scope see it: a copy whose body
// each of them can read from its beginning, or parse a form from, and take
// nothing from the next or from the handler. Without such rules it is r itself.
// The body has been read and nothing is claimed yet: a client that sends slowly
// holds nothing but its own connection.
type question struct {
	opts *Options
	r    *http.Request
	body []byte
}

func (o *Options) asks() bool { return o.Key != nil || o.Verify != nil || o.Scope != nil }

func (g *guard) question(r *http.Request, body []byte) question {
	if g.opts.asks() {
		r = withBody(r.Context(), r, body)
	}
	return question{&g.opts, r, body}
}

func (q question) request() *http.Request {
	if q.opts.asks() {
		q.r.Body = bodyOf(q.body)
	}
	return q.r
}

func (q question) verifiedKey(rule func(*http.Request, []byte) (string, error), optional bool) (string, *problem) {
	if verify := q.opts.Verify; verify != nil && verify(q.request(), q.body) != nil {
		return "", &unverified
	}
	return findKey(rule, q.request(), q.body, optional)
}

func (q question) scope() string {
	if q.opts.Scope == nil {
		return ""
	}
	return q.opts.Scope(q.request())
}

func (q question) end() {
	if q.opts.asks() {
		removeParts(q.r)
	}
}

// run has the executor run next or hand over its kept response.
func (g *guard) run(w http.ResponseWriter, r *http.Request, next http.Handler, body []byte, req idempotent.Request[string]) {
	req.NoWait = g.opts.MaxWait < 0
	c := &call{guard: g, next: next, w: w, r: r, body: body, key: req.Key}
	c.wait.Context, c.wait.limit, c.wait.stopped = r.Context(), g.opts.MaxWait, req.NoWait
	defer c.wait.release()
	response, _, err := g.ex.Handle(&c.wait, req, c.effect)
	if c.close() {
		c.settle() // the handler has answered
		return
	}
	if !g.opts.asks() { // else who knows who has kept it
		recycle(body)
	}
	switch {
	case err != nil:
		refusal(err).write(w)
	default:
		g.replay(w, r, response)
	}
}
