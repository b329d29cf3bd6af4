// Package idemhttp puts an idempotent executor before net/http handlers.
//
// [Webhook] is for receivers: a delivery that comes again is answered with the
// kept response and its handler does not run again.
//
// [IdempotencyKey] is for APIs: a client names its request by the
// Idempotency-Key header and may then retry it.
//
// Both keep a [Response] in an [Executor], which is an endpoint in memory or a
// guard over a shared store. [Transport] carries the key on to the services
// that a handler calls; where a service takes none, [Unknown] says that nobody
// knows whether a call has happened. The README beside this file helps with
// choosing the window, the scope and the key.
package idemhttp
