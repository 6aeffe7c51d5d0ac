/* The limits of a container: hardly any processes, little memory, a small share of a CPU. The test has made a
 * control group, and the program moves into it. To use RLIMIT_NPROC instead, the program becomes a user of its own.
 * The kernel is no reference: its io-wq cancels requests that it has no thread for (ECANCELED), or, on Linux 6.18,
 * loses them. */
#include "engine.h"
#include "fault.h"

/* Names that older headers lack. */
enum { IORING_OP_FUTEX_WAIT_ = 51 };
enum { ROUNDS = 20, CHILDREN = 3, BLOCK = 64, OWN_USER = 54321 };

static struct io_uring ring;
static char bytes[4096];
/* The control group's file for this controller; NULL without a control group. */
static const char *group;

static void write_limit(const char *file, const char *value)
{
	char path[300];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", group, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK(write(fd, value, strlen(value)) == (ssize_t)strlen(value));
	close(fd);
}

static void begin(void)
{
	group = getenv("ANYRING_TEST_GROUP");
	if (getuid() != 0)
		skip("only root can become a user without other processes");
	open_faults();
	if (group)
		write_limit("cgroup.procs", "0");
	else
		CHECK(setresgid(OWN_USER, OWN_USER, OWN_USER) == 0 && setresuid(OWN_USER, OWN_USER, OWN_USER) == 0);
}

/* Limits the threads of all processes of the group from now on; 0: no limit. */
static void limit_threads(int most)
{
	char value[16] = "max";

	if (most)
		snprintf(value, sizeof(value), "%d", most);
	if (group) {
		write_limit("pids.max", value);
	} else {
		struct rlimit limit;

		CHECK(getrlimit(RLIMIT_NPROC, &limit) == 0);
		limit.rlim_cur = most ? (rlim_t)most : limit.rlim_max;
		CHECK(setrlimit(RLIMIT_NPROC, &limit) == 0);
	}
}

/* Returns the number of threads of this process. */
static int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int count = 0;

	CHECK(tasks);
	for (struct dirent *entry; (entry = readdir(tasks));)
		count += entry->d_name[0] != '.';
	closedir(tasks);
	return count;
}

/* Waits until only the program's thread is left. */
static void wait_for_threads(void)
{
	for (int ms = 0; threads() > 1 && ms < LONG_MS; ms++)
		usleep(1000);
	CHECK(threads() == 1);
}

static int result_of(struct io_uring *of, uint64_t user_data)
{
	struct io_uring_cqe *cqe;
	int result;

	CHECK(wait_ms(of, &cqe, LONG_MS) == 0);
	CHECK(cqe->user_data == user_data);
	result = cqe->res;
	io_uring_cqe_seen(of, cqe);
	return result;
}

/* Submits the one prepared SQE with IOSQE_ASYNC, and returns its result. */
static int by_worker(struct io_uring *of, struct io_uring_sqe *sqe)
{
	int result;

	sqe->flags |= IOSQE_ASYNC;
	sqe->user_data = 7;
	submit(of, 1);
	result = result_of(of, 7);
	return result;
}

static void expect_by_worker(struct io_uring *of, struct io_uring_sqe *sqe, int expected)
{
	int result = by_worker(of, sqe);

	CHECK(answer(result) == expected);
}

