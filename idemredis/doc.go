// Package idemredis runs each key's effect once over all processes that share a
// Redis, and gives everyone else that run's result: the call of package
// idempotent, where one process is not enough.
//
// A [Guard] claims a key, runs the effect while it renews the claim's lease, and
// turns the claim into the result, or gives it up if the effect failed. A claim
// is one round trip, a replay is one, and so is a settlement. Put an
// idempotent.Tier in front, and duplicates within a process meet in memory and
// replays cost no round trip.
//
// A lease is not a lock on the world. Redis sees that a worker is silent, never
// whether its effect has happened: a worker may be killed after the effect and
// before its record, or be stopped and go on after its lease has ended.
// [Options].OnLostLease says what then follows. By default the key is held:
// calls are told idempotent.ErrOutcomeUnknown until somebody who has looked
// calls [Guard.Resolve] or [Guard.Forget]. RunAgain is for effects that are
// keyed themselves, so that a second run changes nothing: an upsert on the key,
// a remote call that carries it. No token in Redis can take the place of that
// key; see the README for the figures.
//
// Only Redis's clock decides: each script compares the lease's end, and each
// result's expiry is Redis's own. A process's clock only tells its effect
// earlier that the lease cannot be renewed any more ([ErrLeaseLost]).
//
// What Redis cannot do: it remembers nothing of a key whose window has ended,
// unless [Options].StaleFor has it keep the record for longer; it keeps the text
// of an error and its mark, not its Go value; it sees no circle of waiting
// effects but the one in which an effect calls its own key.
package idemredis
