# For other scripts to source: tests as functions, and the closing line that scripts/summary.sh counts.

passed=0 failed=0 skipped=0

# case_ NAME COMMAND...: runs one test, which passes if the command exits with 0.
case_() {
  local name=$1 output status
  shift
  # Not in a condition: -e would have no effect inside.
  set +e
  output=$(set -e && "$@" 2>&1)
  status=$?
  set -e
  if [ "$status" = 0 ]; then
    echo "ok: $name"
    passed=$((passed + 1))
  else
    echo "FAILED: $name: $output"
    failed=$((failed + 1))
  fi
}

# skip_ NAME REASON: reports a test that cannot run here.
skip_() {
  echo "skip: $1: $2"
  skipped=$((skipped + 1))
}

finish() {
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ]
}
