#!/bin/bash
# Expected: strace -P PATH traces the system calls that access PATH, by strace(1). That includes a poll(2) whose array
# holds a descriptor of that file.
# Seen: an io_submit(2) whose array holds a request for that file is not traced, so all reads and writes by Linux AIO
# are missing. strace knows the descriptor: with -y it prints the path in the request. The class %desc, which is all
# calls related to descriptors, leaves io_submit out as well, and has poll.
# Versions: strace 6.1-0.1 and libunwind8 1.6.2-3 (Debian 12). Needs gcc, a kernel with Linux AIO, and permission to
# trace a child. Seen 2026-11-30.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
(cd "$tmp" && apt-get download -q=2 -o APT::Sandbox::User=root strace=6.1-0.1 libunwind8=1.6.2-3 &&
    for package in ./*.deb; do dpkg-deb -x "$package" root; done)
cat > "$tmp/check.c" <<'C'
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* check FILE: reads one byte of it, polls it, and reads 16 bytes by Linux AIO. */
int main(int argc, char **argv)
{
    static char buffer[16];
    aio_context_t context = 0;
    struct pollfd entry = { .fd = open(argv[1], O_RDONLY), .events = POLLIN };
    struct iocb request = { .aio_fildes = entry.fd, .aio_lio_opcode = IOCB_CMD_PREAD,
                            .aio_buf = (uintptr_t)buffer, .aio_nbytes = sizeof buffer };
    struct iocb *requests[] = { &request };
    struct io_event event;
    if (argc < 2 || syscall(SYS_io_setup, 1, &context) || pread(entry.fd, buffer, 1, 0) != 1)
        return 2;
    syscall(SYS_poll, &entry, 1, 0);
    if (syscall(SYS_io_submit, context, 1, requests) != 1)
        return 2;
    return syscall(SYS_io_getevents, context, 1, 1, &event, 0) == 1 && event.res == 16 ? 0 : 2;
}
C
gcc -o "$tmp/check" "$tmp/check.c"
echo 0123456789abcdef > "$tmp/file"
cd "$tmp"
trace() {
    LD_LIBRARY_PATH=$tmp/root/usr/lib/x86_64-linux-gnu timeout 30 "$tmp/root/usr/bin/strace" -E LD_LIBRARY_PATH -y \
        -o "$tmp/out" "$@" "$tmp/check" "$tmp/file"
    sed "s|$tmp|/tmp|g" "$tmp/out"
}
echo "all of io_submit:" && trace -e trace=io_submit
grep -q "aio_fildes=3<$tmp/file>" "$tmp/out"
echo "-P:" && trace -P "$tmp/file"
grep -q '^pread64(' "$tmp/out" && grep -q '^poll(' "$tmp/out" && ! grep -q '^io_submit(' "$tmp/out"
trace -e trace=%desc > /dev/null
for call in pread64 poll io_submit; do
    echo "%desc: $(grep -c "^$call(" "$tmp/out" || true) $call"
done
grep -q '^poll(' "$tmp/out" && ! grep -q '^io_submit(' "$tmp/out"
