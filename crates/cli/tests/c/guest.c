/* Things that a guest may do, one for each name. The output is the same on the kernel and as a guest. Exit status 1:
   something is wrong. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <liburing.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *self;

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        if (!(what)) {                                                                                                 \
            printf("%s:%d: %s: %s\n", __func__, __LINE__, #what, strerror(errno));                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void ring_init(struct io_uring *ring) { CHECK(io_uring_queue_init(8, ring, 0) == 0); }

static int complete(struct io_uring *ring) {
    struct io_uring_cqe *cqe;
    CHECK(io_uring_submit_and_wait(ring, 1) >= 0);
    CHECK(io_uring_wait_cqe(ring, &cqe) == 0);
    int result = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    return result;
}

static void nop_once(struct io_uring *ring) {
    io_uring_prep_nop(io_uring_get_sqe(ring));
    CHECK(complete(ring) == 0);
}

static void nop(void) {
    struct io_uring ring;
    ring_init(&ring);
    for (int i = 0; i < 1000; i++) nop_once(&ring);
    io_uring_queue_exit(&ring);
    printf("1000 NOPs\n");
}

static void file(void) {
    struct io_uring ring;
    char text[] = "written through a ring", back[64] = "";
    char name[] = "/tmp/anyring-guest-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0);
    ring_init(&ring);
    io_uring_prep_write(io_uring_get_sqe(&ring), fd, text, sizeof text, 0);
    printf("write %d\n", complete(&ring));
    io_uring_prep_read(io_uring_get_sqe(&ring), fd, back, sizeof back, 0);
    printf("read %d: %s\n", complete(&ring), back);
    io_uring_prep_read(io_uring_get_sqe(&ring), fd, (void *)8, 16, 0);
    printf("bad address: %s\n", strerror(-complete(&ring)));
    io_uring_queue_exit(&ring);
}

static void *send_later(void *socket) {
    CHECK(send(*(int *)socket, "hello", 5, 0) == 5);
    return NULL;
}

static void socket_(void) {
    struct io_uring ring;
    int ends[2];
    char text[16] = "";
    pthread_t sender;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    ring_init(&ring);
    io_uring_prep_recv(io_uring_get_sqe(&ring), ends[0], text, sizeof text, 0);
    CHECK(io_uring_submit(&ring) == 1);
    CHECK(pthread_create(&sender, NULL, send_later, &ends[1]) == 0);
    struct io_uring_cqe *cqe;
    CHECK(io_uring_wait_cqe(&ring, &cqe) == 0);
    printf("recv %d: %s\n", cqe->res, text);
    io_uring_cqe_seen(&ring, cqe);
    CHECK(pthread_join(sender, NULL) == 0);
    io_uring_queue_exit(&ring);
}

/* Requests that need a worker, which is a thread of the engine. */
static void worker(void) {
    struct io_uring ring;
    int ends[2];
    char text[16] = "";
    CHECK(pipe(ends) == 0);
    ring_init(&ring);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_openat(sqe, AT_FDCWD, "/dev/null", O_RDONLY, 0);
    sqe->flags |= IOSQE_ASYNC;
    int fd = complete(&ring);
    CHECK(fd >= 0 && close(fd) == 0);
    io_uring_prep_splice(io_uring_get_sqe(&ring), ends[0], -1, ends[1], -1, 1, 0);
    printf("a pipe into itself: %s\n", strerror(-complete(&ring)));
    CHECK(write(ends[1], "x", 1) == 1);
    sqe = io_uring_get_sqe(&ring);
    io_uring_prep_read(sqe, ends[0], text, sizeof text, 0);
    sqe->flags |= IOSQE_ASYNC;
    printf("read %d %s\n", complete(&ring), text);
    io_uring_queue_exit(&ring);
}

static void poll_(void) {
    struct io_uring ring;
    struct pollfd polled;
    ring_init(&ring);
    polled = (struct pollfd){.fd = ring.ring_fd, .events = POLLIN};
    CHECK(poll(&polled, 1, 0) == 0);
    io_uring_prep_nop(io_uring_get_sqe(&ring));
    CHECK(io_uring_submit(&ring) == 1);
    CHECK(poll(&polled, 1, 10000) == 1);
    printf("the ring is readable\n");
    int copy = dup(ring.ring_fd);
    CHECK(copy >= 0 && close(copy) == 0);
    io_uring_queue_exit(&ring);
}