/* Requests that need a worker: each is made, and its CQE has the right result. */
static void make_all(struct io_uring *of)
{
	static struct statx status;
	int ends[2], others[2], file = memfd_create("file", MFD_CLOEXEC), fd;
	struct io_uring_sqe *sqe;

	CHECK(file >= 0 && write(file, bytes, sizeof(bytes)) == sizeof(bytes));
	CHECK(pipe2(ends, O_CLOEXEC) == 0 && pipe2(others, O_CLOEXEC) == 0);
	sqe = next_sqe(of);
	io_uring_prep_openat(sqe, AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC, 0);
	fd = by_worker(of, sqe);
	CHECK(fd >= 0);
	if (fd >= 0)
		close(fd);
	sqe = next_sqe(of);
	io_uring_prep_statx(sqe, AT_FDCWD, "/", 0, STATX_TYPE, &status);
	expect_by_worker(of, sqe, 0);
	sqe = next_sqe(of);
	io_uring_prep_fsync(sqe, file, 0);
	expect_by_worker(of, sqe, 0);
	expect_by_worker(of, prepare_read(of, file, bytes, sizeof(bytes), 0), sizeof(bytes));
	sqe = next_sqe(of);
	io_uring_prep_write(sqe, file, bytes, BLOCK, 0);
	expect_by_worker(of, sqe, BLOCK);
	sqe = next_sqe(of);
	io_uring_prep_fallocate(sqe, file, 0, 0, 2 * sizeof(bytes));
	expect_by_worker(of, sqe, 0);
	write_all(ends[1], "abc");
	sqe = next_sqe(of);
	io_uring_prep_splice(sqe, ends[0], -1, others[1], -1, 3, 0);
	expect_by_worker(of, sqe, 3);
	/* A file that can be polled blocks no thread, although it has no data yet. */
	sqe = prepare_read(of, ends[0], bytes, sizeof(bytes), 8);
	sqe->flags |= IOSQE_ASYNC;
	submit(of, 1);
	write_all(ends[1], "abc");
	fd = result_of(of, 8);
	CHECK(fd == 3);
	close(file);
	for (int i = 0; i < 2; i++)
		CHECK(close(ends[i]) == 0 && close(others[i]) == 0);
}

/* A call that sleeps in the page until the fault is answered. */
static void submit_sleeper(struct io_uring *of, uint64_t user_data)
{
	struct io_uring_sqe *sqe = next_sqe(of);

	make_page();
	io_uring_prep_madvise(sqe, page, 4096, MADV_POPULATE_WRITE);
	sqe->user_data = user_data;
	submit(of, 1);
}

static void wake_sleeper(struct io_uring *of, uint64_t user_data)
{
	wait_for_fault();
	answer_fault();
	expect(of, user_data, 0);
	CHECK(munmap(page, 4096) == 0);
}

/* Such a call delays no other request once threads may be made again. */
static void a_worker_sleeps(struct io_uring *of)
{
	submit_sleeper(of, 9);
	CHECK(threads() > 1);
	wake_sleeper(of, 9);
}

/* The process has no thread but the program's own. */
static void alone(void)
{
	struct io_uring_params polled = {.flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 1};
	struct io_uring other;

	begin();
	limit_threads(1);
	CHECK(answer(io_uring_queue_init_params(8, &other, &polled)) == -EAGAIN);
	for (unsigned i = 0; i < 3; i++) {
		const unsigned flags[] = {0, IORING_SETUP_SINGLE_ISSUER, DEFERRED};

		init_ring(&ring, 8, flags[i]);
		limit_threads(1);
		for (int round = 0; round < ROUNDS; round++)
			make_all(&ring);
		CHECK(threads() == 1);
		limit_threads(0);
		make_all(&ring);
		CHECK(threads() > 1);
		a_worker_sleeps(&ring);
		io_uring_queue_exit(&ring);
		wait_for_threads();
	}
	polled = (struct io_uring_params){.flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 1};
	CHECK(answer(io_uring_queue_init_params(8, &other, &polled)) == 0);
	prepare_nop(&other, 1);
	submit(&other, 1);
	expect(&other, 1, 0);
}

/* The limit permits one thread in addition to the program's, and that thread sleeps in a call. A later request waits
 * until another thread is permitted. */
