package idemhttp_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent/idemhttp"
)

func TestHeaderAndFirstOf(t *testing.T) {
	r := httptest.NewRequest("POST", "/", nil)
	r.Header.Set("B", "b")
	r.Header.Set("C", "c")
	r.Header.Set("Empty", "")
	r.Header["Twice"] = []string{"1", "2"}
	fails := func(*http.Request, []byte) (string, error) { return "", errors.New("malformed") }
	for _, c := range []struct {
		name string
		rule func(*http.Request, []byte) (string, error)
		key  string
		err  string
	}{
		{"the first header that is present", idemhttp.Header("A", "b", "C"), "b", ""},
		{"an empty header is passed over", idemhttp.Header("Empty", "C"), "c", ""},
		{"no header", idemhttp.Header("A"), "", ""},
		{"a repeated header", idemhttp.Header("Twice", "B"), "", "idemhttp: header Twice is repeated"},
		{"the first rule that finds a key", idemhttp.FirstOf(idemhttp.Header("A"), idemhttp.Header("C"), idemhttp.BodyHash), "c", ""},
		{"an error ends the search", idemhttp.FirstOf(fails, idemhttp.Header("C")), "", "malformed"},
		{"no rule finds one", idemhttp.FirstOf(idemhttp.Header("A"), idemhttp.JSONField("id")), "", ""},
		{"no rules", idemhttp.FirstOf(), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			key, err := c.rule(r, nil)
			require.Equal(t, c.key, key)
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, c.err)
			}
		})
	}
}
