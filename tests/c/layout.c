/* Prints the offsets that the installed header gives to the fields of inline functions: one "name offset" a line. */
#include <liburing.h>
#include <stddef.h>
#include <stdio.h>

#define SHOW(type, field) printf(#type "." #field " %zu\n", offsetof(struct type, field))

int main(void)
{
	printf("io_uring_sq %zu\nio_uring_cq %zu\nio_uring %zu\n", sizeof(struct io_uring_sq),
	       sizeof(struct io_uring_cq), sizeof(struct io_uring));
	SHOW(io_uring_sq, khead);
	SHOW(io_uring_sq, ktail);
	SHOW(io_uring_sq, kring_mask);
	SHOW(io_uring_sq, kring_entries);
	SHOW(io_uring_sq, kflags);
	SHOW(io_uring_sq, kdropped);
	SHOW(io_uring_sq, array);
	SHOW(io_uring_sq, sqes);
	SHOW(io_uring_sq, sqe_head);
	SHOW(io_uring_sq, sqe_tail);
	SHOW(io_uring_sq, ring_sz);
	SHOW(io_uring_sq, ring_ptr);
	SHOW(io_uring_cq, khead);
	SHOW(io_uring_cq, ktail);
	SHOW(io_uring_cq, kring_mask);
	SHOW(io_uring_cq, kring_entries);
	SHOW(io_uring_cq, kflags);
	SHOW(io_uring_cq, koverflow);
	SHOW(io_uring_cq, cqes);
	SHOW(io_uring_cq, ring_sz);
	SHOW(io_uring_cq, ring_ptr);
	SHOW(io_uring_sq, ring_mask);
	SHOW(io_uring_sq, ring_entries);
	SHOW(io_uring_cq, ring_mask);
	SHOW(io_uring_cq, ring_entries);
	SHOW(io_uring, sq);
	SHOW(io_uring, cq);
	SHOW(io_uring, flags);
	SHOW(io_uring, ring_fd);
	SHOW(io_uring, features);
	SHOW(io_uring, enter_ring_fd);
	SHOW(io_uring, int_flags);
	return 0;
}
