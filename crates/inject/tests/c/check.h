/* A check that says where it failed, for programs in C and C++. */
#pragma once
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);              \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)
