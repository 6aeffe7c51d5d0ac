/* Signals that arrive while their thread is inside a system call. In the kernel the signal handler runs when the call
 * is over. */
#include "engine.h"

#include <linux/aio_abi.h>
#include <spawn.h>

#define NOPS 2000
#define HITS 20
#define CONTEXT_REQUESTS 400

static struct io_uring ring;
static sigset_t alarms;
static sigjmp_buf before_the_call;
static char bytes[8];
static int ends[2], null, forks;

static void (*in_handler)(void);
/* Whether the handler has run, and whether all SQEs that its thread submits were consumed by then. */
static volatile sig_atomic_t ran, after;

static void on_alarm(int signal)
{
	int saved = errno;

	(void)signal;
	after = ring.ring_fd && *ring.sq.khead == *ring.sq.ktail;
	ran = 1;
	in_handler();
	errno = saved;
}

/* Makes a call with an alarm set to that time. The alarm interrupts the call, or comes shortly before it. If it has not
 * come by the end of the call, the handler's work is done then. */
static long interrupted_after(long us, long (*call)(void))
{
	struct itimerval timer = {{0, 0}, {0, us}}, off = {{0, 0}, {0, 0}};
	struct timespec now = {0, 0};
	long answer;
	int error;

	ran = after = 0;
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	sigprocmask(SIG_UNBLOCK, &alarms, NULL);
	answer = call();
	error = errno;
	sigprocmask(SIG_BLOCK, &alarms, NULL);
	CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
	sigtimedwait(&alarms, NULL, &now);
	if (!ran) {
		after = 1;
		in_handler();
	}
	errno = error;
	return answer;
}

static void install(void)
{
	struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};

	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	CHECK(sigprocmask(SIG_BLOCK, &alarms, NULL) == 0);
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	null = open("/dev/null", O_RDONLY);
	CHECK(null >= 0);
}

/* Runs rounds until the handler has come that often after its thread's call had begun. */
static void rounds(void (*round)(long us))
{
	struct timespec begin, now;

	install();
	CHECK(clock_gettime(CLOCK_MONOTONIC, &begin) == 0);
	for (int number = 0, hits = 0; hits < HITS; number++) {
		round(1 + number * 7 % 300);
		hits += ran && after;
		CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec - begin.tv_sec < LONG_MS / 1000);
	}
}

static long enter(void)
{
	return syscall(__NR_io_uring_enter, ring.ring_fd, *ring.sq.ktail - *ring.sq.khead, 0, 0, NULL, 0);
}

static void prepare_nops(int count)
{
	for (int i = 0; i < count; i++)
		prepare_nop(&ring, 0);
}

/* Waits for the two requests other than NOPs, which may end in any order. */
static void take_all(int nops, int results[3])
{
	struct io_uring_cqe *cqe;

	for (int left = nops + 2; left; left--) {
		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
		CHECK(cqe->user_data <= 2);
		results[cqe->user_data] = cqe->res;
		io_uring_cqe_seen(&ring, cqe);
	}
}

/* A READ waits on the file, and the interrupted submission ends with another READ on it. The handler closes the number.
 * Both READs keep the file that the number named when their submission began. */
