package idemdebug_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemdebug"
)

type (
	endpoint = idempotent.Endpoint[string, string]
	options  = idemdebug.Options[string, string]
	effect   = func(context.Context) (string, error)
)

var ctx = context.Background()

func gives(value string) effect { return func(context.Context) (string, error) { return value, nil } }
func fails(err error) effect    { return func(context.Context) (string, error) { return "", err } }

func newEndpoint(t *testing.T, opts idempotent.Options[string, string]) *endpoint {
	e, err := idempotent.New(opts)
	require.NoError(t, err)
	return e
}

// site is a page as a browser has it.
type site struct {
	t *testing.T
	http.Handler
}

func open[K comparable, V any](t *testing.T, e *idempotent.Endpoint[K, V], opts idemdebug.Options[K, V]) site {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	page, err := idemdebug.New(e, opts)
	require.NoError(t, err)
	return site{t, page}
}

func (s site) send(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// get returns the page as it was sent.
func (s site) get(query string) string {
	s.t.Helper()
	w := s.send(httptest.NewRequest("GET", "/debug/it"+query, nil))
	require.Equal(s.t, http.StatusOK, w.Code)
	return w.Body.String()
}

// read returns what a person reads of the page, or of its section.
func (s site) read(query, section string) string {
	s.t.Helper()
	return words(s.t, s.get(query), section)
}

var (
	tags   = regexp.MustCompile(`<[^>]*>`)
	spaces = regexp.MustCompile(`\s+`)
)

func words(t *testing.T, page, section string) string {
	t.Helper()
	_, page, found := strings.Cut(page, `<section aria-labelledby="`+section+`">`)
	require.True(t, found, "no section %q", section)
	page, _, _ = strings.Cut(page, "</section>")
	return strings.TrimSpace(spaces.ReplaceAllString(html.UnescapeString(tags.ReplaceAllString(page, " ")), " "))
}

func key(text string) string { return "?" + url.Values{"key": {text}}.Encode() }

// run starts an effect that lasts until the returned function is called, and
// waits until it runs. It needs a bubble.
func run(e *endpoint, key string) (release func()) {
	running, release := context.WithCancel(ctx)
	go e.Do(ctx, key, func(context.Context) (string, error) { <-running.Done(); return "done", nil })
	synctest.Wait()
	return release
}

func TestNew(t *testing.T) {
	type place struct{ X, Y int }
	strings := newEndpoint(t, idempotent.Options[string, string]{})
	places, err := idempotent.New(idempotent.Options[place, place]{})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		make func() error
		want string
	}{
		"no endpoint":            {func() error { _, err := idemdebug.New[string, string](nil, options{}); return err }, "the endpoint is nil"},
		"a negative slow claim":  {func() error { _, err := idemdebug.New(strings, options{SlowClaim: -1}); return err }, "Options.SlowClaim is -1ns"},
		"a negative sample time": {func() error { _, err := idemdebug.New(strings, options{SampleEvery: -1}); return err }, "Options.SampleEvery is -1ns"},
		"Forget for keys that cannot be read": {func() error {
			_, err := idemdebug.New(places, idemdebug.Options[place, place]{AllowForget: true})
			return err
		}, "Options.ParseKey is nil, and AllowForget and AllowResolve need one for keys of type idemdebug_test.place"},
		"Resolve for values that cannot be read": {func() error {
			_, err := idemdebug.New(places, idemdebug.Options[place, place]{AllowResolve: true})
			return err
		}, "Options.ParseValue is nil, and AllowResolve needs one for values of type idemdebug_test.place"},
	} {
		t.Run(name+" is refused, and named", func(t *testing.T) {
			require.ErrorContains(t, c.make(), "idemdebug: "+c.want)
		})
	}
}

