/* Cases that the hostile program (tests/hostile/) found: signal handlers at the narrowest moments, and limits. */
#include "engine.h"

#include <pthread.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#ifndef IORING_SETUP_NO_MMAP
#define IORING_SETUP_NO_MMAP (1U << 14)
#endif

#define ENOUGH 3000
#define TURNS 60

static struct ring raw;
static struct io_uring ring;
static atomic_long handled;

/* Runs the case again without patching, so that each call traps, whichever instruction makes it. */
static void leave_instructions(void)
{
	const char *self = (const char *)getauxval(AT_EXECFN); /* also where there is no /proc */

	if (getenv("ANYRING_PATCH"))
		return;
	CHECK(setenv("ANYRING_PATCH", "0", 1) == 0);
	execl(self, self, getenv("CASE"), NULL);
	CHECK(!"execl");
}

static void on_alarm(void (*handler)(int), long first_us, long interval_us)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
	struct itimerval timer = {{0, interval_us}, {0, first_us}};

	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* As large as the alternate stack of each thread of a Rust program, with an inaccessible page below. */
static void use_small_alternate_stack(void)
{
	char *memory = mmap(NULL, 4 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack_t stack = {.ss_sp = memory + 2 * 4096, .ss_size = 2 * 4096};

	CHECK(memory != (char *)MAP_FAILED && mprotect(stack.ss_sp, stack.ss_size, PROT_READ | PROT_WRITE) == 0);
	CHECK(sigaltstack(&stack, NULL) == 0);
}

static void enter_in_handler(int signal)
{
	(void)signal;
	CHECK(raw6(__NR_io_uring_enter, raw.fd, 0, 0, 0, 0, 0) == 0);
	handled++;
}

/* The handler runs on the thread's stack, whatever it interrupts. It may even interrupt a call's trap, which is on the
 * alternate stack. */
static void handler_in_trap(void)
{
	leave_instructions();
	use_small_alternate_stack();
	CHECK(ring_open(&raw, 8) == 0);
	on_alarm(enter_in_handler, 20, 20);
	while (handled < ENOUGH)
		CHECK(ring_enter(&raw, 0, 0) == 0);
}

static void count_in_handler(int signal)
{
	(void)signal;
	handled++;
}

static long used_pages(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long pages;

	CHECK(file && fscanf(file, "%ld", &pages) == 1 && fclose(file) == 0);
	return pages;
}

/* No memory is left for another stack on which to make a call. The child uses the stack that its parent used. */
static void trap_without_memory(void)
{
	struct rlimit limit;
	pid_t child;

	leave_instructions();
	need_proc();
	use_small_alternate_stack();
	CHECK(ring_open(&raw, 8) == 0);
	ring_nop(&raw, 1);
	CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
	limit.rlim_cur = used_pages() * 4096;
	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
	child = fork();
	if (child == 0) {
		on_alarm(count_in_handler, 20, 20);
		while (handled < ENOUGH)
			CHECK(ring_enter(&raw, 0, 0) == 0);
		_exit(0);
	}
	wait_for_child(child);
}

static struct {
	char *memory;
	size_t size;
	pid_t thread;
} waiting;

/* Once the other thread sleeps, its ring's memory is unmapped, and a handler ends its wait. */
static void *take_memory_away(void *thread)
{
	char path[64], state = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", waiting.thread);
	for (int ms = 0; ms < LONG_MS && state != 'S'; ms++) {
		FILE *file = fopen(path, "r");

		CHECK(file && fscanf(file, "%*d %*s %c", &state) == 1 && fclose(file) == 0);
		usleep(1000);
	}
	CHECK(mprotect(waiting.memory, waiting.size, PROT_NONE) == 0);
	CHECK(pthread_kill(*(pthread_t *)thread, SIGUSR1) == 0);
	return NULL;
}

/* A wait that blocks faults, in a program whose ring's memory is gone when a handler begins. */
static void faults_blocked_in_wait(void)
{
	struct sigaction action = {.sa_handler = count_in_handler};
	struct io_uring_params params = {.flags = IORING_SETUP_NO_MMAP};
	uint64_t mask = 1UL << (SIGSEGV - 1) | 1UL << (SIGBUS - 1) | 1UL << (SIGSYS - 1);
	pthread_t me = pthread_self(), other;
	long fd, answered;
	char *sqes;

	need_proc();
	waiting.size = 4 * 4096;
	waiting.memory = mmap(NULL, 2 * waiting.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	waiting.thread = gettid();
	CHECK(waiting.memory != (char *)MAP_FAILED && sigaction(SIGUSR1, &action, NULL) == 0);
	sqes = waiting.memory + waiting.size;
	memcpy((char *)&params + offsetof(struct io_uring_params, sq_off) + 32, &sqes, 8);
	memcpy((char *)&params + offsetof(struct io_uring_params, cq_off) + 32, &waiting.memory, 8);
	fd = syscall(__NR_io_uring_setup, 8, &params);
	CHECK(fd >= 0);
	CHECK(pthread_create(&other, NULL, take_memory_away, &me) == 0);
	answered = syscall(__NR_io_uring_enter, fd, 0, 1, IORING_ENTER_GETEVENTS, &mask, sizeof(mask));
	/* The kernel pins the ring's pages, so there only the signal ends the wait. */
	CHECK(handled == 1 && (answered == 0 || (answered == -1 && (errno == EINTR || errno == EFAULT))));
	CHECK(pthread_join(other, NULL) == 0);
}

static void submit_in_handler(int signal)
{
	int saved = errno;
	struct io_uring_sqe *sqe = next_sqe(&ring);

	(void)signal;
	io_uring_prep_fsync(sqe, 0, 0);
	sqe->flags |= IOSQE_ASYNC; /* needs a worker, so a thread is made */
	CHECK(answer(io_uring_submit(&ring)) == 1);
	handled++;
	errno = saved;
}

static void *wait_for_ever(void *unused)
{
	for (;;)
		pause();
	return unused;
}

/* A process that has several threads, so that fork(3) takes the locks of malloc(3). */
static void fork_beside(long us)
{
	pthread_t other;
	pid_t child;

	CHECK(pthread_create(&other, NULL, wait_for_ever, NULL) == 0);
	init_ring(&ring, 8, 0);
	on_alarm(submit_in_handler, us, 0);
	for (int i = 0; i < 10 && !handled; i++) {
		child = fork();
		if (child == 0)
			_exit(0);
		wait_for_child(child);
	}
	while (!handled)
		usleep(100);
}

/* A handler interrupts fork(3) and submits a request that takes a thread. */
static void handler_in_fork(void)
{
	for (int turn = 0; turn < TURNS; turn++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(0);
			fork_beside(20 + 10 * turn);
			_exit(0);
		}
		wait_for_child(child);
	}
}

/* The SQ's tail is nonsense. A call consumes as many SQEs as the SQ has entries, and each of these SQEs makes its own
 * call. */
static void tail_far_ahead(void)
{
	unsigned count = 0;

	init_ring(&ring, 8, 0);
	for (int i = 0; i < 8; i++)
		io_uring_prep_openat(next_sqe(&ring), AT_FDCWD, ".", O_RDONLY | O_DIRECTORY, 0);
	publish(&ring);
	__atomic_store_n(ring.sq.ktail, *ring.sq.ktail + 0x40000000, __ATOMIC_RELEASE);
	CHECK(syscall(__NR_io_uring_enter, ring.ring_fd, 0xffffffffU, 0, 0, NULL, 0) == 8);
	for (struct io_uring_cqe *cqe; count < 8; count++) {
		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0 && answer(cqe->res) >= 0);
		io_uring_cqe_seen(&ring, cqe);
	}
	CHECK(io_uring_cq_ready(&ring) == 0);
}

static void run_named(const char *name, void (*run)(void))
{
	CHECK(setenv("CASE", name, 1) == 0);
	run();
}

static void in_trap(void)
{
	run_named("handler-in-trap", handler_in_trap);
}

static void without_memory(void)
{
	run_named("trap-without-memory", trap_without_memory);
}

CASES({"handler-in-trap", in_trap}, {"trap-without-memory", without_memory},
      {"faults-blocked-in-wait", faults_blocked_in_wait}, {"handler-in-fork", handler_in_fork},
      {"tail-far-ahead", tail_far_ahead})
