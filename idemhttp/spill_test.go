package idemhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemhttp"
)

func newDir(t *testing.T, maxAge time.Duration) (idemhttp.Spill, string) {
	path := filepath.Join(t.TempDir(), "bodies")
	spill, err := idemhttp.Dir(path, maxAge)
	require.NoError(t, err)
	return spill, path
}

func files(t *testing.T, path string) []string {
	entries, err := os.ReadDir(path)
	require.NoError(t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// lines writes n bytes in small pieces.
func lines(n int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Language", "en")
		for i := 0; i < n; i += 10 {
			fmt.Fprintf(w, "%09d\n", i)
		}
	}
}

func TestSpill(t *testing.T) {
	t.Run("a large body replays from it, byte for byte", func(t *testing.T) {
		spill, path := newDir(t, time.Hour)
		first, second := twice(t, idemhttp.Options{MaxResponse: 1000, Spill: spill}, lines(1_000_000))
		require.Len(t, first.body, 1_000_000)
		require.True(t, first.body == second.body)
		require.Equal(t, first.header["Content-Type"], second.header["Content-Type"])
		require.Equal(t, "en", second.header.Get("Content-Language"))
		require.Equal(t, "1000000", second.header.Get("Content-Length"))
		require.Empty(t, second.header.Get("Idempotency-Body"))
		require.Len(t, files(t, path), 1)
	})
	t.Run("a small body does not go there", func(t *testing.T) {
		spill, path := newDir(t, time.Hour)
		_, second := twice(t, idemhttp.Options{MaxResponse: 1000, Spill: spill}, lines(1000))
		require.Len(t, second.body, 1000)
		require.Empty(t, files(t, path))
	})
	t.Run("a body that is gone is answered as omitted", func(t *testing.T) {
		spill, path := newDir(t, time.Hour)
		guarded := webhook(t, idemhttp.Options{MaxResponse: 10, Spill: spill}, lines(1000))
		send(guarded, "POST", "/", "", "Webhook-Id", "1")
		require.NoError(t, os.RemoveAll(path))
		got := send(guarded, "POST", "/", "", "Webhook-Id", "1")
		require.Equal(t, 200, got.Code)
		require.Equal(t, "en", got.Header().Get("Content-Language"))
		require.Equal(t, "omitted", got.Header().Get("Idempotency-Body"))
		require.Zero(t, got.Body.Len())
	})
	t.Run("a process without the spill answers as omitted", func(t *testing.T) {
		spill, _ := newDir(t, time.Hour)
		e := newEndpoint(t, config{})
		send(idemhttp.Webhook(e, idemhttp.Options{MaxResponse: 10, Spill: spill})(lines(1000)), "POST", "/", "", "Webhook-Id", "1")
		got := send(idemhttp.Webhook(e, idemhttp.Options{})(lines(1000)), "POST", "/", "", "Webhook-Id", "1")
		require.Equal(t, "omitted", got.Header().Get("Idempotency-Body"))
		require.Zero(t, got.Body.Len())
	})
	t.Run("a response that is not kept does not go there", func(t *testing.T) {
		spill, path := newDir(t, time.Hour)
		guarded := webhook(t, idemhttp.Options{MaxResponse: 10, Spill: spill}, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			lines(1000)(w, r)
		})
		require.Equal(t, 1000, send(guarded, "POST", "/", "", "Webhook-Id", "1").Body.Len())
		require.Empty(t, files(t, path))
	})
	t.Run("a panic half way leaves nothing there", func(t *testing.T) {
		spill, path := newDir(t, time.Hour)
		guarded := webhook(t, idemhttp.Options{MaxResponse: 10, Spill: spill}, func(w http.ResponseWriter, r *http.Request) {
			lines(1000)(w, r)
			panic("boom")
		})
		require.PanicsWithValue(t, "boom", func() { send(guarded, "POST", "/", "", "Webhook-Id", "1") })
		require.Empty(t, files(t, path))
	})
	t.Run("HEAD replays the length alone", func(t *testing.T) {
		spill, _ := newDir(t, time.Hour)
		server := serve(t, webhook(t, idemhttp.Options{MaxResponse: 10, Spill: spill}, lines(1000)))
		for range 2 {
			got := ask(t, server, "HEAD", "/", "", "Webhook-Id", "1")
			require.Equal(t, 200, got.status)
		}
		require.Equal(t, "1000", ask(t, server, "HEAD", "/", "", "Webhook-Id", "1").header.Get("Content-Length"))
		unread := fake{
			put:  func(r io.Reader) (string, error) { _, err := io.Copy(io.Discard, r); return "ref", err },
			open: func(string) (io.ReadCloser, error) { return io.NopCloser(failing{}), nil },
		}
		guarded := webhook(t, idemhttp.Options{MaxResponse: 10, Spill: unread}, lines(1000))
		for range 2 {
			require.Equal(t, 200, send(guarded, "HEAD", "/", "", "Webhook-Id", "1").Code)
		}
	})
	t.Run("a duplicate that comes while another reads gets it whole too", func(t *testing.T) {
		spill, _ := newDir(t, time.Hour)
		server := serve(t, webhook(t, idemhttp.Options{MaxResponse: 10, Spill: spill}, lines(100_000)))
		want := ask(t, server, "POST", "/", "", "Webhook-Id", "1").body
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() {
				got, err := try(server, "POST", "/", "", "Webhook-Id", "1")
				if err != nil || got.body != want {
					t.Errorf("%d bytes, %v", len(got.body), err)
				}
			})
		}
		calls.Wait()
	})
}

