/* Under an outer filter that refuses io_uring with EPERM. With the library loaded, calls are served in this
 * process, its forks and the programs that it starts. Without it they return EPERM, and no process is killed. */
#include "raw.h"
#include "../filter.h"
#include <sys/wait.h>

extern char **environ;

static void deny(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, __NR_io_uring_setup, 0, 2),
		BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, __NR_io_uring_register, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	FILTER_CALLS(code, 0);
}

static void expect_answers(void)
{
	const char *trapped = getenv("EXPECT_TRAP");
	int served = getenv("LD_PRELOAD") && trapped && atoi(trapped);

	CHECK(raw6(__NR_io_uring_setup, 8, 0, 0, 0, 0, 0) == (served ? -EFAULT : -EPERM));
	CHECK(raw6(__NR_io_uring_enter, -1, 0, 0, 0, 0, 0) == (served ? -EBADF : -EPERM));
	if (served) {
		struct ring ring;

		CHECK(ring_open(&ring, 4) == 0);
		ring_nop(&ring, 3);
	}
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

int main(int argc, char **argv)
{
	pid_t child;

	if (argc > 1) {
		expect_answers();
		return 0;
	}
	deny();
	expect_answers();
	child = fork();
	if (child == 0) {
		expect_answers();
		_exit(0);
	}
	expect_success(child);
	child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (child == 0) {
		expect_answers();
		_exit(0);
	}
	expect_success(child);
	child = vfork();
	if (child == 0) {
		signal(SIGSYS, SIG_IGN);
		execl("/proc/self/exe", argv[0], "again", NULL);
		_exit(9);
	}
	expect_success(child);
	{
		struct sigaction old;

		/* The vforked child's changes to its own actions do not affect its parent. */
		CHECK(sigaction(SIGSYS, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
	}
	child = fork();
	if (child == 0) {
		unsetenv("LD_PRELOAD");
		execl("/proc/self/exe", argv[0], "again", NULL);
		_exit(9);
	}
	expect_success(child);
	puts("done");
	return 0;
}
