/* Calls that a guest makes often. Exit status 1: something is wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/aio_abi.h>
#include <liburing.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        if (!(what)) {                                                                                                 \
            printf("%s:%d: %s: %s\n", __func__, __LINE__, #what, strerror(errno));                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* A generic wrapper like Go's: the number is set elsewhere, and a comparison follows, whose bytes are the upper part of the
 * jump's distance. */
long generic(long number, long a, long b, long c, long d, long e, long f);
extern char generic_site[], generic_after[];
__asm__(".text\n.p2align 4\n"
        "generic:\n"
        "mov %rdi, %rax\nmov %rsi, %rdi\nmov %rdx, %rsi\nmov %rcx, %rdx\nmov %r8, %r10\nmov %r9, %r8\n"
        "mov 8(%rsp), %r9\n.p2align 3\n"
        "generic_site:\nsyscall\n"
        "generic_after:\ncmp $0xfffffffffffff001, %rax\n"
        "ret\n");

struct seen {
    uint64_t rax, rcx, r11, unused[3], rbp, r12, r13, r14, r15, below[2];
};

/* Makes the call with known registers, flags (carry and direction set) and bytes in the red zone. */
static void look(struct seen *seen, long number, long a, long b) {
    __asm__ volatile("push %%rbx\npush %%rbp\npush %%r12\npush %%r13\npush %%r14\npush %%r15\n"
                     "mov %[seen], %%rbx\nmov $0x11, %%ebp\nmov $0x12, %%r12d\nmov $0x13, %%r13d\nmov $0x14, %%r14d\n"
                     "mov $0x15, %%r15d\nxor %%edx, %%edx\nxor %%r10d, %%r10d\nxor %%r8d, %%r8d\nxor %%r9d, %%r9d\n"
                     "movq $0x5a5a, -8(%%rsp)\nmovq $0x5b5b, -128(%%rsp)\n"
                     "std\nstc\n"
                     "jmp look_site\n"
                     ".p2align 3\nlook_site:\nsyscall\n"
                     "cmp $0xfffffffffffff001, %%rax\n" /* as in Go's wrapper */
                     "cld\n"
                     "mov %%rax, 0(%%rbx)\nmov %%rcx, 8(%%rbx)\nmov %%r11, 16(%%rbx)\n"
                     "mov %%rbp, 48(%%rbx)\nmov %%r12, 56(%%rbx)\nmov %%r13, 64(%%rbx)\nmov %%r14, 72(%%rbx)\n"
                     "mov %%r15, 80(%%rbx)\n"
                     "mov -8(%%rsp), %%rax\nmov %%rax, 88(%%rbx)\nmov -128(%%rsp), %%rax\nmov %%rax, 96(%%rbx)\n"
                     "pop %%r15\npop %%r14\npop %%r13\npop %%r12\npop %%rbp\npop %%rbx\n"
                     : "+a"(number), "+D"(a), "+S"(b), [seen] "+c"(seen)
                     :
                     : "rdx", "r8", "r9", "r10", "r11", "memory", "cc");
}
extern char look_site[];

static void check(const struct seen *seen, long answer) {
    CHECK((long)seen->rax == answer);
    CHECK(seen->rcx == (uint64_t)(look_site + 2));
    CHECK((seen->r11 & 0x401) == 0x401); /* direction and carry */
    CHECK(seen->rbp == 0x11 && seen->r12 == 0x12 && seen->r13 == 0x13 && seen->r14 == 0x14 && seen->r15 == 0x15);
    CHECK(seen->below[0] == 0x5a5a && seen->below[1] == 0x5b5b);
}
_Static_assert(__builtin_offsetof(struct seen, rbp) == 48 && __builtin_offsetof(struct seen, below) == 88, "the assembly");

static struct io_uring ring;

/* The registers after a patched instruction. */
static void registers(void) {
    struct seen seen;
    for (int i = 0; i < 1000; i++) {
        look(&seen, SYS_io_uring_enter, ring.ring_fd, 0);
        check(&seen, 0);
        look(&seen, SYS_getpid, 0, 0);
        check(&seen, getpid());
        look(&seen, SYS_io_uring_enter, -1, 0);
        check(&seen, -EBADF);
        look(&seen, 100000, 0, 0);
        check(&seen, -ENOSYS);
    }
    printf("registers\n");
}

