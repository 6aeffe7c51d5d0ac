/* No memory is left: RLIMIT_AS is slightly above the current use, or max_map_count is used up. The program continues
 * whatever it does. Calls and requests fail as under memory pressure in the kernel, and every accepted request has its
 * CQE. Once there is memory, everything works as before. With the kernel's io_uring nothing fails, since its rings take
 * none of the program's address space. */
#include "engine.h"

#include <linux/aio_abi.h>
#include <sys/mman.h>

enum { ENTRIES = 256, MANY = 100000, MIB = 1 << 20 };

static struct rlimit unlimited;

/* Lets the program map only this many more bytes from now on. */
static void limit(long bytes)
{
	unsigned long pages;
	FILE *statm;

	need_proc();
	statm = fopen("/proc/self/statm", "r");
	CHECK(statm && fscanf(statm, "%lu", &pages) == 1);
	fclose(statm);
	CHECK(getrlimit(RLIMIT_AS, &unlimited) == 0);
	struct rlimit limited = {pages * 4096 + bytes, unlimited.rlim_max};
	CHECK(setrlimit(RLIMIT_AS, &limited) == 0);
}

static void unlimit(void)
{
	CHECK(setrlimit(RLIMIT_AS, &unlimited) == 0);
}

/* Submits the SQEs in the SQ. Returns their number, or 0 if there is no memory for any of them. */
static unsigned submit_some(struct io_uring *ring)
{
	int result = io_uring_submit(ring);

	CHECK(answer(result) >= 0 || result == -EAGAIN);
	return result < 0 ? 0 : result;
}

/* Reaps `count` CQEs. Each has one of these results. */
static void collect(struct io_uring *ring, unsigned long count, int result, int other)
{
	while (count) {
		struct io_uring_cqe *cqe;

		CHECK(wait_ms(ring, &cqe, LONG_MS) == 0);
		if (cqe->res != result && cqe->res != other && cqe->res != -ENOMEM && cqe->res != -EAGAIN)
			CHECK(answer(cqe->res) == result);
		io_uring_cqe_seen(ring, cqe);
		count--;
	}
	CHECK(!io_uring_cq_ready(ring));
}

/* The ring serves a request as before, after the remaining SQEs. */
static void works(struct io_uring *ring)
{
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;

	while (!(sqe = io_uring_get_sqe(ring)))
		CHECK(answer(io_uring_submit(ring)) > 0);
	io_uring_prep_nop(sqe);
	sqe->user_data = ~0UL;
	CHECK(answer(io_uring_submit(ring)) > 0);
	do {
		CHECK(wait_ms(ring, &cqe, LONG_MS) == 0);
		io_uring_cqe_seen(ring, cqe);
	} while (cqe->user_data != ~0UL);
}

static int ends[2];

static void prepare_poll(struct io_uring_sqe *sqe)
{
	io_uring_prep_poll_add(sqe, ends[0], POLLIN);
}

static char bytes[64 * 1024];
static struct iovec iovecs[1024];

static void prepare_vectors(struct io_uring_sqe *sqe)
{
	io_uring_prep_readv(sqe, ends[0], iovecs, 1024, 0);
}

static struct __kernel_timespec hour = {3600, 0};

static void prepare_timeout(struct io_uring_sqe *sqe)
{
	io_uring_prep_timeout(sqe, &hour, 1000000, 0);
}

/* Submits SQEs from `prepare` until there is no memory, or many have been submitted. */
static unsigned long submit_many(struct io_uring *ring, void (*prepare)(struct io_uring_sqe *), unsigned flags,
				 unsigned long many)
{
	unsigned long taken = 0;

	while (taken < many) {
		struct io_uring_sqe *sqe;

		while ((sqe = io_uring_get_sqe(ring))) {
			prepare(sqe);
			sqe->flags |= flags;
			sqe->user_data = 7;
		}
		unsigned some = submit_some(ring);

		taken += some;
		if (!some)
			break;
	}
	CHECK(taken > 0);
	return taken;
}

static void submits_polls(void)
{
	struct io_uring ring;

	CHECK(pipe(ends) == 0);
	init_ring(&ring, ENTRIES, 0);
	limit(MIB);
	unsigned long taken = submit_many(&ring, prepare_poll, 0, MANY);
	write_all(ends[1], "x");
	collect(&ring, taken, POLLIN, POLLIN);
	works(&ring); /* the memory of the polls is free again */
	unlimit();
	works(&ring);
}

