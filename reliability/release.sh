#!/bin/sh
# The long runs before a release. Each works towards its goal in portions and
# notes every portion that passed, so that it can be stopped at any time and goes
# on where it stopped; without arguments all steps run in turn.
#   reliability/release.sh                 all steps
#   reliability/release.sh linear kept     some
#   reliability/release.sh status          how far each step is
# Goals: OPS RACE_OPS SEEDS CHECKS FUZZ SOAK LOAD. Notes: $NOTES.
set -eu
cd "$(dirname "$0")"
export GOWORK=off
: "${OPS:=1000000000}" "${RACE_OPS:=100000000}" "${SEEDS:=10000000}" "${CHECKS:=10000000}"
: "${FUZZ:=4h}" "${SOAK:=30m}" "${LOAD:=60s}" "${NOTES:=$HOME/.cache/idempotent-release}"
mkdir -p "$NOTES"
bin=$(mktemp -d)
trap 'rm -rf "$bin"; status' EXIT
trap 'echo stopped; exit 130' INT TERM

done_of() { cat "$NOTES/$1.done" 2>/dev/null || echo 0; }

status() {
	for s in interleavings machine linear race; do
		echo "$s: $(done_of $s) of $(goal $s)"
	done
	for s in load soak fuzz kept mutation; do
		[ -f "$NOTES/$s.passed" ] && echo "$s: passed $(cat "$NOTES/$s.passed")" || echo "$s: not passed"
	done
}

goal() {
	case $1 in
	interleavings) echo "$SEEDS" ;;
	machine) echo "$CHECKS" ;;
	linear) echo "$OPS" ;;
	race) echo "$RACE_OPS" ;;
	esac
}

# portions NAME SIZE: runs "portion_NAME done size" until the goal is reached.
portions() {
	began=$(date +%s)
	first=$(done_of "$1")
	while [ "$(done_of "$1")" -lt "$(goal "$1")" ]; do
		at=$(done_of "$1")
		if ! "portion_$1" "$at" "$2" >"$NOTES/$1.log" 2>&1; then
			cat "$NOTES/$1.log"
			echo "$1: FAILED in the portion after $at; output in $NOTES/$1.log"
			exit 1
		fi
		echo $((at + $2)) >"$NOTES/$1.done"
		spent=$(($(date +%s) - began))
		echo "$(date +%T) $1: $((at + $2)) of $(goal "$1"), about $((spent * ($(goal "$1") - at - $2) / (at + $2 - first) / 60)) min to go"
	done
}

portion_interleavings() { "$bin/root" -test.run TestInterleavings -test.v -test.timeout 2h -interleave.seed=$(($1 + 1)) -interleave.seeds="$2"; }
portion_machine() { "$bin/machine" -test.v -test.timeout 2h -rapid.checks="$2" -rapid.nofailfile; }
portion_linear() { "$bin/linear" -test.v -test.timeout 2h -ops="$2"; }
portion_race() { "$bin/race" -test.v -test.timeout 2h -ops="$2"; }

# once NAME COMMAND...: a step without portions.
once() {
	name=$1
	shift
	if [ -f "$NOTES/$name.passed" ]; then
		echo "$name: passed $(cat "$NOTES/$name.passed")"
		return
	fi
	echo "$(date +%T) $name: $*"
	if "$@" >"$NOTES/$name.log" 2>&1; then
		date '+%F %T' >"$NOTES/$name.passed"
		tail -40 "$NOTES/$name.log"
	else
		tail -100 "$NOTES/$name.log"
		echo "$name: FAILED; output in $NOTES/$name.log"
		exit 1
	fi
}

[ "${1:-}" = status ] && exit 0
[ $# -gt 0 ] || set -- interleavings machine linear race load soak fuzz kept mutation
for name; do
	case $name in
	interleavings) (cd .. && go test -c -o "$bin/root" .) && portions interleavings 200000 ;;
	machine) go test -c -o "$bin/machine" ./machine && portions machine 100000 ;;
	linear) go test -c -o "$bin/linear" ./linear && portions linear 5000000 ;;
	race) go test -race -c -o "$bin/race" ./linear && portions race 1000000 ;;
	load) once load go test ./load -count=1 -run SixtyFour -load.for=$((5 * ${LOAD%s}))s -v -timeout 1h ;;
	soak) once soak go test ./load -count=1 -run Soak -soak.for="$SOAK" -soak.keys=10000000 -soak.window=1s -v -timeout 3h ;;
	fuzz) once fuzz env FUZZ="$FUZZ" ./push.sh fuzz ;;
	kept) once kept go run ./mutate kept -every ;;
	mutation) once mutation go run ./mutate all -log "$NOTES/mutants" ;;
	*) echo "no such step: $name" >&2; exit 2 ;;
	esac
done
