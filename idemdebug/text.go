package idemdebug

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// textOf returns how a T is written and read without help. parse is nil if there
// is no way back.
func textOf[T any]() (format func(T) string, parse func(string) (T, error)) {
	format = func(v T) string { return fmt.Sprintf("%+v", v) }
	if _, ok := any(new(T)).(encoding.TextUnmarshaler); ok {
		if _, ok := any(*new(T)).(encoding.TextMarshaler); ok {
			return marshalled[T], unmarshalled[T]
		}
		return format, nil
	}
	switch kind := reflect.TypeFor[T](); kind.Kind() {
	case reflect.String:
		return func(v T) string { return reflect.ValueOf(v).String() }, reading[T](func(to reflect.Value, s string) error {
			to.SetString(s)
			return nil
		})
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(v T) string { return strconv.FormatInt(reflect.ValueOf(v).Int(), 10) }, reading[T](func(to reflect.Value, s string) error {
			n, err := strconv.ParseInt(s, 10, kind.Bits())
			to.SetInt(n)
			return err
		})
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return func(v T) string { return strconv.FormatUint(reflect.ValueOf(v).Uint(), 10) }, reading[T](func(to reflect.Value, s string) error {
			n, err := strconv.ParseUint(s, 10, kind.Bits())
			to.SetUint(n)
			return err
		})
	case reflect.Slice:
		if kind.Elem().Kind() == reflect.Uint8 {
			return format, reading[T](func(to reflect.Value, s string) error {
				to.SetBytes([]byte(s))
				return nil
			})
		}
	case reflect.Struct:
		if kind.NumField() == 0 {
			return format, reading[T](func(reflect.Value, string) error { return nil })
		}
	}
	return format, nil
}

func marshalled[T any](v T) string {
	text, err := any(v).(encoding.TextMarshaler).MarshalText()
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(text)
}

func unmarshalled[T any](s string) (v T, err error) {
	return v, any(&v).(encoding.TextUnmarshaler).UnmarshalText([]byte(s))
}

// reading makes a parse function of what sets a T from a text.
func reading[T any](set func(to reflect.Value, s string) error) func(string) (T, error) {
	return func(s string) (v T, err error) {
		return v, set(reflect.ValueOf(&v).Elem(), s)
	}
}

// visible returns s as it is if an eye can take it in, and as a Go string
// otherwise: with control characters, text that runs backwards, blanks at its
// ends, or nothing in it at all.
func visible(s string) string {
	plain := s != "" && strings.TrimSpace(s) == s && utf8.ValidString(s)
	for _, r := range s {
		plain = plain && unicode.IsPrint(r)
	}
	if plain {
		return s
	}
	return strconv.Quote(s)
}

// brief is visible, cut to a line.
func brief(s string) string {
	const most = 100
	if utf8.RuneCountInString(s) <= most {
		return visible(s)
	}
	return fmt.Sprintf("%s… (%d bytes)", visible(string([]rune(s)[:most])), len(s))
}

// age writes a span of time in two units at most.
func age(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", max(0, d).Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return pair(d/time.Minute, "min", d%time.Minute/time.Second, "s")
	case d < day:
		return pair(d/time.Hour, "h", d%time.Hour/time.Minute, "min")
	}
	return pair(d/day, "d", d%day/time.Hour, "h")
}

func pair(n time.Duration, unit string, rest time.Duration, smaller string) string {
	if rest == 0 {
		return fmt.Sprintf("%d %s", n, unit)
	}
	return fmt.Sprintf("%d %s %d %s", n, unit, rest, smaller)
}

// count writes n with its thousands apart.
func count[N int | uint64](n N) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// plural is "1 call", or "5 calls".
func plural[N int | uint64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return count(n) + " " + thing + "s"
}

// frequency writes a rate per second.
func frequency(rate float64) string {
	switch {
	case rate == 0:
		return "0"
	case rate < 0.01:
		return "< 0.01"
	case rate < 10:
		return strconv.FormatFloat(rate, 'f', 2, 64)
	}
	return count(uint64(rate + 0.5))
}
