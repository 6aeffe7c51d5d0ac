/* Requests that wait on futexes and for children during other events in the program. */
#include "engine.h"
#include "holdings.h"

/* Constants that old headers lack: opcodes of Linux 6.7, flags of futex2. */
enum { WAITID = 50, FUTEX_WAIT = 51, PRIVATE_U32 = 2 | 128, ANY_BIT = -1 };

enum { RACES = 300, CLOSES = 20 };

static void prepare_wait(struct io_uring *ring, unsigned *word, unsigned value, unsigned mask, uint64_t user_data)
{
	struct io_uring_sqe *sqe = next_sqe(ring);

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = FUTEX_WAIT;
	sqe->fd = PRIVATE_U32;
	sqe->addr = (uintptr_t)word;
	sqe->off = value;
	sqe->addr3 = mask;
	sqe->user_data = user_data;
}

static void prepare_waitid(struct io_uring *ring, int kind, int id, uint64_t user_data)
{
	struct io_uring_sqe *sqe = next_sqe(ring);

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = WAITID;
	sqe->fd = id;
	sqe->len = kind;
	sqe->file_index = WEXITED;
	sqe->user_data = user_data;
}

static void prepare_cancel(struct io_uring *ring, uint64_t target, uint64_t user_data)
{
	struct io_uring_sqe *sqe = next_sqe(ring);

	io_uring_prep_cancel64(sqe, target, 0);
	sqe->user_data = user_data;
}

/* Cancels a request. In the kernel the two CQEs come in either order. */
static void cancel(struct io_uring *ring, uint64_t target)
{
	struct io_uring_cqe *cqe;

	prepare_cancel(ring, target, 100);
	submit(ring, 1);
	for (int count = 0; count < 2; count++) {
		CHECK(wait_ms(ring, &cqe, LONG_MS) == 0);
		CHECK(cqe->user_data == target || cqe->user_data == 100);
		CHECK(answer(cqe->res) == (cqe->user_data == 100 ? 1 : -ECANCELED));
		io_uring_cqe_seen(ring, cqe);
	}
}

static long wake(unsigned *word, int count)
{
	return syscall(SYS_futex, word, 1 | 128, count, NULL, NULL, 0);
}

static pid_t sleeping_child(void)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return child;
}

static void end_child(pid_t child)
{
	CHECK(kill(child, SIGKILL) == 0);
	/* In the kernel, the waits of a closed ring end a little later, and a wait may have reaped the child. */
	CHECK(waitpid(child, NULL, 0) == child || errno == ECHILD);
}

/* Submits four waits, of different kinds, with user_data 1 to 4. */
static void wait_for_all(struct io_uring *ring, unsigned *words, pid_t child)
{
	prepare_wait(ring, &words[0], 0, ANY_BIT, 1);
	prepare_wait(ring, &words[1], 0, 4, 2);
	prepare_waitid(ring, P_ALL, 0, 3);
	prepare_waitid(ring, P_PID, child, 4);
	submit(ring, 4);
}

static void close_rings(void)
{
	static unsigned words[2];
	struct holdings before = {0}, after = {0};
	struct io_uring ring;
	pid_t child = sleeping_child();

	for (int round = 0; round < CLOSES; round++) {
		init_ring(&ring, 8, round % 2 ? DEFERRED : 0);
		wait_for_all(&ring, words, child);
		io_uring_queue_exit(&ring);
		if (round == 0)
			before = look();
	}
	for (int ms = 0; ms < 5000; ms += 10) {
		after = look();
		if (after.threads <= 3 && after.descriptors <= before.descriptors)
			break;
		usleep(10000);
	}
	CHECK(after.threads <= 3);
	CHECK(after.descriptors <= before.descriptors);
	for (int ms = 0; ms < 5000 && wake(&words[0], 10) + wake(&words[1], 10) != 0; ms += 10)
		usleep(10000);
	CHECK(wake(&words[0], 10) == 0 && wake(&words[1], 10) == 0);
	end_child(child);
}

/* A forked child has none of its parent's waits, and itself waits on the same words. */
static void fork_while_waiting(void)
{
	static unsigned words[2];
	struct io_uring ring, own;
	pid_t sleeper = sleeping_child(), child;

	init_ring(&ring, 8, 0);
	wait_for_all(&ring, words, sleeper);
	child = fork();
	if (child == 0) {
		init_ring(&own, 8, 0);
		CHECK(wake(&words[0], 10) == 0);
		prepare_wait(&own, &words[0], 0, ANY_BIT, 11);
		prepare_wait(&own, &words[1], 0, 4, 12);
		submit(&own, 2);
		CHECK(wake(&words[0], 10) == 1);
		expect(&own, 11, 0);
		cancel(&own, 12);
		io_uring_queue_exit(&own);
		_exit(0);
	}
	expect(&ring, 3, 0); /* the child that just ended */
	CHECK(wake(&words[0], 10) == 1);
	expect(&ring, 1, 0);
	cancel(&ring, 2);
	CHECK(kill(sleeper, SIGKILL) == 0);
	expect(&ring, 4, 0);
	io_uring_queue_exit(&ring);
}

