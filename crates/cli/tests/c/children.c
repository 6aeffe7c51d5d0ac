// Starts PROGRAM [ARGS] in the way that the first argument names, and prints how it ended. With "BLOCKS" in its
// environment it blocks signals before. With a single argument it prints which of them are blocked.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* An address that is neither null nor mapped. */
static char *volatile bad = (char *)8;

static void become(const char *way, char **words) {
    char *file = words[0];
    if (!strcmp(way, "execve")) execve(file, words, environ);
    if (!strcmp(way, "execv")) execv(file, words);
    if (!strcmp(way, "execvp")) execvp(file, words);
    if (!strcmp(way, "execvpe")) execvpe(file, words, environ);
    if (!strcmp(way, "execl")) execl(file, words[0], words[1], "b", "c", "d", "e", "f", NULL);
    if (!strcmp(way, "execlp")) execlp(file, words[0], words[1], NULL);
    if (!strcmp(way, "execle")) execle(file, words[0], words[1], "b", "c", "d", NULL, environ);
    if (!strcmp(way, "syscall")) syscall(SYS_execve, file, words, environ);
    if (!strcmp(way, "execveat")) execveat(AT_FDCWD, file, words, environ, 0);
    if (!strcmp(way, "bare")) {
        char *none[] = {NULL};
        execve(file, words, none);
    }
    if (!strcmp(way, "fexecve") || !strcmp(way, "empty")) {
        int fd = open(file, O_PATH | O_CLOEXEC);
        if (*way == 'f') fexecve(fd, words, environ);
        else execveat(fd, "", words, environ, AT_EMPTY_PATH);
    }
    if (!strcmp(way, "below")) {
        char *base = strrchr(file, '/');
        *base = 0;
        int fd = open(file, O_RDONLY | O_DIRECTORY);
        *base = '/';
        execveat(fd, base + 1, words, environ, 0);
    }
    if (!strcmp(way, "efault")) execve(file, (char **)bad, environ);
    printf("errno %d\n", errno);
    fflush(stdout);
    _exit(99);
}

/* io_uring_setup(-2, NULL) by an instruction of the program itself. EPERM: refused outside, so not served. */
static long setup(void) {
    long answer;
    __asm__ volatile("mov $425, %%eax\n\tsyscall"
                     : "=a"(answer)
                     : "D"(-2L), "S"(0L), "d"(0L)
                     : "rcx", "r11", "memory");
    return answer;
}

/* Executes OTHER, which executes this program again, LEFT times in all. */
static void swap(char **words) {
    char line[256], number[16];
    int left = atoi(words[3]);
    if (setup() == -EPERM) printf("not served with %d left\n", left);
    if (left == 0) {
        FILE *status = fopen("/proc/self/status", "r");
        while (fgets(line, sizeof line, status)) {
            if (!strncmp(line, "Seccomp_filters:", 16)) printf("filters %d\n", atoi(line + 16));
        }
        return;
    }
    snprintf(number, sizeof number, "%d", left - 1);
    fflush(stdout);
    execl(words[2], words[2], "swap", words[0], number, NULL);
    printf("errno %d\n", errno);
}

/* The size of this process's memory, in pages. */
static long pages(void) {
    long size = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (fscanf(statm, "%ld", &size) != 1) exit(98);
    fclose(statm);
    return size;
}

/* Executes FILE with 10,000 arguments in children of vfork(2). Prints whether each of them cost this process memory. */
static void many(char *file, char *word) {
    enum { WORDS = 10000, CHILDREN = 20 };
    static char *words[WORDS + 1];
    long before = 0;
    int status;
    for (int i = 0; i < WORDS; i++) words[i] = i ? word : file;
    for (int i = 0; i <= CHILDREN; i++) {
        pid_t child = vfork();
        if (child == 0) {
            execve(file, words, environ);
            _exit(99);
        }
        waitpid(child, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) == 99) printf("ended with %d\n", status);
        if (i == 0) before = pages();
    }
    printf("%s\n", pages() - before < WORDS * (long)sizeof *words / 4096 * CHILDREN / 2 ? "kept" : "grown");
}

static const int blocked[] = {SIGSYS, SIGSEGV, SIGBUS, SIGUSR1};
enum { BLOCKED = sizeof blocked / sizeof *blocked };

static int print_mask(void) {
    sigset_t set;
    if (sigprocmask(SIG_BLOCK, NULL, &set)) return 1;
    for (int i = 0; i < BLOCKED; i++) printf("%d", sigismember(&set, blocked[i]));
    return 0;
}

int main(int count, char **words) {
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < BLOCKED && getenv("BLOCKS"); i++) sigaddset(&set, blocked[i]);
    if (count == 2) return print_mask();
    if (count < 3 || sigprocmask(SIG_BLOCK, &set, NULL)) return 2;
    if (!strcmp(words[1], "many")) {
        many(words[2], words[3]);
        return 0;
    }
    if (!strcmp(words[1], "swap")) {
        swap(words);
        return 0;
    }
    const char *way = words[1];
    int status = 0, error = 0;
    pid_t child = 0;
    if (!strcmp(way, "posix_spawn")) error = posix_spawn(&child, words[2], NULL, NULL, words + 2, environ);
    else if (!strcmp(way, "posix_spawnp")) error = posix_spawnp(&child, words[2], NULL, NULL, words + 2, environ);
    else if (!strcmp(way, "system") || !strcmp(way, "popen")) {
        char line[4096];
        snprintf(line, sizeof line, "'%s' '%s'", words[2], words[3]);
        fflush(stdout);
        if (*way == 's') status = system(line);
        else {
            FILE *pipe = popen(line, "r");
            while (fgets(line, sizeof line, pipe)) fputs(line, stdout);
            status = pclose(pipe);
        }
    } else if (!strncmp(way, "vfork-", 6)) {
        child = vfork();
        if (child == 0) become(way + 6, words + 2);
    } else {
        child = fork();
        if (child == 0) become(way, words + 2);
    }
    if (error) printf("error %d\n", error);
    else if (child) waitpid(child, &status, 0);
    printf("status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    return 0;
}
