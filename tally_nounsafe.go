//go:build nounsafe

package idempotent

import "math/rand/v2"

// stackHash is any number: without unsafe the counters are only spread by chance.
func stackHash() uint64 { return rand.Uint64() }
