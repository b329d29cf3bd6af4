package idemredis

import (
	"context"
	"time"

	"github.com/idempotent-go/idempotent"
)

// Forget drops the key's kept result, so that the next call runs, and says
// whether there was one. An unknown outcome is a result, also that of a lost
// lease: forget it once you know that the effect did not happen. A running
// claim is left alone.
func (g *Guard[V]) Forget(ctx context.Context, key string) (bool, error) {
	had, err := g.yes(ctx, forgetScript, g.name(key))
	if err != nil {
		return false, unavailable(key, err)
	}
	return had, nil
}

// Resolve settles an unknown outcome as done, with value, for Options.TTL from
// now, and says whether there was one. Its owner, should it still live, is told
// [ErrLeaseLost].
func (g *Guard[V]) Resolve(ctx context.Context, key string, value V) (bool, error) {
	data, ref, err := g.encode(ctx, key, value)
	if err != nil {
		return false, err
	}
	had, err := g.yes(ctx, resolveScript, g.name(key), data, ref, window(g.opts.TTL), milliseconds(g.opts.StaleFor))
	if err != nil {
		return false, unavailable(key, err)
	}
	return had, nil
}

// Lookup returns the key's kept result, changing nothing, and whether there is
// one. Record.Err is what calls are told. The times are of this process's
// clock, reckoned from how long ago Redis says that it was and how long Redis
// says that it will be; they err on the early side by the round trip. For a
// lost lease CompletedAt is the lease's end.
func (g *Guard[V]) Lookup(ctx context.Context, key string) (idempotent.Record[V], bool, error) {
	var record idempotent.Record[V]
	sent := time.Now()
	reply, err := lookupScript.Run(ctx, g.client, []string{g.name(key)}).Slice()
	if err != nil {
		return record, false, unavailable(key, err)
	}
	state := text(reply, 0)
	if state == free {
		return record, false, nil
	}
	record.CompletedAt = sent.Add(-parseMilliseconds(text(reply, 5)))
	if left := text(reply, 6); left != "-1" {
		record.ExpiresAt = sent.Add(parseMilliseconds(left))
	}
	record.Fingerprint = text(reply, 4)
	record.Value, record.Err = g.decode(ctx, key, state, kept{text(reply, 1), text(reply, 2), text(reply, 3)})
	return record, true, nil
}
