#!/usr/bin/env bash
# Runs the conformance cases and compares the answers with tests/conformance/oracle.json, the record of the kernel's
# answers.
#
# usage: scripts/conformance.sh once|engine|kernel|oracle BIN  (BIN: the folder with anyring and anyring-conformance)
#        scripts/conformance.sh case BIN TOPIC::CASE            (BIN: cargo's debug folder, which is built first)
#
#   once     runs each case once on anyring; its name gives the door and the flags (`make test`)
#   engine   runs the cases on anyring, through every door with every set of flags (`make soak`)
#   kernel   does the same on the kernel's io_uring
#   oracle   makes the record anew from such runs on the kernel, twice through each door, and docs/conformance.md
#            from it. With ADD=1 these runs are added to the existing record. With KERNEL=7.3 the cases run on that
#            kernel of Debian's, in QEMU (scripts/host.sh names the kernels). Then tests/conformance/oracle-7.3.json
#            gets the answers that differ from that record, and the cases of later names. Cases that fail there are
#            named and left out. FILTER="TEXT..." limits the run to the cases with one of these words in their names
#   case     runs one case on the kernel, then on anyring, and compares the answers
#
# With ANYRING_KERNEL=7.3 the engine answers as that kernel, and its answers are compared with that kernel's record.
#
# On anyring the cases also run in other programs. One has no `syscall` instructions of its own, so that the library
# remembers more about descriptors. Two are static, with glibc and with musl, and are served as guests
# (tests/conformance/differences-guest.txt). Each case also runs once where the program's threads may differ in identity
# (tests/conformance/differences-identity.txt). A case that fails runs again three times, alone. If it then passes, it
# is called flaky and skipped (tests/conformance/README.md).
set -euo pipefail

side=${1:-} bin=$(realpath "${2:-.}")
here=$(cd "$(dirname "$0")/.." && pwd)
record=$here/tests/conformance/oracle.json
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder
# Most cases wait, so several run at a time.
common=(--quiet --jobs $((4 * $(nproc))) --confirm 3)
all=(--matrix --door liburing --door libc --door raw)

natively() { "$bin/anyring-conformance" "${common[@]}" "${all[@]}" "$@"; }
judged=("${common[@]}" --oracle "$record" --expect "$here/tests/conformance/differences.txt" ${ANYRING_KERNEL:+--kernel "$ANYRING_KERNEL"})
[ "${ANYRING_KERNEL:-}" != 7.3 ] || judged+=(--expect "$here/tests/conformance/differences-host-7.3.txt")
for later in "$here"/tests/conformance/oracle-*.json; do [ ! -e "$later" ] || judged+=(--oracle "$later"); done
serve() { "$bin/anyring" deny -- "$bin/anyring" run --backend user --aio user "$@"; }
on_ours() { serve -- "$bin/$1" "${judged[@]}" "${@:2}"; }
# guest gnu|musl WORDS...: runs the cases in a static program with this libc.
guest() {
  local program=$bin/anyring-conformance-$1 list=$here/tests/conformance/differences-guest.txt
  [ -e "$program" ] || skip "no static program with $1: the toolchain lacks x86_64-unknown-linux-$1 (rustup target add)"
  serve --guest -- "$program" "${judged[@]}" --expect "$list" "${@:2}"
}

