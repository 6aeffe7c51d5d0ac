/* Many more completions than the CQ holds: all arrive, in order. */
#include "engine.h"

enum { ENTRIES = 64, REQUESTS = 20000, SIZE = 8 };

/* A file whose content is in the page cache, so that reads of it complete at once. */
static int make_file(void)
{
	char name[] = "overflow-XXXXXX";
	int file = mkstemp(name);

	CHECK(file >= 0);
	CHECK(unlink(name) == 0);
	write_all(file, "contents");
	return file;
}

static void completions_beyond_the_cq_keep_their_order(void)
{
	static char buffers[REQUESTS][SIZE];
	struct io_uring ring;
	struct io_uring_cqe *cqe;
	int file = make_file();

	init_ring(&ring, ENTRIES, 0);
	for (int i = 0; i < REQUESTS; i++) {
		if (io_uring_sq_space_left(&ring) == 0)
			submit(&ring, ENTRIES);
		if (i % 2)
			prepare_read(&ring, file, buffers[i], SIZE, i);
		else
			prepare_nop(&ring, i);
	}
	CHECK(answer(io_uring_submit(&ring)) > 0);
	CHECK(*ring.sq.kflags & IORING_SQ_CQ_OVERFLOW);
	for (int i = 0; i < REQUESTS; i++) {
		CHECK(answer(io_uring_wait_cqe(&ring, &cqe)) == 0);
		take(&ring, i, i % 2 ? SIZE : 0);
		CHECK(i % 2 == 0 || !memcmp(buffers[i], "contents", SIZE));
	}
	CHECK(io_uring_peek_cqe(&ring, &cqe) == -EAGAIN);
	CHECK(!(*ring.sq.kflags & IORING_SQ_CQ_OVERFLOW));
	CHECK(*ring.cq.koverflow == 0);
}

CASES({"order", completions_beyond_the_cq_keep_their_order})
