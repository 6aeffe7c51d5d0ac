/* Calls that trap so often that they are patched, and what may happen before, during and after that. The first argument
 * names the case. */
#include "raw.h"
#include "../filter.h"
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

/* Different code that makes io_uring_enter(2). One can be patched easily. Before another, no five bytes lie in one
 * aligned word. Some have instructions in between that may run elsewhere, or that may not. Some can be reached past the
 * replaced instruction. One loads its arguments in between, and one has its number in a register. */
long enter(long fd, long submit, long wait, long flags, long set, long size);
long enter_straddling(long fd, long submit, long wait, long flags, long set, long size);
long enter_apart(long fd, long submit, long wait, long flags, long set, long size);
long enter_after(long fd, long submit, long wait, long flags, long set, long size);
long enter_moved(long fd, long submit, long flags, long wait, long set, long size);
long enter_after_moved(long fd, long submit, long flags, long wait, long set, long size);
long enter_loaded(const long arguments[5], const long *size);
long any_call(long fd, long submit, long wait, long flags, long set, long number);
extern const unsigned char enter_call[], straddling_or[], apart_call[], moved_load[], moved_call[], loaded_load[],
	loaded_size[], any_size[];
__asm__(".text\n.globl enter, enter_straddling, enter_apart, enter_after, enter_moved, enter_after_moved\n"
	/* The call's fourth argument is the function's third, so the instructions in between have to be done. */
	".p2align 6\nenter_moved: mov %rdx, %r10\n.p2align 3\nmoved_load: mov $426, %eax\nmov %ecx, %edx\nxor %r8d, %r8d\n"
	"moved_call: syscall\nret\n"
	".p2align 6\nenter_after_moved: mov %rdx, %r10\nmov $426, %eax\nmov %ecx, %edx\njmp moved_call\n"
	".p2align 6\nenter: mov %rcx, %r10\n.p2align 3\nmov $426, %eax\nenter_call: syscall\nret\n"
	".p2align 6\nenter_after: mov %rcx, %r10\nmov $426, %eax\njmp enter_call\n"
	/* A jump at the `or` that keeps the byte after the `or`, 0xb8, as its last byte would lead 1.2 GB down. */
	".p2align 6\nenter_straddling: mov %rcx, %r10\npush %r11\npop %r11\nnop\nstraddling_or: or $0, %r10d\n"
	"mov $426, %eax\nsyscall\nret\n"
	".p2align 6\nenter_apart: mov %rcx, %r10\n.p2align 3\nmov $426, %eax\npush %r8\npop %r8\napart_call: syscall\nret\n"
	".p2align 6\nenter_loaded: mov %rsi, %rcx\nmov 16(%rdi), %rdx\nmov 24(%rdi), %r10\nmov 32(%rdi), %r8\n.p2align 3\n"
	"loaded_load: mov $426, %eax\nmov %r8, -8(%rsp)\nloaded_size: mov (%rcx), %r9\nmov 8(%rdi), %rsi\n"
	/* Nothing else has five bytes in one word. */
	"mov %rdx, %rdx\n"
	"mov -8(%rsp), %r8\nmov (%rdi), %edi\nsyscall\nret\n"
	".p2align 6\nany_call: mov %rcx, %r10\nmov %r9d, %eax\n.p2align 3\nany_size: mov $8, %r9d\nsyscall\nret\n");

typedef long (*entrance)(long, long, long, long, long, long);

static struct ring ring, other;
static volatile int calls;
static long *size; /* on a page of its own */
static sigjmp_buf out;