# sum COMMAND -- COMMAND...: runs one after the other, and sums up their last lines.
sum() {
  local status=0 reports=0
  : >"$folder/reports"
  while [ $# != 0 ]; do
    local command=()
    while [ $# != 0 ] && [ "$1" != -- ]; do command+=("$1") && shift; done
    [ $# = 0 ] || shift
    reports=$((reports + 1))
    # Indented, so that only the last line of all counts.
    "${command[@]}" 2>&1 | tee -a "$folder/reports" | sed 's/^\([0-9]* passed, \)/  \1/' || status=1
  done
  awk -v wanted="$reports" '
    /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { ended++; passed += $1; failed += $3; skipped += $5 }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed + wanted - ended, skipped }' "$folder/reports"
  return "$status"
}

skip() {
  echo "skip: $1"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}

# oracle_of KERNEL: prints the output of the cases on that kernel, and stores the record that they made.
oracle_of() {
  local file=$here/tests/conformance/oracle-$1.json status=0 filters=() word
  for word in ${FILTER:-}; do filters+=(--filter "$word"); done
  export HOST_PROGRAMS=$bin/anyring-conformance HOST_TIMEOUT_S=${HOST_TIMEOUT_S:-1800}
  # shellcheck disable=SC2016 # for the shell over there
  "$here/scripts/host.sh" "$bin" "$1" sh -c 'status=0 kernel=$1 && shift && cd /tmp
    case " $* " in *" --add "*) cp "/lists/oracle-$kernel.json" record ;; esac
    anyring-conformance --quiet --confirm 3 --jobs 16 --repeat 3 --record record --beside /lists/oracle.json "$@" || status=1
    echo "--- record" && cat record
    exit $status' sh "$1" "${filters[@]}" ${ADD:+--add} >"$folder/said" || status=$?
  sed '/^--- record$/,$d' "$folder/said"
  sed '1,/^--- record$/d' "$folder/said" >"$folder/record"
  # A record that was cut off is not stored.
  [ "$(tail -n 1 "$folder/record")" = '}}' ] || { [ "$status" = 77 ] || echo "there is no record" >&2 && return 1; }
  cp "$folder/record" "$file"
  return "$status"
}

case $side in
  once)
    sum on_ours anyring-conformance --spread -- on_ours anyring-conformance-plain --spread \
      -- on_ours anyring-conformance --spread --identities-differ --expect "$here/tests/conformance/differences-identity.txt" \
      -- guest gnu --spread -- guest musl --spread
    ;;
  engine)
    guest=(--matrix --door libc --door raw)
    sum on_ours anyring-conformance "${all[@]}" -- on_ours anyring-conformance-plain --matrix --door libc \
      -- guest gnu "${guest[@]}" -- guest musl "${guest[@]}"
    ;;
  kernel)
    reason=$("$bin/anyring" run --backend kernel -- true 2>&1) || skip "$reason"
    recorded=$(sed -n 's/^{"kernel":"\([0-9]*\.[0-9]*\).*/\1/p' "$record")
    case $(uname -r) in
      "$recorded".*) natively --oracle "$record" --kernel "$(uname -r)" ;;
      *) skip "tests/conformance/oracle.json is of Linux $recorded, this is $(uname -r)" ;;
    esac
    ;;
  oracle)
    if [ -n "${KERNEL:-}" ]; then
      oracle_of "$KERNEL" || exit # never go on with this machine's kernel
      exit
    fi
    natively --repeat 2 --record "$record" ${ADD:+--add}
    cd "$here"
    cargo xtask conformance
    ;;
  case)
    name=${3:-}
    [ -n "$name" ] || { echo "usage: make case NAME=topic::case" >&2 && exit 2; }
    cargo build --locked --manifest-path "$here/Cargo.toml" -p anyring-conformance -p anyring-inject
    run=("$bin/anyring-conformance" --quiet --jobs $((4 * $(nproc))) "${all[@]}" --exact --filter "$name") status=0
    echo "on the kernel:"
    "${run[@]}" --repeat 3 --record "$folder/kernel.json" || status=$?
    [ "$status" != 2 ] || exit 2 # there is no such case
    echo "on anyring:"
    LD_PRELOAD=$bin/libanyring.so ANYRING_BACKEND=user ANYRING_AIO=user \
      "${run[@]}" --oracle "$folder/kernel.json" --expect "$here/tests/conformance/differences.txt" || status=1
    exit "$status"
    ;;
  *)
    sed -n '/^# usage:/,/^#$/s/^# //p' "$0" >&2
    exit 2
    ;;
esac