enum { THREADS = 250 };
static __thread int mine = 7;

static void *use_ring(void *number) {
    struct io_uring ring;
    CHECK(mine == 7);
    mine = (int)(long)number;
    ring_init(&ring);
    for (int i = 0; i < 10; i++) {
        char *block = malloc(1000 + i);
        CHECK(block != NULL);
        memset(block, i, 1000 + i);
        nop_once(&ring);
        free(block);
    }
    io_uring_queue_exit(&ring);
    CHECK(mine == (int)(long)number);
    return number;
}

static void threads(void) {
    static pthread_t all[THREADS];
    for (int round = 0; round < 2; round++) {
        for (long i = 0; i < THREADS; i++) CHECK(pthread_create(&all[i], NULL, use_ring, (void *)i) == 0);
        for (long i = 0; i < THREADS; i++) {
            void *result;
            CHECK(pthread_join(all[i], &result) == 0 && result == (void *)i);
        }
    }
    printf("%d threads\n", 2 * THREADS);
}

static sem_t posted;
static void *detached(void *nothing) {
    CHECK(sem_post(&posted) == 0);
    return nothing;
}

static void many_detached(void) {
    pthread_attr_t attributes;
    CHECK(sem_init(&posted, 0, 0) == 0 && pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) == 0);
    for (int i = 0; i < 1000; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, &attributes, detached, NULL) == 0);
        CHECK(sem_wait(&posted) == 0);
    }
    printf("1000 detached threads\n");
}

static volatile sig_atomic_t handled, information;
static sigjmp_buf jump;
static void count(int signal) { handled += signal == SIGUSR1; }
static void inform(int signal, siginfo_t *info, void *context) {
    information = signal == SIGUSR2 && info->si_value.sival_int == 5 && context != NULL;
    getpid();
}
static void jump_out(int signal) { siglongjmp(jump, signal); }
static void to_default(int signal) { handled = signal; }

static void *interrupt_(void *thread) {
    for (int i = 0; i < 20000; i++) {
        CHECK(pthread_kill(*(pthread_t *)thread, SIGUSR1) == 0);
        sched_yield();
    }
    return NULL;
}

static void signals(void) {
    struct io_uring ring;
    struct sigaction action = {.sa_handler = count}, old;
    sigset_t set, before;
    ring_init(&ring);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGUSR1, NULL, &old) == 0);
    CHECK(old.sa_handler == count);
    raise(SIGUSR1);
    CHECK(handled == 1);
    action = (struct sigaction){.sa_sigaction = inform, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    CHECK(sigqueue(getpid(), SIGUSR2, (union sigval){.sival_int = 5}) == 0 && information);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGSYS);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK(sigprocmask(SIG_BLOCK, NULL, &before) == 0 && sigismember(&before, SIGSYS) && sigismember(&before, SIGUSR1));
    raise(SIGUSR1);
    nop_once(&ring);
    CHECK(handled == 1);
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0 && handled == 2);
    /* The program uses a bad pointer, and jumps out of its signal handler. */
    action = (struct sigaction){.sa_handler = jump_out, .sa_flags = SA_NODEFER};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    if (sigsetjmp(jump, 1) == 0) {
        *(volatile int *)8 = 1;
        CHECK(0);
    }
    nop_once(&ring);
    action = (struct sigaction){.sa_handler = to_default, .sa_flags = SA_RESETHAND};
    CHECK(sigaction(SIGHUP, &action, NULL) == 0);
    raise(SIGHUP);
    CHECK(handled == SIGHUP && sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
    /* While the engine works. */
    handled = 0;
    pthread_t thread, self = pthread_self();
    CHECK(pthread_create(&thread, NULL, interrupt_, &self) == 0);
    for (int i = 0; i < 20000; i++) nop_once(&ring);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(handled > 0);
    io_uring_queue_exit(&ring);
    printf("signals\n");
}

static volatile sig_atomic_t queued_handled, queued_sum;
static void count_queued(int signal, siginfo_t *info, void *context) {
    CHECK(signal == SIGRTMIN && context != NULL);
    queued_sum ^= info->si_value.sival_int;
    queued_handled++;
}

