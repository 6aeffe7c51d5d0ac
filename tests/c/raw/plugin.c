/* A shared object with raw instructions, loaded while the program runs. */
#include "raw.h"
#include <poll.h>

#ifdef BYTES
/* Bytes that make one plugin larger than another, and put its code elsewhere in the page. */
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)
__asm__(".text\n.skip " TEXT(BYTES) ", 0x90");
#endif

int plugin_nops(int count)
{
	struct ring ring;

	if (ring_open(&ring, 4) != 0)
		return -1;
	for (int i = 0; i < count; i++)
		ring_nop(&ring, i);
	return count;
}

/* Whether poll(2) by instruction reports a completion on a ring on which no other call has waited. */
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


/* An io_uring_enter that can be patched. */
extern long plugin_enter(long fd, long submit, long wait, long flags, long set, long size);
extern const unsigned char plugin_enter_call[];
__asm__(".text\n.globl plugin_enter\n.hidden plugin_enter, plugin_enter_call\n"
	".p2align 6\nplugin_enter: mov %rcx, %r10\n.p2align 3\nmov $426, %eax\nplugin_enter_call: syscall\nret\n");

/* Whether that call, made often, is patched. */
int plugin_is_patched(void)
{
	struct ring ring;

	if (ring_open(&ring, 4) != 0)
		return -1;
	for (int i = 0; i < 100; i++)
		CHECK(plugin_enter(ring.fd, 0, 0, 0, 0, 0) == 0);
	ring_close(&ring);
	return is_patched(plugin_enter_call);
}

/* Whether a ring works: io_uring_enter(2), poll(2) and close(2), all by instruction. */
int plugin_runs(void)
{
	struct ring ring;
	struct pollfd fd = { .events = POLLIN };
	uint64_t seen;
	int res;

	if (ring_open(&ring, 4) != 0)
		return -1;
	ring_nop(&ring, 1);
	ring_sqe(&ring)->opcode = IORING_OP_NOP;
	ring_push(&ring);
	CHECK(ring_enter(&ring, 1, 0) == 1);
	fd.fd = ring.fd;
	CHECK(raw6(SYS_poll, (long)&fd, 1, 0, 0, 0, 0) == 1 && fd.revents == POLLIN);
	CHECK(ring_reap(&ring, &seen, &res) && res == 0);
	ring_close(&ring);
	return 1;
}
