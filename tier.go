package idempotent

import "errors"

// IsPermanent reports whether err carries the mark of [Permanent] anywhere in
// its chain. It is for the writers of stores: a store keeps such a failure as
// the key's result, as an [Endpoint] does.
func IsPermanent(err error) bool {
	_, marked := errors.AsType[*permanentError](err)
	return marked
}
