/* A program with a ring, which scripts/denied.py starts with one call refused. It makes a NOP, a READ of a file, a READ of a
 * pipe that waits, a TIMEOUT, a WRITE and a POLL_ADD, and prints `served`. Its other calls are those of any program. */
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static char *rings;
static struct io_uring_sqe *sqes;
static struct io_uring_params params;
static int ring;

static void fail(const char *what, int answer)
{
    dprintf(2, "%s: %d\n", what, answer);
    exit(1);
}

static unsigned *word(unsigned offset)
{
    return (unsigned *)(rings + offset);
}

static void submit(int opcode, int fd, void *address, unsigned length, unsigned op_flags, unsigned long offset)
{
    unsigned tail = *word(params.sq_off.tail), index = tail & (params.sq_entries - 1);
    sqes[index] = (struct io_uring_sqe){.opcode = opcode, .fd = fd, .addr = (unsigned long)address, .len = length,
                                        .off = offset, .rw_flags = op_flags};
    word(params.sq_off.array)[index] = index;
    __atomic_store_n(word(params.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
    long answer = syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0);
    if (answer != 1)
        fail("io_uring_enter", answer);
}

/* Reaps the next completion, which must have this result. */
static void take(const char *what, int wanted)
{
    unsigned head = *word(params.cq_off.head);
    while (__atomic_load_n(word(params.cq_off.tail), __ATOMIC_ACQUIRE) == head) {
        long answer = syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        if (answer < 0)
            fail("io_uring_enter waits", answer);
    }
    struct io_uring_cqe *cqes = (void *)(rings + params.cq_off.cqes);
    int answer = cqes[head & (params.cq_entries - 1)].res;
    __atomic_store_n(word(params.cq_off.head), head + 1, __ATOMIC_RELEASE);
    if (answer != wanted)
        fail(what, answer);
}

int main(int argc, char **argv)
{
    (void)argc;
    static char bytes[512];
    ring = syscall(SYS_io_uring_setup, 8, &params);
    if (ring < 0)
        fail("io_uring_setup", ring);
    unsigned bytes_rings = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    unsigned bytes_cq = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    rings = mmap(NULL, bytes_rings > bytes_cq ? bytes_rings : bytes_cq, PROT_READ | PROT_WRITE, MAP_SHARED, ring, 0);
    sqes = mmap(NULL, params.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (rings == MAP_FAILED || sqes == MAP_FAILED)
        fail("mmap", 0);
    submit(IORING_OP_NOP, -1, NULL, 0, 0, 0);
    take("NOP", 0);
    int file = open(argv[0], O_RDONLY), ends[2];
    if (file < 0 || pipe(ends) != 0)
        fail("open or pipe", 0);
    submit(IORING_OP_READ, file, bytes, sizeof bytes, 0, 0);
    take("READ of a file", sizeof bytes);
    struct __kernel_timespec time = {.tv_nsec = 1000000};
    submit(IORING_OP_READ, ends[0], bytes, 1, 0, -1);
    submit(IORING_OP_TIMEOUT, -1, &time, 1, 0, 0);
    take("TIMEOUT", -62);
    submit(IORING_OP_WRITE, ends[1], bytes, 1, 0, -1);
    take("WRITE of a pipe", 1);
    take("READ of a pipe", 1);
    submit(IORING_OP_POLL_ADD, ends[0], NULL, 0, 1, 0);
    if (write(ends[1], bytes, 1) != 1)
        fail("write", 0);
    take("POLL_ADD", 1);
    return puts("served") < 0;
}
