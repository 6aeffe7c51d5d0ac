/* The program must notice neither the engine's threads nor the engine's code that runs before a signal handler. The
 * cases look for them by signals, scheduling, malloc and locks. */
#include "engine.h"

#include <sys/timerfd.h>
#include <time.h>

static struct io_uring ring;
static int pipes[2];
static char buffer[64];

/* A ring with a worker that sleeps in a read, and a helper. */
static void begin(void)
{
	init_ring(&ring, 64, 0);
	CHECK(pipe(pipes) == 0);
	prepare_read(&ring, pipes[0], buffer, 1, 1);
	submit(&ring, 1);
	prepare_read(&ring, open("/proc/self/status", O_RDONLY), buffer, sizeof(buffer), 2)->flags |= IOSQE_ASYNC;
	submit(&ring, 1);
	expect(&ring, 2, sizeof(buffer));
	usleep(20000);
}

/* Signals that are faults when an instruction raises them. When they are sent, the program gets them like all others.
 * */
static void sent_faults_are_waited_for(void)
{
	const int signals[] = {SIGFPE, SIGILL, SIGTRAP, SIGABRT};
	const struct timespec soon = {10, 0};
	sigset_t set;

	begin();
	sigemptyset(&set);
	for (unsigned i = 0; i < 4; i++)
		sigaddset(&set, signals[i]);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	for (unsigned i = 0; i < 4; i++) {
		siginfo_t info;

		CHECK(kill(getpid(), signals[i]) == 0);
		usleep(10000);
		CHECK(sigtimedwait(&set, &info, &soon) == signals[i]);
		CHECK(info.si_pid == getpid());
	}
}

static atomic_int depth, handled;

static void send_once_more(int signal, siginfo_t *info, void *context)
{
	(void)context;
	CHECK(gettid() == getpid());
	CHECK(info->si_code == SI_USER && info->si_pid == getpid());
	CHECK(depth++ == 0);
	if (handled++ == 0)
		CHECK(kill(getpid(), signal) == 0);
	usleep(50000); /* time for another thread to take the signal */
	depth--;
}

/* While the program's handler of such a signal runs, the next one waits for it. */
static void faults_are_handled(void)
{
	const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
	struct sigaction action = {.sa_sigaction = send_once_more, .sa_flags = SA_SIGINFO};

	for (unsigned i = 0; i < 4; i++) {
		CHECK(sigaction(signals[i], &action, NULL) == 0);
		handled = 0;
		CHECK(kill(getpid(), signals[i]) == 0);
		for (int ms = 0; ms < LONG_MS && handled < 2; ms++)
			usleep(1000);
		CHECK(handled == 2);
	}
}

static void sent_faults_are_handled_by_the_program(void)
{
	begin();
	faults_are_handled();
}

static void sent_faults_are_handled_without_proc(void)
{
	if (!own_mounts())
		skip("no mount namespace can be made");
	begin();
	hide_proc();
	faults_are_handled();
}

static atomic_long ticks;
static sigjmp_buf out;
static atomic_int may_jump;

static void jump_out(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	CHECK(info->si_code == SI_TIMER && info->si_value.sival_int == 4711);
	ticks++;
	if (may_jump)
		siglongjmp(out, 1);
}

/* Signal handlers leave calls on the ring by a jump, at any moment, while RLIMIT_SIGPENDING lets the system queue no
 * signal. No signal may stay deferred inside a call. */