static int handled, pipes[2], inside;
static void tell(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    greg_t *gregs = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (gregs[REG_RIP] == (greg_t)generic_after) {
        inside += gregs[REG_RAX] == -EINTR && gregs[REG_RCX] == (greg_t)generic_after;
    } else {
        inside += gregs[REG_RIP] == (greg_t)generic_site && gregs[REG_RAX] == SYS_read;
    }
    handled++;
    if (handled == 2) CHECK(write(pipes[1], "x", 1) == 1);
}

static void *wake(void *thread) {
    for (int i = 1; i <= 2; i++) {
        usleep(50000);
        CHECK(pthread_kill(*(pthread_t *)thread, SIGUSR1) == 0);
        while (__atomic_load_n(&handled, __ATOMIC_ACQUIRE) < i) usleep(1000);
    }
    return NULL;
}

/* Other calls through the patched wrapper: a read that is interrupted, and one that is restarted. */
static void restarts(void) {
    char byte;
    pthread_t thread, self = pthread_self();
    struct sigaction action = {.sa_sigaction = tell, .sa_flags = SA_SIGINFO};
    for (int i = 0; i < 200; i++) CHECK(generic(SYS_io_uring_enter, ring.ring_fd, 0, 0, 0, 0, 0) == 0);
    CHECK(pipe(pipes) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, wake, &self) == 0);
    CHECK(generic(SYS_read, pipes[0], (long)&byte, 1, 0, 0, 0) == -EINTR && handled == 1);
    action.sa_flags |= SA_RESTART;
    CHECK(generic(SYS_rt_sigaction, SIGUSR1, 0, 0, 8, 0, 0) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(generic(SYS_read, pipes[0], (long)&byte, 1, 0, 0, 0) == 1 && byte == 'x');
    CHECK(pthread_join(thread, NULL) == 0 && handled == 2);
    printf("seen at the instruction: %d of 2\n", inside);
    handled = 0;
}

static volatile int stop, counted;
static void count(int signal) {
    (void)signal;
    counted++;
    if (generic(SYS_io_uring_enter, ring.ring_fd, 0, 0, 0, 0, 0) != 0) stop = 2;
}
static void *interrupt(void *thread) {
    /* One signal at a time, with pauses: otherwise the thread would do nothing else. */
    for (int i = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); i++) {
        int before = counted;
        pthread_kill(*(pthread_t *)thread, SIGUSR2);
        while (counted == before && !stop) sched_yield();
        for (volatile int pause = 0; pause < i * 7 % 400; pause++) continue;
    }
    return NULL;
}

/* Signals at any instruction of the patched path. Their handlers use that path as well, with and without alternate stack. */
static void storm(void) {
    static char memory[65536];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    pthread_t thread, self = pthread_self();
    CHECK(sigaltstack(&stack, NULL) == 0);
    for (int round = 0; round < 2; round++) {
        struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART | (round ? SA_ONSTACK : 0)};
        CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
        stop = counted = 0;
        CHECK(pthread_create(&thread, NULL, interrupt, &self) == 0);
        while (counted < 300 && stop == 0) {
            CHECK(generic(SYS_io_uring_enter, ring.ring_fd, 0, 0, 0, 0, 0) == 0);
            CHECK(generic(SYS_getpid, 0, 0, 0, 0, 0, 0) == getpid());
        }
        CHECK(stop == 0);
        stop = 1;
        CHECK(pthread_join(thread, NULL) == 0);
    }
    printf("a storm of signals\n");
}

static void *use(void *nothing) {
    for (int i = 0; i < 300; i++) CHECK(generic(SYS_io_uring_enter, ring.ring_fd, 0, 0, 0, 0, 0) == 0);
    return nothing;
}

