package main

// keptMutant is a concurrency bug as it might be written, kept to show that the
// tests notice. by is the layer that has to, run after run.
type keptMutant struct {
	name     string
	old, new string // old stands in the root's code exactly once
	by       string
}

const (
	byContract   = "contract"
	byOrder      = "interleavings"
	byMachine    = "state machine"
	byHistories  = "linearizability"
	byHistoriesR = "linearizability -race"
	byLoad       = "load"
)

var keptMutants = []keptMutant{
	{
		name: "look-up and claim are two critical sections", by: byHistories,
		old: "\tswitch {\n\tcase s.closed:\n\t\tgot.err = in.refusal(ErrShutdown, nil)\n",
		new: "\ts.mu.Unlock()\n\ts.mu.Lock()\n\tswitch {\n\tcase s.closed:\n\t\tgot.err = in.refusal(ErrShutdown, nil)\n",
	},
	{
		name: "the same, with the pause that every lock has", by: byOrder,
		old: "\tswitch {\n\tcase s.closed:\n\t\tgot.err = in.refusal(ErrShutdown, nil)\n",
		new: "\ts.mu.Unlock()\n\te.step(in.ctx, \"start\")\n\ts.mu.Lock()\n\tswitch {\n\tcase s.closed:\n\t\tgot.err = in.refusal(ErrShutdown, nil)\n",
	},
	{
		name: "the claim goes before its result is kept", by: byHistories,
		old: "\t\tends = e.keep(in, l, end, now)\n\t\ts.claims.remove(c.key)\n",
		new: "\t\ts.claims.remove(c.key)\n\t\ts.mu.Unlock()\n\t\ts.mu.Lock()\n\t\tends = e.keep(in, l, end, now)\n",
	},
	{
		name: "the same, with the pause that every lock has", by: byOrder,
		old: "\t\tends = e.keep(in, l, end, now)\n\t\ts.claims.remove(c.key)\n",
		new: "\t\ts.claims.remove(c.key)\n\t\ts.mu.Unlock()\n\t\te.step(in.ctx, \"start\")\n\t\ts.mu.Lock()\n\t\tends = e.keep(in, l, end, now)\n",
	},
	{
		name: "waiters are woken before the outcome is written", by: byHistoriesR,
		old: "\t\tw.end, w.line = common, nil\n\t}\n\ts.waiting -= l.len\n\ts.shared += uint64(l.len)\n\treturn woken\n",
		new: "\t\tclose(w.ready)\n\t\tw.end, w.line = common, nil\n\t}\n\ts.waiting -= l.len\n\ts.shared += uint64(l.len)\n\treturn nil\n",
	},
	{
		name: "a deferred function infers success", by: byOrder,
		old: "\t\t\tend = e.thrown(thrown)\n",
		new: "\t\t\tend = outcome[V]{kept: thrown == nil}\n",
	},
	{
		name: "a waiter ignores its ctx", by: byOrder,
		old: "\tcase <-in.ctx.Done():\n\t\tdead := contextError(in.ctx)\n",
		new: "\tcase <-(chan struct{})(nil):\n\t\tdead := contextError(in.ctx)\n",
	},
	{
		name: "waiters take a failed attempt for a result", by: byHistories,
		old: "\t\ts.fail(end)\n\t\twoken = e.pass(s, c.key, l, now)\n",
		new: "\t\ts.fail(end)\n\t\te.vacate(s, c.key)\n\t\twoken = s.share(l, outcome[V]{})\n",
	},
	{
		name: "a failure wakes all waiters, and the last to come runs next", by: byOrder,
		old: "\their := l.first\n",
		new: "\their := l.last\n",
	},
	{
		name: "the window runs from the start of the attempt", by: byOrder,
		old: "\t\tends = e.keep(in, l, end, now)\n",
		new: "\t\tends = e.keep(in, l, end, c.since)\n",
	},
	{
		name: "Capacity counts results, not claims", by: byOrder,
		old: "\tcase !e.room.take():\n",
		new: "\tcase e.room != nil && int64(e.Stats().Retained) >= e.room.most:\n",
	},
	{
		name: "the claim passes to a waiter that has left", by: byOrder,
		old: "\tw.line.remove(w)\n\ts.waiting--\n\treturn true\n",
		new: "\tw.line = nil\n\ts.waiting--\n\treturn true\n",
	},
	{
		name: "a waiter that leaves as the claim comes loses it", by: byOrder,
		old: "\tif w.line == nil {\n\t\treturn false\n",
		new: "\tif w.line == nil {\n\t\treturn true\n",
	},
	{
		name: "an heir whose ctx has ended runs its effect", by: byOrder,
		old: "\tcase dead != nil:\n\t\te.giveUp(in, w.claim)\n",
		new: "\tcase false:\n\t\te.giveUp(in, w.claim)\n",
	},
	{
		name: "an heir whose ctx has ended keeps the claim", by: byOrder,
		old: "\t\te.giveUp(in, w.claim)\n\t\tvar zero V\n",
		new: "\t\te.tally(refused)\n\t\tvar zero V\n",
	},
	{
		name: "a call with a dead ctx claims the key", by: byOrder,
		old: "\tcase in.dead != nil:\n\t\tgot.err = in.refusal(nil, in.dead)\n",
		new: "\tcase in.dead != nil && false:\n\t\tgot.err = in.refusal(nil, in.dead)\n",
	},
	{
		name: "Forget takes a running claim along", by: byOrder,
		old: "\te.stale.forget(key)\n\treturn kept\n",
		new: "\te.stale.forget(key)\n\ts.claims.remove(key)\n\treturn kept\n",
	},
	{
		name: "readers without the lock do not look at the window", by: byMachine,
		old: "s.key == key && !t.ended(s.completed) {",
		new: "s.key == key {",
	},
	{
		name: "a result ends one instant late", by: byOrder,
		old: "after(completed, t.window) <= t.now()\n",
		new: "after(completed, t.window) < t.now()\n",
	},
	{
		name: "the timer is never armed again", by: byContract,
		old: "\tt.due = never\n\tt.horizon.Store(never)\n}",
		new: "\tt.horizon.Store(never)\n}",
	},
	{
		name: "readers may trust the horizon too long", by: byOrder,
		old: "\treturn completed < t.horizon.Load()-int64(t.window) && t.over",
		new: "\treturn completed < t.horizon.Load()-int64(t.window)-2*int64(margin) && t.over",
	},
	{
		name: "a result is published before it is written", by: byHistoriesR,
		old: "\tb.slots[i] = slot[K, V]{key, value, completed}\n",
		new: "\tb.slots[i].key = key\n\tdefer func() { b.slots[i].value, b.slots[i].completed = value, completed }()\n",
	},
	{
		name: "an evicted result can still be read", by: byContract,
		old: "\tf.word.Store(goneWord)\n\tr.ledger.pop()\n",
		new: "\t_ = f\n\tr.ledger.pop()\n",
	},
	{
		name: "an expired result keeps its room", by: byOrder,
		old: "\tr.room.give()\n\t*count++\n",
		new: "\t*count++\n",
	},
	{
		name: "a shared failure leaves its claim behind", by: byOrder,
		old: "\t\te.vacate(s, c.key)\n\t\twoken = s.share(l, outcome[V]{err: end.err})\n",
		new: "\t\twoken = s.share(l, outcome[V]{err: end.err})\n",
	},
	{
		name: "a detached effect's caller returns before the key is free", by: byOrder,
		old: "\t\te.settle(in, c, end)\n\t\tswitch {\n\t\tcase tell != nil:\n\t\t\ttell(end)\n",
		new: "\t\tif tell != nil {\n\t\t\ttell(end)\n\t\t}\n\t\te.settle(in, c, end)\n\t\tswitch {\n\t\tcase tell != nil:\n",
	},
	{
		name: "an effect that may not start keeps its slot", by: byOrder,
		old: "\t\tif holding {\n",
		new: "\t\tif holding && false {\n",
	},
	{
		name: "a replay without the lock skips the fingerprint", by: byOrder,
		old: "\t\tif req.Fingerprint != \"\" && differ(",
		new: "\t\tif req.Fingerprint == \"?\" && differ(",
	},
	{
		name: "room is made under one shard's lock", by: byHistoriesR,
		old: "\te.lockAll()\n\tdefer e.unlockAll()\n\tnow = e.timing.look()\n",
		new: "\tin.shard.mu.Lock()\n\tdefer in.shard.mu.Unlock()\n\tnow = e.timing.look()\n",
	},
	{
		name: "room is made without another look at the key", by: byOrder,
		old: "\tif got, full = e.enterLocked(in, now); full && e.makeRoom(now) {\n",
		new: "\tif e.makeRoom(now) {\n",
	},
}
