/* Executes a program under a filter that kills, or traps, io_uring's calls: `below kill PROGRAM [ARGUMENT...]`. */
#include "raw.h"
#include "../filter.h"

int main(int count, char **arguments)
{
	const unsigned answer = strcmp(arguments[1], "kill") ? SECCOMP_RET_TRAP : SECCOMP_RET_KILL_PROCESS;
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, __NR_io_uring_setup, 0, 2),
		BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, __NR_io_uring_register, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, answer),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	CHECK(count > 2);
	FILTER_CALLS(code, 0);
	execv(arguments[2], arguments + 2);
	CHECK(!"executed");
	return 1;
}
