//go:build !race

package idempotent_test

const raceEnabled = false