static void after_a_sleeper(void)
{
	const unsigned flags[] = {0, DEFERRED};

	begin();
	for (int i = 0; i < 2; i++) {
		int file = memfd_create("file", MFD_CLOEXEC);
		struct io_uring_cqe *cqe;

		init_ring(&ring, 8, flags[i]);
		limit_threads(2);
		submit_sleeper(&ring, 1);
		io_uring_prep_fsync(next_sqe(&ring), file, 0);
		submit(&ring, 1);
		CHECK(wait_ms(&ring, &cqe, 300) == -ETIME);
		limit_threads(0);
		expect(&ring, 0, 0);
		wake_sleeper(&ring, 1);
		io_uring_queue_exit(&ring);
		close(file);
		wait_for_threads();
	}
}

/* There is a worker, but no thread may be made any more, so a READ that waits has no helper. Each time the worker has
 * completed a request, it asks for the helper again. It makes no descriptor then, as in lowest.c. */
static void no_helper(void)
{
	int file = memfd_create("file", MFD_CLOEXEC), ends[2];
	struct io_uring_sqe *sqe;

	begin();
	CHECK(file >= 0 && pipe2(ends, O_CLOEXEC) == 0);
	init_ring(&ring, 8, 0);
	sqe = next_sqe(&ring);
	io_uring_prep_fsync(sqe, file, 0);
	expect_by_worker(&ring, sqe, 0);
	limit_threads(1);
	prepare_read(&ring, ends[0], bytes, sizeof(bytes), 1);
	submit(&ring, 1);
	for (int round = 0; round < ROUNDS; round++) {
		sqe = next_sqe(&ring);
		io_uring_prep_fsync(sqe, file, 0);
		sqe->user_data = 2;
		submit(&ring, 1);
		only_look(&ring);
		take(&ring, 2, 0);
	}
	write_all(ends[1], "abc");
	expect(&ring, 1, 3);
	io_uring_queue_exit(&ring);
	CHECK(close(file) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* As in PostgreSQL, rings are made before processes are forked, and one process submits while another waits. There are
 * as many threads as processes. */
static void family(void)
{
	struct io_uring rings[CHILDREN];
	int file = memfd_create("file", MFD_CLOEXEC), start[2], go_on[2];
	pid_t children[CHILDREN];
	char end;

	begin();
	CHECK(file >= 0 && write(file, bytes, sizeof(bytes)) == sizeof(bytes) && pipe2(go_on, O_CLOEXEC) == 0);
	CHECK(pipe2(start, O_CLOEXEC) == 0);
	for (int i = 0; i < CHILDREN; i++)
		init_ring(&rings[i], 2 * ROUNDS, 0);
	limit_threads(1 + CHILDREN);
	for (int i = 0; i < CHILDREN; i++) {
		children[i] = fork();
		if (children[i])
			continue;
		close(go_on[1]);
		close(start[1]);
		CHECK(read(start[0], &end, 1) == 0);
		init_ring(&ring, 8, 0);
		for (int round = 0; round < ROUNDS; round++) {
			struct io_uring_sqe *sqe = prepare_read(&rings[i], file, bytes, BLOCK, round);

			sqe->flags |= IOSQE_ASYNC;
			submit(&rings[i], 1);
			sqe = next_sqe(&rings[i]);
			io_uring_prep_fsync(sqe, file, 0);
			sqe->user_data = round;
			submit(&rings[i], 1);
			make_all(&ring);
		}
		CHECK(read(go_on[0], &end, 1) == 0);
		_exit(0);
	}
	close(start[1]);
	for (int i = 0; i < CHILDREN; i++)
		for (int cqes = 0; cqes < 2 * ROUNDS; cqes++) {
			struct io_uring_cqe *cqe;

			CHECK(children[i] > 0 && wait_ms(&rings[i], &cqe, LONG_MS) == 0);
			CHECK(cqe->res == BLOCK || cqe->res == 0);
			io_uring_cqe_seen(&rings[i], cqe);
		}
	close(go_on[1]);
	for (int i = 0; i < CHILDREN; i++)
		wait_for_child(children[i]);
}

static _Atomic int asleep_at_last;

/* Counts how often the scheduler has switched threads other than this one. Below a quota a spinning thread is
 * stopped again and again; a sleeping one is not. */
static unsigned long switches(void)
{
	DIR *tasks = opendir("/proc/self/task");
	unsigned long sum = 0;

	CHECK(tasks);
	for (struct dirent *entry; (entry = readdir(tasks));) {
		char path[300], line[256];
		unsigned long count;
		FILE *status;

		if (entry->d_name[0] == '.' || atol(entry->d_name) == syscall(SYS_gettid))
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
		status = fopen(path, "re");
		while (status && fgets(line, sizeof(line), status))
			if (sscanf(line, "voluntary_ctxt_switches: %lu", &count) == 1 ||
			    sscanf(line, "nonvoluntary_ctxt_switches: %lu", &count) == 1)
				sum += count;
		if (status)
			fclose(status);
	}
	closedir(tasks);
	return sum;
}

/* Waits until all threads sleep for a whole second, in which no thread is scheduled. */
static void wait_for_quiet(void)
{
	unsigned long before = switches(), now;
	int calm = 0;

	for (int i = 0; calm < 10 && i < LONG_MS / 100; i++, before = now) {
		usleep(100000);
		now = switches();
		calm = now == before ? calm + 1 : 0;
	}
	CHECK(calm == 10);
}

struct waiter {
	struct io_uring ring;
	pthread_t thread;
};

static void *wait_in_enter(void *of)
{
	struct waiter *waiter = of;
	struct io_uring_cqe *cqe;

	CHECK(answer(io_uring_submit_and_wait(&waiter->ring, 1)) >= 0);
	CHECK(io_uring_wait_cqe(&waiter->ring, &cqe) == 0);
	io_uring_cqe_seen(&waiter->ring, cqe);
	asleep_at_last++;
	return of;
}

/* One wait of each kind. No wait takes CPU time while nothing happens. */
static void quiet(void)
{
	struct io_uring_params polled = {.flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 1};
	static struct __kernel_timespec hour = {3600, 0};
	struct waiter waiters[5];
	struct io_uring looked_at, by_thread, sleeps;
	int ends[2], set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event readable = {.events = EPOLLIN};
	static uint32_t word;
	struct io_uring_sqe *sqe;

	begin();
	CHECK(set >= 0 && pipe2(ends, O_CLOEXEC) == 0);
	/* Waits in io_uring_enter(2): for a read, a poll, an armed timeout, a message, and a futex. */
	for (int i = 0; i < 5; i++) {
		struct io_uring *it = &waiters[i].ring;

		init_ring(it, 8, 0);
		switch (i) {
		case 0:
			prepare_read(it, ends[0], bytes, 1, 0);
			break;
		case 1:
			io_uring_prep_poll_multishot(next_sqe(it), ends[0], POLLIN);
			break;
		case 2:
			io_uring_prep_timeout(next_sqe(it), &hour, 0, 0);
			break;
		case 4:
			sqe = next_sqe(it);
			io_uring_prep_rw(IORING_OP_FUTEX_WAIT_, sqe, 2 | 128, &word, 0, 0);
			sqe->addr3 = ~0U;
			break;
		}
		CHECK(pthread_create(&waiters[i].thread, NULL, wait_in_enter, &waiters[i]) == 0);
	}
	/* The program polls the CQ; it watches the ring by epoll; an idle thread polls the SQ; a worker sleeps. */
	init_ring(&looked_at, 8, 0);
	submit_read(&looked_at, ends[0], bytes, 1, 1);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, looked_at.ring_fd, &readable) == 0);
	CHECK(answer(io_uring_queue_init_params(8, &by_thread, &polled)) == 0);
	submit_read(&by_thread, ends[0], bytes, 1, 2);
	init_ring(&sleeps, 8, 0);
	submit_sleeper(&sleeps, 3);
	wait_for_quiet();
	CHECK(asleep_at_last == 0);
	/* All of these did wait: the events end every wait. */
	for (int i = 0; i < 8; i++)
		write_all(ends[1], "x");
	prepare_nop(&sleeps, 4);
	submit(&sleeps, 1);
	expect(&sleeps, 4, 0);
	wake_sleeper(&sleeps, 3);
	only_look(&looked_at);
	expect(&by_thread, 2, 1);
	io_uring_prep_msg_ring(next_sqe(&sleeps), waiters[3].ring.ring_fd, 0, 0, 0);
	io_uring_prep_timeout_remove(next_sqe(&waiters[2].ring), 0, 0);
	submit(&sleeps, 1);
	submit(&waiters[2].ring, 1);
	word = 1;
	CHECK(syscall(SYS_futex, &word, 129, 1, NULL, NULL, 0) == 1);
	for (int i = 0; i < 5; i++)
		CHECK(pthread_join(waiters[i].thread, NULL) == 0);
}

