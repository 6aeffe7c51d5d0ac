/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Work that wastes time or CPU time in a way that `anyring trace` finds, and the same work with its advice followed.
 * argv[1] names one, argv[2] a file of 256 MiB. Prints the wall-clock time and the CPU time of the work, in microseconds.
 *
 *   depth           2,000 random O_DIRECT reads of 4 KiB, one at a time
 *   depth-32        the same, 32 at a time
 *   fsync           800 writes of 4 KiB, an FSYNC linked after each
 *   fsync-8         the same writes, an FSYNC after every eight
 *   poll            100,000 times: POLL_ADD of an eventfd, which becomes ready
 *   poll-multishot  the same with one POLL_ADD
 *   timeout         a TIMEOUT of 50 us, 10,000 times
 *   timeout-multishot   the same with one TIMEOUT
 *   large           64 O_DIRECT reads of 16 MiB, one at a time
 *   large-pieces    the same bytes, in pieces of 4 MiB, four at a time */
#define _GNU_SOURCE
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#ifndef IORING_TIMEOUT_MULTISHOT /* Linux 6.4 */
#define IORING_TIMEOUT_MULTISHOT (1U << 6)
#endif

#define FILE_BYTES (256L << 20)

static struct io_uring ring;
static const char *file_name;
static unsigned long seed = 1;

static long us_of(struct timespec at)
{
	return at.tv_sec * 1000000L + at.tv_nsec / 1000;
}

static int take(void)
{
	struct io_uring_cqe *cqe;
	int res;

	CHECK(io_uring_wait_cqe(&ring, &cqe) == 0);
	res = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return res;
}

static void *aligned(size_t bytes)
{
	void *memory;

	CHECK(posix_memalign(&memory, 4096, bytes) == 0);
	memset(memory, 1, bytes);
	return memory;
}

static int open_file(int flags)
{
	int fd = open(file_name, flags);

	CHECK(fd >= 0);
	return fd;
}

static void read_at_random(unsigned depth, unsigned count)
{
	int fd = open_file(O_RDONLY | O_DIRECT);
	char *memory = aligned(4096UL * depth);

	for (unsigned done = 0, sent = 0; done < count;) {
		for (; sent < count && sent - done < depth; sent++) {
			seed = seed * 6364136223846793005UL + 1442695040888963407UL;
			io_uring_prep_read(io_uring_get_sqe(&ring), fd, memory + 4096UL * (sent % depth), 4096,
					   (seed >> 33) % (FILE_BYTES / 4096) * 4096);
		}
		CHECK(io_uring_submit_and_wait(&ring, 1) >= 0);
		do {
			CHECK(take() == 4096);
			done++;
		} while (io_uring_cq_ready(&ring) != 0);
	}
}

static void write_lasting(unsigned together, unsigned count)
{
	int fd = open_file(O_WRONLY);
	char *memory = aligned(4096);

	for (unsigned at = 0; at < count; at += together) {
		struct io_uring_sqe *sqe;

		for (unsigned place = 0; place < together; place++) {
			sqe = io_uring_get_sqe(&ring);
			io_uring_prep_write(sqe, fd, memory, 4096, 4096UL * (at + place));
			sqe->flags |= IOSQE_IO_LINK;
		}
		io_uring_prep_fsync(io_uring_get_sqe(&ring), fd, IORING_FSYNC_DATASYNC);
		CHECK(io_uring_submit_and_wait(&ring, together + 1) == (int)together + 1);
		for (unsigned place = 0; place <= together; place++)
			CHECK(take() >= 0);
	}
}

static void poll_events(int multishot, unsigned count)
{
	int fd = eventfd(0, EFD_NONBLOCK);
	eventfd_t value;

	for (unsigned round = 0; round < count; round++) {
		if (!multishot || round == 0) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

			if (multishot)
				io_uring_prep_poll_multishot(sqe, fd, POLLIN);
			else
				io_uring_prep_poll_add(sqe, fd, POLLIN);
			CHECK(io_uring_submit(&ring) == 1);
		}
		CHECK(eventfd_write(fd, 1) == 0);
		CHECK(take() & POLLIN);
		CHECK(eventfd_read(fd, &value) == 0);
	}
}

static void tick(int multishot, unsigned count)
{
	struct __kernel_timespec period = { .tv_nsec = 50000 };

	for (unsigned round = 0; round < count; round++) {
		if (!multishot || round == 0) {
			io_uring_prep_timeout(io_uring_get_sqe(&ring), &period, multishot ? count : 0,
					      multishot ? IORING_TIMEOUT_MULTISHOT : 0);
			CHECK(io_uring_submit(&ring) == 1);
		}
		CHECK(take() == -ETIME);
	}
}

static void read_large(size_t bytes, unsigned depth)
{
	int fd = open_file(O_RDONLY | O_DIRECT);
	char *memory = aligned(bytes * depth);

	for (int pass = 0; pass < 4; pass++)
		for (size_t at = 0; at < FILE_BYTES; at += bytes * depth) {
			for (unsigned place = 0; place < depth; place++)
				io_uring_prep_read(io_uring_get_sqe(&ring), fd, memory + bytes * place, bytes,
						   at + bytes * place);
			CHECK(io_uring_submit_and_wait(&ring, depth) == (int)depth);
			for (unsigned place = 0; place < depth; place++)
				CHECK(take() == (int)bytes);
		}
}

static void work(const char *what)
{
	if (strcmp(what, "depth") == 0)
		read_at_random(1, 2000);
	else if (strcmp(what, "depth-32") == 0)
		read_at_random(32, 2000);
	else if (strcmp(what, "fsync") == 0)
		write_lasting(1, 800);
	else if (strcmp(what, "fsync-8") == 0)
		write_lasting(8, 800);
	else if (strcmp(what, "poll") == 0)
		poll_events(0, 100000);
	else if (strcmp(what, "poll-multishot") == 0)
		poll_events(1, 100000);
	else if (strcmp(what, "timeout") == 0)
		tick(0, 10000);
	else if (strcmp(what, "timeout-multishot") == 0)
		tick(1, 10000);
	else if (strcmp(what, "large") == 0)
		read_large(16 << 20, 1);
	else if (strcmp(what, "large-pieces") == 0)
		read_large(4 << 20, 4);
	else
		exit(2);
}

int main(int argc, char **argv)
{
	struct timespec begin, end;
	struct rusage used;

	CHECK(argc == 3);
	file_name = argv[2];
	CHECK(io_uring_queue_init(64, &ring, IORING_SETUP_SINGLE_ISSUER) == 0);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	work(argv[1]);
	clock_gettime(CLOCK_MONOTONIC, &end);
	CHECK(getrusage(RUSAGE_SELF, &used) == 0);
	printf("%ld %ld\n", us_of(end) - us_of(begin),
	       (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000L + used.ru_utime.tv_usec + used.ru_stime.tv_usec);
	return 0;
}
