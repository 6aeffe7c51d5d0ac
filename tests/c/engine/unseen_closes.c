/* Descriptors that the program closes by its own instructions, without a call of any library, and whose numbers it
 * reuses. Cached state about such a number must not be used. */
#include "engine.h"

static char buffer[8];

/* Closes a pipe's reading end by an instruction. The next pipe gets its number. */
static void reuse_number(int old[2], int new[2])
{
	CHECK(raw6(SYS_close, old[0], 0, 0, 0, 0, 0) == 0);
	CHECK(pipe(new) == 0 && new[0] == old[0]);
}

/* A READ on the number waits for the file that it names now. */
static void a_reused_number_is_found(void)
{
	struct io_uring ring;

	init_ring(&ring, 8, 0);
	for (int round = 0; round < 10; round++) {
		int old[2], new[2];

		CHECK(pipe(old) == 0);
		submit_read(&ring, old[0], buffer, 1, 1);
		write_all(old[1], "o");
		expect(&ring, 1, 1);
		reuse_number(old, new);
		submit_read(&ring, new[0], buffer, 1, 2);
		if (round % 2) { /* asleep in enter when it comes */
			struct io_uring_cqe *cqe;

			CHECK(wait_ms(&ring, &cqe, 10) == -ETIME);
		}
		write_all(new[1], "n");
		expect(&ring, 2, 1);
		CHECK(buffer[0] == 'n');
		CHECK(close(old[1]) == 0 && close(new[0]) == 0 && close(new[1]) == 0);
	}
}

/* A duplicate keeps the old file open, and with it the epoll registration under the old number. An event of the old
 * file must not count as an event of the new one. */
static void events_of_the_old_file_do_not_count(void)
{
	int old[2], new[2], duplicate;
	struct io_uring_cqe *cqe;
	struct io_uring ring;

	init_ring(&ring, 8, 0);
	CHECK(pipe(old) == 0);
	submit_read(&ring, old[0], buffer, 1, 1);
	write_all(old[1], "o");
	expect(&ring, 1, 1);
	duplicate = fcntl(old[0], F_DUPFD, 100);
	CHECK(duplicate >= 0);
	reuse_number(old, new);
	io_uring_prep_poll_add(next_sqe(&ring), new[0], POLLIN);
	submit(&ring, 1);
	CHECK(wait_ms(&ring, &cqe, 10) == -ETIME);
	write_all(old[1], "o");
	CHECK(wait_ms(&ring, &cqe, 50) == -ETIME);
	write_all(new[1], "n");
	expect(&ring, 0, POLLIN);
}

CASES({"reused", a_reused_number_is_found},
      {"stale", events_of_the_old_file_do_not_count})
