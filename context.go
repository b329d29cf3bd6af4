package idempotent

import (
	"context"
	"fmt"
	"time"
)

// A claim is the context of its effect: one allocation serves as both. It has
// the caller's values, never its cancellation.

func (c *claim[K, V]) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c *claim[K, V]) Done() <-chan struct{}       { return nil }
func (c *claim[K, V]) Err() error                  { return nil }

type (
	keyName[K comparable] struct{} // asks a context for the key of the effect it belongs to
	callerName            struct{} // asks a context for the claim of the effect it belongs to
)

func (c *claim[K, V]) Value(name any) any {
	switch name.(type) {
	case callerName:
		return caller(c)
	case keyName[K]:
		return c.key
	}
	return c.caller.Value(name)
}

func (c *claim[K, V]) String() string { return fmt.Sprintf("%v.WithKey(%#v)", c.caller, c.key) }

// cancelable is a claim's context that ends as its caller's does.
type cancelable[K comparable, V any] struct{ *claim[K, V] }

func (c cancelable[K, V]) Deadline() (time.Time, bool) { return c.caller.Deadline() }
func (c cancelable[K, V]) Done() <-chan struct{}       { return c.caller.Done() }
func (c cancelable[K, V]) Err() error                  { return c.caller.Err() }

// Key returns the key of the effect that ctx was given to, or was derived from.
// Of effects nested in each other it is the innermost one with keys of type K.
func Key[K comparable](ctx context.Context) (K, bool) {
	key, ok := ctx.Value(keyName[K]{}).(K)
	return key, ok
}

// contextError is ctx's error, with its cause where that says more; nil while
// ctx lives.
func contextError(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != err {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
