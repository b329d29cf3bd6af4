#!/bin/sh
# Fuzzes one target of a package of the module in the working folder:
#   FUZZ=20s reliability/fuzz.sh ./fuzz FuzzWindow
# WORKERS is the number of inputs tried at one time.
set -eu
out=$(go test "$1" -run '^$' -fuzz "^$2\$" -fuzztime "${FUZZ:-20s}" -parallel "${WORKERS:-$(nproc)}" 2>&1 </dev/null) || failed=1
# Before Go 1.27 the end of the time itself may be reported as a failure, without
# an input that fails (golang.org/issue/75804).
if [ -n "${failed-}" ] && echo "$out" | grep -qx '    context deadline exceeded' && ! echo "$out" | grep -q 'Failing input'; then
	echo "$out" | grep '^fuzz: elapsed' | tail -n 1
	echo "ok	$1 $2 (at the end of its time, see golang.org/issue/75804)"
	exit 0
fi
if [ -n "${failed-}" ]; then
	echo "$out"
	exit 1
fi
echo "$out" | tail -n 3