static pid_t queued_to;
static void *queue_many(void *number) {
    for (int i = 0; i < (int)(long)number; i++) {
        siginfo_t info = {.si_signo = SIGRTMIN, .si_code = SI_QUEUE, .si_value.sival_int = i};
        while (syscall(SYS_rt_tgsigqueueinfo, getpid(), queued_to, SIGRTMIN, &info) != 0) {
            int error = errno; /* the queue of signals is full */
            CHECK(error == EAGAIN);
            sched_yield();
        }
    }
    return NULL;
}

/* No queued signal is lost, wherever the thread is. */
static int many_queued = 50000;
static void queued(void) {
    struct io_uring ring;
    struct sigaction action = {.sa_sigaction = count_queued, .sa_flags = SA_SIGINFO | SA_RESTART};
    pthread_t thread;
    queued_to = gettid();
    ring_init(&ring);
    CHECK(sigaction(SIGRTMIN, &action, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, queue_many, (void *)(long)many_queued) == 0);
    while (queued_handled < many_queued) nop_once(&ring);
    CHECK(pthread_join(thread, NULL) == 0);
    io_uring_queue_exit(&ring);
    printf("%d queued signals, %d\n", queued_handled, queued_sum);
}

/* A handler on the alternate stack makes trapped calls, and is interrupted by another one. */
static struct io_uring in_handlers;
static void outer(int signal) {
    (void)signal;
    volatile char guard[512];
    memset((char *)guard, 0x5a, sizeof guard);
    for (int i = 0; i < 100; i++) {
        nop_once(&in_handlers);
        raise(SIGUSR1);
    }
    for (size_t i = 0; i < sizeof guard; i++) CHECK(guard[i] == 0x5a);
    handled = 1000;
}
static void inner(int signal) {
    volatile char noise[2048];
    memset((char *)noise, signal, sizeof noise);
    sigset_t set;
    sigemptyset(&set);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
}

static void alternate(void) {
    stack_t stack = {.ss_size = 65536}, now;
    struct sigaction action = {.sa_handler = outer, .sa_flags = SA_ONSTACK};
    stack.ss_sp = malloc(stack.ss_size);
    CHECK(sigaltstack(&stack, NULL) == 0);
    ring_init(&in_handlers);
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    action.sa_handler = inner;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    raise(SIGUSR2);
    CHECK(handled == 1000);
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == stack.ss_sp && now.ss_flags == 0);
    io_uring_queue_exit(&in_handlers);
    printf("the alternate stack\n");
}

enum { HANDLERS = 12 };
static volatile sig_atomic_t handlers, waits;
static void wait_for_next(void) {
    sigset_t none;
    sigemptyset(&none);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    CHECK(sigsuspend(&none) == -1 && (errno == EINTR || errno == ENOMEM));
    waits += errno == EINTR;
}
static void interrupt_wait(int signal) {
    (void)signal;
    if (++handlers < HANDLERS) wait_for_next();
}
static void grow_stack(void) {
    volatile char room[256 << 10];
    for (size_t i = 0; i < sizeof room; i += 1024) room[i] = 0;
}
static struct rlimit addresses_in_use(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%lu", &pages) == 1 && fclose(file) == 0);
    return (struct rlimit){pages * getpagesize(), RLIM_INFINITY};
}

/* Handlers wait, and the next one interrupts each wait. Without free addresses the first two waits are made; the others
   may fail. */
static void nested(void) {
    struct sigaction action = {.sa_handler = interrupt_wait};
    struct rlimit none, all;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    grow_stack();
    CHECK(getrlimit(RLIMIT_AS, &all) == 0);
    none = addresses_in_use();
    CHECK(setrlimit(RLIMIT_AS, &none) == 0);
    wait_for_next();
    CHECK(setrlimit(RLIMIT_AS, &all) == 0);
    CHECK(waits >= 2);
    handlers = waits = 0;
    wait_for_next();
    printf("%d waits, %d handlers\n", waits, handlers);
}

