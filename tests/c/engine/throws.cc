/* Signal handlers that throw an exception out of the function that they interrupt. Programs in C++ and other languages
 * do so if they are compiled with -fnon-call-exceptions. */
#include <liburing.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "../check.h"

struct Thrown {
	int signal;
};

static int destroyed;

struct Destroyed {
	~Destroyed() { destroyed++; }
};

static io_uring ring;

static void throw_it(int signal)
{
	Destroyed here;

	throw Thrown{signal};
}

static void throw_with_info(int signal, siginfo_t *info, void *)
{
	CHECK(info->si_signo == signal);
	throw_it(signal);
}

static void install(int signal, int flags, bool with_info, void (*handler)(int) = throw_it,
		    void (*handler_with_info)(int, siginfo_t *, void *) = throw_with_info)
{
	struct sigaction action{};

	action.sa_flags = flags | (with_info ? SA_SIGINFO : 0);
	if (with_info)
		action.sa_sigaction = handler_with_info;
	else
		action.sa_handler = handler;
	CHECK(sigaction(signal, &action, nullptr) == 0);
}

/* An exception leaves the mask as it was in the handler. */
static void open_again(int signal, bool was_blocked)
{
	sigset_t mask, set;

	CHECK(sigprocmask(SIG_BLOCK, nullptr, &mask) == 0);
	CHECK(sigismember(&mask, signal) == was_blocked);
	sigemptyset(&set);
	sigaddset(&set, signal);
	CHECK(sigprocmask(SIG_UNBLOCK, &set, nullptr) == 0);
}

static volatile int zero;
static int *volatile nowhere;

__attribute__((noinline)) static int fault(int signal)
{
	Destroyed here;

	return signal == SIGFPE ? 1 / zero : *nowhere;
}

/* A wait whose argument is a bad pointer. */
static void expect_efault()
{
	unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;

	CHECK(syscall(__NR_io_uring_enter, ring.ring_fd, 0, 1, flags, 8, sizeof(io_uring_getevents_arg)) == -1);
	CHECK(errno == EFAULT);
}

static void check_fault(int signal, int flags)
{
	int seen = 0;

	destroyed = 0;
	try {
		fault(signal);
	} catch (const Thrown &thrown) {
		seen = thrown.signal;
	}
	CHECK(seen == signal && destroyed == 2);
	if (ring.ring_fd)
		expect_efault();
	open_again(signal, !(flags & SA_NODEFER));
}

static void take()
{
	io_uring_cqe *cqe;

	CHECK(io_uring_wait_cqe(&ring, &cqe) == 0);
	CHECK(cqe->res >= 0);
	io_uring_cqe_seen(&ring, cqe);
}

static void submit_nop()
{
	io_uring_prep_nop(io_uring_get_sqe(&ring));
	CHECK(io_uring_submit(&ring) == 1);
}

static void check_faults(bool with_ring)
{
	for (int signal : {SIGFPE, SIGSEGV})
		for (int flags : {0, SA_ONSTACK, SA_NODEFER, SA_ONSTACK | SA_NODEFER, static_cast<int>(SA_RESETHAND)})
			for (bool with_info : {false, true}) {
				install(signal, flags, with_info);
				check_fault(signal, flags);
				if (!with_ring)
					continue;
				submit_nop();
				take();
			}
}

static void faults()
{
	install(SIGFPE, 0, false);
	check_faults(false);
	install(SIGFPE, 0, false);
	install(SIGSEGV, 0, true);
	CHECK(io_uring_queue_init(8, &ring, 0) == 0);
	check_fault(SIGFPE, 0); /* set before the first ring */
	check_fault(SIGSEGV, 0);
	check_faults(true);
}

/* Sends the thread a signal once it sleeps. */
static pid_t process;
static pthread_t waiter;

