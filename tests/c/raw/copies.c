/* Loads a second copy of the library while a ring exists: that ring still works, and so does a new one. Without an
 * argument, executes itself while all signals are blocked. */
#include "raw.h"
#include <dlfcn.h>

static void execute(void)
{
	sigset_t all;

	if (getenv("EXECUTED"))
		return;
	CHECK(sigfillset(&all) == 0 && sigprocmask(SIG_SETMASK, &all, NULL) == 0);
	CHECK(setenv("EXECUTED", "1", 1) == 0);
	execl("/proc/self/exe", "copies", NULL);
	CHECK(!"execl");
}

int main(int argc, char **argv)
{
	struct ring before, after;

	CHECK(ring_open(&before, 4) == 0);
	ring_nop(&before, 1);
	if (argc == 1) {
		execute();
		puts("done");
		return 0;
	}
	CHECK(dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL));
	for (int i = 0; i < 100; i++)
		ring_nop(&before, i);
	CHECK(ring_open(&after, 4) == 0);
	for (int i = 0; i < 100; i++)
		ring_nop(&after, i);
	ring_close(&after);
	ring_close(&before);
	puts("done");
	return 0;
}
