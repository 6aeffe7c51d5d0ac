/* Makes allocations fail at one place after the other. A scenario that uses most of a ring's features runs again and
 * again, each time in its own child. In the first run, failures begin at the first request to the kernel for memory, in
 * the next at the second, and so on. The last run ends before any failure. The argument is the number of failures in a
 * row. Whatever fails, the process continues, each accepted request has its one CQE, and afterwards the ring works as
 * before. */
#include "engine/engine.h"

#include <dlfcn.h>
#include <linux/aio_abi.h>

enum { ENTRIES = 64, NONE_FAILED = 9 };

static int (*fail_memory)(long before, long count);

/* An error that the kernel, too, returns if there is no memory. */
static int is_refusal(int result)
{
	return result == -ENOMEM || result == -EAGAIN;
}

/* Used without anyring, where no allocation is made to fail. */
static int none_fails(long before, long count)
{
	(void)before, (void)count;
	return 0;
}

static unsigned char answered[4096];
static unsigned prepared, taken;

static struct io_uring_sqe *prepare(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	CHECK(sqe);
	return sqe;
}

static void named(struct io_uring_sqe *sqe)
{
	sqe->user_data = ++prepared;
}

/* Submits all prepared SQEs, and does so again if there was no memory. SQEs that are then left stay in the SQ. */
static void submit_all(struct io_uring *ring)
{
	for (int i = 0; i < 2 && io_uring_sq_ready(ring); i++) {
		int result = io_uring_submit(ring);

		CHECK(answer(result) >= 0 || is_refusal(result));
		taken += result > 0 ? result : 0;
	}
}

static unsigned ended;

/* Reaps the CQEs that are there. Returns whether there was one. */
static int reap(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	int some = 0;

	while (io_uring_peek_cqe(ring, &cqe) == 0) {
		unsigned long name = cqe->user_data;

		CHECK(name <= prepared);
		if (name && !(cqe->flags & IORING_CQE_F_MORE)) {
			CHECK(!answered[name]++);
			ended++;
		}
		io_uring_cqe_seen(ring, cqe);
		some = 1;
	}
	return some;
}

static int ends[2], sockets[2], file;
static uint32_t word;
static char bytes[4096];
static struct iovec iovecs[1024];
static struct __kernel_timespec hour = {3600, 0};

static void prepare_each(struct io_uring *ring, int round)
{
	static struct msghdr message = {.msg_iov = iovecs, .msg_iovlen = 16};
	struct io_uring_sqe *sqe;

#define NEXT(kind, ...) (sqe = prepare(ring), io_uring_prep_##kind(sqe, ##__VA_ARGS__), named(sqe))
	NEXT(nop);
	NEXT(poll_add, ends[0], POLLIN);
	NEXT(poll_multishot, ends[0], POLLIN);
	NEXT(read, ends[0], bytes, 1, 0);
	NEXT(readv, ends[0], iovecs, 1024, 0);
	NEXT(read, file, bytes, 16, 0);
	sqe->flags |= IOSQE_ASYNC;
	NEXT(timeout, &hour, 0, 0);
	NEXT(timeout, &hour, 1000, 0);
	NEXT(nop);
	sqe->flags |= IOSQE_IO_LINK;
	NEXT(recv, sockets[0], bytes, 1, 0);
	sqe->flags |= IOSQE_IO_LINK;
	NEXT(link_timeout, &hour, 0);
	NEXT(recvmsg, sockets[0], &message, 0);
	NEXT(recv_multishot, sockets[0], NULL, 0, 0);
	sqe->flags |= IOSQE_BUFFER_SELECT;
	NEXT(provide_buffers, bytes, 16, 200, round, 0);
	NEXT(openat, AT_FDCWD, "/nonexistent", O_RDONLY, 0);
	NEXT(openat, AT_FDCWD, "/nonexistent", O_RDONLY, 0);
	sqe->flags |= IOSQE_ASYNC;
	NEXT(nop);
	sqe->opcode = 51; /* IORING_OP_FUTEX_WAIT, newer than this liburing */
	sqe->fd = 2;	  /* FUTEX2_SIZE_U32 */
	sqe->addr = (unsigned long)&word;
	sqe->addr3 = 0xffffffff; /* FUTEX_BITSET_MATCH_ANY */
	NEXT(fsync, file, 0);
	NEXT(send_zc, sockets[1], bytes, 16, 0, 0);
	NEXT(msg_ring, ring->ring_fd, 0, 0, 0); /* its message has user_data 0 */
	NEXT(cancel64, 1, 0);
}

static void registrations(struct io_uring *ring)
{
	static int fds[300];
	int result;

	for (int i = 0; i < 300; i++)
		fds[i] = i % 30 ? -1 : file;
	result = io_uring_register_files(ring, fds, 300);
	CHECK(answer(result) == 0 || is_refusal(result));
	result = io_uring_register_buffers(ring, iovecs, 16);
	CHECK(answer(result) == 0 || is_refusal(result));
	static char buffers[4096] __attribute__((aligned(4096)));
	struct io_uring_buf_reg reg = {.ring_addr = (unsigned long)buffers, .ring_entries = 64, .bgid = 100};
	result = io_uring_register_buf_ring(ring, &reg, 0);
	CHECK(answer(result) == 0 || is_refusal(result));
	result = io_uring_register_eventfd(ring, file); /* no eventfd: EINVAL, but the engine examines it */
	CHECK(result < 0);
	result = io_uring_register_personality(ring);
	CHECK(answer(result) > 0 || is_refusal(result));
}

