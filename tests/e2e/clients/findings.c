/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Work that `anyring trace` has a finding about, and the same work with its advice followed. argv[1] names one:
 *
 *   recv            10,000 times: a RECV, and only then a byte to receive
 *   recv-multishot  one multishot RECV for all of them
 *   cq              2,000 times: 64 NOPs before any CQE is reaped, with a CQ of 16
 *   cq-large        the same with a CQ of 64
 *   calls           100,000 NOPs, each submitted by a call of its own
 *   calls-batch     the same, sixteen in a call
 *   drain           2,000 times three READs of /dev/zero, of which the second drains
 *   drain-link      the same, with links instead */
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROUNDS 10000
#define BUFFERS 8

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static struct io_uring ring;
static char bytes[BUFFERS];

static void take(unsigned more)
{
	struct io_uring_cqe *cqe;

	CHECK(io_uring_wait_cqe(&ring, &cqe) == 0 && cqe->res == 1 && (cqe->flags & IORING_CQE_F_MORE) == more);
	io_uring_cqe_seen(&ring, cqe);
}

static void receive(int multishot)
{
	struct io_uring_buf_ring *buffers = NULL;
	int ends[2];

	CHECK(io_uring_queue_init(8, &ring, 0) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	if (multishot) {
		struct io_uring_buf_reg group = { .ring_entries = BUFFERS };

		CHECK(posix_memalign((void **)&buffers, sysconf(_SC_PAGESIZE), BUFFERS * sizeof(struct io_uring_buf)) == 0);
		io_uring_buf_ring_init(buffers);
		group.ring_addr = (unsigned long)buffers;
		CHECK(io_uring_register_buf_ring(&ring, &group, 0) == 0);
	}
	for (int round = 0; round < ROUNDS; round++) {
		if (multishot) {
			int place = round % BUFFERS;

			io_uring_buf_ring_add(buffers, bytes + place, 1, place, BUFFERS - 1, 0);
			io_uring_buf_ring_advance(buffers, 1);
		}
		if (!multishot || round == 0) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

			if (multishot) {
				io_uring_prep_recv_multishot(sqe, ends[0], NULL, 0, 0);
				sqe->flags |= IOSQE_BUFFER_SELECT;
				sqe->buf_group = 0;
			} else {
				io_uring_prep_recv(sqe, ends[0], bytes, 1, 0);
			}
			CHECK(io_uring_submit(&ring) == 1);
		}
		CHECK(write(ends[1], "x", 1) == 1);
		take(multishot ? IORING_CQE_F_MORE : 0);
	}
}

static void fill(unsigned entries)
{
	struct io_uring_params params = { .flags = IORING_SETUP_CQSIZE, .cq_entries = entries };

	CHECK(io_uring_queue_init_params(8, &ring, &params) == 0);
	for (int round = 0; round < 2000; round++) {
		struct io_uring_cqe *cqe;

		for (int at = 0; at < 64; at++) {
			io_uring_prep_nop(io_uring_get_sqe(&ring));
			CHECK(at % 8 != 7 || io_uring_submit(&ring) == 8);
		}
		for (int at = 0; at < 64; at++) {
			CHECK(io_uring_wait_cqe(&ring, &cqe) == 0 && cqe->res == 0);
			io_uring_cqe_seen(&ring, cqe);
		}
	}
}

static void call(int each)
{
	CHECK(io_uring_queue_init(16, &ring, 0) == 0);
	for (int round = 0; round < 100000 / each; round++) {
		struct io_uring_cqe *cqe;

		for (int at = 0; at < each; at++)
			io_uring_prep_nop(io_uring_get_sqe(&ring));
		CHECK(io_uring_submit(&ring) == each);
		for (int at = 0; at < each; at++) {
			CHECK(io_uring_wait_cqe(&ring, &cqe) == 0 && cqe->res == 0);
			io_uring_cqe_seen(&ring, cqe);
		}
	}
}

static void order(int flags)
{
	int fd = open("/dev/zero", O_RDONLY);

	CHECK(fd >= 0 && io_uring_queue_init(8, &ring, 0) == 0);
	for (int round = 0; round < 2000; round++) {
		for (int at = 0; at < 3; at++) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

			io_uring_prep_read(sqe, fd, bytes, 1, 0);
			if (flags == IOSQE_IO_DRAIN ? at == 1 : at < 2)
				sqe->flags |= flags;
		}
		CHECK(io_uring_submit_and_wait(&ring, 3) == 3);
		for (int at = 0; at < 3; at++)
			take(0);
	}
}

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";

	if (strcmp(what, "recv") == 0)
		receive(0);
	else if (strcmp(what, "recv-multishot") == 0)
		receive(1);
	else if (strcmp(what, "cq") == 0)
		fill(16);
	else if (strcmp(what, "cq-large") == 0)
		fill(64);
	else if (strcmp(what, "calls") == 0)
		call(1);
	else if (strcmp(what, "calls-batch") == 0)
		call(16);
	else if (strcmp(what, "drain") == 0)
		order(IOSQE_IO_DRAIN);
	else if (strcmp(what, "drain-link") == 0)
		order(IOSQE_IO_LINK);
	else
		return 2;
	return 0;
}