static void rings_without_end(void)
{
	struct io_uring many;
	int result;

	while ((result = io_uring_queue_init(4096, &many, 0)) == 0)
		memset(many.sq.sqes, 1, 4096 * sizeof(struct io_uring_sqe));
	CHECK(result == -ENOMEM || result == -EAGAIN || result == -EMFILE);
}

/* Far more CQEs than there is room for. The program reaps none. */
static void completions_without_end(void)
{
	init_ring(&ring, 256, 0);
	for (int i = 0; i < 10000; i++) {
		struct io_uring_sqe *sqe;
		int result;

		while ((sqe = io_uring_get_sqe(&ring)))
			io_uring_prep_nop(sqe);
		result = io_uring_submit(&ring);
		if (result == -EBUSY || result == -EAGAIN || result == -ENOMEM)
			return;
		CHECK(answer(result) > 0);
	}
}

static void polls_without_end(void)
{
	int ends[2];

	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	init_ring(&ring, 256, 0);
	for (int i = 0; i < 4000; i++) {
		struct io_uring_sqe *sqe;
		int result;

		while ((sqe = io_uring_get_sqe(&ring)))
			io_uring_prep_poll_add(sqe, ends[0], POLLIN);
		result = io_uring_submit(&ring);
		if (result == -EAGAIN || result == -ENOMEM)
			return;
		CHECK(answer(result) > 0);
	}
}

