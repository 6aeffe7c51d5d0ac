/* Runs a program for which the kernel makes only COUNT rings: nth COUNT ERRNO PROGRAM ... Each further io_uring_setup(2)
 * fails with ERRNO. If ERRNO is `no-read`, each further ring is one of this process that refuses READ. A filter can
 * neither count nor make rings, so it asks this process. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) ((condition) ? (void)0 : (perror(#condition), _exit(99)))

static int listener(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

static void send_number(int socket, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(int));
	CHECK(sendmsg(socket, &message, 0) == 1);
}

static int receive_number(int socket)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	int fd;

	CHECK(recvmsg(socket, &message, 0) == 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	return fd;
}

/* A ring that takes any operation but READ. Returns its descriptor, or a negative errno. */
static int without_read(unsigned entries, struct io_uring_params *params)
{
	struct io_uring_restriction rules[IORING_OP_READ + 8] = {{.opcode = IORING_RESTRICTION_REGISTER_OP}};
	int fd;

	rules[0].register_op = IORING_REGISTER_PROBE;
	for (unsigned i = 1; i < sizeof(rules) / sizeof(rules[0]); i++) {
		rules[i].opcode = IORING_RESTRICTION_SQE_OP;
		rules[i].sqe_op = i == IORING_OP_READ ? IORING_OP_NOP : i;
	}
	params->flags |= IORING_SETUP_R_DISABLED;
	fd = syscall(SYS_io_uring_setup, entries, params);
	if (fd < 0)
		return -errno;
	CHECK(syscall(SYS_io_uring_register, fd, IORING_REGISTER_RESTRICTIONS, rules, sizeof(rules) / sizeof(rules[0])) == 0);
	CHECK(syscall(SYS_io_uring_register, fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) == 0);
	params->flags &= ~IORING_SETUP_R_DISABLED;
	return fd;
}

/* Gives the caller such a ring. Returns 0, or the negative errno to answer. */
static int give_restricted(int notifications, const struct seccomp_notif *asked)
{
	struct io_uring_params params;
	struct iovec here = {&params, sizeof(params)}, there = {(void *)asked->data.args[1], sizeof(params)};
	struct seccomp_notif_addfd given = {.id = asked->id, .flags = SECCOMP_ADDFD_FLAG_SEND};
	int fd;

	if (process_vm_readv(asked->pid, &here, 1, &there, 1, 0) != sizeof(params))
		return -EFAULT;
	fd = without_read(asked->data.args[0], &params);
	if (fd < 0)
		return fd;
	CHECK(process_vm_writev(asked->pid, &here, 1, &there, 1, 0) == sizeof(params));
	given.srcfd = fd;
	CHECK(ioctl(notifications, SECCOMP_IOCTL_NOTIF_ADDFD, &given) >= 0);
	close(fd);
	return 0;
}

int main(int argc, char **argv)
{
	int ends[2], status;
	long left;
	pid_t child;

	CHECK(argc > 3 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	left = atol(argv[1]);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		int notifications = listener();

		CHECK(notifications >= 0);
		send_number(ends[1], notifications);
		close(notifications), close(ends[0]), close(ends[1]);
		execvp(argv[3], argv + 3);
		_exit(127);
	}
	close(ends[1]);
	struct pollfd notifications = {receive_number(ends[0]), POLLIN, 0};

	/* Also answers for the program's children, until none is left. */
	while (poll(&notifications, 1, -1) == 1 && notifications.revents & POLLIN) {
		struct seccomp_notif asked = {0};
		struct seccomp_notif_resp response = {0};

		if (ioctl(notifications.fd, SECCOMP_IOCTL_NOTIF_RECV, &asked))
			continue;
		response.id = asked.id;
		if (left-- > 0)
			response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
		else if (strcmp(argv[2], "no-read"))
			response.error = -atoi(argv[2]);
		else if (!(response.error = give_restricted(notifications.fd, &asked)))
			continue;
		ioctl(notifications.fd, SECCOMP_IOCTL_NOTIF_SEND, &response);
	}
	CHECK(waitpid(child, &status, 0) == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
