package idemhttp_test

import (
	"bytes"
	"io"
	"math"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemhttp"
)

// Rules may read the body of the request, or parse a form from it: the next one
// and the handler find it whole.
func TestRulesTakeNothingFromTheRequest(t *testing.T) {
	const form = "amount=7&account=acme"
	read := func(r *http.Request) string {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		return string(body)
	}
	for name, opts := range map[string]idemhttp.Options{
		"Key":    {Key: func(r *http.Request, _ []byte) (string, error) { return r.FormValue("account"), nil }},
		"Verify": {Verify: func(r *http.Request, _ []byte) error { return r.ParseForm() }},
		"Scope":  {Scope: func(r *http.Request) string { return r.FormValue("account") }},
		"one after another": {
			Verify: func(r *http.Request, _ []byte) error { assert.Equal(t, form, read(r)); return nil },
			Key: func(r *http.Request, _ []byte) (string, error) {
				assert.Equal(t, "acme", r.PostFormValue("account"))
				return "1", nil
			},
			Scope: func(r *http.Request) string { assert.Equal(t, form, read(r)); return "" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			var amount, event string
			s := serve(t, webhook(t, opts, func(_ http.ResponseWriter, r *http.Request) {
				amount, event = r.PostFormValue("amount"), r.FormValue("event")
			}))
			got := ask(t, s, "POST", "/?event=e1", form, "Content-Type", "application/x-www-form-urlencoded")
			require.Equal(t, 200, got.status)
			require.Equal(t, "7", amount)
			require.Equal(t, "e1", event)
		})
	}
}

// upload is a form with a file that is too large for a handler that keeps nothing
// in memory.
func upload(t *testing.T) (body, contentType string) {
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	f, err := m.CreateFormFile("f", "f.bin")
	require.NoError(t, err)
	f.Write(bytes.Repeat([]byte("x"), 100<<10))
	require.NoError(t, m.Close())
	return b.String(), m.FormDataContentType()
}

func TestUploadsLeaveNoFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	body, contentType := upload(t)
	parsed := 0
	parse := func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseMultipartForm(1))
		assert.Len(t, files(t, dir), 1)
		parsed++
	}
	fail := func(w http.ResponseWriter, r *http.Request) {
		parse(w, r)
		panic(http.ErrAbortHandler)
	}
	recovering := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { recover() }()
			next.ServeHTTP(w, r)
		})
	}
	verify := func(r *http.Request, _ []byte) error { parse(nil, r); return errDown }
	for name, h := range map[string]http.Handler{
		"guarded":             webhook(t, idemhttp.Options{}, parse),
		"let through, Verify": keyed(t, idemhttp.Options{Optional: true, Verify: func(*http.Request, []byte) error { return nil }}, parse),
		"let through, Key":    keyed(t, idemhttp.Options{Optional: true, Key: idemhttp.Header("X-Key")}, parse),
		"a panic":             webhook(t, idemhttp.Options{}, fail),
		"a panic, recovered":  recovering(webhook(t, idemhttp.Options{}, fail)),
		"parsed by a rule":    webhook(t, idemhttp.Options{Verify: verify}, parse),
	} {
		for protocol, http2 := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				s := httptest.NewUnstartedServer(h)
				s.EnableHTTP2 = http2
				s.StartTLS()
				before := parsed
				try(s, "POST", "/", body, "Content-Type", contentType, "Webhook-Id", protocol)
				s.Close()
				require.Equal(t, before+1, parsed)
				eventually(t, "no file is left", func() bool { return len(files(t, dir)) == 0 })
			})
		}
	}
}

func TestNoLimitOnTheBody(t *testing.T) {
	var read int64
	guarded := webhook(t, idemhttp.Options{MaxBody: math.MaxInt64}, func(_ http.ResponseWriter, r *http.Request) {
		read, _ = io.Copy(io.Discard, r.Body)
	})
	const size = 200 << 10
	w := httptest.NewRecorder()
	guarded.ServeHTTP(w, httptest.NewRequest("POST", "/", io.LimitReader(zeros{}, size)))
	require.Equal(t, 200, w.Code)
	require.EqualValues(t, size, read)
}

func TestALongBodyIsRefused(t *testing.T) {
	h := &counting{answer: status(200)}
	for name, guarded := range map[string]http.Handler{
		"Webhook":        webhook(t, idemhttp.Options{MaxBody: 4}, h.ServeHTTP),
		"IdempotencyKey": keyed(t, idemhttp.Options{MaxBody: 4}, h.ServeHTTP),
	} {
		t.Run(name, func(t *testing.T) {
			for body, want := range map[string]int{"12345": 413, "1234": 200} {
				require.Equal(t, want, send(guarded, "POST", "/", body, "Idempotency-Key", body).Code)
			}
		})
	}
	require.EqualValues(t, 2, h.runs.Load())
}

// An id that cannot be a key is not decoded, whatever its length.
func TestJSONFieldDecodesNoLongString(t *testing.T) {
	rule := idemhttp.JSONField("id")
	body := []byte(`{"id":"\n` + strings.Repeat("k", 1<<20) + `"}`)
	var err error
	allocs := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			_, err = rule(nil, body)
		}
	}).AllocedBytesPerOp()
	require.ErrorContains(t, err, "too long")
	require.Less(t, allocs, int64(1<<20))

	longest := strings.Repeat(`\u00e9`, 255)
	id, err := rule(nil, []byte(`{"id":"`+longest+`"}`))
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("é", 255), id)
	id, err = rule(nil, []byte(`{"id":[`+strings.Repeat(" ", 4000)+`]}`))
	require.NoError(t, err)
	require.Empty(t, id, "no string is no key")
}
