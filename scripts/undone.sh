#!/usr/bin/env bash
# Proves that the tests of the decisions of ARCHITECTURE.md can fail: undoes each decision in a scratch copy, by a patch
# of crates/inject/tests/undone/, and demands that the test which the patch names passes before and fails after.
#
# usage: scripts/undone.sh [NAME...]       (NAME: a patch without .patch, or the beginning of one; all of them if none)
#        scripts/undone.sh --renew         writes those anew that apply with other line numbers or another context
#
# A patch that no longer applies (scripts/check-patches.sh), or builds nothing, is a failure too: renew it together
# with what it undoes. A test that is skipped here proves nothing; it is reported with its reason, and counted as
# skipped.
set -uo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
target=$(realpath -m "${CARGO_TARGET_DIR:-$here/target}")
patches=$here/crates/inject/tests/undone
passed=0 failed=0 skipped=0
. "$here/scripts/patches.sh"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export CARGO_TARGET_DIR=$target/undone
enter_copy "$target/undone" || exit 1

if [ "${1:-}" = --renew ]; then
  git init --quiet && git add --all && git -c user.name=undone -c user.email= commit --quiet --message before || exit 1
  for patch in "$patches"/*.patch; do
    git apply --check "$patch" 2>/dev/null && continue
    if apply "$(basename "$patch" .patch)"; then
      { sed '/^--- /,$d' "$patch" && git diff --unified=2 | grep -v -e '^diff --git ' -e '^index '; } >"$scratch/renewed"
      cp "$scratch/renewed" "$patch"
      echo "renewed $(basename "$patch"): look at what became of it"
    else
      echo "$(basename "$patch") has to be renewed by hand"
      failed=1
    fi
    git reset --quiet --hard && git clean --quiet --force
  done
  exit "$failed"
fi

build() {
  cargo build --quiet --locked -p anyring-inject &&
    cargo test --quiet --locked -p anyring-inject -p anyring-engine --no-run
}

# run BINARY TEST: its status and, in $log, what it said. The binary is one of inject's, or `unit` for the engine's own.
log=$(mktemp -p "$scratch")
run() {
  local of=(-p anyring-inject --test "$1")
  [ "$1" = unit ] && of=(-p anyring-engine --lib)
  cargo test --quiet --locked "${of[@]}" -- --exact "$2" >"$log" 2>&1
}

report() {
  local counter=$1 name=$2
  shift 2
  printf '%s  %s: %s\n' "$counter" "$name" "$*"
  eval "$counter=\$(($counter + 1))"
}

names=$(chosen "$@") || exit 2

test_of() {
  sed -n 's/^Test: //p' "$patches/$1.patch"
}

build || exit 1
declare -A before
for name in $names; do
  read -r binary test <<<"$(test_of "$name")"
  [ -n "${before[$test]:-}" ] && continue
  if ! run "$binary" "$test" || ! grep -q '^test result: ok. 1 passed' "$log"; then
    before[$test]="does not pass with the decision in place"
    cat "$log"
  elif reason=$(grep '^skipped: ' "$log"); then
    before[$test]=$reason
  else
    before[$test]=passes
  fi
done

for name in $names; do
  read -r binary test <<<"$(test_of "$name")"
  case ${before[$test]} in
    passes) ;;
    skipped:*) report skipped "$name" "${before[$test]}" && continue ;;
    *) report failed "$name" "$test ${before[$test]}" && continue ;;
  esac
  if ! apply "$name" --dry-run >"$log"; then
    report failed "$name" "the patch does not apply"
    cat "$log"
    continue
  fi
  apply "$name"
  if ! build >"$log" 2>&1; then
    report failed "$name" "the patched source does not build"
    cat "$log"
  elif run "$binary" "$test"; then
    report failed "$name" "$test passes without the decision"
  elif ! grep -q '^test result: FAILED. 0 passed; 1 failed' "$log"; then
    report failed "$name" "$test did not run to its end"
    cat "$log"
  else
    report passed "$name" "$test fails without it"
  fi
  apply "$name" --reverse
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
