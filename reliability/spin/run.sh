#!/bin/sh
# Checks the model of the Redis protocol, guard.pml, and fails unless every
# variant has the verdict that it must have: that a wrong variant is refuted
# shows that the model sees the fault.
#
#   run.sh [workers [calls]]    3 and 2 by default (seconds); before a release 4 (a minute)
#
# Needs spin and gcc (Debian: apt-get install spin gcc).
set -eu

workers=${1:-3}
calls=${2:-2}
model=$(cd "$(dirname "$0")" && pwd)/guard.pml
for tool in spin gcc; do
	command -v "$tool" >/dev/null || { echo "run.sh: $tool is missing; on Debian: apt-get install $tool" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

failed=0
# check holds|refuted variant what
check() {
	# The variant is a list of flags: it is split on purpose.
	spin -a -DWORKERS="$workers" -DCALLS="$calls" $2 "$model" >spin.log 2>&1 || { cat spin.log; exit 2; }
	gcc -O1 -w -DSAFETY -DCOLLAPSE -DMEMLIM=4096 -o pan pan.c
	./pan -m100000 >pan.log 2>&1 || true
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
	if grep -q 'errors: 0$' pan.log && ! grep -Eq 'not completed|max search depth too small|out of memory' pan.log; then
		verdict=holds
	elif grep 'assertion violated' pan.log | grep -qv 'invalid array index'; then
		verdict=refuted
	else
		verdict=unknown
		cat pan.log
	fi
	echo "$verdict	${2:-(none)}	$3; $states states"
	[ "$verdict" = "$1" ] || { echo "	must be: $1" >&2; failed=1; }
}

echo "workers: $workers, calls of each: $calls"
check holds   "-DHOLD"           "held after a lost lease: at most once"
check holds   "-DKEYED"          "run again, with a keyed effect: at most once"
check refuted ""                 "run again with a bare token: twice"
check refuted "-DKEYED -DBLIND"  "scripts without the token: another's claim is settled"
check refuted "-DHOLD -DLATE"    "a settle after the lease: proves wrong who was told unknown"
check refuted "-DHOLD -DCARELESS" "forgotten while its worker may live: twice"
exit $failed
