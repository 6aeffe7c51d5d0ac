#!/usr/bin/env bash
# Runs cargo test. Then runs each failed test again, alone, since it may have failed because the machine was busy.
#
# usage: scripts/cargo-test.sh ARGS...            (those of cargo test; words after -- are the test programs')
#
# Each test that failed runs up to three times more. A test that then passes is flaky: it is named, with its output. The
# line "flaky: N" moves N tests from the failed to the skipped (scripts/summary.sh). Only cargo's results count. The
# closing line of an anyring runner that a failed test has printed is therefore indented.
set -uo pipefail

times=3
first=$(mktemp) output=$(mktemp)
trap 'rm -f "$first" "$output"' EXIT
status=0
cargo test "$@" 2>&1 | sed -uE 's/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/  &/' | tee "$first" || status=$?
if [ "$status" = 0 ]; then exit 0; fi

# The names stand at the end of each program's output, below the last of its lines "failures:".
mapfile -t failed < <(awk '
  /^failures:$/           { count = 0; list = 1; next }
  list && /^    [^ ]+$/   { names[count++] = $1; next }
  /^test result: FAILED/  { for (i = 0; i < count; i++) print names[i] }
                          { list = 0 }' "$first")
# A program that crashed or did not build names no test, and failed tests of other programs must not hide that.
count=$(awk '/^test result: /{ gsub(/[^0-9 ]/, ""); f += $2 } END { print f + 0 }' "$first")
if [ "${#failed[@]}" = 0 ] || [ "${#failed[@]}" != "$count" ] ||
  grep -q -e "process didn't exit successfully.*signal" -e '^error: could not compile' "$first"; then
  exit "$status"
fi

arguments=()
for word in "$@"; do
  if [ "$word" = -- ]; then break; fi
  arguments+=("$word")
done
status=0
for name in "${failed[@]}"; do
  passed=
  for ((i = 1; i <= times; i++)); do
    echo "again, $i of $times: $name"
    if cargo test "${arguments[@]}" -- --include-ignored --exact "$name" >"$output" 2>&1 &&
      grep -q '^test result: ok. [1-9]' "$output"; then
      passed=$i
      break
    fi
    # Indented, so that it does not count.
    sed 's/^/  /' "$output"
  done
  if [ -n "$passed" ]; then
    echo "FLAKY  $name: failed, then passed alone (run $passed of $times)"
    # The output of its first failure, for the summary.
    grep -F -A 12 -e "---- $name stdout ----" "$first" | sed -e 1,2d -e '/^stack backtrace:$/,$d' -e 's/^/    /'
    flaky=$((${flaky:-0} + 1))
  else
    echo "FAIL   $name: failed each of $times times again"
    status=1
  fi
done
echo "flaky: ${flaky:-0}"
exit "$status"