func TestResponse(t *testing.T) {
	s := open(t, newEndpoint(t, idempotent.Options[string, string]{}), options{AllowForget: true})

	t.Run("the policy allows nothing but the page's own style and forms", func(t *testing.T) {
		w := s.send(httptest.NewRequest("GET", "/", nil))
		style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(w.Body.String())
		require.NotNil(t, style)
		sum := sha256.Sum256([]byte(style[1]))
		require.Equal(t, "default-src 'none'; style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+
			"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'", w.Header().Get("Content-Security-Policy"))
		require.NotContains(t, w.Body.String(), "<script")
		require.NotRegexp(t, `\s(style|src|on\w+)=`, w.Body.String())
		require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
		require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		require.Equal(t, "no-referrer", w.Header().Get("Referrer-Policy"))
	})
	t.Run("other methods are refused", func(t *testing.T) {
		for _, method := range []string{"PUT", "DELETE", "PATCH", "OPTIONS"} {
			w := s.send(httptest.NewRequest(method, "/", nil))
			require.Equal(t, http.StatusMethodNotAllowed, w.Code)
			require.Equal(t, "GET, HEAD, POST", w.Header().Get("Allow"))
		}
	})
	t.Run("it loads itself again only where asked, and keeps the key", func(t *testing.T) {
		require.NotContains(t, s.get("?key=a"), `http-equiv="refresh"`)
		require.Contains(t, s.get("?key=a"), `<a href="?key=a&amp;live=1">every 5 s</a>`)
		require.Contains(t, s.get("?key=a&live=1"), `<meta http-equiv="refresh" content="5">`)
		require.Contains(t, s.get("?key=a&live=1"), `<a href="?key=a">stop</a>`)
	})
}

func TestRunningEffects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEndpoint(t, idempotent.Options[string, string]{})
		s := open(t, e, options{})
		require.Equal(t, "Running effects None.", s.read("", "running"))

		defer run(e, "older")()
		time.Sleep(30 * time.Second)
		defer run(e, "younger")()
		run(e, "older")
		time.Sleep(30*time.Second - 1)
		require.Contains(t, s.read("", "running"), "older 59 s 1 ")
		require.NotContains(t, s.read("", "running"), "slow", "a nanosecond before SlowClaim")
		require.Contains(t, s.read("", "findings"), "Nothing stands out")
		time.Sleep(time.Nanosecond)
		require.Regexp(t, "older 1 min slow 1 .* younger 30 s 0 ", s.read("", "running"), "oldest first, with its waiting calls")
		require.Contains(t, s.read("", "findings"),
			"1 effect has been running for more than 1 min, the oldest for 1 min. 1 call waits for it.")
		time.Sleep(time.Minute)
		require.Contains(t, s.read("", "findings"),
			"2 effects have been running for more than 1 min, the oldest for 2 min. 1 call waits for them.")

		for i := range 60 {
			defer run(e, fmt.Sprint("many ", i))()
		}
		require.Contains(t, s.read("", "running"), "The oldest are shown; 12 more are running.")
	})
}

func TestFindings(t *testing.T) {
	for name, c := range map[string]struct {
		happen func(e *endpoint)
		want   string
	}{
		"a panic": {func(e *endpoint) {
			defer func() { _ = recover() }()
			_, _, _ = e.Do(ctx, "k", func(context.Context) (string, error) { panic("!") })
		}, "1 effect panicked in the last"},
		"a stale key": {func(e *endpoint) {
			for range 2 {
				_, _, _ = e.Handle(ctx, idempotent.Request[string]{Key: "k", TTL: 1}, gives("v"))
				time.Sleep(time.Nanosecond)
			}
		}, "1 call came after the key's result was gone in the last"},
		"an eviction": {func(e *endpoint) {
			for i := range 12 {
				_, _, _ = e.Do(ctx, fmt.Sprint("k", i), gives("v"))
			}
		}, "2 results had to make room before the window ended in the last"},
		"a tenth of the effects failed, and one more": {func(e *endpoint) {
			for i := range 8 {
				_, _, _ = e.Do(ctx, fmt.Sprint("k", i), gives("v"))
			}
			_, _, _ = e.Do(ctx, "f", fails(errors.New("no")))
		}, "1 of 9 effects failed in the last"},
		"a twentieth of the calls refused, and one more": {func(e *endpoint) {
			for range 18 {
				_, _, _ = e.Do(ctx, "k", gives("v"))
			}
			_, _, _ = e.Do(ctx, "", gives("v"))
		}, "1 of 19 calls got nothing in the last"},
	} {
		t.Run(name+" is pointed out for five minutes", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEndpoint(t, idempotent.Options[string, string]{Capacity: 10, EvictOldest: true})
				s := open(t, e, options{})
				time.Sleep(10*time.Minute + time.Second) // between two samples
				c.happen(e)
				time.Sleep(5 * time.Minute)
				require.Contains(t, s.read("", "findings"), c.want+" 5 min.")
				time.Sleep(15 * time.Second)
				require.Contains(t, s.read("", "findings"), "Nothing stands out")
			})
		})
	}
	t.Run("an unknown outcome is pointed out first, until it is settled", func(t *testing.T) {
		e := newEndpoint(t, idempotent.Options[string, string]{})
		s := open(t, e, options{})
		for _, key := range []string{"a", "b"} {
			_, _, _ = e.Do(ctx, key, fails(idempotent.Unknown(errors.New("no answer"))))
		}
		require.Contains(t, s.read("", "findings"), "At a glance 2 outcomes are unknown and a person must settle them: ")
		require.Contains(t, s.get(""), `<a href="?held=1#heldback">List them</a>.</li>`)
		require.Contains(t, s.read("", "now"), "Unknown outcomes of those kept; a person must settle them 2 2")
		require.True(t, e.Resolve("a", "done"))
		require.Contains(t, s.read("", "findings"), "At a glance 1 outcome is unknown and a person must settle it: ")
		require.True(t, e.Forget("b"))
		require.Contains(t, s.read("", "findings"), "Nothing stands out: no unknown outcome, ")
	})
	t.Run("few failures and refusals are not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEndpoint(t, idempotent.Options[string, string]{})
			s := open(t, e, options{})
			for i := range 19 {
				_, _, _ = e.Do(ctx, fmt.Sprint("k", i), gives("v"))
			}
			_, _, _ = e.Do(ctx, "", gives("v"))
			_, _, _ = e.Do(ctx, "f", fails(errors.New("no")))
			time.Sleep(time.Minute)
			require.Contains(t, s.read("", "findings"), "Nothing stands out")
		})
	})
}

