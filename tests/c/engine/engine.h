/* Shared parts of the programs here: liburing with the checks of the raw programs, and the table from which a
 * program runs the case that its argument names. */
#define _GNU_SOURCE
#include <liburing.h>

#include "../raw/raw.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

#define DEFERRED (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN)

struct test {
	const char *name;
	void (*run)(void);
};

#define CASES(...)                                                                                                     \
	int main(int argc, char **argv)                                                                                \
	{                                                                                                              \
		static const struct test cases[] = {__VA_ARGS__};                                                      \
		return run_case(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);                                  \
	}

static inline int run_case(const struct test *cases, size_t count, int argc, char **argv)
{
	CHECK(argc == 2);
	for (size_t i = 0; i < count; i++)
		if (!strcmp(cases[i].name, argv[1])) {
			cases[i].run();
			puts("done");
			return 0;
		}
	CHECK(!"a known case");
	return 1;
}

/* liburing returns negative error numbers and leaves errno alone. This puts them into errno, which CHECK prints. */
static inline int answer(int result)
{
	errno = result < 0 ? -result : 0;
	return result;
}

static inline void init_ring(struct io_uring *ring, unsigned entries, unsigned flags)
{
	CHECK(answer(io_uring_queue_init(entries, ring, flags)) == 0);
}

/* Returns the next SQE, for the caller to prepare. Preparing clears the SQE, user_data included. */
static inline struct io_uring_sqe *next_sqe(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	CHECK(sqe);
	return sqe;
}

static inline void prepare_nop(struct io_uring *ring, uint64_t user_data)
{
	struct io_uring_sqe *sqe = next_sqe(ring);

	io_uring_prep_nop(sqe);
	sqe->user_data = user_data;
}

static inline struct io_uring_sqe *prepare_read(struct io_uring *ring, int fd, void *buffer, unsigned size,
						uint64_t user_data)
{
	struct io_uring_sqe *sqe = next_sqe(ring);

	io_uring_prep_read(sqe, fd, buffer, size, 0);
	sqe->user_data = user_data;
	return sqe;
}

/* On a polled ring, the answer also counts SQEs of earlier calls that the polling thread has not consumed yet. */
static inline void submit(struct io_uring *ring, int expected)
{
	int submitted = answer(io_uring_submit(ring));

	CHECK(submitted == expected || (submitted > expected && ring->flags & IORING_SETUP_SQPOLL));
}

static inline void submit_read(struct io_uring *ring, int fd, void *buffer, unsigned size, uint64_t user_data)
{
	prepare_read(ring, fd, buffer, size, user_data);
	submit(ring, 1);
}

/* Makes the prepared SQEs visible in the SQ, as io_uring_submit does before its system call. Returns their number. A
 * liburing that knows IORING_SETUP_NO_SQARRAY leaves the index array away. */
static inline unsigned publish(struct io_uring *ring)
{
	unsigned count = ring->sq.sqe_tail - ring->sq.sqe_head;
	unsigned tail = *ring->sq.ktail;

	for (unsigned i = 0; i < count; i++, tail++, ring->sq.sqe_head++)
		if (ring->sq.array)
			ring->sq.array[tail & *ring->sq.kring_mask] = ring->sq.sqe_head & *ring->sq.kring_mask;
	__atomic_store_n(ring->sq.ktail, tail, __ATOMIC_RELEASE);
	return count;
}

/* Waits in io_uring_enter(2) for a CQE, which stays in the CQ. Returns 0 or -ETIME. A signal does not end the wait. */
static inline int wait_ms(struct io_uring *ring, struct io_uring_cqe **cqe, int timeout_ms)
{
	struct __kernel_timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
	int result;

	do
		result = io_uring_wait_cqe_timeout(ring, cqe, &timeout);
	while (result == -EINTR);
	CHECK(answer(result) == 0 || result == -ETIME);
	return result;
}

/* Takes the CQE that is there already and checks it. */
static inline void take(struct io_uring *ring, uint64_t user_data, int res)
{
	struct io_uring_cqe *cqe;

	CHECK(answer(io_uring_peek_cqe(ring, &cqe)) == 0);
	CHECK(cqe->user_data == user_data);
	CHECK(answer(cqe->res) == res);
	io_uring_cqe_seen(ring, cqe);
}

/* Waits in io_uring_enter(2) for a CQE, reaps it and checks it. */
static inline void expect(struct io_uring *ring, uint64_t user_data, int res)
{
	struct io_uring_cqe *cqe;

	CHECK(wait_ms(ring, &cqe, LONG_MS) == 0);
	take(ring, user_data, res);
}

/* A read that a worker makes: /proc has no nonblocking ones. */
static inline void read_by_worker(struct io_uring *ring, uint64_t user_data)
{
	static char buffer[64];
	int fd = open("/proc/self/status", O_RDONLY);

	prepare_read(ring, fd, buffer, sizeof(buffer), user_data)->flags |= IOSQE_ASYNC;
	submit(ring, 1);
	expect(ring, user_data, sizeof(buffer));
	CHECK(close(fd) == 0);
}

/* Waits until the ring's CQ is not empty, without a call on the ring, as a program does that only polls the CQ. */
static inline void only_look(struct io_uring *ring)
{
	for (int ms = 0; ms < LONG_MS && !io_uring_cq_ready(ring); ms++)
		usleep(1000);
	CHECK(io_uring_cq_ready(ring) > 0);
}

/* Gives this process its own mount namespace, while it has one thread. Returns whether that is possible. */
static inline int own_mounts(void)
{
	return (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
	       mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static inline void hide_proc(void)
{
	CHECK(mount("tmpfs", "/proc", "tmpfs", 0, NULL) == 0);
}

static inline void write_all(int fd, const char *text)
{
	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}

/* Waits for a child that checked itself. */
static inline void wait_for_child(pid_t child)
{
	int status;

	CHECK(child > 0);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
