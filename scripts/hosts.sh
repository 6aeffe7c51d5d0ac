#!/usr/bin/env bash
# Runs doctor and the conformance cases on Debian's kernels (scripts/host.sh), and holds what fails there against
# conformance/differences-host-KERNEL.txt.
#
# usage: scripts/hosts.sh BIN [--write] [KERNEL...]   (BIN: the folder with what was built; KERNEL: 5.10, 6.1, 6.12, newest)
#
# With --write, the table of docs/hosts.md is written anew of what was seen.
set -euo pipefail

bin=$(realpath "$1")
shift
write=
[ "${1:-}" = --write ] && write=1 && shift
cd "$(dirname "$0")/.."
kernels=("$@")
[ $# != 0 ] || kernels=(5.10 6.1 6.12 newest)
page=docs/hosts.md
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# on_host KERNEL LISTS: the release, doctor's lines of the ways into the engine, and what the cases say.
on_host() {
  # shellcheck disable=SC2016 # for the shell over there
  scripts/host.sh "$bin" "$1" sh -c '
    echo "release: $(uname -r)"
    anyring doctor | sed -n "s/^  \(io_uring\|kernel AIO\|preload\|liburing\|syscall\|raw\|guest\)  *\(yes\|no\) .*/way: \1: \2/p"
    anyring deny -- anyring run --backend user --aio user -- \
      anyring-conformance-plain --quiet --jobs 16 --confirm 3 "$@"' sh "${@:2}"
}

total=0 failed=0 skipped=0
: >"$folder/rows"
for kernel in "${kernels[@]}"; do
  expect=(--expect /lists/differences.txt)
  if [ -e "conformance/differences-host-$kernel.txt" ]; then
    expect+=(--expect "/lists/differences-host-$kernel.txt")
  fi
  echo "--- Linux $kernel"
  status=0
  on_host "$kernel" "${expect[@]}" >"$folder/log" 2>&1 || status=$?
  # Indented, so that only the last line of all counts.
  grep -v -e '^known ' -e '^$' "$folder/log" | sed 's/^/  /' || true
  if [ "$status" = 77 ]; then
    skipped=$((skipped + 1))
    continue
  fi
  read -r passed bad missed < <(awk '
    /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p = $1; f = $3; s = $5 }
    END                                              { print p + 0, f + 0, s + 0 }' "$folder/log")
  # What failed without counting a failure did not run to its end.
  if [ "$status" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
  refused=$(sed -n 's/^way: \([^:]*\): no$/\1/p' "$folder/log" | paste -sd, | sed 's/,/, /g')
  listed=$(grep -cvE '^(#|$)' "conformance/differences-host-$kernel.txt" 2>/dev/null || true)
  release=$(sed -n 's/^release: //p' "$folder/log")
  echo "| ${release:-$kernel} | ${refused:-all work} | $passed | $bad | ${listed:-0} | $missed |" >>"$folder/rows"
  total=$((total + passed)) failed=$((failed + bad)) skipped=$((skipped + missed))
done

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
