#!/usr/bin/env bash
# Runs the conformance cases on the kernel's io_uring or on ours, through all three doors and every set of setup flags.
#
# usage: scripts/conformance.sh kernel|engine|table|renew BIN      (BIN: the folder with anyring and anyring-conformance)
#
# On ours the cases run once more in a program without instructions of its own, where more is remembered of descriptors.
# The doors run side by side, since most cases wait. Each leaves a record in BIN; `table` holds CONFORMANCE.md against
# these, `renew` makes them anew (one door, one set of flags, a minute) and writes the file.
# A case that fails once, and then not in 20 further runs, is called flaky and skipped (conformance/README.md).
# On the kernel every case must pass. On ours, under `anyring deny`, the known differences must fail and all else pass.
# Where the kernel's own io_uring does not work, its run is one skip, with the reason.
set -euo pipefail

side=$1 bin=$(realpath "$2")
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder
record=$bin/conformance-$side

kernel() { "$bin/anyring-conformance" --quiet --confirm 20 "$@"; }
on_ours() {
  "$bin/anyring" deny -- "$bin/anyring" run --backend user --aio user -- \
    "$bin/$1" --quiet --confirm 20 "${@:2}" --expect "$here/conformance/differences.txt"
}
engine() { on_ours anyring-conformance "$@"; }
plain() { on_ours anyring-conformance-plain --door libc; }

# through_all_doors FUNCTION [PROGRAM]: the reports one after another, then one line that sums them up.
through_all_doors() {
  rm -rf "$record"
  mkdir "$record"
  local door status=0 jobs=() reports=()
  for door in liburing libc raw; do
    "$1" --matrix --door "$door" --record "$record/$door.json" >"$folder/$door" 2>&1 &
    jobs+=($!)
    reports+=("$folder/$door")
  done
  if [ $# -gt 1 ]; then
    "$2" >"$folder/$2" 2>&1 &
    jobs+=($!)
    reports+=("$folder/$2")
  fi
  for door in "${jobs[@]}"; do
    wait "$door" || status=1
  done
  # Indented, so that only the last line of all counts.
  sed 's/^\([0-9]* passed, \)/  \1/' "${reports[@]}"
  tail -qn 1 "${reports[@]}" | awk -v wanted=${#reports[@]} '
    /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { ended++; passed += $1; failed += $3; skipped += $5 }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed + wanted - ended, skipped }'
  return "$status"
}

case $side in
  kernel)
    if ! reason=$("$bin/anyring" run --backend kernel -- true 2>&1); then
      echo "skip: $reason"
      echo "0 passed, 0 failed, 1 skipped"
      exit 0
    fi
    through_all_doors kernel
    ;;
  engine)
    through_all_doors engine plain
    ;;
  table)
    if [ ! -e "$bin/conformance-kernel" ]; then
      echo "skip: there is no record of the kernel's run to compare with"
      echo "0 passed, 0 failed, 1 skipped"
      exit 0
    fi
    cd "$here"
    cargo xtask conformance --check "$bin/conformance-kernel" "$bin/conformance-engine"
    ;;
  renew)
    kernel --record "$folder/kernel.json"
    engine --record "$folder/engine.json"
    cd "$here"
    cargo xtask conformance "$folder/kernel.json" "$folder/engine.json"
    ;;
  *)
    echo "usage: scripts/conformance.sh kernel|engine|table|renew BIN" >&2
    exit 2
    ;;
esac
