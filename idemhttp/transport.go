package idemhttp

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/idempotent-go/idempotent"
)

// Transport sends the running effect's key with each request that the effect
// makes, so that the remote side can tell a retry of it. It acts on methods
// that are not safe (all but GET, HEAD, OPTIONS and TRACE), when the request's
// context comes from an effect with a string key and the request has no such
// header of its own. A key of at most 255 visible ASCII characters without
// quote, backslash, comma and semicolon is sent as it is; any other, such as
// those of this package's middlewares, as the hex SHA-256 of it.
//
// With an Idempotency-Key net/http takes a request for one that may be repeated,
// and sends it again by itself when a kept-alive connection breaks: use Transport
// towards services that know the key, or set Header to another name.
//
// All requests of one effect get one key: an effect that sends more than one
// to the same service sets the header itself, to something that is the same on
// a retry. The zero value is ready to use. A Transport is safe for use by
// several goroutines and must not be changed while in use.
type Transport struct {
	Base   http.RoundTripper // nil means http.DefaultTransport
	Header string            // "" means Idempotency-Key
}

// CloseIdleConnections does so in Base, if that can, for [http.Client].
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// RoundTrip sends the request, or a copy of it with the header.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base, header := t.base(), http.CanonicalHeaderKey(t.Header)
	if header == "" {
		header = keyHeader
	}
	key, ok := idempotent.Key[string](r.Context())
	if !ok || isSafe(r.Method) || len(r.Header[header]) > 0 {
		return base.RoundTrip(r)
	}
	copied := r.WithContext(r.Context()) // a RoundTripper must not change its request
	copied.Header = r.Header.Clone()
	if copied.Header == nil {
		copied.Header = http.Header{}
	}
	copied.Header.Set(header, outboundKey(key))
	return base.RoundTrip(copied)
}

func outboundKey(key string) string {
	if len(key) <= maxKey && !strings.ContainsFunc(key, notBare) {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
