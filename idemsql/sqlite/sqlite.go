// Package sqlite opens a SQLite file for an inbox, with the driver
// modernc.org/sqlite: no server, no C compiler, one file.
package sqlite

import (
	"database/sql"
	"errors"
	"net/url"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Open opens the file at path, and makes it if need be: in WAL mode, so that
// readers and the one writer do not wait for each other; with transactions that
// take the writer's place when they begin, so that none fails half way for want
// of it; synced to the disk at every commit; and with five seconds' patience for
// the writer before it in statements of the program's own (the inbox waits as
// long as its caller's ctx). Several processes may open one file, on one machine.
//
// A path of "" is refused: to SQLite it is a private database that is deleted
// on closing. So is each connection's ":memory:"; give it a file.
func Open(path string) (*sql.DB, error) {
	if path == "" || path == ":memory:" {
		return nil, errors.New("idemsql/sqlite: path is " + `"` + path + `"` + ", want a file's name: an inbox outlives its process")
	}
	dsn := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: url.Values{
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)"},
		"_txlock": {"immediate"},
	}.Encode()}
	return sql.Open("sqlite", dsn.String())
}
