/* Handlers that leave a wait and never return to it, in ways that libc does not report. The ring still works for
 * all other threads. */
#include "engine.h"

#include "holdings.h"

#include <setjmp.h>
#include <ucontext.h>

#define PATIENCE_MS 3000
#define ROUNDS 20

static char buffer[8];
static int pipes[2];
static struct io_uring ring, other;
static atomic_int left, may_go_on;
static void *place[5];
static ucontext_t outside, inside;
static void (*leave)(void);

static void by_setcontext(void)
{
	setcontext(&outside);
}

static void by_swapcontext(void)
{
	swapcontext(&inside, &outside);
}

static void by_builtin(void)
{
	__builtin_longjmp(place, 1);
}

static void by_exit(void)
{
	syscall(__NR_exit, 0);
}

static void by_instruction(void)
{
	unseen6(__NR_exit, 0, 0, 0, 0, 0, 0);
}

static void leave_the_wait(int signal)
{
	(void)signal;
	left = 1;
	leave();
	CHECK(!"a handler that has left");
}

static void wait_in_vain(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;

	CHECK(io_uring_wait_cqe(ring, &cqe) == -EINTR);
	CHECK(!"a wait that was left");
}

/* Waits on the ring, and leaves that wait. When it is allowed to, the thread calls again, from deeper in its stack. */
static __attribute__((noinline)) void wait_and_leave(void)
{
	volatile int has_left = 0;

	CHECK(getcontext(&outside) == 0);
	if (has_left)
		return;
	if (__builtin_setjmp(place))
		return;
	has_left = 1;
	wait_in_vain(&ring);
}

static __attribute__((noinline)) void wait_again(struct io_uring *ring)
{
	char used[1 << 16];

	memset(used, 1, sizeof(used));
	__asm__ volatile("" : : "r"(used) : "memory");
	expect(ring, 2, 1);
}

static void *waits(void *comes_back)
{
	wait_and_leave();
	while (!may_go_on)
		usleep(1000);
	if (comes_back)
		wait_again(comes_back);
	return NULL;
}

static void *waits_beside(void *unused)
{
	struct io_uring_cqe *cqe;

	CHECK(wait_ms(&ring, &cqe, PATIENCE_MS) == 0);
	take(&ring, 1, 1);
	return unused;
}

/* Starts a thread that is the first to wait for a read on `ring`. */
static pthread_t begin(struct io_uring *comes_back)
{
	struct sigaction action = {.sa_handler = leave_the_wait, .sa_flags = SA_NODEFER};
	pthread_t thread;

	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	left = may_go_on = 0;
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], buffer, 1, 1);
	CHECK(pthread_create(&thread, NULL, waits, comes_back) == 0);
	wait_others_asleep(0);
	return thread;
}

static void have_it_leave(pthread_t thread)
{
	CHECK(pthread_kill(thread, SIGUSR1) == 0);
	while (!left)
		usleep(1000);
	usleep(20000);
}

static void end(pthread_t thread)
{
	may_go_on = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	io_uring_queue_exit(&ring);
}

/* Other threads get the events, whether they began to wait before the thread left its wait or after. */
static void others_wait(void)
{
	pthread_t thread, beside;

	for (int before = 0; before < 2; before++) {
		thread = begin(NULL);
		if (before) {
			CHECK(pthread_create(&beside, NULL, waits_beside, NULL) == 0);
			wait_others_asleep(0);
		}
		have_it_leave(thread);
		write_all(pipes[1], "x");
		if (before)
			CHECK(pthread_join(beside, NULL) == 0);
		else
			waits_beside(NULL);
		end(thread);
	}
}

/* The ring also works for threads that only poll the CQ. */
static void others_look(void)
{
	pthread_t thread = begin(NULL);

	have_it_leave(thread);
	write_all(pipes[1], "x");
	for (int ms = 0; ms < PATIENCE_MS && !io_uring_cq_ready(&ring); ms++)
		usleep(1000);
	take(&ring, 1, 1);
	end(thread);
}

/* The thread itself returns to the ring, and others wait after it. */
static void it_comes_back(void)
{
	pthread_t thread = begin(&ring);

	have_it_leave(thread);
	write_all(pipes[1], "x");
	waits_beside(NULL);
	submit_read(&ring, pipes[0], buffer, 1, 2);
	may_go_on = 1;
	wait_others_asleep(0);
	write_all(pipes[1], "x");
	CHECK(pthread_join(thread, NULL) == 0);
	submit_read(&ring, pipes[0], buffer, 1, 1);
	write_all(pipes[1], "x");
	waits_beside(NULL);
	io_uring_queue_exit(&ring);
}

/* Rings whose waits were left end when they are closed, once that thread has made a call on another ring, or has ended.
 * */
static void nothing_is_left(void)
{
	int descriptors = 0, ms = 0;

	need_proc();
	init_ring(&other, 8, 0);
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t thread;

		submit_read(&other, pipes[0], buffer, 1, 2);
		thread = begin(leave == by_exit ? NULL : &other);
		have_it_leave(thread);
		io_uring_queue_exit(&ring);
		may_go_on = 1;
		wait_others_asleep(0);
		write_all(pipes[1], "x");
		CHECK(pthread_join(thread, NULL) == 0);
		if (leave == by_exit)
			expect(&other, 2, 1);
		if (round == 3)
			descriptors = entries_of("/proc/self/fd");
	}
	while (entries_of("/proc/self/fd") > descriptors + 6 && ms++ < LONG_MS)
		usleep(1000);
	CHECK(entries_of("/proc/self/fd") <= descriptors + 6);
}

static void whatever_happens(void (*way)(void), int is_told)
{
	CHECK(pipe(pipes) == 0);
	leave = way;
	others_wait();
	if (is_told)
		others_look();
	if (way != by_exit && way != by_instruction)
		it_comes_back();
	if (way != by_instruction)
		nothing_is_left();
}

static void setcontexts(void)
{
	whatever_happens(by_setcontext, 1);
}

static void swapcontexts(void)
{
	whatever_happens(by_swapcontext, 1);
}

static void builtins(void)
{
	whatever_happens(by_builtin, 0);
}

static void exits(void)
{
	whatever_happens(by_exit, 1);
}

static void instructions(void)
{
	whatever_happens(by_instruction, 0);
}

CASES({"setcontext", setcontexts},
      {"swapcontext", swapcontexts},
      {"builtin", builtins},
      {"exit", exits},
      {"exit-by-instruction", instructions})
