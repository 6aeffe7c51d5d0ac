/* Linux AIO on descriptors that are used again and again, while the engine notices every close. Cached state of a
 * descriptor saves system calls, but must not hide an event. */
#include "engine.h"
#include "../filter.h"

#include <dlfcn.h>
#include <linux/aio_abi.h>

#define MANY 8 /* enough reads for the engine to postpone the next first attempt */

static aio_context_t context;
static char byte;

static void setup(void)
{
	CHECK(syscall(SYS_io_setup, 16, &context) == 0);
}

static struct iocb poll_of(int fd)
{
	return (struct iocb){.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = fd, .aio_buf = POLLIN};
}

static struct iocb read_of(int fd)
{
	return (struct iocb){
		.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd, .aio_buf = (uintptr_t)&byte, .aio_nbytes = 1};
}

static long ask(struct iocb *iocb)
{
	return syscall(SYS_io_submit, context, 1, &iocb);
}

/* Waits for an event of this request: its result. */
static long result_of(const struct iocb *iocb)
{
	struct timespec timeout = {LONG_MS / 1000, 0};
	struct io_event event;

	CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, &timeout) == 1);
	CHECK(event.obj == (uintptr_t)iocb);
	return event.res;
}

static void poll_often(const int ends[2])
{
	struct iocb request = poll_of(ends[0]);

	for (int i = 0; i < MANY; i++) {
		CHECK(ask(&request) == 1);
		write_all(ends[1], "x");
		CHECK(result_of(&request) & POLLIN);
		CHECK(read(ends[0], &byte, 1) == 1);
	}
}

/* A write comes while a read waits for it: in io_submit with the kernel's AIO, in io_getevents with anyring. */
static void *write_late(void *end)
{
	wait_asleep(getpid());
	write_all(*(int *)end, "x");
	return NULL;
}

static void read_often(const int ends[2])
{
	struct iocb request = read_of(ends[0]);

	for (int i = 0; i < MANY; i++) {
		pthread_t writer;

		CHECK(pthread_create(&writer, NULL, write_late, (void *)&ends[1]) == 0);
		CHECK(ask(&request) == 1 && result_of(&request) == 1);
		CHECK(pthread_join(writer, NULL) == 0);
	}
}

/* The program reads one byte of two. The next poll must find the other, although it causes no event. */
static void leave_a_byte(const int ends[2])
{
	struct iocb request = poll_of(ends[0]);

	poll_often(ends);
	CHECK(ask(&request) == 1);
	write_all(ends[1], "xy");
	CHECK(result_of(&request) & POLLIN);
	CHECK(read(ends[0], &byte, 1) == 1);
}

static void a_poll_finds_what_is_left(void)
{
	struct iocb request;
	int ends[2];

	setup();
	CHECK(pipe(ends) == 0);
	leave_a_byte(ends);
	request = poll_of(ends[0]);
	CHECK(ask(&request) == 1);
	CHECK(result_of(&request) & POLLIN);
}

static void a_poll_finds_what_is_left_beside_others(void)
{
	struct iocb rare, often;
	int left[2], busy[2];

	setup();
	CHECK(pipe(left) == 0 && pipe(busy) == 0);
	leave_a_byte(left);
	rare = poll_of(left[0]);
	often = poll_of(busy[0]);
	CHECK(ask(&rare) == 1);
	for (int turn = 0;; turn++) {
		struct io_event events[2];
		long count;

		CHECK(turn < 2000);
		CHECK(ask(&often) == 1);
		write_all(busy[1], "x");
		count = syscall(SYS_io_getevents, context, 1, 2, events, NULL);
		CHECK(count > 0);
		if (events[0].obj == (uintptr_t)&rare || (count == 2 && events[1].obj == (uintptr_t)&rare))
			return;
		CHECK(read(busy[0], &byte, 1) == 1);
	}
}

/* One descriptor number names several files in turn. */
static void what_is_known_goes_with_the_file(void)
{
	int ends[2], other[2], file = open("/proc/self/exe", O_RDONLY);
	struct iocb request;

	setup();
	CHECK(file >= 0 && pipe(ends) == 0 && pipe(other) == 0);
	poll_often(ends);
	read_often(ends);
	write_all(other[1], "x");
	CHECK(dup2(other[0], ends[0]) == ends[0]);
	request = poll_of(ends[0]);
	CHECK(ask(&request) == 1 && result_of(&request) & POLLIN);
	poll_often(other);
	CHECK(dup2(file, ends[0]) == ends[0]);
	request.aio_buf = POLLPRI;
	CHECK(ask(&request) == -1 && errno == EINVAL);
	request = read_of(ends[0]);
	CHECK(ask(&request) == 1 && result_of(&request) == 1 && byte == 0x7f);
	CHECK(dup2(ends[1], ends[0]) == ends[0]);
	CHECK(ask(&request) == -1 && errno == EBADF);
	CHECK(close(ends[0]) == 0);
	CHECK(ask(&request) == -1 && errno == EBADF);
}

/* O_NONBLOCK takes effect from the moment at which it is set. */
static void a_description_turned_nonblocking_answers_at_once(void)
{
	struct iocb request;
	int ends[2];

	setup();
	CHECK(pipe(ends) == 0);
	read_often(ends);
	request = read_of(ends[0]);
	CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	for (int i = 0; i < MANY; i++)
		CHECK(ask(&request) == 1 && result_of(&request) == -EAGAIN);
	write_all(ends[1], "x");
	CHECK(ask(&request) == 1 && result_of(&request) == 1);
}

/* From now on a filter kills the thread for a call that queries a descriptor or watches it. */
static void ask_nothing(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 6, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fstat, 5, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_newfstatat, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_statx, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	static char buffer[BUFSIZ];

	CHECK(setvbuf(stdout, buffer, _IOFBF, sizeof(buffer)) == 0); /* else the first output asks what stdout is */
	FILTER_CALLS(filter, 0);
}

static void polls_ask_nothing(void)
{
	int ends[2];

	setup();
	CHECK(pipe(ends) == 0);
	poll_often(ends);
	ask_nothing();
	poll_often(ends);
}

/* A liburing that is loaded later may close descriptors without calling the wrappers. It closes only rings. */
static void polls_ask_nothing_beside_liburing(void)
{
	CHECK(!dlsym(RTLD_DEFAULT, "io_uring_queue_init") || getenv("LD_PRELOAD"));
	CHECK(dlopen("liburing.so.2", RTLD_NOW | RTLD_GLOBAL));
	polls_ask_nothing();
}

static void reads_ask_nothing(void)
{
	struct iocb request;
	int ends[2];

	setup();
	CHECK(pipe(ends) == 0);
	read_often(ends);
	request = read_of(ends[0]);
	ask_nothing();
	for (int i = 0; i < MANY; i++) {
		write_all(ends[1], "x"); /* before the read, for which the kernel's io_submit would wait */
		CHECK(ask(&request) == 1 && result_of(&request) == 1);
	}
}

CASES({"left", a_poll_finds_what_is_left},
      {"left-beside-others", a_poll_finds_what_is_left_beside_others},
      {"reused", what_is_known_goes_with_the_file},
      {"nonblocking", a_description_turned_nonblocking_answers_at_once},
      {"polls", polls_ask_nothing},
      {"polls-beside-liburing", polls_ask_nothing_beside_liburing},
      {"reads", reads_ask_nothing})
