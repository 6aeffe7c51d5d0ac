/* A thread that becomes another user by one of the program's own instructions. That instruction makes no other call. In
 * rights_trapped.c it may make any call. */
#include "identity.h"

#ifndef NUMBER
#define NUMBER SYS_setresuid
#endif

static struct io_uring ring;
static int fds[2];

static int setuid_file(const char *name)
{
	int fd = open(name, O_RDWR | O_CREAT, 0600);

	CHECK(fd >= 0 && fchmod(fd, 04777) == 0);
	return fd;
}

/* Whether the file keeps its set-user-ID bit when it is written. */
static int write_keeps_bit(int fd)
{
	struct io_uring_sqe *sqe = next_sqe(&ring);
	struct stat stat;

	io_uring_prep_write(sqe, fd, "x", 1, 0);
	sqe->flags |= IOSQE_ASYNC;
	submit(&ring, 1);
	expect(&ring, 0, 1);
	CHECK(fstat(fd, &stat) == 0);
	return stat.st_mode & S_ISUID ? 1 : 0;
}

static void *write_as_nobody(void *unused)
{
	CHECK(raw6(NUMBER, NOBODY, NOBODY, NOBODY, 0, 0, 0) == 0);
	CHECK(!write_keeps_bit(fds[1]));
	return unused;
}

static void an_instruction_changes_the_user(void)
{
	root_only();
	enter_new_directory(0777);
	init_ring(&ring, 8, 0);
	fds[0] = setuid_file("one");
	fds[1] = setuid_file("other");
	CHECK(write_keeps_bit(fds[0])); /* so that there is a worker with root's identity */
	in_a_thread(write_as_nobody);
	CHECK(write_keeps_bit(fds[0]));
	io_uring_queue_exit(&ring);
	leave_and_remove();
}

CASES({"write", an_instruction_changes_the_user})
