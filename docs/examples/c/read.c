/* Reads the beginning of a file by io_uring, wherever that is refused. */
#include <anyring.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	struct io_uring ring;
	struct io_uring_cqe *cqe;
	char text[64];
	int file, result;

	/* Only to say who serves: without this call the program is served all the same. */
	result = anyring_install();
	if (result < 0) {
		fprintf(stderr, "no io_uring: %s\n", strerror(-result));
		return 1;
	}
	printf("served by %s\n", result ? "anyring" : "the kernel");

	file = open(argc > 1 ? argv[1] : argv[0], O_RDONLY);
	if (file < 0 || io_uring_queue_init(8, &ring, 0) < 0)
		return 1;
	io_uring_prep_read(io_uring_get_sqe(&ring), file, text, sizeof(text), 0);
	io_uring_submit(&ring);
	if (io_uring_wait_cqe(&ring, &cqe) < 0 || cqe->res < 0)
		return 1;
	printf("%d bytes\n", cqe->res);
	io_uring_queue_exit(&ring);
	return 0;
}
