/* Rings made by instructions before the program's main function: in .preinit_array, and in a library's constructor.
 * The engine that serves them also serves the program's later calls on them. */
#include "raw.h"
#include <sys/stat.h>

__attribute__((unused)) static int is_served(int fd)
{
	struct stat status;

	CHECK(fstat(fd, &status) == 0);
	return S_ISSOCK(status.st_mode);
}

static inline void make(struct ring *made)
{
	CHECK(ring_open(made, 4) == 0);
	ring_nop(made, 1);
}

#ifdef LIBRARY
struct ring of_library;

__attribute__((constructor)) static void begin(void)
{
	make(&of_library);
}

int library_is_served(void)
{
	ring_nop(&of_library, 2);
	return is_served(of_library.fd);
}
#elif defined(LOADS)
#include <dlfcn.h>

/* The engine that served a plugin's constructor also serves later calls on the constructor's ring. */
int main(void)
{
	void *plugin = dlopen("libearly.so", RTLD_NOW);
	int (*is_served)(void) = plugin ? (int (*)(void))dlsym(plugin, "library_is_served") : NULL;

	CHECK(is_served && is_served() == atoi(getenv("EXPECT_TRAP")));
	puts("done");
	return 0;
}
#else
int library_is_served(void);

static struct ring early;

static void begin(void)
{
	make(&early);
}

__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = begin;

int main(void)
{
	int served = atoi(getenv("EXPECT_TRAP"));

	ring_nop(&early, 2);
	CHECK(is_served(early.fd) == served);
	CHECK(library_is_served() == served);
	puts("done");
	return 0;
}
#endif
