/* A call with a bad pointer fails with EFAULT, whatever signals the calling thread blocks or handles. */
#include "engine.h"

#include <semaphore.h>

static struct io_uring ring;
static sem_t go, made;

/* Waits with a bad pointer as the argument. */
static void expect_efault(void)
{
	unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;

	CHECK(syscall(__NR_io_uring_enter, ring.ring_fd, 0, 1, flags, 8, sizeof(struct io_uring_getevents_arg)) == -1);
	CHECK(errno == EFAULT);
}

static void block_all(sigset_t *old)
{
	sigset_t all;

	sigfillset(&all);
	CHECK(pthread_sigmask(SIG_SETMASK, &all, old) == 0);
}

/* A blocked signal stays blocked for the program. A signal that it sends to itself stays pending. */
static void expect_blocked(void)
{
	sigset_t now, pending;

	CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0);
	CHECK(sigismember(&now, SIGSEGV) && sigismember(&now, SIGBUS) && sigismember(&now, SIGSYS));
	CHECK(sigismember(&now, SIGTERM));
	CHECK(pthread_kill(pthread_self(), SIGSEGV) == 0 && pthread_kill(pthread_self(), SIGSYS) == 0);
	CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGSEGV) && sigismember(&pending, SIGSYS));
	expect_efault();
}

static void *fault_when_told(void *unused)
{
	while (sem_wait(&go) != 0)
		CHECK(errno == EINTR);
	expect_efault();
	expect_efault();
	expect_blocked();
	return unused;
}

