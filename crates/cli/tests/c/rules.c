/* Restricts itself, then makes a forbidden call and the same request on a ring. Prints the error numbers of both.
 *
 * usage: rules connect     a seccomp filter answers connect(2) with EACCES; IORING_OP_CONNECT to a Unix socket that listens
 *        rules open        Landlock permits no file to be read; IORING_OP_OPENAT of /etc/passwd
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CHECK(condition) ((condition) ? (void)0 : (perror(#condition), _exit(77)))

#include "../../../../tests/c/filter.h"

/* Makes a ring, and has it complete one request. */
static int result_of(const struct io_uring_sqe *wanted)
{
	struct io_uring_params params = {0};
	int fd = syscall(SYS_io_uring_setup, 4, &params);
	char *ring = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
	struct io_uring_sqe *sqes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);

	CHECK(fd >= 0 && ring != MAP_FAILED && sqes != MAP_FAILED);
	*sqes = *wanted;
	*(unsigned *)(ring + params.sq_off.array) = 0;
	__atomic_store_n((unsigned *)(ring + params.sq_off.tail), 1, __ATOMIC_RELEASE);
	CHECK(syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
	return ((struct io_uring_cqe *)(ring + params.cq_off.cqes))->res;
}

static void refuse_connect(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_connect, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	FILTER_CALLS(code, 0);
}

/* By number: the headers may be older than the calls. */
static void permit_no_reads(void)
{
	enum { CREATE_RULESET = 444, RESTRICT_SELF = 446, READ_FILE = 1 << 2 };
	uint64_t handled = READ_FILE;
	int rules = syscall(CREATE_RULESET, &handled, sizeof(handled), 0);

	CHECK(rules >= 0);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(syscall(RESTRICT_SELF, rules, 0) == 0);
}

int main(int argc, char **argv)
{
	struct io_uring_sqe sqe = {0};
	int call, result;

	if (argc == 2 && !strcmp(argv[1], "connect")) {
		static struct sockaddr_un name = {.sun_family = AF_UNIX};
		socklen_t length = sizeof(name);
		int listening = socket(AF_UNIX, SOCK_STREAM, 0), other = socket(AF_UNIX, SOCK_STREAM, 0);

		/* A name in the abstract namespace, chosen by the kernel. */
		CHECK(bind(listening, (struct sockaddr *)&name, sizeof(name.sun_family)) == 0 && listen(listening, 4) == 0);
		CHECK(getsockname(listening, (struct sockaddr *)&name, &length) == 0);
		refuse_connect();
		call = connect(other, (struct sockaddr *)&name, length) < 0 ? -errno : 0;
		sqe.opcode = IORING_OP_CONNECT;
		sqe.fd = socket(AF_UNIX, SOCK_STREAM, 0);
		sqe.addr = (uintptr_t)&name;
		sqe.off = length;
	} else {
		permit_no_reads();
		call = open("/etc/passwd", O_RDONLY);
		call = call < 0 ? -errno : 0;
		sqe.opcode = IORING_OP_OPENAT;
		sqe.fd = AT_FDCWD;
		sqe.addr = (uintptr_t)"/etc/passwd";
		sqe.open_flags = O_RDONLY;
	}
	result = result_of(&sqe);
	printf("call %d, request %d\n", -call, result < 0 ? -result : 0);
	return 0;
}
