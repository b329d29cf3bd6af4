//go:build race

package idempotent_test

// raceEnabled says that the race detector makes every step cost twenty.
const raceEnabled = true
