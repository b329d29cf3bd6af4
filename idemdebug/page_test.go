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
	"net/netip"
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
			"1 effect is running for more than 1 min, the oldest for 1 min. 1 call waits for them.")

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
			require.Contains(t, s.read("", "now"), "Charts cover 1 h, now at the right; there are samples of 3 min.")
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

func TestLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEndpoint(t, idempotent.Options[string, string]{TTL: time.Hour})
		s := open(t, e, options{})
		_, _, _ = e.Handle(ctx, idempotent.Request[string]{Key: "paid", Fingerprint: "f00d"}, gives("secret"))
		_, _, _ = e.Do(ctx, "unknown", fails(idempotent.Unknown(errors.New("no answer"))))
		_, _, _ = e.Do(ctx, "declined", fails(idempotent.Permanent(errors.New("no money"))))
		_, _, _ = e.Handle(ctx, idempotent.Request[string]{Key: "eternal", TTL: idempotent.Forever}, gives(""))
		defer run(e, "running")()
		run(e, "running")
		time.Sleep(10 * time.Minute)
		before := e.Stats()

		for key, want := range map[string]string{
			"paid":     "Result success Completed 2000-01-01 00:00:00 UTC, 10 min ago Window ends 2000-01-01 01:00:00 UTC, in 50 min Fingerprint f00d",
			"unknown":  "Result outcome unknown : the effect may or may not have happened. Find out, then settle it Error idempotent: outcome unknown: no answer",
			"declined": "Result kept failure Error no money",
			"eternal":  "Window ends never",
			"running":  "Running for 10 min, since 2000-01-01 00:00:00 UTC. Waiting calls: 1.",
			"nothing":  "Not held by this process:",
		} {
			require.Contains(t, s.read("?key="+key, "lookup"), "Look up "+key+" ")
			require.Contains(t, s.read("?key="+key, "lookup"), want)
		}
		require.Equal(t, before, e.Stats(), "looking changes nothing")

		require.NotContains(t, s.get("?key=paid"), "secret", "values are not shown unless a FormatValue is set")
		shows := open(t, e, options{FormatValue: func(v string) string { return "<" + v + ">" }})
		require.Contains(t, shows.get("?key=paid"), "&lt;secret&gt;")
		require.Contains(t, shows.read("?key=eternal", "lookup"), "Value <>")
		require.NotContains(t, s.get("?key=unknown"), "<textarea", "nothing is offered that is not allowed")
		require.NotContains(t, s.get("?key=paid"), `method="post"`)
	})
}

// kinds are keys that are no plain strings.
type named string

func lookUp[K comparable](t *testing.T, made K, text string) string {
	e, err := idempotent.New(idempotent.Options[K, int]{})
	require.NoError(t, err)
	_, _, err = e.Do(ctx, made, func(context.Context) (int, error) { return 0, nil })
	require.NoError(t, err)
	return open(t, e, idemdebug.Options[K, int]{}).read(key(text), "lookup")
}

func TestKeys(t *testing.T) {
	t.Run("strings, integers and what reads itself as text can be looked up", func(t *testing.T) {
		require.Contains(t, lookUp(t, named("n"), "n"), "n Result success")
		require.Contains(t, lookUp(t, int8(-7), "-7"), "-7 Result success")
		require.Contains(t, lookUp(t, ^uint64(0), "18446744073709551615"), "Result success")
		require.Contains(t, lookUp(t, netip.MustParseAddr("::1"), "0:0::1"), "Result success")
		require.Contains(t, lookUp(t, int8(1), "300"), `300 is no key: strconv.ParseInt: parsing "300": value out of range`)
		require.Contains(t, lookUp(t, netip.MustParseAddr("::1"), "nowhere"), "nowhere is no key: ")
	})
	t.Run("others need a ParseKey", func(t *testing.T) {
		type place struct{ X, Y int }
		require.Contains(t, lookUp(t, place{1, 2}, "{X:1 Y:2}"), "keys of type idemdebug_test.place cannot be read from text")

		e, err := idempotent.New(idempotent.Options[place, int]{})
		require.NoError(t, err)
		_, _, err = e.Do(ctx, place{1, 2}, func(context.Context) (int, error) { return 0, nil })
		require.NoError(t, err)
		s := open(t, e, idemdebug.Options[place, int]{ParseKey: func(text string) (p place, err error) {
			_, err = fmt.Sscanf(text, "%d/%d", &p.X, &p.Y)
			return p, err
		}})
		require.Contains(t, s.read(key("1/2"), "lookup"), "1/2 Result success")
	})
	t.Run("no key can pass for markup or for another key", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEndpoint(t, idempotent.Options[string, string]{})
			s := open(t, e, options{})
			for text, shown := range map[string]string{
				`"><script>alert(1)</script>`: `"><script>alert(1)</script>`,
				"two\nlines":                  `"two\nlines"`,
				"back\u202ewards":             `"back\u202ewards"`,
				" blank ":                     `" blank "`,
				"\xff\xfe":                    `"\xff\xfe"`,
				"ключ":                        "ключ",
				strings.Repeat("long", 100):   strings.Repeat("long", 25) + "… (400 bytes)",
			} {
				release := run(e, text)
				page := s.get("")
				require.NotContains(t, page, "<script")
				require.Contains(t, page, html.EscapeString(shown)+"</a>")
				link := regexp.MustCompile(`<a class="key" href="([^"]*)"`).FindStringSubmatch(page)
				require.NotNil(t, link)
				require.Contains(t, s.read(html.UnescapeString(link[1]), "lookup"), "Running for", "its link leads to it")
				release()
				synctest.Wait()
			}
		})
	})
}

