package idemsql

// PruneStatement is what Prune runs, for tests that ask for its plan.
func (in *Inbox[V]) PruneStatement() string { return in.sql.prune }

// LookStatement is what reads a kept result.
func (in *Inbox[V]) LookStatement() string { return in.sql.look }
