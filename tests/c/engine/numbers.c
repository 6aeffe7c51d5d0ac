/* A request works on the file that its descriptor named when it was submitted, even if the number is reused. This
 * holds, too, if the process was stopped while a thread slept in the request's call. In the kernel such a stop may end
 * the call with -EINTR. */
#include "engine.h"

#include <sys/stat.h>

static struct io_uring ring;

/* Whether every thread of the process is stopped. */
static int is_stopped(pid_t process)
{
	char path[512], line[256], state;
	struct dirent *task;
	int stopped = 1;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)process);
	tasks = opendir(path);
	CHECK(tasks);
	while ((task = readdir(tasks))) {
		FILE *status;

		if (!atoi(task->d_name))
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/status", (int)process, task->d_name);
		status = fopen(path, "r");
		while (status && fgets(line, sizeof(line), status))
			if (sscanf(line, "State: %c", &state) == 1)
				stopped = stopped && (state == 'T' || state == 'Z');
		if (status)
			fclose(status);
	}
	closedir(tasks);
	return stopped;
}

/* Another process stops this one and has it go on. */
static void stop_and_go_on(void)
{
	pid_t process = getpid(), child = fork();

	if (child == 0) {
		CHECK(kill(process, SIGSTOP) == 0);
		for (int ms = 0; !is_stopped(process); ms++) {
			CHECK(ms < LONG_MS);
			usleep(1000);
		}
		CHECK(kill(process, SIGCONT) == 0);
		_exit(0);
	}
	wait_for_child(child);
	wait_others_asleep(0);
}

static void close_number(int number, int unseen)
{
	if (unseen)
		CHECK(raw6(SYS_close, number, 0, 0, 0, 0, 0) == 0);
	else
		CHECK(close(number) == 0);
}

/* The request's CQE, if a stop has ended it. */
static int has_been_interrupted(void)
{
	struct io_uring_cqe *cqe;

	if (io_uring_peek_cqe(&ring, &cqe) != 0)
		return 0;
	CHECK(answer(cqe->res) == -EINTR || cqe->res == -512 /* ERESTARTSYS, of OPENAT */);
	io_uring_cqe_seen(&ring, cqe);
	return 1;
}

static uint64_t take_count(int eventfd)
{
	uint64_t count;

	CHECK(read(eventfd, &count, sizeof(count)) == sizeof(count));
	return count;
}

/* A write to an eventfd that has no room for such a large number. It sleeps although poll(2) reports room. */
static void a_write_sleeps(int unseen)
{
	uint64_t much = UINT64_MAX - 1, count;
	int number = eventfd(5, 0), kept = fcntl(number, F_DUPFD, 100), other;

	CHECK(number >= 0 && kept >= 0);
	init_ring(&ring, 8, 0);
	io_uring_prep_write(next_sqe(&ring), number, &much, sizeof(much), 0);
	submit(&ring, 1);
	wait_others_asleep(0);
	close_number(number, unseen);
	other = eventfd(0, EFD_NONBLOCK);
	CHECK(other == number);
	stop_and_go_on();
	CHECK(read(other, &count, sizeof(count)) == -1 && errno == EAGAIN);
	if (!has_been_interrupted()) {
		CHECK(take_count(kept) == 5);
		expect(&ring, 0, sizeof(much));
		CHECK(take_count(kept) == much);
	}
	CHECK(read(other, &count, sizeof(count)) == -1 && errno == EAGAIN);
}

static void a_write_sleeps_on_a_closed_number(void)
{
	a_write_sleeps(0);
}

static void a_write_sleeps_on_a_number_closed_unseen(void)
{
	a_write_sleeps(1);
}

static int new_socket(void)
{
	int new = socket(AF_UNIX, SOCK_STREAM, 0);

	CHECK(new >= 0);
	return new;
}

/* A connect waits for room in a listener's queue. */
static void a_connect_sleeps(int unseen)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX}, peer;
	socklen_t length = sizeof(sa_family_t), size = sizeof(peer);
	int listener = new_socket(), first = new_socket(), number, kept, other;

	CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 0) == 0);
	length = sizeof(address);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	CHECK(connect(first, (struct sockaddr *)&address, length) == 0);
	init_ring(&ring, 8, 0);
	number = new_socket();
	kept = fcntl(number, F_DUPFD, 100);
	io_uring_prep_connect(next_sqe(&ring), number, (struct sockaddr *)&address, length);
	submit(&ring, 1);
	wait_others_asleep(0);
	close_number(number, unseen);
	other = new_socket();
	CHECK(other == number);
	stop_and_go_on();
	if (!has_been_interrupted()) {
		CHECK(accept(listener, NULL, NULL) >= 0);
		expect(&ring, 0, 0);
		CHECK(getpeername(kept, (struct sockaddr *)&peer, &size) == 0);
	}
	CHECK(getpeername(other, (struct sockaddr *)&peer, &size) == -1 && errno == ENOTCONN);
}

static void a_connect_sleeps_on_a_closed_number(void)
{
	a_connect_sleeps(0);
}

static void a_connect_sleeps_on_a_number_closed_unseen(void)
{
	a_connect_sleeps(1);
}

