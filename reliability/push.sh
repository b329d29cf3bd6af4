#!/bin/sh
# What every push has to pass. The counts can be set:
#   OPS=1000000 RACE_OPS=300000 SEEDS=10000 CHECKS=10000 FUZZ=5s reliability/push.sh
# Steps can be named: reliability/push.sh linear kept
# TOGETHER=6 fuzzes six targets side by side; each has its share of the processors.
set -eu
cd "$(dirname "$0")"
export GOWORK=off
: "${TOGETHER:=1}"
WORKERS=$(($(nproc) / TOGETHER))
[ "$WORKERS" -gt 0 ] || WORKERS=1
export WORKERS
: "${OPS:=10000000}" "${RACE_OPS:=3000000}" "${SEEDS:=100000}" "${CHECKS:=100000}" "${FUZZ:=20s}"

step() {
	name=$1
	shift
	began=$(date +%s)
	echo "== $name: $*"
	"$@"
	echo "== $name: passed in $(($(date +%s) - began)) s"
}

fuzz() { # every target of the root's module and of this one, $TOGETHER at a time
	for dir in .. .; do
		(
			cd "$dir"
			grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r pkg; do
				[ "$(cd "$pkg" && go list -m)" = "$(go list -m)" ] || continue
				for target in $(grep -h '^func Fuzz' "$pkg"/*_test.go | sed 's/func \(Fuzz[A-Za-z0-9_]*\).*/\1/'); do
					echo "$PWD ./$pkg $target"
				done
			done
		)
	done | FUZZ=$FUZZ xargs -P "$TOGETHER" -n 3 sh -c '
		out=$(cd "$1" && "$0/fuzz.sh" "$2" "$3") || failed=255
		echo "-- $2 $3"
		echo "$out"
		exit "${failed:-0}"' "$PWD"
}

interleavings() { (cd .. && go test . -count=1 -run TestInterleavings -interleave.seeds="$SEEDS" -v -timeout 30m); }

[ $# -gt 0 ] || set -- interleavings machine linear race load fuzz kept
for name; do
	case $name in
	interleavings) step "$name" interleavings ;;
	machine) step "$name" go test ./machine -count=1 -rapid.checks="$CHECKS" -rapid.nofailfile -v -timeout 30m ;;
	linear) step "$name" go test ./linear -count=1 -ops="$OPS" -v -timeout 30m ;;
	race) step "$name" go test -race ./linear -count=1 -ops="$RACE_OPS" -v -timeout 30m ;;
	load) step "$name" go test ./load -count=1 -v ;;
	fuzz) step "$name" fuzz ;;
	kept) step "$name" go run ./mutate kept ;;
	*) echo "no such step: $name" >&2; exit 2 ;;
	esac
done
