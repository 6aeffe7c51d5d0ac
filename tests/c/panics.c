/* Two rings have requests of each kind in flight when a panic is forced at one point. Afterwards the program checks
 * both rings.
 *
 * usage: panics POINT ring|nothing plain|deferred|registered|polled
 *
 * The arguments say where the panic happens and what it may break. Every request has its own number as user_data, and
 * the program counts its results. Exits with status 7 when everything is as it should be. */
#include "engine/engine.h"

#include <dlfcn.h>
#include <linux/aio_abi.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/select.h>
#include <ucontext.h>

#define BEYOND 256
#define NEVER_S 1000
#define FIFO_OPEN 40
/* The exit status that the test takes for a skip. */
#define CANNOT 77
#define PAGE 4096

/* The requests in flight on a ring, by user_data. */
enum {
	READ_PIPE = 1,
	POLL_PIPE,
	TIMEOUT,
	COUNTING,
	LINKED_READ,
	BEHIND,
	GUARDED_READ,
	GUARD,
	TRIGGER_READ,
	DRAINED,
	TRIGGERS = 64,
};

struct subject {
	struct io_uring ring;
	int pipes[4][2];
	char fifo[64];
	char buffers[4][8];
	uint64_t of_position[BEYOND]; /* user_data by SQ position */
	unsigned prepared;
	int answers[BEYOND], results[BEYOND];
	int fd;
};

static struct subject subjects[2];
static const char *point, *breaks;
static int deferred, registered, polled, pipes_before, zeroes, direct;
static char *pages;
static struct __kernel_timespec never = {NEVER_S, 0}, soon = {0, 2000000};
static int (*force)(const char *);

static void arm_point(void)
{
	CHECK(force(point) == 0);
}

static int at(const char *name)
{
	return !strcmp(point, name);
}

static int at_one_of(const char *names)
{
	char wanted[64];

	snprintf(wanted, sizeof(wanted), " %s ", point);
	return strstr(names, wanted) != NULL;
}

static struct io_uring_sqe *sqe_of(struct subject *s)
{
	CHECK(s->prepared < BEYOND);
	return next_sqe(&s->ring);
}

static void with(struct subject *s, struct io_uring_sqe *sqe, uint64_t user_data, unsigned flags)
{
	sqe->user_data = user_data;
	sqe->flags |= flags;
	s->of_position[s->prepared++] = user_data;
}

/* Calls io_uring_enter(2). Returns errors as negative numbers, as the kernel does in the register. */
static int enter(struct subject *s, unsigned submit, unsigned wait, unsigned flags)
{
	int answer = syscall(__NR_io_uring_enter, s->fd, submit, wait, flags, NULL, _NSIG / 8);

	return answer < 0 ? -errno : answer;
}

static void reap(struct subject *s)
{
	struct io_uring_cqe *cqe;
	unsigned head, seen = 0;

	io_uring_for_each_cqe(&s->ring, head, cqe) {
		CHECK(cqe->user_data < BEYOND);
		s->answers[cqe->user_data]++;
		s->results[cqe->user_data] = cqe->res;
		seen++;
	}
	io_uring_cq_advance(&s->ring, seen);
}

/* A thread that submits to a polled ring does not learn of the panic at once. Its next call does. */
static int answer_of_submitting(struct subject *s, int answer)
{
	for (int ms = 0; polled && ms < LONG_MS && answer != -EIO; ms++) {
		answer = enter(s, 0, 0, 0);
		usleep(1000);
	}
	return answer;
}

/* Makes the ring. Polled ones share the thread of the first. */
static void make_ring(struct subject *s)
{
	struct io_uring_params params = {.flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 5};

	if (!polled)
		return init_ring(&s->ring, 32, deferred ? DEFERRED : 0);
	if (s != subjects) {
		params.flags |= IORING_SETUP_ATTACH_WQ;
		params.wq_fd = subjects[0].fd;
	}
	CHECK(answer(io_uring_queue_init_params(32, &s->ring, &params)) == 0);
}

