/* Shared parts of the programs about identities: threads with their own identities, and a directory to work in. */
#include "engine.h"

#include <linux/capability.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/stat.h>

#define NOBODY 65534

static inline void in_a_thread(void *(*run)(void *))
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

/* A new directory as the working directory, of the process so far. */
static inline void enter_new_directory(mode_t mode)
{
	char name[] = "identity-XXXXXX";

	CHECK(mkdtemp(name) && chmod(name, mode) == 0 && chdir(name) == 0);
}

static inline void leave_and_remove(void)
{
	char name[4096], command[5000];

	CHECK(getcwd(name, sizeof(name)) && chdir("..") == 0);
	snprintf(command, sizeof(command), "rm -rf '%s'", name);
	CHECK(system(command) == 0);
}

static inline struct stat stat_of(const char *path)
{
	struct stat result;

	CHECK(stat(path, &result) == 0);
	return result;
}

static inline void become_nobody(void)
{
	/* Makes the system call itself, since the C library would change all threads. */
	CHECK(syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY) == 0);
	CHECK(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0);
}

static inline void root_only(void)
{
	if (geteuid() != 0)
		skip("only root can change the credentials of a thread");
}
