/* The program's own SIGSEGV and SIGBUS once a ring exists and the library guards both. The first argument names the
 * case. The same must happen with the kernel's io_uring. */
#include "raw.h"
#include <ucontext.h>

static sigjmp_buf out;
static volatile int calls;
static char *volatile nowhere = (char *)64;
static char alternate[1 << 16];

static int on_alternate(void)
{
	char here;

	return &here >= alternate && &here < alternate + sizeof(alternate);
}

static void jump(int sig, siginfo_t *info, void *context)
{
	sigset_t now;

	(void)sig;
	CHECK(info->si_addr == nowhere && info->si_code == SEGV_MAPERR);
	CHECK(((ucontext_t *)context)->uc_mcontext.gregs[REG_CR2] == (long)nowhere);
	CHECK(sigprocmask(SIG_SETMASK, NULL, &now) == 0);
	CHECK(sigismember(&now, SIGSEGV) && sigismember(&now, SIGUSR2) && !sigismember(&now, SIGUSR1));
	CHECK(!on_alternate());
	calls++;
	siglongjmp(out, 1);
}

static void jump_from_overflow(int sig)
{
	(void)sig;
	CHECK(on_alternate());
	calls++;
	siglongjmp(out, 1);
}

static void plain(int sig)
{
	(void)sig;
	calls++;
}

static void skip_store(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)info;
	calls++;
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 3; /* movb $0, (%rax) */
}

static void store_nowhere(void)
{
	__asm__ volatile("movb $0, (%0)" : : "a"(nowhere) : "memory");
}

static int __attribute__((noinline)) overflow(int depth)
{
	volatile char frame[4096];

	frame[0] = (char)depth;
	return overflow(depth + 1) + frame[0];
}

static void handle(int sig, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = flags }, old;

	sigaddset(&action.sa_mask, SIGUSR2);
	CHECK(sigaction(sig, &action, NULL) == 0);
	CHECK(sigaction(sig, NULL, &old) == 0);
	CHECK(old.sa_sigaction == handler && (old.sa_flags & ~0x04000000) == flags);
	CHECK(sigismember(&old.sa_mask, SIGUSR2) && !sigismember(&old.sa_mask, sig));
}

static void jumps(void)
{
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof(alternate) };
	sigset_t now;

	CHECK(sigaltstack(&stack, NULL) == 0);
	handle(SIGSEGV, jump, SA_SIGINFO);
	for (volatile int i = 0; i < 100; i++)
		if (sigsetjmp(out, 1) == 0)
			store_nowhere();
	CHECK(calls == 100);
	CHECK(sigprocmask(SIG_SETMASK, NULL, &now) == 0 && !sigismember(&now, SIGSEGV));
}

static void overflows(void)
{
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof(alternate) };
	struct sigaction action = { .sa_handler = jump_from_overflow, .sa_flags = SA_ONSTACK };

	CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
	for (volatile int i = 0; i < 3; i++)
		if (sigsetjmp(out, 1) == 0)
			overflow(0);
	CHECK(calls == 3);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";
	struct sigaction old;
	struct ring ring;
	sigset_t mask;

	CHECK(ring_open(&ring, 8) == 0);
	ring_nop(&ring, 1);
	sigemptyset(&mask);
	sigaddset(&mask, SIGSEGV);
	if (!strcmp(name, "jumps")) {
		jumps();
	} else if (!strcmp(name, "overflows")) {
		overflows();
	} else if (!strcmp(name, "goes-on")) {
		handle(SIGSEGV, skip_store, SA_SIGINFO | SA_NODEFER);
		store_nowhere();
		store_nowhere();
		CHECK(calls == 2);
	} else if (!strcmp(name, "once")) {
		handle(SIGSEGV, skip_store, SA_SIGINFO | SA_RESETHAND);
		store_nowhere();
		CHECK(calls == 1);
		CHECK(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
		store_nowhere(); /* dies */
	} else if (!strcmp(name, "default")) {
		store_nowhere();
	} else if (!strcmp(name, "ignored")) {
		CHECK(signal(SIGSEGV, SIG_IGN) == SIG_DFL);
		CHECK(raise(SIGSEGV) == 0);
		store_nowhere(); /* a forced signal cannot be ignored */
	} else if (!strcmp(name, "blocked")) {
		CHECK(signal(SIGSEGV, plain) == SIG_DFL);
		CHECK(sigprocmask(SIG_BLOCK, &mask, NULL) == 0);
		CHECK(raise(SIGSEGV) == 0 && calls == 0);
		CHECK(sigprocmask(SIG_UNBLOCK, &mask, NULL) == 0 && calls == 1);
		CHECK(sigprocmask(SIG_BLOCK, &mask, NULL) == 0);
		store_nowhere(); /* nor can it be blocked */
	} else if (!strcmp(name, "raised")) {
		CHECK(signal(SIGBUS, SIG_DFL) == SIG_DFL);
		raise(SIGBUS);
	} else {
		CHECK(!"a known case");
	}
	puts("done");
	return 0;
}