static void *signal_the_sleeper(void *)
{
	char path[64], state = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", process);
	while (state != 'S') {
		FILE *file = fopen(path, "r");

		CHECK(file && fscanf(file, "%*d %*s %c", &state) == 1);
		fclose(file);
	}
	pthread_kill(waiter, SIGUSR1);
	return nullptr;
}

static void check_wait(int flags, bool is_armed)
{
	int ends[2];
	bool is_caught = false;
	char byte;
	pthread_t other;

	CHECK(pipe(ends) == 0);
	if (is_armed) {
		io_uring_prep_read(io_uring_get_sqe(&ring), ends[0], &byte, 1, 0);
		CHECK(io_uring_submit(&ring) == 1);
	}
	install(SIGUSR1, flags, false);
	CHECK(pthread_create(&other, nullptr, signal_the_sleeper, nullptr) == 0);
	destroyed = 0;
	try {
		Destroyed here;
		io_uring_cqe *cqe;

		io_uring_wait_cqe(&ring, &cqe);
		CHECK(!"a wait that is left");
	} catch (const Thrown &) {
		is_caught = true;
	}
	CHECK(is_caught && destroyed == 2);
	open_again(SIGUSR1, !(flags & SA_NODEFER));
	CHECK(pthread_join(other, nullptr) == 0);
	if (is_armed) {
		CHECK(write(ends[1], "x", 1) == 1);
		take();
	}
	submit_nop();
	take();
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* On a ring that its callers serve, and on a ring that a thread polls. */
static void waits()
{
	need_proc();
	process = gettid();
	waiter = pthread_self();
	for (unsigned flags : {0U, IORING_SETUP_SQPOLL}) {
		CHECK(io_uring_queue_init(8, &ring, flags) == 0);
		for (int sa_flags : {0, SA_ONSTACK, SA_NODEFER})
			for (bool is_armed : {false, true})
				check_wait(sa_flags, is_armed);
		io_uring_queue_exit(&ring);
	}
}

static const unsigned MANY = 256;

/* This function has nothing to clean up, so an exception may come from any of its instructions. */
__attribute__((noinline)) static void submit_until_thrown_out(long after_us)
{
	itimerval timer = {{0, 0}, {0, after_us}};
	sigset_t alarms;

	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	CHECK(setitimer(ITIMER_REAL, &timer, nullptr) == 0);
	CHECK(sigprocmask(SIG_UNBLOCK, &alarms, nullptr) == 0);
	for (;;)
		syscall(__NR_io_uring_enter, ring.ring_fd, MANY, 0, IORING_ENTER_GETEVENTS, nullptr, 0);
}

/* Whenever the handler comes, each consumed SQE has its CQE, and no SQE is consumed twice. */
static void submissions()
{
	void (*volatile submit)(long) = submit_until_thrown_out;
	sigset_t alarms;

	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	CHECK(sigprocmask(SIG_BLOCK, &alarms, nullptr) == 0);
	install(SIGALRM, 0, false);
	CHECK(io_uring_queue_init(MANY, &ring, 0) == 0);
	for (int round = 0; round < 200; round++) {
		bool is_caught = false;

		for (unsigned i = 0; i < MANY; i++)
			io_uring_prep_nop(io_uring_get_sqe(&ring));
		for (unsigned i = 0; ring.sq.array && i < MANY; i++)
			ring.sq.array[i] = i;
		ring.sq.sqe_head = ring.sq.sqe_tail;
		__atomic_store_n(ring.sq.ktail, ring.sq.sqe_tail, __ATOMIC_RELEASE);
		try {
			submit(1 + round % 100);
		} catch (const Thrown &) {
			is_caught = true;
		}
		CHECK(is_caught);
		open_again(SIGALRM, true);
		CHECK(sigprocmask(SIG_BLOCK, &alarms, nullptr) == 0);
		while (io_uring_sq_ready(&ring))
			CHECK(syscall(__NR_io_uring_enter, ring.ring_fd, MANY, 0, 0, nullptr, 0) > 0);
		CHECK(io_uring_cq_ready(&ring) == MANY);
		io_uring_cq_advance(&ring, MANY);
	}
}

/* Threads that end in a handler. The objects in their frames are destroyed, whatever the handler interrupts. */
static volatile bool has_started;
static bool is_cancelled;
static void (*volatile in_thread)();

static void end_thread(int)
{
	void (*volatile point)() = pthread_testcancel;
	Destroyed here;

	if (!is_cancelled)
		pthread_exit(&ring);
	pthread_cancel(pthread_self());
	point();
}

static void end_thread_with_info(int signal, siginfo_t *info, void *)
{
	CHECK(info->si_signo == signal);
	end_thread(signal);
}

static void end_in_inner_handler(int)
{
	int (*volatile send)(int) = raise;
	Destroyed here;

	send(SIGUSR1);
}

/* Nothing here is to be cleaned up. */
static void compute()
{
	has_started = true;
	for (;;)
		;
}

static void wait_for_none()
{
	io_uring_cqe *cqe;

	has_started = true;
	io_uring_wait_cqe(&ring, &cqe);
}

static void enter_for_ever()
{
	has_started = true;
	for (;;)
		syscall(__NR_io_uring_enter, ring.ring_fd, 0, 0, IORING_ENTER_GETEVENTS, nullptr, 0);
}

static void set_cleaned(void *cleaned)
{
	*static_cast<bool *>(cleaned) = true;
}

static void *thread_that_ends(void *cleaned)
{
	Destroyed here;
	static char alternate[1 << 16]; /* the threads run one after the other */
	stack_t stack{};

	stack.ss_size = sizeof(alternate);
	stack.ss_sp = alternate;
	CHECK(sigaltstack(&stack, nullptr) == 0);
	pthread_cleanup_push(set_cleaned, cleaned);
	in_thread();
	pthread_cleanup_pop(0);
	return nullptr;
}

static void check_end(int flags, bool with_info, int by)
{
	bool is_cleaned = false;
	pthread_t thread;
	void *result;

	install(SIGUSR1, flags, with_info, end_thread, end_thread_with_info);
	install(SIGUSR2, flags, false, end_in_inner_handler);
	has_started = false;
	destroyed = 0;
	CHECK(pthread_create(&thread, nullptr, thread_that_ends, &is_cleaned) == 0);
	while (!has_started)
		sched_yield();
	CHECK(pthread_kill(thread, by) == 0);
	CHECK(pthread_join(thread, &result) == 0);
	CHECK(result == (is_cancelled ? PTHREAD_CANCELED : &ring));
	CHECK(is_cleaned && destroyed == (by == SIGUSR1 ? 2 : 3));
}

static void check_ends(std::initializer_list<void (*)()> all)
{
	for (void (*what)() : all)
		for (int flags : {0, SA_ONSTACK, SA_NODEFER, static_cast<int>(SA_RESETHAND), SA_ONSTACK | SA_NODEFER})
			for (int choice = 0; choice < 8; choice++) {
				in_thread = what;
				is_cancelled = choice & 4;
				check_end(flags, choice & 1, choice & 2 ? SIGUSR1 : SIGUSR2);
			}
}

static void ends()
{
	check_ends({compute});
	CHECK(io_uring_queue_init(8, &ring, 0) == 0);
	check_ends({compute, wait_for_none, enter_for_ever});
	submit_nop();
	take();
}

int main(int argc, char **argv)
{
	stack_t stack{};

	CHECK(argc == 2);
	stack.ss_size = 1 << 16;
	stack.ss_sp = malloc(stack.ss_size);
	CHECK(stack.ss_sp && sigaltstack(&stack, nullptr) == 0);
	if (!strcmp(argv[1], "faults"))
		faults();
	else if (!strcmp(argv[1], "waits"))
		waits();
	else if (!strcmp(argv[1], "submissions"))
		submissions();
	else
		ends();
	puts("done");
}
