/* Raw calls of a plugin that is loaded while a thread has blocked all signals; that thread makes the calls. In "thread"
 * the thread blocks them by libc. In "unseen" it does so by an instruction that the library does not trap; in
 * "unseen-without-proc" there is also no /proc. In "inherited" the program was executed with all signals blocked. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

static int (*nops)(int);
static int pipes[2];
static volatile int has_blocked;

/* As inside libc: the system call's number is a constant. */
static void block_unseen(void)
{
	unsigned long all = ~0ul;
	long answer;
	register long size asm("r10") = 8;

	asm volatile("mov $14, %%eax\n\tsyscall"
		     : "=a"(answer)
		     : "D"(SIG_SETMASK), "S"(&all), "d"(0), "r"(size)
		     : "rcx", "r11", "memory");
}

static int blocks_all(void)
{
	sigset_t set;

	return pthread_sigmask(SIG_BLOCK, NULL, &set) == 0 && sigismember(&set, SIGSYS) && sigismember(&set, SIGSEGV) &&
	       sigismember(&set, SIGBUS) && sigismember(&set, SIGUSR1);
}

static void *call(void *answer)
{
	char byte;

	if (read(pipes[0], &byte, 1) == 1)
		*(int *)answer = nops(300);
	return NULL;
}

static void *call_blocking(void *answer)
{
	block_unseen();
	has_blocked = 1;
	return call(answer);
}

static int load(void)
{
	void *plugin = dlopen("libplugin.so", RTLD_NOW);

	if (plugin)
		nops = (int (*)(int))dlsym(plugin, "plugin_nops");
	return nops != NULL;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "thread";
	pthread_t thread;
	sigset_t all, old;
	int answer = 0, unseen = strncmp(how, "unseen", 6) == 0, hides = unseen && how[6];

	if (strcmp(how, "inherited") == 0) {
		block_unseen();
		execl("/proc/self/exe", argv[0], "inheriting", NULL);
		return 7;
	}
	if (strcmp(how, "inheriting") == 0) {
		if (!blocks_all())
			return 8;
		if (!load())
			return 4;
		answer = nops(300);
		if (!blocks_all())
			return 9;
		goto out;
	}
	if (hides && ((unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
		      mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0))
		return 11;
	sigfillset(&all);
	if (pipe(pipes) != 0 || (!unseen && pthread_sigmask(SIG_SETMASK, &all, &old) != 0))
		return 2;
	if (!unseen && !blocks_all())
		return 10;
	if (pthread_create(&thread, NULL, unseen ? call_blocking : call, &answer) != 0 ||
	    (!unseen && pthread_sigmask(SIG_SETMASK, &old, NULL) != 0))
		return 3;
	while (unseen && !has_blocked)
		usleep(1000);
	if (hides && mount("tmpfs", "/proc", "tmpfs", 0, NULL) != 0)
		return 12;
	if (!load())
		return 4;
	if (write(pipes[1], "x", 1) != 1 || pthread_join(thread, NULL) != 0)
		return 5;
out:
	if (answer != 300)
		return 6;
	puts("done");
	return 0;
}
