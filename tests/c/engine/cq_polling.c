/* Programs that only poll the CQ, and programs that wait in io_uring_enter(2). The cases check which thread completes
 * their requests, how soon, and at what cost. The bounds hold on a busy machine, too. docs/limits.md has those of a
 * quiet machine. */
#include "engine.h"

/* Rounds of each kind of request. In the first few rounds the helper may wait for a period (1 ms), in case the program
 * makes a call. */
#define ROUNDS 60
#define FIRST 4
#define PERIOD_NS 1000000L
#define MEDIAN_NS 200000000L

static struct io_uring ring;
static int pipes[2];
static char buffer[4096];

static long now_ns(void)
{
	struct timespec now;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

/* Polls until the CQ is not empty, without a call. Returns the time at which that happened. */
static long look_ns(void)
{
	long begin_ns = now_ns(), ns = begin_ns;

	while (!io_uring_cq_ready(&ring) && ns - begin_ns < LONG_MS * 1000000L) {
		sched_yield();
		ns = now_ns();
	}
	CHECK(io_uring_cq_ready(&ring) == 1);
	return now_ns();
}

static int compare(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;

	return (x > y) - (x < y);
}

/* Checks how late the completions of one kind came. At least one after the first few must come within a period.
 * Otherwise the helper always waits a period for the program's next call, although the program only polls the CQ. */
static void check_late(long *late_ns)
{
	long *later_ns = late_ns + FIRST;

	qsort(later_ns, ROUNDS - FIRST, sizeof(*later_ns), compare);
	if (later_ns[0] >= PERIOD_NS || later_ns[(ROUNDS - FIRST) / 2] > MEDIAN_NS)
		fprintf(stderr, "the fastest came %ld ns late, half of them %ld ns or later\n", later_ns[0],
			later_ns[(ROUNDS - FIRST) / 2]);
	CHECK(later_ns[0] < PERIOD_NS);
	CHECK(later_ns[(ROUNDS - FIRST) / 2] <= MEDIAN_NS);
}

/* A read that was armed before the data came. */
static void a_pipe(void)
{
	long late_ns[ROUNDS];

	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	for (int round = 0; round < ROUNDS; round++) {
		long written_ns;

		submit_read(&ring, pipes[0], buffer, 1, round);
		written_ns = now_ns();
		write_all(pipes[1], "x");
		late_ns[round] = look_ns() - written_ns;
		take(&ring, round, 1);
	}
	check_late(late_ns);
}

static void a_timeout(void)
{
	struct __kernel_timespec span = {0, 2000000};
	long late_ns[ROUNDS];

	init_ring(&ring, 8, 0);
	for (int round = 0; round < ROUNDS; round++) {
		struct io_uring_sqe *sqe = next_sqe(&ring);
		long begin_ns = now_ns();

		io_uring_prep_timeout(sqe, &span, 0, 0);
		sqe->user_data = round;
		submit(&ring, 1);
		late_ns[round] = look_ns() - begin_ns - span.tv_nsec;
		CHECK(late_ns[round] >= 0);
		take(&ring, round, -ETIME);
	}
	check_late(late_ns);
}

/* A timer that ends before the timer for which a watching helper sleeps. */
static void an_earlier_timeout(void)
{
	struct __kernel_timespec long_time = {3600, 0}, short_time = {0, 1000000};
	struct io_uring_sqe *sqe;

	init_ring(&ring, 8, 0);
	io_uring_prep_timeout(next_sqe(&ring), &long_time, 0, 0);
	submit(&ring, 1);
	wait_others_asleep(0);
	for (int round = 1; round < 10; round++) {
		sqe = next_sqe(&ring);
		io_uring_prep_timeout(sqe, &short_time, 0, 0);
		sqe->user_data = round;
		submit(&ring, 1);
		look_ns();
		take(&ring, round, -ETIME);
	}
}

/* A worker makes the first read. Then the linked read waits, and no thread calls io_uring_enter(2) for it. */
static void a_worker(void)
{
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	long late_ns[ROUNDS];

	CHECK(zero >= 0 && pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	for (int round = 0; round < ROUNDS; round++) {
		long begin_ns = now_ns();

		prepare_read(&ring, zero, buffer, sizeof(buffer), round)->flags |= IOSQE_ASYNC | IOSQE_IO_LINK;
		prepare_read(&ring, pipes[0], buffer, 1, 100 + round);
		submit(&ring, 2);
		late_ns[round] = look_ns() - begin_ns;
		take(&ring, round, sizeof(buffer));
		write_all(pipes[1], "x");
		look_ns();
		take(&ring, 100 + round, 1);
	}
	check_late(late_ns);
}

/* Polls the CQ, waits in io_uring_enter(2), and polls again. After each wait the program makes no further call,
 * although requests are still pending. */
static void in_turns(void)
{
	struct __kernel_timespec short_time = {0, 500000};
	int others[2];

	CHECK(pipe(pipes) == 0 && pipe(others) == 0);
	init_ring(&ring, 8, 0);
	for (int round = 0; round < 300; round++) {
		submit_read(&ring, others[0], buffer + 1, 1, 1000 + round);
		if (round % 3) {
			io_uring_prep_timeout(next_sqe(&ring), &short_time, 0, 0);
			submit(&ring, 1);
			expect(&ring, 0, -ETIME);
		}
		submit_read(&ring, pipes[0], buffer, 1, round);
		if (round % 7 == 0)
			usleep(2000); /* in some rounds the data comes late */
		write_all(pipes[1], "x");
		if (round % 5 == 0)
			expect(&ring, round, 1);
		else
			look_ns(), take(&ring, round, 1);
		write_all(others[1], "x");
		look_ns();
		take(&ring, 1000 + round, 1);
	}
}

/* Returns the nanoseconds that the engine's threads have run, and whether there is such a thread. */
static int helper_ran(long *ran_ns, long *slices)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	int found = 0;

	CHECK(tasks);
	while ((task = readdir(tasks))) {
		char path[300], name[32] = "";
		long waited_ns;
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
		file = fopen(path, "r");
		if (!file)
			continue;
		CHECK(fgets(name, sizeof(name), file) || !name[0]);
		fclose(file);
		snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", task->d_name);
		file = strcmp(name, "anyring-helper\n") ? NULL : fopen(path, "r");
		if (!file)
			continue;
		CHECK(fscanf(file, "%ld %ld %ld", ran_ns, &waited_ns, slices) == 3);
		fclose(file);
		found = 1;
	}
	closedir(tasks);
	return found;
}

static int peers[2];
static atomic_int stop;

static void *echo(void *unused)
{
	char byte;

	while (!stop && read(peers[1], &byte, 1) == 1)
		write_all(peers[1], "y");
	return unused;
}

/* A loop that waits in io_uring_enter(2) for half a second, with a request pending all the time. A helper has nothing
 * to do there. The kernel has no helper. A helper that ticks would run 500 times. */
static void waiting(void)
{
	long ran_ns = 0, slices = 0, begin_ns;
	pthread_t peer;
	int known;

	CHECK(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, peers) == 0);
	CHECK(pthread_create(&peer, NULL, echo, NULL) == 0);
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], buffer, 1, 1); /* never ends */
	begin_ns = now_ns();
	while (now_ns() - begin_ns < 500000000L) {
		write_all(peers[0], "x");
		prepare_read(&ring, peers[0], buffer + 1, 1, 2);
		CHECK(answer(io_uring_submit_and_wait(&ring, 1)) == 1);
		take(&ring, 2, 1);
	}
	known = helper_ran(&ran_ns, &slices);
	if (slices > 50)
		fprintf(stderr, "the helper (%d) ran %ld times, %ld ns\n", known, slices, ran_ns);
	CHECK(slices <= 50);
	stop = 1;
	CHECK(shutdown(peers[0], SHUT_RDWR) == 0);
	CHECK(pthread_join(peer, NULL) == 0);
}

