/* Children that run in this process's memory have their own signal actions and masks, whichever way they were made.
 * Another case changes a signal action in a handler that interrupts another change of that action. */
#include "engine.h"
#include <sched.h>
#include <sys/syscall.h>

static struct io_uring ring;

static void first(int signal)
{
	(void)signal;
}

static void second(int signal)
{
	(void)signal;
}

static void set_action(int signal, void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler};

	CHECK(sigaction(signal, &action, NULL) == 0);
}

static void *action_of(int signal)
{
	struct sigaction action;

	CHECK(sigaction(signal, NULL, &action) == 0);
	return (void *)action.sa_handler;
}

static int blocks(int signal)
{
	sigset_t set;

	CHECK(sigprocmask(SIG_BLOCK, NULL, &set) == 0);
	return sigismember(&set, signal);
}

/* Changes that the child makes to its own signals. */
static int change(void *unused)
{
	sigset_t set;

	(void)unused;
	set_action(SIGUSR1, second);
	set_action(SIGSEGV, second);
	sigfillset(&set);
	sigprocmask(SIG_BLOCK, &set, NULL);
	_exit(action_of(SIGUSR1) == (void *)second && blocks(SIGUSR2) ? 7 : 8);
}

static void prepare(void)
{
	init_ring(&ring, 4, 0);
	set_action(SIGUSR1, first);
	set_action(SIGSEGV, first);
}

static void is_unchanged(pid_t child)
{
	int status;

	CHECK(child > 0 && waitpid(child, &status, __WALL) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	CHECK(action_of(SIGUSR1) == (void *)first && action_of(SIGSEGV) == (void *)first);
	CHECK(!blocks(SIGUSR2) && !blocks(SIGSEGV));
	CHECK(raise(SIGUSR1) == 0 && raise(SIGSEGV) == 0);
}

static void by_vfork(void)
{
	pid_t child;

	prepare();
	for (int i = 0; i < 3; i++) {
		child = vfork();
		if (child == 0)
			change(NULL);
		is_unchanged(child);
	}
}

/* A child makes a child of its own, by vfork(2) and by fork(2). */
static void by_nested_vfork(void)
{
	pid_t child;

	prepare();
	child = vfork();
	if (child == 0) {
		pid_t grandchild = vfork();

		if (grandchild == 0)
			change(NULL);
		change(NULL);
	}
	is_unchanged(child);
	child = fork();
	if (child == 0) {
		pid_t grandchild = vfork();

		if (grandchild == 0)
			change(NULL);
		is_unchanged(grandchild);
		_exit(7);
	}
	is_unchanged(child);
}

static char stack[1 << 16];

static void by_clone(void)
{
	prepare();
	is_unchanged(clone(change, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL));
	is_unchanged(clone(change, stack + sizeof(stack), CLONE_VM | SIGCHLD, NULL));
}

static void in_what_is_left_of_memory(void)
{
	struct rlimit none = {0, 0}, before;
	pid_t child;

	if (geteuid() == 0)
		CHECK(setuid(65534) == 0);
	CHECK(getrlimit(RLIMIT_NPROC, &before) == 0 && setrlimit(RLIMIT_NPROC, &none) == 0);
	errno = 0;
	child = vfork();
	if (child == 0)
		_exit(0);
	CHECK(child == -1 && errno == EAGAIN);
	set_action(SIGUSR1, second);
	CHECK(action_of(SIGUSR1) == (void *)second);
}

static atomic_int ticks;
static volatile sig_atomic_t wrong;

/* Changes the action, and restores the action that it found. */
static void tick(int signal)
{
	struct sigaction mine = {.sa_handler = SIG_IGN}, found;

	(void)signal;
	ticks++;
	if (sigaction(SIGUSR2, &mine, &found) != 0 || sigaction(SIGUSR2, &found, NULL) != 0)
		wrong = 1;
	if (found.sa_handler != first && found.sa_handler != second)
		wrong = 2;
}

static void in_the_middle(void)
{
	struct itimerval every = {{0, 50}, {0, 50}};
	struct sigaction old;

	prepare();
	set_action(SIGALRM, tick);
	set_action(SIGUSR2, first);
	CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
	for (int i = 0; ticks < 3000 && !wrong; i++) {
		struct sigaction action = {.sa_handler = i % 2 ? first : second, .sa_flags = i % 2 ? SA_RESTART : 0};

		CHECK(sigaction(SIGUSR2, &action, &old) == 0);
		CHECK(old.sa_handler == first || old.sa_handler == second);
		CHECK((old.sa_handler == first) == ((old.sa_flags & SA_RESTART) != 0) || i == 0);
	}
	CHECK(wrong == 0);
}

static atomic_int stop;

static void *change_and_look(void *handler)
{
	while (!stop) {
		struct sigaction old;

		set_action(SIGUSR2, handler);
		CHECK(sigaction(SIGUSR2, NULL, &old) == 0);
		CHECK(old.sa_handler == first || old.sa_handler == second);
		CHECK(raise(SIGUSR2) == 0);
	}
	return NULL;
}

static void by_threads(void)
{
	pthread_t threads[4];

	prepare();
	set_action(SIGUSR2, first);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, change_and_look, i % 2 ? (void *)first : (void *)second) == 0);
	usleep(300000);
	stop = 1;
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

CASES({"vfork", by_vfork}, {"nested", by_nested_vfork}, {"clone", by_clone}, {"refused", in_what_is_left_of_memory},
      {"middle", in_the_middle}, {"threads", by_threads})
