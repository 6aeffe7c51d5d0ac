/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Calls what libanyring.so wraps, in a program of musl's that inherited it by LD_PRELOAD. Each answer is musl's own;
 * the last line but one is what io_uring_setup answered.
 *
 * usage: musl [PROGRAM ARGS...]       (executes PROGRAM in the end)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: %s, errno %d\n", __LINE__, #condition, errno); \
			exit(1); \
		} \
	} while (0)

static _Thread_local int of_thread = 7;
static volatile sig_atomic_t seen;
static sigjmp_buf back;

static void note(int signal)
{
	seen = signal;
}

static void leave(int signal)
{
	siglongjmp(back, signal);
}

static void descriptors(void)
{
	int ends[2], copy;
	FILE *stream;

	CHECK(pipe(ends) == 0);
	copy = dup(ends[0]);
	CHECK(copy >= 0 && dup2(ends[0], copy) == copy && dup3(ends[0], copy, O_CLOEXEC) == copy);
	CHECK(fcntl(copy, F_GETFD) == FD_CLOEXEC);
	CHECK(close(copy) == 0);
	errno = 0;
	CHECK(close(copy) == -1 && errno == EBADF);
	stream = fdopen(ends[1], "w");
	CHECK(stream && fputs("x", stream) >= 0 && fclose(stream) == 0);
	CHECK(fcntl(ends[1], F_GETFD) == -1 && close(ends[0]) == 0);
	stream = popen("exit 3", "r");
	CHECK(stream && WEXITSTATUS(pclose(stream)) == 3);
}

static void waits(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 42 };
	struct timespec none = { 0, 0 };
	struct pollfd polled;
	fd_set set;
	int ends[2], epoll = epoll_create1(0);

	CHECK(pipe(ends) == 0 && epoll >= 0);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0);
	CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
	CHECK(write(ends[1], "x", 1) == 1);
	CHECK(epoll_wait(epoll, &event, 1, -1) == 1 && event.data.u64 == 42);
	CHECK(epoll_pwait(epoll, &event, 1, -1, NULL) == 1);
	polled = (struct pollfd){ .fd = ends[0], .events = POLLIN };
	CHECK(poll(&polled, 1, -1) == 1 && ppoll(&polled, 1, &none, NULL) == 1);
	FD_ZERO(&set);
	FD_SET(ends[0], &set);
	CHECK(select(ends[0] + 1, &set, NULL, NULL, NULL) == 1);
	CHECK(pselect(ends[0] + 1, &set, NULL, NULL, &none, NULL) == 1);
	close(ends[0]);
	close(ends[1]);
	close(epoll);
}

static void signals(void)
{
	struct sigaction action = { .sa_handler = note }, former;
	sigset_t set;
	void *page;

	for (int signal = 1; signal <= SIGSYS; signal++) {
		if (signal == SIGKILL || signal == SIGSTOP)
			continue;
		CHECK(sigaction(signal, &action, &former) == 0);
		CHECK(raise(signal) == 0 && seen == signal);
		CHECK(sigaction(signal, &former, &action) == 0 && action.sa_handler == note);
	}
	sigemptyset(&set);
	sigaddset(&set, SIGSYS);
	sigaddset(&set, SIGSEGV);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0 && pthread_sigmask(SIG_BLOCK, NULL, &set) == 0);
	CHECK(sigismember(&set, SIGSYS) && sigismember(&set, SIGSEGV));
	CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
	page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED && signal(SIGSEGV, leave) == SIG_DFL);
	if (sigsetjmp(back, 1) == 0)
		*(volatile char *)page = 1;
	CHECK(signal(SIGSEGV, SIG_DFL) == leave && munmap(page, 4096) == 0);
}

static void *thread(void *argument)
{
	of_thread += 1;
	CHECK(of_thread == 8);
	return argument;
}

static void processes(void)
{
	pthread_t other;
	void *answer;
	pid_t child;
	int status;

	CHECK(pthread_create(&other, NULL, thread, &of_thread) == 0);
	CHECK(pthread_join(other, &answer) == 0 && answer == &of_thread && of_thread == 7);
	CHECK(dlopen(NULL, RTLD_NOW) && !dlopen("/nonexistent.so", RTLD_NOW) && dlerror());
	child = fork();
	if (child == 0)
		_exit(9);
	CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 9);
	CHECK(syscall(SYS_getpid) == getpid());
}

int main(int argc, char **argv)
{
	descriptors();
	waits();
	signals();
	processes();
	errno = 0;
	printf("io_uring_setup: %ld, %s\n", syscall(SYS_io_uring_setup, 1, NULL), strerror(errno));
	printf("musl's own, preloaded: %s\n", getenv("LD_PRELOAD") ? "yes" : "no");
	fflush(stdout);
	if (argc > 1)
		execv(argv[1], argv + 1);
	return argc > 1;
}
