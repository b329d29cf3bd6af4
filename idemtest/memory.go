package idemtest

import (
	"context"

	"github.com/idempotent-go/idempotent"
)

// Memory returns the endpoint as a Guard. Its Forget never fails and heeds no
// ctx.
func Memory(endpoint *idempotent.Endpoint[string, []byte]) Guard {
	return memory{endpoint}
}

type memory struct {
	*idempotent.Endpoint[string, []byte]
}

func (m memory) Forget(_ context.Context, key string) (bool, error) {
	return m.Endpoint.Forget(key), nil
}