static void nops_by(entrance enter, struct ring *ring, int count)
{
	for (uint64_t i = 0; i < (uint64_t)count; i++) {
		uint64_t seen;
		int res;

		ring_sqe(ring)->opcode = IORING_OP_NOP;
		ring->sqes[*ring->sq_tail & *ring->sq_mask].user_data = i;
		ring_push(ring);
		CHECK(enter(ring->fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
		CHECK(ring_reap(ring, &seen, &res));
		CHECK(seen == i && res == 0);
	}
}

static void nops(struct ring *ring, int count)
{
	nops_by(enter, ring, count);
}

static long by_moved(long fd, long submit, long wait, long flags, long set, long size)
{
	return enter_moved(fd, submit, flags, wait, set, size);
}

static long after_moved(long fd, long submit, long wait, long flags, long set, long size)
{
	return enter_after_moved(fd, submit, flags, wait, set, size);
}

static long by_loaded(long fd, long submit, long wait, long flags, long set, long size_of_set)
{
	const long arguments[5] = { fd, submit, wait, flags, set };

	*size = size_of_set;
	return enter_loaded(arguments, size);
}

static long by_loaded_of_thread(long fd, long submit, long wait, long flags, long set, long size_of_set)
{
	const long arguments[5] = { fd, submit, wait, flags, set };

	return enter_loaded(arguments, &size_of_set);
}

static long by_any(long fd, long submit, long wait, long flags, long set, long size_of_set)
{
	(void)size_of_set;
	return any_call(fd, submit, wait, flags, set, __NR_io_uring_enter);
}

/* An instruction that gets its call number in a register makes other calls, too. */
static void any(void)
{
	nops_by(by_any, &ring, 300);
	expect_patched(any_size + 5);
	CHECK(any_call(0, 0, 0, 0, 0, __NR_getpid) == getpid());
	CHECK(any_call(12345, 0, 0, 0, 0, __NR_io_uring_register) == -EBADF);
	CHECK(any_call(-1, 0, 0, 0, 0, __NR_io_uring_enter) == -EBADF);
	nops_by(by_any, &ring, 10);
}

static void shapes(void)
{
	nops(&ring, 20);
	CHECK(!is_patched(enter_call)); /* not worth it yet */
	nops(&ring, 300);
	expect_patched(enter_call);
	nops_by(enter_after, &ring, 300);
	nops_by(enter_straddling, &ring, 300);
	expect_patched(straddling_or + 5);
	nops_by(enter_straddling, &ring, 300);
	nops_by(enter_apart, &ring, 300);
	CHECK(!is_patched(apart_call));
	nops_by(by_loaded, &ring, 300);
	expect_patched(loaded_load + 5);
	nops_by(by_loaded, &ring, 300);
	any();
	nops_by(by_moved, &ring, 300);
	expect_patched(moved_load + 5);
	nops_by(by_moved, &ring, 300);
	nops_by(after_moved, &ring, 300);
	/* The set of signals is cleared in between. */
	CHECK(enter_moved(ring.fd, 0, IORING_ENTER_GETEVENTS, 0, 1, 0) == 0);
	CHECK(enter_moved(ring.fd, 0, 1 << 30, 0, 0, 0) == -EINVAL);
	errno = 77;
	CHECK(enter(-1, 0, 0, 0, 0, 0) == -EBADF);
	CHECK(enter(ring.fd, 0, 0, 1 << 30, 0, 0) == -EINVAL);
	CHECK(errno == 77);
}

static void expect_success(pid_t child)
{
	int status;

	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		fprintf(stderr, "child: status %#x\n", status);
		_exit(1);
	}
}

/* An instruction that reads inaccessible memory faults after it was moved, too: the handler sees its original
 * address. */
static void allow_reading(int sig, siginfo_t *info, void *context)
{
	const greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;

	(void)sig;
	CHECK(info->si_addr == size && info->si_code == SEGV_ACCERR);
	CHECK(registers[REG_RIP] == (greg_t)loaded_size);
	CHECK(registers[REG_RAX] == __NR_io_uring_enter && registers[REG_RCX] == (greg_t)size);
	CHECK(mprotect(size, 4096, PROT_READ | PROT_WRITE) == 0);
	calls++;
}

static void leave(int sig, siginfo_t *info, void *context)
{
	allow_reading(sig, info, context);
	siglongjmp(out, 1);
}

static void faults(void)
{
	struct sigaction action = { .sa_sigaction = allow_reading, .sa_flags = SA_SIGINFO };
	const long arguments[5] = { ring.fd, 0, 0, 0, 0 };

	nops_by(by_loaded, &ring, 300);
	expect_patched(loaded_load + 5);
	*size = 0;
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	for (int i = 1; i <= 10; i++) {
		CHECK(mprotect(size, 4096, PROT_NONE) == 0);
		CHECK(enter_loaded(arguments, size) == 0 && calls == i);
	}
	action.sa_sigaction = leave;
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	for (volatile int i = 11; i <= 20; i++) {
		CHECK(mprotect(size, 4096, PROT_NONE) == 0);
		if (sigsetjmp(out, 1) == 0) {
			enter_loaded(arguments, size);
			CHECK(!"read what may not be read");
		}
		CHECK(calls == i);
	}
	nops_by(by_loaded, &ring, 300);
}

static void dies(void)
{
	const long arguments[5] = { ring.fd, 0, 0, 0, 0 };

	nops_by(by_loaded, &ring, 300);
	expect_patched(loaded_load + 5);
	CHECK(mprotect(size, 4096, PROT_NONE) == 0);
	enter_loaded(arguments, size);
}

static pthread_barrier_t start;
static entrance used;

static void *in_thread(void *data)
{
	struct ring own;

	(void)data;
	CHECK(ring_open(&own, 4) == 0);
	pthread_barrier_wait(&start);
	nops_by(used, &own, 300);
	close(own.fd);
	return NULL;
}

/* Threads that may be at any instruction in and around the call while it is patched. Each time is in a new process. */
static void threads(entrance enter, const unsigned char *behind)
{
	used = enter;
	for (int round = 0; round < 20; round++) {
		pid_t child = fork();

		if (child == 0) {
			pthread_t ids[6];

			pthread_barrier_init(&start, NULL, 6);
			for (int i = 0; i < 6; i++)
				CHECK(pthread_create(&ids[i], NULL, in_thread, NULL) == 0);
			for (int i = 0; i < 6; i++)
				CHECK(pthread_join(ids[i], NULL) == 0);
			expect_patched(behind);
			_exit(0);
		}
		expect_success(child);
		CHECK(!is_patched(behind));
	}
}

static void nop_handler(int sig)
{
	(void)sig;
	nops(&other, 3);
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

/* A handler that makes the same call while the thread is in it, blocked or in the middle of something. */
static void interrupted(void)
{
	struct itimerval every = { .it_interval.tv_usec = 700, .it_value.tv_usec = 700 }, off = { 0 };

	nops(&ring, 100);
	expect_patched(enter_call);
	install(SIGALRM, nop_handler, 0);
	CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
	for (int i = 0; i < 100; i++) {
		int before = calls;

		CHECK(enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS, 0, 0) == -EINTR);
		CHECK(calls > before);
	}
	for (int before = calls; calls < before + 200;) {
		long answer;
		uint64_t seen;
		int res;

		ring_sqe(&ring)->opcode = IORING_OP_NOP;
		ring_push(&ring);
		answer = enter(ring.fd, 1, 0, 0, 0, 0);
		CHECK(answer == 1);
		while (!ring_reap(&ring, &seen, &res))
			CHECK(enter(ring.fd, 0, 0, IORING_ENTER_GETEVENTS, 0, 0) == 0);
	}
	CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
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

/* Leaves the blocked call by a jump, more often than there are stacks, at a patched site. */
static void jumped(int flags)
{
	struct itimerval off = { 0 }, soon = { .it_value.tv_usec = 1500 };
	volatile int first = 0;

	nops(&ring, 100);
	expect_patched(enter_call);
	install(SIGALRM, jump_handler, flags);
	for (volatile int i = 0; i < 1200; i++) {
		if (sigsetjmp(out, 1) == 0) {
			CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
			enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS, 0, 0);
			CHECK(!"waited for nothing and got it");
		}
		CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
		nops(&other, 2);
		if (i == 10)
			first = mappings();
	}
	CHECK(calls == 1200);
	CHECK(mappings() <= first + 8);
	nops(&ring, 100);
}

/* NOPs on a ring of the caller's own. */
static void *own_nops(void *data)
{
	struct ring own;

	CHECK(ring_open(&own, 4) == 0);
	nops(&own, 100);
	close(own.fd);
	return data;
}

/* The first call of a child is made by the thread that forked, or by a new one before it. */
static void forked(char *name)
{
	pid_t child;

	nops(&ring, 100);
	expect_patched(enter_call);
	for (int threaded = 0; threaded < 2; threaded++) {
		child = fork();
		if (child == 0) {
			pthread_t id;

			expect_patched(enter_call);
			if (threaded) {
				CHECK(pthread_create(&id, NULL, own_nops, NULL) == 0);
				CHECK(pthread_join(id, NULL) == 0);
			}
			own_nops(NULL);
			child = fork();
			if (child == 0) {
				own_nops(NULL);
				_exit(0);
			}
			expect_success(child);
			own_nops(NULL);
			_exit(0);
		}
		expect_success(child);
		nops(&ring, 100);
	}
	child = vfork();
	if (child == 0) {
		if (enter(-1, 0, 0, 0, 0, 0) == -EBADF)
			execl("/proc/self/exe", name, "silent-shapes", NULL);
		_exit(9);
	}
	expect_success(child);
	nops(&ring, 100);
}

/* One of the program's own filters refuses that code is made writable, or kills for it. The call keeps trapping. */
static void refused(unsigned action)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mprotect, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PROT_READ | PROT_WRITE | PROT_EXEC, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	FILTER_CALLS(code, 0);
	nops(&ring, 300);
	CHECK(!is_patched(enter_call));
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	expect_trap();
	CHECK(ring_open(&ring, 8) == 0 && ring_open(&other, 8) == 0);
	size = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(size != MAP_FAILED);
	if (!strcmp(name, "shapes")) {
		shapes();
	} else if (!strcmp(name, "silent-shapes")) {
		shapes();
		return 0;
	} else if (!strcmp(name, "threads")) {
		threads(enter, enter_call);
	} else if (!strcmp(name, "threads-straddling")) {
		threads(enter_straddling, straddling_or + 5);
	} else if (!strcmp(name, "threads-loading")) {
		threads(by_loaded_of_thread, loaded_load + 5);
	} else if (!strcmp(name, "faults")) {
		faults();
	} else if (!strcmp(name, "dies")) {
		dies();
	} else if (!strcmp(name, "interrupted")) {
		interrupted();
	} else if (!strcmp(name, "jumped")) {
		jumped(0);
	} else if (!strcmp(name, "jumped-on-alternate-stack")) {
		stack_t stack = { .ss_size = 1 << 16, .ss_sp = malloc(1 << 16) };

		CHECK(stack.ss_sp && sigaltstack(&stack, NULL) == 0);
		jumped(SA_ONSTACK);
	} else if (!strcmp(name, "forked")) {
		forked(argv[0]);
	} else if (!strcmp(name, "refused")) {
		refused(SECCOMP_RET_ERRNO | EACCES);
	} else if (!strcmp(name, "refused-by-death")) {
		refused(SECCOMP_RET_KILL_PROCESS);
	} else {
		CHECK(!"a known case");
	}
	puts("done");
	return 0;
}
