// Package crash kills what the inbox relies on and counts what happened.
//
// Worker processes race over the same keys and are killed (SIGKILL) at random
// moments; so is the PostgreSQL server; workers are stopped past their leases
// and go on (SIGSTOP). Afterwards every key's effects are counted, and every
// result that a worker acknowledged is looked for. The orders that are known to
// be wrong run under the same rig and must show double effects, or the rig is
// blind: look, act, mark; and a lease alone around an effect without a key.
//
//	go test ./crash                             as on every push
//	IDEMSQL_KILLS=30000 IDEMSQL_SERVER_KILLS=500 IDEMSQL_STOPS=5000 \
//		go test -v -timeout 0 ./crash           before a release
package crash
