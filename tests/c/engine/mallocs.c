/* A program with its own malloc(3) and pthread_create(3), as collectors and tracers have, and its own clock_gettime(3),
 * as tests have. The engine uses none of them. */
#include "engine.h"

#include "../filter.h"

#include <dlfcn.h>

static struct io_uring ring;
static char buffer[64];
static atomic_int created;
static __thread volatile int in_malloc; /* true while the calling thread is in malloc */
static volatile int locked;		/* true if that thread holds the lock */

void *__libc_calloc(size_t count, size_t size);
void *__libc_malloc(size_t size);

/* One lock for all threads, as some implementations have. */
static void enter_malloc(void)
{
	CHECK(!in_malloc); /* the thread would wait for itself */
	while (locked)
		usleep(1000);
}

void *calloc(size_t count, size_t size)
{
	enter_malloc();
	return __libc_calloc(count, size);
}

void *malloc(size_t size)
{
	enter_malloc();
	return __libc_malloc(size);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument)
{
	int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");

	created++;
	return next(thread, attributes, work, argument);
}

static volatile int stands_still;

int clock_gettime(clockid_t clock, struct timespec *now)
{
	if (!stands_still)
		return syscall(SYS_clock_gettime, clock, now);
	*now = (struct timespec){1000, 0};
	return 0;
}

static void time_passes_though_a_clock_stands_still(void)
{
	struct __kernel_timespec soon = {0, 10000000};
	struct io_uring_cqe *cqe;

	init_ring(&ring, 8, 0);
	stands_still = 1;
	io_uring_prep_timeout(next_sqe(&ring), &soon, 0, 0);
	submit(&ring, 1);
	CHECK(answer(io_uring_wait_cqe(&ring, &cqe)) == 0 && cqe->res == -ETIME);
	io_uring_cqe_seen(&ring, cqe);
	CHECK(io_uring_wait_cqe_timeout(&ring, &cqe, &soon) == -ETIME);
}

static int pipes[2];

static void use_a_worker(int signal)
{
	char byte;

	(void)signal;
	read_by_worker(&ring, 1);
	/* The helper frees the remaining memory. */
	prepare_read(&ring, pipes[0], &byte, 1, 2);
	submit(&ring, 1);
	CHECK(write(pipes[1], "x", 1) == 1);
	expect(&ring, 2, 1);
}

static void interrupt_malloc(void)
{
	need_proc(); /* for `read_by_worker` */
	CHECK(pipe(pipes) == 0);
	signal(SIGUSR1, use_a_worker);
	for (int i = 0; i < 3; i++) {
		in_malloc = locked = 1;
		raise(SIGUSR1);
		in_malloc = locked = 0;
	}
	read_by_worker(&ring, 3);
}

static void a_handler_interrupts_malloc(void)
{
	init_ring(&ring, 8, 0);
	interrupt_malloc();
}

static void *sleep_long(void *unused)
{
	sleep(1000);
	return unused;
}

static void a_handler_interrupts_malloc_among_threads(void)
{
	pthread_t other;

	CHECK(pthread_create(&other, NULL, sleep_long, NULL) == 0);
	init_ring(&ring, 8, 0);
	interrupt_malloc();
}

static void register_ring(int signal)
{
	(void)signal;
	CHECK(io_uring_register_ring_fd(&ring) == 1);
	prepare_nop(&ring, 1);
	submit(&ring, 1);
	expect(&ring, 1, 0);
}

/* A thread that ends releases its registrations, without a call of malloc. */
static void a_handler_that_interrupts_malloc_registers_a_ring(void)
{
	init_ring(&ring, 8, 0);
	signal(SIGUSR1, register_ring);
	in_malloc = locked = 1;
	raise(SIGUSR1);
	in_malloc = locked = 0;
}

pid_t _Fork(void);

/* Another thread is in malloc, whose lock no child of _Fork(3) ever gets. */
static void a_child_never_asks_malloc(void)
{
	pid_t child;
	int status;

	init_ring(&ring, 8, 0);
	in_malloc = locked = 1;
	child = _Fork();
	if (child == 0) {
		prepare_nop(&ring, 1);
		submit(&ring, 1);
		_exit(0);
	}
	in_malloc = locked = 0;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
}

/* The engine does not call malloc to make a thread, either. A _Fork child of a process with several threads continues
 * without one. */
static void a_child_of_threads_never_asks_malloc(void)
{
	struct io_uring_params params = {0};
	pthread_t other;
	pid_t child;
	int status;

	CHECK(pthread_create(&other, NULL, sleep_long, NULL) == 0);
	in_malloc = locked = 1;
	child = _Fork();
	if (child == 0) {
		CHECK(syscall(SYS_io_uring_setup, 8, &params) >= 0);
		_exit(0);
	}
	in_malloc = locked = 0;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
}

/* The engine makes its threads without the program's pthread_create(3). */
static void no_thread_is_made_by_the_program_s(void)
{
	init_ring(&ring, 8, 0);
	read_by_worker(&ring, 1);
	CHECK(pipe(pipes) == 0);
	prepare_read(&ring, pipes[0], buffer, 1, 2);
	submit(&ring, 1);
	CHECK(write(pipes[1], "x", 1) == 1);
	only_look(&ring);
	take(&ring, 2, 1);
	CHECK(created == 0);
}

static void sync_by_worker(struct io_uring *on)
{
	FILE *file = tmpfile();
	struct io_uring_sqe *sqe = next_sqe(on);

	CHECK(file);
	io_uring_prep_fsync(sqe, fileno(file), 0);
	sqe->user_data = 1;
	submit(on, 1);
	expect(on, 1, 0);
	CHECK(fclose(file) == 0);
}

static void *use_filtered(void *unused)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct io_uring own;

	init_ring(&own, 8, 0);
	FILTER_CALLS(code, 0);
	sync_by_worker(&own);
	io_uring_queue_exit(&own);
	return unused;
}

/* The worker does not have the seccomp filter of the thread that first needs a worker. */
static void a_worker_has_no_filter(void)
{
	pthread_t other;

	CHECK(pthread_create(&other, NULL, use_filtered, NULL) == 0);
	CHECK(pthread_join(other, NULL) == 0);
	init_ring(&ring, 8, 0);
	sync_by_worker(&ring);
}

CASES({"interrupted", a_handler_interrupts_malloc},
      {"interrupted-among-threads", a_handler_interrupts_malloc_among_threads},
      {"registers", a_handler_that_interrupts_malloc_registers_a_ring},
      {"child", a_child_never_asks_malloc},
      {"child-of-threads", a_child_of_threads_never_asks_malloc},
      {"clock", time_passes_though_a_clock_stands_still},
      {"created", no_thread_is_made_by_the_program_s},
      {"filtered", a_worker_has_no_filter})