static void handlers_jump_at_the_limit_of(int signal)
{
	struct sigaction action = {.sa_sigaction = jump_out, .sa_flags = SA_SIGINFO};
	struct sigevent event = {
		.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = signal, .sigev_value.sival_int = 4711};
	const struct itimerspec often = {{0, 30000}, {0, 30000}}, never = {{0, 0}, {0, 0}};
	const struct rlimit none = {0, 0};
	timer_t timer;

	init_ring(&ring, 64, 0);
	CHECK(sigaction(signal, &action, NULL) == 0);
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
	event.sigev_notify_thread_id = gettid();
	CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
	CHECK(setrlimit(RLIMIT_SIGPENDING, &none) == 0);
	CHECK(timer_settime(timer, 0, &often, NULL) == 0);
	for (volatile long rounds = 0; rounds < 20000 || ticks < 3000; rounds++) {
		struct io_uring_cqe *cqe;

		if (sigsetjmp(out, 1) == 0) {
			may_jump = 1;
			prepare_nop(&ring, 7);
			(void)io_uring_submit(&ring);
			may_jump = 0;
		} else {
			may_jump = 0;
			ring.sq.sqe_head = ring.sq.sqe_tail = *ring.sq.ktail; /* drop the SQEs of an interrupted submission */
		}
		while (io_uring_peek_cqe(&ring, &cqe) == 0)
			io_uring_cqe_seen(&ring, cqe);
	}
	CHECK(timer_settime(timer, 0, &never, NULL) == 0);
	while (*ring.sq.khead != *ring.sq.ktail)
		CHECK(answer(io_uring_enter(ring.ring_fd, 64, 0, 0, NULL)) >= 0);
	while (io_uring_cq_ready(&ring))
		io_uring_cq_advance(&ring, 1);
	prepare_nop(&ring, 8);
	submit(&ring, 1);
	expect(&ring, 8, 0);
}

static void handlers_jump_at_the_limit(void)
{
	handlers_jump_at_the_limit_of(SIGRTMIN + 1);
}

static void handlers_of_one_jump_at_the_limit(void)
{
	handlers_jump_at_the_limit_of(SIGUSR1);
}

static bool pin(void)
{
	cpu_set_t cpus;

	CHECK(sched_getaffinity(0, sizeof(cpus), &cpus) == 0);
	if (CPU_COUNT(&cpus) < 2)
		return false;
	for (int cpu = CPU_SETSIZE - 1;; cpu--)
		if (CPU_ISSET(cpu, &cpus)) {
			CPU_ZERO(&cpus);
			CPU_SET(cpu, &cpus);
			CHECK(sched_setaffinity(0, sizeof(cpus), &cpus) == 0);
			return true;
		}
}

static bool be_real_time(void)
{
	const struct sched_param first = {.sched_priority = 5};

	return pin() && sched_setscheduler(0, SCHED_FIFO, &first) == 0;
}

static atomic_int stop, running;

