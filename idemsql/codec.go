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
// the rest as JSON.
type plain struct{}

func (plain) Marshal(value any) ([]byte, error) {
	switch v := value.(type) {
	case []byte:
		return v, nil
	case string:
		return []byte(v), nil
	}
	return json.Marshal(value)
}

func (plain) Unmarshal(data []byte, value any) error {
	switch v := value.(type) {
	case *[]byte:
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