static void round_of_numbers(long us)
{
	int results[3] = {-1, -1, -1};

	if (!ring.ring_fd)
		init_ring(&ring, 4096, 0);
	CHECK(pipe(ends) == 0);
	submit_read(&ring, ends[0], bytes, 1, 1);
	prepare_nops(NOPS);
	prepare_read(&ring, ends[0], bytes + 1, 1, 2);
	publish(&ring);
	CHECK(interrupted_after(us, enter) == NOPS + 1);
	write_all(ends[1], "xy");
	take_all(NOPS, results);
	CHECK(answer(results[0]) == 0 && answer(results[1]) == 1);
	CHECK(answer(results[2]) == after); /* another result would come from /dev/null, or from a file that was shut down */
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void reopen(void)
{
	CHECK(open("/dev/null", O_RDONLY) == ends[0]);
}

static void close_number(void)
{
	CHECK(close(ends[0]) == 0);
	reopen();
}

static void close_number_by_syscall(void)
{
	CHECK(syscall(SYS_close, ends[0]) == 0);
	reopen();
}

static void replace_number(void)
{
	CHECK(dup2(null, ends[0]) == ends[0]);
}

static void close_range_of_numbers(void)
{
	CHECK(syscall(SYS_close_range, ends[0], ends[0], 0) == 0);
	reopen();
}

static void rounds_of_numbers(void (*handler)(void))
{
	in_handler = handler;
	rounds(round_of_numbers);
}

static void closes(void)
{
	rounds_of_numbers(close_number);
}

static void closes_by_syscall(void)
{
	rounds_of_numbers(close_number_by_syscall);
}

static void replaces(void)
{
	rounds_of_numbers(replace_number);
}

static void closes_range(void)
{
	if (syscall(SYS_close_range, ~0U, ~0U, 0) && errno == ENOSYS)
		skip("no close_range(2)");
	rounds_of_numbers(close_range_of_numbers);
}

static void shut_down(void)
{
	CHECK(shutdown(ends[0], SHUT_RDWR) == 0);
}

static void round_of_sockets(long us)
{
	int results[3] = {-1, -1, -1};

	if (!ring.ring_fd)
		init_ring(&ring, 4096, 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	submit_read(&ring, ends[0], bytes, 1, 1);
	prepare_nops(NOPS);
	prepare_read(&ring, ends[0], bytes + 1, 1, 2);
	publish(&ring);
	CHECK(interrupted_after(us, enter) == NOPS + 1);
	take_all(NOPS, results);
	for (int i = 0; i < 3; i++)
		CHECK(answer(results[i]) == 0);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void shuts_down(void)
{
	in_handler = shut_down;
	rounds(round_of_sockets);
}

static void close_ring(void)
{
	CHECK(close(ring.ring_fd) == 0);
}

static void round_of_rings(long us)
{
	long consumed;

	init_ring(&ring, 4096, 0);
	CHECK(pipe(ends) == 0);
	submit_read(&ring, ends[0], bytes, 1, 1);
	prepare_nops(NOPS);
	publish(&ring);
	consumed = interrupted_after(us, enter);
	CHECK(after ? consumed == NOPS : consumed == -1 && errno == EBADF);
	CHECK(*ring.sq.ktail - *ring.sq.khead == (after ? 0 : NOPS));
	CHECK(!after || io_uring_cq_ready(&ring) == NOPS);
	CHECK(munmap(ring.sq.sqes, ring.sq.ring_entries * sizeof(struct io_uring_sqe)) == 0);
	CHECK(munmap(ring.sq.ring_ptr, ring.sq.ring_sz) == 0);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void closes_ring(void)
{
	in_handler = close_ring;
	rounds(round_of_rings);
}

/* Reaps the CQEs of the requests that were submitted first. */
static void enter_in_handler(void)
{
	struct __kernel_timespec soon = {0, 1000000};
	struct io_uring_getevents_arg wait = {.ts = (uintptr_t)&soon};
	unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
	int answer = syscall(__NR_io_uring_enter, ring.ring_fd, 0, 1, flags, &wait, sizeof(wait));

	CHECK(after ? answer == 0 : answer == -1 && errno == ETIME);
}

static void register_in_handler(void)
{
	char probe[sizeof(struct io_uring_probe)] = {0};

	CHECK(syscall(__NR_io_uring_register, ring.ring_fd, IORING_REGISTER_PROBE, probe, 0) == 0);
}

static void take_nops(void)
{
	for (int left = NOPS; left; left--)
		expect(&ring, 0, 0);
	CHECK(io_uring_cq_ready(&ring) == 0);
}

static void round_of_nops(long us)
{
	if (!ring.ring_fd)
		init_ring(&ring, 4096, 0);
	prepare_nops(NOPS);
	publish(&ring);
	CHECK(interrupted_after(us, enter) == NOPS);
	take_nops();
}

static void enters(void)
{
	in_handler = enter_in_handler;
	rounds(round_of_nops);
}

static void registers(void)
{
	in_handler = register_in_handler;
	rounds(round_of_nops);
}

static pid_t child;

static void read_with_an_own_ring(void)
{
	struct io_uring own;

	init_ring(&own, 8, 0);
	submit_read(&own, null, bytes, 1, 3);
	expect(&own, 3, 0);
	_exit(0);
}

static void fork_in_handler(void)
{
	child = fork();
	CHECK(child >= 0);
	if (child == 0 && !after) /* its parent submits those SQEs */
		read_with_an_own_ring();
}

/* The child continues where its parent was interrupted, and has rings of its own. */
static void round_of_forks(long us)
{
	prepare_nops(NOPS);
	publish(&ring);
	CHECK(interrupted_after(us, enter) == NOPS);
	if (child == 0)
		read_with_an_own_ring();
	wait_for_child(child);
	take_nops();
	forks++;
}

static void forks_in_handler(void)
{
	in_handler = fork_in_handler;
	init_ring(&ring, 4096, 0);
	rounds(round_of_forks);
	CHECK(forks >= HITS);
}

static void spawn_in_handler(void)
{
	char *arguments[] = {"true", NULL}, *environment[] = {NULL};
	pid_t spawned;

	CHECK(posix_spawnp(&spawned, "true", NULL, NULL, arguments, environment) == 0);
	wait_for_child(spawned);
}

static void spawns(void)
{
	in_handler = spawn_in_handler;
	rounds(round_of_nops);
}

static void jump(void)
{
	if (ran)
		siglongjmp(before_the_call, 1);
}

/* A thread that jumps out of the handler leaves a call that is over, or that has not begun. */
static void round_of_jumps(long us)
{
	if (!ring.ring_fd)
		init_ring(&ring, 4096, 0);
	prepare_nops(NOPS);
	publish(&ring);
	if (sigsetjmp(before_the_call, 1) == 0)
		CHECK(interrupted_after(us, enter) == NOPS);
	else if (!after)
		CHECK(enter() == NOPS);
	take_nops();
}

static void jumps(void)
{
	in_handler = jump;
	rounds(round_of_jumps);
}

static volatile sig_atomic_t queued, values;

static void on_queued(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	CHECK(info->si_code == SI_QUEUE && info->si_pid == getpid());
	values += info->si_value.sival_int;
	queued++;
}

static void *send_signals(void *target)
{
	for (int i = 1; i <= 1000; i++) {
		union sigval value = {.sival_int = i};

		while (pthread_sigqueue(*(pthread_t *)target, SIGRTMIN + i % 3, value) != 0)
			sched_yield();
		usleep(20);
	}
	return NULL;
}

/* Each real-time signal arrives once, with its value, whether it was deferred or not. */
static void queues(void)
{
	struct sigaction action = {.sa_sigaction = on_queued, .sa_flags = SA_SIGINFO | SA_RESTART};
	pthread_t self = pthread_self(), sender;

	sigfillset(&action.sa_mask); /* no handler interrupts another while it counts */
	init_ring(&ring, 4096, 0);
	for (int i = 0; i < 3; i++)
		CHECK(sigaction(SIGRTMIN + i, &action, NULL) == 0);
	CHECK(pthread_create(&sender, NULL, send_signals, &self) == 0);
	for (int round = 0; round < 100 || queued < 1000; round++) {
		int consumed;

		prepare_nops(NOPS);
		publish(&ring);
		consumed = enter();
		CHECK(consumed == NOPS);
		take_nops();
		CHECK(round < 1000000);
	}
	CHECK(pthread_join(sender, NULL) == 0);
	CHECK(queued == 1000 && values == 1000 * 1001 / 2);
}

static aio_context_t context;
static struct iocb requests[CONTEXT_REQUESTS + 1], *list[CONTEXT_REQUESTS + 1];

static long io_submit_all(void)
{
	return syscall(SYS_io_submit, context, CONTEXT_REQUESTS, list);
}

static void make_context(void)
{
	context = 0;
	CHECK(syscall(SYS_io_setup, CONTEXT_REQUESTS + 1, &context) == 0);
	for (int i = 0; i <= CONTEXT_REQUESTS; i++) {
		requests[i] = (struct iocb){.aio_lio_opcode = IOCB_CMD_PREAD,
					    .aio_fildes = null,
					    .aio_buf = (uintptr_t)bytes,
					    .aio_nbytes = 1};
		list[i] = &requests[i];
	}
}

static void submit_one(void)
{
	CHECK(syscall(SYS_io_submit, context, 1, &list[CONTEXT_REQUESTS]) == 1);
}

static void destroy(void)
{
	CHECK(syscall(SYS_io_destroy, context) == 0);
}

/* The kernel does not report how far the call was. So there are many rounds, with the alarm at every moment of the
 * call. */
static void io_submits(void)
{
	static struct io_event events[CONTEXT_REQUESTS + 1];

	in_handler = submit_one;
	install();
	make_context();
	for (int number = 0; number < 1000; number++) {
		CHECK(interrupted_after(1 + number * 7 % 300, io_submit_all) == CONTEXT_REQUESTS);
		CHECK(syscall(SYS_io_getevents, context, CONTEXT_REQUESTS + 1, CONTEXT_REQUESTS + 1, events, NULL) ==
		      CONTEXT_REQUESTS + 1);
	}
}

static void io_destroys(void)
{
	in_handler = destroy;
	install();
	for (int number = 0; number < 100; number++) {
		long submitted;

		make_context();
		submitted = interrupted_after(1 + number * 7 % 100, io_submit_all);
		CHECK(submitted == CONTEXT_REQUESTS || (ran && submitted == -1 && errno == EINVAL));
	}
}

static volatile sig_atomic_t ran_after;

static void count_after(void)
{
	ran_after += *ring.sq.khead == *ring.sq.ktail;
}

static long enter_and_wait(void)
{
	return syscall(__NR_io_uring_enter, ring.ring_fd, NOPS, 2 * NOPS, IORING_ENTER_GETEVENTS, NULL, 0);
}

/* The call waits for more than it submits. If the handler comes after the wait has begun, the wait ends. If it came
 * before, the next handler ends the wait. */
static void round_of_waits(long us)
{
	struct itimerval timer = {{0, 50000}, {0, us}}, off = {{0, 0}, {0, 0}};
	struct timespec now = {0, 0};

	if (!ring.ring_fd)
		init_ring(&ring, 4096, 0);
	in_handler = count_after;
	prepare_nops(NOPS);
	publish(&ring);
	ran = after = ran_after = 0;
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	sigprocmask(SIG_UNBLOCK, &alarms, NULL);
	CHECK(enter_and_wait() == NOPS);
	sigprocmask(SIG_BLOCK, &alarms, NULL);
	CHECK(ran_after == 1);
	CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
	sigtimedwait(&alarms, NULL, &now);
	io_uring_cq_advance(&ring, io_uring_cq_ready(&ring));
}

static void waits(void)
{
	rounds(round_of_waits);
}

CASES({"closes", closes},
      {"closes-by-syscall", closes_by_syscall},
      {"replaces", replaces},
      {"closes-range", closes_range},
      {"shuts-down", shuts_down},
      {"closes-ring", closes_ring},
      {"enters", enters},
      {"registers", registers},
      {"forks", forks_in_handler},
      {"spawns", spawns},
      {"jumps", jumps},
      {"queues", queues},
      {"io-submit", io_submits},
      {"io-destroy", io_destroys},
      {"waits", waits})
