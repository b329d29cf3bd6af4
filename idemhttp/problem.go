package idemhttp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/idempotent-go/idempotent"
)

// A problem is an answer that no handler gave: the body is a problem detail of
// RFC 9457. Texts are ours, but for the key rules' errors.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	retry  bool   // says that the same request may succeed soon
}

var (
	tooLarge     = problem{Title: "The request body is too large", Status: http.StatusRequestEntityTooLarge}
	tooSlow      = problem{Title: "The request body did not arrive in time", Status: http.StatusRequestTimeout}
	unreadable   = problem{Title: "The request body could not be read", Status: http.StatusBadRequest}
	unverified   = problem{Title: "The request's signature is not valid", Status: http.StatusUnauthorized}
	inFlight     = problem{Title: "A request with this key is being processed", Status: http.StatusConflict, retry: true}
	unknown      = problem{Title: "The outcome of the request with this key is unknown", Status: http.StatusConflict, Detail: "Retrying does not help: an operator must settle it."}
	stale        = problem{Title: "The time to retry this request is over", Status: http.StatusGone}
	mismatch     = problem{Title: "The key belongs to another request", Status: http.StatusUnprocessableEntity}
	full         = notProcessed("There is no room for another key now.")
	shutDown     = notProcessed("The service is shutting down.")
	busy         = notProcessed("It could not begin in time.")
	failed       = notProcessed("Another attempt with this key was running, and failed.")
	unavailable  = notProcessed("The store of the responses is not available.")
	keyMissing   = problem{Title: "The request has no idempotency key", Status: http.StatusBadRequest}
	keyMalformed = problem{Title: "The request's idempotency key is not valid", Status: http.StatusBadRequest}
)

func notProcessed(why string) problem {
	return problem{Title: "The request was not processed", Status: http.StatusServiceUnavailable, Detail: why, retry: true}
}

// maxDetail is the most bytes of a rule's error that are sent: the error may
// quote the body.
const maxDetail = 200

// badKey is the answer to a key rule's error.
func badKey(err error) *problem {
	p := keyMalformed
	if errors.Is(err, errNoKey) {
		p = keyMissing
	}
	p.Detail = strings.ReplaceAll(err.Error(), "idemhttp: ", "") // a client has no use for our name
	p.Detail = p.Detail[:min(len(p.Detail), maxDetail)]
	return &p
}

// refusal is the answer to an executor's error when this request's handler did
// not run. Whatever is not known here is a store that is out of reach.
func refusal(err error) *problem {
	switch {
	case errors.Is(err, idempotent.ErrOutcomeUnknown):
		return &unknown
	case errors.Is(err, idempotent.ErrMismatch):
		return &mismatch
	case errors.Is(err, idempotent.ErrInFlight), errors.Is(err, idempotent.ErrDeadlock):
		return &inFlight
	case errors.Is(err, idempotent.ErrStale):
		return &stale
	case errors.Is(err, idempotent.ErrFull):
		return &full
	case errors.Is(err, idempotent.ErrShutdown):
		return &shutDown
	case errors.Is(err, context.DeadlineExceeded):
		return &busy
	case errors.Is(err, errNotKept), isPanic(err):
		return &failed // the executor shares failures
	}
	return &unavailable
}

func isPanic(err error) bool {
	_, ok := errors.AsType[*idempotent.PanicError](err)
	return ok
}

func (p *problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p) // escapes control characters and bad UTF-8
	if err != nil {
		panic(err) // two strings and a number
	}
	w.Header().Set("Content-Type", "application/problem+json")
	if p.retry {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(p.Status)
	w.Write(append(body, '\n'))
}
