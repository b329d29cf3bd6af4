package idemdebug

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/idempotent-go/idempotent"
)

// look is what is known of one key.
type look struct {
	Key     string // visible
	Problem string // why it could not be looked up
	State   string // "running", "kept" or "none"

	Age     string // of a running effect
	Since   moment
	Waiters int

	Kind, Error, Fingerprint string // of a kept result
	Completed, Ends          moment
	Forever                  bool
	Value                    string
	ShowsValue               bool

	Token      string // of the forms
	Form       string // the key as the forms carry it
	Seen       string // when the result that is shown completed
	CanForget  bool
	CanResolve bool
	Late       []lateRow // its late retries
}

func (p *Page[K, V]) look(v *view, text string, claims []idempotent.Claim[K], now time.Time) *look {
	l := &look{Key: visible(text), State: "none", Token: p.token, Form: base64.RawURLEncoding.EncodeToString([]byte(text))}
	key, err := p.parseKey(text)
	if err != nil {
		l.Problem, l.State = err.Error(), ""
		return l
	}
	l.CanForget = p.opts.AllowForget
	for _, row := range v.Late {
		if row.Key.Link == address(p.opts.FormatKey(key)) {
			l.Late = append(l.Late, row)
		}
	}
	if record, ok := p.endpoint.Lookup(key); ok {
		l.State, l.Kind, l.Fingerprint = "kept", kind(record.Err), visible(record.Fingerprint)
		if record.Fingerprint == "" {
			l.Fingerprint = "none"
		}
		if record.Err != nil {
			l.Error = visible(record.Err.Error())
		}
		l.Completed, l.Seen = v.moment(record.CompletedAt, now), strconv.FormatInt(record.CompletedAt.UnixNano(), 10)
		l.Forever = record.ExpiresAt.IsZero()
		l.Ends = v.moment(record.ExpiresAt, now)
		if p.opts.FormatValue != nil {
			l.Value, l.ShowsValue = p.opts.FormatValue(record.Value), true
		}
		l.CanResolve = p.opts.AllowResolve && l.Kind == kind(idempotent.ErrOutcomeUnknown)
		return l
	}
	for _, c := range claims {
		if c.Key == key {
			l.State, l.Age, l.Since, l.Waiters = "running", age(now.Sub(c.Since)), v.moment(c.Since, now), c.Waiters
			l.CanForget = false
		}
	}
	return l
}

// parseKey reads a key that an operator gave.
func (p *Page[K, V]) parseKey(text string) (K, error) {
	if p.opts.ParseKey == nil {
		var zero K
		return zero, fmt.Errorf("keys of type %T cannot be read from text: the program has set no Options.ParseKey", zero)
	}
	key, err := p.opts.ParseKey(text)
	if err != nil {
		return key, fmt.Errorf("%s is no key: %w", brief(text), err)
	}
	return key, nil
}

// held is the kept results that are no success.
type held struct {
	Rows   []heldRow
	More   bool
	Walked int // results looked at
}

type heldRow struct {
	Key             keyCell
	Kind, Error     string
	Completed, Ends moment
	Forever         bool
}

// held walks all kept results, as far as the page lists what it finds and ctx
// lasts.
func (p *Page[K, V]) held(ctx context.Context, v *view, now time.Time) *held {
	h := new(held)
	for key, record := range p.endpoint.Records() {
		if ctx.Err() != nil {
			break
		}
		h.Walked++
		if record.Err == nil {
			continue
		}
		if len(h.Rows) == mostHeld {
			h.More = true
			break
		}
		h.Rows = append(h.Rows, heldRow{
			p.cell(key), kind(record.Err), brief(record.Err.Error()),
			v.moment(record.CompletedAt, now), v.moment(record.ExpiresAt, now), record.ExpiresAt.IsZero(),
		})
	}
	return h
}

// errChanged refuses a change of what the operator has not seen.
var errChanged = errors.New("nothing was changed: the key's state is not what the form was made for. It is shown below as it is now")
