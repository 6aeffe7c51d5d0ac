#!/usr/bin/env bash
# Shows anyring on real programs: fio, qemu-img and a tokio-uring program where io_uring is denied, each with its data
# verified. Then compares anyring's rate with the kernel's, measured in turns.
#
# usage: scripts/demo.sh TARGET       (`make demo` builds what it needs in TARGET and calls it)
#
# The output is plain text in at most 80 columns, with bold only on a terminal and without NO_COLOR. All files are in a
# temporary folder, which is removed.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
target=$(cd "${1:?usage: scripts/demo.sh TARGET}" && pwd)
ROUNDS=3
FIO_SECONDS=2
BENCH_REQUESTS=100000
LIMIT_SECONDS=60 # for one command; each takes a few seconds

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then bold=$'\e[1m' plain=$'\e[0m'; fi

"$here/tests/e2e/clients/build.sh" "$target/e2e" nop tokio-uring
export PATH="$target/release:$target/e2e:$PATH" RUST_BACKTRACE=0
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-demo-XXXXXX")
trap 'rm -rf "$folder"' EXIT
cd "$folder"

heading() { printf '\n%s%s%s\n\n' "$bold" "$*" "$plain"; }

# indent: folds and indents the lines that the caller has chosen from a program's output.
indent() { fold -s -w 76 | sed 's/ *$//; s/^/    /'; }

# show COMMAND...: prints a command line, folded with backslashes, as one would type it.
show() { printf '%s$ %s%s\n' "$bold" "$(fold -s -w 72 <<<"$*" | sed '$!s/$/\\/; 2,$s/^/      /')" "$plain"; }

# expect STATUS PATTERN COMMAND...: runs it, prints the lines that match PATTERN, and ends the demo with all of its
# output if the exit status is not as it should be (STATUS: works or fails).
expect() {
  local wanted=$1 pattern=$2 status=0
  shift 2
  show "$@"
  timeout --foreground "$LIMIT_SECONDS" "$@" >output 2>&1 || status=$?
  grep -E "$pattern" output | sed -E 's/, [^,]*-[^,]*B\/s \([^)]*\)//' | indent || true
  printf '    (exit status %s)\n' "$status"
  case $wanted-$status in
    works-0 | fails-[1-9]*) ;;
    *)
      printf '\nThe demo ends here: this command should be one that %s. All it said:\n' "$wanted"
      indent <output
      exit 1
      ;;
  esac
}

# statistics FILE: prints anyring's counters.
statistics() {
  show anyring stats "$1"
  anyring stats "$1" | indent
}

fio_job=(fio --name=demo --ioengine=io_uring --rw=randrw --bsrange=4k-128k --iodepth=32 --size=64m --verify=crc32c)

heading "1. fio where io_uring is denied, as in a container"
expect fails 'error=|support' anyring deny -- "${fio_job[@]}"
rm -f demo.0.0

heading "2. The same command through anyring: every block verified with crc32c"
expect works 'err=|READ:|WRITE:' anyring deny -- anyring run --stats fio.stats -- "${fio_job[@]}"
statistics fio.stats

heading "3. qemu-img and a tokio-uring program, unmodified, under the same denial"
qemu-img create -q -f raw disk 64M
expect works 'Sending|completed' \
  anyring deny -- anyring run -- qemu-img bench -i io_uring -f raw -w -c 20000 -d 32 -s 4096 disk
expect works 'checksum' anyring deny -- anyring run -- tokio-uring file

# The three measurements: each prints one number. "$@" is what goes before the program.
fio_rate() {
  "$@" fio --name=rate --ioengine=io_uring --rw=randread --bs=4k --iodepth=32 --filename=disk --size=64m --norandommap \
    --invalidate=0 --time_based --runtime="$FIO_SECONDS" --output-format=terse --terse-version=3 |
    tail -n 1 | cut -d ';' -f 8
}
nop_ns() { "$@" nop 20000 | sed -n 's/.* verified, \([0-9.]*\) ns each.*/\1/p'; }
bench_rate() {
  "$@" qemu-img bench -i io_uring -f raw -c "$BENCH_REQUESTS" -d 32 -s 4096 disk |
    awk -v n="$BENCH_REQUESTS" '/completed in/ { if ($4 > 0) printf "%d\n", n / $4 }'
}

median() { sort -g | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }

ours=(anyring deny -- anyring run --backend user --)
kernel_works=1
reason=$(anyring run --backend kernel -- true 2>&1) || kernel_works=0

# row NAME FUNCTION higher|lower (which is better): measures in turns and prints the medians.
row() {
  local name=$1 measure=$2 better=$3 round
  : >kernel.values
  : >ours.values
  for ((round = 0; round < ROUNDS; round++)); do
    if [ "$kernel_works" = 1 ]; then "$measure" env >>kernel.values; fi
    "$measure" timeout --foreground "$LIMIT_SECONDS" "${ours[@]}" >>ours.values
  done
  awk -v name="$name" -v kernel="$(median <kernel.values)" -v ours="$(median <ours.values)" -v better="$better" 'BEGIN {
    rate = kernel == "" ? "-" : sprintf("%.2f x", better == "higher" ? ours / kernel : kernel / ours)
    printf "  %-40s %11s %11d %9s\n", name, kernel == "" ? "none here" : sprintf("%d", kernel), ours, rate
  }'
}

heading "4. Our rate beside the kernel's: medians of $ROUNDS, measured in turns"
printf "  %-40s %11s %11s %9s\n" '' "kernel" "anyring" "speed"
row 'fio randread 4k, depth 32, IOPS' fio_rate higher
row 'qemu-img bench 4k reads, depth 32, /s' bench_rate higher
row 'liburing NOP round trip, ns' nop_ns lower
echo
echo "  Only our column runs under the filter that denies io_uring. Speed: how many"
echo "  times the kernel's; 1.00 is equal. The file is in the page cache."
if [ "$kernel_works" = 0 ]; then printf '  No kernel column: %s\n' "$reason" | fold -s -w 78; fi
