/* Passes descriptors to calls that change, fill or empty them. A ring gives the kernel's results, and is intact
 * afterwards. The engine's descriptors appear closed to the program, and no executed program inherits one. argv[2]
 * says by libc's functions, by libc's syscall() or by instruction; the last only for calls that filters trap. */
#include "raw.h"
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/falloc.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>

static enum { LIBC, SYSCALL, INSTRUCTION } way;
static struct ring ring;
static int pipes[2], file;

static int answer_of(long answer)
{
	if (answer >= 0)
		return answer;
	errno = -answer;
	return -1;
}

/* Makes a call in the way that argv[2] chose. */
#define CALL(name, a, b, c, d, e, f, by_libc)                                                                          \
	(way == LIBC ? (int)(by_libc) :                                                                                \
	 way == SYSCALL ? (int)syscall(SYS_##name, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f)) : \
			  answer_of(raw6(SYS_##name, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))))

/* Checks that the call fails with this error. Otherwise prints its errno. */
#define FAILS(error, call)                                                                                             \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		if ((call) != -1 || errno != (error)) {                                                                \
			fprintf(stderr, "%s:%d: %s: errno %d, not %d\n", __FILE__, __LINE__, #call, errno, error);     \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

/* Calls that filters trap, too. `error` is that for a number that is not open, or 0 for a ring's number. */
static void rare_calls(int fd, int error)
{
	int one = 1;

	FAILS(error ? error : ENOTSOCK, CALL(shutdown, fd, SHUT_RDWR, 0, 0, 0, 0, shutdown(fd, SHUT_RDWR)));
	FAILS(error ? error : ENOTSOCK, CALL(setsockopt, fd, SOL_SOCKET, SO_SNDBUF, &one, 4, 0,
					     setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &one, 4)));
	FAILS(error ? error : ENOTTY, CALL(ioctl, fd, FIONREAD, &one, 0, 0, 0, ioctl(fd, FIONREAD, &one)));
	FAILS(error ? error : EINVAL, CALL(ftruncate, fd, 4096, 0, 0, 0, 0, ftruncate(fd, 4096)));
	FAILS(error ? error : ENODEV, CALL(fallocate, fd, 0, 0, 4096, 0, 0, fallocate(fd, 0, 0, 4096)));
	FAILS(error ? error : EOPNOTSUPP, CALL(fchmod, fd, 0666, 0, 0, 0, 0, fchmod(fd, 0666)));
	FAILS(error ? error : EOPNOTSUPP, CALL(fchown, fd, -1, -1, 0, 0, 0, fchown(fd, -1, -1)));
}

static void data_calls(int fd, int error)
{
	struct sockaddr address = {.sa_family = AF_UNIX};
	socklen_t size = sizeof(address);
	struct mmsghdr messages[1];
	char byte = 0;
	struct iovec vector = {&byte, 1};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
	int value, io = error ? error : EINVAL, socket = error ? error : ENOTSOCK;

	memset(messages, 0, sizeof(messages));
	messages[0].msg_hdr = message;
	FAILS(io, CALL(read, fd, &byte, 1, 0, 0, 0, read(fd, &byte, 1)));
	FAILS(io, CALL(write, fd, &byte, 1, 0, 0, 0, write(fd, &byte, 1)));
	FAILS(io, CALL(readv, fd, &vector, 1, 0, 0, 0, readv(fd, &vector, 1)));
	FAILS(io, CALL(writev, fd, &vector, 1, 0, 0, 0, writev(fd, &vector, 1)));
	FAILS(io, CALL(preadv2, fd, &vector, 1, -1, -1, 0, preadv2(fd, &vector, 1, -1, 0)));
	FAILS(io, CALL(pwritev2, fd, &vector, 1, -1, -1, 0, pwritev2(fd, &vector, 1, -1, 0)));
	FAILS(error ? error : ESPIPE, CALL(pread64, fd, &byte, 1, 0, 0, 0, pread(fd, &byte, 1, 0)));
	FAILS(error ? error : ESPIPE, CALL(pwrite64, fd, &byte, 1, 0, 0, 0, pwrite(fd, &byte, 1, 0)));
	FAILS(error ? error : ESPIPE, CALL(preadv, fd, &vector, 1, 0, 0, 0, preadv(fd, &vector, 1, 0)));
	FAILS(error ? error : ESPIPE, CALL(pwritev, fd, &vector, 1, 0, 0, 0, pwritev(fd, &vector, 1, 0)));
	FAILS(io, CALL(splice, fd, 0, pipes[1], 0, 1, 0, splice(fd, 0, pipes[1], 0, 1, 0)));
	FAILS(io, CALL(splice, pipes[0], 0, fd, 0, 1, 0, splice(pipes[0], 0, fd, 0, 1, 0)));
	FAILS(io, CALL(tee, pipes[0], fd, 1, 0, 0, 0, tee(pipes[0], fd, 1, 0)));
	FAILS(io, CALL(sendfile, fd, file, 0, 1, 0, 0, sendfile(fd, file, 0, 1)));
	FAILS(io, CALL(sendfile, file, fd, 0, 1, 0, 0, sendfile(file, fd, 0, 1)));
	FAILS(io, CALL(copy_file_range, fd, 0, file, 0, 1, 0, copy_file_range(fd, 0, file, 0, 1, 0)));
	FAILS(EBADF, CALL(vmsplice, fd, &vector, 1, 0, 0, 0, vmsplice(fd, &vector, 1, 0)));
	FAILS(socket, CALL(sendto, fd, &byte, 1, 0, 0, 0, send(fd, &byte, 1, 0)));
	FAILS(socket, CALL(recvfrom, fd, &byte, 1, MSG_DONTWAIT, 0, 0, recv(fd, &byte, 1, MSG_DONTWAIT)));
	FAILS(socket, CALL(sendmsg, fd, &message, 0, 0, 0, 0, sendmsg(fd, &message, 0)));
	FAILS(socket, CALL(recvmsg, fd, &message, MSG_DONTWAIT, 0, 0, 0, recvmsg(fd, &message, MSG_DONTWAIT)));
	FAILS(socket, CALL(sendmmsg, fd, messages, 1, 0, 0, 0, sendmmsg(fd, messages, 1, 0)));
	FAILS(socket, CALL(recvmmsg, fd, messages, 1, MSG_DONTWAIT, 0, 0, recvmmsg(fd, messages, 1, MSG_DONTWAIT, NULL)));
	FAILS(socket, CALL(connect, fd, &address, 2, 0, 0, 0, connect(fd, &address, 2)));
	FAILS(socket, CALL(bind, fd, &address, 2, 0, 0, 0, bind(fd, &address, 2)));
	FAILS(socket, CALL(listen, fd, 1, 0, 0, 0, 0, listen(fd, 1)));
	FAILS(socket, CALL(accept4, fd, 0, 0, 0, 0, 0, accept4(fd, NULL, NULL, 0)));
	FAILS(socket, CALL(getsockname, fd, &address, &size, 0, 0, 0, getsockname(fd, &address, &size)));
	FAILS(socket, CALL(getpeername, fd, &address, &size, 0, 0, 0, getpeername(fd, &address, &size)));
	size = sizeof(value);
	FAILS(socket, CALL(getsockopt, fd, SOL_SOCKET, SO_TYPE, &value, &size, 0,
			   getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &size)));
}

static void a_ring_is_no_socket(void)
{
	int on = 1, off = 0;

	rare_calls(ring.fd, 0);
	if (way != INSTRUCTION)
		data_calls(ring.fd, 0);
	CHECK(CALL(ioctl, ring.fd, FIONBIO, &on, 0, 0, 0, ioctl(ring.fd, FIONBIO, &on)) == 0);
	CHECK(CALL(ioctl, ring.fd, FIONBIO, &off, 0, 0, 0, ioctl(ring.fd, FIONBIO, &off)) == 0);
	CHECK(CALL(ioctl, ring.fd, FIONCLEX, 0, 0, 0, 0, ioctl(ring.fd, FIONCLEX)) == 0);
	CHECK(CALL(fcntl, ring.fd, F_GETFD, 0, 0, 0, 0, fcntl(ring.fd, F_GETFD)) == 0);
	CHECK(CALL(fcntl, ring.fd, F_SETFD, FD_CLOEXEC, 0, 0, 0, fcntl(ring.fd, F_SETFD, FD_CLOEXEC)) == 0);
}

/* Whether number `fd` is open, although the program has not opened it. */
static int is_foreign(int fd)
{
	return fd > 2 && fd != ring.fd && fd != pipes[0] && fd != pipes[1] && fd != file && fcntl(fd, F_GETFD) >= 0;
}

/* Makes a request whose SQE has this file and second file, and returns its result. */
static int result_of(int opcode, int fd, uint64_t second, uint64_t address, unsigned length)
{
	struct io_uring_sqe *sqe = ring_sqe(&ring);
	uint64_t user_data;
	int res;

	sqe->opcode = opcode;
	sqe->fd = fd;
	sqe->off = opcode == IORING_OP_SPLICE ? (uint64_t)-1 : second;
	sqe->addr = opcode == IORING_OP_SPLICE ? (uint64_t)-1 : address;
	sqe->splice_fd_in = opcode == IORING_OP_SPLICE ? (int)second : 0;
	sqe->len = length;
	ring_push(&ring);
	CHECK(ring_enter(&ring, 1, 1) == 1);
	CHECK(ring_reap(&ring, &user_data, &res));
	return res;
}

/* Requests and registrations that name the number beside their own file. */
static void requests_find_it_closed(int fd, int epoll)
{
	struct epoll_event event = {.events = EPOLLIN};
	uint64_t at = (uintptr_t)&event, files = (uintptr_t)&fd;

	CHECK(result_of(IORING_OP_SPLICE, pipes[1], fd, 0, 1) == -EBADF);
	CHECK(result_of(IORING_OP_EPOLL_CTL, fd, pipes[0], at, EPOLL_CTL_ADD) == -EBADF);
	CHECK(result_of(IORING_OP_EPOLL_CTL, epoll, fd, at, EPOLL_CTL_ADD) == -EBADF);
	CHECK(result_of(IORING_OP_FILES_UPDATE, -1, 0, files, 1) == -EBADF);
	CHECK(raw6(__NR_io_uring_register, ring.fd, IORING_REGISTER_EVENTFD, files, 1, 0, 0) == -EBADF);
}

static void foreign_numbers_are_not_open(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	struct itimerspec never = {{0, 0}, {0, 0}};
	int epoll = epoll_create1(EPOLL_CLOEXEC), none = -1, count = 0;

	CHECK(raw6(__NR_io_uring_register, ring.fd, IORING_REGISTER_FILES, (long)&none, 1, 0, 0) == 0);

	for (int fd = 3; fd < 4096; fd++) {
		if (fd == epoll || !is_foreign(fd))
			continue;
		count++;
		requests_find_it_closed(fd, epoll);
		rare_calls(fd, EBADF);
		FAILS(EBADF, CALL(fcntl, fd, F_SETFD, 0, 0, 0, 0, fcntl(fd, F_SETFD, 0)));
		FAILS(EBADF, CALL(fcntl, fd, F_SETFL, O_NONBLOCK, 0, 0, 0, fcntl(fd, F_SETFL, O_NONBLOCK)));
		FAILS(EBADF, CALL(fcntl, fd, F_DUPFD, 3, 0, 0, 0, fcntl(fd, F_DUPFD, 3)));
		FAILS(EBADF, CALL(fcntl, fd, F_DUPFD_CLOEXEC, 3, 0, 0, 0, fcntl(fd, F_DUPFD_CLOEXEC, 3)));
		FAILS(EBADF, CALL(ioctl, fd, FIOCLEX, 0, 0, 0, 0, ioctl(fd, FIOCLEX)));
		FAILS(EBADF, CALL(ioctl, fd, FIONCLEX, 0, 0, 0, 0, ioctl(fd, FIONCLEX)));
		FAILS(EBADF, CALL(dup, fd, 0, 0, 0, 0, 0, dup(fd)));
		FAILS(EBADF, CALL(dup2, fd, 400, 0, 0, 0, 0, dup2(fd, 400)));
		FAILS(EBADF, CALL(dup3, fd, 400, O_CLOEXEC, 0, 0, 0, dup3(fd, 400, O_CLOEXEC)));
		FAILS(EBADF, CALL(epoll_ctl, epoll, EPOLL_CTL_ADD, fd, &event, 0, 0,
				  epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)));
		CHECK((way == LIBC ? (long)mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) :
		       way == SYSCALL ? syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) :
					answer_of(raw6(SYS_mmap, 0, 4096, PROT_READ, MAP_SHARED, fd, 0))) == -1);
		CHECK(errno == EBADF);
		CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
		if (way == INSTRUCTION)
			continue;
		data_calls(fd, EBADF);
		FAILS(EBADF, CALL(timerfd_settime, fd, 0, &never, 0, 0, 0, timerfd_settime(fd, 0, &never, NULL)));
		FAILS(EBADF, CALL(epoll_ctl, fd, EPOLL_CTL_ADD, pipes[0], &event, 0, 0,
				  epoll_ctl(fd, EPOLL_CTL_ADD, pipes[0], &event)));
		FAILS(EBADF, CALL(epoll_wait, fd, &event, 1, 0, 0, 0, epoll_wait(fd, &event, 1, 0)));
	}
	CHECK((count > 0) == filtered());
	CHECK(close(epoll) == 0);
}

