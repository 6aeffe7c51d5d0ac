/* Loads the library named by argv[1], uses it, and closes it while a thread of the library works for a ring. */
#include "engine.h"

#include <dlfcn.h>

int main(int argc, char **argv)
{
	int (*make)(unsigned, struct io_uring *, unsigned);
	int (*enter)(struct io_uring *);
	struct io_uring ring;
	char buffer[8];
	void *library;
	int pipes[2];

	CHECK(argc == 2);
	library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	CHECK(library);
	*(void **)&make = dlsym(library, "io_uring_queue_init");
	*(void **)&enter = dlsym(library, "io_uring_submit");
	CHECK(make && enter);
	CHECK(pipe(pipes) == 0);
	CHECK(answer(make(8, &ring, 0)) == 0);
	prepare_read(&ring, pipes[0], buffer, 1, 1);
	CHECK(answer(enter(&ring)) == 1);
	wait_others_asleep(0);
	CHECK(dlclose(library) == 0);
	write_all(pipes[1], "x");
	only_look(&ring);
	puts("done");
	return 0;
}
