package idemsql

import (
	"context"

	"github.com/idempotent-go/idempotent"
)

// PruneStatement is what Prune runs, for tests that ask for its plan.
func (in *Inbox[V]) PruneStatement() string { return in.sql.prune }

// LookStatement is what reads a kept result.
func (in *Inbox[V]) LookStatement() string { return in.sql.look }

// TakeOverStatement is what claims a row that no longer holds its key.
func (in *Inbox[V]) TakeOverStatement() string { return in.sql.takeOver }

// Committed is what a call asks whose commit was not answered.
func (in *Inbox[V]) Committed(ctx context.Context, key, token string) (bool, error) {
	return in.committed(ctx, idempotent.Request[string]{Key: key}, token)
}
