package idemhttp

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

const keyHeader = "Idempotency-Key"

// clientKey is IdempotencyKey's own rule: one Idempotency-Key header. "" and no
// error say that there is no such header.
func clientKey(r *http.Request, _ []byte) (string, error) {
	values := r.Header[keyHeader]
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		key, err := parseKey(values[0])
		if err != nil {
			return "", fmt.Errorf("idemhttp: header %s: %w", keyHeader, err)
		}
		return key, nil
	}
	return "", fmt.Errorf("idemhttp: header %s is repeated", keyHeader)
}

var (
	errEmpty     = errors.New("the key is empty")
	errLong      = fmt.Errorf("the key is longer than %d bytes", maxKey)
	errUnclosed  = errors.New("the string is not closed")
	errTrailing  = errors.New("something follows the string")
	errEscape    = errors.New(`a backslash stands before something other than " or \`)
	errCharacter = errors.New("a character is not allowed")
)

// parseKey reads a field value as a string of RFC 9651, section 4.2.5, without
// parameters, or as a bare key: visible ASCII but for the characters that would
// make it a string, a list or an item with parameters. Its errors hold nothing
// of the value.
func parseKey(value string) (string, error) {
	value = strings.Trim(value, " ")
	if value == "" {
		return "", errEmpty
	}
	if len(value) > 2*maxKey+2 { // every byte escaped, and the quotes
		return "", errLong
	}
	key, err := value, error(nil)
	if value[0] == '"' {
		key, err = parseString(value[1:])
	} else if strings.ContainsFunc(value, notBare) {
		err = errCharacter
	}
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", errEmpty
	case len(key) > maxKey:
		return "", errLong
	}
	return key, nil
}

// parseString reads the rest of a string after its opening quote.
func parseString(rest string) (string, error) {
	if key, closed := strings.CutSuffix(rest, `"`); closed && !strings.ContainsFunc(key, notPlain) {
		return key, nil // the usual key needs no copy
	}
	var key strings.Builder
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == '"' && i == len(rest)-1:
			return key.String(), nil
		case c == '"':
			return "", errTrailing
		case c == '\\':
			i++
			if i == len(rest) {
				return "", errUnclosed
			}
			if rest[i] != '"' && rest[i] != '\\' {
				return "", errEscape
			}
			key.WriteByte(rest[i])
		case c < ' ' || c > '~':
			return "", errCharacter
		default:
			key.WriteByte(c)
		}
	}
	return "", errUnclosed
}

func notPlain(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }

func notBare(c rune) bool {
	return c <= ' ' || c > '~' || c == '"' || c == '\\' || c == ',' || c == ';'
}
