/* Rings in the program's own memory (NO_MMAP) that are closed while another thread or process still uses them. Once
 * the close has returned, the program may reuse the addresses. */
#include "engine.h"

#include <stddef.h>

#ifndef IORING_SETUP_NO_MMAP
#define IORING_SETUP_NO_MMAP (1U << 14)
#endif

#define BYTES (64 * 1024)
#define PATTERN 0xa5

static struct io_uring_params params;
static unsigned char *memory, *rings;
static int ring, pipes[2];
static char byte;
static atomic_int waiter;

static void make_ring(int kind)
{
	struct io_uring_sqe *sqes;

	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	sqes = (struct io_uring_sqe *)memory;
	rings = memory + 4096;
	params.flags = IORING_SETUP_NO_MMAP;
	memcpy((char *)&params + offsetof(struct io_uring_params, sq_off) + 32, &sqes, 8);
	memcpy((char *)&params + offsetof(struct io_uring_params, cq_off) + 32, &rings, 8);
	ring = syscall(__NR_io_uring_setup, 8, &params);
	CHECK(ring >= 0);
}

static unsigned *word(unsigned offset)
{
	return (unsigned *)(rings + offset);
}

static void submit_one(int opcode, int fd, void *buffer, unsigned size, uint64_t user_data)
{
	struct io_uring_sqe *sqe = (struct io_uring_sqe *)memory;

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = opcode;
	sqe->fd = fd;
	sqe->addr = (uintptr_t)buffer;
	sqe->len = size;
	sqe->user_data = user_data;
	word(params.sq_off.array)[*word(params.sq_off.tail) & 7] = 0;
	__atomic_store_n(word(params.sq_off.tail), *word(params.sq_off.tail) + 1, __ATOMIC_RELEASE);
	CHECK(syscall(__NR_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1);
}

static void *wait_in_enter(void *unused)
{
	(void)unused;
	waiter = gettid();
	CHECK(syscall(__NR_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 0);
	return NULL;
}

static pthread_t begin_to_wait(void)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, wait_in_enter, NULL) == 0);
	while (!waiter)
		usleep(1000);
	wait_asleep(waiter);
	return thread;
}

/* Maps other memory at the ring's addresses. */
static void use_memory_again(void)
{
	CHECK(munmap(memory, BYTES) == 0);
	CHECK(mmap(memory, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
	memset(memory, PATTERN, BYTES);
}

static void check_memory(void)
{
	for (int i = 0; i < BYTES; i++)
		if (memory[i] != PATTERN) {
			fprintf(stderr, "byte %d is %d\n", i, memory[i]);
			CHECK(!"untouched memory");
		}
}

static void a_thread_waits(int kind)
{
	pthread_t thread;

	CHECK(pipe(pipes) == 0);
	make_ring(kind);
	submit_one(IORING_OP_READ, pipes[0], &byte, 1, 1);
	thread = begin_to_wait();
	CHECK(close(ring) == 0);
	use_memory_again();
	write_all(pipes[1], "x");
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(byte == 'x');
	check_memory();
}

static void a_thread_waits_on_shared_memory(void)
{
	a_thread_waits(MAP_SHARED);
}

static void a_thread_waits_on_private_memory(void)
{
	a_thread_waits(MAP_PRIVATE);
}

/* The program keeps the memory, so the waiting thread finds its CQE there. */
static void the_memory_stays(void)
{
	struct io_uring_cqe *cqes;
	pthread_t thread;

	CHECK(pipe(pipes) == 0);
	make_ring(MAP_SHARED);
	submit_one(IORING_OP_READ, pipes[0], &byte, 1, 7);
	thread = begin_to_wait();
	CHECK(close(ring) == 0);
	write_all(pipes[1], "x");
	CHECK(pthread_join(thread, NULL) == 0);
	cqes = (struct io_uring_cqe *)(rings + params.cq_off.cqes);
	CHECK(*word(params.cq_off.tail) == 1 && cqes[0].user_data == 7 && cqes[0].res == 1);
}

/* No thread waits, but one has begun a call. */
static void a_worker_goes_on(void)
{
	uint64_t much = UINT64_MAX - 1, count;
	int counter = eventfd(5, 0);

	make_ring(MAP_SHARED);
	submit_one(IORING_OP_WRITE, counter, &much, sizeof(much), 1);
	wait_others_asleep(0);
	CHECK(close(ring) == 0);
	use_memory_again();
	CHECK(read(counter, &count, sizeof(count)) == sizeof(count) && count == 5);
	wait_others_asleep(0);
	check_memory();
}

CASES({"shared", a_thread_waits_on_shared_memory}, {"private", a_thread_waits_on_private_memory},
      {"stays", the_memory_stays}, {"worker", a_worker_goes_on})