static void *wake_once(void *word)
{
	for (unsigned spins = *(unsigned *)word % 7 * 300; spins; spins--)
		__asm__ volatile("pause");
	return (void *)wake(word, 1);
}

/* A woken request is not cancelled, and a cancelled one has not taken a wake-up. */
static void race(void)
{
	static unsigned word;
	struct io_uring ring;
	struct io_uring_cqe *cqe;
	pthread_t thread;
	void *woken;

	init_ring(&ring, 8, 0);
	for (int round = 0; round < RACES; round++) {
		int res[3] = {0};

		prepare_wait(&ring, &word, word, round % 2 ? ANY_BIT : -2, 1);
		submit(&ring, 1);
		CHECK(pthread_create(&thread, NULL, wake_once, &word) == 0);
		for (unsigned spins = round % 11 * 500; spins; spins--)
			__asm__ volatile("pause");
		prepare_cancel(&ring, 1, 2);
		submit(&ring, 1);
		for (int count = 0; count < 2; count++) {
			CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
			res[cqe->user_data] = cqe->res;
			io_uring_cqe_seen(&ring, cqe);
		}
		CHECK(pthread_join(thread, &woken) == 0);
		if (woken)
			CHECK(res[1] == 0 && (res[2] == -ENOENT || res[2] == -EALREADY));
		else
			CHECK(res[1] == -ECANCELED && res[2] == 1);
		word++;
	}
	io_uring_queue_exit(&ring);
}

static void refuse(int signal)
{
	(void)signal;
	static const char text[] = "the program's handler was called\n";

	(void)!write(2, text, sizeof(text) - 1);
	_exit(1);
}

/* The program's own SIGBUS handler is not called for cancellations, and setgid reaches all threads. */
static void signals_while_waiting(void)
{
	static unsigned words[2];
	struct sigaction action = {.sa_handler = refuse}, seen;
	struct io_uring ring;
	pid_t child = sleeping_child();
	sigset_t set, kept;

	sigemptyset(&set);
	sigaddset(&set, SIGBUS);
	init_ring(&ring, 8, 0);
	CHECK(sigaction(SIGBUS, &action, NULL) == 0);
	CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	wait_for_all(&ring, words, child);
	CHECK(setgid(getgid()) == 0);
	wait_others_asleep(0);
	CHECK(wake(&words[0], 10) == 1);
	expect(&ring, 1, 0);
	for (uint64_t target = 2; target <= 4; target++)
		cancel(&ring, target);
	CHECK(sigpending(&kept) == 0 && !sigismember(&kept, SIGBUS));
	CHECK(pthread_sigmask(SIG_SETMASK, NULL, &kept) == 0 && sigismember(&kept, SIGBUS));
	CHECK(sigaction(SIGBUS, NULL, &seen) == 0 && seen.sa_handler == refuse);
	io_uring_queue_exit(&ring);
	end_child(child);
}

/* Beyond RLIMIT_SIGPENDING signals arrive without their siginfo. */
static void no_room_for_signals(void)
{
	static unsigned words[2];
	const struct rlimit none = {0, 0};
	struct io_uring ring;
	pid_t child = sleeping_child();

	init_ring(&ring, 8, 0);
	wait_for_all(&ring, words, child);
	wait_others_asleep(0);
	CHECK(setrlimit(RLIMIT_SIGPENDING, &none) == 0);
	for (uint64_t target = 1; target <= 4; target++)
		cancel(&ring, target);
	io_uring_queue_exit(&ring);
	end_child(child);
}

/* The word is unmapped under the waits. They can no longer be woken, but they can be cancelled. */
static void unmap_the_word(void)
{
	unsigned *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct io_uring ring;

	CHECK(words != MAP_FAILED);
	init_ring(&ring, 8, 0);
	prepare_wait(&ring, &words[0], 0, ANY_BIT, 1);
	prepare_wait(&ring, &words[1], 0, 4, 2);
	submit(&ring, 2);
	CHECK(munmap(words, 4096) == 0);
	for (uint64_t target = 1; target <= 2; target++)
		cancel(&ring, target);
	io_uring_queue_exit(&ring);
}

CASES({"close", close_rings}, {"fork", fork_while_waiting}, {"race", race}, {"signals", signals_while_waiting},
      {"limit", no_room_for_signals}, {"unmap", unmap_the_word})
