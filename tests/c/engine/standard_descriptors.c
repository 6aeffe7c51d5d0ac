/* A program that has closed its standard descriptors. A tracer checks that only the program's own descriptors get these
 * numbers. No other descriptor that could be read or written may have such a number, even for an instant. */
#include "engine.h"
#include <sys/ptrace.h>

#ifndef O_PATH
#define O_PATH 010000000
#endif

enum { STANDARD = 3, OUTSIDE = 100, THREADS = 64 };

/* The program announces the descriptors that it makes itself by a getpriority(2) with this process number. */
enum { MINE = 0x6d696e65 };

static void mine(int is_mine)
{
	syscall(SYS_getpriority, MINE, is_mine);
}

static void out_of_the_way(int *fd)
{
	int moved = fcntl(*fd, F_DUPFD_CLOEXEC, OUTSIDE);

	CHECK(moved >= OUTSIDE && close(*fd) == 0);
	*fd = moved;
}

static void use_a_ring(int ready[2])
{
	struct io_uring ring;
	char byte;

	init_ring(&ring, 8, 0);
	submit_read(&ring, ready[0], &byte, 1, 1);
	write_all(ready[1], "x");
	expect(&ring, 1, 1);
	io_uring_queue_exit(&ring);
}

static void limit_to(int numbers)
{
	struct rlimit few;

	CHECK(getrlimit(RLIMIT_NOFILE, &few) == 0);
	few.rlim_cur = numbers;
	CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
}

/* The READ's file needs a duplicate while RLIMIT_NOFILE leaves only the standard numbers free. The engine must not
 * use that limit any more once it has been raised. */
static void below_a_low_limit(int ready[2])
{
	struct io_uring ring, other;
	char byte;

	CHECK(close(2) == 0);
	init_ring(&ring, 8, 0);
	submit_read(&ring, ready[0], &byte, 1, 1);
	limit_to(STANDARD);
	CHECK(close(ready[0]) == 0);
	limit_to(1024);
	CHECK(io_uring_queue_init(8, &other, DEFERRED) == 0);
	io_uring_queue_exit(&other);
	io_uring_queue_exit(&ring);
	mine(1);
	CHECK(dup(0) == 2);
	mine(0);
}

/* Fills all other numbers. */
static void fill_the_table(void)
{
	int last = -1, fd;

	limit_to(16);
	while ((fd = fcntl(1, F_DUPFD_CLOEXEC, STANDARD)) >= 0)
		last = fd;
	CHECK(close(2) == 0);
	for (; last > STANDARD; last--) {
		struct io_uring_params params = {0};
		int ring = syscall(SYS_io_uring_setup, 8, &params);

		CHECK(ring < 0 || close(ring) == 0);
		CHECK(close(last) == 0);
	}
}

static void traced(void)
{
	int ready[2], null;

	CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
	raise(SIGSTOP);
	CHECK(pipe(ready) == 0);
	out_of_the_way(&ready[0]);
	out_of_the_way(&ready[1]);
	use_a_ring(ready); /* while all three standard descriptors are open */
	CHECK(close(0) == 0);
	use_a_ring(ready);
	CHECK(close(1) == 0 && syscall(SYS_close, 2) == 0);
	use_a_ring(ready);
	/* Numbers that were free are free again. */
	CHECK(close(2) == -1 && errno == EBADF);
	mine(1);
	null = open("/dev/null", O_RDWR);
	CHECK(null == 0 && dup(null) == 1 && dup2(null, 2) == 2);
	mine(0);
	use_a_ring(ready);
	below_a_low_limit(ready);
	fill_the_table();
	_exit(0);
}

static struct {
	pid_t thread;
	struct __ptrace_syscall_info call;
} entered[THREADS];

static struct __ptrace_syscall_info *call_of(pid_t thread)
{
	for (int i = 0; i < THREADS; i++) {
		if (entered[i].thread == thread || !entered[i].thread) {
			entered[i].thread = thread;
			return &entered[i].call;
		}
	}
	CHECK(!"few threads");
	return NULL;
}

/* The lowest number that the call with this `answer` has made, or -1 if it made no usable descriptor. */
static int made(pid_t thread, const struct __ptrace_syscall_info *call, long answer)
{
	if (answer < 0)
		return -1;
	switch (call->entry.nr) {
	case SYS_openat:
		return call->entry.args[2] & O_PATH ? -1 : answer;
	case SYS_fcntl: /* a ring may get any number, as in the kernel */
		return call->entry.args[1] == F_DUPFD_CLOEXEC && call->entry.args[2] ? answer : -1;
	case SYS_memfd_create:
	case SYS_epoll_create1:
	case SYS_eventfd2:
	case SYS_timerfd_create:
		return answer;
	case SYS_pipe2:
		return (int)ptrace(PTRACE_PEEKDATA, thread, (void *)call->entry.args[0], NULL);
	case SYS_socketpair:
		return (int)ptrace(PTRACE_PEEKDATA, thread, (void *)call->entry.args[3], NULL);
	}
	return -1;
}

static void nothing_is_made_there(void)
{
	int status, is_mine = 0;
	pid_t child = fork(), thread;

	CHECK(child >= 0);
	if (child == 0)
		traced();
	CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	CHECK(ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL) == 0);
	CHECK(ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0);
	while ((thread = waitpid(-1, &status, __WALL)) > 0) {
		struct __ptrace_syscall_info now, *call;
		int signal = 0, number;

		if (!WIFSTOPPED(status)) {
			if (thread == child)
				CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
			continue;
		}
		if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
			call = call_of(thread);
			if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(now), &now) <= 0) {
				CHECK(errno == ESRCH); /* the tracee ended with the process */
				continue;
			}
			if (now.op == PTRACE_SYSCALL_INFO_ENTRY) {
				*call = now;
				if (now.entry.nr == SYS_getpriority && now.entry.args[0] == MINE)
					is_mine = now.entry.args[1];
			} else if (now.op == PTRACE_SYSCALL_INFO_EXIT && !is_mine) {
				number = made(thread, call, now.exit.rval);
				if (number >= 0 && number < STANDARD)
					fprintf(stderr, "system call %d made %d\n", (int)call->entry.nr, number);
				CHECK(number < 0 || number >= STANDARD);
			}
		} else if (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP) {
			signal = WSTOPSIG(status);
		}
		ptrace(PTRACE_SYSCALL, thread, NULL, (void *)(long)signal);
	}
}

CASES({"made", nothing_is_made_there})