static uint64_t now_ns(void)
{
	struct timespec now;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static void *set_actions(void *unused)
{
	struct sigaction action = {.sa_handler = SIG_IGN};

	CHECK(pin());
	running = 1;
	while (!stop)
		CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
	return unused;
}

/* A thread with priority does not wait long for a lock whose holder gets no CPU because of that thread. */
static void real_time_waits_for_no_lock(void)
{
	struct sigaction action = {.sa_handler = SIG_IGN};
	uint64_t longest_ns = 0;
	pthread_t other;

	begin();
	CHECK(pthread_create(&other, NULL, set_actions, NULL) == 0);
	while (!running)
		usleep(1000);
	if (!be_real_time()) {
		puts("skipped: no real-time thread is permitted, or there is one CPU");
		exit(0);
	}
	for (int i = 0; i < 200; i++) {
		uint64_t begun_ns;

		usleep(1000); /* let the other thread take the lock */
		begun_ns = now_ns();
		CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
		if (now_ns() - begun_ns > longest_ns)
			longest_ns = now_ns() - begun_ns;
	}
	stop = 1;
	CHECK(pthread_join(other, NULL) == 0);
	CHECK(longest_ns < 200000000);
}

static bool is_permitted;

static void *need_a_worker_and_spin(void *unused)
{
	struct io_uring own;

	init_ring(&own, 8, 0);
	is_permitted = be_real_time();
	if (is_permitted)
		read_by_worker(&own, 1);
	running = 1;
	for (uint64_t until_ns = now_ns() + 700000000; is_permitted && now_ns() < until_ns;)
		;
	io_uring_queue_exit(&own);
	return unused;
}

/* The worker that a thread needs first serves other threads, too. It must not be confined to that thread's CPU. */
static void a_worker_is_the_process_s(void)
{
	uint64_t begun_ns;
	pthread_t other;

	init_ring(&ring, 8, 0);
	CHECK(pthread_create(&other, NULL, need_a_worker_and_spin, NULL) == 0);
	while (!running)
		usleep(1000);
	if (!is_permitted) {
		puts("skipped: no real-time thread is permitted, or there is one CPU");
		exit(0);
	}
	begun_ns = now_ns();
	read_by_worker(&ring, 2);
	CHECK(now_ns() - begun_ns < 300000000);
	CHECK(pthread_join(other, NULL) == 0);
}

struct attributes { /* struct sched_attr, which libc's headers do not have */
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

static bool set_deadline(void)
{
	struct attributes all = {.size = sizeof(all), .policy = 6, .runtime = 10000000, .deadline = 30000000};

	all.period = all.deadline;
	return syscall(SYS_sched_setattr, 0, &all, 0) == 0;
}

/* A thread under SCHED_DEADLINE, which may make no threads, makes the first ring. Its requests complete all the same,
 * except that the kernel makes no worker for it. Its own attributes stay. */
static void *use_a_ring_under_a_deadline(void *unused)
{
	struct attributes now = {0};
	struct io_uring_cqe *cqe;

	if (!set_deadline())
		return unused;
	is_permitted = true;
	init_ring(&ring, 8, 0);
	prepare_read(&ring, open("/proc/self/status", O_RDONLY), buffer, 8, 1)->flags |= IOSQE_ASYNC;
	submit(&ring, 1);
	CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0 && (cqe->res == 8 || cqe->res == -ECANCELED));
	io_uring_cqe_seen(&ring, cqe);
	CHECK(pipe(pipes) == 0);
	submit_read(&ring, pipes[0], buffer, 1, 2);
	write_all(pipes[1], "x");
	only_look(&ring);
	take(&ring, 2, 1);
	CHECK(syscall(SYS_sched_getattr, 0, &now, sizeof(now), 0) == 0);
	CHECK(now.policy == 6 && now.flags == 0 && now.runtime == 10000000);
	return unused;
}

static void a_deadline_thread_has_a_ring(void)
{
	use_a_ring_under_a_deadline(NULL);
	if (!is_permitted)
		skip("SCHED_DEADLINE is not permitted");
}

static void one_of_several_has_a_ring(void)
{
	pthread_t other;

	CHECK(pthread_create(&other, NULL, use_a_ring_under_a_deadline, NULL) == 0 && pthread_join(other, NULL) == 0);
	if (!is_permitted)
		skip("SCHED_DEADLINE is not permitted");
}

/* More thread-local memory than the engine's threads need stack. */
static __thread volatile char thread_local_memory[3 << 20];

static void threads_have_much_local_memory(void)
{
	init_ring(&ring, 8, 0);
	thread_local_memory[0] = 1;
	CHECK(pipe(pipes) == 0);
	submit_read(&ring, pipes[0], buffer, 1, 1);
	write_all(pipes[1], "x");
	only_look(&ring);
	take(&ring, 1, 1);
}

CASES({"sent-faults", sent_faults_are_waited_for},
      {"handled-faults", sent_faults_are_handled_by_the_program},
      {"handled-faults-without-proc", sent_faults_are_handled_without_proc},
      {"limit", handlers_jump_at_the_limit},
      {"limit-of-one", handlers_of_one_jump_at_the_limit},
      {"real-time", real_time_waits_for_no_lock},
      {"worker", a_worker_is_the_process_s},
      {"much-local-memory", threads_have_much_local_memory},
      {"deadline", a_deadline_thread_has_a_ring},
      {"deadline-of-several", one_of_several_has_a_ring})
