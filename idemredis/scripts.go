package idemredis

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"
)

// Each script is one round trip and touches the one key KEYS[1], so that the
// cluster node that owns the key can run it. A record is a hash:
//
//	state   "claim", "value", "failure", "unknown", "omitted" or "stale"
//	token   who claimed it; kept in a result, so that a settle that is sent
//	        twice, because the first answer was lost, is seen to be the same one
//	lease   claim: when the lease ends, in ms of Redis's clock
//	waited  claim: "1" once somebody was told to wait
//	print   the fingerprint, if there is one
//	value   result: the encoded value;  ref: where Spill put it instead
//	error   result: the error's text
//	done    result, stale: when the result was kept, in ms of Redis's clock
//	ends    result: the window's end, if the key is then remembered as stale
//	stale   claim of a stale key: when its result was kept;
//	fades   and until when it is remembered
//
// A claim outlives its lease: under HoldUnknown it has no expiry, so that a
// claim whose owner died differs from a key that nobody has claimed. A lease
// that ran out needs no sweeper and no write to be lost: whoever reads the
// claim compares its end with Redis's clock.
var (
	//go:embed lua/prelude.lua
	prelude string
	//go:embed lua/enter.lua
	enterSource string
	//go:embed lua/renew.lua
	renewSource string
	//go:embed lua/settle.lua
	settleSource string
	//go:embed lua/forget.lua
	forgetSource string
	//go:embed lua/resolve.lua
	resolveSource string
	//go:embed lua/lookup.lua
	lookupSource string

	enterScript   = redis.NewScript(prelude + enterSource)
	renewScript   = redis.NewScript(prelude + renewSource)
	settleScript  = redis.NewScript(prelude + settleSource)
	forgetScript  = redis.NewScript(prelude + forgetSource)
	resolveScript = redis.NewScript(prelude + resolveSource)
	lookupScript  = redis.NewScript(prelude + lookupSource)
)

// What enter.lua answers, beside the states of a kept result.
const (
	claimed  = "claimed"  // the caller owns the key
	busy     = "busy"     // somebody else does; token and lease say who and for how long
	lost     = "lost"     // somebody else did, and the lease ran out
	mismatch = "mismatch" // known with another fingerprint
	free     = "free"     // nobody does, and the caller only looked
)

// The states of a kept result.
const (
	stateValue   = "value"   // the effect succeeded
	stateFailure = "failure" // it failed for good
	stateUnknown = "unknown" // nobody can say
	stateOmitted = "omitted" // it succeeded, its value was not kept
)

// yes runs a script that answers 1 for yes.
func (g *Guard[V]) yes(ctx context.Context, script *redis.Script, name string, args ...any) (bool, error) {
	yes, err := script.Run(ctx, g.client, []string{name}, args...).Int()
	return yes == 1, err
}
