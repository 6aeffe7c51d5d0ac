/* Signal handlers that use the ring that they interrupt. */
#include "engine.h"

#include "holdings.h"

#define ROUNDS 60000
#define NOPS 16

static char buffer[8];
static int pipes[2];
static struct io_uring ring;

static void on_alarm(void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};

	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
}

static void alarm_us(long first_us, long interval_us)
{
	struct itimerval timer = {{0, interval_us}, {0, first_us}};

	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static atomic_long submitted_by_handler;

static void submit_in_handler(int signal)
{
	int saved = errno;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

	(void)signal;
	if (sqe) {
		io_uring_prep_nop(sqe);
		CHECK(answer(io_uring_submit(&ring)) >= 0);
		submitted_by_handler++;
	}
	errno = saved;
}

static long take_nops(void)
{
	struct io_uring_cqe *cqe;
	long taken = 0;

	for (; io_uring_peek_cqe(&ring, &cqe) == 0; taken++) {
		CHECK(answer(cqe->res) == 0);
		io_uring_cqe_seen(&ring, cqe);
	}
	return taken;
}

/* The handler submits while its thread is in io_uring_enter(2) for the same ring. The signal is blocked elsewhere,
 * since liburing's own state changes there. Each SQE is consumed once, whether the handler or the interrupted code
 * published it. */
static void submit_with(void (*install)(void (*handler)(int)))
{
	long taken = 0;
	sigset_t alarms;

	init_ring(&ring, 4096, 0);
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	CHECK(sigprocmask(SIG_BLOCK, &alarms, NULL) == 0);
	install(submit_in_handler);
	alarm_us(60, 60);
	for (int round = 0; round < ROUNDS; round++) {
		unsigned published;
		long consumed;

		for (int i = 0; i < NOPS; i++)
			io_uring_prep_nop(next_sqe(&ring)); /* the SQ has room unless SQEs are never consumed */
		published = publish(&ring);
		sigprocmask(SIG_UNBLOCK, &alarms, NULL);
		consumed = syscall(__NR_io_uring_enter, ring.ring_fd, published, 0, 0, NULL, 0);
		sigprocmask(SIG_BLOCK, &alarms, NULL);
		CHECK(consumed >= 0);
		/* This call has consumed the SQEs. The handler's next submission must not have to do so. */
		CHECK(io_uring_sq_ready(&ring) == 0);
		taken += take_nops();
	}
	alarm_us(0, 0);
	for (int i = 0; i < 20; i++) {
		CHECK(syscall(__NR_io_uring_enter, ring.ring_fd, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0) == 0);
		taken += take_nops();
	}
	CHECK(io_uring_sq_ready(&ring) == 0);
	CHECK(submitted_by_handler > 0);
	CHECK(taken == (long)ROUNDS * NOPS + submitted_by_handler);
}

static void handler_submits(void)
{
	submit_with(on_alarm);
}

static void on_alarm_unseen(void (*handler)(int))
{
	set_handler_unseen(SIGALRM, handler, SA_RESTART);
}

/* No anyring handler precedes such a handler, so it may run in the middle of the call that it interrupts. */
static void unseen_handler_submits(void)
{
	init_ring(&ring, 8, 0); /* so that the work of the first ring is done */
	submit_with(on_alarm_unseen);
}

static atomic_int seen_by_handler;

static void wait_in_handler(int signal)
{
	struct io_uring_cqe *cqe = NULL;

	(void)signal;
	write_all(pipes[1], "x");
	CHECK(answer(io_uring_wait_cqe(&ring, &cqe)) == 0);
	CHECK(cqe->user_data == 1 && cqe->res == 1);
	seen_by_handler = 1;
}

/* The handler waits on the ring in which its thread already sleeps. It leaves the CQE in the CQ, so both waits find it.
 * */
static void handler_waits(void)
{
	struct io_uring_cqe *cqe;

	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], buffer, 1, 1);
	on_alarm(wait_in_handler);
	alarm_us(100000, 0);
	CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
	CHECK(seen_by_handler);
	take(&ring, 1, 1);
	submit_read(&ring, pipes[0], buffer, 1, 2);
	write_all(pipes[1], "y");
	expect(&ring, 2, 1);
}

static struct io_uring other;
static int by_message;

static void post_in_handler(int signal)
{
	int saved = errno;

	(void)signal;
	if (by_message) {
		io_uring_prep_msg_ring(next_sqe(&other), ring.ring_fd, 0, 2, 0);
		submit(&other, 1);
	} else {
		prepare_nop(&ring, 2);
		submit(&ring, 1);
	}
	errno = saved;
}

