/* Raw calls after libc has set a signal mask: that of a context ("contexts"), a jump ("jumps"), a thread ("threads") or
 * a started program ("started"). The program reads back the mask that was set, and a started program inherits it. In
 * "failing" no program is started, and a signal handler makes the calls in the meantime. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include "raw.h"
#include <spawn.h>
#include <sys/wait.h>
#include <ucontext.h>

static const int guarded[] = {SIGSYS, SIGSEGV, SIGBUS};
static char stack[1 << 18];
static ucontext_t left, other;
static struct ring ring;

/* Whether the thread blocks `blocked` of the guarded signals, and can make raw calls. */
static int blocks(int blocked)
{
	sigset_t set;

	for (int i = 0; i < 10; i++)
		ring_nop(&ring, i);
	CHECK(pthread_sigmask(SIG_BLOCK, NULL, &set) == 0);
	for (int i = 0; i < 3; i++)
		if (sigismember(&set, guarded[i]) != blocked)
			return 0;
	return 1;
}

static void change(int how, int all)
{
	sigset_t set;

	sigemptyset(&set);
	if (all)
		sigfillset(&set);
	else
		sigaddset(&set, SIGSEGV), sigaddset(&set, SIGSYS), sigaddset(&set, SIGBUS);
	CHECK(pthread_sigmask(how, &set, NULL) == 0);
}

static void in_context(void)
{
	CHECK(blocks(1));
	CHECK(swapcontext(&other, &left) == 0);
	CHECK(blocks(1));
	change(SIG_UNBLOCK, 0);
	CHECK(blocks(0));
	CHECK(swapcontext(&other, &left) == 0);
}

static void contexts(void)
{
	static volatile int passes;

	CHECK(getcontext(&other) == 0);
	sigfillset(&other.uc_sigmask);
	other.uc_stack.ss_sp = stack;
	other.uc_stack.ss_size = sizeof(stack);
	makecontext(&other, in_context, 0);
	CHECK(swapcontext(&left, &other) == 0);
	CHECK(blocks(0));
	CHECK(swapcontext(&left, &other) == 0);
	CHECK(blocks(0));
	change(SIG_BLOCK, 0);
	CHECK(getcontext(&left) == 0);
	CHECK(blocks(1));
	change(SIG_UNBLOCK, 0);
	CHECK(blocks(0));
	if (++passes < 3)
		setcontext(&left);
	CHECK(passes == 3);
	change(SIG_BLOCK, 1);
	if (++passes == 4) {
		CHECK(getcontext(&left) == 0);
		if (passes++ == 4) {
			sigemptyset(&left.uc_sigmask);
			setcontext(&left);
		}
		CHECK(blocks(0));
	}
}

static void jumps(void)
{
	static sigjmp_buf environment;
	static volatile int passes;

	CHECK(sigsetjmp(environment, 1) == passes);
	CHECK(blocks(0));
	change(SIG_BLOCK, 0);
	if (passes++ == 0)
		siglongjmp(environment, 1);
	CHECK(sigsetjmp(environment, 1) == passes - 2);
	CHECK(blocks(1));
	change(SIG_UNBLOCK, 1);
	if (passes++ == 2)
		siglongjmp(environment, 1);
	if (sigsetjmp(environment, 0) == 0) {
		change(SIG_BLOCK, 1);
		siglongjmp(environment, 1);
	}
	CHECK(blocks(1));
}

static void *blocking(void *blocked)
{
	CHECK(blocks(blocked != NULL));
	return NULL;
}

