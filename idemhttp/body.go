package idemhttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
)

// withBody is r for a handler, with a context and a body to read again.
func withBody(ctx context.Context, r *http.Request, body []byte) *http.Request {
	r = r.WithContext(ctx)
	r.Body = bodyOf(body)
	return r
}

func bodyOf(body []byte) io.ReadCloser {
	if len(body) == 0 {
		return http.NoBody
	}
	reader := &bodyReader{}
	reader.Reset(body)
	return reader
}

// removeParts removes the files of a form that was parsed from r. net/http does
// so for the request it made, and not for a copy.
func removeParts(r *http.Request) {
	if r.MultipartForm != nil {
		r.MultipartForm.RemoveAll()
	}
}

type bodyReader struct{ bytes.Reader }

func (*bodyReader) Close() error { return nil }

// buffer is what most request bodies fit into. A duplicate's body is thrown
// away with its buffer as good as new, and a duplicate does little else.
type buffer [16 << 10]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// recycle takes a body's buffer back. Nobody else may have seen the body.
func recycle(body []byte) {
	if cap(body) == len(buffer{}) {
		buffers.Put((*buffer)(body[:cap(body)]))
	}
}

// trustedLength is the most bytes set aside on the word of a Content-Length.
const trustedLength = 64 << 10

// readBody reads r's body to its end; it is never longer than limit.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, *problem) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > limit {
		return nil, &tooLarge
	}
	body, err := readAll(http.MaxBytesReader(w, r.Body, limit), max(r.ContentLength, 0), limit)
	switch {
	case err == nil:
		return body, nil
	case isTooLarge(err):
		return nil, &tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &tooSlow
	}
	return nil, &unreadable
}

func isTooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
}

// readAll is io.ReadAll with a first size and a last one. The length is a hint
// alone: a middleware before this one may have decompressed the body. One byte
// more than there is to read lets the end be seen without growing.
func readAll(src io.Reader, length, limit int64) ([]byte, error) {
	var body []byte
	if length < int64(len(buffer{})) {
		body = buffers.Get().(*buffer)[:0]
	} else {
		body = make([]byte, 0, min(length, trustedLength)+1)
	}
	for {
		if len(body) == cap(body) {
			grown := make([]byte, len(body), min(int64(cap(body))*2, limit+1))
			copy(grown, body)
			body = grown
		}
		n, err := src.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if err == io.EOF {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