/* A FIFO is opened, by the number of its directory. */
static void an_open_sleeps(int unseen)
{
	char wanted[] = "wanted-XXXXXX", wrong[] = "wrong-XXXXXX", path[64];
	int number, other, writer;
	struct io_uring_cqe *cqe;

	CHECK(mkdtemp(wanted) && mkdtemp(wrong));
	snprintf(path, sizeof(path), "%s/fifo", wrong);
	CHECK(mkfifo(path, 0600) == 0);
	snprintf(path, sizeof(path), "%s/fifo", wanted);
	CHECK(mkfifo(path, 0600) == 0);
	number = open(wanted, O_RDONLY | O_DIRECTORY);
	CHECK(number >= 0);
	init_ring(&ring, 8, 0);
	io_uring_prep_openat(next_sqe(&ring), number, "fifo", O_RDONLY, 0);
	ring.sq.sqes[0].flags |= IOSQE_ASYNC;
	submit(&ring, 1);
	wait_others_asleep(0);
	close_number(number, unseen);
	other = open(wrong, O_RDONLY | O_DIRECTORY);
	CHECK(other == number);
	stop_and_go_on();
	if (!has_been_interrupted()) {
		writer = open(path, O_WRONLY | O_NONBLOCK); /* ENXIO without a reader */
		CHECK(writer >= 0);
		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0 && cqe->res >= 0);
	}
}

static void an_open_sleeps_below_a_closed_number(void)
{
	an_open_sleeps(0);
}

static void an_open_sleeps_below_a_number_closed_unseen(void)
{
	an_open_sleeps(1);
}

/* Whether another process finds a record lock on the file. */
static int is_locked(const char *name)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		struct flock lock = {.l_type = F_WRLCK};

		CHECK(fcntl(open(name, O_RDWR), F_GETLK, &lock) == 0);
		_exit(lock.l_type == F_UNLCK ? 2 : 3);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) >= 2);
	return WEXITSTATUS(status) == 3;
}

/* Whatever a worker does to a file, the process keeps its record locks on it. */
static void locks_stay(void)
{
	char name[] = "locked-XXXXXX", fifo[] = "locked-fifo-XXXXXX", buffer[8];
	struct flock lock = {.l_type = F_WRLCK};
	int file = mkstemp(name), pipes[2], both;

	CHECK(mkdtemp(fifo) && rmdir(fifo) == 0 && mkfifo(fifo, 0600) == 0);
	both = open(fifo, O_RDWR);
	CHECK(file >= 0 && both >= 0 && pipe(pipes) == 0);
	CHECK(fcntl(file, F_SETLK, &lock) == 0 && fcntl(both, F_SETLK, &lock) == 0);
	init_ring(&ring, 8, 0);
	io_uring_prep_write(next_sqe(&ring), file, "abcdefgh", 8, 0);
	ring.sq.sqes[0].flags |= IOSQE_ASYNC;
	submit(&ring, 1);
	expect(&ring, 0, 8);
	for (int i = 0; i < 3; i++) {
		prepare_read(&ring, file, buffer, 8, 1)->flags |= IOSQE_ASYNC;
		submit(&ring, 1);
		expect(&ring, 1, 8);
		io_uring_prep_fsync(next_sqe(&ring), file, 0);
		submit(&ring, 1);
		expect(&ring, 0, 0);
		io_uring_prep_splice(next_sqe(&ring), file, 0, pipes[1], -1, 4, 0);
		submit(&ring, 1);
		expect(&ring, 0, 4);
		io_uring_prep_splice(next_sqe(&ring), pipes[0], -1, both, -1, 4, 0);
		submit(&ring, 1);
		expect(&ring, 0, 4);
	}
	CHECK(is_locked(name) && is_locked(fifo));
	CHECK(unlink(name) == 0 && unlink(fifo) == 0);
}

/* The input of a splice that waits for its output. Before there is room, the input's number names another file. */
static void a_splice_waits_for_its_output(void)
{
	char name[] = "input-XXXXXX", full[65536] = {0}, text[3];
	int file = mkstemp(name), pipes[2], other;

	CHECK(file >= 0 && unlink(name) == 0 && pipe(pipes) == 0);
	write_all(file, "old");
	CHECK(write(pipes[1], full, sizeof(full)) == sizeof(full));
	init_ring(&ring, 8, 0);
	io_uring_prep_splice(next_sqe(&ring), file, 0, pipes[1], -1, 3, 0);
	submit(&ring, 1);
	wait_others_asleep(0);
	CHECK(close(file) == 0);
	strcpy(name, "input-XXXXXX");
	other = mkstemp(name);
	CHECK(other == file && unlink(name) == 0);
	write_all(other, "new");
	for (size_t left = sizeof(full); left; left -= 4096)
		CHECK(read(pipes[0], full, 4096) == 4096);
	expect(&ring, 0, 3);
	CHECK(read(pipes[0], text, 3) == 3 && !memcmp(text, "old", 3));
}

