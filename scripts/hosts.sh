#!/usr/bin/env bash
# Runs doctor, programs (scripts/host-programs.sh) and the conformance cases on Debian's kernels (scripts/host.sh).
# Failed cases are compared with tests/conformance/differences-host-KERNEL.txt. The programs also run on a processor
# without XSAVE and FSGSBASE.
#
# usage: scripts/hosts.sh BIN [--write] [KERNEL...]   (BIN: the folder with what was built, beside that with the end-to-end
#                                                      programs; KERNEL: as scripts/host.sh takes it)
#
# With --write, the results replace the table of docs/hosts.md.
set -euo pipefail

bin=$(realpath "$1")
shift
write=
[ "${1:-}" = --write ] && write=1 && shift
cd "$(dirname "$0")/.."
kernels=("$@")
[ $# != 0 ] || kernels=(5.10 6.1 6.12 6.18 7.2 7.3)
page=docs/hosts.md
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

clients=$(dirname "$bin")/e2e
tests/e2e/clients/build.sh "$clients"
tests/e2e/clients/build.sh "$clients" killing
HOST_PROGRAMS=scripts/host-programs.sh
for program in fio qemu-img "$clients"/{tokio-uring,io-uring,static-liburing,nop,killing} "$bin"/anyring-conformance-{gnu,musl}; do
  command -v "$program" >/dev/null && HOST_PROGRAMS+=" $program"
done
export HOST_PROGRAMS HOST_TIMEOUT_S=${HOST_TIMEOUT_S:-1800}

# The scripts to run on each kernel. The first prints the release and doctor's lines about the ways into the engine, and
# runs the programs. The second runs the cases.
# shellcheck disable=SC2016 # for the shell over there
seen='echo "release: $(uname -r)"
anyring doctor | sed -n "s/^  \(io_uring\|kernel AIO\|preload\|liburing\|syscall\|raw\|guest\)  *\(yes\|no\) .*/way: \1: \2/p"
host-programs.sh || status=1'
# shellcheck disable=SC2016
cases='anyring deny -- anyring run --backend user --aio user -- \
  anyring-conformance-plain --quiet --jobs 16 --confirm 3 "$@" || status=1'

total=0 failed=0 skipped=0
: >"$folder/rows"

# on_host NAME KERNEL SCRIPT ARGS...: runs the script on that kernel, and adds its counts to the totals and the table.
on_host() {
  local name=$1 kernel=$2 script=$3 status=0 log=$folder/log passed bad missed good broken absent refused listed release
  shift 3
  echo "--- $name"
  scripts/host.sh "$bin" "$kernel" sh -c "status=0
$script
exit \$status" sh "$@" >"$log" 2>&1 || status=$?
  # Indented, so that only the last line of all counts.
  grep -v -e '^known ' -e '^$' "$log" | sed 's/^/  /' || true
  if [ "$status" = 77 ]; then
    skipped=$((skipped + 1))
    return
  fi
  read -r passed bad missed < <(awk '
    /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p = $1; f = $3; s = $5 }
    END                                              { print p + 0, f + 0, s + 0 }' "$log")
  good=$(grep -c '^program .*: works$' "$log" || true)
  broken=$(sed -n 's/^program \(.*\): fails$/\1/p' "$log" | paste -sd, | sed 's/,/, /g')
  absent=$(grep -c '^skip: ' "$log" || true)
  refused=$(sed -n 's/^way: \([^:]*\): no$/\1/p' "$log" | paste -sd, | sed 's/,/, /g')
  listed=$(grep -cvE '^(#|$)' "tests/conformance/differences-host-$kernel.txt" 2>/dev/null || true)
  release=$(sed -n 's/^release: //p' "$log")
  release=${release:-$kernel}${name#"Linux $kernel"}
  if [ $# = 0 ]; then
    echo "| $release | ${refused:-all work} | ${broken:-all $good work} | | | | |" >>"$folder/rows"
  else
    echo "| $release | ${refused:-all work} | ${broken:-all $good work} | $passed | $bad | ${listed:-0} | $missed |" \
      >>"$folder/rows"
  fi
  bad=$((bad + $(grep -c '^program .*: fails$' "$log" || true)))
  # A run that failed without counting a failure did not reach its end.
  if [ "$status" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
  total=$((total + passed + good)) failed=$((failed + bad)) skipped=$((skipped + missed + absent))
}

for kernel in "${kernels[@]}"; do
  expect=(--expect /lists/differences.txt)
  if [ -e "tests/conformance/differences-host-$kernel.txt" ]; then
    expect+=(--expect "/lists/differences-host-$kernel.txt")
  fi
  on_host "Linux $kernel" "$kernel" "$seen
$cases" "${expect[@]}"
done
HOST_CPU=Nehalem on_host "Linux ${kernels[-1]}, without XSAVE and FSGSBASE" "${kernels[-1]}" "$seen"

if [ -n "$write" ]; then
  {
    sed '/^|---/q' "$page"
    cat "$folder/rows"
    sed '1,/^|---/d' "$page" | sed '/^|/d'
  } >"$folder/page"
  cp "$folder/page" "$page"
fi
echo "$total passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
