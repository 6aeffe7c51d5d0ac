#!/usr/bin/env bash
# Counts the cost of a request, and of a libc function that the library wraps and that concerns no ring: the
# instructions of libanyring.so, and the system calls of all threads, including the program's own. Noise hardly moves
# these figures, so `make test` can check them.
#
# usage: scripts/weight.sh LIBRARY [KIND...]      prints a line a kind: instructions and system calls a round
#        scripts/weight.sh LIBRARY --check        fails if a kind has grown since scripts/weight/counts.txt
#        scripts/weight.sh LIBRARY --write        writes that file
#        scripts/weight.sh LIBRARY --ns           prints the nanoseconds of each libc function: alone, and what the
#                                                 library adds without a ring and with one
#
# Each kind of scripts/weight/weight.c runs twice on a warm ring, below callgrind and strace, with two numbers of
# rounds. The difference is the cost of the rounds. scripts/weight/calls.c calls the libc functions, all in one run:
# a line none.FUNCTION is for a process without a ring, ring.FUNCTION for one with a ring. The script needs valgrind,
# strace and liburing-dev.
set -euo pipefail
cd "$(dirname "$0")/.."

library=$(realpath "${1:?usage: scripts/weight.sh LIBRARY [--check | --write | KIND...]}")
shift
counts=$PWD/scripts/weight/counts.txt
sum=$PWD/scripts/weight/library.py
of_calls=$PWD/scripts/weight/calls.py
compiler=$(rustc --version)
# Kinds that may go to a worker, and so may grow more. A kind or libc function that seems to have grown is counted up to
# TRIES times.
VARIES=" async4k memory4k openread "
TRIES=3

work=$(mktemp -d "${TMPDIR:-/var/tmp}/anyring-weight-XXXXXX")
trap 'rm -rf "$work"' EXIT
cc -O2 -Wall -Wno-unused-parameter -o "$work/weight" scripts/weight/weight.c -luring
cc -O2 -w -o "$work/calls" scripts/weight/calls.c -luring 2>/dev/null
cd "$work"
export ANYRING_BACKEND=user

# instructions KIND ROUNDS: prints the number of the library's instructions in one run.
instructions() {
  LD_PRELOAD=$library valgrind -q --tool=callgrind --callgrind-out-file=callgrind.out ./weight "$1" "$2" >run.log 2>&1 ||
    { tail -n 3 run.log >&2; return 1; }
  python3 "$sum" callgrind.out "$(basename "$library")"
}

# calls KIND ROUNDS: prints the number of system calls in one run.
calls() {
  LD_PRELOAD=$library strace -f -qq -o strace.out ./weight "$1" "$2" >/dev/null 2>&1
  grep -vcE 'exited|resumed|---' strace.out || true
}

ROUNDS=50

# count_calls none|ring FILE: a line for each libc function, like those of `count`, in FILE.
count_calls() {
  rm -f calls.out*
  LD_PRELOAD=$library valgrind -q --tool=callgrind --callgrind-out-file=calls.out ./calls "$1" $ROUNDS >run.log 2>&1 ||
    { tail -n 3 run.log >&2; return 1; }
  LD_PRELOAD=$library strace -qq -o strace.out ./calls "$1" $ROUNDS >/dev/null 2>&1
  python3 "$of_calls" strace.out "$(basename "$library")" "$1" $ROUNDS calls.out* >"$2"
}

# unnamed: the exported functions that calls.c neither calls nor names as not counted.
unnamed() {
  comm -23 <(nm -D --defined-only "$library" | awk '{ print $3 }' | sed 's/@.*//' | grep -Ev '^(io_|__io_|anyring_)' | sort -u) \
    <({ ./calls --list && ./calls --not-counted | tr ' ' '\n'; } | sort -u)
}

# count KIND [TRY]: "KIND INSTRUCTIONS CALLS", a round. A run counts all libc functions at once, so the functions of
# one try share a run.
count() {
  if [[ $1 == *.* ]]; then
    local state=${1%%.*}
    local file=counts.$state.${2:-1}
    { [ -s "$file" ] || count_calls "$state" "$file"; } && grep -E "^$1 " "$file"
    return
  fi
  local low=200 high=1200 before after calls_before calls_after
  if [ "$1" = setup ]; then low=20 high=120; fi
  before=$(instructions "$1" $low) && after=$(instructions "$1" $high) || return 1
  calls_before=$(calls "$1" $low) calls_after=$(calls "$1" $high)
  awk -v kind="$1" -v i=$((after - before)) -v c=$((calls_after - calls_before)) -v rounds=$((high - low)) \
    'BEGIN { printf "%-10s %7.0f %6.2f\n", kind, i / rounds, c / rounds }'
}

# kinds: lists all kinds.
kinds() { ./weight --list && ./calls --list | sed 's/^/none./' && ./calls --list | sed 's/^/ring./'; }

# has_grown KIND LINE KNOWN: succeeds if the kind has grown by more than 5 % in instructions, or by a quarter of a system
# call. For the kinds of VARIES these are 25 % each, and a quarter of a system call.
has_grown() {
  local room=1.05 more=1
  if [[ $VARIES == *" $1 "* ]]; then room=1.25 more=1.25; fi
  awk -v line="$2" -v known="$3" -v room=$room -v more=$more \
    'BEGIN { split(line, a); split(known, b); exit !(a[2] > b[2] * room || a[3] > b[3] * more + 0.25) }'
}

# why_not_held KIND: prints why the kind's count depends on more than anyring's code, if it does.
why_not_held() {
  case $1 in
    direct4k) echo "its device decides whether a thread waits, and so what is counted; directhole is held in its place" ;;
    read4k | read4k32 | async4k | directhole)
      ./weight --nowait || echo "the file system lacks RWF_NOWAIT or O_DIRECT, so workers read; set TMPDIR to one that has both" ;;
  esac
}

check() {
  local passed=0 failed=0 skipped=0 kind why line known try
  for kind in $(unnamed); do
    echo "FAIL $kind: the library exports it, and scripts/weight/calls.c neither calls it nor names it as not counted"
    failed=$((failed + 1))
  done
  for kind in $(kinds); do
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
      line=$(count "$kind" $try) || line="$kind failed"
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

# nanoseconds: a line for each libc function; of three runs the best.
nanoseconds() {
  local run
  for run in 1 2 3; do
    ./calls none 500 --ns >"native.$run"
    LD_PRELOAD=$library ./calls none 500 --ns >"none.$run"
    LD_PRELOAD=$library ./calls ring 500 --ns >"ring.$run"
  done
  paste -d ' ' native.? none.? ring.? | awk '
    function best(at) { return $at < $(at + 2) ? ($at < $(at + 4) ? $at : $(at + 4)) : ($(at + 2) < $(at + 4) ? $(at + 2) : $(at + 4)) }
    { printf "%-28s %8.1f %+9.1f %+9.1f\n", $1, best(2), best(8) - best(2), best(14) - best(2) }'
}

case ${1:-} in
  --ns) nanoseconds ;;
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
      for kind in $(kinds); do
        why=$(why_not_held "$kind")
        if [ -z "$why" ]; then count "$kind"; else echo "$kind is left out: $why" >&2; fi
      done
    } >counts.new
    mv counts.new "$counts"
    ;;
  *)
    for kind in ${*:-$(kinds)}; do count "$kind" || echo "$kind failed"; done
    ;;
esac
