// The libc functions that the library wraps, each called where it concerns no ring: what the wrapper costs is counted.
// usage: calls none|ring ROUNDS         each function ROUNDS times, between two calls that mark it; "ring" makes a ring first
//        calls none|ring ROUNDS --ns    prints the nanoseconds a call, the best of many loops
//        calls --list                   the functions
//        calls --not-counted            those that start a program, a process or a thread, wait, or load code
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

#pragma GCC diagnostic ignored "-Wunused-result"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#pragma GCC diagnostic ignored "-Wnonnull"

#define NONE 700 // a number that nobody has open

// Functions that the headers declare under another name, or not at all.
extern int __poll_chk(struct pollfd *, nfds_t, int, size_t), __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
extern ssize_t __read_chk(int, void *, size_t, size_t), __pread_chk(int, void *, size_t, off_t, size_t);
extern ssize_t __pread64_chk(int, void *, size_t, off_t, size_t), __recv_chk(int, void *, size_t, size_t, int);
extern ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, void *, void *);
extern void __longjmp_chk(jmp_buf, int), (*bsd_signal(int, void (*)(int)))(int);
extern int close_range(unsigned, unsigned, int), pthread_attr_setsigmask_np(pthread_attr_t *, const sigset_t *);
extern int pthread_attr_getsigmask_np(const pthread_attr_t *, sigset_t *), capset(void *, const void *), capget(void *, void *);
extern void (*__sysv_signal(int, void (*)(int)))(int);

static int null, file, other, nothing, timer, epoll, pipes[2], sockets[2], value;
static char buf[64];
static struct iovec vector = {buf, 1};
static struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
static struct mmsghdr messages[1];
static struct pollfd polled = {.events = POLLOUT};
static struct epoll_event event = {.events = EPOLLIN}, events[4];
static struct timespec zero;
static struct timeval moment;
static fd_set readable;
static sigset_t set, old;
static struct sigaction action = {.sa_handler = SIG_IGN}, before;
static socklen_t size;
static struct itimerspec timing;
static jmp_buf place;
static ucontext_t context, back;
static pthread_attr_t attributes;
static void *page;
static struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
static struct __user_cap_data_struct rights[2];
static FILE *stream;
static stack_t stack;

static void on_signal(int signal) {}
static void reset_readable(void) { FD_ZERO(&readable); FD_SET(pipes[0], &readable); moment.tv_usec = 0; }
static void contexts(void) {
	static volatile int is_back;
	is_back = 0;
	getcontext(&context);
	if (!is_back) { is_back = 1; setcontext(&context); }
}
static void swaps(void) {
	static volatile int is_back;
	is_back = 0;
	getcontext(&context);
	if (!is_back) { is_back = 1; swapcontext(&back, &context); }
}

