/* A program for sanitizers and tracers. The first argument says how the ring is used: "none", "liburing", or
 * "instruction". The second names an additional action: "leaks" memory, "asks" for leaks first, or "reads" a byte
 * of the standard input at the end. The program always has its own instructions, so they are trapped. */
#include "../engine/engine.h"

static char buffer[8];
static struct io_uring ring;
static struct ring raw_ring;

/* For breakpoints. */
__attribute__((noinline)) void round_begins(int round)
{
	__asm__ volatile("" : : "r"(round) : "memory");
}

static __attribute__((noinline)) void use_liburing(void)
{
	int pipes[2];

	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	for (int round = 0; round < 100; round++) {
		round_begins(round);
		submit_read(&ring, pipes[0], buffer, 1, round);
		write_all(pipes[1], "x");
		expect(&ring, round, 1);
		prepare_nop(&ring, round);
		ring.sq.sqes[(ring.sq.sqe_tail - 1) & *ring.sq.kring_mask].flags |= IOSQE_ASYNC;
		submit(&ring, 1);
		expect(&ring, round, 0);
	}
	/* The request stays pending: the helper and a worker exist at the end. */
	submit_read(&ring, pipes[0], buffer, 1, 1);
}

static __attribute__((noinline)) void use_instructions(void)
{
	CHECK(ring_open(&raw_ring, 8) == 0);
	for (int round = 0; round < 100; round++) {
		round_begins(round);
		ring_sqe(&raw_ring)->opcode = IORING_OP_NOP;
		ring_push(&raw_ring);
		CHECK(raw6(__NR_io_uring_enter, raw_ring.fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
		CHECK(*raw_ring.cq_tail == (unsigned)round + 1);
		*raw_ring.cq_head = *raw_ring.cq_tail;
	}
}

/* A byte of the standard input, waited for on a ring; debuggers stop the wait. */
static void read_a_byte(bool by_instruction)
{
	if (by_instruction) {
		ring_read(&raw_ring, 0, buffer);
		while (*raw_ring.cq_tail == *raw_ring.cq_head)
			raw6(__NR_io_uring_enter, raw_ring.fd, 0, 1, IORING_ENTER_GETEVENTS, 0, 0);
	} else {
		submit_read(&ring, 0, buffer, 1, 2);
		expect(&ring, 2, 1);
	}
	CHECK(buffer[0] == 'x');
}

/* Null in programs without a sanitizer. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

__attribute__((noinline)) static void leak(void)
{
	volatile char *lost = malloc(1234);

	lost[0] = 1;
}

/* Overwrites the stack, so that no pointer to the memory is left on it. */
__attribute__((noinline)) static void clear_the_stack(void)
{
	volatile char cleared[4096];

	memset((void *)cleared, 0, sizeof(cleared));
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	if (!strcmp(argv[1], "liburing"))
		use_liburing();
	if (!strcmp(argv[1], "instruction"))
		use_instructions();
	if (!strcmp(argv[2], "asks"))
		CHECK(__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check() == 0);
	CHECK(strcmp(argv[1], "none") || strcmp(argv[2], "reads"));
	if (!strcmp(argv[2], "reads"))
		read_a_byte(!strcmp(argv[1], "instruction"));
	if (!strcmp(argv[2], "leaks")) {
		leak();
		clear_the_stack();
	}
	puts("done");
	fflush(stdout); /* a sanitizer that finds a leak ends the program without flushing */
	return 0;
}