static void set_up(struct subject *s, int number, int drains)
{
	struct io_uring_sqe *sqe;

	snprintf(s->fifo, sizeof(s->fifo), "fifo-%d-%d", getpid(), number);
	unlink(s->fifo); /* of a program that was killed, with this number */
	CHECK(mkfifo(s->fifo, 0600) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pipe(s->pipes[i]) == 0);
	make_ring(s);
	s->fd = s->ring.ring_fd;
	if (registered)
		CHECK(io_uring_register_ring_fd(&s->ring) == 1);
	if (at_one_of(" helper-start helper-tick helper-ring ")) {
		/* Only the helper may find the event. */
		sqe = sqe_of(s);
		io_uring_prep_read(sqe, s->pipes[0][0], s->buffers[0], 8, 0);
		with(s, sqe, READ_PIPE, 0);
		submit(&s->ring, 1);
		return;
	}
	sqe = sqe_of(s);
	io_uring_prep_read(sqe, s->pipes[0][0], s->buffers[0], 8, 0);
	with(s, sqe, READ_PIPE, 0);
	sqe = sqe_of(s);
	io_uring_prep_poll_add(sqe, s->pipes[1][0], POLLIN);
	with(s, sqe, POLL_PIPE, 0);
	sqe = sqe_of(s);
	io_uring_prep_timeout(sqe, &never, 0, 0);
	with(s, sqe, TIMEOUT, 0);
	sqe = sqe_of(s);
	io_uring_prep_timeout(sqe, &never, 1000, 0);
	with(s, sqe, COUNTING, 0);
	sqe = sqe_of(s);
	io_uring_prep_read(sqe, s->pipes[1][0], s->buffers[1], 8, 0);
	with(s, sqe, LINKED_READ, IOSQE_IO_LINK);
	sqe = sqe_of(s);
	io_uring_prep_nop(sqe);
	with(s, sqe, BEHIND, 0);
	sqe = sqe_of(s);
	io_uring_prep_read(sqe, s->pipes[2][0], s->buffers[2], 8, 0);
	with(s, sqe, GUARDED_READ, IOSQE_IO_LINK);
	sqe = sqe_of(s);
	io_uring_prep_link_timeout(sqe, &never, 0);
	with(s, sqe, GUARD, 0);
	sqe = sqe_of(s);
	io_uring_prep_openat(sqe, AT_FDCWD, s->fifo, O_RDONLY, 0); /* a worker sleeps in it */
	with(s, sqe, FIFO_OPEN, IOSQE_ASYNC);
	if (drains) {
		sqe = sqe_of(s);
		io_uring_prep_nop(sqe);
		with(s, sqe, DRAINED, IOSQE_IO_DRAIN);
	}
	submit(&s->ring, drains ? 10 : 9);
	for (int ms = 0; polled && ms < LONG_MS && *s->ring.sq.khead != s->prepared; ms++)
		usleep(1000);
	wait_others_asleep(0); /* the worker is in its call, the helper has the ring */
	CHECK(io_uring_cq_ready(&s->ring) == 0);
}

/* A worker's result may have no CQE if the ring was closed during the worker's call, since no thread could reap the
 * CQE. */
static int may_be_missing(struct subject *s, uint64_t user_data)
{
	return at("close-ring") && s == subjects && user_data == FIFO_OPEN;
}

/* Ends the call of the worker that opens the FIFO. */
static void release_worker(struct subject *s)
{
	int fd = open(s->fifo, O_RDWR | O_NONBLOCK);

	CHECK(fd >= 0);
	for (int ms = 0; ms < (may_be_missing(s, FIFO_OPEN) ? 50 : LONG_MS) && !s->answers[FIFO_OPEN]; ms++) {
		reap(s);
		enter(s, 0, 0, IORING_ENTER_GETEVENTS); /* answers -EIO on the broken ring, but moves CQEs out of the backlog */
		usleep(1000);
	}
	CHECK(s->answers[FIFO_OPEN] == 1 || (s->answers[FIFO_OPEN] == 0 && may_be_missing(s, FIFO_OPEN)));
	if (s->answers[FIFO_OPEN] && s->results[FIFO_OPEN] >= 0)
		close(s->results[FIFO_OPEN]);
	close(fd);
	unlink(s->fifo);
}

static void *wait_for_many(void *victim)
{
	/* More CQEs than ever come. */
	return (void *)(intptr_t)enter(victim, 0, 60, IORING_ENTER_GETEVENTS);
}

