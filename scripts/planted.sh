#!/usr/bin/env bash
# Proves that the differential programs find bugs: plants each bug of differential/planted/ in a scratch copy of the
# engine, and demands that one of the fixed seeds diverges, each time, that agrees without the bug.
#
# usage: scripts/planted.sh FOLDER [NAME...]    (FOLDER: where anyring and anyring-differential are; NAME: a patch
#                                               without .patch, or the beginning of one; all of them if none)
#        scripts/planted.sh --renew FOLDER [NAME...]    writes into each patch which seeds find its bug
#
# The seeds that a patch names are tried first, then all of them, so a changed generator costs time and nothing else:
# --renew, which takes some 20 minutes, makes it quick again. A patch that does not apply (scripts/check-patches.sh) or
# does not build is a failure, too. Only the library is built, once for each patch, without optimization.
set -uo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
target=$(realpath -m "${CARGO_TARGET_DIR:-$here/target}")
patches=$here/differential/planted
# The fixed seeds, how many run before it is looked whether they found something, and how many bugs at a time.
seeds=2000 portion=10 jobs=4
# How often a seed must find a bug to count, and how many that do so are looked for.
times=2 enough=1
passed=0 failed=0
. "$here/scripts/patches.sh"

renew=
if [ "${1:-}" = --renew ]; then
  renew=yes times=3 enough=2
  shift
fi
if [ $# = 0 ]; then
  sed -n 's/^# usage: /usage: /p' "$0" >&2
  exit 2
fi
bin=$(cd "$1" && pwd) || exit 2
shift
names=$(chosen "$@") || exit 2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/libraries" "$scratch/results" "$scratch/temporary" || exit 1
export TMPDIR=$scratch/temporary
enter_copy "$target/planted" || exit 1

# build NAME: its library. Incrementally, that takes two seconds.
build() {
  CARGO_TARGET_DIR=$target/planted CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 \
    cargo rustc --quiet --locked -p anyring-inject --lib --crate-type cdylib &&
    cp "$target/planted/debug/libanyring.so" "$scratch/libraries/$1.so"
}

# diverging NAME SEEDS: which of the seeds, FIRST..END or one, diverge with this library, one a line.
diverging() {
  local answer
  answer=$("$bin/anyring-differential" compare --seeds "$2" --any-coverage --library "$scratch/libraries/$1.so" \
    --bin "$bin" --expect "$here/differential/differences.txt" 2>&1)
  if ! grep -q '^[0-9]* passed, [0-9]* failed, ' <<<"$answer"; then
    echo "$answer" >&2
    return 1
  fi
  sed -n 's/^FAIL .* seed \([0-9]*\): .*/\1/p' <<<"$answer"
}

# finds NAME SEED: whether it diverges with the bug and agrees without it, each time, alone.
finds() {
  local with without count
  for ((count = 0; count < times; count++)); do
    without=$(diverging unpatched "$2" 2>&1) && [ -z "$without" ] || return 1
    with=$(diverging "$1" "$2" 2>&1) && [ "$with" = "$2" ] || return 1
  done
}

# named NAME: the seeds that the patch names.
named() {
  sed -n 's/^Seeds: //p' "$patches/$1.patch"
}

# order NAME: what to try, one after the other.
order() {
  local seed first
  for seed in $(named "$1"); do
    if ((seed < seeds)); then echo "$seed"; fi
  done
  for ((first = 0; first < seeds; first += portion)); do
    echo "$first..$((first + portion))"
  done
}

# hunt NAME: runs seeds until enough of them found the bug: results/NAME says what came of it, results/NAME.seeds which.
hunt() {
  local name=$1 tried seed seen found=() others=0
  local result=$scratch/results/$name
  for tried in $(order "$name"); do
    if ! seen=$(diverging "$name" "$tried" 2>"$result.log"); then
      echo "failed  $name: seeds $tried did not run to their end: $(tail -n 1 "$result.log")" >"$result"
      return
    fi
    for seed in $seen; do
      [[ " ${found[*]} " == *" $seed "* ]] && continue
      if finds "$name" "$seed"; then
        found+=("$seed")
        echo "${found[*]}" >"$result.seeds"
        [ ${#found[@]} = "$enough" ] && break 2
      else
        others=$((others + 1))
      fi
    done
  done
  others="$others diverged without it, too, or not each time"
  if [ ${#found[@]} = 0 ]; then
    echo "failed  $name: none of the seeds 0..$seeds finds it; $others" >"$result"
  elif [[ $tried == *..* && -z $renew ]]; then
    echo "passed  $name: found by ${found[*]}, but by none that it names: scripts/planted.sh --renew; $others" >"$result"
  else
    echo "passed  $name: found by ${found[*]}; $others" >"$result"
  fi
}

build unpatched || exit 1
for name in $names; do
  if ! apply "$name" --dry-run >"$scratch/log"; then
    echo "failed  $name: the patch does not apply: $(tail -n 1 "$scratch/log")" >"$scratch/results/$name"
    continue
  fi
  apply "$name"
  if ! build "$name" >"$scratch/log" 2>&1; then
    echo "failed  $name: the patched source does not build: $(grep -m 1 '^error' "$scratch/log")" >"$scratch/results/$name"
  fi
  apply "$name" --reverse
  [ -e "$scratch/results/$name" ] && continue
  while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do wait -n; done
  hunt "$name" &
done
wait
for name in $names; do
  cat "$scratch/results/$name"
  if grep -q '^passed ' "$scratch/results/$name"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  if [ -n "$renew" ] && [ -e "$scratch/results/$name.seeds" ]; then
    sed -i -e '/^Seeds: /d' -e "1a Seeds: $(cat "$scratch/results/$name.seeds")" "$patches/$name.patch"
  fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
