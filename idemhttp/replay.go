package idemhttp

import (
	"io"
	"io/fs"
	"net/http"
	"strconv"
)

// replay answers with a kept response. It never changes the response, and hands
// out no slice of it: others are being answered with it too.
func (g *guard) replay(w http.ResponseWriter, r *http.Request, response Response) {
	if response.Status < 200 || response.Status > 999 {
		unavailable.write(w) // no middleware stored this
		return
	}
	header := w.Header()
	lines := make([]string, 0, countLines(response.Header)+2) // one array for all
	set := func(name string, values ...string) {
		first := len(lines)
		lines = append(lines, values...)
		header[name] = lines[first:len(lines):len(lines)]
	}
	for name := range header {
		if replayed[name] { // set before the handler, which may have deleted it
			delete(header, name)
		}
	}
	header["Content-Type"] = nil // if the first answer had none, no sniffing either
	for name, values := range response.Header {
		set(name, values...)
	}
	set("Idempotency-Replayed", "true")
	if response.BodyRef != "" {
		if body, ok := g.open(r, response.BodyRef); ok {
			defer body.Close()
			send(w, r, response.Status, body)
			return
		}
		response.Omitted = true
	}
	if response.Omitted {
		set("Idempotency-Body", "omitted")
		w.WriteHeader(response.Status)
		return
	}
	if n := len(response.Body); n > 0 {
		set("Content-Length", strconv.Itoa(n))
	}
	w.WriteHeader(response.Status)
	w.Write(response.Body)
}

func countLines(header http.Header) (n int) {
	for _, values := range header {
		n += len(values)
	}
	return n
}

func (g *guard) open(r *http.Request, ref string) (io.ReadCloser, bool) {
	if g.opts.Spill == nil {
		return nil, false
	}
	body, err := g.opts.Spill.Open(r.Context(), ref)
	return body, err == nil
}

// send answers with a spilled body. If it cannot be read to its end, the
// connection is broken off, so that a cut body does not look whole.
func send(w http.ResponseWriter, r *http.Request, status int, body io.Reader) {
	if file, ok := body.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if info, err := file.Stat(); err == nil {
			w.Header()["Content-Length"] = []string{strconv.FormatInt(info.Size(), 10)}
		}
	}
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	if _, err := io.Copy(w, body); err != nil {
		panic(http.ErrAbortHandler)
	}
}
