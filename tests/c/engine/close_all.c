/* A program closes every descriptor from 3 on, its ring included, and makes a new ring. */
#include "engine.h"

static char buffer[8];
static int pipes[2];

static void begin_read(struct io_uring *ring)
{
	CHECK(pipe(pipes) == 0);
	init_ring(ring, 8, 0);
	submit_read(ring, pipes[0], buffer, 1, 1);
	wait_others_asleep(0); /* until the helper, too, watches the pending request */
}

static void close_everything(void)
{
	if (close_range(3, ~0U, 0) != 0) {
		CHECK(errno == ENOSYS);
		closefrom(3);
	}
	wait_others_asleep(0);
}

/* The next ring is served as the first was, even while the program makes no call on it. */
static void a_ring_afterwards_is_served(void)
{
	struct io_uring first, second;

	close_everything();
	begin_read(&first);
	close_everything();
	begin_read(&second);
	write_all(pipes[1], "x");
	only_look(&second);
	take(&second, 1, 1);
}

static int make_file(void)
{
	char name[] = "wholesale-XXXXXX";
	int file = mkstemp(name);

	CHECK(file >= 0);
	CHECK(unlink(name) == 0);
	return file;
}

static void use_more_rings_beside(int file)
{
	struct io_uring rings[2];

	for (int i = 0; i < 2; i++)
		begin_read(&rings[i]);
	write_all(pipes[1], "x");
	only_look(&rings[1]);
	CHECK(lseek(file, 0, SEEK_END) == 0);
}

/* The library must not write to a number that it remembers once the program has it. So each free number becomes the
 * file. */
static void free_numbers_become_a_file(void)
{
	struct io_uring ring;
	struct rlimit limit;
	int file;

	begin_read(&ring);
	close_everything();
	file = make_file();
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (int fd = 400; fd < 4096 && (rlim_t)fd < limit.rlim_cur; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			CHECK(dup2(file, fd) == fd);
	use_more_rings_beside(file);
}

/* As above, with just the numbers that were in use before the close. It is also correct if the library refuses to give
 * a number away. */
static void numbers_in_use_become_a_file(void)
{
	enum { MOST = 64, FIRST = 600 };
	int taken[MOST], count = 0, file;
	struct io_uring ring;

	begin_read(&ring);
	for (int fd = FIRST; fd < 4096 && count < MOST; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			taken[count++] = fd;
	close_everything();
	file = make_file();
	for (int i = 0; i < count; i++)
		CHECK(dup2(file, taken[i]) == taken[i] || errno == EBUSY);
	use_more_rings_beside(file);
}

CASES({"ring-afterwards", a_ring_afterwards_is_served},
      {"free-numbers", free_numbers_become_a_file},
      {"numbers-in-use", numbers_in_use_become_a_file})
