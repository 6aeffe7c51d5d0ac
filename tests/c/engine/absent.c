/* Starts programs while the library's file is missing, as after chroot(2). Nothing is printed on their standard error,
 * and their environment is the one that they have without anyring. */
#include "engine.h"
#include <libgen.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <wordexp.h>

extern char **environ;

static char self[4096];
static const char *way;
/* Executes this program again as the child, by the function that `way` names. */
static void become(void)
{
	char *words[] = {self, "child", NULL};

	if (!strcmp(way, "execve"))
		execve(self, words, environ);
	if (!strcmp(way, "execv"))
		execv(self, words);
	if (!strcmp(way, "execvp"))
		execvp(self, words);
	if (!strcmp(way, "execvpe"))
		execvpe(self, words, environ);
	if (!strcmp(way, "execl"))
		execl(self, self, "child", NULL);
	if (!strcmp(way, "execlp"))
		execlp(self, self, "child", NULL);
	if (!strcmp(way, "execle"))
		execle(self, self, "child", NULL, environ);
	if (!strcmp(way, "fexecve"))
		fexecve(open(self, O_RDONLY), words, environ);
	if (!strcmp(way, "execveat"))
		execveat(AT_FDCWD, self, words, environ, 0);
	if (!strcmp(way, "syscall"))
		syscall(SYS_execve, self, words, environ);
	_exit(99);
}

static const char *const forked[] = {"execve", "execv",	  "execvp",   "execvpe", "execl",
				     "execlp", "execle",  "fexecve",  "execveat", "syscall"};
enum { FORKED = sizeof(forked) / sizeof(forked[0]) };

static int status_of(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	return status;
}

static int start_by(const char *wanted)
{
	char *words[] = {self, "child", NULL}, line[5000];
	pid_t child;

	way = wanted;
	snprintf(line, sizeof(line), "'%s' child", self);
	if (!strcmp(way, "posix_spawn")) {
		CHECK(posix_spawn(&child, self, NULL, NULL, words, environ) == 0);
		return status_of(child);
	}
	if (!strcmp(way, "posix_spawnp")) {
		CHECK(posix_spawnp(&child, self, NULL, NULL, words, environ) == 0);
		return status_of(child);
	}
	if (!strcmp(way, "system"))
		return system(line);
	if (!strcmp(way, "popen"))
		return pclose(popen(line, "r"));
	if (!strcmp(way, "wordexp")) {
		wordexp_t found;

		snprintf(line, sizeof(line), "$('%s' child && echo fine)", self);
		CHECK(wordexp(line, &found, WRDE_SHOWERR) == 0);
		return found.we_wordc == 1 && !strcmp(found.we_wordv[0], "fine") ? 0 : 1;
	}
	child = !strcmp(way, "execv") ? vfork() : fork();
	CHECK(child >= 0);
	if (child == 0)
		become();
	return status_of(child);
}

/* The child is started with its standard error in a pipe, which stays empty. */
static void starts_in_silence(const char *by)
{
	char said[512] = "";
	int ends[2], before = dup(2), status;
	ssize_t length;

	CHECK(pipe2(ends, O_CLOEXEC) == 0 && dup2(ends[1], 2) == 2 && close(ends[1]) == 0);
	status = start_by(by);
	CHECK(dup2(before, 2) == 2 && close(before) == 0);
	length = read(ends[0], said, sizeof(said) - 1);
	if (status != 0 || length != 0) {
		fprintf(stderr, "%s: status %#x: %s\n", by, status, said);
		_exit(1);
	}
	close(ends[0]);
}

static void start_by_all_ways(void)
{
	static const char *const others[] = {"posix_spawn", "posix_spawnp", "system", "popen", "wordexp"};

	CHECK(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
	for (int i = 0; i < FORKED; i++)
		starts_in_silence(forked[i]);
	for (int i = 0; i < 5; i++)
		starts_in_silence(others[i]);
}

static void by_name(void)
{
	const char *preloaded = getenv("LD_PRELOAD");

	need_proc();
	if (preloaded)
		CHECK(setenv("LD_PRELOAD", "/nowhere/libanyring.so:", 1) == 0);
	start_by_all_ways();
	if (preloaded)
		CHECK(!strcmp(getenv("LD_PRELOAD"), "/nowhere/libanyring.so:"));
}

static void after_a_mount(void)
{
	const char *preloaded = getenv("LD_PRELOAD");

	need_proc();
	if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		skip("no file system may be mounted here");
	if (preloaded)
		CHECK(mount("none", dirname(strdup(preloaded)), "tmpfs", 0, NULL) == 0);
	start_by_all_ways();
}

static void child(void)
{
	const char *preloaded = getenv("LD_PRELOAD");

	CHECK(preloaded == NULL || preloaded[0] == 0);
	exit(0);
}

CASES({"name", by_name}, {"mount", after_a_mount}, {"child", child})