#define CALLS(X) \
	X(close, close(NONE)) X(dup, close(dup(null))) X(dup2, dup2(null, NONE)) X(dup3, dup3(null, NONE, O_CLOEXEC)) \
	X(close_range, close_range(NONE, NONE + 9, 0)) X(close_range_last, close_range(NONE, ~0U, 0)) X(closefrom, closefrom(NONE)) \
	X(fclose, stream = fopen("/dev/null", "r"); fclose(stream)) X(freopen, stream = fopen("/dev/null", "r"); fclose(freopen("/dev/null", "r", stream))) \
	X(freopen64, stream = fopen("/dev/null", "r"); fclose(freopen64("/dev/null", "r", stream))) \
	X(fcntl, fcntl(null, F_GETFL)) X(fcntl64, fcntl64(null, F_GETFD)) X(lockf, lockf(file, F_TEST, 0)) X(lockf64, lockf64(file, F_TEST, 0)) \
	X(mmap, munmap(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096)) \
	X(mmap64, munmap(mmap64(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0), 4096)) \
	X(madvise, madvise(page, 4096, MADV_NORMAL)) X(madvise_dontfork, madvise(page, 4096, MADV_DONTFORK)) X(mlockall, mlockall(0x100)) \
	X(read, read(null, buf, 1)) X(__read_chk, __read_chk(null, buf, 1, 1)) X(write, write(null, buf, 1)) \
	X(pread, pread(null, buf, 1, 0)) X(pread64, pread64(null, buf, 1, 0)) X(__pread_chk, __pread_chk(null, buf, 1, 0, 1)) \
	X(__pread64_chk, __pread64_chk(null, buf, 1, 0, 1)) X(pwrite, pwrite(null, buf, 1, 0)) X(pwrite64, pwrite64(null, buf, 1, 0)) \
	X(readv, readv(null, &vector, 1)) X(writev, writev(null, &vector, 1)) X(preadv, preadv(null, &vector, 1, 0)) X(preadv64, preadv64(null, &vector, 1, 0)) \
	X(pwritev, pwritev(null, &vector, 1, 0)) X(pwritev64, pwritev64(null, &vector, 1, 0)) X(preadv2, preadv2(null, &vector, 1, 0, 0)) \
	X(preadv64v2, preadv64v2(null, &vector, 1, 0, 0)) X(pwritev2, pwritev2(null, &vector, 1, 0, 0)) X(pwritev64v2, pwritev64v2(null, &vector, 1, 0, 0)) \
	X(sendfile, sendfile(null, file, NULL, 0)) X(sendfile64, sendfile64(null, file, NULL, 0)) X(splice, splice(pipes[0], NULL, null, NULL, 0, 0)) \
	X(tee, tee(pipes[0], pipes[1], 0, 0)) X(copy_file_range, copy_file_range(file, NULL, other, NULL, 0, 0)) X(vmsplice, vmsplice(pipes[1], &vector, 0, 0)) \
	X(send, send(NONE, buf, 1, 0)) X(sendto, sendto(NONE, buf, 1, 0, NULL, 0)) X(sendmsg, sendmsg(sockets[0], &message, 0); recv(sockets[1], buf, 1, 0)) \
	X(sendmmsg, sendmmsg(sockets[0], messages, 1, 0); recv(sockets[1], buf, 1, 0)) X(recv, recv(sockets[0], buf, 1, MSG_DONTWAIT)) \
	X(__recv_chk, __recv_chk(sockets[0], buf, 1, 1, MSG_DONTWAIT)) X(recvfrom, recvfrom(sockets[0], buf, 1, MSG_DONTWAIT, NULL, NULL)) \
	X(__recvfrom_chk, __recvfrom_chk(sockets[0], buf, 1, 1, MSG_DONTWAIT, NULL, NULL)) X(recvmsg, recvmsg(sockets[0], &message, MSG_DONTWAIT)) \
	X(recvmmsg, recvmmsg(sockets[0], messages, 1, MSG_DONTWAIT, NULL)) X(shutdown, shutdown(null, SHUT_RD)) X(bind, bind(null, NULL, 0)) \
	X(listen, listen(null, 1)) X(connect, connect(null, NULL, 0)) X(accept, accept(null, NULL, NULL)) X(accept4, accept4(null, NULL, NULL, 0)) \
	X(getsockname, getsockname(null, (void *)buf, &size)) X(getpeername, getpeername(null, (void *)buf, &size)) \
	X(setsockopt, setsockopt(sockets[0], SOL_SOCKET, SO_PASSCRED, &value, sizeof value)) \
	X(getsockopt, size = sizeof value; getsockopt(sockets[0], SOL_SOCKET, SO_TYPE, &value, &size)) \
	X(ftruncate, ftruncate(null, 0)) X(ftruncate64, ftruncate64(null, 0)) X(fallocate, fallocate(null, 0, 0, 1)) X(fallocate64, fallocate64(null, 0, 0, 1)) \
	X(fchmod, fchmod(nothing, 0600)) X(fchown, fchown(nothing, -1, -1)) X(ioctl, ioctl(pipes[0], FIONREAD, &value)) \
	X(timerfd_settime, timerfd_settime(timer, 0, &timing, NULL)) \
	X(epoll_ctl, epoll_ctl(epoll, EPOLL_CTL_MOD, pipes[0], &event)) X(epoll_wait, epoll_wait(epoll, events, 4, 0)) \
	X(epoll_pwait, epoll_pwait(epoll, events, 4, 0, &set)) X(epoll_pwait2, epoll_pwait2(epoll, events, 4, &zero, &set)) \
	X(poll, poll(&polled, 1, 0)) X(__poll_chk, __poll_chk(&polled, 1, 0, sizeof polled)) X(ppoll, ppoll(&polled, 1, &zero, &set)) \
	X(__ppoll_chk, __ppoll_chk(&polled, 1, &zero, &set, sizeof polled)) X(select, reset_readable(); select(pipes[0] + 1, &readable, NULL, NULL, &moment)) \
	X(pselect, reset_readable(); pselect(pipes[0] + 1, &readable, NULL, NULL, &zero, &set)) \
	X(sigaction, sigaction(SIGUSR1, &action, &before)) X(sigaction_asks, sigaction(SIGUSR1, NULL, &before)) \
	X(sigaction_handler, action.sa_handler = on_signal; sigaction(SIGUSR1, &action, NULL); action.sa_handler = SIG_IGN) \
	X(signal, signal(SIGUSR1, SIG_IGN)) X(ssignal, ssignal(SIGUSR1, SIG_IGN)) X(bsd_signal, bsd_signal(SIGUSR1, SIG_IGN)) \
	X(__sysv_signal, __sysv_signal(SIGUSR1, SIG_IGN)) X(sysv_signal, sysv_signal(SIGUSR1, SIG_IGN)) X(sigset, sigset(SIGUSR1, SIG_IGN)) \
	X(sigignore, sigignore(SIGUSR1)) X(siginterrupt, siginterrupt(SIGUSR1, 0)) X(sighold, sighold(SIGUSR1)) X(sigrelse, sigrelse(SIGUSR1)) \
	X(sigprocmask, sigprocmask(SIG_SETMASK, &set, &old)) X(pthread_sigmask, pthread_sigmask(SIG_BLOCK, &set, NULL)) \
	X(sigsetmask, sigsetmask(0)) X(sigblock, sigblock(0)) X(siggetmask, siggetmask()) X(sigpending, sigpending(&old)) \
	X(sigaltstack, sigaltstack(&stack, NULL)) X(pthread_attr_setsigmask_np, pthread_attr_setsigmask_np(&attributes, &set)) \
	X(pthread_attr_getsigmask_np, pthread_attr_getsigmask_np(&attributes, &old)) \
	X(__sigsetjmp, sigsetjmp(place, 1)) X(_longjmp, if (!_setjmp(place)) _longjmp(place, 1)) X(longjmp, if (!sigsetjmp(place, 0)) longjmp(place, 1)) \
	X(siglongjmp, if (!sigsetjmp(place, 1)) siglongjmp(place, 1)) X(__longjmp_chk, if (!_setjmp(place)) __longjmp_chk(place, 1)) \
	X(getcontext, getcontext(&context)) X(setcontext, contexts()) X(swapcontext, swaps()) X(dlsym, dlsym(RTLD_DEFAULT, "strlen")) \
	X(dlvsym, dlvsym(RTLD_DEFAULT, "strlen", "GLIBC_2.2.5")) \
	X(syscall, syscall(SYS_getppid)) X(syscall_read, syscall(SYS_read, null, buf, 1)) X(syscall_close, syscall(SYS_close, NONE)) \
	X(syscall_fcntl, syscall(SYS_fcntl, null, F_GETFD)) X(syscall_dup2, syscall(SYS_dup2, null, NONE)) X(syscall_close_range, syscall(SYS_close_range, NONE, NONE + 9, 0)) \
	X(syscall_mmap, munmap((void *)syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096)) \
	X(syscall_poll, syscall(SYS_poll, &polled, 1, 0)) X(syscall_ppoll, syscall(SYS_ppoll, &polled, 1, &zero, &set, 8)) \
	X(syscall_select, reset_readable(); syscall(SYS_select, pipes[0] + 1, &readable, NULL, NULL, &moment)) \
	X(syscall_epoll_ctl, syscall(SYS_epoll_ctl, epoll, EPOLL_CTL_MOD, pipes[0], &event)) X(syscall_epoll_wait, syscall(SYS_epoll_wait, epoll, events, 4, 0)) \
	X(syscall_epoll_pwait, syscall(SYS_epoll_pwait, epoll, events, 4, 0, &set, 8)) X(syscall_sendmsg, syscall(SYS_sendmsg, sockets[0], &message, 0); recv(sockets[1], buf, 1, 0)) \
	X(syscall_sigaction, syscall(SYS_rt_sigaction, SIGUSR1, NULL, buf, 8)) X(syscall_sigprocmask, syscall(SYS_rt_sigprocmask, SIG_SETMASK, &set, &old, 8)) \
	X(syscall_sigaltstack, syscall(SYS_sigaltstack, &stack, NULL)) \
	X(unshare, unshare(0)) X(setns, setns(-1, 0)) X(capset, capset(&header, rights)) X(setfsuid, setfsuid(0)) X(setfsgid, setfsgid(0))

