/* While a ring exists, calls that concern no ring cost no extra system calls. A tracer counts them. */
#include "engine.h"
#include <sys/epoll.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/user.h>
#include <sys/wait.h>

enum { ROUNDS = 50, PAGE = 4096, MARK = 0x6d61726b };

static int pipes[2], sockets[2], epoll;
static char *memory;
static struct io_uring ring;

static void do_read(void)
{
	char byte;

	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(read(pipes[0], &byte, 1) == 1);
}

static void do_send(void)
{
	char byte;

	CHECK(send(sockets[0], "x", 1, 0) == 1);
	CHECK(recv(sockets[1], &byte, 1, 0) == 1);
}

static void do_message(void)
{
	char byte = 0;
	struct iovec vector = {&byte, 1};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};

	CHECK(sendmsg(sockets[0], &message, 0) == 1);
	CHECK(recvmsg(sockets[1], &message, 0) == 1);
}

static void do_dup(void)
{
	int other = dup(pipes[0]);

	CHECK(other >= 0);
	CHECK(dup2(pipes[1], other) == other);
	CHECK(close(other) == 0);
}

static void do_fcntl(void)
{
	int size;

	CHECK(fcntl(pipes[0], F_SETFD, FD_CLOEXEC) == 0);
	CHECK(fcntl(pipes[0], F_GETFL) >= 0);
	CHECK(ioctl(pipes[0], FIONREAD, &size) == 0);
}

static void do_map(void)
{
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(page != MAP_FAILED);
	CHECK(mprotect(page, PAGE, PROT_READ) == 0);
	CHECK(munmap(page, PAGE) == 0);
}

static void do_advise(void)
{
	CHECK(madvise(memory, PAGE, MADV_DONTFORK) == 0);
	CHECK(madvise(memory, PAGE, MADV_DOFORK) == 0);
}

static void do_poll(void)
{
	struct pollfd set[2] = {{pipes[0], POLLIN, 0}, {sockets[0], POLLIN, 0}};
	struct timespec now = {0, 0};

	CHECK(poll(set, 2, 0) == 0);
	CHECK(ppoll(set, 2, &now, NULL) == 0);
}

static void do_select(void)
{
	struct timeval now = {0, 0};
	fd_set set;

	FD_ZERO(&set);
	FD_SET(pipes[0], &set);
	CHECK(select(FD_SETSIZE, &set, NULL, NULL, &now) == 0);
}

static void do_epoll(void)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = 0};

	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event) == 0);
	CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, pipes[0], NULL) == 0);
}

static void do_syscall(void)
{
	CHECK(syscall(SYS_fcntl, pipes[0], F_GETFD) >= 0);
	CHECK(syscall(SYS_read, -1, NULL, 0) == -1);
	CHECK(syscall(SYS_close, -1) == -1);
}

static void handle(int signal)
{
	(void)signal;
}

static void do_action(void)
{
	struct sigaction action = {.sa_handler = handle}, old;

	CHECK(sigaction(SIGUSR1, &action, &old) == 0);
	CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_handler == handle);
	CHECK(signal(SIGUSR2, handle) != SIG_ERR);
}

static void do_mask(void)
{
	sigset_t all, old;

	sigfillset(&all);
	CHECK(sigprocmask(SIG_BLOCK, &all, &old) == 0);
	CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
	CHECK(sigpending(&old) == 0);
}

static void do_close_range(void)
{
	CHECK(close_range(3000, 3010, 0) == 0);
	CHECK(syscall(SYS_close_range, 3000, 3010, 0) == 0);
}

static void do_wait_masked(void)
{
	struct timespec now = {0, 0};
	sigset_t none;

	sigemptyset(&none);
	CHECK(ppoll(NULL, 0, &now, &none) == 0);
	CHECK(pselect(0, NULL, NULL, NULL, &now, &none) == 0);
}

static void do_mask_by_number(void)
{
	unsigned long all = -1UL, old, none = 0;

	CHECK(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &none, &old, 8) == 0);
	CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8) == 0);
	CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, 8) == 0);
}

static void do_action_by_number(void)
{
	struct {
		unsigned long words[4];
	} action;

	CHECK(syscall(SYS_rt_sigaction, SIGUSR1, NULL, &action, 8) == 0);
	CHECK(syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8) == 0);
}

static void do_identity(void)
{
	CHECK(unshare(0) == 0);
	CHECK(setfsuid(-1) == (int)geteuid());
}

static void do_nothing_else(void)
{
	CHECK(getppid() > 0);
}

static const struct {
	const char *name;
	void (*function)(void);
	int calls;
} all[] = {
	{"read", do_read, 2},	{"send", do_send, 2},	  {"message", do_message, 2}, {"dup", do_dup, 3},
	{"fcntl", do_fcntl, 3}, {"map", do_map, 3},	  {"advise", do_advise, 2},   {"poll", do_poll, 2},
	{"select", do_select, 1}, {"epoll", do_epoll, 3}, {"syscall", do_syscall, 3}, {"getppid", do_nothing_else, 1},
	{"action", do_action, 3}, {"mask", do_mask, 3},	  {"close_range", do_close_range, 2},
	{"masked waits", do_wait_masked, 2}, {"mask by number", do_mask_by_number, 3}, {"identity", do_identity, 3},
	{"action by number", do_action_by_number, 2},
};
enum { COUNT = sizeof(all) / sizeof(all[0]) };

/* Makes the tracer count the following system calls for `index`, or stop counting. */
static void mark(long index)
{
	syscall(SYS_getpriority, MARK, index);
}

static void traced(void)
{
	CHECK(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	epoll = epoll_create1(0);
	memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(epoll >= 0 && memory != MAP_FAILED);
	init_ring(&ring, 8, 0);
	CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
	raise(SIGSTOP);
	for (int i = 0; i < COUNT; i++) {
		all[i].function(); /* the first call may make system calls that later calls do not */
		mark(i);
		for (int round = 0; round < ROUNDS; round++)
			all[i].function();
		mark(-1);
	}
	_exit(0);
}

/* Counts the system calls of `child` up to its next stop, entries only. */
static void calls_are_what_they_are(void)
{
	long counted[COUNT] = {0}, of = -1;
	int status, entry;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0)
		traced();
	CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	CHECK(ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD) == 0);
	for (;;) {
		struct __ptrace_syscall_info info;

		CHECK(ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0);
		CHECK(waitpid(child, &status, 0) == child);
		if (WIFEXITED(status))
			break;
		CHECK(WIFSTOPPED(status));
		if (WSTOPSIG(status) != (SIGTRAP | 0x80))
			continue;
		CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof(info), &info) > 0);
		entry = info.op == PTRACE_SYSCALL_INFO_ENTRY;
		if (entry && info.entry.nr == SYS_getpriority && info.entry.args[0] == MARK)
			of = (int)info.entry.args[1];
		else if (entry && of >= 0)
			counted[of]++;
	}
	CHECK(WEXITSTATUS(status) == 0);
	for (int i = 0; i < COUNT; i++) {
		if (counted[i] != all[i].calls * ROUNDS) {
			fprintf(stderr, "%s: %ld system calls, not %d\n", all[i].name, counted[i], all[i].calls * ROUNDS);
			errno = 0;
		}
	}
	for (int i = 0; i < COUNT; i++)
		CHECK(counted[i] == all[i].calls * ROUNDS);
}

CASES({"calls", calls_are_what_they_are})
