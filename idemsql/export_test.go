package idemsql

// PruneStatement is what Prune runs, for tests that ask for its plan.
func (in *Inbox[V]) PruneStatement() string { return in.sql.prune }

// ReplayStatements are what finds a kept result in Handle and in Process.
func (in *Inbox[V]) ReplayStatements() (handle, process string) { return in.sql.look, in.sql.claim }
