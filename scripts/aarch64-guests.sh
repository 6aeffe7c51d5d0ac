#!/bin/busybox sh
# Runs static programs on another kernel for aarch64 (scripts/host.sh): on the kernel's io_uring, and as guests where io_uring
# is denied. Both runs must print the same and end the same.
#
# usage: aarch64-guests.sh        (guest-c, of crates/cli/tests/c/guest.c, and guest-go, by PATH)
#
# Prints a line for each program: `program NAME: works`, or `program NAME: fails`. The guest's output follows, indented.
failed=0

# same NAME COMMAND...
same() {
  name=$1
  shift
  command -v "$1" >/dev/null || { echo "skip: $name: no $1 here" && return; }
  timeout 300 "$@" >natively 2>&1
  wanted=$?
  timeout 300 anyring deny -- anyring run --backend user -- "$@" >said 2>&1
  status=$?
  if [ "$status" = "$wanted" ] && cmp -s natively said; then
    echo "program $name: works"
  else
    echo "program $name: fails"
    { echo "status $status, not $wanted"; tail -n 20 said; } | sed 's/^/    /'
    failed=1
  fi
}

# Two parts are left out: `names` needs a newer kernel, and `identity` prints the environment, which differs.
for part in nop file socket worker poll threads detached signals queued alternate jumps fork fork_among_threads exec descriptors killed; do
  same "guest $part" guest-c "$part"
done
same 'guest go' guest-go
exit $failed
