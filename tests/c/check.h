/* For programs in C and C++: CHECK prints the place of a failed check, and `skip` prints why the checks cannot be
 * made. */
#pragma once
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A program that must end in another way after a failure defines its own version first. */
#ifndef CHECK
#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);              \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)
#endif

/* Ends the program, since its checks cannot be made here. */
static inline void skip(const char *why)
{
	printf("skipped: %s\n", why);
	exit(0);
}

static inline void need_proc(void)
{
	if (access("/proc/self/fd", X_OK))
		skip("there is no /proc here");
}
