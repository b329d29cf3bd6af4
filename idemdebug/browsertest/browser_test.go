package browsertest

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// tab is a browser's tab with JavaScript off. It gathers all that the browser
// complains of.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

func newTab(t *testing.T) *tab {
	path, err := exec.LookPath("chromium")
	require.NoError(t, err, "install Chromium: apt-get install chromium")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.Flag("disable-dev-shm-usage", true))...)
	t.Cleanup(cancel)
	b := &tab{t: t}
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithListener(b.hear))
	t.Cleanup(cancel)
	b.ctx = ctx
	b.do(chromedp.Navigate("about:blank")) // starts the browser
	call(b, log.Enable, cdp.Empty{})
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	return b
}

func (b *tab) hear(event any) {
	switch event := event.(type) {
	case log.EventEntryAdded:
		b.complain(string(event.Entry.Level) + ": " + event.Entry.Text)
	case *log.EventEntryAdded:
		b.complain(string(event.Entry.Level) + ": " + event.Entry.Text)
	}
}

func (b *tab) complain(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = append(b.complaints, text)
}

func (b *tab) complained() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.complaints
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, steps...))
}

// get runs an action that has an answer.
func get[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	answer, err := chromedp.Run(b.ctx, action)
	require.NoError(b.t, err)
	return answer
}

// call sends a command of the protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	result, err := chromedp.Call(b.ctx, command, params)
	require.NoError(b.t, err)
	return result
}

// open sets the width and the colours, and loads a page.
func (b *tab) open(url string, width int64, colours string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, 900))
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: colours}},
	})
	b.do(chromedp.Navigate(url))
}

// shoot keeps a picture of the whole page for people to look at, if a folder is
// named in IDEMDEBUG_SHOTS.
func (b *tab) shoot(name string) {
	b.t.Helper()
	if folder := os.Getenv("IDEMDEBUG_SHOTS"); folder != "" {
		picture := get(b, chromedp.FullScreenshot(100))
		require.NoError(b.t, os.WriteFile(filepath.Join(folder, name+".png"), picture, 0o600))
	}
}

// text is what a person reads of an element.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return strings.TrimSpace(get(b, chromedp.Text(chromedp.CSS(selector))))
}

// in is the tab for a subtest.
func (b *tab) in(t *testing.T) *tab { return &tab{t: t, ctx: b.ctx} }

// tabTo presses the tabulator until the field with the name has the focus.
func (b *tab) tabTo(name string) {
	b.t.Helper()
	for range 100 {
		b.do(chromedp.KeyEvent("\t"))
		if get(b, chromedp.Evaluate[string]("document.activeElement.name || ''")) == name {
			return
		}
	}
	require.Failf(b.t, "not reached by the tabulator", "field %q", name)
}

// said is what a screen reader would say of a node's role or name.
func said(value *accessibility.Value) string {
	var text string
	if value == nil || json.Unmarshal(value.Value, &text) != nil {
		return ""
	}
	return text
}