#define NOT_COUNTED "_Fork __clone __vfork clone vfork execl execle execlp execv execve execveat execvp execvpe fexecve popen pclose " \
	"posix_spawn posix_spawnp system wordexp pthread_create __xpg_sigpause sigpause sigsuspend dlopen dlmopen"

#define DEFINE(name, ...) static void call_##name(void) { __VA_ARGS__; }
CALLS(DEFINE)
#define ROW(name, ...) {#name, call_##name},
static const struct { const char *name; void (*run)(void); } calls[] = {CALLS(ROW)};
#define COUNT (sizeof calls / sizeof *calls)

static void die(const char *what) { perror(what); exit(1); }
// By an instruction of the program's own, so that it is the same whatever is preloaded: a write to no file.
static void mark(const char *name) {
	long answer = SYS_write;
	__asm__ volatile("syscall" : "+a"(answer) : "D"(-1L), "S"(name), "d"(strlen(name)) : "rcx", "r11", "memory");
}
static void prepare(void) {
	null = open("/dev/null", O_RDWR); nothing = memfd_create("nothing", 0); file = open("/proc/self/exe", O_RDONLY); other = memfd_create("other", 0);
	timer = timerfd_create(CLOCK_MONOTONIC, 0); epoll = epoll_create1(0);
	if (null < 0 || nothing < 0 || file < 0 || other < 0 || timer < 0 || epoll < 0) die("open");
	if (pipe(pipes) || socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets)) die("pipe");
	event.data.fd = pipes[0]; polled.fd = pipes[1]; messages[0].msg_hdr = message;
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event)) die("epoll");
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack.ss_sp = malloc(stack.ss_size = 65536);
	sigemptyset(&set); pthread_attr_init(&attributes);
	if (page == MAP_FAILED || capget(&header, rights)) die("prepare");
}
static void *waits(void *nothing) { for (;;) pause(); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
static void time_one(const char *name, void (*run)(void), int rounds) {
	double best = 1e18;
	for (int k = 0; k < 40; k++) {
		double start = now();
		for (int i = 0; i < rounds; i++) run();
		double took = (now() - start) / rounds;
		if (took < best) best = took;
	}
	printf("%s %.1f\n", name, best);
}

int main(int argc, char **argv) {
	if (argc == 2 && !strcmp(argv[1], "--list")) {
		for (unsigned k = 0; k < COUNT; k++) puts(calls[k].name);
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "--not-counted")) { puts(NOT_COUNTED); return 0; }
	if (argc < 3) return 2;
	struct io_uring ring;
	if (!strcmp(argv[1], "ring") && io_uring_queue_init(8, &ring, 0)) die("setup");
	prepare();
	pthread_t another; // the only thread of a process is asked for more before it changes its identity
	if (pthread_create(&another, NULL, waits, NULL)) die("thread");
	int rounds = atoi(argv[2]), times = argc > 3 && !strcmp(argv[3], "--ns");
	for (unsigned k = 0; k < COUNT; k++) {
		calls[k].run(); // what is looked up once, is by now
		if (times) { time_one(calls[k].name, calls[k].run, rounds); continue; }
		mark(calls[k].name);
		CALLGRIND_ZERO_STATS;
		for (int i = 0; i < rounds; i++) calls[k].run();
		CALLGRIND_DUMP_STATS_AT(calls[k].name);
		mark("");
	}
	return 0;
}
