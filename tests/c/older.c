// A liburing.so.1 (with -DLIBRARY), and a program linked with it: its struct io_uring is smaller than that of liburing.so.2.
// Each function of the library returns a number of its own, or stores it in the ring.
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ring {
    int last, fd;
    char rest[56];
};

// Returns its number: io_uring_FUNCTION(ring, ...).
#define NUMBERED(X) \
    X(queue_init_params, 101) X(queue_mmap, 102) X(ring_dontfork, 103) X(submit, 104) X(submit_and_wait, 105) \
    X(peek_batch_cqe, 106) X(wait_cqes, 107) X(wait_cqe_timeout, 108) X(register_buffers, 109) X(unregister_buffers, 110) \
    X(register_files, 111) X(unregister_files, 112) X(register_files_update, 113) X(register_eventfd, 114) \
    X(register_eventfd_async, 115) X(unregister_eventfd, 116) X(register_probe, 117) X(register_personality, 118) \
    X(unregister_personality, 119) X(register_restrictions, 120) X(enable_rings, 121)

#ifdef LIBRARY
#define DEFINE(name, number) \
    int io_uring_##name(struct ring *first) { \
        (void)first; \
        return number; \
    }
NUMBERED(DEFINE)

int __io_uring_get_cqe(struct ring *ring) { return ring->last = 201; }
int __io_uring_sqring_wait(struct ring *ring) { return ring->last = 202; }
void *io_uring_get_sqe(struct ring *ring) { return ring->rest; }
void *io_uring_get_probe_ring(struct ring *ring) { return ring->rest + 1; }
void *io_uring_get_probe(void) { return (void *)203; }
void io_uring_queue_exit(struct ring *ring) { ring->last = 204; }

int io_uring_queue_init(unsigned entries, struct ring *ring, unsigned flags) {
    char params[120] = {0};
    memcpy(params + 8, &flags, sizeof flags);
    ring->last = 205;
    ring->fd = syscall(SYS_io_uring_setup, entries, params);
    return ring->fd < 0 ? -1 : 0;
}
#else
#define DECLARE(name, number) int io_uring_##name(struct ring *, ...);
NUMBERED(DECLARE)
int __io_uring_get_cqe(struct ring *), __io_uring_sqring_wait(struct ring *);
void *io_uring_get_sqe(struct ring *), *io_uring_get_probe_ring(struct ring *), *io_uring_get_probe(void);
void io_uring_queue_exit(struct ring *);
int io_uring_queue_init(unsigned, struct ring *, unsigned);

static int wrong;

static void check(const char *what, int is_so) {
    if (is_so) return;
    wrong++;
    printf("wrong: %s\n", what);
}

int main(void) {
    static struct {
        struct ring ring;
        char behind[512];
    } memory;
    memset(&memory, 0x5a, sizeof memory);
    struct ring *ring = &memory.ring;
    check("io_uring_queue_init", io_uring_queue_init(4, ring, 0) == 0 && ring->last == 205);
#define CALL(name, number) check("io_uring_" #name, io_uring_##name(ring, 0, 0, 0, 0) == number);
    NUMBERED(CALL)
    check("__io_uring_get_cqe", __io_uring_get_cqe(ring) == 201 && ring->last == 201);
    check("__io_uring_sqring_wait", __io_uring_sqring_wait(ring) == 202 && ring->last == 202);
    check("io_uring_get_sqe", io_uring_get_sqe(ring) == ring->rest);
    check("io_uring_get_probe_ring", io_uring_get_probe_ring(ring) == ring->rest + 1);
    check("io_uring_get_probe", io_uring_get_probe() == (void *)203);
    io_uring_queue_exit(ring);
    check("io_uring_queue_exit", ring->last == 204);
    for (size_t i = 0; i < sizeof memory.behind; i++) check("what is behind the ring", memory.behind[i] == 0x5a);

    char path[32], target[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", ring->fd);
    if (readlink(path, target, sizeof target - 1) < 0) perror(path);
    target[strcspn(target, "[")] = 0;
    printf("%d wrong, a ring of %s\n", wrong, target);
    return wrong != 0;
}
#endif