/* Registers, and reads into, a buffer larger than the group's limit. */
static void large_buffers(void)
{
	struct iovec large = {.iov_len = 64UL << 20};
	int zeroes = open("/dev/zero", O_RDONLY | O_CLOEXEC), result;

	CHECK(zeroes >= 0);
	large.iov_base = mmap(NULL, large.iov_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(large.iov_base != MAP_FAILED);
	init_ring(&ring, 8, 0);
	result = answer(io_uring_register_buffers(&ring, &large, 1));
	CHECK(result == 0 || result == -ENOMEM || result == -EFAULT);
	prepare_read(&ring, zeroes, large.iov_base, large.iov_len, 1)->flags |= IOSQE_ASYNC;
	submit(&ring, 1);
	result = result_of(&ring, 1);
	CHECK(answer(result) > 0 || result == -EFAULT || result == -ENOMEM);
}

/* Each child ends by itself with an error, or the kernel's OOM killer ends it. */
static void little_memory(void)
{
	void (*const greedy[])(void) = {rings_without_end, completions_without_end, polls_without_end, large_buffers};

	group = getenv("ANYRING_TEST_GROUP");
	CHECK(group);
	for (int i = 0; i < 4; i++) {
		int status;
		pid_t child = fork();

		if (!child) {
			write_limit("cgroup.procs", "0");
			greedy[i]();
			_exit(0);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
		      (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
	}
}

int main(int argc, char **argv)
{
	static const struct test cases[] = {
	    {"alone", alone},
	    {"after-a-sleeper", after_a_sleeper},
	    {"no-helper", no_helper},
	    {"family", family},
	    {"quiet", quiet},
	    {"little-memory", little_memory},
	};

	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);
}
