// Package browsertest looks at the page of idemdebug in a real Chromium, with
// JavaScript off. It needs Debian's package chromium. To see what it sees:
//
//	IDEMDEBUG_SHOTS=/tmp/shots go test ./idemdebug/browsertest
package browsertest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
)

const (
	unknown = "?key=pay_unknown&held=1"
	wide    = 1200
	narrow  = 360
)

func TestPage(t *testing.T) {
	s := newScene(t)
	b := newTab(t)

	for _, colours := range []string{"light", "dark"} {
		for name, width := range map[string]int64{"wide": wide, "narrow": narrow} {
			t.Run("is legible and fits, "+name+" and "+colours, func(t *testing.T) {
				b := b.in(t)
				for shot, query := range map[string]string{"": "", "-key": unknown} {
					b.open(s.url+query, width, colours)
					b.shoot(name + "-" + colours + shot)
					require.Empty(t, get(b, chromedp.Evaluate[[]string](outside)), "elements beyond the right edge")
					require.Empty(t, get(b, chromedp.Evaluate[[]string](faint)), "text with a contrast below 4.5")
				}
			})
		}
	}

	t.Run("follows the system's colours, so its style passes its own policy", func(t *testing.T) {
		b := b.in(t)
		b.open(s.url, wide, "light")
		light := get(b, chromedp.Evaluate[string]("getComputedStyle(document.body).backgroundColor"))
		b.open(s.url, wide, "dark")
		dark := get(b, chromedp.Evaluate[string]("getComputedStyle(document.body).backgroundColor"))
		require.Equal(t, []string{"rgb(255, 255, 255)", "rgb(16, 20, 24)"}, []string{light, dark})
	})

	t.Run("shows a hostile key as text, and its link finds it", func(t *testing.T) {
		b := b.in(t)
		b.open(s.url, wide, "light")
		require.Zero(t, get(b, chromedp.Evaluate[int]("document.querySelectorAll('script, img').length")))
		b.do(chromedp.Click(chromedp.Search(`//a[contains(., "pwned")]`)), chromedp.WaitVisible(chromedp.CSS(".card")))
		require.Equal(t, hostile, b.text(".card h3"))
		require.Contains(t, b.text(".card"), "Running for")
		require.Contains(t, get(b, chromedp.Title()), "payments on ")
	})

	t.Run("shows two spaces in a key as two, so that what is shown can be looked up", func(t *testing.T) {
		b := b.in(t)
		b.open(s.url+unknown, wide, "light")
		shown := b.text(`#heldback ~ .wide a[href*="order-1"]`)
		require.Equal(t, unscoped, shown)
		b.open(s.url, wide, "light")
		b.tabTo("key")
		b.do(chromedp.KeyEvent(shown+"\r"), chromedp.WaitVisible(chromedp.CSS(".card")))
		require.Equal(t, unscoped, b.text(".card h3"))
		require.Contains(t, b.text(".card"), "kept failure")
	})

	t.Run("leads from the glance to the unknown outcomes", func(t *testing.T) {
		b := b.in(t)
		b.open(s.url, wide, "light")
		require.Contains(t, b.text(".findings li"), "1 outcome is unknown and a person must settle it")
		b.do(chromedp.Click(chromedp.CSS(".findings a")), chromedp.WaitVisible(chromedp.CSS(`[aria-label="Unknown outcomes"]`)))
		b.do(chromedp.Click(chromedp.CSS(`[aria-label="Unknown outcomes"] a`)), chromedp.WaitVisible(chromedp.CSS("#value")))
		require.Equal(t, "pay_unknown", b.text(".card h3"))
	})

	for name, width := range map[string]int64{"wide": wide, "narrow": narrow} {
		t.Run("speaks to a screen reader, "+name, func(t *testing.T) {
			b := b.in(t)
			b.open(s.url+unknown, width, "light")
			seen := map[string]int{}
			for _, node := range call(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
				role := said(node.Role)
				seen[role]++
				switch role {
				case "image", "link", "button", "textbox", "searchbox", "checkbox", "region", "heading":
					require.NotEmpty(t, said(node.Name), "a %s without a name", role)
				}
			}
			require.Equal(t, 13, seen["image"], "a chart for each number")
			require.Equal(t, 1, seen["main"])
			require.Equal(t, 2, seen["checkbox"])
			require.Equal(t, 6, seen["table"], "tables stay tables, however they are laid out: %v", seen)
			require.GreaterOrEqual(t, seen["rowheader"], 13)
		})
	}

	t.Run("is worked by keys alone", func(t *testing.T) {
		b := b.in(t)
		b.open(s.url, wide, "light")
		b.tabTo("key")
		b.do(chromedp.KeyEvent("pay_done\r"), chromedp.WaitVisible(chromedp.CSS(".card")))
		require.Contains(t, b.text(".card"), "success")
		b.tabTo("sure")
		b.do(chromedp.KeyEvent(" "), chromedp.KeyEvent("\t"), chromedp.KeyEvent("\r"), chromedp.WaitVisible(chromedp.CSS("#changes ~ .wide")))
		_, held := s.Lookup("pay_done")
		require.False(t, held)
		require.Contains(t, b.text(".card"), "Not held by this process")
		b.shoot("forgotten")

		b.do(chromedp.Reload())
		require.Equal(t, 1, get(b, chromedp.Evaluate[int]("document.querySelectorAll('#changes ~ .wide tbody tr').length")),
			"loading again repeats nothing")
	})

	t.Run("settles an unknown outcome, and not before the box is ticked", func(t *testing.T) {
		b := b.in(t)
		b.open(s.url+unknown, wide, "dark")
		b.do(chromedp.SendKeys(chromedp.CSS("#value"), `{"status":"paid"}`), chromedp.Click(chromedp.Search(`//button[text()="Resolve"]`)))
		record, held := s.Lookup("pay_unknown")
		require.True(t, held)
		require.ErrorIs(t, record.Err, idempotent.ErrOutcomeUnknown, "the browser asks for the tick")

		b.do(chromedp.Click(chromedp.Search(`//label[contains(., "I have made sure")]/input`)),
			chromedp.Click(chromedp.Search(`//button[text()="Resolve"]`)),
			chromedp.WaitNotPresent(chromedp.CSS("#value")))
		record, held = s.Lookup("pay_unknown")
		require.True(t, held)
		require.NoError(t, record.Err)
		require.Equal(t, `{"status":"paid"}`, record.Value)
	})

	t.Run("finds a key with a line break by its link, and forgets that very key", func(t *testing.T) {
		b := b.in(t)
		b.open(s.url+"?key=line%0Abreak", wide, "light")
		b.do(chromedp.Click(chromedp.CSS("input[name=sure]")), chromedp.Click(chromedp.Search(`//button[text()="Forget"]`)),
			chromedp.WaitVisible(chromedp.Search(`//p[contains(., "Not held by this process")]`)))
		_, held := s.Lookup("line\nbreak")
		require.False(t, held)
	})

	t.Run("gives the browser nothing to complain of", func(t *testing.T) {
		require.Empty(t, b.complained())
		bad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Security-Policy", "default-src 'none'")
			_, _ = io.WriteString(w, "<style>p { color: red }</style><p>A page that breaks its own policy</p>")
		}))
		defer bad.Close()
		b.open(bad.URL, wide, "light")
		require.Eventually(t, func() bool { return len(b.complained()) > 0 }, 10*time.Second, time.Millisecond,
			"a complaint would have been heard")
	})
}

// outside lists elements that make the page scroll sideways.
const outside = `document.documentElement.scrollWidth <= innerWidth ? [] :
  [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest(".wide"))
    .map(e => e.tagName + "." + e.className + " " + e.getBoundingClientRect().right + " " + e.textContent.slice(0, 40)).slice(0, 5)`

// faint lists texts whose colour is too near the one behind them (WCAG 2 AA).
const faint = `(() => {
  const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return {rgb: m.slice(0, 3), alpha: m.length > 3 ? m[3] : 1} }
  const light = rgb => { const [r, g, b] = rgb.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b }
  const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.alpha === 1) return c.rgb }
    return [255, 255, 255] }
  const found = []
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement
    if (!texts.currentNode.data.trim() || !e.getClientRects().length) continue
    const a = light(parse(getComputedStyle(e).color).rgb), b = light(behind(e))
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
    if (contrast < 4.5) found.push(contrast.toFixed(2) + " " + texts.currentNode.data.trim())
  }
  return found
})()`
