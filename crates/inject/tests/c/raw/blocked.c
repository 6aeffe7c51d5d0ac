/* A thread that has blocked everything from the start makes the raw calls of a plugin that is loaded later. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static int (*nops)(int);
static int pipes[2];

static void *call(void *answer)
{
	char byte;

	if (read(pipes[0], &byte, 1) == 1)
		*(int *)answer = nops(300);
	return NULL;
}

int main(void)
{
	pthread_t thread;
	sigset_t all, old;
	void *plugin;
	int answer = 0;

	sigfillset(&all);
	if (pipe(pipes) != 0 || pthread_sigmask(SIG_SETMASK, &all, &old) != 0)
		return 2;
	if (pthread_create(&thread, NULL, call, &answer) != 0 || pthread_sigmask(SIG_SETMASK, &old, NULL) != 0)
		return 3;
	plugin = dlopen("libplugin.so", RTLD_NOW);
	if (!plugin)
		return 4;
	nops = (int (*)(int))dlsym(plugin, "plugin_nops");
	if (!nops || write(pipes[1], "x", 1) != 1 || pthread_join(thread, NULL) != 0)
		return 5;
	if (answer != 300)
		return 6;
	puts("done");
	return 0;
}
