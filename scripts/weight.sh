#!/usr/bin/env bash
# Counts the cost of a request: the instructions of libanyring.so, and the system calls of all threads, including the
# program's own. Noise hardly moves these figures, so `make test` can check them.
#
# usage: scripts/weight.sh LIBRARY [KIND...]      prints a line a kind: instructions and system calls a round
#        scripts/weight.sh LIBRARY --check        fails if a kind has grown since scripts/weight/counts.txt
#        scripts/weight.sh LIBRARY --write        writes that file
#
# Each kind of scripts/weight/weight.c runs twice on a warm ring, below callgrind and strace, with two numbers of
# rounds. The difference is the cost of the rounds. The script needs valgrind, strace and liburing-dev.
set -euo pipefail
cd "$(dirname "$0")/.."

library=$(realpath "${1:?usage: scripts/weight.sh LIBRARY [--check | --write | KIND...]}")
shift
counts=$PWD/scripts/weight/counts.txt
sum=$PWD/scripts/weight/library.py
compiler=$(rustc --version)
# What may go to a worker has more room, and each kind that seems to have grown is counted again.
VARIES=" async4k memory4k openread "
TRIES=3

work=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-weight-XXXXXX")
trap 'rm -rf "$work"' EXIT
cc -O2 -Wall -Wno-unused-parameter -o "$work/weight" scripts/weight/weight.c -luring
cd "$work"
export ANYRING_BACKEND=user

# instructions KIND ROUNDS: of the library, in one run.
instructions() {
  LD_PRELOAD=$library valgrind -q --tool=callgrind --callgrind-out-file=callgrind.out ./weight "$1" "$2" >run.log 2>&1 ||
    { tail -n 3 run.log >&2; return 1; }
  python3 "$sum" callgrind.out "$(basename "$library")"
}

# calls KIND ROUNDS: system calls in one run.
calls() {
  LD_PRELOAD=$library strace -f -qq -o strace.out ./weight "$1" "$2" >/dev/null 2>&1
  grep -vcE 'exited|resumed|---' strace.out || true
}

# count KIND: "KIND INSTRUCTIONS CALLS", a round.
count() {
  local low=200 high=1200 before after calls_before calls_after
  if [ "$1" = setup ]; then low=20 high=120; fi
  before=$(instructions "$1" $low) && after=$(instructions "$1" $high) || return 1
  calls_before=$(calls "$1" $low) calls_after=$(calls "$1" $high)
  awk -v kind="$1" -v i=$((after - before)) -v c=$((calls_after - calls_before)) -v rounds=$((high - low)) \
    'BEGIN { printf "%-10s %7.0f %6.2f\n", kind, i / rounds, c / rounds }'
}

# has_grown KIND LINE KNOWN: by more than 5 % in instructions, or by a quarter of a system call; by 25 % where that varies.
has_grown() {
  local room=1.05 more=1
  if [[ $VARIES == *" $1 "* ]]; then room=1.25 more=1.25; fi
  awk -v line="$2" -v known="$3" -v room=$room -v more=$more \
    'BEGIN { split(line, a); split(known, b); exit !(a[2] > b[2] * room || a[3] > b[3] * more + 0.25) }'
}

# why_not_held KIND: what else than our code decides its count, if anything does.
why_not_held() {
  case $1 in
    direct4k) echo "its device decides whether a thread waits, and so what is counted; directhole is held in its place" ;;
    read4k | read4k32 | async4k | directhole)
      ./weight --nowait || echo "the file system lacks RWF_NOWAIT or O_DIRECT, so workers read; set TMPDIR to one that has both" ;;
  esac
}

check() {
  local passed=0 failed=0 skipped=0 kind why line known try
  for kind in $(./weight --list); do
    why=$(why_not_held "$kind")
    if [ -n "$why" ]; then
      echo "skip $kind: $why"
      skipped=$((skipped + 1))
      continue
    fi
    if ! known=$(grep -E "^$kind " "$counts"); then
      echo "FAIL $kind: not in scripts/weight/counts.txt; --write adds it"
      failed=$((failed + 1))
      continue
    fi
    for ((try = 1; try <= TRIES; try++)); do
      line=$(count "$kind") || line="$kind failed"
      if [ "$line" != "$kind failed" ] && ! has_grown "$kind" "$line" "$known"; then break; fi
    done
    if ((try > TRIES)); then
      echo "FAIL $kind: $line, and $known before. If the change is worth it, --write says so in scripts/weight/counts.txt"
      failed=$((failed + 1))
    else
      echo "$line"
      passed=$((passed + 1))
    fi
  done
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ]
}

case ${1:-} in
  --check)
    known=$(sed -n 's/^# compiler: //p' "$counts")
    if [ "$known" != "$compiler" ]; then
      echo "skip: the counts are those of $known, and this is $compiler"
      echo "0 passed, 0 failed, 1 skipped"
    else
      check
    fi
    ;;
  --write)
    {
      echo "# Instructions of libanyring.so and system calls of all threads a round, by scripts/weight.sh --write."
      echo "# compiler: $compiler"
      for kind in $(./weight --list); do
        why=$(why_not_held "$kind")
        if [ -z "$why" ]; then count "$kind"; else echo "$kind is left out: $why" >&2; fi
      done
    } >counts.new
    mv counts.new "$counts"
    ;;
  *)
    for kind in ${*:-$(./weight --list)}; do count "$kind" || echo "$kind failed"; done
    ;;
esac