/* Handlers repeatedly jump out of waits: their stacks must be freed. */
static void jumps(void) {
    struct io_uring ring;
    struct sigaction action = {.sa_handler = jump_out};
    volatile int left = 0;
    ring_init(&ring);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    for (int i = 0; i < 50; i++) {
        if (sigsetjmp(jump, 1) == 0) {
            struct io_uring_cqe *cqe;
            ualarm(2000, 0);
            io_uring_wait_cqe(&ring, &cqe);
        } else {
            left++;
        }
    }
    nop_once(&ring);
    io_uring_queue_exit(&ring);
    printf("left %d times\n", left);
}

static int status_of(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void fork_(void) {
    struct io_uring ring;
    ring_init(&ring);
    nop_once(&ring);
    fflush(stdout);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct io_uring own;
            ring_init(&own);
            nop_once(&own);
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, use_ring, (void *)1L) == 0 && pthread_join(thread, NULL) == 0);
            _exit(i);
        }
        CHECK(status_of(child) == i);
    }
    nop_once(&ring);
    pid_t child = fork();
    if (child == 0) raise(SIGTERM);
    printf("killed: %d\n", status_of(child));
    io_uring_queue_exit(&ring);
}

static int become_another(void *nothing) {
    execl(self, self, "exit", "23", NULL);
    return 99;
}

/* In a forked child, a process that shares its memory executes a program before the child makes any other call that
   anyring serves. The child's mask is kept afterwards, too. */
static void borrowers(void) {
    const int ways[] = {CLONE_VM | SIGCHLD, CLONE_VM | CLONE_VFORK | SIGCHLD};
    char *stack = malloc(1 << 18);
    for (int i = 0; i < 2; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            pid_t borrower = clone(become_another, stack + (1 << 18), ways[i], NULL);
            CHECK(borrower > 0 && status_of(borrower) == 23);
            sigset_t all, before;
            sigfillset(&all);
            CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
            CHECK(sigprocmask(SIG_SETMASK, NULL, &before) == 0 && sigismember(&before, SIGSYS));
            struct io_uring ring;
            ring_init(&ring);
            nop_once(&ring);
            _exit(7);
        }
        printf("a child with a borrower: %d\n", status_of(child));
    }
    free(stack);
}

static void *fork_often(void *nothing) {
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct io_uring ring;
            ring_init(&ring);
            nop_once(&ring);
            _exit(3);
        }
        CHECK(status_of(child) == 3);
    }
    return nothing;
}

/* Forks while other threads make rings and use the engine's threads. */
static void fork_among_threads(void) {
    pthread_t forking[2], working[4];
    fflush(stdout);
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&forking[i], NULL, fork_often, NULL) == 0);
    for (int round = 0; round < 10; round++) {
        for (long i = 0; i < 4; i++) CHECK(pthread_create(&working[i], NULL, use_ring, (void *)i) == 0);
        for (int i = 0; i < 4; i++) CHECK(pthread_join(working[i], NULL) == 0);
    }
    for (int i = 0; i < 2; i++) CHECK(pthread_join(forking[i], NULL) == 0);
    printf("forks among threads\n");
}

static int spawn(const char *program, char **arguments) {
    pid_t child;
    fflush(stdout);
    int error = posix_spawnp(&child, program, NULL, NULL, arguments, environ);
    return error ? -error : status_of(child);
}

static void exec_(void) {
    char *again[] = {"again", "exit", "23", NULL}, *shell[] = {"sh", "-c", "echo from a shell; exit 5", NULL};
    char *nothing[] = {"nothing", NULL};
    pid_t child = vfork();
    if (child == 0) {
        execv(self, again);
        _exit(99);
    }
    printf("vfork and exec: %d\n", status_of(child));
    printf("spawn of /proc/self/exe: %d\n", spawn("/proc/self/exe", again));
    printf("spawn of a shell: %d\n", spawn("sh", shell));
    printf("spawn of nothing: %s\n", strerror(-spawn("/nonexistent", nothing)));
    printf("spawn of a directory: %s\n", strerror(-spawn("/tmp/", nothing)));
    printf("spawn of a file: %s\n", strerror(-spawn("/etc/passwd", nothing)));
    posix_spawnattr_t attributes;
    sigset_t all;
    sigfillset(&all);
    CHECK(posix_spawnattr_init(&attributes) == 0 && posix_spawnattr_setsigmask(&attributes, &all) == 0);
    CHECK(posix_spawnattr_setsigdefault(&attributes, &all) == 0);
    CHECK(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF) == 0);
    CHECK(posix_spawn(&child, self, NULL, &attributes, again, environ) == 0);
    printf("with all signals blocked: %d\n", status_of(child));
    child = fork();
    if (child == 0) {
        char *none[] = {NULL};
        execve(self, again, none);
        _exit(98);
    }
    printf("with no environment: %d\n", status_of(child));
    int fd = open(self, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    child = fork();
    if (child == 0) {
        fexecve(fd, again, environ);
        _exit(97);
    }
    printf("by a descriptor: %d\n", status_of(child));
    execl(self, "last", "words", "one", "two words", "", NULL);
}

