/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Submits and reaps one NOP at a time through liburing and prints what one costs.
 *
 * usage: nop [ROUNDS [BATCHES]]
 *
 * Each batch times ROUNDS round trips (io_uring_submit, io_uring_wait_cqe, io_uring_cqe_seen); the line printed is
 * the median batch, so that one interruption does not colour the result. Every completion is checked: a NOP that
 * comes back with another user_data or with an error ends the program with status 1.
 */
#include <errno.h>
#include <liburing.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_BATCHES 1000

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static int by_value(const void *left, const void *right)
{
	double l = *(const double *)left, r = *(const double *)right;

	return (l > r) - (l < r);
}

static int one_nop(struct io_uring *ring, uint64_t tag)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	struct io_uring_cqe *cqe;
	int ret;

	if (!sqe) {
		fprintf(stderr, "nop: no free SQE on an idle ring\n");
		return -1;
	}
	io_uring_prep_nop(sqe);
	io_uring_sqe_set_data64(sqe, tag);
	ret = io_uring_submit(ring);
	if (ret != 1) {
		fprintf(stderr, "nop: io_uring_submit returned %d\n", ret);
		return -1;
	}
	ret = io_uring_wait_cqe(ring, &cqe);
	if (ret < 0) {
		fprintf(stderr, "nop: io_uring_wait_cqe: %s\n", strerror(-ret));
		return -1;
	}
	if (cqe->res != 0 || io_uring_cqe_get_data64(cqe) != tag) {
		fprintf(stderr, "nop: completion %llu has res %d, user_data %llu\n", (unsigned long long)tag, cqe->res,
			(unsigned long long)io_uring_cqe_get_data64(cqe));
		return -1;
	}
	io_uring_cqe_seen(ring, cqe);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 10000;
	unsigned long batches = argc > 2 ? strtoul(argv[2], NULL, 10) : 21;
	static double ns_each[MAX_BATCHES];
	struct io_uring ring;
	uint64_t tag = 1;
	int ret;

	if (!rounds || !batches || batches > MAX_BATCHES) {
		fprintf(stderr, "usage: nop [ROUNDS [BATCHES, at most %d]]\n", MAX_BATCHES);
		return 2;
	}
	ret = io_uring_queue_init(8, &ring, 0);
	if (ret < 0) {
		fprintf(stderr, "nop: io_uring_queue_init: %s\n", strerror(-ret));
		return 1;
	}
	for (unsigned long batch = 0; batch < batches; batch++) {
		uint64_t start = now_ns();

		for (unsigned long round = 0; round < rounds; round++)
			if (one_nop(&ring, tag++) < 0)
				return 1;
		ns_each[batch] = (double)(now_ns() - start) / (double)rounds;
	}
	io_uring_queue_exit(&ring);
	qsort(ns_each, batches, sizeof(ns_each[0]), by_value);
	printf("nop: %lu completions verified, %.1f ns each (median of %lu batches)\n", rounds * batches,
	       ns_each[batches / 2], batches);
	return 0;
}
