/* Processes that run in another process's memory, or with its descriptors. Changes to their own rings and
 * descriptors must not affect the other process. */
#include "engine.h"

#include "holdings.h"

#include <linux/close_range.h>
#include <linux/sched.h>
#include <sys/uio.h>

static char buffer[8];
static int pipes[2];
static struct io_uring ring;

static pid_t fork_unseen(void)
{
	return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static pid_t fork_without_handlers(void)
{
	return _Fork();
}

/* A process is made without libc's atfork handlers. Its child by vfork(2) closes descriptors first. Afterwards the
 * engine must notice what the process itself closes. */
static void borrows_from(pid_t (*make)(void))
{
	struct io_uring_cqe *cqe;
	pid_t child;

	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], buffer, 4, 1);
	CHECK(wait_ms(&ring, &cqe, 20) == -ETIME);
	child = make();
	if (child == 0) {
		int mine[2], later[2];
		pid_t borrower = vfork();

		if (borrower == 0) {
			close(ring.ring_fd);
			close(pipes[0]);
			_exit(0);
		}
		wait_for_child(borrower);
		CHECK(pipe(mine) == 0);
		submit_read(&ring, mine[0], buffer, 4, 2);
		CHECK(wait_ms(&ring, &cqe, 20) == -ETIME);
		CHECK(close(mine[0]) == 0);
		CHECK(pipe(later) == 0 && later[0] == mine[0]);
		write_all(later[1], "late");
		write_all(mine[1], "mine");
		expect(&ring, 2, 4);
		CHECK(!memcmp(buffer, "mine", 4));
		_exit(0);
	}
	wait_for_child(child);
	write_all(pipes[1], "abcd");
	expect(&ring, 1, 4);
}

/* The engine asks one of these calls whether two processes share memory. */
static void need_comparison(void)
{
	char from = 'x', to;
	struct iovec here = {&to, 1}, there = {&from, 1};

	if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != 1 && syscall(SYS_kcmp, getpid(), getpid(), 1, 0, 0))
		skip("kcmp(2) and process_vm_readv(2) are refused");
}

static void borrows_from_raw(void)
{
	need_comparison();
	borrows_from(fork_unseen);
}

static void borrows_from_Fork(void)
{
	borrows_from(fork_without_handlers);
}

/* Duplicates that a child of vfork(2) has made are not its parent's. The parent, itself a forked process, closes the
 * only number of its ring. It must release as many descriptors as it would without the duplicates. */
static int descriptors_after_closing(int with_duplicates)
{
	int status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		pid_t borrower = vfork();

		if (borrower == 0) {
			if (with_duplicates) {
				dup(ring.ring_fd);
				dup2(ring.ring_fd, 700);
				fcntl(ring.ring_fd, F_DUPFD, 800);
			}
			_exit(0);
		}
		wait_for_child(borrower);
		CHECK(close(ring.ring_fd) == 0);
		_exit(entries_of("/proc/self/fd"));
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void dups(void)
{
	need_proc();
	init_ring(&ring, 8, 0);
	CHECK(descriptors_after_closing(1) == descriptors_after_closing(0));
}

/* A ring in one of the parent's level-triggered epoll sets stays there, whatever a child of vfork(2) closes. The ring
 * is ready as long as there are CQEs. */
static void level(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int set = epoll_create1(0);

	init_ring(&ring, 8, 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ring.ring_fd, &event) == 0);
	for (int how = 0; how < 3; how++) {
		pid_t child = vfork();

		if (child == 0) {
			if (how == 0)
				close(ring.ring_fd);
			else if (how == 1)
				close_range(3, ~0U, 0);
			else
				dup2(0, ring.ring_fd);
			_exit(0);
		}
		wait_for_child(child);
		prepare_nop(&ring, 1);
		submit(&ring, 1);
		CHECK(epoll_wait(set, &event, 1, 0) == 1);
		take(&ring, 1, 0);
		CHECK(epoll_wait(set, &event, 1, 0) == 0);
	}
}

static int close_own_table(void *unused)
{
	(void)unused;
	return close_range(3, ~0U, CLOSE_RANGE_UNSHARE) != 0;
}

static int unshare_and_close(void *unused)
{
	(void)unused;
	if (unshare(CLONE_FILES) != 0)
		return 1;
	return close(pipes[0]) || close(pipes[1]) || close(ring.ring_fd);
}

/* A child shares its parent's descriptor table, then unshares it and closes everything. The parent still has all its
 * descriptors. */
