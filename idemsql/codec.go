package idemsql

import (
	"encoding/json"
	"hash/crc32"
)

// A Codec writes results to bytes and reads them back. It is used by many
// goroutines at once. Unmarshal is given a pointer to the result's type.
type Codec interface {
	Marshal(value any) ([]byte, error)
	Unmarshal(data []byte, value any) error
}

// plain keeps bytes and strings as they are, which JSON would not, and writes
// the rest as JSON. It goes by the type of the results, not of one: of an
// Inbox[any] a string must come back from what is written for it.
type plain[V any] struct{}

func (plain[V]) Marshal(value any) ([]byte, error) {
	switch any((*V)(nil)).(type) {
	case *[]byte:
		return value.([]byte), nil
	case *json.RawMessage:
		return value.(json.RawMessage), nil
	case *string:
		return []byte(value.(string)), nil
	}
	return json.Marshal(value)
}

func (plain[V]) Unmarshal(data []byte, value any) error {
	switch v := value.(type) {
	case *[]byte:
		*v = data
		return nil
	case *json.RawMessage:
		*v = data
		return nil
	case *string:
		*v = string(data)
		return nil
	}
	return json.Unmarshal(data, value)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum finds rows that were changed by anything but this package. It is no
// defence against one who means to.
func checksum(result []byte) int64 { return int64(crc32.Checksum(result, castagnoli)) }
