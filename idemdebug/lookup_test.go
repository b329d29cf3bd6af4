package idemdebug_test

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemdebug"
)

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
		require.Contains(t, s.read("?key=unknown", "lookup"), "Resolve is not offered: the program has not set Options.AllowResolve. "+
			"Forget is not offered: the program has not set Options.AllowForget.")
		require.NotContains(t, s.read("?key=paid", "lookup"), "Resolve is", "a success cannot be resolved")
		allows := open(t, e, options{AllowForget: true, AllowResolve: true})
		require.NotContains(t, allows.read("?key=unknown", "lookup"), "not offered")
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
		require.Regexp(t, "Unknown outcomes Key .* unknown idempotent: outcome unknown: no answer .*Kept failures Key .* declined no money", text)
		require.NotContains(t, text, "paid")
		require.Contains(t, text, "These are all. Results looked at: 3.")
	})
	t.Run("ends at a hundred", func(t *testing.T) {
		for i := range 100 {
			_, _, _ = e.Do(ctx, fmt.Sprint(i), fails(idempotent.Permanent(errors.New("no"))))
		}
		require.Contains(t, s.read("?held=1", "heldback"), "There are more than these.")
		require.Equal(t, 101, strings.Count(s.get("?held=1"), `data-label="Window ends"`), "and the unknown outcome beside them")
	})
	t.Run("lists an unknown outcome however many failures were kept before it", func(t *testing.T) {
		_, _, _ = e.Do(ctx, "unknown too", fails(idempotent.Unknown(errors.New("no answer"))))
		require.Contains(t, s.read("?held=1", "heldback"), "unknown too idempotent: outcome unknown: no answer")
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
