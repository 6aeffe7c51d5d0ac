/* A shared object with raw instructions, loaded while the program runs. */
#include "raw.h"
#include <poll.h>

int plugin_nops(int count)
{
	struct ring ring;

	if (ring_open(&ring, 4) != 0)
		return -1;
	for (int i = 0; i < count; i++)
		ring_nop(&ring, i);
	return count;
}

/* Whether poll(2) by instruction sees a completion on a ring that nothing else waited for. */
int plugin_polls(void)
{
	struct ring ring;
	struct pollfd fd = { .events = POLLIN };

	if (ring_open(&ring, 4) != 0)
		return -1;
	ring_sqe(&ring)->opcode = IORING_OP_NOP;
	ring_push(&ring);
	CHECK(ring_enter(&ring, 1, 0) == 1);
	fd.fd = ring.fd;
	return raw6(SYS_poll, (long)&fd, 1, 0, 0, 0, 0) == 1 && fd.revents == POLLIN;
}
