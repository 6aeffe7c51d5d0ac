/* A program without raw instructions that loads a plugin with some. The program's own RUNPATH finds the plugin. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

int main(void)
{
	const char *expected = getenv("EXPECT_TRAP");
	int (*nops)(int), (*polls)(void);
	void *plugin;

	if (prctl(PR_GET_SECCOMP) != 0 || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 0)
		return 2;
	if (dlopen("libanyring-no-such.so", RTLD_NOW))
		return 3;
	const char *message = dlerror();
	if (!message || !strstr(message, "libanyring-no-such.so"))
		return 4;
	plugin = dlopen("libplugin.so", RTLD_NOW);
	if (!plugin) {
		puts(dlerror());
		return 5;
	}
	if (!expected || (prctl(PR_GET_SECCOMP) == 2) != atoi(expected))
		return 6;
	nops = (int (*)(int))dlsym(plugin, "plugin_nops");
	if (!nops || nops(300) != 300)
		return 7;
	/* Loads another plugin while there is a ring. */
	plugin = dlopen("libplugin2.so", RTLD_NOW);
	if (!plugin)
		return 8;
	polls = (int (*)(void))dlsym(plugin, "plugin_polls");
	if (!polls || polls() != 1)
		return 9;
	puts("done");
	return 0;
}
