#!/usr/bin/env bash
# Adds the flaky tests of a run to .ci/flaky.txt, and names those that were flaky before. A test that was flaky before
# must be mended, or moved to `make soak` with its reason.
#
# usage: scripts/flaky.sh LOGS STEPS...
#
# Reads the lines "FLAKY  NAME: WHAT WAS SEEN" of the steps' logs.
set -euo pipefail

logs=$1
shift
list=$(cd "$(dirname "$0")/.." && pwd)/.ci/flaky.txt
for step in "$@"; do
  [ -f "$logs/$step.log" ] || continue
  { grep -E '^ *(skip: )?FLAKY ' "$logs/$step.log" || true; } | sed -E 's/^ *(skip: )?FLAKY +//' | while read -r seen; do
    name=${seen%%: *}
    before=$(grep -cF " $name: " "$list" || true)
    echo "$(date +%F) $step $seen" >>"$list"
    if [ "$before" = 0 ]; then
      echo "FLAKY in $step: $seen"
    else
      echo "FLAKY in $step, and $before times before (.ci/flaky.txt): mend it, or move it to soak: $seen"
    fi
  done
done
