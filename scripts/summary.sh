#!/usr/bin/env bash
# Adds up the test counts of the steps of `make test` or `make soak`, from their logs.
#
# usage: scripts/summary.sh LOGS STEPS...
#
# Two kinds of lines count. The first is cargo test's "test result: ok. N passed; N failed; N ignored; ...", whose
# ignored tests count as skipped. The second is the closing line of anyring's own runners, "N passed, N failed, N
# skipped". "flaky: N" moves N from the failed to the skipped (scripts/cargo-test.sh). A step that failed without
# counting a failure (a compile error, say) counts as one failure. So does a step of STEPS without a finished log, since
# it never ran to its end. The last line also goes to LOGS/summary. The steps have already printed their skips with the
# reasons. Failed and flaky tests are printed once more, above the table. The script fails if anything failed.
set -euo pipefail

logs=$1
shift
passed=0 failed=0 skipped=0

# counts LOG: "PASSED FAILED SKIPPED STATUS SECONDS"; the status is "-" if the step did not finish.
counts() {
  awk '
    /^test result: /                                 { gsub(/[^0-9 ]/, ""); p += $1; f += $2; s += $3 }
    /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5 }
    /^flaky: [0-9]+$/                                { f -= $2; s += $2 }
    /^step: [0-9]+ [0-9]+$/                          { status = $2; seconds = $3 }
    END { print p + 0, f + 0, s + 0, status == "" ? "-" : status, seconds + 0 }
  ' "$1"
}

# failures LOG: what it says of failures, or its end if it says nothing in a way that is known.
failures() {
  grep -E -A 12 -m 40 '^(FAIL|STALE|error|test .* FAILED$|---- .* ----$)|panicked at' "$1" | head -n 200 || tail -n 20 "$1"
}

for step in "$@"; do
  if [ -f "$logs/$step.log" ] && ! grep -q '^step: 0 ' "$logs/$step.log"; then
    printf '\n=== failed in %s:\n' "$step"
    failures "$logs/$step.log"
  elif [ -f "$logs/$step.log" ] && grep -qE '^ *(skip: )?FLAKY ' "$logs/$step.log"; then
    printf '\n=== flaky in %s:\n' "$step"
    grep -E -A 10 '^ *(skip: )?FLAKY ' "$logs/$step.log"
  fi
done
echo
"$(dirname "$0")/flaky.sh" "$logs" "$@"

printf '\n%-20s %8s %8s %8s %8s\n' step passed failed skipped seconds
for step in "$@"; do
  read -r p f s status seconds < <(if [ -f "$logs/$step.log" ]; then counts "$logs/$step.log"; else echo 0 0 0 - 0; fi)
  note=
  if [ "$status" = - ]; then
    note="  did not run to its end"
  elif [ "$status" != 0 ]; then
    note="  status $status"
  fi
  if [ -n "$note" ] && [ "$f" = 0 ]; then f=1; fi
  printf '%-20s %8d %8d %8d %8d%s\n' "$step" "$p" "$f" "$s" "$seconds" "$note"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
echo
echo "$passed passed, $failed failed, $skipped skipped" | tee "$logs/summary"
[ "$failed" = 0 ]
