package idemhttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
)

// replayed are the headers that a replayed response has from the first one.
// Whatever is not here is not kept: cookies and challenges belong to one
// client, Date and the hop-by-hop headers to one answer.
var replayed = map[string]bool{
	"Content-Type": true, "Content-Encoding": true, "Content-Language": true,
	"Content-Disposition": true, "Location": true, "Etag": true, "Last-Modified": true,
	"Link": true, "Vary": true, "Cache-Control": true,
}

// A recorder hands a handler's response to its client as it comes and keeps a
// copy. The client's going does not show in it, as long as there is a copy to
// complete: a handler that gave up half way would leave a cut body as the
// key's result.
type recorder struct {
	http.ResponseWriter
	guard       *guard
	ctx         context.Context // the effect's
	method, key string          // of the request

	status   int // 0 until the final header is written
	header   http.Header
	declared int64 // Content-Length of the body that will come; -1 = none
	accepted int64 // bytes of it that were written
	hijacked bool

	copying bool   // the body belongs to the result and is copied, all of it so far
	body    []byte // the copy, until it is spilled
	spill   *spilling
	omitted bool // the copy was given up

	start   int   // bytes written before the first flush; net/http sniffs no more
	flushed bool  // start is final
	gone    error // the client's end of the connection
}

func (rec *recorder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		rec.begin(status)
	}
	rec.ResponseWriter.WriteHeader(status)
}

// begin takes the final status and what the header is now; later ones do not
// reach the client.
func (rec *recorder) begin(status int) {
	if rec.status != 0 {
		return
	}
	rec.status = status
	if status >= 200 && rec.guard.opts.Keep(status) {
		rec.copying, rec.header = true, keptHeader(rec.Header())
		rec.declared = declaredLength(rec.Header())
	}
}

// declaredLength is -1 where net/http goes by no Content-Length of the handler.
func declaredLength(header http.Header) int64 {
	length, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64)
	if err != nil || length < 0 {
		return -1
	}
	return length
}

func keptHeader(header http.Header) http.Header {
	kept := http.Header{}
	for name, values := range header {
		// A Content-Type without a value is how a handler says that it wants none.
		if name := http.CanonicalHeaderKey(name); replayed[name] && (len(values) > 0 || name == "Content-Type") {
			kept[name] = append([]string(nil), values...)
		}
	}
	return kept
}

func (rec *recorder) Write(p []byte) (int, error) {
	rec.begin(http.StatusOK)
	n, err := 0, rec.gone
	if err == nil {
		n, err = rec.ResponseWriter.Write(p)
	}
	// Beyond its declared length HTTP/2 refuses a body with an error of no name.
	beyond := rec.declared >= 0 && rec.accepted+int64(len(p)) > rec.declared
	if !rec.copying || beyond || errors.Is(err, http.ErrBodyNotAllowed) || errors.Is(err, http.ErrHijacked) {
		return n, err // the client does not get these bytes, and nor does the copy
	}
	rec.gone = err
	rec.accepted += int64(len(p))
	rec.copy(p)
	return len(p), nil
}

// copy appends p to the copy, moves that to the spill when it has outgrown
// memory, and gives it up when there is no spill to take it.
func (rec *recorder) copy(p []byte) {
	limit := rec.guard.opts.MaxResponse
	switch {
	case rec.spill != nil:
	case int64(len(rec.body)+len(p)) <= limit:
		rec.body = appendWithin(rec.body, p, int(limit))
		return
	case rec.guard.opts.Spill != nil:
		rec.sniff(p)
		rec.spill = startSpill(rec.ctx, rec.guard.opts.Spill, rec.key, rec.body)
		rec.body = nil
	default:
		rec.sniff(p)
		rec.omit()
		return
	}
	if !rec.spill.write(p) {
		rec.omit()
	}
}

func (rec *recorder) omit() {
	rec.copying, rec.omitted, rec.body = false, true, nil
}

// appendWithin is append that grows to limit at most.
func appendWithin(body, p []byte, limit int) []byte {
	if need := len(body) + len(p); need > cap(body) {
		grown := make([]byte, len(body), max(need, min(2*cap(body), limit)))
		copy(grown, body)
		body = grown
	}
	return append(body, p...)
}

// sniffed is the most bytes that net/http looks at for a Content-Type.
const sniffed = 512

// sniff does for the kept header what net/http does for a response without a
// Content-Type, with the bytes that net/http will see: those before the first
// flush. next are bytes that follow the copy.
func (rec *recorder) sniff(next []byte) {
	if _, ok := rec.header["Content-Type"]; ok || rec.header.Get("Content-Encoding") != "" {
		return
	}
	head := rec.body[:min(len(rec.body), sniffed)]
	seen := append(head[:len(head):len(head)], next[:min(len(next), sniffed-len(head))]...)
	if rec.flushed {
		seen = seen[:min(rec.start, len(seen))]
	}
	if len(seen) > 0 {
		rec.header["Content-Type"] = []string{http.DetectContentType(seen)}
	}
}

// ReadFrom copies through Write: what a socket reads by itself cannot be kept.
func (rec *recorder) ReadFrom(src io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{rec}, src)
}

func (rec *recorder) Flush() { rec.FlushError() }

// FlushError sends what was written so far, for [http.ResponseController].
func (rec *recorder) FlushError() error {
	err := rec.gone
	if err == nil {
		err = http.NewResponseController(rec.ResponseWriter).Flush()
	}
	if errors.Is(err, http.ErrNotSupported) {
		return err
	}
	rec.begin(http.StatusOK)
	if !rec.flushed {
		rec.start, rec.flushed = len(rec.body), true
	}
	if rec.copying {
		rec.gone, err = err, nil
	}
	return err
}

func (rec *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(rec.ResponseWriter).Hijack()
	rec.hijacked = rec.hijacked || err == nil
	return conn, rw, err
}

// Unwrap lets [http.ResponseController] reach the deadlines below.
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

// result ends the recording, after the handler has returned.
func (rec *recorder) result() (Response, error) {
	if rec.hijacked {
		return Response{Status: http.StatusOK}, nil
	}
	rec.begin(http.StatusOK)
	if !rec.copying && !rec.omitted {
		return Response{}, errNotKept
	}
	if rec.cut() {
		rec.sniff(nil)
		rec.omit()
	}
	response := Response{Status: rec.status, Header: rec.header}
	if rec.spill != nil && !rec.omitted {
		ref, ok := rec.spill.finish()
		rec.omitted, response.BodyRef = !ok, ref
	}
	if rec.spill == nil && !rec.omitted {
		rec.sniff(nil)
		if response.Body = rec.body; len(rec.body) < cap(rec.body) {
			response.Body = bytes.Clone(rec.body) // without the room to grow
		}
	}
	response.Omitted = rec.omitted
	return response, nil
}

// cut tells that the handler has written less than it declared, as when what it
// copied broke off: net/http closes the connection on its client, who sees it.
func (rec *recorder) cut() bool {
	bodiless := rec.method == http.MethodHead || rec.status == http.StatusNoContent || rec.status == http.StatusNotModified
	return rec.copying && !bodiless && rec.declared >= 0 && rec.accepted < rec.declared
}

// abandon stops a spill that result did not come to finish.
func (rec *recorder) abandon() {
	if rec.spill != nil {
		rec.spill.abort()
	}
}
