// Package reliability holds the tests that show how far the promise of
// idempotent reaches and that need more than the standard library. What they
// found, and what each of them cannot see, is in RELIABILITY.md.
package reliability
