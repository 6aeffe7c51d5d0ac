/* Programs about which a trace could say something false. argv[1] names one, argv[2] is a file for its reads and writes:
 *
 *   sqpoll  300 chains of a READ of the page cache and an FSYNC, on a ring with IORING_SETUP_SQPOLL
 *   drain   200 times three READs of the page cache, the second with IOSQE_IO_DRAIN */
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static struct io_uring ring;
static char bytes[4096];

static void take(int count)
{
	struct io_uring_cqe *cqe;

	for (; count; count--) {
		CHECK(io_uring_wait_cqe(&ring, &cqe) == 0 && cqe->res >= 0);
		io_uring_cqe_seen(&ring, cqe);
	}
}

static void sqpoll(int fd)
{
	struct io_uring_params params = { .flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 10000 };

	CHECK(io_uring_queue_init_params(8, &ring, &params) == 0);
	for (int round = 0; round < 300; round++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

		io_uring_prep_read(sqe, fd, bytes, sizeof(bytes), 0);
		sqe->flags |= IOSQE_IO_LINK;
		io_uring_prep_fsync(io_uring_get_sqe(&ring), fd, 0);
		CHECK(io_uring_submit_and_wait(&ring, 2) == 2);
		take(2);
	}
}

static void drain(int fd)
{
	CHECK(io_uring_queue_init(8, &ring, 0) == 0);
	for (int round = 0; round < 200; round++) {
		for (int at = 0; at < 3; at++) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

			io_uring_prep_read(sqe, fd, bytes, 512, 0);
			sqe->flags |= at == 1 ? IOSQE_IO_DRAIN : 0;
		}
		CHECK(io_uring_submit_and_wait(&ring, 3) == 3);
		take(3);
	}
}

int main(int argc, char **argv)
{
	const char *what = argc == 3 ? argv[1] : "";
	int fd = argc == 3 ? open(argv[2], O_RDWR | O_CREAT, 0600) : -1;

	CHECK(fd >= 0 && write(fd, bytes, sizeof(bytes)) == sizeof(bytes));
	if (strcmp(what, "sqpoll") == 0)
		sqpoll(fd);
	else if (strcmp(what, "drain") == 0)
		drain(fd);
	else
		return 2;
	return 0;
}
