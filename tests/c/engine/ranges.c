/* Threads close ranges of descriptors while others make and end rings and requests. The program's own descriptors are
 * in no such range. */
#include "engine.h"

#include <pthread.h>

#define MAKERS 3
#define CLOSERS 2
#define ROUNDS 150
/* Rings may have lower numbers than this. */
#define FIRST 1000
/* Numbers that nobody closes. */
#define KEPT 2000
#define KEPT_END 2004

static atomic_int making;
/* Number of rings that each thread uses one after the other. */
static int uses = ROUNDS;
static char path[] = "ranges-XXXXXX";

static void close_by_range(unsigned first, unsigned last)
{
	CHECK(close_range(first, last, 0) == 0);
}

static void close_by_loop(unsigned first, unsigned last)
{
	for (unsigned fd = first; fd <= last && fd < 4096; fd++)
		close(fd);
}

static void close_from(unsigned first, unsigned last)
{
	(void)last;
	closefrom(first);
}

struct closer {
	void (*close)(unsigned first, unsigned last);
	unsigned first, last;
};

static void *keep_closing(void *argument)
{
	const struct closer *closer = argument;

	while (making)
		closer->close(closer->first, closer->last);
	return NULL;
}

/* A ring works, whatever ranges are closed meanwhile. */
static void *use_rings(void *unused)
{
	char name[] = "ranges-XXXXXX", buffer[8];
	int file = mkstemp(name);

	CHECK(file >= 0 && unlink(name) == 0);
	for (int i = 0; i < uses; i++) {
		struct io_uring_sqe *sqe;
		struct io_uring ring;
		int pipes[2];

		CHECK(pipe(pipes) == 0);
		init_ring(&ring, 8, i % 2 ? DEFERRED : 0);
		submit_read(&ring, pipes[0], buffer, 4, 1);
		sqe = next_sqe(&ring);
		io_uring_prep_fsync(sqe, file, 0);
		sqe->user_data = 2;
		sqe->flags |= IOSQE_ASYNC;
		submit(&ring, 1);
		expect(&ring, 2, 0);
		write_all(pipes[1], "abcd");
		expect(&ring, 1, 4);
		io_uring_queue_exit(&ring);
		CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
	}
	CHECK(close(file) == 0);
	making--;
	return unused;
}

/* Rings and files may be gone at once. So it checks nothing. */
static void *lose_rings(void *unused)
{
	for (int i = 0; i < ROUNDS; i++) {
		struct io_uring ring;

		for (int files = 0; files < 4; files++)
			open(path, O_RDWR);
		if (io_uring_queue_init(8, &ring, 0) == 0)
			io_uring_queue_exit(&ring);
	}
	making--;
	return unused;
}

static void make_and_close(void *(*make)(void *), const struct closer *closers)
{
	pthread_t makers[MAKERS], threads[CLOSERS];

	if (close_range(~0U, ~0U, 0) != 0)
		skip("there is no close_range(2)");
	making = MAKERS;
	for (int i = 0; i < CLOSERS; i++)
		CHECK(pthread_create(&threads[i], NULL, keep_closing, (void *)&closers[i]) == 0);
	for (int i = 0; i < MAKERS; i++)
		CHECK(pthread_create(&makers[i], NULL, make, NULL) == 0);
	for (int i = 0; i < MAKERS; i++)
		CHECK(pthread_join(makers[i], NULL) == 0);
	for (int i = 0; i < CLOSERS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

static void ranges(void)
{
	static const struct closer closers[] = {{close_by_range, FIRST, ~0U}, {close_by_range, FIRST, 4095}};

	make_and_close(use_rings, closers);
}

static void from(void)
{
	static const struct closer closers[] = {{close_from, FIRST, ~0U}, {close_from, FIRST, ~0U}};

	/* Enough for the mutation "closes-meet-changes" to be found in 25 runs of 25. */
	uses = 3 * ROUNDS;
	make_and_close(use_rings, closers);
}

static void loops(void)
{
	static const struct closer closers[] = {{close_by_loop, FIRST, 4095}, {close_by_loop, FIRST, 4095}};

	make_and_close(use_rings, closers);
}

/* Whatever the engine makes of numbers that were closed meanwhile, it touches none of the program's files. */
static void files(void (*close)(unsigned first, unsigned last))
{
	const struct closer closers[] = {{close, 3, KEPT - 1}, {close, KEPT_END, ~0U}};
	static char buffer[8];
	struct io_uring ring;
	int file = mkstemp(path), pipes[2];
	char text[32];

	CHECK(file >= 0);
	write_all(file, "the file's own text");
	for (int fd = KEPT; fd < KEPT_END; fd++)
		CHECK(dup2(file, fd) == fd);
	make_and_close(lose_rings, closers);
	close_range(3, KEPT - 1, 0);
	for (int fd = KEPT; fd < KEPT_END; fd++) {
		CHECK(lseek(fd, 0, SEEK_END) == strlen("the file's own text"));
		CHECK(pread(fd, text, sizeof(text), 0) == strlen("the file's own text"));
		CHECK(!memcmp(text, "the file's own text", strlen("the file's own text")));
		CHECK(fcntl(fd, F_GETFD) == 0);
	}
	CHECK(unlink(path) == 0);
	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], buffer, 4, 1);
	write_all(pipes[1], "abcd");
	only_look(&ring);
	expect(&ring, 1, 4);
}

static void files_and_ranges(void)
{
	files(close_by_range);
}

static void files_and_loops(void)
{
	files(close_by_loop);
}

CASES({"ranges", ranges},
      {"from", from},
      {"loops", loops},
      {"files-ranges", files_and_ranges},
      {"files-loops", files_and_loops})
