package idemhttp

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxKey is the longest key in bytes that a client may name.
const maxKey = 255

// maxText is the most bytes that a JSON string of maxKey bytes can take.
const maxText = 6*maxKey + 2

// maxJoined is the longest joined key in bytes that is stored as it is. Paths
// and scopes have no bound of their own.
const maxJoined = 1024

// Header is the rule that takes the key from the first of the named headers
// that is present and not empty. A header that comes in several lines is an
// error: whoever reads another line would see another key.
func Header(names ...string) func(*http.Request, []byte) (string, error) {
	canonical := make([]string, len(names))
	for i, name := range names {
		canonical[i] = http.CanonicalHeaderKey(name)
	}
	return func(r *http.Request, _ []byte) (string, error) {
		for _, name := range canonical {
			values := r.Header[name]
			if len(values) > 1 {
				return "", fmt.Errorf("idemhttp: header %s is repeated", name)
			}
			if len(values) == 1 && values[0] != "" {
				return values[0], nil
			}
		}
		return "", nil
	}
}

// JSONField is the rule that takes the key from a string inside a JSON object
// body, found by the names of the members that lead to it; of members with one
// name the last counts, as in encoding/json. A body that is not JSON and a
// member that is missing, empty or no string give no key. Nor does a string
// that is not valid Unicode: decoding makes such strings equal that differ. The
// body is read as it was sent: put a middleware that decompresses before this
// one.
func JSONField(path ...string) func(*http.Request, []byte) (string, error) {
	return func(_ *http.Request, body []byte) (string, error) {
		if !json.Valid(body) {
			return "", nil
		}
		for _, name := range path {
			body = member(body, name)
		}
		if len(body) > maxText && body[0] == '"' {
			return "", errors.New("idemhttp: the key is too long") // without decoding it
		}
		var id *string
		if json.Unmarshal(body, &id) != nil || id == nil || strings.ContainsRune(*id, utf8.RuneError) {
			return "", nil
		}
		return *id, nil
	}
}

// FirstOf is the rule that takes the first key that one of the rules finds. An
// error ends the search: a key that is there and malformed must not be passed
// over for another.
func FirstOf(rules ...func(*http.Request, []byte) (string, error)) func(*http.Request, []byte) (string, error) {
	return func(r *http.Request, body []byte) (string, error) {
		for _, rule := range rules {
			if key, err := rule(r, body); key != "" || err != nil {
				return key, err
			}
		}
		return "", nil
	}
}

// BodyHash is the rule that makes the key of the body's bytes: "body_" and the
// SHA-256 in hex. Two events with equal bodies are one event to it.
func BodyHash(_ *http.Request, body []byte) (string, error) {
	sum := sha256.Sum256(body)
	var text [5 + 2*sha256.Size]byte
	copy(text[:], "body_")
	hex.Encode(text[5:], sum[:])
	return string(text[:]), nil
}

var (
	eventHeader = Header("Webhook-Id", "X-GitHub-Delivery")
	eventField  = JSONField("id")
)

// eventID is Webhook's own rule. It finds no key in a safe request without a
// body: that is a probe of the endpoint and no delivery, and hashing nothing
// would make all probes one.
func eventID(r *http.Request, body []byte) (string, error) {
	if id, err := eventHeader(r, nil); id != "" || err != nil {
		return id, err
	}
	if len(body) == 0 && isSafe(r.Method) {
		return "", nil
	}
	if id, err := eventField(r, body); id != "" || err != nil {
		return id, err
	}
	return BodyHash(r, body)
}

func isSafe(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

var errNoKey = errors.New("idemhttp: the request has no key")

// checkKey holds for every key, whatever rule it came from: stores differ in
// what they can hold, and all of them can hold this.
func checkKey(key string) error {
	switch {
	case key == "":
		return errNoKey
	case len(key) > maxKey:
		return fmt.Errorf("idemhttp: the key is %d bytes long, want at most %d", len(key), maxKey)
	case !utf8.ValidString(key):
		return errors.New("idemhttp: the key is not valid UTF-8")
	case strings.ContainsFunc(key, unicode.IsControl):
		return errors.New("idemhttp: the key has a control character")
	}
	return nil
}

// joinWebhook and joinClient make the key that the executor gets. The first
// word tells them apart, so that one executor may serve both; no part but the
// last can hold a space.
func joinWebhook(r *http.Request, scope, id string) string {
	return bounded("hook " + r.Method + " " + sentPath(r) + " " + url.PathEscape(scope) + " " + id)
}

// sentPath is the path that the client asked for. A middleware before this one
// may have cut it, as http.StripPrefix does: two of its mounts are not one.
func sentPath(r *http.Request) string {
	path := r.URL.EscapedPath()
	if rest, ok := strings.CutPrefix(r.RequestURI, path); ok && (rest == "" || rest[0] == '?') {
		return plainPath(path)
	}
	if sent, err := url.ParseRequestURI(r.RequestURI); err == nil && sent.Path != "" {
		path = sent.EscapedPath()
	}
	return plainPath(path)
}

// plainPath is an escaped path in one of the spellings that a router takes for the
// same: without escapes, but of bytes that are no visible ASCII, of the slash, which
// would part a segment, and of the escape's own sign.
func plainPath(path string) string {
	if !strings.Contains(path, "%") {
		return path
	}
	plain := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		if path[i] != '%' {
			plain = append(plain, path[i])
			continue
		}
		escape := strings.ToUpper(path[i : i+3]) // an escaped path has no other
		i += 2
		b, _ := strconv.ParseUint(escape[1:], 16, 8)
		if b > ' ' && b <= '~' && b != '/' && b != '%' {
			plain = append(plain, byte(b))
		} else {
			plain = append(plain, escape...)
		}
	}
	return string(plain)
}

func joinClient(scope, id string) string {
	return bounded("key " + url.PathEscape(scope) + " " + id)
}

func bounded(key string) string {
	if len(key) <= maxJoined {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "hash " + hex.EncodeToString(sum[:])
}

// fingerprint digests what makes a request the same request: method, path,
// query and body, each with its length before it.
func fingerprint(r *http.Request, body []byte) string {
	digest := sha256.New()
	var length [8]byte
	for _, part := range [...]string{r.Method, sentPath(r), r.URL.RawQuery} {
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		digest.Write(length[:])
		digest.Write([]byte(part))
	}
	digest.Write(body)
	return hex.EncodeToString(digest.Sum(nil))
}
