/* Resources that a program may leave itself few of: locked memory, descriptors, entries of epoll(7). Each case must
 * work with an amount that is enough for the kernel's io_uring. */
#include "engine.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum { NOBODY = 65534, NESTED = 5, CROWD = 1100, SHORTLY_US = 20000, SOON_MS = 1000, LOCKED_BYTES = 640 * 1024, REST_BYTES = 256 * 1024, MANY_RINGS = 4, BEYOND_THE_CQ = 3000 };

/* All memory that is mapped from now on is locked, and there may be at most LOCKED_BYTES of locked memory. */
static void limit_locked(void)
{
	struct rlimit limit = {LOCKED_BYTES, LOCKED_BYTES};

	CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	if (getuid() == 0) /* the limit does not apply to root */
		CHECK(setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
}

/* A READ that waits, and more CQEs than fit. */
static void use_ring(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	char byte;
	int ends[2], seen = 0;

	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	submit_read(ring, ends[0], &byte, 1, 1);
	for (int i = 0; i < BEYOND_THE_CQ; i++) {
		prepare_nop(ring, 2);
		submit(ring, 1);
	}
	CHECK(write(ends[1], "x", 1) == 1);
	while (seen < BEYOND_THE_CQ + 1) {
		CHECK(wait_ms(ring, &cqe, LONG_MS) == 0);
		CHECK(cqe->res == (cqe->user_data == 1));
		io_uring_cqe_seen(ring, cqe);
		seen++;
	}
	close(ends[0]);
	close(ends[1]);
}

static void use_rings_and_the_rest(void)
{
	struct io_uring rings[MANY_RINGS];

	for (int i = 0; i < MANY_RINGS; i++) {
		init_ring(&rings[i], 8, 0);
		use_ring(&rings[i]);
	}
	/* The program may use the entries that the rings do not take. */
	CHECK(mmap(NULL, REST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
	for (int i = 0; i < MANY_RINGS; i++)
		io_uring_queue_exit(&rings[i]);
}

static void locked(void)
{
	limit_locked();
	CHECK(mlockall(MCL_FUTURE) == 0);
	use_rings_and_the_rest();
}

static void locked_unseen(void)
{
	limit_locked();
	CHECK(unseen6(__NR_mlockall, MCL_FUTURE, 0, 0, 0, 0, 0) == 0);
	use_rings_and_the_rest();
}


static void expect_result(struct io_uring *ring, uint64_t user_data, int result)
{
	struct io_uring_cqe *cqe;

	CHECK(answer(wait_ms(ring, &cqe, LONG_MS)) == 0);
	CHECK(cqe->user_data == user_data && answer(cqe->res) == result);
	io_uring_cqe_seen(ring, cqe);
}

static void limit_numbers(rlim_t numbers, int hard_too)
{
	struct rlimit limit;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = numbers;
	if (hard_too)
		limit.rlim_max = numbers;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void *write_shortly(void *fd)
{
	usleep(SHORTLY_US);
	CHECK(write(*(int *)fd, "abc", 3) == 3);
	return NULL;
}

static void on_signal(int signal)
{
	(void)signal;
}

/* As in a sandbox: no more descriptors from now on. */
static void no_numbers(void)
{
	struct __kernel_timespec briefly = {.tv_nsec = 1000000}, long_enough = {.tv_sec = LONG_MS / 1000};
	struct sigaction action = {.sa_handler = on_signal};
	struct itimerval timer = {.it_value.tv_usec = SHORTLY_US};
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	pthread_t writer;
	sigset_t none;
	char bytes[3];
	int ends[2];

	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	init_ring(&ring, 8, 0);
	limit_numbers(0, 1);
	CHECK(dup(0) == -1 && errno == EMFILE);
	/* A READ, which is waited for. */
	CHECK(pthread_create(&writer, NULL, write_shortly, &ends[1]) == 0);
	submit_read(&ring, ends[0], bytes, 3, 1);
	expect_result(&ring, 1, 3);
	CHECK(pthread_join(writer, NULL) == 0);
	/* A POLL_ADD, while signals are blocked. */
	sigemptyset(&none);
	sigaddset(&none, SIGUSR1);
	CHECK(pthread_create(&writer, NULL, write_shortly, &ends[1]) == 0);
	io_uring_prep_poll_add(next_sqe(&ring), ends[0], POLLIN);
	submit(&ring, 1);
	CHECK(answer(io_uring_wait_cqes(&ring, &cqe, 1, &long_enough, &none)) == 0 && cqe->res == POLLIN);
	io_uring_cqe_seen(&ring, cqe);
	CHECK(pthread_join(writer, NULL) == 0);
	submit_read(&ring, ends[0], bytes, 3, 2);
	expect_result(&ring, 2, 3);
	/* A TIMEOUT while a READ still waits, and a signal that ends a wait. */
	submit_read(&ring, ends[0], bytes, 3, 3);
	io_uring_prep_timeout(next_sqe(&ring), &briefly, 0, 0);
	submit(&ring, 1);
	expect_result(&ring, 0, -ETIME);
	CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
	CHECK(answer(io_uring_wait_cqes(&ring, &cqe, 1, &long_enough, &none)) == -EINTR);
	CHECK(write(ends[1], "xyz", 3) == 3);
	expect_result(&ring, 3, 3);
}

/* Opens descriptors until the next one fails with EMFILE. */
static void fill_table(void)
{
	while (dup(0) >= 0)
		;
	CHECK(errno == EMFILE);
}

/* The READ still waits when its number is closed, and the program may use the number again. */
static void close_under_read(int hard_too, int is_full_before)
{
	struct io_uring ring;
	char bytes[3];
	int ends[2];

	limit_numbers(1024, hard_too);
	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	init_ring(&ring, 8, 0);
	if (is_full_before)
		fill_table();
	submit_read(&ring, ends[0], bytes, 3, 1);
	fill_table();
	for (int round = 0; round < 3; round++) {
		CHECK(close(ends[0]) == 0);
		CHECK(write(ends[1], "abc", 3) == 3);
		expect_result(&ring, 1, 3);
		CHECK(close(ends[1]) == 0);
		CHECK(pipe2(ends, O_CLOEXEC) == 0);
		submit_read(&ring, ends[0], bytes, 3, 1);
		CHECK(dup(0) == -1 && errno == EMFILE);
	}
}

static void full_table(void)
{
	close_under_read(1, 0);
}

static void full_table_before(void)
{
	close_under_read(0, 1);
}

static void full_below_the_hard_limit(void)
{
	close_under_read(0, 0);
}

/* Another file gets the ring's number, so the ring's requests end. */
static void full_taken(void)
{
	struct pollfd peer = {.events = POLLIN};
	struct io_uring ring;
	int ends[2];

	limit_numbers(1024, 1);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
	init_ring(&ring, 8, 0);
	CHECK(io_uring_register_files(&ring, ends, 1) == 0);
	CHECK(close(ends[0]) == 0);
	fill_table();
	CHECK(munmap(ring.sq.sqes, 8 * sizeof(struct io_uring_sqe)) == 0);
	CHECK(munmap(ring.sq.ring_ptr, ring.sq.ring_sz) == 0);
	CHECK(dup2(0, ring.ring_fd) == ring.ring_fd);
	peer.fd = ends[1];
	CHECK(poll(&peer, 1, SOON_MS) == 1 && peer.revents & POLLHUP);
}

/* Epoll sets as deep as they may watch each other. */
static void nested(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int first = eventfd(0, EFD_CLOEXEC), inner = first;
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	uint64_t one = 1;

	for (int i = 0; i < NESTED; i++) {
		int outer = epoll_create1(EPOLL_CLOEXEC);

		CHECK(outer >= 0 && epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event) == 0);
		inner = outer;
	}
	init_ring(&ring, 8, 0);
	io_uring_prep_poll_add(next_sqe(&ring), inner, POLLIN);
	submit(&ring, 1);
	CHECK(wait_ms(&ring, &cqe, 50) == -ETIME);
	CHECK(write(first, &one, sizeof(one)) == sizeof(one));
	expect_result(&ring, 0, POLLIN);
	io_uring_queue_exit(&ring);
}

/* More rings wait for one event than the limit on epoll sets permits, and no thread makes a call on them. */
static void crowd(void)
{
	static struct io_uring rings[CROWD];
	int event = eventfd(0, EFD_CLOEXEC), answered = 0;
	struct rlimit limit;
	uint64_t one = 1;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	if (limit.rlim_max < 5 * CROWD + 100)
		skip("there may be too few descriptors for so many rings");
	limit_numbers(limit.rlim_max, 0);
	for (int i = 0; i < CROWD; i++) {
		init_ring(&rings[i], 1, 0);
		io_uring_prep_poll_add(next_sqe(&rings[i]), event, POLLIN);
		submit(&rings[i], 1);
	}
	CHECK(write(event, &one, sizeof(one)) == sizeof(one));
	for (int ms = 0; answered < CROWD && ms < LONG_MS; ms += 10) {
		answered = 0;
		usleep(10000);
		for (int i = 0; i < CROWD; i++)
			answered += io_uring_cq_ready(&rings[i]) == 1;
	}
	CHECK(answered == CROWD);
}

CASES({"locked", locked}, {"locked-unseen", locked_unseen}, {"no-numbers", no_numbers}, {"full-table", full_table},
      {"full-table-before", full_table_before}, {"full-below-the-hard-limit", full_below_the_hard_limit},
      {"full-taken", full_taken},
      {"nested", nested}, {"crowd", crowd})
