package idemhttp

import (
	"bytes"
	"encoding/json"
)

// member finds an object's last member of that name and returns its value, or
// nil. The text must be valid JSON. Unlike decoding into a map it costs no
// memory, however many members a stranger sends.
func member(text []byte, name string) (value []byte) {
	text = skipSpace(text)
	if len(text) == 0 || text[0] != '{' {
		return nil
	}
	for text[0] != '}' {
		text = skipSpace(text[1:]) // past the brace or the comma
		if text[0] == '}' {
			break // an object without members
		}
		end := stringEnd(text)
		key := text[:end]
		text = skipSpace(skipSpace(text[end:])[1:]) // past the colon
		end = valueEnd(text)
		if isName(key, name) {
			value = text[:end]
		}
		text = skipSpace(text[end:])
	}
	return value
}

func isName(quoted []byte, name string) bool {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1:len(quoted)-1]) == name
	}
	var key string
	return json.Unmarshal(quoted, &key) == nil && key == name
}

func skipSpace(text []byte) []byte { return bytes.TrimLeft(text, " \t\r\n") }

// stringEnd is the length of the string that text begins with.
func stringEnd(text []byte) int {
	for i := 1; ; i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

// valueEnd is the length of the value that text begins with.
func valueEnd(text []byte) int {
	depth := 0
	for i := 0; ; {
		switch text[i] {
		case '"':
			i += stringEnd(text[i:])
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		default:
			if depth > 0 {
				i++
				continue
			}
			i += bytes.IndexAny(text[i:], ",}] \t\r\n") // a number or a word inside an object
		}
		if depth == 0 {
			return i
		}
	}
}
