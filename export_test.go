package idempotent

// OneHash is set while the tests run with every key under one hash, and so in
// one shard: see TestMain.
var OneHash bool

// PutAllInOnePlace gives all keys of e the same hash. It must come before the
// first call.
func (e *Endpoint[K, V]) PutAllInOnePlace() { e.spread = 0 }

// Shards is how many shards e has.
func (e *Endpoint[K, V]) Shards() int { return len(e.shards) }