/* Threads that start and end, each with the FS base of an earlier one, and a vforked child with its parent's. */
static void threads(void) {
    for (int i = 0; i < 60; i++) {
        pthread_t two[2];
        for (int j = 0; j < 2; j++) CHECK(pthread_create(&two[j], NULL, use, NULL) == 0);
        for (int j = 0; j < 2; j++) CHECK(pthread_join(two[j], NULL) == 0);
        if (i % 10 == 0) {
            pid_t child = vfork();
            if (child == 0) _exit(generic(SYS_io_uring_enter, -1, 0, 0, 0, 0, 0) == -EBADF ? 5 : 6);
            int status;
            CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
            use(NULL);
        }
        if (i % 50 == 0) {
            pid_t child = fork();
            if (child == 0) {
                struct io_uring own;
                CHECK(io_uring_queue_init(4, &own, 0) == 0);
                for (int j = 0; j < 300; j++) CHECK(generic(SYS_io_uring_enter, own.ring_fd, 0, 0, 0, 0, 0) == 0);
                _exit(7);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
        }
    }
    printf("threads and processes\n");
}

/* A ring is not passed over a socket. */
static void passing(void) {
    int ends[2];
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec vector = {.iov_base = "x", .iov_len = 1};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control,
                                          .msg_controllen = CMSG_LEN(sizeof(int))}};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    memcpy(CMSG_DATA(&control.header), &ring.ring_fd, sizeof(int));
    CHECK(sendmsg(ends[0], &message.msg_hdr, 0) == -1 && errno == EINVAL);
    CHECK(sendmmsg(ends[0], &message, 1, 0) == -1 && errno == EINVAL);
    memcpy(CMSG_DATA(&control.header), &ends[1], sizeof(int));
    CHECK(sendmsg(ends[0], &message.msg_hdr, 0) == 1);
    printf("rings stay\n");
}

static void nops(void) {
    for (int i = 0; i < 10000; i++) {
        struct io_uring_cqe *cqe;
        io_uring_prep_nop(io_uring_get_sqe(&ring));
        CHECK(io_uring_submit_and_wait(&ring, 1) == 1 && io_uring_peek_cqe(&ring, &cqe) == 0 && cqe->res == 0);
        io_uring_cqe_seen(&ring, cqe);
        CHECK(syscall(SYS_io_uring_enter, ring.ring_fd, 0, 0, 0, NULL, 0) == 0);
    }
    printf("20000 calls\n");
}

/* Calls of Linux AIO, each with an instruction of its own, as libaio has them. */
static long submit(aio_context_t context, long count, struct iocb **requests) {
    long answer = SYS_io_submit;
    __asm__ volatile("syscall" : "+a"(answer) : "D"(context), "S"(count), "d"(requests) : "rcx", "r11", "memory");
    return answer;
}

static long get_events(aio_context_t context, long least, long most, struct io_event *events) {
    long answer = SYS_io_getevents;
    register struct io_event *to __asm__("r10") = events;
    register void *timeout __asm__("r8") = NULL;
    __asm__ volatile("syscall"
                     : "+a"(answer)
                     : "D"(context), "S"(least), "d"(most), "r"(to), "r"(timeout)
                     : "rcx", "r11", "memory");
    return answer;
}

static void aio(void) {
    aio_context_t context = 0;
    int file = memfd_create("file", 0);
    CHECK(file >= 0 && syscall(SYS_io_setup, 8, &context) == 0);
    for (int i = 0; i < 1000; i++) {
        char written = (char)i, read = (char)~i;
        struct iocb request = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = (uint32_t)file, .aio_nbytes = 1};
        request.aio_buf = (uintptr_t)&written;
        request.aio_offset = i;
        request.aio_data = (uint64_t)i;
        struct iocb *requests[] = {&request};
        struct io_event event;
        CHECK(submit(context, 1, requests) == 1 && get_events(context, 1, 1, &event) == 1);
        CHECK(event.data == (uint64_t)i && event.res == 1);
        CHECK(pread(file, &read, 1, i) == 1 && read == written);
    }
    CHECK(submit(context, -1, NULL) == -EINVAL && get_events(context, 2, 1, NULL) == -EINVAL);
    CHECK(submit(0, 1, NULL) == -EINVAL && get_events(0, 0, 1, NULL) == -EINVAL);
    printf("2000 calls\n");
}

int main(int count_, char **words) {
    static const struct {
        const char *name;
        void (*function)(void);
    } all[] = {{"registers", registers}, {"restarts", restarts}, {"storm", storm},
               {"threads", threads},     {"passing", passing},   {"nops", nops},
               {"aio", aio}};
    setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK(io_uring_queue_init(8, &ring, 0) == 0);
    for (size_t i = 0; count_ > 1 && i < sizeof all / sizeof *all; i++) {
        if (strcmp(words[1], all[i].name) == 0) {
            all[i].function();
            return 0;
        }
    }
    return 2;
}