static void poll_eventfd(int fd, uint64_t user_data)
{
	struct io_uring_sqe *sqe = next_sqe(&ring);

	io_uring_prep_poll_add(sqe, fd, POLLIN);
	sqe->user_data = user_data;
}

/* Asks to wait for CQEs that the helper has posted while the program made no call. The program now makes calls again,
 * so for a period it handles pending requests itself. If the helper continued, every event would wake it, and it would
 * always be first. */
static void waiting_again(void)
{
	int fds[2] = {eventfd(0, EFD_CLOEXEC), eventfd(0, EFD_CLOEXEC)}, at_once = 0;
	long ran_ns, slices;
	uint64_t value = 1;

	CHECK(fds[0] >= 0 && fds[1] >= 0);
	init_ring(&ring, 8, 0);
	for (int turn = 0; turn < 50; turn++) {
		long begin_ns, ns;

		poll_eventfd(fds[0], 0);
		poll_eventfd(fds[1], 1);
		submit(&ring, 2);
		wait_others_asleep(0);
		CHECK(write(fds[0], &value, sizeof(value)) == sizeof(value));
		only_look(&ring);
		begin_ns = now_ns();
		CHECK(answer(io_uring_submit_and_wait(&ring, 1)) == 0);
		take(&ring, 0, POLLIN);
		CHECK(write(fds[1], &value, sizeof(value)) == sizeof(value));
		do {
			int came = io_uring_cq_ready(&ring) != 0;

			ns = now_ns() - begin_ns;
			if (came && ns < PERIOD_NS) {
				at_once++;
				break;
			}
			sched_yield();
		} while (ns < PERIOD_NS);
		expect(&ring, 1, POLLIN);
		CHECK(read(fds[0], &value, sizeof(value)) == sizeof(value));
		CHECK(read(fds[1], &value, sizeof(value)) == sizeof(value));
	}
	if (helper_ran(&ran_ns, &slices)) /* the kernel has no helper, and all CQEs come at once */
		CHECK(at_once == 0);
}

