/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Linked with the archive liburing.a inside a dynamic executable: its system calls are raw `syscall` instructions in
 * the program itself, so no symbol can be interposed.
 *
 * usage: static-liburing FILE
 *
 * Writes and reads FILE in parallel blocks and compares every byte, waits for a poll that is already ready and for
 * one that becomes ready, for a timeout that must not come early, and for a read that a linked timeout cancels. Then
 * reads FILE again through a ring of 8 entries that a thread polls (SQPOLL), waiting for room in it when it is full.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BLOCK (32 * 1024)
#define DEPTH 16
#define BLOCKS 128 /* 4 MiB */
#define TIMEOUT_MS 30

#define CHECK(condition, ...)                                                        \
	do {                                                                         \
		if (!(condition)) {                                                  \
			fprintf(stderr, "static-liburing: %s:%d: ", __FILE__, __LINE__); \
			fprintf(stderr, __VA_ARGS__);                                \
			fputc('\n', stderr);                                         \
			exit(1);                                                     \
		}                                                                    \
	} while (0)

static unsigned char blocks[DEPTH][BLOCK];

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

/* The byte that belongs at this offset of the file. */
static unsigned char pattern(uint64_t offset)
{
	return (unsigned char)((offset * 2654435761u) >> 13);
}

static struct io_uring_sqe *next_sqe(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	CHECK(sqe, "the submission queue is full");
	return sqe;
}

/* Waits for one completion, returns its res and stores its user_data. */
static int reap(struct io_uring *ring, uint64_t *user_data)
{
	struct io_uring_cqe *cqe;
	int res = io_uring_wait_cqe(ring, &cqe);

	CHECK(res == 0, "io_uring_wait_cqe: %s", strerror(-res));
	*user_data = io_uring_cqe_get_data64(cqe);
	res = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return res;
}

static void submit(struct io_uring *ring, int expected)
{
	int ret = io_uring_submit(ring);

	CHECK(ret == expected, "io_uring_submit returned %d, not %d", ret, expected);
}

/* One batch of DEPTH blocks, written or read; read blocks are compared with the pattern. */
static void transfer(struct io_uring *ring, int fd, unsigned first_block, int writing)
{
	unsigned seen = 0;
	uint64_t slot;

	for (unsigned i = 0; i < DEPTH; i++) {
		uint64_t offset = (uint64_t)(first_block + i) * BLOCK;
		struct io_uring_sqe *sqe = next_sqe(ring);

		if (writing) {
			for (unsigned byte = 0; byte < BLOCK; byte++)
				blocks[i][byte] = pattern(offset + byte);
			io_uring_prep_write(sqe, fd, blocks[i], BLOCK, offset);
		} else {
			memset(blocks[i], 0xee, BLOCK);
			io_uring_prep_read(sqe, fd, blocks[i], BLOCK, offset);
		}
		io_uring_sqe_set_data64(sqe, i);
	}
	submit(ring, DEPTH);
	for (unsigned i = 0; i < DEPTH; i++) {
		int res = reap(ring, &slot);

		CHECK(res == BLOCK, "a block of %d bytes completed with %d", BLOCK, res);
		CHECK(slot < DEPTH && !(seen & (1u << slot)), "user_data %llu came twice or was never ours",
		      (unsigned long long)slot);
		seen |= 1u << slot;
	}
	for (unsigned i = 0; !writing && i < DEPTH; i++)
		for (unsigned byte = 0; byte < BLOCK; byte++)
			CHECK(blocks[i][byte] == pattern((uint64_t)(first_block + i) * BLOCK + byte),
			      "block %u byte %u differs", first_block + i, byte);
}

static void file_round_trip(struct io_uring *ring, const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	uint64_t user_data;
	int res;

	CHECK(fd >= 0, "open %s: %s", path, strerror(errno));
	for (unsigned block = 0; block < BLOCKS; block += DEPTH)
		transfer(ring, fd, block, 1);
	io_uring_prep_fsync(next_sqe(ring), fd, IORING_FSYNC_DATASYNC);
	submit(ring, 1);
	res = reap(ring, &user_data);
	CHECK(res == 0, "fsync completed with %d", res);
	for (unsigned block = 0; block < BLOCKS; block += DEPTH)
		transfer(ring, fd, block, 0);
	close(fd);
}

static void timeout_is_not_early(struct io_uring *ring)
{
	struct __kernel_timespec ts = { .tv_nsec = TIMEOUT_MS * 1000000ll };
	uint64_t start = now_ns(), user_data;
	int res;

	io_uring_prep_timeout(next_sqe(ring), &ts, 0, 0);
	submit(ring, 1);
	res = reap(ring, &user_data);
	CHECK(res == -ETIME, "the timeout completed with %d", res);
	CHECK(now_ns() - start >= TIMEOUT_MS * 1000000ull, "the timeout came after %llu ns",
	      (unsigned long long)(now_ns() - start));
}

