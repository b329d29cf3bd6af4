package idempotent

import (
	"context"
	"iter"
	"time"
)

type Endpoint[K comparable, V any] struct{ opts Options[K, V] }
type Record[V any] struct {
	Value                  V
	Err                    error
	Fingerprint            string
	CompletedAt, ExpiresAt time.Time
}
type Claim[K comparable] struct {
	Key     K
	Since   time.Time
	Waiters int
}
type Stats struct {
	Executed, Failed, Panicked, Replayed, Shared, Refused, Stale, Expired, Evicted uint64
	InFlight, Waiting, Retained                                                     int
}

func New[K comparable, V any](opts Options[K, V]) (*Endpoint[K, V], error) { panic("in the making") }
func (e *Endpoint[K, V]) Do(ctx context.Context, key K, effect func(context.Context) (V, error)) (V, Verdict, error) {
	panic("in the making")
}
func (e *Endpoint[K, V]) Handle(ctx context.Context, req Request[K], effect func(context.Context) (V, error)) (V, Verdict, error) {
	panic("in the making")
}
func Key[K comparable](ctx context.Context) (K, bool)                          { panic("in the making") }
func (e *Endpoint[K, V]) Forget(key K) bool                            { panic("in the making") }
func (e *Endpoint[K, V]) Resolve(key K, value V) bool                  { panic("in the making") }
func (e *Endpoint[K, V]) Lookup(key K) (Record[V], bool)               { panic("in the making") }
func (e *Endpoint[K, V]) InFlight() []Claim[K]                         { panic("in the making") }
func (e *Endpoint[K, V]) Stats() Stats                                 { panic("in the making") }
func (e *Endpoint[K, V]) Records() iter.Seq2[K, Record[V]]             { panic("in the making") }
func (e *Endpoint[K, V]) Restore(records iter.Seq2[K, Record[V]]) int  { panic("in the making") }
func (e *Endpoint[K, V]) Shutdown(ctx context.Context) error           { panic("in the making") }