func TestHeld(t *testing.T) {
	e := newEndpoint(t, idempotent.Options[string, string]{})
	s := open(t, e, options{})
	_, _, _ = e.Do(ctx, "paid", gives("v"))
	require.Contains(t, s.read("?held=1", "heldback"), "None. Results looked at: 1.")
	_, _, _ = e.Do(ctx, "declined", fails(idempotent.Permanent(errors.New("no money"))))
	_, _, _ = e.Do(ctx, "unknown", fails(idempotent.Unknown(errors.New("no answer"))))

	t.Run("is walked only where asked", func(t *testing.T) {
		require.Equal(t, "Kept failures and unknown outcomes List them . This walks all kept results.", s.read("", "heldback"))
	})
	t.Run("lists what is no success", func(t *testing.T) {
		text := s.read("?held=1", "heldback")
		require.Contains(t, text, "declined kept failure no money")
		require.Contains(t, text, "unknown outcome unknown idempotent: outcome unknown: no answer")
		require.NotContains(t, text, "paid")
		require.Contains(t, text, "These are all. Results looked at: 3.")
	})
	t.Run("ends at a hundred", func(t *testing.T) {
		for i := range 100 {
			_, _, _ = e.Do(ctx, fmt.Sprint(i), fails(idempotent.Permanent(errors.New("no"))))
		}
		require.Contains(t, s.read("?held=1", "heldback"), "There are more than these.")
		require.Equal(t, 100, strings.Count(s.get("?held=1"), `data-label="Window ends"`))
	})
}

func TestStaleLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late idemdebug.StaleLog[string]
		refusal := fmt.Errorf("too late: %w", idempotent.ErrStale)
		e := newEndpoint(t, idempotent.Options[string, string]{
			TTL: time.Minute,
			OnStale: late.Watch(func(_ context.Context, key string, _ time.Time) error {
				if key == "refused" {
					return refusal
				}
				return nil
			}),
		})
		s := open(t, e, options{Stale: &late})
		require.Equal(t, "Late retries None seen.", s.read("", "late"))
		for _, key := range []string{"again", "refused"} {
			_, _, _ = e.Do(ctx, key, gives("v"))
		}
		time.Sleep(time.Hour)
		_, verdict, err := e.Do(ctx, "again", gives("v"))
		require.NoError(t, err)
		require.Equal(t, idempotent.Executed, verdict)
		time.Sleep(time.Second)
		_, verdict, err = e.Do(ctx, "refused", gives("v"))
		require.ErrorIs(t, err, refusal)
		require.Equal(t, idempotent.Refused, verdict)
		require.Contains(t, s.read("", "late"),
			"refused 0 ms ago 1 h ago refused: too late: idempotent: the key's window has ended again 1 s ago 1 h ago ran again")
		require.Contains(t, s.read("?key=again", "lookup"), "Its late retries")
		require.NotContains(t, s.read("?key=other", "lookup"), "Its late retries")

		hook := late.Watch(nil)
		for i := range 60 {
			require.NoError(t, hook(ctx, fmt.Sprint("key ", i), time.Now()))
		}
		text := s.read("", "late")
		require.Contains(t, text, "key 59 ")
		require.Contains(t, text, "key 10 ")
		require.NotContains(t, text, "key 9 ", "the latest 50 are kept")
	})
	t.Run("a page without one says how to get one", func(t *testing.T) {
		s := open(t, newEndpoint(t, idempotent.Options[string, string]{}), options{})
		require.Contains(t, s.read("", "late"), "the program sets Options.OnStale to the Watch of a StaleLog")
	})
}
