/* Runs a program for which the kernel makes only COUNT rings: nth COUNT ERRNO PROGRAM ... Each further io_uring_setup(2)
 * fails with ERRNO. A filter cannot count, so it asks this process. */
#define _GNU_SOURCE
#include <linux/filter.h>
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
		else
			response.error = -atoi(argv[2]);
		ioctl(notifications.fd, SECCOMP_IOCTL_NOTIF_SEND, &response);
	}
	CHECK(waitpid(child, &status, 0) == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
