#!/usr/bin/env bash
# Demands that each patch of these folders applies exactly to the source as it is, in a second.
#
# usage: scripts/check-patches.sh FOLDER...     (FOLDER: with *.patch, as crates/inject/tests/undone)
#
# Their context must agree line by line; only its place may move.
set -uo pipefail

if [ $# = 0 ]; then
  sed -n 's/^# usage: /usage: /p' "$0" >&2
  exit 2
fi
cd "$(dirname "$0")/.." || exit 2
passed=0 failed=0
for folder in "$@"; do
  for patch in "$folder"/*.patch; do
    if git apply --check "$patch"; then
      passed=$((passed + 1))
    else
      echo "$patch does not apply: renew it together with what it changes"
      failed=$((failed + 1))
    fi
  done
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
