/* Linked with liburing.so, and without its own raw instructions. It is served, but without a filter. */
#include <liburing.h>
#include <stdio.h>
#include <sys/prctl.h>

int main(void)
{
	struct io_uring_cqe *cqe;
	struct io_uring ring;

	if (io_uring_queue_init(8, &ring, 0) != 0)
		return 1;
	io_uring_prep_nop(io_uring_get_sqe(&ring));
	if (io_uring_submit_and_wait(&ring, 1) != 1 || io_uring_peek_cqe(&ring, &cqe) != 0 || cqe->res != 0)
		return 2;
	if (prctl(PR_GET_SECCOMP) != 0 || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 0)
		return 3;
	puts("done");
	return 0;
}
