/* ThreadSanitizer must report nothing about data that one thread writes before it submits, and that another reads
 * after it has seen the CQE. The first argument names the interface: "liburing", "inline" (only liburing's inline
 * functions see the CQE), "batch", "syscall", "instruction" or "aio". With "races" as the second, the data is
 * written after the submission, too. */
#include "../engine/engine.h"

#include <linux/aio_abi.h>
#include <pthread.h>

static const char *way;
static struct io_uring ring;
static struct ring raw_ring;
static aio_context_t context;
static int data[16];

static bool is(const char *name)
{
	return !strcmp(way, name);
}

static bool is_raw(void)
{
	return is("syscall") || is("instruction");
}

static long enter(unsigned submits, unsigned waits, unsigned flags)
{
	if (is("syscall"))
		return syscall(__NR_io_uring_enter, raw_ring.fd, submits, waits, flags, NULL, 0);
	return raw6(__NR_io_uring_enter, raw_ring.fd, submits, waits, flags, 0, 0);
}

static void submit_one(int fd)
{
	struct iocb iocb = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd};
	struct iocb *iocbs = &iocb;

	if (is("aio")) {
		CHECK(syscall(__NR_io_submit, context, 1, &iocbs) == 1);
	} else if (is_raw()) {
		ring_sqe(&raw_ring)->opcode = IORING_OP_NOP;
		ring_push(&raw_ring);
		CHECK(enter(1, 0, 0) == 1);
	} else {
		prepare_nop(&ring, 0);
		submit(&ring, 1);
	}
}

static void see_one(void)
{
	struct io_uring_cqe *cqe;
	struct io_event event;

	if (is("aio")) {
		CHECK(syscall(__NR_io_getevents, context, 1, 1, &event, NULL) == 1);
	} else if (is_raw()) {
		CHECK(enter(0, 1, IORING_ENTER_GETEVENTS) == 0);
	} else if (is("liburing")) {
		CHECK(answer(io_uring_wait_cqes(&ring, &cqe, 1, NULL, NULL)) == 0);
	} else if (is("batch")) {
		while (!io_uring_peek_batch_cqe(&ring, &cqe, 1))
			;
	} else {
		while (!io_uring_cq_ready(&ring))
			;
	}
}

static void *reader(void *unused)
{
	int sum = 0;

	see_one();
	for (int i = 0; i < 16; i++)
		sum += data[i];
	CHECK(sum >= 120);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	int fd = open("/dev/null", O_RDONLY);

	CHECK(argc == 3);
	way = argv[1];
	if (is("aio"))
		CHECK(syscall(__NR_io_setup, 8, &context) == 0);
	else if (is_raw())
		CHECK(ring_open(&raw_ring, 8) == 0);
	else
		init_ring(&ring, 8, 0);
	CHECK(pthread_create(&thread, NULL, reader, NULL) == 0);
	for (int i = 0; i < 16; i++)
		data[i] = i;
	submit_one(fd);
	if (!strcmp(argv[2], "races"))
		data[0] = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	puts("done");
	return 0;
}
