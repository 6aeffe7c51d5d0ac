/* A lookup of libc's `syscall()` by a handle returns the function that other callers use. All other lookups are
 * unchanged. */
#include "engine.h"

#include <dlfcn.h>
#include <sys/stat.h>

/* The program's own `syscall` comes before libc's in the search order. */
pid_t getppid(void)
{
	return -7;
}

static void *libc_handle(void)
{
	void *handle = dlopen("libc.so.6", RTLD_NOW);

	CHECK(handle);
	return handle;
}

/* A ring made by the function that was looked up has the same server as a ring made by libc's function itself. */
static void fetched(void *function)
{
	long (*call)(long, ...) = (long (*)(long, ...))function;
	struct io_uring_params params = {0}, others = {0};
	struct stat of_fetched, of_linked;
	int fd, linked;

	CHECK(function == (void *)syscall);
	fd = call(SYS_io_uring_setup, 4, &params);
	linked = syscall(SYS_io_uring_setup, 4, &others);
	CHECK(fd >= 0 && linked >= 0);
	CHECK(fstat(fd, &of_fetched) == 0 && fstat(linked, &of_linked) == 0);
	CHECK(of_fetched.st_mode == of_linked.st_mode);
	CHECK(close(fd) == 0 && close(linked) == 0);
}

static void by_handle(void)
{
	fetched(dlsym(libc_handle(), "syscall"));
	fetched(dlsym(dlopen(NULL, RTLD_NOW), "syscall"));
}

static void by_version(void)
{
	fetched(dlvsym(libc_handle(), "syscall", "GLIBC_2.2.5"));
	CHECK(!dlvsym(libc_handle(), "syscall", "GLIBC_1.0") && dlerror());
}

static void by_scope(void)
{
	fetched(dlsym(RTLD_DEFAULT, "syscall"));
	fetched(dlsym(RTLD_NEXT, "syscall"));
}

static void others(void)
{
	pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "getppid");

	CHECK(getppid() == -7 && next && next != getppid && next() > 0);
	CHECK(dlvsym(RTLD_NEXT, "getppid", "GLIBC_2.2.5") == (void *)next);
	CHECK(dlsym(libc_handle(), "getppid") == (void *)next);
	CHECK(!dlerror());
	CHECK(!dlsym(libc_handle(), "no_such_function") && dlerror());
}

CASES({"handle", by_handle}, {"version", by_version}, {"scope", by_scope}, {"others", others})