static void poll_wakes(struct io_uring *ring)
{
	int fds[2];
	uint64_t user_data;
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
	int res;

	CHECK(pipe(fds) == 0, "pipe: %s", strerror(errno));
	sqe = next_sqe(ring);
	io_uring_prep_poll_add(sqe, fds[0], POLLIN);
	io_uring_sqe_set_data64(sqe, 77);
	submit(ring, 1);
	CHECK(io_uring_peek_cqe(ring, &cqe) == -EAGAIN, "a poll on an empty pipe completed at once");
	CHECK(write(fds[1], "x", 1) == 1, "write to the pipe: %s", strerror(errno));
	res = reap(ring, &user_data);
	CHECK(res > 0 && (res & POLLIN) && user_data == 77, "the poll completed with %#x, user_data %llu",
	      (unsigned)res, (unsigned long long)user_data);
	close(fds[0]);
	close(fds[1]);
}

static void linked_timeout_cancels(struct io_uring *ring)
{
	struct __kernel_timespec ts = { .tv_nsec = TIMEOUT_MS * 1000000ll };
	struct io_uring_sqe *sqe;
	int fds[2], read_res = 0, timeout_res = 0;
	char byte;

	CHECK(pipe(fds) == 0, "pipe: %s", strerror(errno));
	sqe = next_sqe(ring);
	io_uring_prep_read(sqe, fds[0], &byte, 1, 0);
	sqe->flags |= IOSQE_IO_LINK;
	io_uring_sqe_set_data64(sqe, 1);
	sqe = next_sqe(ring);
	io_uring_prep_link_timeout(sqe, &ts, 0);
	io_uring_sqe_set_data64(sqe, 2);
	submit(ring, 2);
	for (int i = 0; i < 2; i++) {
		uint64_t user_data;
		int res = reap(ring, &user_data);

		if (user_data == 1)
			read_res = res;
		else
			timeout_res = res;
	}
	CHECK(read_res == -ECANCELED, "the read completed with %d", read_res);
	CHECK(timeout_res == -ETIME, "the linked timeout completed with %d", timeout_res);
	close(fds[0]);
	close(fds[1]);
}

/* Every block again, from a thread that polls the queue: at full speed, and with pauses in which it falls asleep. */
static void polled_reads(const char *file)
{
	struct io_uring_params params = { .flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 2 };
	struct io_uring ring;
	int submitted = 0, reaped = 0, fd = open(file, O_RDONLY);
	int ret = io_uring_queue_init_params(8, &ring, &params);

	CHECK(fd >= 0, "open: %s", strerror(errno));
	CHECK(ret == 0, "io_uring_queue_init_params with SQPOLL: %s", strerror(-ret));
	while (reaped < BLOCKS) {
		struct io_uring_cqe *cqe;
		int block;

		/* A window at a time: blocks come back in any order, and each has a buffer of its own in the window. */
		while (submitted < BLOCKS && (reaped == submitted || submitted % DEPTH != 0)) {
			struct io_uring_sqe *sqe;

			while (!(sqe = io_uring_get_sqe(&ring))) {
				ret = io_uring_sqring_wait(&ring);
				CHECK(ret >= 0, "io_uring_sqring_wait: %s", strerror(-ret));
			}
			io_uring_prep_read(sqe, fd, blocks[submitted % DEPTH], BLOCK, (uint64_t)submitted * BLOCK);
			io_uring_sqe_set_data64(sqe, submitted++);
			ret = io_uring_submit(&ring);
			CHECK(ret >= 0, "io_uring_submit: %s", strerror(-ret));
			if (submitted % 32 == 0)
				usleep(5000);
		}
		ret = io_uring_wait_cqe(&ring, &cqe);
		CHECK(ret == 0, "io_uring_wait_cqe: %s", strerror(-ret));
		block = (int)cqe->user_data;
		CHECK(cqe->res == BLOCK, "the polled read of block %d: %d", block, cqe->res);
		io_uring_cqe_seen(&ring, cqe);
		for (int i = 0; i < BLOCK; i++)
			CHECK(blocks[block % DEPTH][i] == pattern((uint64_t)block * BLOCK + i), "block %d differs", block);
		reaped++;
	}
	close(fd);
	io_uring_queue_exit(&ring);
}

int main(int argc, char **argv)
{
	struct io_uring ring;
	int ret;

	if (argc != 2) {
		fprintf(stderr, "usage: static-liburing FILE\n");
		return 2;
	}
	ret = io_uring_queue_init(64, &ring, 0);
	CHECK(ret == 0, "io_uring_queue_init: %s", strerror(-ret));
	file_round_trip(&ring, argv[1]);
	timeout_is_not_early(&ring);
	poll_wakes(&ring);
	linked_timeout_cancels(&ring);
	io_uring_queue_exit(&ring);
	polled_reads(argv[1]);
	printf("static-liburing: %d bytes written, read back and compared; timeout, poll and link timeout as they should be\n",
	       BLOCKS * BLOCK);
	return 0;
}
