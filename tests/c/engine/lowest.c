/* While requests wait or are with workers, every open gets the lowest free number. A library that was built with
 * assertions reports on standard error if one of its own threads takes that number for a moment. */
#include "engine.h"

static int lowest;

/* Takes the lowest number again and again until `count` CQEs are there, or for a while. */
static void take_lowest(struct io_uring *ring, unsigned count, int ms)
{
	struct timespec begun, now;

	clock_gettime(CLOCK_MONOTONIC, &begun);
	do {
		int taken = dup(0);

		CHECK(taken == lowest && close(taken) == 0);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (io_uring_cq_ready(ring) < count &&
		 (now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < ms);
}

/* A worker completes an FSYNC. Because of `flags` and `more_flags` a READ comes after it, and then waits for a pipe. No
 * thread is in io_uring_enter(2). */
static void wait_after_worker(int flags, int more_flags)
{
	char name[] = "lowest-XXXXXX", byte;
	int file = mkstemp(name), ends[2];
	struct io_uring ring;

	CHECK(file >= 0 && unlink(name) == 0 && pipe(ends) == 0);
	init_ring(&ring, 8, 0);
	lowest = dup(0);
	CHECK(lowest > 0 && close(lowest) == 0);
	io_uring_prep_fsync(next_sqe(&ring), file, 0);
	ring.sq.sqes[0].flags |= flags;
	prepare_read(&ring, ends[0], &byte, 1, 1)->flags |= more_flags;
	submit(&ring, 2);
	take_lowest(&ring, 1, LONG_MS);
	take(&ring, 0, 0);
	take_lowest(&ring, 1, 20);
	write_all(ends[1], "x");
	take_lowest(&ring, 1, LONG_MS);
	take(&ring, 1, 1);
	io_uring_queue_exit(&ring);
	CHECK(close(file) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void waits_of_workers(void)
{
	wait_after_worker(0, IOSQE_ASYNC);
	wait_after_worker(IOSQE_IO_LINK, 0);
	wait_after_worker(0, IOSQE_IO_DRAIN);
}

/* The program closes a file while a request uses it. Once the request has ended, the file is no longer open. */
static void files_of_requests(void)
{
	struct io_uring ring;
	int ends[2];
	char byte;

	init_ring(&ring, 8, 0);
	for (int round = 0; round < 20; round++) {
		CHECK(pipe(ends) == 0);
		lowest = dup(0);
		CHECK(lowest > 0 && close(lowest) == 0);
		prepare_read(&ring, ends[0], &byte, 1, 1)->flags |= IOSQE_ASYNC;
		submit(&ring, 1);
		lowest = ends[0];
		CHECK(close(ends[0]) == 0);
		take_lowest(&ring, 1, 2);
		write_all(ends[1], "x");
		take_lowest(&ring, 1, LONG_MS);
		take(&ring, 1, 1);
		take_lowest(&ring, 1, 2);
		CHECK(close(ends[1]) == 0);
	}
	io_uring_queue_exit(&ring);
}

CASES({"waits", waits_of_workers}, {"files", files_of_requests})