/* Signals that anyring keeps unblocked, and one that it does not. */
static const int believed[] = {SIGSYS, SIGSEGV, SIGBUS, SIGUSR1};
enum { BELIEVED = sizeof believed / sizeof *believed };
static volatile sig_atomic_t buses;
static void count_bus(int signal) { buses += signal == SIGBUS; }

/* Prints which of the signals are blocked, and how many SIGBUS are pending. */
static void print_mask(const char *how) {
    sigset_t set;
    struct sigaction action = {.sa_handler = count_bus};
    CHECK(sigprocmask(SIG_BLOCK, NULL, &set) == 0);
    printf("%s:", how);
    for (int i = 0; i < BELIEVED; i++) printf(" %d", sigismember(&set, believed[i]));
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    sigemptyset(&set);
    sigaddset(&set, SIGBUS);
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
    printf(", %d pending\n", buses);
}

static void become(const char *how) {
    execl(self, self, "mask", how, NULL);
    _exit(99);
}

static int become_borrower(void *how) {
    become(how);
    return 99;
}

static void *become_in_thread(void *how) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) become(how);
    CHECK(status_of(child) == 0);
    return NULL;
}

static void change_and_become(int how, const sigset_t *set, const char *name) {
    pid_t child = vfork();
    if (child == 0) {
        sigprocmask(how, set, NULL);
        become(name);
    }
    CHECK(status_of(child) == 0);
}

static void spawn_masked(posix_spawnattr_t *attributes, const char *how) {
    char *words[] = {"masks", "mask", (char *)how, NULL};
    pid_t child;
    CHECK(posix_spawn(&child, self, NULL, attributes, words, environ) == 0);
    CHECK(status_of(child) == 0);
}

/* An address that is neither null nor mapped. */
static char **volatile nowhere = (char **)8;

/* A handler that interrupts an execve(2) makes calls that are trapped. */
static void fail_to_become(void) {
    struct sigaction action = {.sa_handler = inner};
    char *words[] = {"again", NULL};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    ualarm(200, 200);
    for (int i = 0; i < 1000; i++) CHECK(execve(self, words, nowhere) == -1);
    ualarm(0, 0);
}

/* An executed program inherits the mask that its thread believes to have. */
static void masks(void) {
    sigset_t set, one, two;
    char *stack = malloc(1 << 18);
    pthread_t thread;
    posix_spawnattr_t attributes;
    sigemptyset(&set);
    for (int i = 0; i < BELIEVED; i++) sigaddset(&set, believed[i]);
    sigemptyset(&one);
    sigaddset(&one, SIGSEGV);
    sigemptyset(&two);
    sigaddset(&two, SIGSYS);
    sigaddset(&two, SIGUSR2);
    spawn_masked(NULL, "none");
    change_and_become(SIG_BLOCK, &two, "vfork that blocks");
    CHECK(sigprocmask(SIG_SETMASK, &set, NULL) == 0);
    fail_to_become();
    become_in_thread("fork");
    CHECK(pthread_create(&thread, NULL, become_in_thread, "fork of a thread") == 0 && pthread_join(thread, NULL) == 0);
    change_and_become(SIG_BLOCK, NULL, "vfork");
    change_and_become(SIG_UNBLOCK, &one, "vfork that unblocks");
    change_and_become(SIG_SETMASK, &two, "vfork that sets");
    pid_t child = clone(become_borrower, stack + (1 << 18), CLONE_VM | SIGCHLD, "clone");
    CHECK(child > 0 && status_of(child) == 0);
    spawn_masked(NULL, "spawn");
    CHECK(posix_spawnattr_init(&attributes) == 0);
    spawn_masked(&attributes, "spawn with attributes");
    CHECK(posix_spawnattr_setsigmask(&attributes, &one) == 0);
    CHECK(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK) == 0);
    spawn_masked(&attributes, "spawn with a mask");
    free(stack);
    raise(SIGBUS);
    CHECK(execl("/nonexistent", "nothing", NULL) == -1);
    become("exec");
}