static void *register_and_exit(void *victim)
{
	struct subject *s = victim;
	struct io_uring_rsrc_update update = {.offset = -1U, .data = s->fd};

	CHECK(syscall(__NR_io_uring_register, s->fd, IORING_REGISTER_RING_FDS, &update, 1) == 1);
	return NULL;
}

static void *unshare_and_exit(void *unused)
{
	CHECK(unshare(CLONE_FILES) == 0);
	return unused;
}

/* Registers the two ends of a pipe and closes them. */
static void give_files_away(struct subject *s)
{
	int ends[2];

	CHECK(pipe(ends) == 0);
	CHECK(answer(io_uring_register_files(&s->ring, ends, 2)) == 0);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* Submits `count` NOPs with these flags. If they link the NOPs, each gets its own place. */
static int submit_nops(struct subject *s, int count, unsigned flags)
{
	for (int i = 0; i < count; i++) {
		struct io_uring_sqe *sqe = sqe_of(s);

		io_uring_prep_nop(sqe);
		with(s, sqe, TRIGGERS + s->prepared, i == count - 1 ? 0 : flags);
	}
	return io_uring_submit(&s->ring);
}

/* Makes a file of pages that the kernel's AIO reads without waiting. Ends the program if that is impossible. */
static void open_direct(void)
{
	struct iovec iovec = {NULL, PAGE};
	aio_context_t context = 0;
	char name[64];

	CHECK(posix_memalign((void **)&pages, PAGE, 4 * PAGE) == 0);
	memset(pages, 'x', 4 * PAGE);
	iovec.iov_base = pages;
	snprintf(name, sizeof(name), "direct-%d", getpid());
	direct = open(name, O_RDWR | O_CREAT | O_DIRECT, 0600);
	unlink(name);
	if (direct < 0 || write(direct, pages, 4 * PAGE) != 4 * PAGE || fsync(direct) ||
	    preadv2(direct, &iovec, 1, 0, RWF_NOWAIT) != PAGE || raw6(__NR_io_setup, 1, (long)&context, 0, 0, 0, 0))
		_exit(CANNOT);
	CHECK(raw6(__NR_io_destroy, context, 0, 0, 0, 0, 0) == 0);
}

/* Three reads by the kernel's AIO. */
static int submit_direct(struct subject *s)
{
	for (int i = 0; i < 3; i++) {
		struct io_uring_sqe *sqe = sqe_of(s);

		io_uring_prep_read(sqe, direct, pages + i * PAGE, PAGE, i * PAGE);
		with(s, sqe, TRIGGERS + s->prepared, 0);
	}
	return io_uring_submit(&s->ring);
}

/* A request for a worker: one of the pool, or one with this thread's identity. */
static int submit_to_worker(struct subject *s)
{
	struct io_uring_sqe *sqe = sqe_of(s);

	if (at("creds-pool-idle"))
		io_uring_prep_openat(sqe, AT_FDCWD, "/dev/null", O_RDONLY, 0);
	else
		io_uring_prep_read(sqe, zeroes, s->buffers[3], 8, 0);
	with(s, sqe, TRIGGERS + s->prepared, IOSQE_ASYNC);
	return io_uring_submit(&s->ring);
}

static int is_ring_point(void)
{
	return !strcmp(breaks, "ring");
}

/* Waits for the helper, which may come late on a busy machine. */
static void wait_for_log(void)
{
	struct stat log;

	for (int ms = 0; ms < LONG_MS && (stat(getenv("ANYRING_LOG"), &log) || !log.st_size); ms += 10)
		usleep(10000);
}

/* Makes the call on ring `s` that leads to the point. Checks the call's answer if the point determines it. */
static void trigger(struct subject *s)
{
	static struct statx status;
	struct io_uring_sqe *sqe;
	int answer = 0;

	if (at("left"))
		give_files_away(s);
	arm_point();
	if (at_one_of(" intake room prep attempt post posted finish-batch sqpoll-ring ")) {
		answer = submit_nops(s, 3, 0);
		CHECK(answer_of_submitting(s, answer) == -EIO);
	} else if (at("calls")) {
		for (int i = 0; i < 3; i++) {
			sqe = sqe_of(s);
			io_uring_prep_statx(sqe, AT_FDCWD, "/", 0, STATX_TYPE, &status);
			with(s, sqe, TRIGGERS + s->prepared, 0);
		}
		CHECK(answer_of_submitting(s, io_uring_submit(&s->ring)) == -EIO);
	} else if (at("left")) {
		/* The ring has the last descriptors of two files. Both files are closed once the ring is no longer in
		 * use. */
		CHECK(io_uring_unregister_files(&s->ring) == -EIO);
	} else if (at("finish")) {
		CHECK(answer_of_submitting(s, submit_nops(s, 3, IOSQE_IO_LINK)) == -EIO);
	} else if (at("backlog")) {
		for (int i = 0; i < 4 && answer != -EIO; i++)
			answer = submit_nops(s, 32, 0);
		CHECK(answer == -EIO);
	} else if (at("arm")) {
		sqe = sqe_of(s);
		io_uring_prep_read(sqe, s->pipes[3][0], s->buffers[3], 8, 0);
		with(s, sqe, TRIGGER_READ, 0);
		CHECK(answer_of_submitting(s, io_uring_submit(&s->ring)) == -EIO);
	} else if (at_one_of(" serve retry helper-tick helper-ring ")) {
		write_all(s->pipes[0][1], "abcd");
		if (!strncmp(point, "helper", 6)) {
			wait_for_log();
			wait_others_asleep(0);
		} else {
			CHECK(enter(s, 0, 60, IORING_ENTER_GETEVENTS) == -EIO);
		}
	} else if (at("timer")) {
		sqe = sqe_of(s);
		io_uring_prep_timeout(sqe, &soon, 0, 0);
		with(s, sqe, TRIGGERS, 0);
		io_uring_submit(&s->ring);
		CHECK(enter(s, 0, 60, IORING_ENTER_GETEVENTS) == -EIO);
	} else if (at("cancel")) {
		sqe = sqe_of(s);
		io_uring_prep_cancel64(sqe, READ_PIPE, 0);
		with(s, sqe, TRIGGERS, 0);
		CHECK(answer_of_submitting(s, io_uring_submit(&s->ring)) == -EIO);
	} else if (at("sleep")) {
		CHECK(enter(s, 0, 60, IORING_ENTER_GETEVENTS) == -EIO);
	} else if (at("stage")) {
		CHECK(answer_of_submitting(s, submit_direct(s)) == -EIO);
	} else if (at("reap")) {
		answer = submit_direct(s);
		for (int ms = 0; ms < LONG_MS && answer != -EIO; ms++) {
			usleep(1000);
			answer = enter(s, 0, 0, IORING_ENTER_GETEVENTS);
		}
		CHECK(answer == -EIO);
	} else if (at("punt")) {
		CHECK(answer_of_submitting(s, submit_to_worker(s)) == -EIO);
	} else if (at_one_of(" worker-before worker-inside worker-after worker-idle creds-pool-idle sqpoll-round ")) {
		uint64_t user_data = TRIGGERS + s->prepared;

		CHECK(submit_to_worker(s) == 1);
		for (int ms = 0; ms < LONG_MS && !s->answers[user_data]; ms++) {
			if (deferred && is_ring_point())
				enter(s, 0, 0, IORING_ENTER_GETEVENTS);
			usleep(1000);
			reap(s);
		}
		CHECK(s->answers[user_data] == 1);
		if (at("creds-pool-idle"))
			close(s->results[user_data]);
		CHECK(s->results[user_data] >= 0 || (s->results[user_data] == -EIO && is_ring_point()));
	} else if (at_one_of(" register register-locked ")) {
		CHECK(io_uring_register_eventfd(&s->ring, s->pipes[0][0]) == -EIO);
	} else if (at("enter")) {
		CHECK((registered ? io_uring_get_events(&s->ring) : enter(s, 0, 0, 0)) == -EIO);
	} else if (at("liburing")) {
		CHECK(io_uring_get_events(&s->ring) == -EIO);
	} else if (at("syscall")) {
		CHECK(enter(s, 0, 0, 0) == 0);
	} else if (at("trap")) {
		CHECK(raw6(__NR_io_uring_enter, s->fd, 0, 0, 0, 0, 0) == 0);
	} else if (at("setup") || at("setup-made")) {
		struct io_uring third;

		CHECK(io_uring_queue_init(8, &third, 0) == -EIO);
		CHECK(io_uring_queue_init(8, &third, 0) == 0);
		io_uring_queue_exit(&third);
	} else if (at("close")) {
		int fd = dup(s->fd); /* a close that ends no ring */

		CHECK(fd >= 0 && close(fd) == 0);
		CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
	} else if (at("close-range")) {
		int fd = dup(s->fd); /* the same */

		CHECK(fd >= 0 && close_range(fd, fd, 0) == 0);
		CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
	} else if (at("dup")) {
		int fd = dup(s->fd);

		CHECK(fd >= 0 && close(fd) == 0);
	} else if (at("fcntl")) {
		CHECK(fcntl(s->fd, F_GETFL) >= 0);
	} else if (at("sendmsg")) {
		struct iovec data = {.iov_base = "x", .iov_len = 1};
		struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
		int ends[2];

		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
		CHECK(sendmsg(ends[0], &message, 0) == 1);
		close(ends[0]);
		close(ends[1]);
	} else if (at("mmap")) {
		void *area = mmap(NULL, 4096, PROT_READ, MAP_SHARED, s->fd, IORING_OFF_SQ_RING);

		CHECK(area != MAP_FAILED && munmap(area, 4096) == 0);
	} else if (at("epoll-ctl") || at("epoll-wait")) {
		struct epoll_event event = {.events = EPOLLIN};
		int set = epoll_create1(0);

		CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, s->fd, &event) == 0);
		CHECK(epoll_wait(set, &event, 1, 0) == 0);
		close(set);
	} else if (at("poll")) {
		struct pollfd polled = {.fd = s->fd, .events = POLLIN};

		CHECK(poll(&polled, 1, 0) == 0);
	} else if (at("select")) {
		struct timeval none = {0, 0};
		fd_set set;

		FD_ZERO(&set);
		FD_SET(s->fd, &set);
		CHECK(select(s->fd + 1, &set, NULL, NULL, &none) == 0);
	} else if (at("sigaction")) {
		struct sigaction old;

		CHECK(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
	} else if (at("sigmask")) {
		sigset_t set, old;

		sigemptyset(&set);
		sigaddset(&set, SIGSEGV);
		CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
		CHECK(sigprocmask(SIG_UNBLOCK, &set, &old) == 0 && sigismember(&old, SIGSEGV));
	} else if (at("context")) {
		ucontext_t here;
		volatile int again = 0;

		CHECK(getcontext(&here) == 0);
		sigaddset(&here.uc_sigmask, SIGSEGV);
		if (!again++)
			setcontext(&here);
		CHECK(again == 2);
	} else if (at("jump")) {
		jmp_buf target;

		if (!setjmp(target))
			longjmp(target, 1);
	} else if (at("dlopen")) {
		CHECK(dlopen("libm.so.6", RTLD_NOW));
	} else if (at("thread-exit")) {
		pthread_t thread;

		CHECK(pthread_create(&thread, NULL, register_and_exit, s) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
	} else if (at("identity")) {
		CHECK(setfsuid(getuid()) == (int)getuid());
	} else if (at("table")) {
		pthread_t thread;

		CHECK(pthread_create(&thread, NULL, unshare_and_exit, NULL) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
	} else if (at("close-ring") || at("teardown")) {
		CHECK(close(s->fd) == 0);
	} else {
		/* The panic comes from the environment, and has happened already. */
		CHECK(at("constructor") || at("helper-start"));
	}
}

/* Every request that was consumed has one CQE. Those that the trigger did not touch have -EIO. */
static void all_have_ended(struct subject *s)
{
	unsigned consumed = *s->ring.sq.khead, missing = 1;

	CHECK(consumed <= s->prepared);
	for (int ms = 0; ms < LONG_MS && missing; ms++) {
		reap(s);
		missing = 0;
		for (unsigned i = 0; i < consumed; i++)
			missing += s->answers[s->of_position[i]] == 0 && !may_be_missing(s, s->of_position[i]);
		if (missing) {
			CHECK(at("close-ring") || enter(s, 0, 0, IORING_ENTER_GETEVENTS) == -EIO);
			usleep(1000);
		}
	}
	for (unsigned i = 0; i < s->prepared; i++) {
		uint64_t user_data = s->of_position[i];

		if (!s->answers[user_data] && may_be_missing(s, user_data))
			continue;
		if (s->answers[user_data] != (i < consumed))
			fprintf(stderr, "request %lu at %u of %u: %d CQEs\n", user_data, i, consumed, s->answers[user_data]);
		CHECK(s->answers[user_data] == (i < consumed));
		if (user_data <= DRAINED && user_data != TRIGGER_READ && user_data != READ_PIPE && i < consumed)
			CHECK(answer(s->results[user_data]) == -EIO);
	}
}

static void later_calls_are_refused(struct subject *s)
{
	struct io_uring_probe *probe = calloc(1, sizeof(*probe) + 4 * sizeof(struct io_uring_probe_op));

	CHECK(enter(s, 1, 0, 0) == -EIO);
	CHECK(enter(s, 0, 1, IORING_ENTER_GETEVENTS) == -EIO);
	CHECK(io_uring_submit_and_wait(&s->ring, 1) == -EIO);
	CHECK(io_uring_register_probe(&s->ring, probe, 4) == -EIO);
	free(probe);
}

/* Checks a ring on which everything still works: the requests in flight, and new ones. */
static void works(struct subject *s)
{
	CHECK(submit_nops(s, 1, 0) == 1);
	write_all(s->pipes[0][1], "abcd");
	for (int ms = 0; ms < LONG_MS && !(s->answers[READ_PIPE] && s->answers[s->of_position[s->prepared - 1]]); ms++) {
		if (deferred)
			enter(s, 0, 0, IORING_ENTER_GETEVENTS);
		reap(s);
		usleep(1000);
	}
	CHECK(s->answers[READ_PIPE] == 1 && s->results[READ_PIPE] >= 4);
	CHECK(s->answers[TIMEOUT] == 0 && s->answers[BEHIND] == 0);
	CHECK(s->results[s->of_position[s->prepared - 1]] == 0);
}

static int count_descriptors(const char *kind)
{
	char path[64], name[256];
	struct dirent *entry;
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;

	CHECK(directory);
	while ((entry = readdir(directory))) {
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/self/fd/%.20s", entry->d_name);
		length = readlink(path, name, sizeof(name) - 1);
		name[length > 0 ? length : 0] = 0;
		count += !strncmp(name, kind, strlen(kind));
	}
	closedir(directory);
	return count;
}

static int count_lines(const char *file, const char *what)
{
	char line[512];
	int count = 0;
	FILE *stream = fopen(file, "r");

	CHECK(stream);
	while (fgets(line, sizeof(line), stream))
		count += strstr(line, what) != NULL;
	fclose(stream);
	return count;
}

static int count_threads(const char *name)
{
	struct dirent *entry;
	DIR *directory = opendir("/proc/self/task");
	int count = 0;

	CHECK(directory);
	while ((entry = readdir(directory))) {
		char path[64], found[32] = "";
		FILE *stream;

		snprintf(path, sizeof(path), "/proc/self/task/%.20s/comm", entry->d_name);
		if (entry->d_name[0] == '.' || !(stream = fopen(path, "r")))
			continue;
		if (fgets(found, sizeof(found), stream))
			count += !strncmp(found, name, strlen(name));
		fclose(stream);
	}
	closedir(directory);
	return count;
}

/* Returns a resource of the rings that was not given back, if there is one. The helper has a poll set while it
 * lives, the process one eventfd for it. */
static const char *what_is_left(void)
{
	static char text[64];
	const struct {
		const char *what;
		int count, most;
	} all[] = {
		{"sockets", count_descriptors("socket:"), 0},
		{"pipes more or fewer", abs(count_descriptors("pipe:") - pipes_before), 0},
		{"files in memory", count_descriptors("/memfd:anyring (deleted)"), 0},
		{"poll sets", count_descriptors("anon_inode:[eventpoll]"), count_threads("anyring-helper")},
		{"eventfds", count_descriptors("anon_inode:[eventfd]"), 1},
		{"mappings", count_lines("/proc/self/maps", "memfd:anyring ("), 0},
		{"mappings of control areas", count_lines("/proc/self/maps", "/dev/zero"), 0},
		{"contexts of AIO", count_lines("/proc/self/maps", "[aio]"), 0},
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i].count > all[i].most) {
			snprintf(text, sizeof(text), "%d %s, not %d", all[i].count, all[i].what, all[i].most);
			return text;
		}
	return NULL;
}

static void nothing_is_left(void)
{
	const char *left;

	for (int ms = 0; ms < LONG_MS && what_is_left(); ms += 10)
		usleep(10000);
	left = what_is_left();
	if (left)
		fprintf(stderr, "left: %s\n", left);
	CHECK(!left);
	for (int ms = 0; ms < LONG_MS && count_threads("anyring-"); ms += 10)
		usleep(10000);
	CHECK(count_threads("anyring-") == 0);
}

int main(int argc, char **argv)
{
	struct subject *victim = &subjects[0], *other = &subjects[1];
	int tell[2], drains, has_open, with_waiter;
	pthread_t waiter;
	pid_t child = 0;
	void *slept;
	char byte;

	CHECK(argc == 4);
	point = argv[1], breaks = argv[2], deferred = !strcmp(argv[3], "deferred");
	registered = !strcmp(argv[3], "registered"), polled = !strcmp(argv[3], "polled");
	force = (int (*)(const char *))dlsym(RTLD_DEFAULT, "anyring_force_panic");
	CHECK(force);
	zeroes = open("/dev/zero", O_RDONLY);
	CHECK(zeroes >= 0);
	pipes_before = count_descriptors("pipe:");
	if (at_one_of(" stage reap "))
		open_direct();
	/* No request after a drained one is issued. So this is only possible if the trigger is no submission, or fails
	 * before it. */
	drains = at_one_of(" serve retry sleep register register-locked enter intake prep close-ring ");
	has_open = !at_one_of(" helper-start helper-tick helper-ring ");
	set_up(victim, 0, drains);
	set_up(other, 1, 0);
	wait_others_asleep(0);

	with_waiter = is_ring_point() && !deferred && !at("backlog") && strncmp(point, "helper", 6) && !at("close-ring");
	if (with_waiter) {
		CHECK(pthread_create(&waiter, NULL, wait_for_many, victim) == 0);
		wait_others_asleep(0);
	}
	if (is_ring_point() && !at("close-ring")) {
		CHECK(pipe(tell) == 0);
		child = fork();
		CHECK(child >= 0);
		if (!child) {
			close(tell[1]);
			CHECK(read(tell[0], &byte, 1) == 0);
			CHECK(enter(victim, 0, 0, 0) == -EIO);
			_exit(0);
		}
		close(tell[0]);
	}
	trigger(victim);
	if (is_ring_point()) {
		if (with_waiter) {
			CHECK(pthread_join(waiter, &slept) == 0);
			CHECK((intptr_t)slept == -EIO);
		}
		if (!at("close-ring"))
			CHECK(enter(victim, 0, 0, 0) == -EIO);
		if (has_open)
			release_worker(victim);
		all_have_ended(victim);
		if (!at("close-ring"))
			later_calls_are_refused(victim);
		if (child) {
			close(tell[1]);
			wait_for_child(child);
		}
	} else if (at("teardown")) {
		int fd = open(victim->fifo, O_RDWR | O_NONBLOCK);

		CHECK(fd >= 0);
		wait_others_asleep(0);
		close(fd);
		unlink(victim->fifo);
	} else {
		works(victim);
		if (has_open)
			release_worker(victim);
	}
	works(other);
	if (has_open)
		release_worker(other);
	for (int i = 0; i < 2; i++) {
		unlink(subjects[i].fifo);
		if (i == 0 && at_one_of(" close-ring teardown "))
			subjects[i].ring.ring_fd = subjects[i].ring.enter_ring_fd = -1;
		io_uring_queue_exit(&subjects[i].ring);
		for (int j = 0; j < 4; j++)
			close(subjects[i].pipes[j][0]), close(subjects[i].pipes[j][1]);
	}
	nothing_is_left();
	return 7;
}