static void submits_deferred_polls(void)
{
	struct io_uring ring;

	CHECK(pipe(ends) == 0);
	init_ring(&ring, ENTRIES, DEFERRED);
	limit(MIB);
	unsigned long taken = submit_many(&ring, prepare_poll, 0, MANY);
	write_all(ends[1], "x");
	collect(&ring, taken, POLLIN, POLLIN);
	unlimit();
	works(&ring);
}

static void submits_vectors(void)
{
	struct io_uring ring;

	for (int i = 0; i < 1024; i++)
		iovecs[i] = (struct iovec){bytes + i, 1};
	CHECK(pipe(ends) == 0);
	init_ring(&ring, ENTRIES, 0);
	limit(MIB);
	unsigned long taken = submit_many(&ring, prepare_vectors, 0, 5000);
	CHECK(close(ends[1]) == 0);
	collect(&ring, taken, 0, 0);
	works(&ring);
	unlimit();
	works(&ring);
}

static void submits_timeouts(void)
{
	struct io_uring ring;

	init_ring(&ring, ENTRIES, 0);
	limit(MIB);
	unsigned long taken = submit_many(&ring, prepare_timeout, 0, MANY / 4);
	unlimit();
	/* The rest of the SQ is submitted before the cancel. */
	unsigned left = io_uring_sq_ready(&ring);
	struct io_uring_sqe *sqe;
	while (!(sqe = io_uring_get_sqe(&ring)))
		taken += submit_some(&ring), left = 0;
	io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
	sqe->user_data = 8;
	submit(&ring, left + 1);
	taken += left;
	for (unsigned long others = 0; others < taken + 1; others++) {
		struct io_uring_cqe *cqe;

		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
		CHECK(cqe->user_data == 8 ? cqe->res > 0 : cqe->res == -ECANCELED || cqe->res == -ENOMEM);
		io_uring_cqe_seen(&ring, cqe);
	}
	works(&ring);
}

static void submits_chains(void)
{
	struct io_uring ring;

	CHECK(pipe(ends) == 0);
	init_ring(&ring, ENTRIES, 0);
	limit(MIB);
	unsigned long taken = submit_many(&ring, prepare_poll, IOSQE_IO_LINK, MANY);
	write_all(ends[1], "x");
	collect(&ring, taken, POLLIN, -ECANCELED);
	works(&ring);
	unlimit();
	works(&ring);
}

static int file;

static void prepare_file_read(struct io_uring_sqe *sqe)
{
	io_uring_prep_read(sqe, file, bytes, 16, 0);
}

static void workers(void)
{
	struct io_uring ring;
	char name[] = "memory-XXXXXX";

	file = mkstemp(name);
	CHECK(file >= 0 && unlink(name) == 0);
	write_all(file, "sixteen bytes...");
	init_ring(&ring, ENTRIES, 0);
	limit(MIB);
	for (int round = 0; round < 20; round++)
		collect(&ring, submit_many(&ring, prepare_file_read, IOSQE_ASYNC, 1000), 16, 16);
	unlimit();
	works(&ring);
}

/* Buffers are provided without end. */
static void provides(void)
{
	struct io_uring ring;
	int refused = 0;

	init_ring(&ring, ENTRIES, 0);
	limit(MIB);
	for (int group = 0; group < 16; group++) {
		struct io_uring_sqe *sqe = next_sqe(&ring);
		struct io_uring_cqe *cqe;

		io_uring_prep_provide_buffers(sqe, bytes, 1, 65535, group, 0);
		if (!submit_some(&ring))
			break;
		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
		CHECK(cqe->res == 0 || cqe->res == -ENOMEM);
		refused += cqe->res != 0;
		io_uring_cqe_seen(&ring, cqe);
	}
	unlimit();
	works(&ring);
}

static void setups(void)
{
	static struct io_uring rings[200];
	int made = 0;

	init_ring(&rings[made++], 8, 0);
	limit(2 * MIB);
	for (; made < 200; made++) {
		int result = io_uring_queue_init(64, &rings[made], 0);

		CHECK(answer(result) == 0 || result == -ENOMEM || result == -EAGAIN || result == -EMFILE);
		if (result)
			break;
	}
	CHECK(made > 1);
	unlimit();
	for (int i = 0; i < made; i++) {
		works(&rings[i]);
		io_uring_queue_exit(&rings[i]);
	}
}

static int fds[16384];
static struct iovec ranges[16384];