func TestNumbers(t *testing.T) {
	t.Run("samples are taken when nobody looks, and rates come from them", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEndpoint(t, idempotent.Options[string, string]{})
			s := open(t, e, options{})
			time.Sleep(500 * time.Millisecond) // so that no call comes at a sample's instant
			for range 180 {
				_, _, _ = e.Do(ctx, "k", gives("v"))
				time.Sleep(time.Second)
			}
			text := s.read("", "calls")
			require.Contains(t, text, "Executed effects that left a result 1 0/s 0.07/s")
			require.Contains(t, text, "Replayed calls that got a kept result 179 0.99/s 1.00/s", "60 calls since the sample 60.5 s ago")
			require.Contains(t, s.get(""), `aria-label="Replayed: now 0.99/s, highest 1.00/s"`)
			require.Contains(t, s.read("", "now"), "Charts cover 1 h, now at the right; samples so far: 3 min.")
			require.Contains(t, s.read("", "now"), "Results kept replayed until their window ends 1 1")
		})
	})
	t.Run("a chart rises with its numbers and never leaves its box", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEndpoint(t, idempotent.Options[string, string]{})
			s := open(t, e, options{})
			require.NotContains(t, words(t, s.get(""), "now"), "soon", "the first sample and now are a line")
			for i := range 300 { // more than are kept
				_, _, _ = e.Do(ctx, fmt.Sprint(i), gives("v"))
				time.Sleep(15 * time.Second)
			}
			line := regexp.MustCompile(`aria-label="Results kept[^>]*><path[^>]*><path class="line" d="M([^"]*)"`).FindStringSubmatch(s.get(""))
			require.NotNil(t, line)
			points := strings.Split(line[1], "L")
			require.Len(t, points, 241)
			lastX, lastY := -1, 33
			for _, p := range points {
				var x, y int
				_, err := fmt.Sscanf(p, "%d %d", &x, &y)
				require.NoError(t, err)
				require.GreaterOrEqual(t, x, lastX)
				require.LessOrEqual(t, y, lastY, "fewer results than before")
				lastX, lastY = x, y
			}
			require.Equal(t, [2]int{240, 1}, [2]int{lastX, lastY})
		})
	})
	t.Run("a page that nobody refers to is collected, and its samples end", func(t *testing.T) {
		page, err := idemdebug.New(newEndpoint(t, idempotent.Options[string, string]{}), options{})
		require.NoError(t, err)
		alive := weak.Make(page)
		runtime.KeepAlive(page)
		require.Eventually(t, func() bool { runtime.GC(); return alive.Value() == nil }, 5*time.Second, time.Millisecond)
	})
}
