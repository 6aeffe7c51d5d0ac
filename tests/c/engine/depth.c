/* The stack that each call takes from its caller. The kernel takes next to nothing, anyring at most MOST bytes. */
#include "engine.h"

#include <linux/aio_abi.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#define PAINT 0x5aa5c33c96690ff0UL

enum { MOST = 4096, PAINTED = 96 * 1024 };

static struct io_uring ring;
static struct ring raw;
static struct iocb iocb, *iocbs = &iocb;
static struct io_event event;
static aio_context_t context;
static char bytes[4096];
static int ends[2], file, epoll, sockets[2];

/* Returns the distance of the lowest byte that `call` writes below this function's frame. */
static __attribute__((noinline)) long depth_of(void (*call)(void))
{
	volatile uint64_t *top, *at;

	__asm__ volatile("mov %%rsp, %0" : "=r"(top)); /* below this address only later calls use the stack */
	for (at = top - PAINTED / sizeof(*at); at < top; at++)
		*at = PAINT;
	call();
	for (at = top - PAINTED / sizeof(*at); at < top && *at == PAINT; at++)
		;
	return (char *)top - (char *)at;
}

static void setup(void)
{
	CHECK(ring_open(&raw, 8) == 0);
}

static void setup_by_liburing(void)
{
	init_ring(&ring, 8, 0);
}

static void map(void)
{
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, ring.ring_fd, IORING_OFF_SQ_RING) != MAP_FAILED);
}

static void finish(void)
{
	struct io_uring_cqe *cqe;

	CHECK(answer(io_uring_submit_and_wait(&ring, 1)) == 1);
	CHECK(io_uring_peek_cqe(&ring, &cqe) == 0 && answer(cqe->res) >= 0);
	io_uring_cqe_seen(&ring, cqe);
}

static void nop(void)
{
	io_uring_prep_nop(next_sqe(&ring));
	finish();
}

static void ready_read(void)
{
	write_all(ends[1], "x");
	prepare_read(&ring, ends[0], bytes, 1, 1);
	finish();
}

static void waiting_read(void)
{
	struct __kernel_timespec timeout = {.tv_nsec = 1000000};
	struct io_uring_cqe *cqe;

	prepare_read(&ring, ends[0], bytes, 1, 1);
	CHECK(io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &timeout, NULL) >= -ETIME);
	write_all(ends[1], "x");
	CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
	io_uring_cqe_seen(&ring, cqe);
}

static void write_file(void)
{
	io_uring_prep_write(next_sqe(&ring), file, bytes, sizeof(bytes), 0);
	finish();
}

static void by_worker(void)
{
	struct io_uring_sqe *sqe = next_sqe(&ring);

	io_uring_prep_fsync(sqe, file, 0);
	sqe->flags |= IOSQE_ASYNC;
	finish();
}

static void opens(void)
{
	io_uring_prep_openat(next_sqe(&ring), AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC, 0);
	finish();
}

static void stats(void)
{
	static struct statx status;

	io_uring_prep_statx(next_sqe(&ring), AT_FDCWD, "/", 0, STATX_TYPE, &status);
	finish();
}

static void polls(void)
{
	io_uring_prep_poll_add(next_sqe(&ring), ends[1], POLLOUT);
	finish();
}

static void times(void)
{
	struct __kernel_timespec timeout = {.tv_nsec = 1};

	io_uring_prep_timeout(next_sqe(&ring), &timeout, 1, 0);
	prepare_nop(&ring, 2);
	CHECK(answer(io_uring_submit_and_wait(&ring, 2)) == 2);
	io_uring_cq_advance(&ring, 2);
}

static void sends(void)
{
	struct iovec vector = {bytes, 1};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};

	io_uring_prep_sendmsg(next_sqe(&ring), sockets[0], &message, 0);
	finish();
	io_uring_prep_recvmsg(next_sqe(&ring), sockets[1], &message, 0);
	finish();
	io_uring_prep_send(next_sqe(&ring), sockets[0], bytes, 1, 0);
	finish();
	io_uring_prep_recv(next_sqe(&ring), sockets[1], bytes, 1, 0);
	finish();
}

static void splices(void)
{
	write_all(ends[1], "x");
	io_uring_prep_splice(next_sqe(&ring), ends[0], -1, sockets[0], -1, 1, 0);
	finish();
	io_uring_prep_recv(next_sqe(&ring), sockets[1], bytes, 1, 0);
	finish();
}

static void registers(void)
{
	struct iovec buffer = {bytes, sizeof(bytes)};

	CHECK(io_uring_register_buffers(&ring, &buffer, 1) == 0);
	CHECK(io_uring_register_files(&ring, ends, 2) == 0);
	CHECK(io_uring_unregister_files(&ring) == 0);
	CHECK(io_uring_unregister_buffers(&ring) == 0);
}

static void probes(void)
{
	static char space[sizeof(struct io_uring_probe) + 256 * sizeof(struct io_uring_probe_op)];

	CHECK(answer(io_uring_register_probe(&ring, (struct io_uring_probe *)space, 256)) == 0);
}

