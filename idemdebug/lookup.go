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
	Withheld   []string  // what is not offered, and why
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
		isUnknown := errors.Is(record.Err, idempotent.ErrOutcomeUnknown)
		l.CanResolve = p.opts.AllowResolve && isUnknown
		if isUnknown && !p.opts.AllowResolve {
			l.Withheld = append(l.Withheld, "Resolve is not offered: the program has not set Options.AllowResolve.")
		}
		if !p.opts.AllowForget {
			l.Withheld = append(l.Withheld, "Forget is not offered: the program has not set Options.AllowForget.")
		}
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
	Unknown, Failures heldList
	More              bool
	Walked            int // results looked at
}

type heldList struct {
	Title string
	Rows  []heldRow
}

type heldRow struct {
	Key             keyCell
	Error           string
	Completed, Ends moment
	Forever         bool
}

func (h *held) Lists() []heldList { return []heldList{h.Unknown, h.Failures} }
func (h *held) Any() bool         { return len(h.Unknown.Rows)+len(h.Failures.Rows) > 0 }

// held walks all kept results, as long as there is something to find that it
// would list, and ctx lasts. Unknown outcomes have a list of their own: however
// many failures are kept, they do not hide what waits for a person.
func (p *Page[K, V]) held(ctx context.Context, v *view, now sample) *held {
	h := &held{Unknown: heldList{Title: "Unknown outcomes"}, Failures: heldList{Title: "Kept failures"}}
	unknowns := min(now.stats.Unknown, mostHeld)
	for key, record := range p.endpoint.Records() {
		if ctx.Err() != nil || h.More && len(h.Unknown.Rows) >= unknowns {
			break
		}
		h.Walked++
		list := &h.Failures
		switch {
		case record.Err == nil:
			continue
		case errors.Is(record.Err, idempotent.ErrOutcomeUnknown):
			list = &h.Unknown
		}
		if len(list.Rows) == mostHeld {
			h.More = true
			continue
		}
		list.Rows = append(list.Rows, heldRow{
			p.cell(key), brief(record.Err.Error()),
			v.moment(record.CompletedAt, now.at), v.moment(record.ExpiresAt, now.at), record.ExpiresAt.IsZero(),
		})
	}
	return h
}

// errChanged refuses a change of what the operator has not seen.
var errChanged = errors.New("nothing was changed: the key's state is not what the form was made for. It is shown below as it is now")
