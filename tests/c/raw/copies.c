/* Loads a second copy of the library while a ring exists: that ring still works, and so does a new one. */
#include "raw.h"
#include <dlfcn.h>

int main(int argc, char **argv)
{
	struct ring before, after;

	CHECK(argc == 2 && ring_open(&before, 4) == 0);
	ring_nop(&before, 1);
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
