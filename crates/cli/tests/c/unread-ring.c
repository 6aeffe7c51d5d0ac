/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Linux AIO with a completion ring that the kernel does not fill, as in gVisor.
 *
 * usage: unread-ring count PROGRAM ARGS...   prints the number of contexts that the program and its children made
 *        unread-ring below PROGRAM ARGS...   after each io_setup(2) of the program and its children, wipes the word
 *                                            that identifies the ring; ends with the program's status
 *        unread-ring try                     status 0 if a read's completion is in the ring, as qemu looks for it, else 1
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

struct ring {
	unsigned id, nr, head, tail, magic, compat_features, incompat_features, header_bytes;
};

static int fails(const char *what)
{
	fprintf(stderr, "unread-ring: %s: %s\n", what, strerror(errno));
	return 2;
}

static int try_read(void)
{
	char byte;
	struct iocb iocb = { .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (uintptr_t)&byte, .aio_nbytes = 1 };
	struct iocb *list[] = { &iocb };
	aio_context_t context = 0;
	const volatile struct ring *ring;
	int waited;

	iocb.aio_fildes = open("/proc/self/exe", O_RDONLY);
	if (syscall(SYS_io_setup, 4, &context))
		return fails("io_setup");
	if (syscall(SYS_io_submit, context, 1, list) != 1)
		return fails("io_submit");
	ring = (const volatile struct ring *)context;
	if (ring->magic != 0xa10a10a1)
		return 1;
	for (waited = 0; ring->tail == ring->head && waited < 20000; waited++)
		usleep(1000);
	return ring->tail == ring->head;
}

static int is_counting, contexts;

/* Called at the end of each system call of this process. */
static void wipe_ring(pid_t process)
{
	struct user_regs_struct registers;
	long context;

	if (ptrace(PTRACE_GETREGS, process, 0, &registers) || registers.orig_rax != SYS_io_setup || registers.rax)
		return;
	contexts++;
	if (is_counting)
		return;
	errno = 0;
	context = ptrace(PTRACE_PEEKDATA, process, registers.rsi, 0);
	if (!errno)
		ptrace(PTRACE_POKEDATA, process, context + offsetof(struct ring, magic), 0);
}

static int below(char **words)
{
	const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |
			     PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
	int go[2], status;
	char byte = 0;
	pid_t first, process;

	if (pipe2(go, O_CLOEXEC))
		return fails("pipe2");
	first = fork();
	if (!first) {
		if (read(go[0], &byte, 1) == 1)
			execv(words[0], words);
		_exit(fails(words[0]));
	}
	if (ptrace(PTRACE_SEIZE, first, 0, options))
		return fails("ptrace");
	if (ptrace(PTRACE_INTERRUPT, first, 0, 0) || write(go[1], &byte, 1) != 1)
		return fails("write");
	while ((process = waitpid(-1, &status, __WALL)) > 0) {
		int signal = 0;

		if (!WIFSTOPPED(status)) {
			if (process == first && is_counting)
				printf("%d\n", contexts);
			if (process == first)
				return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			continue;
		}
		if (WSTOPSIG(status) == (SIGTRAP | 0x80))
			wipe_ring(process);
		else if (!(status >> 16))
			signal = WSTOPSIG(status);
		ptrace(PTRACE_SYSCALL, process, 0, signal);
	}
	return fails("waitpid");
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "try"))
		return try_read();
	is_counting = argc > 2 && !strcmp(argv[1], "count");
	if (is_counting || (argc > 2 && !strcmp(argv[1], "below")))
		return below(argv + 2);
	return 2;
}
