/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Three programs in one that do what a library in their process may not expect: argv[1] says which.
 *
 *   fclose   closes and reuses descriptors through the C library's streams while requests are armed on them
 *   handler  submits in a signal handler
 *   setgid   changes the group of all its threads from one of them, while others sleep on its behalf
 *
 * Each checks its results, which are the same on the kernel's io_uring. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);              \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static struct io_uring ring;

static void submit_read(int fd, char *into, uint64_t user_data)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

	io_uring_prep_read(sqe, fd, into, 1, 0);
	sqe->user_data = user_data;
	CHECK(io_uring_submit(&ring) == 1);
}

/* Waits for the completion with this user_data, which comes next; answers its result. */
static int take(uint64_t user_data)
{
	struct io_uring_cqe *cqe;
	int answer;

	do
		answer = io_uring_wait_cqe(&ring, &cqe);
	while (answer == -EINTR);
	CHECK(answer == 0 && cqe->user_data == user_data);
	answer = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return answer;
}

static void expect(uint64_t user_data, int res)
{
	CHECK(take(user_data) == res);
}

struct stream {
	FILE *file;
	int from, to;
	char got;
};

static void open_stream(struct stream *stream)
{
	int ends[2];

	CHECK(pipe(ends) == 0);
	*stream = (struct stream){fdopen(ends[0], "r"), ends[0], ends[1], 0};
	CHECK(stream->file);
}

/* The first READ still waits for the pipe that its number named, although the number has since been given to another
 * pipe. */
static void reuse_descriptors(void)
{
	enum { ROUNDS = 500 };

	for (int round = 0; round < ROUNDS; round++) {
		struct stream old, new;
		int spare;

		open_stream(&old);
		submit_read(old.from, &old.got, 1);
		if (round % 2)
			usleep(100);
		if (round % 3 == 2) {
			CHECK(freopen("/dev/null", "r", old.file) && fileno(old.file) == old.from);
			CHECK(fclose(old.file) == 0);
		} else {
			CHECK(fclose(old.file) == 0);
		}
		spare = dup(old.to); /* the lowest number, so the next pipe gets another one for its writing end */
		CHECK(spare == old.from && close(spare) == 0);
		open_stream(&new);
		CHECK(new.from == old.from);
		submit_read(new.from, &new.got, 2);
		CHECK(write(new.to, "n", 1) == 1);
		expect(2, 1);
		CHECK(new.got == 'n' && old.got == 0);
		CHECK(write(old.to, "o", 1) == 1);
		expect(1, 1);
		CHECK(old.got == 'o');
		CHECK(fclose(new.file) == 0 && close(new.to) == 0 && close(old.to) == 0);
	}
	printf("%d descriptors reused\n", ROUNDS);
}

enum { SUBMISSIONS = 300 };
static volatile sig_atomic_t submitted;

static void submit_in_handler(int signal)
{
	int saved = errno;
	struct io_uring_sqe *sqe = submitted < SUBMISSIONS ? io_uring_get_sqe(&ring) : NULL;

	(void)signal;
	if (sqe) {
		io_uring_prep_nop(sqe);
		sqe->user_data = 1000 + submitted++;
		CHECK(io_uring_submit(&ring) >= 0);
	}
	errno = saved;
}

/* Signals come while the thread is in enter for the same ring, asleep or not, and between its calls. */
static void submit_by_signals(void)
{
	struct sigaction action = {.sa_handler = submit_in_handler, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
	char seen[SUBMISSIONS] = {0}, got;
	int ends[2];

	CHECK(pipe(ends) == 0);
	submit_read(ends[0], &got, 1); /* so that a wait has more to wait for than what handlers submit */
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (int taken = 0; taken < SUBMISSIONS; taken++) {
		struct io_uring_cqe *cqe;
		int answer;

		do
			answer = io_uring_wait_cqe(&ring, &cqe);
		while (answer == -EINTR);
		CHECK(answer == 0 && cqe->res == 0);
		CHECK(cqe->user_data >= 1000 && cqe->user_data < 1000 + SUBMISSIONS);
		CHECK(!seen[cqe->user_data - 1000]++);
		io_uring_cqe_seen(&ring, cqe);
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	CHECK(write(ends[1], "x", 1) == 1);
	expect(1, 1);
	printf("%d submissions by signals\n", SUBMISSIONS);
}

static int changes;

static void *change_group(void *unused)
{
	gid_t group = geteuid() == 0 ? 65534 : getgid();

	for (; changes < 100; changes++)
		CHECK(setgid(group) == 0);
	return unused;
}

/* Every thread has the group, those included that somebody else made in this process. The kernel's own workers are no
 * threads that a C library knows of. */
static void all_threads_have(gid_t group)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;

	if (!tasks && errno == ENOENT) {
		puts("no /proc here: its threads were not looked at");
		return;
	}
	CHECK(tasks);
	while ((task = readdir(tasks))) {
		char path[300], line[128], name[32] = "";
		unsigned real, effective;
		FILE *status;

		snprintf(path, sizeof(path), "/proc/self/task/%s/status", task->d_name);
		if (task->d_name[0] == '.' || !(status = fopen(path, "r")))
			continue;
		while (fgets(line, sizeof(line), status)) {
			sscanf(line, "Name: %31s", name);
			if (sscanf(line, "Gid: %u %u", &real, &effective) == 2 && strncmp(name, "iou-", 4) != 0)
				CHECK(real == group && effective == group);
		}
		fclose(status);
	}
	closedir(tasks);
}

/* A READ is armed while the program stays away, and an open waits for the other end of a FIFO. */
static void change_group_of_all(void)
{
	struct io_uring_sqe *sqe;
	pthread_t thread;
	char got;
	int ends[2], writer;

	alarm(60);
	CHECK(pipe(ends) == 0);
	CHECK(mkfifo("strangers.fifo", 0600) == 0);
	submit_read(ends[0], &got, 1);
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_openat(sqe, AT_FDCWD, "strangers.fifo", O_RDONLY | O_CLOEXEC, 0);
	sqe->flags |= IOSQE_ASYNC;
	sqe->user_data = 2;
	CHECK(io_uring_submit(&ring) == 1);
	usleep(50000); /* time for a worker to begin its open, which nothing reports to this program */
	CHECK(pthread_create(&thread, NULL, change_group, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	all_threads_have(geteuid() == 0 ? 65534 : getgid());
	writer = open("strangers.fifo", O_WRONLY); /* waits for the open in the ring */
	CHECK(writer >= 0 && unlink("strangers.fifo") == 0);
	CHECK(take(2) >= 0);
	CHECK(write(ends[1], "x", 1) == 1);
	expect(1, 1);
	printf("%d changes of the group\n", changes);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} strangers[] = {{"fclose", reuse_descriptors}, {"handler", submit_by_signals}, {"setgid", change_group_of_all}};

	CHECK(io_uring_queue_init(512, &ring, 0) == 0);
	for (int i = 0; i < 3; i++)
		if (argc == 2 && !strcmp(argv[1], strangers[i].name)) {
			strangers[i].run();
			io_uring_queue_exit(&ring);
			return 0;
		}
	fprintf(stderr, "usage: strangers fclose|handler|setgid\n");
	return 2;
}