static void registers(void)
{
	static struct io_uring rings[16];
	struct rlimit files = {20000, 0};
	struct rlimit now;
	int null = open("/dev/null", O_RDWR);

	CHECK(null >= 0 && getrlimit(RLIMIT_NOFILE, &now) == 0);
	files.rlim_max = now.rlim_max;
	CHECK(now.rlim_max < 20000 || setrlimit(RLIMIT_NOFILE, &files) == 0);
	for (int i = 0; i < 16; i++)
		init_ring(&rings[i], 8, 0);
	for (int i = 0; i < 16384; i++) {
		ranges[i] = (struct iovec){bytes, 4096};
		fds[i] = i % 64 ? -1 : null;
	}
	limit(MIB);
	for (int i = 0; i < 16; i++) {
		int result = io_uring_register_buffers(&rings[i], ranges, 16384);

		CHECK(answer(result) == 0 || result == -ENOMEM);
		result = io_uring_register_files(&rings[i], fds, 16384);
		CHECK(answer(result) == 0 || result == -ENOMEM || result == -EMFILE);
		works(&rings[i]);
	}
	unlimit();
	for (int i = 0; i < 16; i++)
		io_uring_queue_exit(&rings[i]);
}

static void submits_iocbs(void)
{
	enum { PLACES = 20000 };
	static struct iocb iocbs[PLACES];
	static struct io_event events[PLACES];
	aio_context_t context = 0;
	long taken = 0, ended = 0;

	CHECK(pipe(ends) == 0);
	CHECK(syscall(SYS_io_setup, PLACES, &context) == 0);
	limit(MIB);
	for (; taken < PLACES; taken++) {
		struct iocb *one = &iocbs[taken];

		one->aio_fildes = ends[0];
		one->aio_lio_opcode = IOCB_CMD_POLL;
		one->aio_buf = POLLIN;
		if (syscall(SYS_io_submit, context, 1, &one) != 1) {
			CHECK(errno == EAGAIN || errno == ENOMEM);
			break;
		}
	}
	CHECK(taken > 0);
	write_all(ends[1], "x");
	while (ended < taken) {
		long some = syscall(SYS_io_getevents, context, 1, PLACES, events, NULL);

		CHECK(some > 0);
		ended += some;
	}
	unlimit();
	CHECK(syscall(SYS_io_destroy, context) == 0);
}

static void forks(void)
{
	struct io_uring ring;

	CHECK(pipe(ends) == 0);
	init_ring(&ring, ENTRIES, 0);
	limit(MIB);
	unsigned long taken = submit_many(&ring, prepare_poll, 0, MANY);
	pid_t child = fork();
	if (!child) {
		struct io_uring own;
		int result = io_uring_queue_init(8, &own, 0);

		CHECK(answer(result) == 0 || result == -ENOMEM || result == -EAGAIN);
		unlimit();
		init_ring(&own, 8, 0);
		works(&own);
		_exit(0);
	}
	wait_for_child(child);
	write_all(ends[1], "x");
	collect(&ring, taken, POLLIN, POLLIN);
	unlimit();
	works(&ring);
}

/* Takes all mappings that the process may have. Neighbours differ in protection, so that the kernel joins no two of
 * them. */
static void take_mappings(void)
{
	for (int i = 0; i < 10000000; i++) {
		int protection = i % 2 ? PROT_READ : PROT_READ | PROT_WRITE;

		if (mmap(NULL, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) {
			CHECK(errno == ENOMEM);
			return;
		}
	}
	CHECK(!"a limit of mappings");
}

static void mappings(void)
{
	struct io_uring ring, other;

	CHECK(pipe(ends) == 0);
	init_ring(&ring, ENTRIES, 0);
	take_mappings();
	unsigned long taken = submit_many(&ring, prepare_poll, 0, MANY);
	int result = io_uring_queue_init(64, &other, 0);
	CHECK(answer(result) == 0 || result == -ENOMEM || result == -EAGAIN);
	write_all(ends[1], "x");
	collect(&ring, taken, POLLIN, POLLIN);
}

CASES({"polls", submits_polls}, {"deferred-polls", submits_deferred_polls}, {"vectors", submits_vectors},
      {"timeouts", submits_timeouts}, {"chains", submits_chains}, {"workers", workers}, {"provides", provides},
      {"setups", setups}, {"registers", registers}, {"aio", submits_iocbs}, {"forks", forks}, {"mappings", mappings})