// fake is a Spill of two functions.
type fake struct {
	put  func(io.Reader) (string, error)
	open func(string) (io.ReadCloser, error)
}

func (f fake) Put(_ context.Context, _ string, body io.Reader) (string, error) { return f.put(body) }
func (f fake) Open(_ context.Context, ref string) (io.ReadCloser, error)       { return f.open(ref) }

func TestSpillThatFails(t *testing.T) {
	for name, put := range map[string]func(io.Reader) (string, error){
		"at once":          func(io.Reader) (string, error) { return "", errDown },
		"half way":         func(r io.Reader) (string, error) { io.CopyN(io.Discard, r, 100); return "", errDown },
		"at the end":       func(r io.Reader) (string, error) { io.Copy(io.Discard, r); return "", errDown },
		"by leaving early": func(r io.Reader) (string, error) { io.CopyN(io.Discard, r, 100); return "ref", nil },
		"without a ref":    func(r io.Reader) (string, error) { io.Copy(io.Discard, r); return "", nil },
		"by a panic":       func(r io.Reader) (string, error) { panic("boom") },
	} {
		t.Run(name+" leaves the body omitted and the first answer whole", func(t *testing.T) {
			first, second := twice(t, idemhttp.Options{MaxResponse: 15, Spill: fake{put: put}}, lines(10_000))
			require.Len(t, first.body, 10_000)
			require.Empty(t, second.body)
			require.Equal(t, "omitted", second.header.Get("Idempotency-Body"))
		})
	}
	t.Run("while a replay is read breaks the connection off: a cut body never looks whole", func(t *testing.T) {
		var runs atomic.Int64
		spill := fake{
			put: func(r io.Reader) (string, error) { _, err := io.Copy(io.Discard, r); return "ref", err },
			open: func(string) (io.ReadCloser, error) {
				return io.NopCloser(io.MultiReader(strings.NewReader("half"), failing{})), nil
			},
		}
		server := serve(t, webhook(t, idemhttp.Options{MaxResponse: 10, Spill: spill}, func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			lines(1000)(w, r)
		}))
		ask(t, server, "POST", "/", "", "Webhook-Id", "1")
		_, err := try(server, "POST", "/", "", "Webhook-Id", "1")
		require.Error(t, err)
		require.EqualValues(t, 1, runs.Load())
	})
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errDown }

