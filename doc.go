// Package idempotent runs each key's effect once, and gives everyone else that
// run's result. It is for services that are told the same thing more than once,
// by webhooks, queues and clients that retry, and must still do the work once.
//
// An [Endpoint] is used through [Endpoint.Do]. It claims the key, runs the
// effect and keeps its result for a window. Calls that come while the effect
// runs wait for it, on their own context; calls that come afterwards get the
// kept result. An effect that fails gives the claim up, to the call that has
// waited longest or to the next that comes. An effect says with [Permanent] that
// its failure is the key's result, and with [Unknown] that nobody can say what
// happened. The [Verdict] says which of these a call met.
//
// The promise is: at most one running attempt per key, and at most one kept
// success per key and window, in this process. A crash between an effect and
// its record is outside it. Where that matters, let the effect and the record
// commit together (package idemsql), or give the remote call the key
// (idemhttp.Transport), so that the other side can tell the second from the
// first.
//
// A key that comes back after its window is stale: it runs again, and is counted
// in [Stats]; [Options].OnStale can refuse it. So the window must be longer than
// the producer's retries.
//
// Pass the context that an effect is given to the calls it makes. Through it a
// call that would wait for itself is found, and refused with [ErrDeadlock].
package idempotent
