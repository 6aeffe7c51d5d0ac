#!/usr/bin/env bash
# Proves that the differential programs find bugs: plants each bug of differential/planted/ in a scratch copy of the
# engine, and demands that one of the fixed seeds diverges, each time, that agrees without the bug.
#
# usage: scripts/planted.sh FOLDER [NAME...]   (FOLDER: where anyring and anyring-differential are; NAME: a patch without
#                                              .patch, or the beginning of one; all of them if none)
#        scripts/planted.sh --check            only that each patch applies exactly; a step of `make test`
#
# A patch that no longer applies, or does not build, is a failure, too. Only the library is built, once for each patch,
# without optimization. Seeds run in portions, up to the first portion that finds the bug.
set -uo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
patches=$here/differential/planted
# The fixed seeds, how many run before it is looked whether they found something, and how many bugs at a time.
seeds=2000 portion=10 jobs=4
passed=0 failed=0

if [ "${1:-}" = --check ]; then
  cd "$here" || exit 1
  for patch in "$patches"/*.patch; do
    if git apply --check "$patch"; then
      passed=$((passed + 1))
    else
      echo "$(basename "$patch") does not apply: renew it together with what it breaks"
      failed=$((failed + 1))
    fi
  done
  echo "$passed passed, $failed failed, 0 skipped"
  [ "$failed" = 0 ]
  exit
fi

if [ $# = 0 ]; then
  sed -n 's/^# usage: /usage: /p' "$0" >&2
  exit 2
fi
bin=$(cd "$1" && pwd) || exit 2
shift
chosen=()
for patch in "$patches"/*.patch; do
  name=$(basename "$patch" .patch)
  [ $# = 0 ] && chosen+=("$name")
  for wanted in "$@"; do
    [[ $name == "$wanted"* ]] && chosen+=("$name")
  done
done
if [ ${#chosen[@]} = 0 ]; then
  echo "no patch is called that: $*" >&2
  exit 2
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/tree" "$scratch/libraries" "$scratch/results" || exit 1
(cd "$here" && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$scratch/tree") || exit 1
cd "$scratch/tree" || exit 1

# build NAME: its library.
build() {
  CARGO_TARGET_DIR=$target/planted CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 \
    cargo rustc --quiet --locked -p anyring-inject --lib --crate-type cdylib &&
    cp "$target/planted/debug/libanyring.so" "$scratch/libraries/$1.so"
}

# diverging NAME FIRST..END: the seeds that diverge with this library, one a line.
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
  local with without
  for _ in 1 2; do
    without=$(diverging unpatched "$2" 2>&1) && [ -z "$without" ] || return 1
    with=$(diverging "$1" "$2" 2>&1) && [ "$with" = "$2" ] || return 1
  done
}

# hunt NAME: runs seeds until one finds the bug, and says what came of it in results/NAME.
hunt() {
  local name=$1 first end seed seen others=0
  for ((first = 0; first < seeds; first += portion)); do
    end=$((first + portion))
    if ! seen=$(diverging "$name" "$first..$end" 2>"$scratch/results/$name.log"); then
      echo "failed  $name: seeds $first..$end did not run to their end: $(tail -n 1 "$scratch/results/$name.log")"
      return
    fi
    for seed in $seen; do
      if finds "$name" "$seed"; then
        echo "passed  $name: found by seed $seed; $(wc -w <<<"$seen") of the seeds $first..$end diverge"
        return
      fi
      others=$((others + 1))
    done
  done
  echo "failed  $name: none of the seeds 0..$seeds finds it ($others diverge, but without it, too, or not each time)"
}

build unpatched || exit 1
for name in "${chosen[@]}"; do
  apply=(patch --quiet --strip=1 --no-backup-if-mismatch --input "$patches/$name.patch")
  if ! "${apply[@]}" --dry-run >"$scratch/log"; then
    echo "failed  $name: the patch does not apply: $(tail -n 1 "$scratch/log")" >"$scratch/results/$name"
    continue
  fi
  "${apply[@]}"
  if ! build "$name" >"$scratch/log" 2>&1; then
    echo "failed  $name: the patched source does not build: $(grep -m 1 '^error' "$scratch/log")" >"$scratch/results/$name"
  fi
  "${apply[@]}" --reverse # with a new date, so that cargo sees the change
  [ -e "$scratch/results/$name" ] && continue
  while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do wait -n; done
  hunt "$name" >"$scratch/results/$name" &
done
wait
for name in "${chosen[@]}"; do
  cat "$scratch/results/$name"
  if grep -q '^passed ' "$scratch/results/$name"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
