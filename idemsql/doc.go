// Package idemsql is a transactional inbox: over any number of processes it runs
// the effect of each event once per consumer, and gives everyone else that run's
// result, from a table in PostgreSQL or SQLite.
//
// An [Inbox] is made by [New] and its tables by [Inbox.Migrate]. Its results are
// any type: bytes and strings are stored as they are, the rest as JSON, or as
// [Options].Codec says. Import the driver yourself; package idemsql/sqlite opens
// SQLite files. What Handle and Process have in common, verdicts, waiting, kept
// failures, fingerprints and windows, is that of package idempotent; all times
// are decided by the database's clock.
//
// # Process: one transaction
//
// [Inbox.Process] inserts the key's row first and then runs the effect in the
// same transaction. A duplicate in any process waits at that row. A crash at any
// instant leaves both the effect's rows and the record, or neither, and nobody
// has to be told which: the next delivery finds out. Everything that the effect does through its
// transaction happens once; what it does elsewhere does not become safer by it.
//
// Every isolation level is right. Under Read Committed, PostgreSQL's default, a
// duplicate reads the first one's record after the wait. Repeatable Read and
// Serializable refuse with 40001 what Read Committed would read, and the call starts over in
// a new transaction; so it does after a deadlock (40P01). SQLite has one level,
// Serializable, and one writer: Process holds up every other writer of the file while its effect runs.
//
// # Handle: long work
//
// A transaction that stays open holds a connection, and in PostgreSQL it keeps
// vacuum from its work. [Inbox.Handle] is for work of more than a second or so,
// and for work elsewhere. It claims the key in one short transaction, works
// outside any, renewing the claim's lease, and records in another. The price is
// that a crash in between leaves a key of which nobody knows whether its effect
// happened: [Options].OnLostLease says whether it is held for an operator
// ([Inbox.Resolve], [Inbox.Forget]) or run again.
//
// # Remote calls
//
// No lease and no token stops a request that is already on its way. The side
// that has the effect must know the key: pass it on (idempotent.Key finds it in
// the effect's context; idemhttp.Transport sets it as Idempotency-Key). Then
// RunAgain is safe, and so is Process around the call, which may run it again
// after a conflict or a crash. Without such a key, keep HoldUnknown, and mark a
// time-out of the call by idempotent.Unknown.
//
// # Outbox
//
// To tell others what happened, let the effect write the message to a table of
// yours through its transaction, and send from there. The message is sent at
// least once, with the event's key; its receiver has an inbox of its own.
// examples/inbox shows both.
//
// # Order
//
// An inbox makes no order of different events. [Inbox.Advance] drops events that
// are older than what was applied to their resource, in the effect's transaction.
//
// # Pruning
//
// A result is absent to every reader from the end of its window, pruned or not.
// [Inbox.Prune] gives the room back; call it every few minutes from any
// process, or all of them. A late retry is recognised as stale while the row is
// there: [Options].StaleFor keeps it for that long.
package idemsql
