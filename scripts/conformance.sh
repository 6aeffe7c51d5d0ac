#!/usr/bin/env bash
# Runs the conformance cases on the kernel's io_uring or on ours, through all three doors and every set of setup flags.
#
# usage: scripts/conformance.sh kernel|engine BIN       (BIN: the folder with anyring and anyring-conformance)
#
# On the kernel every case must pass. On ours, under `anyring deny`, the known differences must fail and all else pass.
# Where the kernel's own io_uring does not work, its run is one skip, with the reason.
set -euo pipefail

side=$1 bin=$2
here=$(cd "$(dirname "$0")/.." && pwd)
doors=(--door liburing --door libc --door raw)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder

case $side in
  kernel)
    if ! reason=$("$bin/anyring" run --backend kernel -- true 2>&1); then
      echo "skip: $reason"
      echo "0 passed, 0 failed, 1 skipped"
      exit 0
    fi
    "$bin/anyring-conformance" --quiet --matrix "${doors[@]}"
    ;;
  engine)
    "$bin/anyring" deny -- "$bin/anyring" run --backend user -- \
      "$bin/anyring-conformance" --quiet --matrix "${doors[@]}" --expect "$here/conformance/differences.txt"
    ;;
  *)
    echo "usage: scripts/conformance.sh kernel|engine BIN" >&2
    exit 2
    ;;
esac