/* A child that makes no call keeps none of the files open on which the parent's requests work. */
static void a_child_has_no_files_of_requests(void)
{
	int pipes[2], control[2];
	char byte;
	pid_t child;

	CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
	CHECK(pipe(pipes) == 0 && pipe(control) == 0);
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], &byte, 1, 1);
	CHECK(close(pipes[0]) == 0);
	child = fork();
	if (child == 0) {
		CHECK(close(pipes[1]) == 0 && close(control[1]) == 0);
		CHECK(read(control[0], &byte, 1) == 0);
		_exit(0);
	}
	write_all(pipes[1], "x");
	expect(&ring, 1, 1);
	for (int ms = 0; write(pipes[1], "y", 1) == 1; ms++) {
		CHECK(ms < 10000);
		usleep(1000);
	}
	CHECK(errno == EPIPE);
	CHECK(close(control[1]) == 0);
	wait_for_child(child);
}

static int busy_pipe[2];

/* Requests whose file the engine has under a number of its own, for a moment each. */
static void *makes_requests(void *end)
{
	static struct io_uring busy;
	char byte;

	init_ring(&busy, 8, 0);
	while (!atomic_load((atomic_int *)end)) {
		int number = dup(busy_pipe[0]);

		submit_read(&busy, number, &byte, 1, 1);
		CHECK(close(number) == 0);
		write_all(busy_pipe[1], "x");
		expect(&busy, 1, 1);
	}
	return NULL;
}

/* Counts the numbers of that pipe that the program did not give it. */
static int numbers_of_busy_pipe(void)
{
	struct stat pipe, other;
	int count = 0;

	CHECK(fstat(busy_pipe[0], &pipe) == 0);
	for (int fd = 200; fd < 4096; fd++)
		count += fstat(fd, &other) == 0 && other.st_dev == pipe.st_dev && other.st_ino == pipe.st_ino;
	return count;
}

/* Checks children that are forked while the engine is about to open, or to close, such a number. */
static void children_have_no_files_of_requests(pid_t (*forks)(void))
{
	atomic_int end = 0;
	pthread_t thread;

	CHECK(pipe(busy_pipe) == 0);
	CHECK(pthread_create(&thread, NULL, makes_requests, &end) == 0);
	for (int i = 0; i < 300; i++) {
		pid_t child = forks();

		if (child == 0)
			_exit(numbers_of_busy_pipe());
		wait_for_child(child);
	}
	atomic_store(&end, 1);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void children_forked_at_any_moment(void)
{
	children_have_no_files_of_requests(fork);
}

static void children_forked_without_handlers(void)
{
	children_have_no_files_of_requests(_Fork);
}

/* A read of `number` waits for data from `writer`. When the data comes, the number names /dev/zero. */
static void a_read_waits(int number, int writer, unsigned flags)
{
	char byte = 0;
	int other;

	CHECK(number >= 0 && writer >= 0);
	prepare_read(&ring, number, &byte, 1, 1)->flags |= flags;
	submit(&ring, 1);
	wait_others_asleep(0);
	close_number(number, 0);
	other = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	CHECK(other == number);
	stop_and_go_on();
	if (!has_been_interrupted()) {
		write_all(writer, "x\n");
		expect(&ring, 1, 1);
		CHECK(byte == 'x');
	}
	CHECK(close(other) == 0 && close(writer) == 0);
}

static void reads_wait(unsigned flags)
{
	char name[] = "/tmp/anyring-numbers-XXXXXX", fifo[sizeof(name) + 5];
	int sockets[2], terminal;

	init_ring(&ring, 8, 0);
	CHECK(mkdtemp(name));
	snprintf(fifo, sizeof(fifo), "%s/fifo", name);
	CHECK(mkfifo(fifo, 0600) == 0);
	terminal = open(fifo, O_RDWR);
	a_read_waits(open(fifo, O_RDWR), terminal, flags);
	CHECK(unlink(fifo) == 0 && rmdir(name) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	a_read_waits(sockets[0], sockets[1], flags);
	terminal = posix_openpt(O_RDWR | O_NOCTTY);
	CHECK(grantpt(terminal) == 0 && unlockpt(terminal) == 0);
	a_read_waits(open(ptsname(terminal), O_RDWR | O_NOCTTY), terminal, flags);
}

static void reads_wait_in_the_poll_set(void)
{
	reads_wait(0);
}

static void reads_wait_in_workers(void)
{
	reads_wait(IOSQE_ASYNC);
}

CASES({"reads", reads_wait_in_the_poll_set}, {"reads-async", reads_wait_in_workers},
      {"write", a_write_sleeps_on_a_closed_number}, {"write-unseen", a_write_sleeps_on_a_number_closed_unseen},
      {"connect", a_connect_sleeps_on_a_closed_number},
      {"connect-unseen", a_connect_sleeps_on_a_number_closed_unseen},
      {"open", an_open_sleeps_below_a_closed_number}, {"open-unseen", an_open_sleeps_below_a_number_closed_unseen},
      {"locks", locks_stay}, {"splice", a_splice_waits_for_its_output}, {"fork", a_child_has_no_files_of_requests},
      {"forks", children_forked_at_any_moment}, {"bare-forks", children_forked_without_handlers})
