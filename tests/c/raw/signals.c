/* The program's own signals while its raw calls are trapped. The first argument names the case. */
#include "raw.h"
#include "../filter.h"
#include <linux/audit.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

static struct ring ring, other;
static volatile int calls;
static sigjmp_buf out;

static void nop_handler(int sig)
{
	(void)sig;
	ring_nop(&other, 5);
	calls++;
}

static void jump_handler(int sig)
{
	(void)sig;
	calls++;
	siglongjmp(out, 1);
}

static void install(int sig, void (*handler)(int), int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	CHECK(sigaction(sig, &action, NULL) == 0);
}

/* One of the program's own filters. It traps getppid and allows every other call. */
static void trap_getppid(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP | 33),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	FILTER_CALLS(code, 0);
}

static void own_handler(int sig, siginfo_t *info, void *context)
{
	CHECK(sig == SIGSYS && info->si_syscall == __NR_getppid && info->si_errno == 33);
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4242;
	ring_nop(&other, 6);
	calls++;
}

static void own_filter(void)
{
	struct sigaction action = { .sa_sigaction = own_handler, .sa_flags = SA_SIGINFO | SA_NODEFER }, old;

	sigemptyset(&action.sa_mask);
	sigaddset(&action.sa_mask, SIGHUP);
	sigaddset(&action.sa_mask, SIGSYS);
	CHECK(sigaction(SIGSYS, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
	CHECK(sigaction(SIGSYS, &action, &old) == 0 && old.sa_handler == SIG_DFL);
	trap_getppid();
	for (int i = 0; i < 100; i++) {
		ring_nop(&ring, i);
		CHECK(raw6(__NR_getppid, 0, 0, 0, 0, 0, 0) == 4242);
		CHECK(getppid() == 4242);
	}
	CHECK(calls == 200);
	memset(&old, 0, sizeof(old));
	CHECK(sigaction(SIGSYS, NULL, &old) == 0);
	CHECK(old.sa_sigaction == own_handler && (old.sa_flags & ~0x04000000) == (SA_SIGINFO | SA_NODEFER));
	CHECK(sigismember(&old.sa_mask, SIGHUP) && sigismember(&old.sa_mask, SIGSYS));
	CHECK(!sigismember(&old.sa_mask, SIGTERM));
}

static void blocked(void)
{
	struct sigaction action = { .sa_handler = nop_handler }, old;
	sigset_t all, mask, old_mask, pending;

	sigfillset(&all);
	CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
	ring_nop(&ring, 1);
	CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0 && sigismember(&mask, SIGSYS));
	CHECK(raise(SIGSYS) == 0); /* blocked: must wait */
	ring_nop(&ring, 2);
	CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGSYS));
	install(SIGSYS, nop_handler, 0);
	CHECK(calls == 0);
	sigemptyset(&mask);
	sigaddset(&mask, SIGSYS);
	CHECK(pthread_sigmask(SIG_UNBLOCK, &mask, &old_mask) == 0 && sigismember(&old_mask, SIGSYS));
	CHECK(calls == 1);
	CHECK(sigpending(&pending) == 0 && !sigismember(&pending, SIGSYS));

	sigfillset(&action.sa_mask);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && sigismember(&old.sa_mask, SIGSYS));
	CHECK(raise(SIGUSR1) == 0);
	sigfillset(&mask);
	sigdelset(&mask, SIGUSR1);
	CHECK(sigsuspend(&mask) == -1 && errno == EINTR && calls == 2);
	CHECK(raise(SIGUSR1) == 0);
	CHECK(ppoll(NULL, 0, NULL, &mask) == -1 && errno == EINTR && calls == 3);
	ring_nop(&ring, 3);
	CHECK(signal(SIGSYS, SIG_IGN) == nop_handler);
	ring_nop(&ring, 4);
	CHECK(raise(SIGSYS) == 0 && calls == 3);
	CHECK(signal(SIGSYS, SIG_DFL) == SIG_IGN);
	CHECK(sigset(SIGSYS, SIG_HOLD) == SIG_DFL);
	CHECK(sigset(SIGSYS, nop_handler) == SIG_HOLD);
	CHECK(raise(SIGSYS) == 0 && calls == 4);
	CHECK(signal(999, SIG_IGN) == SIG_ERR && errno == EINVAL);
}

/* Without a ring, too: each call after the first is trapped. */
static void blocked_by_instruction(void)
{
	uint64_t all = ~0ul, none = 0, mask = 0;
	char action[32] = { 0 };
	sigset_t pending;

	CHECK(raw6(__NR_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, 8, 0, 0) == 0);
	CHECK(raw6(__NR_rt_sigaction, SIGUSR1, 0, (long)action, 8, 0, 0) == 0);
	CHECK(raw6(__NR_rt_sigprocmask, SIG_BLOCK, 0, (long)&mask, 8, 0, 0) == 0);
	CHECK(mask == (all & ~(1ul << (SIGKILL - 1) | 1ul << (SIGSTOP - 1))));
	CHECK(raise(SIGSYS) == 0 && sigpending(&pending) == 0 && sigismember(&pending, SIGSYS));
	install(SIGSYS, nop_handler, 0);
	CHECK(ring_open(&other, 8) == 0);
	ring_nop(&other, 1);
	CHECK(calls == 0);
	CHECK(raw6(__NR_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, 8, 0, 0) == 0);
	CHECK(calls == 1);
}

