/* rings COUNT [CHILD [STAY]]: makes COUNT rings without a library, and has each complete a NOP: "N rings, K of the kernel".
 * CHILD: a forked child closes them and makes that many of its own. STAY: waits until standard input ends. */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Completes a NOP. Returns 1 if the ring is the kernel's. */
static int nop(int fd, const struct io_uring_params *params)
{
	char *ring = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
	struct io_uring_sqe *sqes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);
	char path[32], name[64] = "";

	if (ring == MAP_FAILED || sqes == MAP_FAILED)
		fail("mmap");
	memset(sqes, 0, sizeof(*sqes));
	sqes->opcode = IORING_OP_NOP;
	*(unsigned *)(ring + params->sq_off.array) = 0;
	__atomic_store_n((unsigned *)(ring + params->sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		fail("io_uring_enter");
	if (__atomic_load_n((unsigned *)(ring + params->cq_off.tail), __ATOMIC_ACQUIRE) != 1)
		fail("no completion");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, name, sizeof(name) - 1) < 0)
		fail("readlink");
	return !strcmp(name, "anon_inode:[io_uring]");
}

static int fds[1024];

static void make(int count)
{
	int kernels = 0;

	for (int i = 0; i < count; i++) {
		struct io_uring_params params = {0};

		fds[i] = syscall(SYS_io_uring_setup, 4, &params);
		if (fds[i] < 0)
			fail("io_uring_setup");
		kernels += nop(fds[i], &params);
	}
	printf("%d rings, %d of the kernel\n", count, kernels);
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1, status = 0;

	make(count);
	fflush(stdout);
	if (argc > 2 && !fork()) {
		for (int i = 0; i < count; i++)
			close(fds[i]);
		make(atoi(argv[2]));
		return 0;
	}
	while (wait(&status) > 0)
		;
	if (argc > 3)
		getchar();
	return status != 0;
}
