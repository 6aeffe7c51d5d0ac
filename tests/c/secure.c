/* Prints whether the program has more privileges than its caller, and the result of a NOP. */
#include <liburing.h>
#include <stdio.h>
#include <sys/auxv.h>

int main(void)
{
	struct io_uring_cqe *cqe;
	struct io_uring ring;

	if (io_uring_queue_init(4, &ring, 0))
		return 1;
	io_uring_prep_nop(io_uring_get_sqe(&ring));
	if (io_uring_submit_and_wait(&ring, 1) != 1 || io_uring_peek_cqe(&ring, &cqe))
		return 1;
	printf("%ssecure: %d\n", getauxval(AT_SECURE) ? "" : "not ", cqe->res);
	io_uring_queue_exit(&ring);
	return 0;
}
