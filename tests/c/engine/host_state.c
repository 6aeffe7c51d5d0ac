/* Side effects that an engine inside a process must not have on the process's threads, signals, descriptors and
 * files. */
#include "engine.h"
#include "../filter.h"

#include "holdings.h"

#include <setjmp.h>
#include <sys/stat.h>

static char buffer[64];
static int pipes[2];
static struct io_uring ring;

static void begin(void)
{
	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 64, 0);
}

/* A READ is armed, a timeout runs, and no thread has called io_uring_enter(2) for a while. */
static void stay_away_with_requests(void)
{
	static struct __kernel_timespec long_time = {3600, 0};

	submit_read(&ring, pipes[0], buffer, 1, 1);
	io_uring_prep_timeout(next_sqe(&ring), &long_time, 0, 0);
	submit(&ring, 1);
	wait_others_asleep(0);
}

/* Requests that complete in the submitting call, or that the program itself waits for, take no thread. A second
 * thread would make unshare(CLONE_NEWUSER) fail, for one. */
static void threads_are_made_when_needed(void)
{
	int zero = open("/dev/zero", O_RDONLY), threads = entries_of("/proc/self/task");
	pid_t writer;

	/* In the kernel, a worker looks up a name that is not in the dentry cache. */
	CHECK(open("/nowhere", O_RDONLY) == -1);
	begin();
	writer = fork();
	while (writer == 0) {
		usleep(500);
		write_all(pipes[1], "x");
	}
	for (int round = 0; round < 100; round++) {
		struct io_uring_sqe *sqe;

		prepare_nop(&ring, 1);
		submit(&ring, 1);
		take(&ring, 1, 0);
		submit_read(&ring, zero, buffer, 8, 2);
		expect(&ring, 2, 8);
		sqe = next_sqe(&ring);
		io_uring_prep_openat(sqe, AT_FDCWD, "/nowhere", O_RDONLY, 0);
		sqe->user_data = 5;
		submit(&ring, 1);
		expect(&ring, 5, -ENOENT);
		prepare_read(&ring, pipes[0], buffer, 1, 3);
		CHECK(answer(io_uring_submit_and_wait(&ring, 1)) == 1);
		take(&ring, 3, 1);
	}
	CHECK(kill(writer, SIGKILL) == 0 && waitpid(writer, NULL, 0) == writer);
	CHECK(entries_of("/proc/self/task") == threads);
	CHECK(threads == 1);
}

static void *set_group(void *unused)
{
	for (int i = 0; i < 20; i++)
		CHECK(setgid(getgid()) == 0);
	return unused;
}