static pthread_t waiting;
static pid_t waiting_id;

static void *signal_the_sleeper(void *unused)
{
	wait_asleep(waiting_id);
	CHECK(pthread_kill(waiting, SIGALRM) == 0);
	return unused;
}

/* A signal ends the wait. The answer is 0 if there is a CQE, even if there are fewer than requested. CQEs that the
 * handler causes come later. */
static void post_while_waiting(unsigned flags, unsigned min_complete, int have, int beside_a_read)
{
	pthread_t thread;
	long result;

	init_ring(&ring, 8, flags);
	init_ring(&other, 8, 0);
	if (beside_a_read)
		submit_read(&ring, pipes[0], buffer, 1, 3);
	if (have) {
		prepare_nop(&ring, 1);
		submit(&ring, 1);
	}
	waiting = pthread_self();
	waiting_id = syscall(SYS_gettid);
	CHECK(pthread_create(&thread, NULL, signal_the_sleeper, NULL) == 0);
	result = syscall(__NR_io_uring_enter, ring.ring_fd, 0, min_complete, IORING_ENTER_GETEVENTS, NULL, 8);
	if (have)
		CHECK(result == 0);
	else
		CHECK(result == -1 && errno == EINTR);
	CHECK(pthread_join(thread, NULL) == 0);
	if (have)
		expect(&ring, 1, 0);
	expect(&ring, 2, 0);
	io_uring_queue_exit(&ring);
	io_uring_queue_exit(&other);
}

static void handler_posts(void)
{
	CHECK(pipe(pipes) == 0);
	for (int choice = 0; choice < 16; choice++) {
		struct sigaction action = {.sa_handler = post_in_handler, .sa_flags = choice & 1 ? SA_RESTART : 0};
		unsigned flags = choice & 2 ? DEFERRED : 0;

		CHECK(sigaction(SIGALRM, &action, NULL) == 0);
		by_message = choice & 4;
		post_while_waiting(flags, 1, 0, choice & 8);
		post_while_waiting(flags, 2, 0, choice & 8);
		post_while_waiting(flags, 2, 1, choice & 8);
	}
}

static sigjmp_buf before_the_wait;

static void jump_from_handler(int signal)
{
	(void)signal;
	siglongjmp(before_the_wait, 1);
}

/* Leaves a wait for the READ with that user_data by a jump. */
static void jump_out_of_a_wait(int number)
{
	struct io_uring_cqe *cqe;

	if (number == 0) {
		CHECK(pipe(pipes) == 0);
		init_ring(&ring, 8, 0);
		on_alarm(jump_from_handler);
	}
	submit_read(&ring, pipes[0], buffer, 1, number);
	if (sigsetjmp(before_the_wait, 1) == 0) {
		alarm_us(50000, 0);
		io_uring_wait_cqe(&ring, &cqe);
		CHECK(!"the wait returned, though the pipe is empty");
	}
}

static void wait_after_the_jump(void)
{
	for (int round = 0; round < 3; round++) {
		jump_out_of_a_wait(round);
		write_all(pipes[1], "x");
		expect(&ring, round, 1);
	}
}

/* No thread waits any more, so the helper treats the program as one that only polls the CQ. */
static void only_look_after_the_jump(void)
{
	for (int round = 0; round < 3; round++) {
		jump_out_of_a_wait(round);
		write_all(pipes[1], "x");
		only_look(&ring);
		take(&ring, round, 1);
	}
}

static void *wait_elsewhere(void *unused)
{
	expect(&ring, 0, 1);
	return unused;
}

/* The thread that jumped makes no further call. The other thread is served all the same. */
static void another_thread_waits_after_the_jump(void)
{
	pthread_t other;

	jump_out_of_a_wait(0);
	CHECK(pthread_create(&other, NULL, wait_elsewhere, NULL) == 0);
	wait_others_asleep(0);
	write_all(pipes[1], "x");
	CHECK(pthread_join(other, NULL) == 0);
}

static struct io_uring other;

static void wait_elsewhere_in_handler(int signal)
{
	struct __kernel_timespec soon = {0, 1000000};
	struct io_uring_cqe *cqe;

	(void)signal;
	CHECK(io_uring_wait_cqe_timeout(&other, &cqe, &soon) == -ETIME);
	seen_by_handler++;
}