static void chain(int left) {
    char number[16];
    struct io_uring ring;
    ring_init(&ring);
    nop_once(&ring);
    if (left == 0) {
        char line[256];
        FILE *status = fopen("/proc/self/status", "r");
        CHECK(status != NULL);
        while (fgets(line, sizeof line, status)) {
            if (strncmp(line, "Seccomp_filters:", 16) == 0) printf("filters: %s", line + 16);
        }
        printf("the end of the chain\n");
        return;
    }
    snprintf(number, sizeof number, "%d", left - 1);
    execl("/proc/self/exe", "chain", "chain", number, NULL);
    CHECK(0);
}

static void show(const char *name) {
    char text[65536];
    int fd = open(name, O_RDONLY);
    ssize_t bytes = read(fd, text, sizeof text);
    CHECK(fd >= 0 && bytes >= 0 && close(fd) == 0);
    for (ssize_t i = 0; i < bytes; i++) {
        if (text[i] == 0) text[i] = '|';
    }
    printf("%s: %.*s\n", name, (int)bytes, text);
}

static void identity(void) {
    char path[4096];
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof path);
    printf("exe %.*s\n", (int)bytes, path);
    show("/proc/self/cmdline");
    show("/proc/self/environ");
    show("/proc/self/comm");
    for (char **variable = environ; *variable; variable++) printf("%s\n", *variable);
    int lowest = dup(0);
    printf("the lowest free descriptor is %d\n", lowest);
    long before = syscall(SYS_brk, 0);
    CHECK(before != 0 && syscall(SYS_brk, before + (1 << 20)) == before + (1 << 20));
    memset((void *)before, 1, 1 << 20);
    fprintf(stderr, "on standard error\n");
}

/* The rights of a thread: lines of proc_pid_status(5). False for a kernel thread (iou-wrk, iou-sqp). */
static int rights_of(const char *thread, char *rights, size_t size) {
    char path[64], line[4096];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *status = fopen(path, "re");
    int is_programs = 1;
    rights[0] = 0;
    while (status && fgets(line, sizeof line, status)) {
        if (strncmp(line, "Name:\tiou-", 10) == 0) is_programs = 0;
        for (const char *const *wanted = (const char *const[]){"Uid:", "Gid:", "Groups:", "CapEff:", "CapPrm:", NULL}; *wanted; wanted++)
            if (strncmp(line, *wanted, strlen(*wanted)) == 0) strncat(rights, line, size - strlen(rights) - 1);
    }
    if (status) fclose(status);
    return is_programs && rights[0];
}

/* Checks that all threads of the process have the rights of the calling one. */
static void all_have_my_rights(const char *when) {
    char mine[8192], its[8192], id[32];
    snprintf(id, sizeof id, "%d", (int)syscall(SYS_gettid));
    CHECK(rights_of(id, mine, sizeof mine));
    DIR *threads = opendir("/proc/self/task");
    CHECK(threads);
    for (struct dirent *entry; (entry = readdir(threads));) {
        if (entry->d_name[0] == '.' || !rights_of(entry->d_name, its, sizeof its)) continue;
        if (strcmp(its, mine) == 0) continue;
        char path[300];
        snprintf(path, sizeof path, "/proc/self/task/%s", entry->d_name);
        /* It may be ending. Or it was made just now: a thread of the kernel has its maker's name until it runs. */
        int differs = 1;
        for (int i = 0; differs && i < 5000; i++) {
            usleep(1000);
            differs = rights_of(entry->d_name, its, sizeof its) && strcmp(its, mine) != 0;
        }
        if (!differs || access(path, F_OK)) continue;
        char name[64] = "";
        strcat(path, "/comm");
        FILE *comm = fopen(path, "re");
        CHECK(comm && fgets(name, sizeof name, comm));
        printf("%s: %s has\n%sinstead of\n%s", when, name, its, mine);
        exit(1);
    }
    closedir(threads);
}