static void cancels(void)
{
	prepare_read(&ring, ends[0], bytes, 1, 7);
	submit(&ring, 1);
	io_uring_prep_cancel64(next_sqe(&ring), 7, 0);
	CHECK(answer(io_uring_submit_and_wait(&ring, 2)) == 1);
	io_uring_cq_advance(&ring, 2);
}

static void watches(void)
{
	struct epoll_event wanted = {.events = EPOLLIN};

	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ring.ring_fd, &wanted) == 0);
	CHECK(epoll_wait(epoll, &wanted, 1, 0) == 0);
}

static void looks(void)
{
	struct pollfd set = {.fd = ring.ring_fd, .events = POLLIN};

	CHECK(poll(&set, 1, 0) == 0);
}

static void closes_pipe_under_read(void)
{
	int others[2];

	CHECK(pipe2(others, O_CLOEXEC) == 0);
	submit_read(&ring, others[0], bytes, 1, 9);
	CHECK(close(others[0]) == 0);
	write_all(others[1], "x");
	CHECK(answer(io_uring_submit_and_wait(&ring, 1)) == 0);
	io_uring_cq_advance(&ring, 1);
	CHECK(close(others[1]) == 0);
}

static void enter_by_instruction(void)
{
	io_uring_prep_nop(next_sqe(&ring));
	publish(&ring);
	CHECK(raw6(__NR_io_uring_enter, ring.ring_fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
	io_uring_cq_advance(&ring, 1);
}

static void exits(void)
{
	io_uring_queue_exit(&ring);
}

static void aio_setup(void)
{
	CHECK(syscall(__NR_io_setup, 8, &context) == 0);
}

static void aio_submit(void)
{
	iocb = (struct iocb){.aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_buf = (uintptr_t)bytes,
			     .aio_nbytes = sizeof(bytes)};
	CHECK(syscall(__NR_io_submit, context, 1, &iocbs) == 1);
}

static void aio_getevents(void)
{
	CHECK(syscall(__NR_io_getevents, context, 1, 1, &event, NULL) == 1);
}

static void aio_destroy(void)
{
	CHECK(syscall(__NR_io_destroy, context) == 0);
}

static void vforks(void)
{
	pid_t child = vfork();
	int status;

	if (child == 0)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static const struct test calls[] = {
	{"setup", setup_by_liburing},
	{"setup again", setup_by_liburing},
	{"mmap", map},
	{"NOP", nop},
	{"READ", ready_read},
	{"READ that waits", waiting_read},
	{"WRITE", write_file},
	{"FSYNC by a worker", by_worker},
	{"OPENAT", opens},
	{"STATX", stats},
	{"POLL_ADD", polls},
	{"TIMEOUT", times},
	{"messages", sends},
	{"SPLICE", splices},
	{"register", registers},
	{"probe", probes},
	{"ASYNC_CANCEL", cancels},
	{"epoll", watches},
	{"poll", looks},
	{"close of a pipe", closes_pipe_under_read},
	{"vfork", vforks},
	{"io_setup", aio_setup},
	{"io_submit", aio_submit},
	{"io_getevents", aio_getevents},
	{"io_destroy", aio_destroy},
	{"exit", exits},
};

/* A trap's signal adds the frame that the kernel puts on the stack. */
static const struct test traps[] = {
	{"setup by instruction", setup},
	{"enter by instruction", enter_by_instruction},
};

static int too_deep(const struct test *calls, size_t count, long most)
{
	int deep = 0;

	for (size_t i = 0; i < count; i++) {
		long depth = depth_of(calls[i].run);

		if (depth > most)
			fprintf(stderr, "%s: %ld bytes of stack\n", calls[i].name, depth);
		deep += depth > most;
	}
	return deep;
}

/* Symbols are bound before the measurement, since binding one takes 3 KiB of the stack. */
static void bind_now(void)
{
	const char *self = (const char *)getauxval(AT_EXECFN);

	if (getenv("LD_BIND_NOW"))
		return;
	CHECK(setenv("LD_BIND_NOW", "1", 1) == 0);
	execl(self, self, "depths", NULL);
	CHECK(!"execl");
}

static void depths(void)
{
	const long frame = getauxval(AT_MINSIGSTKSZ) ?: 3072;
	int deep;

	bind_now();
	CHECK(pipe2(ends, O_CLOEXEC) == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
	file = memfd_create("file", MFD_CLOEXEC);
	epoll = epoll_create1(EPOLL_CLOEXEC);
	CHECK(file >= 0 && epoll >= 0);
	deep = too_deep(calls, sizeof(calls) / sizeof(calls[0]) - 1, MOST);
	deep += too_deep(traps, sizeof(traps) / sizeof(traps[0]), MOST + frame);
	deep += too_deep(calls + sizeof(calls) / sizeof(calls[0]) - 1, 1, MOST);
	CHECK(deep == 0);
}

CASES({"depths", depths})
