/* Programs that clear or overwrite their environment before their first call. The environment with which they were
 * started counts. */
#include "engine.h"

#include <linux/aio_abi.h>
#include <sys/stat.h>
#include <sys/syscall.h>

extern char **environ;

/* Overwrites the memory of all the environment's strings, as setproctitle does. */
static void write_over_environment(void)
{
	for (char **variable = environ; *variable; variable++)
		memset(*variable, 'x', strlen(*variable));
	CHECK(clearenv() == 0);
}

/* Whether the kernel made the context. The kernel maps its own completion ring. */
static int is_kernels(void)
{
	char line[512];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		found |= strstr(line, "/[aio]") != NULL;
	fclose(maps);
	return found;
}

static void backends_are_as_at_the_start(void)
{
	int preloaded = getenv("LD_PRELOAD") != NULL;
	aio_context_t context = 0;
	struct io_uring ring;
	struct stat status;

	write_over_environment();
	CHECK(syscall(SYS_io_setup, 4, &context) == 0);
	CHECK(is_kernels() != preloaded);
	init_ring(&ring, 4, 0);
	CHECK(fstat(ring.ring_fd, &status) == 0);
	CHECK(S_ISSOCK(status.st_mode) == preloaded);
	CHECK(syscall(SYS_io_destroy, context) == 0);
}

/* A server: it has a title of its own, and gives up root before it makes its first ring. */
static void ring_of_another_user(void)
{
	struct io_uring ring;

	write_over_environment();
	CHECK(setresuid(65534, 65534, 65534) == 0);
	init_ring(&ring, 4, 0);
	io_uring_queue_exit(&ring);
}

CASES({"cleared", backends_are_as_at_the_start}, {"another-user", ring_of_another_user})
