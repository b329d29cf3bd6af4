package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"

	"github.com/idempotent-go/idempotent"
)

// A snapshot is a heading, a line of JSON for each result, and a line with the
// SHA-256 of everything before it.
const heading = "idempotent snapshot 2\n"

// errDamaged is matched by the errors for a file that is not what was saved.
var errDamaged = errors.New("the snapshot is damaged: move it away to start without it, and its keys' effects may run again")

// saved is a result as a line of a snapshot. A fingerprint may be the bytes of a
// digest, which the record's own JSON would change.
type saved[V any] struct {
	Key         exact
	Fingerprint exact `json:",omitempty"`
	Record      idempotent.Record[V]
}

// exact is a string that JSON gives back byte by byte: of one that is no UTF-8
// it would make another key.
type exact string

func (s exact) MarshalText() ([]byte, error) { return strconv.AppendQuote(nil, string(s)), nil }

func (s *exact) UnmarshalText(text []byte) error {
	unquoted, err := strconv.Unquote(string(text))
	*s = exact(unquoted)
	return err
}

// save writes the records to the file and says how many. The file has all of
// them or, after an error or a crash, what it had before.
func save[V any](path string, records iter.Seq2[string, idempotent.Record[V]]) (n int, err error) {
	// In the same folder: only there can it be renamed in one step.
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return 0, fmt.Errorf("restart: saving: %w", err)
	}
	defer func() {
		if err != nil {
			_ = temp.Close()
			_ = os.Remove(temp.Name())
			err = fmt.Errorf("restart: saving %q: %w", path, err)
		}
	}()
	n, err = write(temp, records)
	if err != nil {
		return 0, err
	}
	// Without Sync, a power cut after the rename may leave an empty file.
	if err := errors.Join(temp.Sync(), temp.Close()); err != nil {
		return 0, err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return 0, err
	}
	return n, syncFolder(filepath.Dir(path))
}

func write[V any](file io.Writer, records iter.Seq2[string, idempotent.Record[V]]) (n int, err error) {
	buffered := bufio.NewWriter(file)
	sum := sha256.New()
	both := io.MultiWriter(buffered, sum)
	if _, err := io.WriteString(both, heading); err != nil {
		return 0, err
	}
	lines := json.NewEncoder(both)
	for key, r := range records {
		line := saved[V]{exact(key), exact(r.Fingerprint), r}
		line.Record.Fingerprint = ""
		if err := lines.Encode(line); err != nil {
			return 0, fmt.Errorf("key %q: %w", key, err)
		}
		n++
	}
	fmt.Fprintf(buffered, "sha256 %x\n", sum.Sum(nil))
	return n, buffered.Flush()
}

// syncFolder makes a rename in the folder last.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// restore gives the file's results to the endpoint and says how many it took. No
// file is no results. Of a file that is damaged nothing is taken, and the error
// matches errDamaged.
func restore[V any](path string, e *idempotent.Endpoint[string, V]) (int, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("restart: restoring: %w", err)
	}
	results, err := read[V](text)
	if err != nil {
		return 0, fmt.Errorf("restart: restoring %q: %w: %w", path, errDamaged, err)
	}
	return e.Restore(func(yield func(string, idempotent.Record[V]) bool) {
		for _, r := range results {
			r.Record.Fingerprint = string(r.Fingerprint)
			if !yield(string(r.Key), r.Record) {
				return
			}
		}
	}), nil
}

// read checks the whole text before it returns any of it.
func read[V any](text []byte) (results []saved[V], err error) {
	if !bytes.HasPrefix(text, []byte(heading)) {
		return nil, fmt.Errorf("it does not begin with %q", heading)
	}
	at := bytes.LastIndex(text, []byte("\nsha256 ")) + 1
	if at == 0 {
		return nil, errors.New("it has been cut: the checksum is missing")
	}
	sum := sha256.Sum256(text[:at])
	want := "sha256 " + hex.EncodeToString(sum[:]) + "\n"
	if got := string(text[at:]); got != want {
		return nil, fmt.Errorf("it has been cut or altered: it ends with %q, and with what it has should end with %q", got, want)
	}
	for number, line := range bytes.Split(text[len(heading):at], []byte("\n")) {
		if len(line) == 0 {
			continue // after the last line
		}
		var r saved[V]
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("line %d: %w", number+2, err)
		}
		results = append(results, r)
	}
	return results, nil
}
