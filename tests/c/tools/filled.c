/* Stands in for MemorySanitizer, whose function this program defines. It checks that reads, receives and liburing's
 * functions report exactly the memory that they fill. With the kernel's io_uring nothing is reported. */
#include "../engine/engine.h"

#define MOST 256

static struct {
	_Atomic(const char *) address;
	size_t size;
} told[MOST];
static atomic_int count;
static struct io_uring ring;
static struct statx status;
static char first[16], second[16], many[4][16];
static int pipes[2], sockets[2];

void __msan_unpoison(const volatile void *address, size_t size)
{
	int place = atomic_fetch_add(&count, 1);

	CHECK(place < MOST);
	told[place].size = size;
	told[place].address = (const char *)address;
}

/* Returns the number of reported bytes in this memory. A report that is only partly in it is an error. */
static size_t reported_in(const void *memory, size_t size)
{
	const char *begin = memory;
	size_t sum = 0;

	for (int i = 0; i < atomic_load(&count); i++) {
		const char *address = told[i].address;

		if (address + told[i].size <= begin || address >= begin + size)
			continue;
		CHECK(address >= begin && address + told[i].size <= begin + size);
		sum += told[i].size;
	}
	return sum;
}

static void expect_five(struct io_uring_sqe *sqe, int writes_to, unsigned flags)
{
	struct io_uring_cqe *cqe;

	sqe->flags |= flags;
	sqe->user_data = 1;
	atomic_store(&count, 0);
	submit(&ring, 1);
	if (writes_to >= 0)
		CHECK(write(writes_to, "abcde", 5) == 5);
	CHECK(answer(io_uring_wait_cqes(&ring, &cqe, 1, NULL, NULL)) == 0);
	CHECK(answer(cqe->res) == 5);
	CHECK(reported_in(&cqe, sizeof(cqe)) >= sizeof(cqe));
	io_uring_cqe_seen(&ring, cqe);
}

static void expect_first(struct io_uring_sqe *sqe, int writes_to, unsigned flags)
{
	expect_five(sqe, writes_to, flags);
	CHECK(reported_in(first, sizeof(first)) == 5);
}

static void expect_parted(struct io_uring_sqe *sqe, int writes_to)
{
	expect_five(sqe, writes_to, 0);
	CHECK(reported_in(first, 3) == 3);
	CHECK(reported_in(second, sizeof(second)) == 2);
}

int main(void)
{
	struct iovec parts[2] = {{first, 3}, {second, sizeof(second)}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	struct io_uring_cqe *cqe;
	struct io_uring_sqe *sqe;
	FILE *file = tmpfile();

	CHECK(file && write(fileno(file), "abcde", 5) == 5);
	CHECK(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	init_ring(&ring, 8, 0);
	CHECK(reported_in(&ring, sizeof(ring)) == sizeof(ring));

	sqe = next_sqe(&ring);
	io_uring_prep_read(sqe, fileno(file), first, sizeof(first), 0);
	expect_first(sqe, -1, 0);
	sqe = next_sqe(&ring);
	io_uring_prep_read(sqe, fileno(file), first, sizeof(first), 0);
	expect_first(sqe, -1, IOSQE_ASYNC);
	sqe = next_sqe(&ring);
	io_uring_prep_read(sqe, pipes[0], first, sizeof(first), 0);
	expect_first(sqe, pipes[1], 0);
	sqe = next_sqe(&ring);
	io_uring_prep_recv(sqe, sockets[0], first, sizeof(first), 0);
	expect_first(sqe, sockets[1], 0);
	sqe = next_sqe(&ring);
	io_uring_prep_readv(sqe, pipes[0], parts, 2, 0);
	expect_parted(sqe, pipes[1]);
	sqe = next_sqe(&ring);
	io_uring_prep_recvmsg(sqe, sockets[0], &message, 0);
	expect_parted(sqe, sockets[1]);

	/* A receive that chooses its buffer. */
	io_uring_prep_provide_buffers(next_sqe(&ring), many, sizeof(many[0]), 4, 7, 0);
	submit(&ring, 1);
	CHECK(io_uring_wait_cqe(&ring, &cqe) == 0 && answer(cqe->res) >= 0);
	io_uring_cqe_seen(&ring, cqe);
	sqe = next_sqe(&ring);
	io_uring_prep_recv(sqe, sockets[0], NULL, sizeof(many[0]), 0);
	sqe->buf_group = 7;
	expect_five(sqe, sockets[1], IOSQE_BUFFER_SELECT);
	CHECK(reported_in(many, sizeof(many)) == 5);

	/* STATX fills its result. */
	io_uring_prep_statx(next_sqe(&ring), AT_FDCWD, "/", 0, STATX_BASIC_STATS, &status);
	atomic_store(&count, 0);
	submit(&ring, 1);
	CHECK(io_uring_wait_cqe(&ring, &cqe) == 0 && answer(cqe->res) == 0);
	CHECK(reported_in(&status, sizeof(status)) == sizeof(status));
	io_uring_cqe_seen(&ring, cqe);

	/* A WRITE only reads the program's data. */
	sqe = next_sqe(&ring);
	io_uring_prep_write(sqe, pipes[1], first, 5, 0);
	expect_five(sqe, -1, 0);
	CHECK(reported_in(first, sizeof(first)) == 0);
	puts("done");
	return 0;
}
