/* One of the program's own filters for its system calls. */
#pragma once
#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* Installs an array of instructions, for the calling thread unless `flags` say otherwise. */
#define FILTER_CALLS(code, flags) filter_calls(code, sizeof(code) / sizeof((code)[0]), flags)

static inline void filter_calls(struct sock_filter *code, unsigned short length, unsigned flags)
{
	struct sock_fprog program = {length, code};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0);
}
