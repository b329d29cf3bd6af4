package idemhttp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"unicode/utf8"
)

// A Response is what a finished handler answered. It comes back from
// JSON as it was, byte for byte.
type Response struct {
	Status  int
	Header  http.Header // the headers that are replayed, and no others
	Body    []byte      // nil when BodyRef is set or the body was too large to keep
	BodyRef string      // where Options.Spill put a large body
	Omitted bool        // the body was too large and nothing spilled it
}

type responseJSON struct {
	Status  int                 `json:"status"`
	Header  map[string][]string `json:"header"`
	Body    []byte              `json:"body,omitempty"`
	BodyRef string              `json:"bodyRef,omitempty"`
	Omitted bool                `json:"omitted,omitempty"`
}

// MarshalJSON writes the body in base64 and the other strings with each byte as
// the Unicode character of its number: header values are bytes, and JSON would
// replace those that are not UTF-8.
func (r Response) MarshalJSON() ([]byte, error) {
	header, _ := mapHeader(r.Header, func(s string) (string, error) { return widen(s), nil })
	return json.Marshal(responseJSON{r.Status, header, r.Body, widen(r.BodyRef), r.Omitted})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *Response) UnmarshalJSON(data []byte) error {
	var wire responseJSON
	if err := json.Unmarshal(data, &wire); err != nil {
		return fmt.Errorf("idemhttp: response: %w", err)
	}
	header, err := mapHeader(wire.Header, narrow)
	if err != nil {
		return err
	}
	ref, err := narrow(wire.BodyRef)
	if err != nil {
		return err
	}
	*r = Response{wire.Status, header, wire.Body, ref, wire.Omitted}
	return nil
}

func mapHeader(header map[string][]string, text func(string) (string, error)) (map[string][]string, error) {
	if header == nil {
		return nil, nil
	}
	mapped := make(map[string][]string, len(header))
	for name, values := range header {
		name, err := text(name)
		if err != nil {
			return nil, err
		}
		if values == nil {
			mapped[name] = nil
			continue
		}
		lines := make([]string, len(values))
		for i, value := range values {
			if lines[i], err = text(value); err != nil {
				return nil, err
			}
		}
		mapped[name] = lines
	}
	return mapped, nil
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func widen(s string) string {
	if isASCII(s) {
		return s
	}
	wide := make([]rune, len(s))
	for i := range len(s) {
		wide[i] = rune(s[i])
	}
	return string(wide)
}

func narrow(s string) (string, error) {
	if isASCII(s) {
		return s, nil
	}
	bytes := make([]byte, 0, len(s))
	for _, c := range s {
		if c > 0xff {
			return "", fmt.Errorf("idemhttp: response: %q has a character that stands for no byte", s)
		}
		bytes = append(bytes, byte(c))
	}
	return string(bytes), nil
}