static void parts(void)
{
	static const int flags[] = {CLONE_FILES | SIGCHLD, CLONE_FILES | CLONE_VM | SIGCHLD,
				    CLONE_FILES | CLONE_VM | CLONE_VFORK | SIGCHLD};
	static int (*const ways[])(void *) = {close_own_table, unshare_and_close};
	const size_t size = 1 << 18;

	if (unshare(CLONE_FILES) != 0)
		skip("unshare(2) is refused");
	/* close_range(2) came with Linux 5.9. */
	for (unsigned way = close_range(~0U, ~0U, 0) == 0 ? 0 : 1; way < 2; way++)
		for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
			char *stack = malloc(size);
			struct io_uring_cqe *cqe;

			CHECK(pipe(pipes) == 0);
			init_ring(&ring, 8, 0);
			submit_read(&ring, pipes[0], buffer, 4, 1);
			CHECK(wait_ms(&ring, &cqe, 20) == -ETIME);
			wait_for_child(clone(ways[way], stack + size, flags[i], NULL));
			write_all(pipes[1], "abcd");
			only_look(&ring);
			expect(&ring, 1, 4);
			io_uring_queue_exit(&ring);
			CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
			free(stack);
		}
}

/* A child whose signal handlers were reset (CLONE_CLEAR_SIGHAND). */
static void without_handlers(void (*what)(void))
{
	struct clone_args args = {.flags = CLONE_CLEAR_SIGHAND, .exit_signal = SIGCHLD};
	pid_t child;

	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], (char *)16, 1, 1); /* from here on the engine recovers from faults of its copies */
	write_all(pipes[1], "xy");
	expect(&ring, 1, -EFAULT);
	child = syscall(SYS_clone3, &args, sizeof(args));
	if (child < 0 && errno == ENOSYS)
		skip("there is no clone3(2)");
	if (child == 0) {
		what();
		_exit(0);
	}
	wait_for_child(child);
}

static void use_bad_pointers(void)
{
	/* The engine copies these arguments itself. */
	io_uring_prep_openat(next_sqe(&ring), AT_FDCWD, (char *)16, O_RDONLY, 0);
	submit(&ring, 1);
	expect(&ring, 0, -EFAULT);
	write_all(pipes[1], "x");
	submit_read(&ring, pipes[0], (char *)16, 1, 2);
	expect(&ring, 2, -EFAULT);
}

static void use_bad_pointers_without_handlers(void)
{
	without_handlers(use_bad_pointers);
}

static int wait_for_the_read(void *unused)
{
	struct io_uring_cqe *cqe;

	io_uring_wait_cqe(&ring, &cqe);
	return unused == NULL;
}

/* A process in the same memory is killed while it waits. */
static void killed(void)
{
	const size_t size = 1 << 18;

	for (int round = 0; round < 3; round++) {
		char *stack = malloc(size);
		int status, child;

		CHECK(pipe(pipes) == 0);
		init_ring(&ring, 8, 0);
		submit_read(&ring, pipes[0], buffer, 4, 1);
		child = clone(wait_for_the_read, stack + size, CLONE_VM | SIGCHLD, NULL);
		CHECK(child > 0);
		usleep(50000);
		CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
		write_all(pipes[1], "abcd");
		expect(&ring, 1, 4);
		io_uring_queue_exit(&ring);
		CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
		free(stack);
	}
}

/* A worker makes each of these, in the kernel and in the engine. */
static void use_workers(void)
{
	char name[] = "borrows-XXXXXX";
	int file = mkstemp(name);

	CHECK(file >= 0 && unlink(name) == 0);
	for (int i = 1; i <= 3; i++) {
		struct io_uring_sqe *sqe = next_sqe(&ring);

		io_uring_prep_fsync(sqe, file, 0);
		sqe->user_data = i;
		sqe->flags |= IOSQE_ASYNC;
		submit(&ring, 1);
		expect(&ring, i, 0);
	}
	CHECK(close(file) == 0);
}

static int use_workers_and_exit(void *unused)
{
	(void)unused;
	use_workers();
	_exit(0);
}

/* A process in the same memory has requests made that a worker makes in the kernel. Its end takes no worker along that
 * the parent counts on. */
static void workers(void)
{
	static const int flags[] = {CLONE_VM | CLONE_VFORK | SIGCHLD, CLONE_VM | SIGCHLD,
				    CLONE_VM | CLONE_FILES | SIGCHLD};
	const size_t size = 1 << 18;

	for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		for (int before = 0; before < 2; before++) {
			char *stack = malloc(size);

			CHECK(pipe(pipes) == 0);
			init_ring(&ring, 8, 0);
			if (before) /* the parent has a worker of its own */
				use_workers();
			wait_for_child(clone(use_workers_and_exit, stack + size, flags[i], NULL));
			use_workers();
			submit_read(&ring, pipes[0], buffer, 4, 3);
			write_all(pipes[1], "abcd");
			only_look(&ring);
			expect(&ring, 3, 4);
			io_uring_queue_exit(&ring);
			CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
			free(stack);
		}
}

CASES({"raw", borrows_from_raw},
      {"_Fork", borrows_from_Fork},
      {"dups", dups},
      {"level", level},
      {"parts", parts},
      {"bad-pointers", use_bad_pointers_without_handlers},
      {"killed", killed},
      {"workers", workers})
