/* A process with a ring ends when its last thread leaves. Other cases: a child that shares its parent's descriptors,
* and a file size limit. */
#include "engine.h"

#include <linux/kcmp.h>

/* Limits for the end of the process, which in the kernel takes no time. IDLE_MS is for an exit that an engine thread
* notices only once it has been idle for two seconds. */
#define SOON_MS 1000
#define IDLE_MS 8000

static char buffer[8];
static int pipes[2], told[2];
static struct io_uring ring;
static int hides_proc;

static void tell(void)
{
	write_all(told[1], "a");
}

/* A ring with a READ that never completes. */
static void make_ring(void)
{
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], buffer, 1, 1);
	wait_others_asleep(0);
	if (hides_proc)
		hide_proc();
}

/* Makes a process that ends by `leave`, and checks its status, and whether functions of atexit(3) run. */
static void ends(void (*leave)(void), int status, int at_exit, int patience_ms)
{
	pid_t child;
	int seen, ms = 0;

	CHECK(pipe(pipes) == 0 && pipe2(told, O_NONBLOCK) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(!hides_proc || own_mounts());
		CHECK(atexit(tell) == 0);
		leave();
		_exit(99);
	}
	while (waitpid(child, &seen, WNOHANG) == 0 && ms++ < patience_ms)
		usleep(1000);
	if (ms > patience_ms)
		kill(child, SIGKILL);
	CHECK(ms <= patience_ms);
	CHECK(WIFEXITED(seen));
	errno = WEXITSTATUS(seen);
	CHECK(errno == status);
	CHECK(read(told[0], buffer, sizeof(buffer)) == (at_exit ? 1 : -1));
}

static void leave_by_pthread_exit(void)
{
	make_ring();
	pthread_exit(NULL);
}

static void by_pthread_exit(void)
{
	ends(leave_by_pthread_exit, 0, 1, SOON_MS);
}

/* The following cases, with /proc hidden once the READ waits. */
static void without_proc(void)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0)
		_exit(!own_mounts());
	CHECK(waitpid(child, &hides_proc, 0) == child);
	if (hides_proc)
		skip("no mount namespace can be made");
	hides_proc = 1;
}

static void by_pthread_exit_without_proc(void)
{
	without_proc();
	by_pthread_exit();
}

static void *last(void *unused)
{
	wait_asleep(getpid()); /* or, as here, until it has ended */
	return unused;
}

static void leave_before_another(void)
{
	pthread_t other;

	make_ring();
	CHECK(pthread_create(&other, NULL, last, NULL) == 0);
	pthread_exit(NULL);
}

static void by_the_last_return(void)
{
	ends(leave_before_another, 0, 1, SOON_MS);
}

static void leave_by_exit(void)
{
	make_ring();
	syscall(__NR_exit, 7);
}

static void by_exit(void)
{
	ends(leave_by_exit, 7, 0, SOON_MS);
}

static void by_exit_without_proc(void)
{
	without_proc();
	by_exit();
}

static void *exits_later(void *unused)
{
	usleep(200000);
	syscall(__NR_exit, 9);
	return unused;
}

/* The first thread leaves by `leader`, and then another thread leaves by exit(2). */
static void leave_both(int by_exit)
{
	pthread_t other;

	make_ring();
	CHECK(pthread_create(&other, NULL, exits_later, NULL) == 0);
	if (by_exit)
		syscall(__NR_exit, 7);
	pthread_exit(NULL);
}

static void leave_both_by_exit(void)
{
	leave_both(1);
}

static void leave_first_by_pthread_exit(void)
{
	leave_both(0);
}

static void by_exit_of_both(void)
{
	ends(leave_both_by_exit, 9, 0, SOON_MS);
}

static void by_exit_after_pthread_exit(void)
{
	ends(leave_first_by_pthread_exit, 9, 0, SOON_MS);
}

static void by_exit_of_both_without_proc(void)
{
	without_proc();
	by_exit_of_both();
}

static void by_exit_after_pthread_exit_without_proc(void)
{
	without_proc();
	by_exit_after_pthread_exit();
}

/* epoll_ctl(2) reads the event from the program's memory, which the first thread no longer has. */
static void *watches(void *unused)
{
	struct epoll_event event = {.events = EPOLLIN};
	int set = epoll_create1(0);

	usleep(200000);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ring.ring_fd, &event) == 0);
	write_all(pipes[1], "x");
	exit(epoll_wait(set, &event, 1, SOON_MS / 2) == 1 ? 4 : 5);
	return unused;
}

static void leave_one_that_watches(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	struct io_uring first;
	pthread_t other;

	init_ring(&first, 4, 0);
	CHECK(epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, first.ring_fd, &event) == 0);
	make_ring();
	CHECK(pthread_create(&other, NULL, watches, NULL) == 0);
	pthread_exit(NULL);
}

