package idemdebug_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemdebug"
)

// form returns the fields that the page about a key sends for a change, as a
// browser would after its box is ticked.
func (s site) form(query, do string) url.Values {
	s.t.Helper()
	for _, form := range strings.Split(s.get(query), `<form method="post"`)[1:] {
		form, _, _ = strings.Cut(form, "</form>")
		fields := url.Values{}
		for _, m := range regexp.MustCompile(`<input type="(?:hidden|checkbox)" name="(\w+)" value="([^"]*)"`).FindAllStringSubmatch(form, -1) {
			fields.Set(m[1], m[2])
		}
		if fields.Get("do") == do {
			require.NotEmpty(s.t, fields.Get("sure"))
			return fields
		}
	}
	require.Failf(s.t, "no such form", "%s in %s", do, query)
	return nil
}

func (s site) post(form url.Values) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/debug/it", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return s.send(r)
}

func with(form url.Values, field, value string) url.Values {
	changed := url.Values{}
	for k, v := range form {
		changed[k] = v
	}
	changed.Set(field, value)
	return changed
}

func held(e *endpoint, key string) bool {
	_, ok := e.Lookup(key)
	return ok
}

func TestForget(t *testing.T) {
	t.Run("drops the result, and leaves a trace", func(t *testing.T) {
		var log bytes.Buffer
		e := newEndpoint(t, idempotent.Options[string, string]{})
		s := open(t, e, options{Name: "orders", AllowForget: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		_, _, _ = e.Do(ctx, "k", gives("v"))
		w := s.post(s.form("?key=k", "forget"))
		require.Equal(t, http.StatusSeeOther, w.Code)
		require.Equal(t, "?key=k", w.Header().Get("Location"))
		require.False(t, held(e, "k"))
		require.Regexp(t, `k Forget \d+ ms ago 192.0.2.1:1234 the result was dropped`, s.read("?key=k", "changes"))
		require.Contains(t, log.String(), `msg="idemdebug: Forget" endpoint=orders key=k from=192.0.2.1:1234 did="the result was dropped"`)
	})
	t.Run("reaches a key that a form field would change", func(t *testing.T) {
		e := newEndpoint(t, idempotent.Options[string, string]{})
		s := open(t, e, options{AllowForget: true})
		_, _, _ = e.Do(ctx, "two\nlines\xff", gives("v"))
		require.Equal(t, http.StatusSeeOther, s.post(s.form(key("two\nlines\xff"), "forget")).Code)
		require.False(t, held(e, "two\nlines\xff"))
	})
	t.Run("clears a stale key, so that OnStale is not asked", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEndpoint(t, idempotent.Options[string, string]{TTL: time.Minute})
			s := open(t, e, options{AllowForget: true})
			_, _, _ = e.Do(ctx, "k", gives("v"))
			time.Sleep(time.Minute)
			require.Equal(t, http.StatusSeeOther, s.post(s.form("?key=k", "forget")).Code)
			_, _, _ = e.Do(ctx, "k", gives("v"))
			require.Zero(t, e.Stats().Stale)
		})
	})
	t.Run("is not offered for a running effect", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEndpoint(t, idempotent.Options[string, string]{})
			s := open(t, e, options{AllowForget: true})
			defer run(e, "k")()
			require.NotContains(t, s.get("?key=k"), `value="forget"`)
		})
	})
	t.Run("of a result that the operator has not seen is refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEndpoint(t, idempotent.Options[string, string]{TTL: time.Hour})
			s := open(t, e, options{AllowForget: true})
			nothing := s.form("?key=k", "forget")
			_, _, _ = e.Do(ctx, "k", gives("first"))
			require.Equal(t, http.StatusConflict, s.post(nothing).Code)
			first := s.form("?key=k", "forget")
			time.Sleep(time.Hour)
			_, _, _ = e.Do(ctx, "k", gives("second"))
			w := s.post(first)
			require.Equal(t, http.StatusConflict, w.Code)
			require.Contains(t, w.Body.String(), "not what the form was made for")
			require.Contains(t, words(t, w.Body.String(), "lookup"), "Result success", "and what there is now is shown")
			require.True(t, held(e, "k"))
			require.Equal(t, http.StatusSeeOther, s.post(s.form("?key=k", "forget")).Code)
		})
	})
	t.Run("needs the token, the tick and the program's leave", func(t *testing.T) {
		e := newEndpoint(t, idempotent.Options[string, string]{})
		s := open(t, e, options{AllowForget: true})
		other := open(t, e, options{AllowForget: true})
		closed := open(t, e, options{})
		_, _, _ = e.Do(ctx, "k", gives("v"))
		form := s.form("?key=k", "forget")
		token := regexp.MustCompile(`name="token" value="(\w+)"`)

		for name, c := range map[string]struct {
			site site
			form url.Values
			code int
		}{
			"no token":            {s, with(form, "token", ""), http.StatusForbidden},
			"another token":       {s, with(form, "token", "guess"), http.StatusForbidden},
			"another page's form": {s, other.form("?key=k", "forget"), http.StatusForbidden},
			"no tick":             {s, with(form, "sure", ""), http.StatusBadRequest},
			"no such change":      {s, with(form, "do", "shutdown"), http.StatusForbidden},
			"no leave to resolve": {s, with(form, "do", "resolve"), http.StatusForbidden},
			"a broken key":        {s, with(form, "key", "!"), http.StatusBadRequest},
			"no leave at all":     {closed, form, http.StatusForbidden},
			"a form too large":    {s, with(form, "value", strings.Repeat("x", 1<<20)), http.StatusBadRequest},
		} {
			w := c.site.post(c.form)
			require.Equal(t, c.code, w.Code, name)
			require.Contains(t, w.Body.String(), `role="alert"`, name)
			require.True(t, held(e, "k"), name)
		}
		require.Nil(t, token.FindStringSubmatch(closed.get("?key=k")), "a page that allows nothing has no token to give")

		query := httptest.NewRequest("POST", "/?"+form.Encode(), nil)
		require.Equal(t, http.StatusForbidden, s.send(query).Code, "an address is no form")
		s.send(httptest.NewRequest("GET", "/?"+form.Encode(), nil))
		require.True(t, held(e, "k"))
	})
}

