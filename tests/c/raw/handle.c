/* Linked with liburing.so. The program looks up one of liburing's functions by liburing's handle, which bypasses the
 * symbols of libraries that come first. */
#include <dlfcn.h>
#include <liburing.h>
#include <stdio.h>

int main(void)
{
	int (*submit_and_wait)(struct io_uring *, unsigned);
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	void *library;

	if (io_uring_queue_init(8, &ring, 0) != 0)
		return 1;
	library = dlopen("liburing.so.2", RTLD_NOW);
	if (!library || !(submit_and_wait = (int (*)(struct io_uring *, unsigned))dlsym(library, "io_uring_submit_and_wait")))
		return 2;
	for (int i = 0; i < 100; i++) {
		io_uring_prep_nop(io_uring_get_sqe(&ring));
		if (submit_and_wait(&ring, 1) != 1 || io_uring_peek_cqe(&ring, &cqe) != 0 || cqe->res != 0)
			return 3;
		io_uring_cqe_seen(&ring, cqe);
	}
	puts("done");
	return 0;
}