/* Pending requests cost no CPU time as long as nothing happens, whether the program polls, sleeps, or waits in
 * io_uring_enter(2). */
static void idle(void)
{
	long ran_ns = 0, slices = 0, before_ns = 0, before = 0;
	struct io_uring_cqe *cqe;

	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], buffer, 1, 1);
	usleep(100000); /* longer than any period of the helper, which then must not run for 300 ms */
	helper_ran(&before_ns, &before);
	usleep(300000);
	helper_ran(&ran_ns, &slices);
	CHECK(slices - before <= 1);
	CHECK(wait_ms(&ring, &cqe, 100) == -ETIME);
	usleep(100000);
	helper_ran(&before_ns, &before);
	usleep(300000);
	helper_ran(&ran_ns, &slices);
	CHECK(slices - before <= 1);
}

static _Atomic int broken, broken_in;

static void on_broken(int signal)
{
	(void)signal;
	broken++;
	broken_in = syscall(__NR_gettid);
}

/* A WRITE whose reader goes while the program only polls the CQ raises SIGPIPE in the submitting thread. */
static void break_write(int reader, int writer)
{
	struct sigaction action = {.sa_handler = on_broken};

	CHECK(sigaction(SIGPIPE, &action, NULL) == 0);
	CHECK(fcntl(writer, F_SETFL, O_NONBLOCK) == 0);
	while (write(writer, buffer, sizeof(buffer)) > 0 || write(writer, buffer, 1) > 0)
		;
	CHECK(fcntl(writer, F_SETFL, 0) == 0);
	init_ring(&ring, 8, 0);
	io_uring_prep_write(next_sqe(&ring), writer, buffer, 1, 0);
	submit(&ring, 1);
	usleep(20000);
	CHECK(io_uring_cq_ready(&ring) == 0);
	close(reader);
	look_ns();
	CHECK(broken == 1 && broken_in == syscall(__NR_gettid));
	expect(&ring, 0, -EPIPE);
	CHECK(broken == 1);
}

static void broken_pipe(void)
{
	CHECK(pipe(pipes) == 0);
	break_write(pipes[0], pipes[1]);
}

static void broken_socket(void)
{
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pipes) == 0);
	break_write(pipes[0], pipes[1]);
}

CASES({"pipe", a_pipe},
      {"broken-pipe", broken_pipe},
      {"broken-socket", broken_socket},
      {"timeout", a_timeout},
      {"earlier-timeout", an_earlier_timeout},
      {"worker", a_worker},
      {"in-turns", in_turns},
      {"waiting", waiting},
      {"waiting-again", waiting_again},
      {"idle", idle})
