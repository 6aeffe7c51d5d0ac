/* Waits on a ring's descriptor by every function that waits. The descriptor is readable exactly while there are
 * completions. */
#include "raw.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

static struct ring ring;

/* Lets a NOP complete without reaping it. */
static void complete(void)
{
	ring_sqe(&ring)->opcode = IORING_OP_NOP;
	ring_push(&ring);
	CHECK(ring_enter(&ring, 1, 0) == 1);
}

static void reap(void)
{
	uint64_t user_data;
	int res;

	CHECK(ring_reap(&ring, &user_data, &res) && res == 0);
}

static int by_poll(void)
{
	struct pollfd fd = { .fd = ring.fd, .events = POLLIN };

	return poll(&fd, 1, 0) == 1 && fd.revents & POLLIN;
}

static int by_ppoll(void)
{
	struct pollfd fds[70];
	struct timespec none = { 0 };

	for (int i = 0; i < 70; i++)
		fds[i] = (struct pollfd){ .fd = i < 69 ? -1 : ring.fd, .events = POLLIN };
	return ppoll(fds, 70, &none, NULL) == 1 && fds[69].revents & POLLIN;
}

static int by_select(void)
{
	struct timeval none = { 0 };
	fd_set set;

	CHECK(ring.fd < FD_SETSIZE);
	FD_ZERO(&set);
	FD_SET(ring.fd, &set);
	return select(ring.fd + 1, &set, NULL, NULL, &none) == 1;
}

static int by_pselect(void)
{
	struct timespec none = { 0 };
	sigset_t mask;
	fd_set set;

	FD_ZERO(&set);
	FD_SET(ring.fd, &set);
	sigfillset(&mask);
	return pselect(ring.fd + 1, &set, NULL, NULL, &none, &mask) == 1;
}

static int epoll = -1;

static int by_epoll(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 5 };

	if (epoll < 0) {
		CHECK((epoll = epoll_create1(0)) >= 0);
		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ring.fd, &event) == 0);
	}
	return epoll_wait(epoll, &event, 1, 0) == 1 && event.data.u32 == 5;
}

static int by_raw_syscall_function(void)
{
	struct pollfd fd = { .fd = ring.fd, .events = POLLIN };

	return syscall(SYS_poll, &fd, 1, 0) == 1;
}

static int by_poll_instruction(void)
{
	struct pollfd fd = { .fd = ring.fd, .events = POLLIN };

	return raw6(SYS_poll, (long)&fd, 1, 0, 0, 0, 0) == 1 && fd.revents & POLLIN;
}

static int by_ppoll_instruction(void)
{
	struct pollfd fd = { .fd = ring.fd, .events = POLLIN };
	struct timespec none = { 0 };

	return raw6(SYS_ppoll, (long)&fd, 1, (long)&none, 0, 0, 0) == 1 && fd.revents & POLLIN;
}

static int by_select_instruction(void)
{
	struct timeval none = { 0 };
	fd_set set;

	FD_ZERO(&set);
	FD_SET(ring.fd, &set);
	return raw6(SYS_select, ring.fd + 1, (long)&set, 0, 0, (long)&none, 0) == 1;
}

static int by_pselect_instruction(void)
{
	uint64_t mask = ~0UL;
	uint64_t sixth[2] = { (uintptr_t)&mask, sizeof(mask) };
	struct timespec none = { 0 };
	fd_set set;

	FD_ZERO(&set);
	FD_SET(ring.fd, &set);
	return raw6(SYS_pselect6, ring.fd + 1, (long)&set, 0, 0, (long)&none, (long)sixth) == 1;
}

/* A ring that only `readable` ever waited for. */
static void alone(int (*readable)(void))
{
	struct ring first = ring;

	CHECK(ring_open(&ring, 8) == 0);
	complete();
	CHECK(readable());
	reap();
	CHECK(!readable());
	CHECK(close(ring.fd) == 0);
	ring = first;
}

static void level(int (*readable)(void))
{
	for (int i = 0; i < 20; i++) {
		CHECK(!readable());
		complete();
		CHECK(readable());
		CHECK(readable());
		complete();
		reap();
		CHECK(readable());
		reap();
		CHECK(!readable());
	}
}

static void edge(void)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int set = epoll_create1(0);

	CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, ring.fd, &event) == 0);
	CHECK(epoll_wait(set, &event, 1, 0) == 0);
	for (int i = 0; i < 20; i++) {
		complete();
		CHECK(epoll_wait(set, &event, 1, 1000) == 1);
		CHECK(epoll_wait(set, &event, 1, 0) == 0);
	}
	for (int i = 0; i < 20; i++)
		reap();
	close(set);
}

static void *complete_later(void *data)
{
	(void)data;
	wait_asleep(getpid());
	complete();
	return NULL;
}

static void sleeping(void)
{
	struct pollfd fd = { .fd = ring.fd, .events = POLLIN };
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, complete_later, NULL) == 0);
	CHECK(poll(&fd, 1, 5000) == 1);
	CHECK(pthread_join(thread, NULL) == 0);
	reap();
	CHECK(pthread_create(&thread, NULL, complete_later, NULL) == 0);
	CHECK(raw6(SYS_poll, (long)&fd, 1, 5000, 0, 0, 0) == 1);
	CHECK(pthread_join(thread, NULL) == 0);
	reap();
}

/* Returns the number of seccomp filters of this process. */
static int filters(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	int count = -1;

	CHECK(status);
	while (fgets(line, sizeof(line), status))
		if (sscanf(line, "Seccomp_filters: %d", &count) == 1)
			break;
	fclose(status);
	return count;
}

int main(void)
{
	int (*const instructions[])(void) = { by_poll_instruction, by_ppoll_instruction, by_select_instruction,
					      by_pselect_instruction };
	void *volatile bad = (void *)64;
	int before = filters();

	CHECK(ring_open(&ring, 64) == 0);
	/* Waits are trapped from the first ring on. */
	CHECK(filters() == before + filtered());
	for (int i = 0; i < 4; i++)
		alone(instructions[i]);
	CHECK(filters() == before + filtered());
	for (int i = 0; i < 4; i++)
		level(instructions[i]);
	level(by_poll);
	level(by_ppoll);
	level(by_select);
	level(by_pselect);
	level(by_epoll);
	level(by_raw_syscall_function);
	edge();
	sleeping();
	/* A bad pointer is the kernel's to refuse. */
	CHECK(poll(bad, 1, 0) == -1 && errno == EFAULT);
	CHECK(raw6(SYS_poll, (long)bad, 1, 0, 0, 0, 0) == -EFAULT);
	CHECK(raw6(SYS_select, 1024, (long)bad, 0, 0, 0, 0) == -EFAULT);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, ring.fd, bad) == -1 && errno == EFAULT);
	CHECK(close(ring.fd) == 0);
	CHECK(raw6(__NR_io_uring_enter, ring.fd, 0, 0, 0, 0, 0) == -EBADF);
	puts("done");
	return 0;
}