/* The C library changes the group in each thread by one of its own signals, and waits for all threads. */
static void setgid_reaches_every_thread(void)
{
	struct io_uring_sqe *sqe;
	pthread_t thread;

	begin();
	CHECK(mkfifo("host-state.fifo", 0600) == 0);
	stay_away_with_requests();
	sqe = next_sqe(&ring);
	io_uring_prep_openat(sqe, AT_FDCWD, "host-state.fifo", O_RDONLY, 0);
	sqe->flags |= IOSQE_ASYNC; /* sleeps until there is a writer */
	submit(&ring, 1);
	prepare_read(&ring, pipes[0], buffer, 1, 9)->flags |= IOSQE_ASYNC;
	submit(&ring, 1);
	wait_others_asleep(0);
	alarm(LONG_MS / 1000); /* SIGALRM's default action ends a program that hangs */
	CHECK(pthread_create(&thread, NULL, set_group, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	alarm(0);
	CHECK(unlink("host-state.fifo") == 0);
}

static atomic_int handled;

static void count_signal(int signal)
{
	(void)signal;
	handled++;
}

/* A signal that all of the program's threads block stays pending, since no other thread may take it. */
static void signals_wait_for_the_program(void)
{
	const int signals[] = {SIGUSR1, SIGALRM, SIGCHLD, SIGTERM, SIGRTMAX};
	struct sigaction action = {.sa_handler = count_signal};
	sigset_t all, pending;

	begin();
	sigfillset(&all);
	for (unsigned i = 0; i < 5; i++)
		CHECK(sigaction(signals[i], &action, NULL) == 0);
	stay_away_with_requests();
	prepare_read(&ring, pipes[0], buffer, 1, 9)->flags |= IOSQE_ASYNC;
	submit(&ring, 1);
	CHECK(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
	for (unsigned i = 0; i < 5; i++)
		CHECK(kill(getpid(), signals[i]) == 0);
	usleep(50000); /* time for another thread to take the signals */
	CHECK(handled == 0);
	CHECK(sigpending(&pending) == 0);
	for (unsigned i = 0; i < 5; i++)
		CHECK(sigismember(&pending, signals[i]) == 1);
	CHECK(sigprocmask(SIG_UNBLOCK, &all, NULL) == 0);
	CHECK(handled == 5);
}

static int lowest_number(void)
{
	int number = open("/dev/null", O_RDONLY);

	CHECK(number >= 0 && close(number) == 0);
	return number;
}

/* No descriptor that serves a ring has the number that the program would get next. */
static void the_lowest_number_is_the_programs(void)
{
	int lowest, file = open("/dev/zero", O_RDONLY);
	struct iovec area = {buffer, sizeof(buffer)};

	begin();
	lowest = lowest_number();
	for (int round = 0; round < 50; round++) {
		prepare_read(&ring, pipes[0], buffer, 1, 1);
		prepare_read(&ring, file, buffer, 1, 2)->flags |= IOSQE_ASYNC;
		submit(&ring, 2);
		CHECK(lowest_number() == lowest);
		expect(&ring, 2, 1);
		write_all(pipes[1], "x");
		expect(&ring, 1, 1);
		CHECK(lowest_number() == lowest);
	}
	CHECK(answer(io_uring_register_files(&ring, pipes, 2)) == 0);
	CHECK(answer(io_uring_register_buffers(&ring, &area, 1)) == 0);
	stay_away_with_requests();
	for (int round = 0; round < 100; round++, usleep(100))
		CHECK(lowest_number() == lowest);
}

/* Requests of every kind wait on open file descriptions that the program shares with others. No description is changed
 * for these requests. */
static void flags_of_descriptions_stay(void)
{
	struct io_uring_sqe *sqe;
	int sockets[2], fds[4], before[4];

	begin();
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	memcpy(fds, pipes, sizeof(pipes));
	memcpy(fds + 2, sockets, sizeof(sockets));
	for (int i = 0; i < 4; i++)
		before[i] = fcntl(fds[i], F_GETFL);
	stay_away_with_requests();
	prepare_read(&ring, sockets[0], buffer, 1, 2)->flags |= IOSQE_ASYNC;
	io_uring_prep_recv(next_sqe(&ring), sockets[0], buffer, 1, 0);
	io_uring_prep_poll_add(next_sqe(&ring), sockets[1], POLLIN);
	sqe = next_sqe(&ring);
	io_uring_prep_splice(sqe, pipes[0], -1, sockets[1], -1, 1, 0);
	submit(&ring, 4);
	for (int i = 0; i < 4; i++)
		CHECK(fcntl(fds[i], F_GETFL) == before[i]);
	wait_others_asleep(0);
	for (int i = 0; i < 4; i++)
		CHECK(fcntl(fds[i], F_GETFL) == before[i]);
}

/* A pipe has only the ends that the program has open. A reader learns that the last writer has closed its end, and a
 * writer that the last reader has. It does not matter how long requests have waited on the pipe. */
static void pipes_end(void)
{
	int full[2];
	char page[4096] = {0};

	begin();
	CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
	stay_away_with_requests();
	CHECK(close(pipes[1]) == 0);
	expect(&ring, 1, 0);
	CHECK(pipe(full) == 0 && fcntl(full[1], F_SETPIPE_SZ, 4096) == 4096);
	CHECK(write(full[1], page, sizeof(page)) == sizeof(page));
	io_uring_prep_write(next_sqe(&ring), full[1], page, sizeof(page), 0);
	submit(&ring, 1);
	wait_others_asleep(0);
	CHECK(close(full[0]) == 0);
	expect(&ring, 0, -EPIPE);
}

static atomic_int taken_elsewhere;

/* Reads the data, unless the ring has read it first. */
static void *read_elsewhere(void *fd)
{
	char byte;

	while (read((int)(intptr_t)fd, &byte, 1) == 1)
		taken_elsewhere++;
	return NULL;
}

/* The file becomes ready for the READ, but another reader is faster. The program's thread, which asked for a wait with
 * a timeout, must not sleep in the READ. */
static void losing_to_another_reader(int in, int out)
{
	enum { ROUNDS = 300 };
	int won = 0, pending = 0;
	pthread_t thread;

	init_ring(&ring, 64, 0);
	CHECK(pthread_create(&thread, NULL, read_elsewhere, (void *)(intptr_t)in) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		struct io_uring_cqe *cqe;

		if (!pending)
			submit_read(&ring, in, buffer, 1, 1);
		pending = 1;
		write_all(out, "x");
		if (wait_ms(&ring, &cqe, 1) == 0) {
			take(&ring, 1, 1);
			pending = 0;
			won++;
		}
	}
	wait_others_asleep(0); /* the thread has read what the ring left */
	while (won + taken_elsewhere < ROUNDS) {
		expect(&ring, 1, 1);
		pending = 0;
		won++;
	}
	CHECK(won + taken_elsewhere == ROUNDS);
	/* The requests that still wait, in this process and in the other, end with the writer. */
	CHECK(close(out) == 0);
	if (pending)
		expect(&ring, 1, 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void a_faster_reader_of_a_pipe(void)
{
	CHECK(pipe(pipes) == 0);
	losing_to_another_reader(pipes[0], pipes[1]);
}

/* A FIFO does not support RWF_NOWAIT. */
static void a_faster_reader_of_a_fifo(void)
{
	int in, out;

	CHECK(mkfifo("host-state.fifo", 0600) == 0);
	in = open("host-state.fifo", O_RDONLY | O_NONBLOCK);
	out = open("host-state.fifo", O_WRONLY);
	CHECK(in >= 0 && out >= 0 && unlink("host-state.fifo") == 0);
	CHECK(fcntl(in, F_SETFL, O_RDONLY) == 0);
	losing_to_another_reader(in, out);
}

/* The kernel refuses a mask that cannot be read; the engine must not read it. */
static void bad_masks_are_refused(void)
{
	const sigset_t *nowhere = (const sigset_t *)8;
	struct timespec at_once = {0, 0};
	struct epoll_event event;
	struct pollfd polled;
	int set;

	init_ring(&ring, 8, 0);
	CHECK(pipe(pipes) == 0);
	set = epoll_create1(EPOLL_CLOEXEC);
	polled = (struct pollfd){pipes[0], POLLIN, 0};
	CHECK(set >= 0);
	CHECK(ppoll(&polled, 1, &at_once, nowhere) == -1 && errno == EFAULT);
	CHECK(epoll_pwait(set, &event, 1, 0, nowhere) == -1 && errno == EFAULT);
	CHECK(sigsuspend(nowhere) == -1 && errno == EFAULT);
	polled.fd = ring.ring_fd;
	CHECK(ppoll(&polled, 1, &at_once, nowhere) == -1 && errno == EFAULT);
	prepare_nop(&ring, 1);
	submit(&ring, 1);
	expect(&ring, 1, 0);
}

/* Coroutines switch by jumps all the time. */
static void jumps_make_no_call(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	volatile int jumps = 0;
	sigjmp_buf here;
	pid_t child = fork();

	if (!child) {
		init_ring(&ring, 8, 0);
		prepare_nop(&ring, 1);
		submit(&ring, 1);
		expect(&ring, 1, 0);
		FILTER_CALLS(code, 0);
		sigsetjmp(here, 0);
		if (++jumps < 100)
			siglongjmp(here, 1);
		_exit(0);
	}
	wait_for_child(child);
}

CASES({"jumps", jumps_make_no_call},
      {"bad-masks", bad_masks_are_refused},
      {"threads", threads_are_made_when_needed},
      {"setgid", setgid_reaches_every_thread},
      {"signals", signals_wait_for_the_program},
      {"lowest", the_lowest_number_is_the_programs},
      {"flags", flags_of_descriptions_stay},
      {"ends", pipes_end},
      {"faster-pipe", a_faster_reader_of_a_pipe},
      {"faster-fifo", a_faster_reader_of_a_fifo})
