/* Makes many NOPs through raw instructions. Their user_data comes back, and errors are those of the kernel. */
#include "raw.h"

int main(void)
{
	struct ring ring;

	expect_trap();
	CHECK(ring_open(&ring, 8) == 0);
	for (uint64_t i = 0; i < 2000; i++)
		ring_nop(&ring, i * 3 + 1);
	errno = 77;
	CHECK(raw6(__NR_io_uring_enter, -1, 0, 0, 0, 0, 0) == -EBADF);
	CHECK(raw6(__NR_io_uring_setup, 0, 0, 0, 0, 0, 0) == -EFAULT);
	CHECK(raw6(__NR_io_uring_register, ring.fd, 9999, 0, 0, 0, 0) == -EINVAL);
	CHECK(errno == 77);
	/* Numbers in the range of rings' numbers that name no ring. The call itself is made. */
	CHECK(dup2(1, 600) == 600);
	CHECK(raw6(__NR_close, 600, 0, 0, 0, 0, 0) == 0);
	CHECK(raw6(__NR_close, 600, 0, 0, 0, 0, 0) == -EBADF);
	CHECK(raw6(__NR_dup2, 1, 601, 0, 0, 0, 0) == 601);
	CHECK(raw6(__NR_mmap, 0, 4096, PROT_READ, MAP_PRIVATE, 601, 0) < 0);
	CHECK(raw6(__NR_close_range, 601, 601, 0, 0, 0, 0) == 0);
	CHECK(raw6(__NR_close, 601, 0, 0, 0, 0, 0) == -EBADF);
	puts("done");
	return 0;
}
