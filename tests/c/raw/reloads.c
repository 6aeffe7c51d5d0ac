/* A program that keeps loading and unloading plugins. In each round they have other addresses, their rings work,
 * and calls that are made often are patched. */
#include "raw.h"
#include <dlfcn.h>
#include <sys/wait.h>

#define PLUGINS 3
#define ROUNDS 1000
/* The largest number of filters. */
#define FEW 16

static int filters(void)
{
	char line[256];
	int count = -1;
	FILE *status = fopen("/proc/self/status", "r");

	CHECK(status);
	while (fgets(line, sizeof(line), status))
		sscanf(line, "Seccomp_filters: %d", &count);
	fclose(status);
	return count;
}

/* Mappings that keep the next plugin from the addresses of the last round's plugin. */
static void *taken[4];

static void move_on(int round)
{
	void **mine = &taken[round % 4];

	if (*mine)
		CHECK(munmap(*mine, (size_t)(1 + round % 4) << 20) == 0);
	*mine = mmap(NULL, (size_t)(1 + round % 4) << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(*mine != MAP_FAILED);
}

/* Whether calls that were made often enough are replaced by jumps. */
static int patches(void)
{
	const char *patch = getenv("ANYRING_PATCH");

	return atoi(getenv("EXPECT_TRAP")) && !(patch && !strcmp(patch, "0"));
}

static void one_round(int round)
{
	void *plugins[PLUGINS];

	move_on(round);
	for (int i = 0; i < PLUGINS; i++) {
		char name[] = "libreload0.so";
		int (*runs)(void), which = (round + i) % PLUGINS;

		name[9] += which;
		plugins[which] = dlopen(name, RTLD_NOW);
		CHECK(plugins[which]);
		runs = (int (*)(void))dlsym(plugins[which], "plugin_runs");
		CHECK(runs && runs() == 1);
		runs = (int (*)(void))dlsym(plugins[which], "plugin_is_patched");
		CHECK(runs && (round % 100 || runs() == patches()));
	}
	for (int i = 0; i < PLUGINS; i++)
		CHECK(dlclose(plugins[(round * 7 + i) % PLUGINS]) == 0);
}

int main(void)
{
	int trapped = atoi(getenv("EXPECT_TRAP")), status;
	pid_t child;

	for (int round = 0; round < ROUNDS; round++) {
		one_round(round);
		CHECK(filtered() == trapped);
	}
	CHECK(trapped ? filters() >= 1 && filters() <= FEW : filters() == 0);
	/* A child has its parent's filters. */
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		for (int round = 0; round < PLUGINS; round++)
			one_round(round);
		CHECK(filters() <= FEW);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	puts("done");
	return 0;
}