static void run_thread(void *(*body)(void *))
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
	CHECK(sem_post(&go) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

/* As in a program with a thread for signals, the threads begin with all signals blocked, before the first ring. */
static void blocked_before_the_first_ring(void)
{
	pthread_t thread;
	sigset_t old;

	CHECK(sem_init(&go, 0, 0) == 0);
	block_all(&old);
	CHECK(pthread_create(&thread, NULL, fault_when_told, NULL) == 0);
	CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
	init_ring(&ring, 8, 0);
	expect_efault();
	CHECK(sem_post(&go) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void *inherit(void *unused)
{
	while (sem_wait(&made) != 0)
		CHECK(errno == EINTR);
	run_thread(fault_when_told);
	return unused;
}

/* A thread that never enters a ring starts one that does. */
static void blocked_by_a_maker(void)
{
	pthread_t thread;
	sigset_t old;

	CHECK(sem_init(&go, 0, 0) == 0 && sem_init(&made, 0, 0) == 0);
	block_all(&old);
	CHECK(pthread_create(&thread, NULL, inherit, NULL) == 0);
	CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
	init_ring(&ring, 8, 0);
	CHECK(sem_post(&made) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void *block_unseen(void *unused)
{
	uint64_t all = ~0ul;

	CHECK(unseen6(__NR_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, 8, 0, 0) == 0);
	return fault_when_told(unused);
}

static void blocked_unseen(void)
{
	CHECK(sem_init(&go, 0, 0) == 0);
	init_ring(&ring, 8, 0);
	run_thread(block_unseen);
}

static void never(int signal)
{
	(void)signal;
	CHECK(!"the program handles a fault that is none of its own");
}

static sigjmp_buf before_the_fault;

static void jump(int signal)
{
	(void)signal;
	siglongjmp(before_the_fault, 1);
}

/* The signal is guarded from the next call on that makes a ring, registers something, or is a thread's first. */
static void handled_unseen(void)
{
	struct io_uring second;
	struct sigaction action;
	int *volatile bad = (int *)8;

	init_ring(&ring, 8, 0);
	expect_efault();
	for (int round = 0; round < 2; round++) {
		set_handler_unseen(SIGSEGV, never, 0);
		set_handler_unseen(SIGBUS, never, 0);
		if (round == 0)
			init_ring(&second, 8, 0);
		else
			CHECK(io_uring_register(ring.ring_fd, IORING_REGISTER_PROBE, (void *)8, 1) == -EFAULT);
		expect_efault();
		CHECK(sigaction(SIGSEGV, NULL, &action) == 0 && action.sa_handler == never);
		set_handler_unseen(SIGUSR1, never, 0);
		CHECK(sigaction(SIGUSR1, NULL, &action) == 0 && action.sa_handler == never);
	}
	/* The program's handler gets a fault of the program itself. */
	set_handler_unseen(SIGSEGV, jump, 0);
	io_uring_queue_exit(&second);
	init_ring(&second, 8, 0);
	if (sigsetjmp(before_the_fault, 1) == 0) {
		*bad = 1;
		CHECK(!"a fault goes on");
	}
	expect_efault();
}

/* A thread blocked the fault signals before the first ring. It first calls io_uring_enter(2) in a handler. */
static void expect_efault_in_handler(int signal)
{
	(void)signal;
	expect_efault();
}

static void *handle_when_told(void *unused)
{
	sigset_t open;

	while (sem_wait(&go) != 0)
		CHECK(errno == EINTR);
	sigemptyset(&open);
	sigaddset(&open, SIGUSR1);
	CHECK(pthread_sigmask(SIG_UNBLOCK, &open, NULL) == 0);
	CHECK(raise(SIGUSR1) == 0);
	expect_efault();
	expect_blocked();
	return unused;
}

static void blocked_in_handler(void)
{
	struct sigaction action = {.sa_handler = expect_efault_in_handler};
	pthread_t thread;
	sigset_t old;

	CHECK(sem_init(&go, 0, 0) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	block_all(&old);
	CHECK(pthread_create(&thread, NULL, handle_when_told, NULL) == 0);
	CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
	init_ring(&ring, 8, 0);
	CHECK(sem_post(&go) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static sigjmp_buf out;
static int handled, uses_ring, leaves;

static void leave(int signal)
{
	(void)signal;
	handled++;
	if (uses_ring)
		expect_efault();
	if (leaves)
		siglongjmp(out, 1);
}

static void expect_mask(int segv, int bus)
{
	sigset_t now;

	CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0);
	CHECK(sigismember(&now, SIGSEGV) == segv && sigismember(&now, SIGBUS) == bus);
}

static void open_again(void)
{
	sigset_t both;

	sigemptyset(&both);
	sigaddset(&both, SIGSEGV);
	sigaddset(&both, SIGBUS);
	CHECK(pthread_sigmask(SIG_UNBLOCK, &both, NULL) == 0);
}

/* Leaves a handler of SIGSEGV by a jump, with the earlier mask or with that of the handler, or returns from it. */
static void leave_once(int flags, int blocks_bus, int saves)
{
	struct sigaction action = {.sa_handler = leave, .sa_flags = flags};
	int stays = leaves && !saves;

	if (blocks_bus)
		sigaddset(&action.sa_mask, SIGBUS);
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	handled = 0;
	if (sigsetjmp(out, saves) == 0)
		CHECK(raise(SIGSEGV) == 0 && !leaves);
	CHECK(handled == 1);
	for (int i = 0; i < 2; i++) {
		expect_mask(stays && !(flags & SA_NODEFER), stays && blocks_bus);
		expect_efault();
	}
	open_again();
	expect_mask(0, 0);
	expect_efault();
}

/* With the signal blocked, the program's own fault kills it, as does a fault in the handler. */
static void die_of_the_next(void)
{
	int *volatile bad = (int *)8;
	pid_t child = fork();
	int status;

	if (!child) {
		struct sigaction action = {.sa_handler = leave};

		CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
		if (sigsetjmp(out, 0) == 0)
			*bad = 1;
		expect_efault();
		*bad = 1;
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static void left(void)
{
	init_ring(&ring, 8, 0);
	expect_efault();
	for (int choice = 0; choice < 32; choice++) {
		uses_ring = choice & 1;
		leaves = choice & 2;
		leave_once(choice & 4 ? SA_NODEFER : 0, !!(choice & 8), !!(choice & 16));
	}
	leaves = 1;
	for (uses_ring = 0; uses_ring < 2; uses_ring++)
		die_of_the_next();
}

CASES({"blocked-before-the-first-ring", blocked_before_the_first_ring},
      {"blocked-by-a-maker", blocked_by_a_maker},
      {"blocked-unseen", blocked_unseen},
      {"blocked-in-a-handler", blocked_in_handler},
      {"handled-unseen", handled_unseen},
      {"left", left})