func TestDir(t *testing.T) {
	put := func(t *testing.T, spill idemhttp.Spill, body string) string {
		ref, err := spill.Put(t.Context(), "key/../\x00", strings.NewReader(body))
		require.NoError(t, err)
		return ref
	}
	read := func(t *testing.T, spill idemhttp.Spill, ref string) string {
		body, err := spill.Open(t.Context(), ref)
		require.NoError(t, err)
		defer body.Close()
		text, err := io.ReadAll(body)
		require.NoError(t, err)
		return string(text)
	}
	t.Run("keeps bodies apart, of one key too", func(t *testing.T) {
		spill, _ := newDir(t, 0)
		a, b := put(t, spill, "a"), put(t, spill, "b")
		require.Equal(t, "a", read(t, spill, a))
		require.Equal(t, "b", read(t, spill, b))
	})
	t.Run("is found again by another process", func(t *testing.T) {
		spill, path := newDir(t, time.Hour)
		ref := put(t, spill, "a")
		other, err := idemhttp.Dir(path, time.Hour)
		require.NoError(t, err)
		require.Equal(t, "a", read(t, other, ref))
	})
	t.Run("is readable by its owner alone", func(t *testing.T) {
		spill, path := newDir(t, time.Hour)
		info, err := os.Stat(filepath.Join(path, put(t, spill, "a")))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	})
	t.Run("removes files older than maxAge as new ones come, and nobody else's", func(t *testing.T) {
		spill, path := newDir(t, time.Hour)
		old, young := put(t, spill, "old"), put(t, spill, "young")
		for name, age := range map[string]time.Duration{
			old: time.Hour + time.Second, young: time.Hour - time.Minute, "partial-crashed": 2 * time.Hour, "mine.txt": 2 * time.Hour,
		} {
			file, err := os.OpenFile(filepath.Join(path, name), os.O_CREATE, 0o600)
			require.NoError(t, err)
			require.NoError(t, file.Close())
			require.NoError(t, os.Chtimes(file.Name(), time.Time{}, time.Now().Add(-age)))
		}
		newest := put(t, spill, "new")
		require.ElementsMatch(t, []string{young, newest, "mine.txt"}, files(t, path))
		_, err := spill.Open(t.Context(), old)
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("passes over what it cannot remove", func(t *testing.T) {
		spill, path := newDir(t, time.Hour)
		stuck := filepath.Join(path, "body-of-another")
		require.NoError(t, os.MkdirAll(filepath.Join(stuck, "x"), 0o700))
		require.NoError(t, os.Chtimes(stuck, time.Time{}, time.Now().Add(-2*time.Hour)))
		_, err := spill.Put(t.Context(), "k", strings.NewReader("body"))
		require.NoError(t, err)
	})
	t.Run("removes nothing if maxAge is 0", func(t *testing.T) {
		spill, path := newDir(t, 0)
		ref := put(t, spill, "old")
		require.NoError(t, os.Chtimes(filepath.Join(path, ref), time.Time{}, time.Unix(0, 0)))
		put(t, spill, "new")
		require.Len(t, files(t, path), 2)
	})
	t.Run("has no file while a body is not complete", func(t *testing.T) {
		spill, path := newDir(t, time.Hour)
		_, err := spill.Put(t.Context(), "k", io.MultiReader(strings.NewReader("half"), failing{}))
		require.ErrorIs(t, err, errDown)
		require.Empty(t, files(t, path))
	})
	t.Run("opens nothing but its bodies", func(t *testing.T) {
		spill, path := newDir(t, time.Hour)
		require.NoError(t, os.WriteFile(filepath.Join(path, "..", "body-secret"), []byte("s"), 0o600))
		for _, ref := range []string{"", ".", "../body-secret", "body-/../../body-secret", "/etc/passwd", "partial-x", "body-\x00"} {
			_, err := spill.Open(t.Context(), ref)
			require.Error(t, err, ref)
		}
	})
	t.Run("says what is wrong with its arguments", func(t *testing.T) {
		_, err := idemhttp.Dir(t.TempDir(), -time.Second)
		require.EqualError(t, err, "idemhttp: Dir: maxAge is -1s, want 0 or more")
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		_, err = idemhttp.Dir(file, 0)
		require.ErrorContains(t, err, "idemhttp: Dir: ")
	})
	t.Run("may be shared by many at once", func(t *testing.T) {
		spill, _ := newDir(t, time.Nanosecond) // every Put removes what it finds
		var calls sync.WaitGroup
		for i := range 8 {
			calls.Go(func() {
				for range 50 {
					ref, err := spill.Put(t.Context(), "k", strings.NewReader(fmt.Sprint(i)))
					if err != nil && !errors.Is(err, os.ErrNotExist) { // another removed it before its time
						t.Error(ref, err)
					}
				}
			})
		}
		calls.Wait()
	})
}