static void linux_aio(void)
{
	struct io_event events[4];
	struct iocb poll = {.aio_fildes = sockets[1], .aio_lio_opcode = IOCB_CMD_POLL, .aio_buf = POLLOUT};
	struct iocb read = {.aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_nbytes = 16};
	struct iocb *iocbs[] = {&poll, &read};
	aio_context_t context = 0;

	read.aio_buf = (unsigned long)bytes;
	if (syscall(SYS_io_setup, 64, &context) < 0) {
		CHECK(errno == EAGAIN || errno == ENOMEM);
		return;
	}
	long submitted = syscall(SYS_io_submit, context, 2, iocbs);
	CHECK(submitted > 0 || errno == EAGAIN || errno == ENOMEM);
	for (long got = 0; got < submitted;) {
		long some = syscall(SYS_io_getevents, context, 1, 4, events, NULL);

		CHECK(some > 0);
		got += some;
	}
	CHECK(syscall(SYS_io_destroy, context) == 0);
}

/* Ends the requests that wait, and checks that each request ends once. */
static void end_all(struct io_uring *ring)
{
	while (io_uring_sq_ready(ring)) {
		int result = io_uring_submit(ring);

		CHECK(answer(result) > 0);
		taken += result;
	}
	CHECK(taken == prepared);
	while (ended < prepared) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
		struct io_uring_cqe *cqe;

		CHECK(sqe);
		io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
		named(sqe);
		CHECK(answer(io_uring_submit(ring)) == 1);
		/* A worker's requests end by themselves. Those that are still to be armed are cancelled the next
		 * time. */
		while (ended < prepared && wait_ms(ring, &cqe, 100) == 0)
			reap(ring);
		CHECK(prepared < sizeof(answered) - 1);
	}
	CHECK(ended == prepared);
}

static void scenario(unsigned flags, long before, long count)
{
	struct io_uring ring, other;
	int failed, made, made_other;

	fail_memory(before, count);
	made = io_uring_queue_init(ENTRIES, &ring, flags);
	CHECK(answer(made) == 0 || is_refusal(made));
	if (made == 0) {
		registrations(&ring);
		for (int round = 0; round < 6; round++) {
			prepare_each(&ring, round);
			submit_all(&ring);
			reap(&ring);
			if (io_uring_sq_space_left(&ring) < 30)
				break;
		}
		CHECK(write(ends[1], bytes, 64) == 64);
		CHECK(write(sockets[1], bytes, 64) == 64);
		made_other = io_uring_queue_init(8, &other, flags);
		CHECK(answer(made_other) == 0 || is_refusal(made_other));
		io_uring_get_events(&ring);
		reap(&ring);
		linux_aio();
		pid_t child = fork();
		if (!child) {
			struct io_uring own;
			int result = io_uring_queue_init(8, &own, 0);

			CHECK(answer(result) == 0 || is_refusal(result));
			_exit(0);
		}
		wait_for_child(child);
		if (made_other == 0)
			io_uring_queue_exit(&other);
	}
	failed = fail_memory(0x7fffffffffffffff, 0);
	if (made == 0) {
		end_all(&ring);
		io_uring_queue_exit(&ring);
	}
	/* A new ring works as before. */
	init_ring(&other, 8, flags);
	prepare_nop(&other, 1);
	submit(&other, 1);
	expect(&other, 1, 0);
	io_uring_queue_exit(&other);
	_exit(failed ? 0 : NONE_FAILED);
}

/* Runs the scenario once. Returns whether an allocation failed. */
static int run_once(unsigned flags, long before, long count)
{
	int status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		alarm(LONG_MS / 1000); /* only a hang takes that long */
		scenario(flags, before, count);
	}
	CHECK(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != NONE_FAILED)) {
		fprintf(stderr, "%ld in a row behind %ld, flags %#x: status %#x\n", count, before, flags, status);
		_exit(1);
	}
	return WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
	char name[] = "failing-XXXXXX";
	unsigned flags;
	long count, before = 0;

	CHECK(argc == 3);
	flags = strcmp(argv[1], "deferred") ? 0 : DEFERRED;
	count = atol(argv[2]);
	*(void **)&fail_memory = dlsym(RTLD_DEFAULT, "anyring_fail_memory");
	if (!fail_memory) {
		before = 0x7ffffffffffffffe;
		fail_memory = none_fails;
	}
	for (int i = 0; i < 1024; i++)
		iovecs[i] = (struct iovec){bytes + i, 1};
	file = mkstemp(name);
	CHECK(file >= 0 && unlink(name) == 0);
	write_all(file, "sixteen bytes...");
	CHECK(pipe(ends) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	while (run_once(flags, before, count))
		before++;
	CHECK(before > 100); /* many places were tried */
	puts("done");
	return 0;
}
