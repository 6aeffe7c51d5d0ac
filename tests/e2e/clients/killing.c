/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs a program below a seccomp filter that kills for io_uring's calls and for some that anyring makes, as a service's filter
 * does for what it does not list (SystemCallFilter of systemd.exec(5)).
 *
 * usage: killing PROGRAM [ARGUMENT...]
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KILL_FOR(call) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (call), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

int main(int count, char **arguments)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		KILL_FOR(SYS_io_uring_setup),
		KILL_FOR(SYS_io_uring_enter),
		KILL_FOR(SYS_io_uring_register),
		KILL_FOR(SYS_seccomp),
		KILL_FOR(SYS_process_vm_readv),
		KILL_FOR(SYS_process_vm_writev),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

	if (count < 2) {
		fprintf(stderr, "killing: usage: killing PROGRAM [ARGUMENT...]\n");
		return 2;
	}
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("killing: no filter");
		return 1;
	}
	execvp(arguments[1], arguments + 1);
	perror(arguments[1]);
	return 127;
}