static void *stay(void *nothing) {
    pause();
    return nothing;
}

/* Gives up root's rights in a process with `others` more threads, a sleeping worker, a polling thread and a wait. */
static void give_up(int others) {
    struct io_uring ring, polled;
    struct io_uring_params params = {.flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 20};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    char name[] = "/tmp/anyring-guest-XXXXXX", byte[8];
    int file = mkstemp(name), sockets[2], ends[2], waits[2];
    pthread_t thread;
    gid_t groups[] = {1001, 1002, 1003};
    CHECK(file >= 0 && fchmod(file, 0600) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0 && pipe(ends) == 0 && pipe(waits) == 0);
    for (int i = 0; i < others; i++) CHECK(pthread_create(&thread, NULL, stay, NULL) == 0);
    ring_init(&ring);
    CHECK(io_uring_queue_init_params(8, &polled, &params) == 0);
    nop_once(&polled);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_splice(sqe, sockets[0], -1, ends[1], -1, sizeof byte, 0);
    io_uring_sqe_set_data64(sqe, 1);
    sqe = io_uring_get_sqe(&ring);
    io_uring_prep_read(sqe, waits[0], byte, sizeof byte, 0);
    io_uring_sqe_set_data64(sqe, 2);
    CHECK(io_uring_submit(&ring) == 2);
    usleep(20000); /* long enough for the engine's or the kernel's threads */
    CHECK(syscall(SYS_capget, &header, data) == 0);
    data[CAP_SYS_TIME / 32].effective &= ~(1u << CAP_SYS_TIME % 32);
    data[CAP_SYS_TIME / 32].permitted &= ~(1u << CAP_SYS_TIME % 32);
    if (others == 0) { /* libc has no such call for all threads */
        CHECK(syscall(SYS_capset, &header, data) == 0);
        all_have_my_rights("capset");
    }
    CHECK(setgroups(3, groups) == 0);
    all_have_my_rights("setgroups");
    CHECK(setresgid(1001, 1001, 1001) == 0);
    all_have_my_rights("setresgid");
    CHECK(setresuid(1000, 1000, 1000) == 0);
    all_have_my_rights("setresuid");
    CHECK(setresuid(0, 0, 0) == -1 && errno == EPERM);
    CHECK(write(waits[1], "together", 8) == 8);
    struct io_uring_cqe *cqe;
    CHECK(io_uring_wait_cqe(&ring, &cqe) == 0);
    printf("what waited: %d, %d\n", (int)cqe->user_data, cqe->res);
    io_uring_cqe_seen(&ring, cqe);
    CHECK(write(sockets[1], "together", 8) == 8);
    CHECK(io_uring_wait_cqe(&ring, &cqe) == 0);
    printf("what slept: %d, %d\n", (int)cqe->user_data, cqe->res);
    io_uring_cqe_seen(&ring, cqe);
    io_uring_prep_openat(io_uring_get_sqe(&ring), AT_FDCWD, name, O_RDONLY, 0);
    printf("a file of root's: %s\n", strerror(-complete(&ring)));
    nop_once(&polled);
    all_have_my_rights("the end");
}

static void give_up_alone(void) { give_up(0); }
static void give_up_together(void) { give_up(5); }

static void descriptors(void) {
    struct io_uring ring;
    ring_init(&ring);
    nop_once(&ring);
    CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0);
    printf("enter: %d\n", (int)syscall(SYS_io_uring_enter, ring.ring_fd, 0, 0, 0, NULL, 0) == -1 && errno == EBADF);
    struct io_uring other;
    ring_init(&other);
    nop_once(&other);
    printf("and another ring\n");
}

