#!/bin/busybox sh
# Runs anyring's commands on fio, on another kernel for aarch64 (scripts/host.sh), where io_uring is denied.
#
# usage: aarch64-commands.sh
#
# A line for each: `program NAME: works`, or `program NAME: fails`. The output of a failed command follows, indented.
failed=0

# expect NAME STATUS PATTERN COMMAND...: the command's status, and a pattern that its output must have.
expect() {
  name=$1 wanted=$2 pattern=$3
  shift 3
  timeout 300 "$@" >said 2>&1
  status=$?
  if [ "$status" = "$wanted" ] && grep -q -e "$pattern" said; then
    echo "program $name: works"
  else
    echo "program $name: fails"
    { echo "status $status, not $wanted, or without $pattern"; tail -n 20 said; } | sed 's/^/    /'
    failed=1
  fi
}

job='--name=job --ioengine=io_uring --filename=commands.data --size=1m --iodepth=4 --rw=randread'
# shellcheck disable=SC2086 # lists of words
{
  expect doctor 0 'raw  *yes' anyring deny -- anyring doctor
  expect trace 0 'READ file' anyring deny -- anyring trace -- fio $job
  expect check 0 '' anyring deny -- anyring check --lint -- fio $job
  expect chaos 0 '0 of 3 seeds fail' anyring deny -- anyring chaos --rules late --runs 3 --timeout 100s -- fio $job
  mkdir -p lost
  expect crash 0 '0 of 3 seeds fail' anyring deny -- anyring chaos --crash lost --recover true --runs 3 --timeout 100s -- \
    fio --name=job --ioengine=io_uring --filename=lost/data --size=64k --rw=write --fsync=4
  expect trap 0 'err= 0' anyring deny --errno trap -- anyring run -- fio $job
  expect docker 0 'err= 0' anyring deny --profile docker -- anyring run -- fio $job
  expect rhel8 0 'err= 0' anyring deny --profile rhel8 -- anyring run -- fio $job
  # Instructions are replaced before the program starts. Without that it is refused in one line.
  expect kill 0 'err= 0' anyring deny --errno kill -- anyring run -- fio $job
  expect refused 125 '^anyring: cannot serve io_uring: .* cannot be replaced' \
    anyring deny --errno kill -- env ANYRING_PATCH=0 anyring run -- fio $job
}

# jumps NAME MOST PROGRAM DENY...: the program's hot instruction becomes a jump, and no more than MOST calls trap.
jumps() {
  name=$1 most=$2 program=$3
  shift 3
  rm -f stats
  expect "$name" 0 'child 0' anyring deny "$@" -- anyring run --stats stats -- "$program" b
  traps=$(anyring stats stats | sed -n 's/^trapped calls *//p')
  echo "$name: $traps calls trapped"
  [ "${traps:-$most}" -lt "$most" ] || { echo "program $name: fails" && failed=1; }
}

# More than 15,000 calls are served. The first 64 come by a trap, those that come while the instruction is replaced, and a few more.
jumps jumps 6000 jumps
jumps jumps-guest 6000 jumps-static
jumps jumps-kill 400 jumps --errno kill
jumps jumps-guest-kill 400 jumps-static --errno kill
expect no-jumps 0 'child 0' anyring deny -- env ANYRING_PATCH=0 anyring run -- jumps svc
exit $failed