func TestResolve(t *testing.T) {
	unknown := func(t *testing.T) (*endpoint, site) {
		e := newEndpoint(t, idempotent.Options[string, string]{})
		_, _, err := e.Do(ctx, "k", fails(idempotent.Unknown(errors.New("no answer"))))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		return e, open(t, e, options{AllowResolve: true, ParseValue: func(text string) (string, error) {
			if text == "bad" {
				return "", errors.New("that is bad")
			}
			return text, nil
		}})
	}
	t.Run("settles an unknown outcome with the value", func(t *testing.T) {
		e, s := unknown(t)
		w := s.post(with(s.form("?key=k", "resolve"), "value", "paid\r\nin full"))
		require.Equal(t, http.StatusSeeOther, w.Code)
		value, verdict, err := e.Do(ctx, "k", gives("again"))
		require.NoError(t, err)
		require.Equal(t, idempotent.Replayed, verdict)
		require.Equal(t, "paid\nin full", value)
		require.Contains(t, s.read("", "changes"), "settled as done")
		require.NotContains(t, s.get("?key=k"), `value="resolve"`, "it is not unknown any more")
	})
	t.Run("with a value that cannot be read changes nothing", func(t *testing.T) {
		e, s := unknown(t)
		w := s.post(with(s.form("?key=k", "resolve"), "value", "bad"))
		require.Equal(t, http.StatusBadRequest, w.Code)
		require.Contains(t, w.Body.String(), "that is bad")
		_, _, err := e.Do(ctx, "k", gives("again"))
		require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
	})
	t.Run("of another unknown outcome than the operator saw is refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, s := unknown(t)
			form := s.form("?key=k", "resolve")
			time.Sleep(time.Hour)
			require.True(t, e.Forget("k"))
			_, _, _ = e.Do(ctx, "k", fails(idempotent.Unknown(errors.New("no answer again"))))
			require.Equal(t, http.StatusConflict, s.post(with(form, "value", "paid")).Code)
			_, _, err := e.Do(ctx, "k", gives("again"))
			require.ErrorIs(t, err, idempotent.ErrOutcomeUnknown)
		})
	})
	t.Run("is no leave to forget", func(t *testing.T) {
		e, s := unknown(t)
		require.NotContains(t, s.get("?key=k"), `value="forget"`)
		require.Equal(t, http.StatusForbidden, s.post(with(s.form("?key=k", "resolve"), "do", "forget")).Code)
		require.True(t, held(e, "k"))
	})
	t.Run("of an outcome that has become known is refused", func(t *testing.T) {
		e, s := unknown(t)
		form := s.form("?key=k", "resolve")
		require.True(t, e.Resolve("k", "by another"))
		w := s.post(with(form, "value", "late"))
		require.Equal(t, http.StatusConflict, w.Code)
		value, _, err := e.Do(ctx, "k", gives("again"))
		require.NoError(t, err)
		require.Equal(t, "by another", value)
	})
}

func TestConcurrency(t *testing.T) {
	t.Run("looks, changes and calls may all come at once", func(t *testing.T) {
		var late idemdebug.StaleLog[string]
		e := newEndpoint(t, idempotent.Options[string, string]{TTL: time.Microsecond, OnStale: late.Watch(nil)})
		s := open(t, e, options{AllowForget: true, Stale: &late, SampleEvery: time.Millisecond})
		form := s.form("?key=k", "forget")
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 50 {
					_, _, _ = e.Do(ctx, "k", gives("v"))
					s.send(httptest.NewRequest("GET", "/?key=k&held=1", nil))
					code := s.post(form).Code
					assert.Contains(t, []int{http.StatusSeeOther, http.StatusConflict}, code)
				}
			})
		}
		all.Wait()
		require.LessOrEqual(t, strings.Count(s.get(""), `data-label="Change"`), 20, "the changes that are listed are bounded")
	})
}
