/* Files that anyring writes for an observer of the program are removed or truncated while the program runs. The program
 * must continue. With the kernel's io_uring there are no such files. */
#include "engine.h"

static struct io_uring ring;

static void use_the_ring(void)
{
	for (int i = 0; i < 100; i++) {
		prepare_nop(&ring, i);
		submit(&ring, 1);
		expect(&ring, i, 0);
	}
	io_uring_queue_exit(&ring);
	init_ring(&ring, 8, 0);
	prepare_nop(&ring, 1);
	submit(&ring, 1);
	expect(&ring, 1, 0);
}

/* Truncates, then removes, the file that `variable` names. Uses the ring after each step. */
static void file_is_truncated(const char *variable)
{
	const char *name = getenv(variable);

	init_ring(&ring, 8, 0);
	use_the_ring();
	if (name) {
		CHECK(truncate(name, 0) == 0);
		use_the_ring();
		CHECK(unlink(name) == 0);
	}
	use_the_ring();
}

static void counters_are_truncated(void)
{
	file_is_truncated("ANYRING_STATS");
}

static void events_are_truncated(void)
{
	file_is_truncated("ANYRING_TRACE");
}

CASES({"counters", counters_are_truncated}, {"events", events_are_truncated})
