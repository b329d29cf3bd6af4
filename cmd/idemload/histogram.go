package main

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets: eight to each power of two, so that a
// bucket is at most an eighth of its durations wide.
type histogram struct {
	buckets [61 * steps]uint64
	count   uint64
	longest time.Duration
}

const steps = 8

// bucketOf gives durations below 16 ns buckets of their own, and then eight to
// each power of two.
func bucketOf(d time.Duration) int {
	n := uint64(max(0, d))
	if n < 2*steps {
		return int(n)
	}
	shift := bits.Len64(n) - 4
	return shift*steps + int(n>>shift)
}

// floor is the least duration in a bucket.
func floor(bucket int) time.Duration {
	if bucket < 2*steps {
		return time.Duration(bucket)
	}
	shift := bucket/steps - 1
	return time.Duration(bucket%steps+steps) << shift
}

func (h *histogram) add(d time.Duration) {
	h.buckets[bucketOf(d)]++
	h.count++
	h.longest = max(h.longest, d)
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other.buckets {
		h.buckets[i] += n
	}
	h.count += other.count
	h.longest = max(h.longest, other.longest)
}

// quantile is a duration that the part q of all is not above, up to the width of
// its bucket; 0 if there are none.
func (h *histogram) quantile(q float64) time.Duration {
	rank := uint64(q * float64(h.count))
	var seen uint64
	for i, n := range h.buckets {
		seen += n
		if seen > rank {
			return min(h.longest, floor(i+1)-1) // after the last bucket that wraps to the longest Duration
		}
	}
	return h.longest
}

// octaves sums the buckets up by powers of two: the n-th counts durations from
// 2^n ns on. Those of 0 are in the first.
func (h *histogram) octaves() (sums [64]uint64) {
	for i, n := range h.buckets {
		sums[max(0, bits.Len64(uint64(floor(i)))-1)] += n
	}
	return sums
}
