/* Handlers on the alternate signal stack that make raw calls: the next handler begins below them. The argument
 * names the case. */
#include "raw.h"
#include <stdatomic.h>

#define ROUNDS 30

static struct ring ring, other;
static stack_t alternate;
static sigjmp_buf out;
static pid_t waiter;
static atomic_int waiting;
static volatile int outer_calls, inner_calls, jumps;

/* The only instruction that makes io_uring_enter(2), so that it is patched after a while. */
static __attribute__((noinline)) long enter(struct ring *on, unsigned submit, unsigned wait)
{
	return ring_enter(on, submit, wait);
}

static void nop(struct ring *on)
{
	uint64_t seen;
	int res;

	ring_sqe(on)->opcode = IORING_OP_NOP;
	ring_push(on);
	CHECK(enter(on, 1, 1) == 1 && ring_reap(on, &seen, &res) && res == 0);
}

static int on_alternate(const volatile char *frame)
{
	return frame >= (char *)alternate.ss_sp && frame < (char *)alternate.ss_sp + alternate.ss_size;
}

static void inner(int sig)
{
	volatile char mine[8192];

	(void)sig;
	for (size_t i = 0; i < sizeof(mine); i++)
		mine[i] = 'i';
	inner_calls++;
	nop(&other);
	if (jumps)
		siglongjmp(out, 1);
}

/* Waits for nothing until the other handler has interrupted it. */
static void outer(int sig)
{
	volatile char mine[8192];

	(void)sig;
	CHECK(on_alternate(mine));
	for (size_t i = 0; i < sizeof(mine); i++)
		mine[i] = 'o';
	outer_calls++;
	nop(&ring);
	atomic_store(&waiting, outer_calls);
	CHECK(enter(&ring, 0, 1) == -EINTR);
	nop(&ring);
	for (size_t i = 0; i < sizeof(mine); i++)
		CHECK(mine[i] == 'o');
}

static void *interrupt(void *unused)
{
	for (int round = 1; round <= ROUNDS; round++) {
		while (atomic_load(&waiting) < round)
			sched_yield();
		wait_asleep(waiter);
		CHECK(syscall(SYS_tgkill, getpid(), waiter, SIGUSR2) == 0);
	}
	return unused;
}

static void install(int sig, void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};

	CHECK(sigaction(sig, &action, NULL) == 0);
}

static void nested(void)
{
	pthread_t thread;
	stack_t now;

	waiter = gettid();
	install(SIGUSR1, outer);
	install(SIGUSR2, inner);
	CHECK(pthread_create(&thread, NULL, interrupt, NULL) == 0);
	for (volatile int round = 1; round <= ROUNDS; round++) {
		if (sigsetjmp(out, 1) == 0) {
			CHECK(raise(SIGUSR1) == 0);
			CHECK(!jumps);
		}
		CHECK(outer_calls == round && inner_calls == round);
		CHECK(sigaltstack(NULL, &now) == 0);
		CHECK(now.ss_sp == alternate.ss_sp && now.ss_size == alternate.ss_size && now.ss_flags == 0);
		nop(&ring);
	}
	CHECK(pthread_join(thread, NULL) == 0);
}

/* Checks the state that a call in the handler changes, and the state that it must not. */
static void look(int sig)
{
	uint64_t block = 1ul << (SIGHUP - 1), mask = 0, seen = 0, pattern = 0x1122334455667788;
	volatile char here;
	long result;

	(void)sig;
	CHECK(on_alternate(&here));
	CHECK(raw6(__NR_rt_sigprocmask, SIG_BLOCK, (long)&block, 0, 8, 0, 0) == 0);
	CHECK(raw6(__NR_rt_sigprocmask, SIG_BLOCK, 0, (long)&mask, 8, 0, 0) == 0);
	CHECK(mask & block);
	__asm__ volatile("movq %[pattern], %%xmm7\n\txor %%r10d, %%r10d\n\txor %%r8d, %%r8d\n\txor %%r9d, %%r9d\n\tsyscall\n\t"
			 "movq %%xmm7, %[seen]"
			 : "=a"(result), [seen] "=r"(seen)
			 : "0"(__NR_io_uring_enter), "D"(ring.fd), "S"(0), "d"(0), [pattern] "r"(pattern)
			 : "rcx", "r11", "r10", "r8", "r9", "xmm7", "memory");
	CHECK(result == 0 && seen == pattern);
	outer_calls++;
}

static void state(void)
{
	sigset_t mask;

	install(SIGUSR1, look);
	for (int round = 1; round <= 200; round++) {
		CHECK(raise(SIGUSR1) == 0 && outer_calls == round);
		CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0 && !sigismember(&mask, SIGHUP));
	}
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	expect_trap();
	CHECK(ring_open(&ring, 8) == 0 && ring_open(&other, 8) == 0);
	alternate.ss_size = 1 << 17;
	alternate.ss_sp = malloc(alternate.ss_size);
	CHECK(alternate.ss_sp && sigaltstack(&alternate, NULL) == 0);
	if (!strcmp(name, "state")) {
		state();
		puts("done");
		return 0;
	}
	if (strstr(name, "patched"))
		for (int i = 0; i < 100; i++)
			nop(&ring);
	jumps = strstr(name, "jumps") != NULL;
	nested();
	puts("done");
	return 0;
}
