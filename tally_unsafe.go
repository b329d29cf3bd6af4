//go:build !nounsafe

package idempotent

import "unsafe"

// stackHash is a number that differs between goroutines that run at one time,
// for the most part, and costs next to nothing. Nothing is read through the
// pointer.
func stackHash() uint64 {
	var here byte
	return uint64(uintptr(unsafe.Pointer(&here))) * 0x9e3779b97f4a7c15 >> 40
}