static int trace(void *data)
{
	char action[32] = { 0 };

	(void)data;
	return raw6(__NR_rt_sigaction, SIGUSR1, 0, (long)action, 8, 0, 0) == 0 ? 5 : 6;
}

/* Inspects the process as LeakSanitizer does at its end: from a process with the same memory, with all signals blocked.
 * */
static void traced(void)
{
	uint64_t all = ~0ul;
	char *stack = malloc(1 << 18);
	int status, tracer;

	CHECK(stack && raw6(__NR_rt_sigprocmask, SIG_BLOCK, (long)&all, 0, 8, 0, 0) == 0);
	tracer = clone(trace, stack + (1 << 18), CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_UNTRACED | SIGCHLD, NULL);
	CHECK(tracer > 0 && waitpid(tracer, &status, 0) == tracer);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
	CHECK(trace(NULL) == 5);
}

/* A handler that itself makes raw calls while the thread is in a blocking raw call. */
static void interrupted(void)
{
	struct itimerval every = { .it_interval.tv_usec = 2000, .it_value.tv_usec = 2000 };

	install(SIGALRM, nop_handler, 0);
	CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
	for (int i = 0; i < 50; i++) {
		int before = calls;

		CHECK(ring_enter(&ring, 0, 1) == -EINTR);
		CHECK(calls > before);
	}
}

static int mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	int lines = 0;

	CHECK(maps);
	for (int c; (c = getc(maps)) != EOF;)
		lines += c == '\n';
	fclose(maps);
	return lines;
}

/* The thread that will be interrupted, and the round in which it is. */
static pid_t waiter;
static atomic_int round_of_waiter;

/* Interrupts the waiter once in each round, when it sleeps. */
static void *interrupt_sleeps(void *data)
{
	int last = *(int *)data;

	for (int round = 1; round <= last; round++) {
		while (atomic_load(&round_of_waiter) < round || switches_asleep(waiter) < 0)
			sched_yield();
		CHECK(syscall(SYS_tgkill, getpid(), waiter, SIGALRM) == 0);
		while (atomic_load(&round_of_waiter) == round && round < last)
			sched_yield();
	}
	return NULL;
}

/* Leaves a blocking call by a jump, more often than there are stacks. The signal comes when the call is asleep. An
 * earlier jump out of the engine's code would leave the ring's lock taken, which cannot happen in the kernel. */
static void jumped(int flags)
{
	static int rounds = 1200;
	volatile int first = 0;
	pthread_t thread;

	waiter = gettid();
	install(SIGALRM, jump_handler, flags);
	CHECK(pthread_create(&thread, NULL, interrupt_sleeps, &rounds) == 0);
	for (volatile int i = 1; i <= rounds; i++) {
		if (sigsetjmp(out, 1) == 0) {
			atomic_store(&round_of_waiter, i);
			ring_enter(&ring, 0, 1);
			CHECK(!"waited for nothing and got it");
		}
		if (i == 10)
			first = mappings();
	}
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(calls == rounds);
	CHECK(mappings() <= first + 8);
	ring_nop(&ring, 9);
}

static void *in_thread(void *data)
{
	struct ring own;

	(void)data;
	CHECK(ring_open(&own, 4) == 0);
	for (int i = 0; i < 500; i++)
		ring_nop(&own, i);
	return NULL;
}

static void threads(void)
{
	pthread_t ids[8];

	for (int i = 0; i < 8; i++)
		CHECK(pthread_create(&ids[i], NULL, in_thread, NULL) == 0);
	for (int i = 0; i < 8; i++)
		CHECK(pthread_join(ids[i], NULL) == 0);
}

static void use_alternate_stack(void)
{
	stack_t stack = { .ss_size = 1 << 16, .ss_sp = malloc(1 << 16) };

	CHECK(stack.ss_sp && sigaltstack(&stack, NULL) == 0);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	expect_trap();
	if (!strcmp(name, "blocked-by-instruction") || !strcmp(name, "traced")) {
		name[0] == 'b' ? blocked_by_instruction() : traced();
		puts("done");
		return 0;
	}
	CHECK(ring_open(&ring, 8) == 0 && ring_open(&other, 8) == 0);
	if (!strcmp(name, "own-filter")) {
		own_filter();
	} else if (!strcmp(name, "blocked")) {
		blocked();
	} else if (!strcmp(name, "interrupted")) {
		interrupted();
	} else if (!strcmp(name, "jumped")) {
		jumped(0);
	} else if (!strcmp(name, "jumped-on-alternate-stack")) {
		use_alternate_stack();
		jumped(SA_ONSTACK);
	} else if (!strcmp(name, "threads")) {
		threads();
	} else if (!strcmp(name, "dies-by-own-filter")) {
		ring_nop(&ring, 1);
		trap_getppid();
		getppid();
	} else if (!strcmp(name, "dies-blocking-own-filter")) {
		sigset_t all;

		install(SIGSYS, nop_handler, 0);
		sigfillset(&all);
		CHECK(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
		trap_getppid();
		getppid();
	} else if (!strcmp(name, "dies-by-kill")) {
		CHECK(signal(SIGSYS, SIG_DFL) == SIG_DFL);
		kill(getpid(), SIGSYS);
	} else {
		CHECK(!"a known case");
	}
	puts("done");
	return 0;
}
