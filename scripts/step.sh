#!/usr/bin/env bash
# Runs one step of `make test` or `make soak`. Prints a banner, copies the command's output to a log, and prints how
# long the command took.
#
# usage: scripts/step.sh LOGS NAME COMMAND ARGS...
#
# LOGS/NAME.log ends in a line "step: STATUS SECONDS", which scripts/summary.sh reads.
set -uo pipefail

logs=$1 name=$2
shift 2
mkdir -p "$logs"
log=$logs/$name.log
echo
echo "=== $name: $*"
start=$SECONDS
"$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
took=$((SECONDS - start))
echo "step: $status $took" >>"$log"
if [ "$status" = 0 ]; then
  echo "=== $name: done in $took s"
else
  echo "=== $name: FAILED with status $status after $took s"
fi
exit "$status"