/* The handler waits on another ring than the one in which its thread sleeps. That ring still ends when it is closed. */
static void handler_waits_elsewhere(void)
{
	const int rings = 20;
	struct io_uring_cqe *cqe;
	int descriptors, ms = 0;

	need_proc();
	CHECK(pipe(pipes) == 0);
	init_ring(&other, 8, 0);
	submit_read(&other, pipes[0], buffer, 1, 1);
	on_alarm(wait_elsewhere_in_handler);
	descriptors = entries_of("/proc/self/fd");
	for (int round = 0; round < rings; round++) {
		init_ring(&ring, 8, 0);
		submit_read(&ring, pipes[0], buffer, 1, 2);
		alarm_us(3000, 0);
		CHECK(io_uring_wait_cqe(&ring, &cqe) == -EINTR);
		io_uring_queue_exit(&ring);
	}
	CHECK(seen_by_handler == rings);
	/* The descriptors of the helper and of the first ring exist by now. */
	while (entries_of("/proc/self/fd") > descriptors + 6 && ms++ < LONG_MS)
		usleep(1000);
	CHECK(entries_of("/proc/self/fd") <= descriptors + 6);
	write_all(pipes[1], "x");
	expect(&other, 1, 1);
}

static void jump_after_a_wait(int signal)
{
	wait_elsewhere_in_handler(signal);
	siglongjmp(before_the_wait, 1);
}

static void jump_while_waiting(int signal)
{
	struct io_uring_cqe *cqe;

	(void)signal;
	if (!seen_by_handler++) {
		alarm_us(3000, 0);
		io_uring_wait_cqe(&other, &cqe);
		CHECK(!"the wait in the handler returned");
	}
	siglongjmp(before_the_wait, 1);
}

/* A jump leaves a wait after the handler's own wait has ended, or it leaves two waits at once. */
static void jumps_over_waits(void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_NODEFER};
	struct io_uring_cqe *cqe;
	volatile int descriptors = 0;

	need_proc();
	CHECK(pipe(pipes) == 0);
	init_ring(&other, 8, 0);
	submit_read(&other, pipes[0], buffer, 1, 1);
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	for (volatile int round = 0; round < 20; round++) {
		init_ring(&ring, 8, 0);
		submit_read(&ring, pipes[0], buffer, 1, 2);
		seen_by_handler = 0;
		if (sigsetjmp(before_the_wait, 1) == 0) {
			alarm_us(3000, 0);
			io_uring_wait_cqe(&ring, &cqe);
			CHECK(!"the wait returned, though the pipe is empty");
		}
		io_uring_queue_exit(&ring);
		if (round == 3)
			descriptors = entries_of("/proc/self/fd");
	}
	for (int ms = 0; entries_of("/proc/self/fd") > descriptors + 6 && ms < LONG_MS; ms++)
		usleep(1000);
	CHECK(entries_of("/proc/self/fd") <= descriptors + 6);
	write_all(pipes[1], "x");
	expect(&other, 1, 1);
}

static void jumps_after_a_wait(void)
{
	jumps_over_waits(jump_after_a_wait);
}

static void jumps_over_two_waits(void)
{
	jumps_over_waits(jump_while_waiting);
}

static void nothing(int signal)
{
	(void)signal;
}

/* A signal that comes while a poll is submitted must not become the poll's result. */
static void interrupts_polls(void)
{
	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	on_alarm(nothing);
	alarm_us(50, 50);
	for (int round = 0; round < ROUNDS; round++) {
		struct io_uring_sqe *sqe = next_sqe(&ring);
		struct io_uring_cqe *cqe;

		io_uring_prep_poll_add(sqe, pipes[0], POLLIN);
		sqe->user_data = 1;
		sqe = next_sqe(&ring);
		io_uring_prep_cancel64(sqe, 1, IORING_ASYNC_CANCEL_ALL);
		submit(&ring, 2);
		for (int i = 0; i < 2; i++) {
			CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
			CHECK(answer(cqe->res) == (cqe->user_data == 1 ? -ECANCELED : 1));
			io_uring_cqe_seen(&ring, cqe);
		}
	}
	alarm_us(0, 0);
}

CASES({"submits", handler_submits},
      {"submits-unseen", unseen_handler_submits},
      {"waits", handler_waits},
      {"waits-elsewhere", handler_waits_elsewhere},
      {"posts", handler_posts},
      {"jumps-after-a-wait", jumps_after_a_wait},
      {"jumps-over-two-waits", jumps_over_two_waits},
      {"interrupts-polls", interrupts_polls},
      {"jumps", wait_after_the_jump},
      {"jumps-and-looks", only_look_after_the_jump},
      {"jumps-another-waits", another_thread_waits_after_the_jump})