static void make_thread(pthread_attr_t *attributes, int blocked)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, attributes, blocking, blocked ? &ring : NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void threads(void)
{
	pthread_attr_t attributes;
	sigset_t set, read_back;

	CHECK(pthread_attr_init(&attributes) == 0);
	make_thread(&attributes, 0);
	sigfillset(&set);
	CHECK(pthread_attr_setsigmask_np(&attributes, &set) == 0);
	make_thread(&attributes, 1);
	sigemptyset(&read_back);
	CHECK(pthread_attr_getsigmask_np(&attributes, &read_back) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(sigismember(&read_back, guarded[i]));
	CHECK(blocks(0));
	change(SIG_BLOCK, 1);
	make_thread(NULL, 1);
	sigemptyset(&set);
	CHECK(pthread_attr_setsigmask_np(&attributes, &set) == 0);
	make_thread(&attributes, 0);
	CHECK(blocks(1));
}

/* Returns 0 if the started program has really blocked the wanted signals. No library is preloaded there. */
static int shows(const char *wanted)
{
	char line[256];
	unsigned long mask = 0;
	FILE *status = fopen("/proc/self/status", "r");

	CHECK(status);
	while (fgets(line, sizeof(line), status))
		sscanf(line, "SigBlk: %lx", &mask);
	fclose(status);
	mask &= 1ul << (SIGSYS - 1) | 1ul << (SIGSEGV - 1) | 1ul << (SIGBUS - 1) | 1ul << (SIGUSR1 - 1);
	return mask == strtoul(wanted, NULL, 16) ? 0 : 1;
}

static void ended(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void started(void)
{
	const unsigned long all = 1ul << (SIGSYS - 1) | 1ul << (SIGSEGV - 1) | 1ul << (SIGBUS - 1);
	char blocked[32], and_one[32];
	char *arguments[] = {"masks", "shows", blocked, NULL}, *plain[] = {NULL};
	char *none[] = {"masks", "shows", "0", NULL}, *more[] = {"masks", "shows", and_one, NULL};
	posix_spawnattr_t attributes;
	sigset_t set;
	pid_t child;

	snprintf(blocked, sizeof(blocked), "%lx", all);
	snprintf(and_one, sizeof(and_one), "%lx", all | 1ul << (SIGUSR1 - 1));
	change(SIG_BLOCK, 0);
	CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, plain) == 0);
	ended(child);
	CHECK(posix_spawnattr_init(&attributes) == 0);
	CHECK(posix_spawn(&child, "/proc/self/exe", NULL, &attributes, arguments, plain) == 0);
	ended(child);
	sigemptyset(&set);
	CHECK(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK) == 0);
	CHECK(posix_spawnattr_setsigmask(&attributes, &set) == 0);
	CHECK(posix_spawn(&child, "/proc/self/exe", NULL, &attributes, none, plain) == 0);
	ended(child);
	child = fork();
	if (child == 0) {
		CHECK(blocks(1));
		execve("/proc/self/exe", arguments, plain);
		_exit(9);
	}
	ended(child);
	child = vfork();
	if (child == 0) {
		sigprocmask(SIG_SETMASK, &set, NULL);
		execve("/proc/self/exe", none, plain);
		_exit(9);
	}
	ended(child);
	CHECK(blocks(1));
	sigaddset(&set, SIGUSR1);
	child = vfork();
	if (child == 0) {
		sigprocmask(SIG_BLOCK, &set, NULL);
		execve("/proc/self/exe", more, plain);
		_exit(9);
	}
	ended(child);
	child = vfork();
	if (child == 0) {
		raw6(SYS_execve, (long)"/proc/self/exe", (long)arguments, (long)plain, 0, 0, 0);
		_exit(9);
	}
	ended(child);
	child = vfork();
	if (child == 0) {
		sigsetmask(0);
		execve("/proc/self/exe", none, plain);
		_exit(9);
	}
	ended(child);
	CHECK(execve("/nowhere", arguments, plain) == -1 && blocks(1));
	CHECK(sigsetmask(0) != 0 && blocks(0));
	CHECK(sigblock((int)all) == 0 && blocks(1));
	CHECK(siggetmask() == (int)all);
	change(SIG_UNBLOCK, 0);
	CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, none, plain) == 0);
	ended(child);
}

static struct ring of_handler;

static void call_in_handler(int signal)
{
	(void)signal;
	ring_nop(&of_handler, 1);
}

static void failing(void)
{
	struct sigaction action = {.sa_handler = call_in_handler};
	char *arguments[] = {"masks", NULL}, **volatile nowhere = (char **)8;

	CHECK(ring_open(&of_handler, 4) == 0);
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	change(SIG_BLOCK, 0);
	ualarm(200, 200);
	for (int i = 0; i < 2000; i++)
		CHECK(execve("/proc/self/exe", arguments, nowhere) == -1 && errno == EFAULT);
	ualarm(0, 0);
	CHECK(blocks(1));
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (strcmp(what, "shows") == 0)
		return shows(argv[2]);
	expect_trap();
	CHECK(ring_open(&ring, 4) == 0);
	if (strcmp(what, "contexts") == 0)
		contexts();
	else if (strcmp(what, "jumps") == 0)
		jumps();
	else if (strcmp(what, "threads") == 0)
		threads();
	else if (strcmp(what, "started") == 0)
		started();
	else if (strcmp(what, "failing") == 0)
		failing();
	else
		return 2;
	puts("done");
	return 0;
}
