package idemhttp

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// FuzzParseKey: any value gives either an error or a key that every store and
// every header can hold, and that written as a string is read as itself.
func FuzzParseKey(f *testing.F) {
	for _, value := range []string{
		"", " ", `"`, `""`, `"abc"`, "abc", `"a\"b"`, `"a\\"`, `"a\`, `"a" `, `"a";b`, "a,b", "a;b", "\x00", "\"\x7f\"", `"ä"`, `a"`, `"a"b"`,
		`"` + strings.Repeat(`\\`, 255) + `"`, `"` + strings.Repeat(`\\`, 256) + `"`, strings.Repeat("a", 256),
	} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := parseKey(value)
		if err != nil {
			require.Empty(t, key)
			require.NotContains(t, err.Error(), "\x00")
			return
		}
		require.NoError(t, checkKey(key))
		require.Equal(t, -1, strings.IndexFunc(key, func(c rune) bool { return c < ' ' || c > '~' }))
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		again, err := parseKey(quoted)
		require.NoError(t, err)
		require.Equal(t, key, again)
	})
}

// FuzzMember: the member that is found is the one that encoding/json finds.
func FuzzMember(f *testing.F) {
	for _, text := range []string{
		`{}`, `{"id":"x"}`, ` { "a" : {"id":"no"} , "id" : "x" , "b":[1,{"id":2}] } `, `{"id":1,"id":[2]}`, `{"i\u0064":null}`,
		`{"id":"a\"b\\"}`, `{"a":"\"id\":1","id":-1.5e3}`, `[{"id":1}]`, `"id"`, `{"id":true}`, `{"":0,"id":{}}`, `{"id":{"a":"}"}}`, "",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) || !utf8.ValidString(text) {
			return
		}
		var object map[string]json.RawMessage
		_ = json.Unmarshal([]byte(text), &object) // no object, no members
		require.Equal(t, string(object["id"]), string(member([]byte(text), "id")), text)
	})
}

func TestMemberCostsNoMemory(t *testing.T) {
	text := []byte("{" + strings.Repeat(`"a":1,`, 100_000) + `"id":"x"}`)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		if string(member(text, "id")) != `"x"` {
			panic("not found")
		}
	}))
}

func TestKeyRules(t *testing.T) {
	find := func(body string, path ...string) string {
		key, err := JSONField(path...)(nil, []byte(body))
		require.NoError(t, err)
		return key
	}
	t.Run("JSONField", func(t *testing.T) {
		require.Equal(t, "x", find(`{"data": {"object": {"id": "x"}}}`, "data", "object", "id"))
		require.Equal(t, "last", find(`{"id": "first", "id": "last"}`, "id"), "as encoding/json")
		require.Equal(t, "ä\n", find(`{"id": "\u00e4\n"}`, "id"))
		require.Equal(t, "ä", find(`{"ключ": "ä"}`, "ключ"))
	})
	for name, body := range map[string]string{
		"no JSON": `id=1`, "cut JSON": `{"id":"x"`, "two values": `{"id":"x"}{}`, "an array": `["id","x"]`, "a number": `{"id":1}`,
		"null": `{"id":null}`, "an object": `{"id":{}}`, "empty": `{"id":""}`, "missing": `{"Id":"x"}`, "nothing": ``,
		"bad UTF-8, which would equal other bad UTF-8": "{\"id\":\"\xff\"}", "a lone surrogate": `{"id":"\ud800"}`,
		"too deep": strings.Repeat(`{"a":`, 20_000) + `1` + strings.Repeat(`}`, 20_000),
	} {
		t.Run("JSONField finds no key in "+name, func(t *testing.T) {
			require.Empty(t, find(body, "id"))
		})
	}
	t.Run("BodyHash", func(t *testing.T) {
		key, err := BodyHash(nil, nil)
		require.NoError(t, err)
		require.Equal(t, "body_e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", key)
	})
	t.Run("joined keys that are too long are still different keys, of bounded length", func(t *testing.T) {
		long := strings.Repeat("x", 2000)
		a, b := joinClient(long, "a"), joinClient(long, "b")
		require.NotEqual(t, a, b)
		require.Equal(t, a, joinClient(long, "a"))
		require.LessOrEqual(t, len(a), maxJoined)
	})
}
