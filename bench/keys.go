package bench

import (
	"encoding/hex"
	"strings"
)

const keyLen = 36

// Keys are event ids of 36 bytes in one block of memory, so that the collector
// has none of the workload's own strings to follow.
type Keys string

// MakeKeys makes n different keys, always the same ones.
func MakeKeys(n int) Keys {
	var text strings.Builder
	text.Grow(n * keyLen)
	var id [keyLen]byte
	for i := range n {
		a, b := mix(uint64(2*i)), mix(uint64(2*i+1))
		var raw [16]byte
		for j := range 8 {
			raw[j], raw[8+j] = byte(a>>(8*j)), byte(b>>(8*j))
		}
		hex.Encode(id[0:8], raw[0:4])
		id[8] = '-'
		hex.Encode(id[9:13], raw[4:6])
		id[13] = '-'
		hex.Encode(id[14:18], raw[6:8])
		id[18] = '-'
		hex.Encode(id[19:23], raw[8:10])
		id[23] = '-'
		hex.Encode(id[24:36], raw[10:16])
		text.Write(id[:])
	}
	return Keys(text.String())
}

// Len is the number of keys.
func (k Keys) Len() int { return len(k) / keyLen }

// At is the i-th key. It shares the block: right for a call that replays.
func (k Keys) At(i int) string { return string(k[i*keyLen : (i+1)*keyLen]) }

// Own is a copy of the i-th key, as a call has that is the first to bring it:
// the library that keeps it pays for its bytes.
func (k Keys) Own(i int) string { return strings.Clone(k.At(i)) }

// mix is SplitMix64: a bijection, so that different numbers give different keys.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// random is a cheap generator: one multiplication a draw, the same draws for
// all peers.
type random uint64

// below draws from [0, n).
func (r *random) below(n int) int {
	*r = *r*6364136223846793005 + 1442695040888963407
	return int((uint64(*r) >> 32) * uint64(n) >> 32)
}