/* Of all descriptors without close-on-exec, only the program's survive an exec. */
static void nothing_foreign_survives_an_exec(const char *program)
{
	pid_t child;
	int status;

	for (int fd = 3; fd < 4096; fd++) {
		CALL(fcntl, fd, F_SETFD, 0, 0, 0, 0, fcntl(fd, F_SETFD, 0));
		CALL(ioctl, fd, FIONCLEX, 0, 0, 0, 0, ioctl(fd, FIONCLEX));
	}
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		char numbers[4][16];

		unsetenv("LD_PRELOAD");
		snprintf(numbers[0], 16, "%d", ring.fd);
		snprintf(numbers[1], 16, "%d", pipes[0]);
		snprintf(numbers[2], 16, "%d", pipes[1]);
		snprintf(numbers[3], 16, "%d", file);
		execl(program, program, "list", numbers[0], numbers[1], numbers[2], numbers[3], NULL);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static int is_named(int fd, char **numbers)
{
	for (; *numbers; numbers++)
		if (atoi(*numbers) == fd)
			return 1;
	return 0;
}

/* Checks that the open descriptors are exactly those in `numbers`. */
static int list(char **numbers)
{
	for (int fd = 3; fd < 70000; fd++)
		CHECK((fcntl(fd, F_GETFD) >= 0) == is_named(fd, numbers));
	return 0;
}

static void finish_read(char *byte)
{
	uint64_t user_data;
	int res;

	CHECK(write(pipes[1], "x", 1) == 1);
	while (!ring_reap(&ring, &user_data, &res))
		CHECK(ring_enter(&ring, 0, 1) == 0);
	CHECK(res == 1 && *byte == 'x');
}

int main(int argc, char **argv)
{
	char byte = 0;

	if (argc > 2 && !strcmp(argv[1], "list"))
		return list(argv + 2);
	CHECK(argc == 3);
	way = !strcmp(argv[2], "libc") ? LIBC : !strcmp(argv[2], "syscall") ? SYSCALL : INSTRUCTION;
	expect_trap();
	CHECK(close_range(3, ~0U, 0) == 0); /* close what the caller left open */
	CHECK(pipe(pipes) == 0);
	file = memfd_create("file", 0);
	CHECK(file >= 0 && pwrite(file, "x", 1, 0) == 1);
	CHECK(ring_open(&ring, 8) == 0);
	ring_read(&ring, pipes[0], &byte); /* it waits, so that the library has everything that it uses for itself */
	if (!strcmp(argv[1], "ring"))
		a_ring_is_no_socket();
	else if (!strcmp(argv[1], "foreign"))
		foreign_numbers_are_not_open();
	else
		nothing_foreign_survives_an_exec(argv[0]);
	finish_read(&byte);
	ring_read(&ring, pipes[0], &byte);
	finish_read(&byte);
	puts("done");
	return 0;
}
