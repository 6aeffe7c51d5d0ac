/* Waits with timeouts, with and without IORING_FEAT_EXT_ARG. To test without it, the program hides the feature from the
 * library, which then submits its own timeout. The output must be the same whichever library serves it. */
#include <errno.h>
#include <liburing.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t signals;

static void on_signal(int number)
{
	(void) number;
	signals++;
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void expect(const char *what, long got, long started_ms, long least_ms)
{
	long took_ms = now_ms() - started_ms;

	printf("%s: %ld %s%s\n", what, got, took_ms >= least_ms && took_ms < least_ms + 2000 ? "in time" : "NOT IN TIME",
	       errno == 4242 ? "" : " (errno changed)");
	errno = 4242;
}

static void nop(struct io_uring *ring, __u64 data)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	if (!sqe) {
		printf("  no sqe\n");
		return;
	}
	io_uring_prep_nop(sqe);
	sqe->user_data = data;
}

static void drain(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;

	while (!io_uring_peek_cqe(ring, &cqe)) {
		printf("  user_data %llu res %d\n", (unsigned long long) cqe->user_data, cqe->res);
		io_uring_cqe_seen(ring, cqe);
	}
}

static void waits(int hide_ext_arg)
{
	struct __kernel_timespec ts = { .tv_nsec = 50 * 1000000 }, zero = { 0 }, bad = { .tv_nsec = -1 };
	struct io_uring_cqe *cqe = (void *) 1;
	struct io_uring_sqe *sqe;
	struct io_uring ring;
	int pair[2];
	char byte;
	long start;

	if (pipe(pair))
		exit(1);
	errno = 4242;
	if (io_uring_queue_init(8, &ring, 0))
		exit(1);
	if (hide_ext_arg)
		ring.features &= ~IORING_FEAT_EXT_ARG;

	start = now_ms();
	expect("time out", io_uring_wait_cqe_timeout(&ring, &cqe, &ts), start, 50);
	printf("  cqe %s\n", cqe ? "set" : "null");
	start = now_ms();
	expect("zero timeout", io_uring_wait_cqe_timeout(&ring, &cqe, &zero), start, 0);
	expect("bad timeout", io_uring_wait_cqe_timeout(&ring, &cqe, &bad), start, 0);
	drain(&ring);

	/* One completion before the time is over, two wanted. */
	nop(&ring, 1);
	start = now_ms();
	expect("submit", io_uring_submit(&ring), start, 0);
	expect("one of one", io_uring_wait_cqes(&ring, &cqe, 1, &ts, NULL), start, 0);
	start = now_ms();
	expect("one of two", io_uring_wait_cqes(&ring, &cqe, 2, &ts, NULL), start, 50);
	printf("  cqe %s\n", cqe ? "set" : "null");
	drain(&ring);

	/* Submission and wait in one call. */
	nop(&ring, 2);
	nop(&ring, 3);
	start = now_ms();
	expect("submit two, wait for two", io_uring_submit_and_wait_timeout(&ring, &cqe, 2, &ts, NULL) >= 0, start, 0);
	drain(&ring);
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_read(sqe, pair[0], &byte, 1, 0);
	sqe->user_data = 4;
	start = now_ms();
	expect("submit a read, time out", io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &ts, NULL), start, 50);
	printf("  cqe %s\n", cqe ? "set" : "null");
	start = now_ms();
	expect("nothing to submit, time out", io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &ts, NULL), start, 50);
	if (write(pair[1], "x", 1) != 1)
		exit(1);
	start = now_ms();
	expect("no timeout", io_uring_submit_and_wait_timeout(&ring, &cqe, 1, NULL, NULL), start, 0);
	drain(&ring);

	/* The SQ is full, so the library must submit before it can queue its own timeout. */
	for (int i = 0; i < 8; i++)
		nop(&ring, 10 + i);
	start = now_ms();
	expect("full sq", io_uring_wait_cqes(&ring, &cqe, hide_ext_arg ? 8 : 0, &ts, NULL), start, 0);
	io_uring_submit(&ring);
	drain(&ring);
	io_uring_queue_exit(&ring);
	close(pair[0]);
	close(pair[1]);
}

static void masks(void)
{
	struct __kernel_timespec ts = { .tv_sec = 1 };
	struct sigaction action = { .sa_handler = on_signal };
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	sigset_t blocked, none;
	long start;

	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigaction(SIGUSR1, &action, NULL);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	raise(SIGUSR1);
	errno = 4242;
	if (io_uring_queue_init(4, &ring, 0))
		exit(1);
	/* The pending signal is delivered in the wait whose mask admits it. */
	start = now_ms();
	expect("mask and timeout", io_uring_wait_cqes(&ring, &cqe, 1, &ts, &none), start, 0);
	printf("  signals %d\n", (int) signals);
	raise(SIGUSR1);
	start = now_ms();
	expect("mask alone", io_uring_wait_cqes(&ring, &cqe, 1, NULL, &none), start, 0);
	printf("  signals %d\n", (int) signals);
	io_uring_queue_exit(&ring);
}

int main(void)
{
	errno = 4242;
	waits(0);
	waits(1);
	masks();
	return 0;
}
