#!/bin/bash
# Expected: memory that the kernel has filled counts as initialised, as after read(2). Memcheck's manual says
# of system calls that it follows exactly how they change memory.
# Seen: a buffer from malloc that a completed io_uring READ has filled stays uninitialised to Memcheck. It reports
# "Conditional jump or move depends on uninitialised value(s)" for a right program, and exits with the error status. The
# completion arrives in memory that the program maps, so no system call shows it to Memcheck. Valgrind does know the
# three calls, so nothing else warns. The same program by pread(2) is clean.
# Versions: valgrind 1:3.19.0-1, liburing-dev and liburing2 2.3-3 (Debian 12). Needs gcc, and a kernel that serves
# io_uring. Seen 2026-11-29.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
(cd "$tmp" && apt-get download -q=2 -o APT::Sandbox::User=root valgrind=1:3.19.0-1 liburing2=2.3-3 liburing-dev=2.3-3 &&
    for package in ./*.deb; do dpkg-deb -x "$package" root; done)
cat > "$tmp/check.c" <<'C'
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* check FILE [ring]: reads 16 bytes and looks at one of them. */
int main(int argc, char **argv)
{
    char *buffer = malloc(16);
    int file = open(argv[1], O_RDONLY), result;
    if (argc > 2) {
        struct io_uring ring;
        struct io_uring_cqe *cqe;
        if (io_uring_queue_init(4, &ring, 0))
            return 2;
        io_uring_prep_read(io_uring_get_sqe(&ring), file, buffer, 16, 0);
        if (io_uring_submit(&ring) != 1 || io_uring_wait_cqe(&ring, &cqe))
            return 2;
        result = cqe->res;
        io_uring_queue_exit(&ring);
    } else {
        result = pread(file, buffer, 16, 0);
    }
    printf("%s: %d bytes, the fourth is ", argc > 2 ? "io_uring" : "pread", result);
    puts(buffer[3] == 'd' ? "d" : "wrong");
    free(buffer);
    return 0;
}
C
lib=$tmp/root/usr/lib/x86_64-linux-gnu
gcc -g -o "$tmp/check" -isystem "$tmp/root/usr/include" "$tmp/check.c" "$lib/liburing.a"
echo abcdefghijklmnop > "$tmp/file"
export VALGRIND_LIB=$tmp/root/usr/libexec/valgrind
memcheck() { timeout 60 "$tmp/root/usr/bin/valgrind" -q --error-exitcode=9 "$tmp/check" "$@" 2>&1; }

memcheck "$tmp/file"
status=0
report=$(memcheck "$tmp/file" ring) || status=$?
echo "$report" | sed "s/^==[0-9]*== //"
echo "with the ring: exit status $status"
[ "$status" = 9 ]
grep -q 'io_uring: 16 bytes, the fourth is d' <<< "$report"
grep -q 'Conditional jump or move depends on uninitialised value' <<< "$report"
