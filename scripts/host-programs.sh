#!/bin/busybox sh
# Runs programs through anyring on another kernel (scripts/host.sh), where io_uring is denied, and verifies their data.
#
# usage: host-programs.sh           (those that scripts/hosts.sh has brought along, by PATH)
#
# Guests need FSGSBASE. On a processor without it a static program must be refused in one line, and is then skipped.
#
# Prints a line for each program: `program NAME: works`, `program NAME: fails`, or `skip: NAME: why`. The output of a
# failed program follows, indented.
failed=0

# How a program is begun: `anyring run` where io_uring is denied.
begun() { timeout 300 anyring deny -- anyring run --aio user --stats stats -- "$@"; }

# served NAME PATTERN COMMAND...: its status must be 0, PATTERN in its output, and its requests anyring's.
served() {
  name=$1 pattern=$2
  shift 2
  if ! command -v "$1" >/dev/null; then
    echo "skip: $name: no $1 here"
    return
  fi
  rm -f stats
  begun "$@" >said 2>&1
  status=$?
  anyring stats stats >counts 2>&1
  if [ "$status" = 0 ] && grep -q -e "$pattern" said && grep -q '[A-Z].* [1-9]' counts; then
    echo "program $name: works"
  elif [ "$status" != 0 ] && ! grep -qw fsgsbase /proc/cpuinfo && [ "$(grep -c '^anyring: ' said)/$(wc -l <said)" = 1/1 ]; then
    echo "skip: $name: $(cat said)"
  else
    echo "program $name: fails"
    { echo "status $status"; tail -n 20 said counts; } | sed 's/^/    /'
    failed=1
  fi
}

# by_fio NAME ENGINE OPTIONS...
by_fio() {
  name=$1 engine=$2
  shift 2
  served "$name" 'err= 0' fio --name=job --ioengine="$engine" --rw=randrw --bsrange=4k-64k --iodepth=32 --size=16m \
    --verify=crc32c --filename=fio.data "$@"
}

truncate -s 16M disk
by_fio fio io_uring
by_fio fio-direct io_uring --direct=1
by_fio fio-registered io_uring --direct=1 --fixedbufs --registerfiles
by_fio fio-libaio libaio --direct=1
served qemu-img 'completed' qemu-img bench -i io_uring -f raw -w -c 2000 -d 32 -s 4096 disk
served qemu-img-native 'completed' qemu-img bench -i native -t none -f raw -c 2000 -d 32 -s 4096 disk
served tokio-uring 'checksums equal' tokio-uring file
served io-uring 'checksums equal' io-uring file
served static-liburing '' static-liburing file
served nop 'verified' nop 2000
# Static programs are guests.
served musl '0 failed' anyring-conformance-musl --quiet --filter rw_pipe --filter net_receive
served static-glibc '0 failed' anyring-conformance-gnu --quiet --filter rw_pipe --filter net_receive
# Preloaded, and killed for io_uring's calls: the library asks for them in a child, which must end alone.
begun() { LD_PRELOAD=$(dirname "$(command -v anyring)")/libanyring.so ANYRING_STATS=stats timeout 300 killing "$@"; }
served killing 'checksums equal' tokio-uring file
exit $failed