/* The guest cannot change descriptors that are not its own, and programs that it executes inherit none. A ring is no socket. */
static void names(void) {
    struct io_uring ring;
    int ready[2], one = 1, status;
    char byte;
    CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0);
    CHECK(pipe2(ready, O_CLOEXEC) == 0);
    ring_init(&ring);
    io_uring_prep_read(io_uring_get_sqe(&ring), ready[0], &byte, 1, 0);
    CHECK(io_uring_submit(&ring) == 1);
    int fd = ring.ring_fd;
    CHECK(shutdown(fd, SHUT_RDWR) == -1 && errno == ENOTSOCK);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &one, sizeof one) == -1 && errno == ENOTSOCK);
    CHECK(ioctl(fd, FIONREAD, &one) == -1 && errno == ENOTTY);
    CHECK(fchmod(fd, 0666) == -1 && errno == EOPNOTSUPP);
    CHECK(ioctl(fd, FIOCLEX) == 0);
    for (int number = 3; number < 4096; number++) {
        if (number == fd || number == ready[0] || number == ready[1]) continue;
        CHECK(fcntl(number, F_SETFD, 0) == -1 && errno == EBADF);
        CHECK(ioctl(number, FIONCLEX) == -1 && errno == EBADF);
        CHECK(ftruncate(number, 4096) == -1 && errno == EBADF);
        CHECK(dup(number) == -1 && errno == EBADF);
    }
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int number = 3; number < 4096; number++)
            if (number != fd) CHECK(fcntl(number, F_SETFD, 0) == 0 || errno == EBADF);
        execl(self, self, "list", NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    printf("child: %d\n", status);
    CHECK(write(ready[1], "x", 1) == 1);
    printf("read: %d\n", complete(&ring));
}

/* Lists the open descriptors. */
static void list(void) {
    for (int number = 3; number < 70000; number++)
        if (fcntl(number, F_GETFL) >= 0) printf("%d is open\n", number);
}

static int wait_on(void *ring) {
    struct io_uring_cqe *cqe;
    io_uring_wait_cqe(ring, &cqe);
    return 0;
}

/* A process that shares the memory is killed while it waits on a ring. */
static void killed(void) {
    struct io_uring ring;
    int pipes[2];
    char buffer[8];
    ring_init(&ring);
    CHECK(pipe(pipes) == 0);
    io_uring_prep_read(io_uring_get_sqe(&ring), pipes[0], buffer, sizeof buffer, 0);
    CHECK(io_uring_submit(&ring) == 1);
    char *stack = malloc(1 << 18);
    int child = clone(wait_on, stack + (1 << 18), CLONE_VM | SIGCHLD, &ring);
    CHECK(child > 0 && usleep(50000) == 0);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    CHECK(write(pipes[1], "abc", 3) == 3);
    printf("the read: %d\n", complete(&ring));
    io_uring_queue_exit(&ring);
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*function)(void);
    } all[] = {
        {"nop", nop},
        {"file", file},
        {"socket", socket_},
        {"worker", worker},
        {"poll", poll_},
        {"threads", threads},
        {"detached", many_detached},
        {"signals", signals},
        {"queued", queued},
        {"alternate", alternate},
        {"nested", nested},
        {"jumps", jumps},
        {"fork", fork_},
        {"borrowers", borrowers},
        {"fork_among_threads", fork_among_threads},
        {"exec", exec_},
        {"masks", masks},
        {"identity", identity},
        {"descriptors", descriptors},
        {"names", names},
        {"killed", killed},
        {"list", list},
        {"give_up_alone", give_up_alone},
        {"give_up_together", give_up_together},
    };
    self = words[0];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 2 && strcmp(words[1], "exit") == 0) return atoi(words[2]);
    if (count > 2 && strcmp(words[1], "kill") == 0) raise(atoi(words[2]));
    if (count > 2 && strcmp(words[1], "mask") == 0) {
        print_mask(words[2]);
        return 0;
    }
    if (count > 2 && strcmp(words[1], "user") == 0) {
        CHECK(setuid(atoi(words[2])) == 0);
        nop();
        return 0;
    }
    if (count > 2 && strcmp(words[1], "queued") == 0) many_queued = atoi(words[2]);
    if (count > 2 && strcmp(words[1], "chain") == 0) {
        chain(atoi(words[2]));
        return 0;
    }
    if (count > 1 && strcmp(words[1], "words") == 0) {
        for (int i = 0; i < count; i++) printf("word %d: %s\n", i, words[i]);
        return 17;
    }
    for (size_t i = 0; count > 1 && i < sizeof all / sizeof *all; i++) {
        if (strcmp(words[1], all[i].name) == 0) {
            all[i].function();
            return 0;
        }
    }
    printf("no such name\n");
    return 2;
}