static void by_the_last_that_watches(void)
{
	ends(leave_one_that_watches, 4, 1, SOON_MS);
}

static void leave_without_ring(void)
{
	make_ring();
	io_uring_queue_exit(&ring);
	syscall(__NR_exit, 7);
}

static void by_exit_without_ring(void)
{
	ends(leave_without_ring, 7, 0, SOON_MS);
}

/* The program's other threads go on. The kernel cancels the requests that the ending thread had in flight. */
static void *goes_on(void *unused)
{
	wait_asleep(getpid()); /* or, as here, until it has ended */
	prepare_nop(&ring, 2);
	submit(&ring, 1);
	exit(4);
	return unused;
}

static void leave_one_that_goes_on(void)
{
	pthread_t other;

	make_ring();
	CHECK(pthread_create(&other, NULL, goes_on, NULL) == 0);
	syscall(__NR_exit, 7);
}

static void not_by_the_first_exit(void)
{
	ends(leave_one_that_goes_on, 4, 1, SOON_MS);
}

static int use_a_ring(void *unused)
{
	(void)unused;
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], buffer, 1, 1);
	wait_others_asleep(0);
	write_all(pipes[1], "x");
	expect(&ring, 1, 1);
	io_uring_queue_exit(&ring);
	return 5;
}

static void leave_by_cloned_child(void)
{
	const size_t size = 1 << 18;
	char *stack = malloc(size);
	int status, child;

	make_ring();
	io_uring_queue_exit(&ring);
	child = clone(use_a_ring, stack + size, SIGCHLD, NULL);
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
	exit(0);
}

/* An exit(2) by libc itself calls no wrapper. The engine's threads notice it once they have been idle. */
static void by_return_of_a_clone(void)
{
	ends(leave_by_cloned_child, 0, 1, IDLE_MS);
}

static int enter_the_parents(void *unused)
{
	(void)unused;
	return syscall(__NR_io_uring_enter, ring.ring_fd, 0, 0, 0, NULL, 0) == 0 ? 5 : 6;
}

/* A child that shares its parent's descriptor table must close none of the ring's descriptors. */
static void child_shares_descriptors(void)
{
	const size_t size = 1 << 18;
	char *stack = malloc(size);
	int status, child;

	if (syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILES, 0, 0) != 0)
		skip("kcmp(2) is refused: nothing tells that descriptors are shared");
	CHECK(pipe(pipes) == 0);
	make_ring();
	child = clone(enter_the_parents, stack + size, CLONE_FILES | SIGCHLD, NULL);
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
	write_all(pipes[1], "x");
	expect(&ring, 1, 1);
	submit_read(&ring, pipes[0], buffer, 1, 2);
	write_all(pipes[1], "y");
	only_look(&ring);
	take(&ring, 2, 1);
}

/* The ring is the first of the process, and each file that it needs is larger than the file size limit. */
static void files_are_small(void)
{
	struct rlimit limit = {100, 1 << 30};

	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	CHECK(pipe(pipes) == 0);
	make_ring();
	write_all(pipes[1], "x");
	expect(&ring, 1, 1);
	CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur == 100);
}

static void *make_rings(void *unused)
{
	for (int i = 0; i < 500; i++) {
		struct io_uring own;

		init_ring(&own, 4, 0);
		io_uring_queue_exit(&own);
	}
	return unused;
}

/* A thread that makes a ring leaves the limit as it was, even if several threads make rings at once. */
static void files_stay_small(void)
{
	struct rlimit limit = {100, 1 << 30};
	pthread_t threads[3];

	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, make_rings, NULL) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
	CHECK(limit.rlim_cur == 100);
}

CASES({"file-size-at-once", files_stay_small},
      {"pthread-exit", by_pthread_exit},
      {"last-return", by_the_last_return},
      {"exit", by_exit},
      {"exit-without-ring", by_exit_without_ring},
      {"pthread-exit-without-proc", by_pthread_exit_without_proc},
      {"exit-without-proc", by_exit_without_proc},
      {"both-exit", by_exit_of_both},
      {"both-exit-without-proc", by_exit_of_both_without_proc},
      {"exit-after-pthread-exit", by_exit_after_pthread_exit},
      {"exit-after-pthread-exit-without-proc", by_exit_after_pthread_exit_without_proc},
      {"first-left", by_the_last_that_watches},
      {"first-exit", not_by_the_first_exit},
      {"clone", by_return_of_a_clone},
      {"shared-descriptors", child_shares_descriptors},
      {"file-size", files_are_small})
