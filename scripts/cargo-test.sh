#!/usr/bin/env bash
# cargo test, after which the few tests that failed run again, alone: a test that sets threads or processes against a clock
# can fail because the machine was elsewhere.
#
# usage: scripts/cargo-test.sh ARGS...            (those of cargo test; words after -- choose tests)
#
# One that then passes each of 5 times is flaky: it is named, and "flaky: N" takes N from the failed and adds them to
# the skipped (scripts/summary.sh). One that fails again has failed, and so has everything if more than 3 did.
set -uo pipefail

most=3 times=5
output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0
cargo test "$@" 2>&1 | tee "$output" || status=$?
if [ "$status" = 0 ]; then exit 0; fi

# The names stand at the end of each program's output, below the last of its lines "failures:".
mapfile -t failed < <(awk '
  /^failures:$/           { count = 0; list = 1; next }
  list && /^    [^ ]+$/   { names[count++] = $1; next }
  /^test result: FAILED/  { for (i = 0; i < count; i++) print names[i] }
                          { list = 0 }' "$output")
# A program that crashed or did not build names no test; one of several tests that failed may hide it.
count=$(awk '/^test result: /{ gsub(/[^0-9 ]/, ""); f += $2 } END { print f + 0 }' "$output")
if [ "${#failed[@]}" = 0 ] || [ "${#failed[@]}" != "$count" ] || [ "$count" -gt "$most" ] ||
  grep -q -e "process didn't exit successfully.*signal" -e '^error: could not compile' "$output"; then
  exit "$status"
fi

arguments=()
for word in "$@"; do
  if [ "$word" = -- ]; then break; fi
  arguments+=("$word")
done
for ((i = 1; i <= times; i++)); do
  echo "again, $i of $times: ${failed[*]}"
  # Indented, so that it does not count.
  cargo test "${arguments[@]}" -- --exact "${failed[@]}" >"$output" 2>&1 || status=again
  ran=$(awk '/^test result: /{ gsub(/[^0-9 ]/, ""); n += $1 } END { print n + 0 }' "$output")
  if [ "$status" = again ] || [ "$ran" -lt "$count" ]; then
    sed 's/^/  /' "$output"
    echo "FAIL   again: ${failed[*]}"
    exit 1
  fi
done
for name in "${failed[@]}"; do
  echo "FLAKY  $name: failed once, then passed $times times alone"
done
echo "flaky: $count"
