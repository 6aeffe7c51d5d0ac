/* User threads between which a timer's signal handler switches by swapcontext(3). They may be anywhere: inside a call,
 * or in a wait that another user thread must end. */
#include "engine.h"

#include "holdings.h"

#include <ucontext.h>

#define USER_THREADS 4
#define STACK (1 << 18)
#define MESSAGES 40

static ucontext_t contexts[USER_THREADS], outside;
static bool is_over[USER_THREADS];
static int current, pipes[USER_THREADS][2];
static struct io_uring rings[USER_THREADS];
static bool is_one_ring;

static void switch_to(int next)
{
	int before = current;

	if (next == before)
		return;
	current = next;
	CHECK(swapcontext(&contexts[before], &contexts[next]) == 0);
}

static int next_one(void)
{
	for (int i = 1; i <= USER_THREADS; i++)
		if (!is_over[(current + i) % USER_THREADS])
			return (current + i) % USER_THREADS;
	return -1;
}

static void on_tick(int signal)
{
	int saved = errno;

	(void)signal;
	switch_to(next_one());
	errno = saved;
}

static sigset_t ticks;

/* The user threads of one ring take turns in its queues. */
static void take_turn(bool begins)
{
	CHECK(sigprocmask(begins ? SIG_BLOCK : SIG_UNBLOCK, &ticks, NULL) == 0);
}

static int read_by_ring(struct io_uring *ring, int fd, int me)
{
	struct io_uring_cqe *cqe;
	bool is_taken = false;
	char byte = 0;

	take_turn(true);
	submit_read(ring, fd, &byte, 1, me);
	take_turn(false);
	while (!is_taken) {
		long result = syscall(__NR_io_uring_enter, ring->ring_fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);

		CHECK(result == 0 || errno == EINTR);
		take_turn(true);
		if (io_uring_peek_cqe(ring, &cqe) == 0 && cqe->user_data == (uint64_t)me) {
			CHECK(answer(cqe->res) == 1);
			io_uring_cqe_seen(ring, cqe);
			is_taken = true;
		}
		take_turn(false);
	}
	return byte;
}

/* Each user thread passes a token on to the next, while all others wait. It begins with the signal blocked, as does
 * every context that is switched to, so that no handler comes in the middle of swapcontext. */
static void work(int me)
{
	struct io_uring *ring = &rings[is_one_ring ? 0 : me];

	take_turn(false);
	for (int i = 0; i < MESSAGES; i++) {
		int next = (me + 1) % USER_THREADS;
		char byte = 'a' + next;

		CHECK(read_by_ring(ring, pipes[me][0], me) == 'a' + me);
		CHECK(write(pipes[next][1], &byte, 1) == 1);
	}
	take_turn(true);
	is_over[me] = true;
	if (next_one() < 0)
		CHECK(setcontext(&outside) == 0);
	current = next_one();
	CHECK(setcontext(&contexts[current]) == 0);
}

static void run(void)
{
	struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
	struct itimerval timer = {{0, 500}, {0, 500}}, off = {{0, 0}, {0, 0}};
	volatile bool has_begun = false;

	sigemptyset(&ticks);
	sigaddset(&ticks, SIGALRM);
	CHECK(sigprocmask(SIG_BLOCK, &ticks, NULL) == 0);
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	for (int i = 0; i < USER_THREADS; i++) {
		is_over[i] = false;
		CHECK(pipe(pipes[i]) == 0);
		if (!i || !is_one_ring)
			init_ring(&rings[i], 8, 0);
		CHECK(getcontext(&contexts[i]) == 0);
		contexts[i].uc_stack.ss_sp = malloc(STACK);
		contexts[i].uc_stack.ss_size = STACK;
		contexts[i].uc_link = NULL;
		makecontext(&contexts[i], (void (*)(void))work, 1, i);
	}
	write_all(pipes[0][1], "a");
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	current = 0;
	CHECK(getcontext(&outside) == 0);
	if (!has_begun) {
		has_begun = true;
		CHECK(setcontext(&contexts[0]) == 0);
	}
	CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
	for (int i = 0; i < USER_THREADS; i++) {
		if (!i || !is_one_ring)
			io_uring_queue_exit(&rings[i]);
		CHECK(close(pipes[i][0]) == 0 && close(pipes[i][1]) == 0);
		free(contexts[i].uc_stack.ss_sp);
	}
}

/* All waits on the rings have ended, so closing the rings releases everything. */
static void runs(void)
{
	struct holdings before, now;

	need_proc();
	CHECK(sigemptyset(&ticks) == 0 && sigaddset(&ticks, SIGALRM) == 0);
	run();
	before = look();
	for (int i = 0; i < 4; i++)
		run();
	for (int ms = 0; ms < LONG_MS; ms++) {
		now = look();
		if (now.descriptors <= before.descriptors && now.threads <= before.threads)
			return;
		usleep(1000);
	}
	CHECK(now.descriptors <= before.descriptors);
	CHECK(now.threads <= before.threads);
}

static void own_rings(void)
{
	runs();
}

static void one_ring(void)
{
	is_one_ring = true;
	runs();
}

CASES({"own-rings", own_rings}, {"one-ring", one_ring})
