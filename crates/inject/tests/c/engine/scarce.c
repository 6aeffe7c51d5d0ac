/* What a program may leave itself little of: locked memory. Each case makes do with what is enough natively. */
#include "engine.h"

#include <sys/mman.h>

enum { NOBODY = 65534, LOCKED_BYTES = 640 * 1024, REST_BYTES = 256 * 1024, MANY_RINGS = 4, BEYOND_THE_CQ = 3000 };

/* Whatever is mapped from now on is locked, and there may be no more of it than LOCKED_BYTES. */
static void limit_locked(void)
{
	struct rlimit limit = {LOCKED_BYTES, LOCKED_BYTES};

	CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	if (getuid() == 0) /* which no limit binds */
		CHECK(setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
}

/* A READ that waits, and more CQEs than fit. */
static void use_ring(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	char byte;
	int ends[2], seen = 0;

	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	submit_read(ring, ends[0], &byte, 1, 1);
	for (int i = 0; i < BEYOND_THE_CQ; i++) {
		prepare_nop(ring, 2);
		submit(ring, 1);
	}
	CHECK(write(ends[1], "x", 1) == 1);
	while (seen < BEYOND_THE_CQ + 1) {
		CHECK(wait_ms(ring, &cqe, LONG_MS) == 0);
		CHECK(cqe->res == (cqe->user_data == 1));
		io_uring_cqe_seen(ring, cqe);
		seen++;
	}
	close(ends[0]);
	close(ends[1]);
}

static void use_rings_and_the_rest(void)
{
	struct io_uring rings[MANY_RINGS];

	for (int i = 0; i < MANY_RINGS; i++) {
		init_ring(&rings[i], 8, 0);
		use_ring(&rings[i]);
	}
	/* What they do not take is the program's. */
	CHECK(mmap(NULL, REST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
	for (int i = 0; i < MANY_RINGS; i++)
		io_uring_queue_exit(&rings[i]);
}

static void locked(void)
{
	limit_locked();
	CHECK(mlockall(MCL_FUTURE) == 0);
	use_rings_and_the_rest();
}

static void locked_unseen(void)
{
	limit_locked();
	CHECK(unseen6(__NR_mlockall, MCL_FUTURE, 0, 0, 0, 0, 0) == 0);
	use_rings_and_the_rest();
}

CASES({"locked", locked}, {"locked-unseen", locked_unseen})
