/* Random requests, cancellations, timeouts and links: each request gets one CQE. */
#include "engine.h"

enum { ROUNDS = 6000, PIPES = 16, MOST = 200000, MOST_PENDING = 150, PATIENCE = 200 };

static struct io_uring ring;
static int pipes[PIPES][2];
static unsigned seed = 1;
/* Requests are numbered from 1 by user_data. */
static unsigned char answered[MOST];
static long prepared, pending;

static unsigned any(unsigned count)
{
	return rand_r(&seed) % count;
}

/* To be called after the SQE is prepared, which clears user_data. */
static struct io_uring_sqe *number(struct io_uring_sqe *sqe)
{
	CHECK(prepared + 1 < MOST);
	sqe->user_data = ++prepared;
	pending++;
	return sqe;
}

static struct io_uring_sqe *read_any(void)
{
	static char byte;
	struct io_uring_sqe *sqe = next_sqe(&ring);

	io_uring_prep_read(sqe, pipes[any(PIPES)][0], &byte, 1, 0);
	return number(sqe);
}

static void read_with_link_timeout(void)
{
	static struct __kernel_timespec short_time = {0, 300000};
	struct io_uring_sqe *sqe;

	read_any()->flags |= IOSQE_IO_LINK;
	sqe = next_sqe(&ring);
	io_uring_prep_link_timeout(sqe, &short_time, 0);
	number(sqe);
}

static void cancel_all(unsigned flags, int fd)
{
	struct io_uring_sqe *sqe = next_sqe(&ring);

	io_uring_prep_cancel(sqe, NULL, flags);
	sqe->fd = fd;
	number(sqe);
}

static void prepare_any(void)
{
	static struct __kernel_timespec hour = {3600, 0};
	struct io_uring_sqe *sqe;

	switch (any(8)) {
	case 0:
		read_any();
		break;
	case 1:
		sqe = next_sqe(&ring);
		io_uring_prep_poll_add(sqe, pipes[any(PIPES)][0], POLLIN);
		number(sqe);
		break;
	case 2:
		sqe = next_sqe(&ring);
		io_uring_prep_timeout(sqe, &hour, 0, 0);
		number(sqe);
		break;
	case 3:
		read_with_link_timeout();
		break;
	case 4:
		sqe = next_sqe(&ring);
		io_uring_prep_cancel64(sqe, 1 + any(prepared + 1), 0);
		number(sqe);
		break;
	case 5:
		read_any()->flags |= IOSQE_ASYNC;
		break;
	case 6:
		cancel_all(IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL, pipes[any(PIPES)][0]);
		break;
	default: /* wakes a reader, or leaves a byte for the next one */
		write_all(pipes[any(PIPES)][1], "x");
		sqe = next_sqe(&ring);
		io_uring_prep_nop(sqe);
		number(sqe)->flags |= any(2) ? IOSQE_IO_LINK : 0;
	}
}

static void take_all(void)
{
	struct io_uring_cqe *cqe;

	for (; io_uring_peek_cqe(&ring, &cqe) == 0; pending--) {
		CHECK(cqe->user_data >= 1 && cqe->user_data <= (uint64_t)prepared);
		CHECK(++answered[cqe->user_data] == 1);
		io_uring_cqe_seen(&ring, cqe);
	}
}

/* Cancels until nothing is pending. Cancellation is repeated because it may miss a request for which a worker is just
 * about to wait, as in the kernel. */
static void finish_all(void)
{
	struct io_uring_cqe *cqe;

	for (int tries = 0; pending > 0; tries++) {
		CHECK(tries < PATIENCE);
		cancel_all(IORING_ASYNC_CANCEL_ANY, 0);
		submit(&ring, 1);
		while (pending > 0 && wait_ms(&ring, &cqe, 50) == 0)
			take_all();
	}
}

static void each_request_gets_one_cqe(void)
{
	init_ring(&ring, 256, 0);
	for (int i = 0; i < PIPES; i++)
		CHECK(pipe(pipes[i]) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		long before = prepared;

		for (unsigned count = 1 + any(6); count > 0; count--)
			prepare_any();
		submit(&ring, prepared - before);
		take_all();
		if (pending > MOST_PENDING)
			finish_all();
	}
	finish_all();
	for (long i = 1; i <= prepared; i++)
		CHECK(answered[i] == 1);
}

CASES({"random", each_request_gets_one_cqe})
