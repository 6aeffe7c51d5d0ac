#!/usr/bin/env bash
# Runs the conformance cases on the kernel's io_uring or on ours, through all three doors and every set of setup flags.
#
# usage: scripts/conformance.sh kernel|engine|table|renew BIN      (BIN: the folder with anyring and anyring-conformance)
#
# Each run leaves a record in BIN; `table` holds CONFORMANCE.md against the two, `renew` makes them anew (one door, one set
# of flags, a minute) and writes the file.
# On the kernel every case must pass. On ours, under `anyring deny`, the known differences must fail and all else pass.
# Where the kernel's own io_uring does not work, its run is one skip, with the reason.
set -euo pipefail

side=$1 bin=$(realpath "$2")
here=$(cd "$(dirname "$0")/.." && pwd)
doors=(--door liburing --door libc --door raw)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder
record=$bin/conformance-$side.json

kernel() { "$bin/anyring-conformance" --quiet "$@"; }
engine() {
  "$bin/anyring" deny -- "$bin/anyring" run --backend user -- \
    "$bin/anyring-conformance" --quiet "$@" --expect "$here/conformance/differences.txt"
}

case $side in
  kernel)
    rm -f "$record"
    if ! reason=$("$bin/anyring" run --backend kernel -- true 2>&1); then
      echo "skip: $reason"
      echo "0 passed, 0 failed, 1 skipped"
      exit 0
    fi
    kernel --matrix "${doors[@]}" --record "$record"
    ;;
  engine)
    rm -f "$record"
    engine --matrix "${doors[@]}" --record "$record"
    ;;
  table)
    if [ ! -e "$bin/conformance-kernel.json" ]; then
      echo "skip: there is no record of the kernel's run to compare with"
      echo "0 passed, 0 failed, 1 skipped"
      exit 0
    fi
    cd "$here"
    cargo xtask conformance --check "$bin/conformance-kernel.json" "$bin/conformance-engine.json"
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
