/* Closes many descriptors at once while a ring has a read in flight on a pipe. argv[1] names the way; argv[2] says by
 * libc's functions, by libc's syscall() or by instruction. Afterwards the ring works. All descriptors that are not the
 * program's survive. Under anyring these are the engine's. With the kernel's io_uring there are none. */
#include "raw.h"
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/wait.h>

static enum { LIBC, SYSCALL, INSTRUCTION } way;

static int answer_of(long answer)
{
	if (answer >= 0)
		return answer;
	errno = -answer;
	return -1;
}

static int close_one(int fd)
{
	return way == LIBC ? close(fd) :
	       way == SYSCALL ? syscall(SYS_close, fd) : answer_of(raw6(SYS_close, fd, 0, 0, 0, 0, 0));
}

static int close_all(unsigned first, unsigned last, int flags)
{
	return way == LIBC ? close_range(first, last, flags) :
	       way == SYSCALL ? syscall(SYS_close_range, first, last, flags) :
				answer_of(raw6(SYS_close_range, first, last, flags, 0, 0, 0));
}

static int replace(int old, int new)
{
	return way == LIBC ? dup2(old, new) :
	       way == SYSCALL ? syscall(SYS_dup2, old, new) : answer_of(raw6(SYS_dup2, old, new, 0, 0, 0, 0));
}

static int replace_with(int old, int new, int flags)
{
	return way == LIBC ? dup3(old, new, flags) :
	       way == SYSCALL ? syscall(SYS_dup3, old, new, flags) :
				answer_of(raw6(SYS_dup3, old, new, flags, 0, 0, 0));
}

static struct ring ring;
static int pipes[2];

static int is_used(int fd)
{
	return fd == ring.fd || fd == pipes[0] || fd == pipes[1];
}

/* Ends the read in flight, which gets `byte`. */
static void finish_read(char *into, char byte)
{
	uint64_t user_data;
	int res;

	CHECK(write(pipes[1], &byte, 1) == 1);
	while (!ring_reap(&ring, &user_data, &res))
		CHECK(ring_enter(&ring, 0, 1) == 0);
	CHECK(res == 1 && *into == byte);
}

/* The targets of open descriptors from 3 on that the program did not open itself. */
static char names[4096][64];

static int name_of(int fd, char name[64])
{
	char path[32];
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, name, 63);
	name[length < 0 ? 0 : length] = 0;
	return length >= 0;
}

/* Fills `names`. Returns the lowest number, or -1. */
static int find_foreign(void)
{
	int lowest = -1;

	for (int fd = 4095; fd >= 3; fd--)
		if (!is_used(fd) && name_of(fd, names[fd]))
			lowest = fd;
	return lowest;
}

/* Checks that each of these descriptors is still there. The engine may have made more by itself since they were
 * listed. */
static void all_are_left(void)
{
	char name[64];

	for (int fd = 3; fd < 4096; fd++) {
		if (!names[fd][0] || (name_of(fd, name) && !strcmp(name, names[fd])))
			continue;
		fprintf(stderr, "%d was %s, is %s\n", fd, names[fd], name);
		CHECK(!"every descriptor is left");
	}
}

static void by_loop(void)
{
	for (int fd = 3; fd < 70000; fd++)
		if (!is_used(fd))
			CHECK(close_one(fd) == -1 && errno == EBADF);
}

/* Closes the numbers between and after those in use. */
static void around(int flags)
{
	unsigned from = 3;

	for (int fd = 3; fd < 4096; fd++) {
		if (!is_used(fd))
			continue;
		if ((unsigned)fd > from)
			CHECK(close_all(from, fd - 1, flags) == 0);
		from = fd + 1;
	}
	CHECK(close_all(from, ~0U, flags) == 0);
}

static void after(void)
{
	closefrom((ring.fd > pipes[1] ? ring.fd : pipes[1]) + 1);
}

/* `number` is the engine's own. With the kernel's io_uring there is no such number. */
static void singly(int number)
{
	if (number < 0)
		return;
	CHECK(close_one(number) == -1 && errno == EBADF);
	CHECK(replace(0, number) == -1 && errno == EBUSY);
	CHECK(replace_with(0, number, O_CLOEXEC) == -1 && errno == EBUSY);
	/* A call that the kernel refuses anyway fails with the kernel's error. */
	CHECK(replace(-1, number) == -1 && errno == EBADF);
	CHECK(replace_with(0, number, O_APPEND) == -1 && errno == EINVAL);
	CHECK(close_all(number, number, 0) == 0);
}

static void refused(void)
{
	CHECK(close_all(9, 3, 0) == -1 && errno == EINVAL);
	CHECK(close_all(3, ~0U, 8) == -1 && errno == EINVAL);
	CHECK(replace(-1, ring.fd) == -1 && errno == EBADF);
	CHECK(replace_with(0, ring.fd, O_APPEND) == -1 && errno == EINVAL);
}

/* A child that shares its parent's memory, but not its descriptors, closes all of its own. */
static void in_a_vfork_child(int how)
{
	pid_t child = vfork();
	int status;

	if (child == 0) {
		if (how == 0)
			for (int fd = 3; fd < 4096; fd++)
				close_one(fd);
		else if (how == 1)
			close_all(3, ~0U, 0);
		else
			closefrom(3);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void close_by(const char *how, int foreign)
{
	if (!strcmp(how, "loop"))
		by_loop();
	else if (!strcmp(how, "range"))
		around(0);
	else if (!strcmp(how, "range-cloexec"))
		around(CLOSE_RANGE_CLOEXEC);
	else if (!strcmp(how, "range-unshare"))
		around(CLOSE_RANGE_UNSHARE);
	else if (!strcmp(how, "closefrom"))
		after();
	else if (!strcmp(how, "singly"))
		singly(foreign);
	else if (!strcmp(how, "refused"))
		refused();
	else if (!strcmp(how, "vfork"))
		for (int i = 0; i < 3; i++)
			in_a_vfork_child(i);
	else
		CHECK(!"a known way");
}

int main(int argc, char **argv)
{
	int foreign;
	char byte = 0;

	CHECK(argc == 3);
	way = !strcmp(argv[2], "libc") ? LIBC : !strcmp(argv[2], "syscall") ? SYSCALL : INSTRUCTION;
	expect_trap();
	CHECK(close_range(3, ~0U, 0) == 0); /* close what the caller left open */
	CHECK(pipe(pipes) == 0);
	CHECK(ring_open(&ring, 8) == 0);
	ring_read(&ring, pipes[0], &byte);
	foreign = find_foreign();
	CHECK((foreign > 0) == filtered());
	close_by(argv[1], foreign);
	all_are_left();
	finish_read(&byte, 'x');
	ring_read(&ring, pipes[0], &byte);
	finish_read(&byte, 'y');
	puts("done");
	return 0;
}
