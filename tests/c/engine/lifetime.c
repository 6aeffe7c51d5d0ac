/* The ends of rings. Several threads close a ring at once, or it is closed with requests pending. Afterwards its number
 * may name another file. */
#include "engine.h"

#include "holdings.h"

#define CLOSES 20000
#define RINGS 200
/* Resources that may remain after RINGS rings: those of the last ring, until its number is used again. */
#define FEW 10

static char buffer[8];
static int pipes[2];

static void *close_through_a_ring(void *unused)
{
	struct io_uring ring;

	init_ring(&ring, 64, 0);
	for (int i = 0; i < CLOSES; i++) {
		int fd = open("/dev/null", O_RDONLY);

		CHECK(fd >= 0);
		io_uring_prep_close(next_sqe(&ring), fd);
		CHECK(answer(io_uring_submit_and_wait(&ring, 1)) == 1);
		take(&ring, 0, 0);
	}
	io_uring_queue_exit(&ring);
	return unused;
}

/* A CLOSE may end a ring, so it locks other rings than its own. Threads that do so in different rings must not wait
 * for one another. */
static void threads_close_through_rings_of_their_own(void)
{
	pthread_t threads[3];

	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, close_through_a_ring, NULL) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

static int few_more(struct holdings now, struct holdings before)
{
	return now.descriptors <= before.descriptors + FEW && now.mappings <= before.mappings + FEW &&
	       now.threads <= before.threads + 1;
}

static void by_exit(struct io_uring *ring)
{
	io_uring_queue_exit(ring);
}

static void unmap(struct io_uring *ring)
{
	CHECK(munmap(ring->sq.sqes, *ring->sq.kring_entries * sizeof(struct io_uring_sqe)) == 0);
	CHECK(munmap(ring->sq.ring_ptr, ring->sq.ring_sz) == 0);
	if (ring->cq.ring_ptr != ring->sq.ring_ptr)
		CHECK(munmap(ring->cq.ring_ptr, ring->cq.ring_sz) == 0);
}

static void by_close(struct io_uring *ring)
{
	CHECK(close(ring->ring_fd) == 0);
	unmap(ring);
}

static void by_syscall(struct io_uring *ring)
{
	CHECK(syscall(SYS_close, ring->ring_fd) == 0);
	unmap(ring);
}

/* Closes by the program's own instruction, which calls no wrapper of the library. */
static void by_instruction(struct io_uring *ring)
{
	CHECK(raw6(SYS_close, ring->ring_fd, 0, 0, 0, 0, 0) == 0);
	unmap(ring);
}

/* The duplicate keeps the ring open, so closing the duplicate ends the ring. */
static void by_dropping_a_duplicate(struct io_uring *ring)
{
	int duplicate = dup(ring->ring_fd);

	CHECK(duplicate >= 0);
	io_uring_queue_exit(ring);
	CHECK(close(duplicate) == 0);
}

/* Ends RINGS rings with a READ pending in each, and checks that nothing of them is left. For every fourth ring, waits
 * until the READ is known everywhere in the engine where pending requests are watched. */
static void leaves_nothing(void (*end)(struct io_uring *), int with_drain)
{
	struct holdings before = {0}, after;

	CHECK(pipe(pipes) == 0);
	for (int i = -1; i < RINGS; i++) {
		struct io_uring ring;

		init_ring(&ring, 4, 0);
		prepare_read(&ring, pipes[0], buffer, 1, 1);
		if (with_drain)
			prepare_read(&ring, pipes[0], buffer, 1, 2)->flags |= IOSQE_IO_DRAIN;
		submit(&ring, 1 + with_drain);
		if (i % 4 == 0)
			wait_others_asleep(0);
		end(&ring);
		if (i == -1) { /* by now the process has made what it makes once and keeps */
			wait_others_asleep(0);
			before = look();
		}
	}
	for (int ms = 0; ms < LONG_MS && !few_more(look(), before); ms += 10)
		usleep(10000);
	after = look();
	CHECK(after.descriptors <= before.descriptors + FEW);
	CHECK(after.mappings <= before.mappings + FEW);
	CHECK(after.threads <= before.threads + 1);
}

static void exit_leaves_nothing(void)
{
	leaves_nothing(by_exit, 0);
}

static void close_leaves_nothing(void)
{
	leaves_nothing(by_close, 0);
}

static void close_by_syscall_leaves_nothing(void)
{
	leaves_nothing(by_syscall, 0);
}

static void close_by_instruction_leaves_nothing(void)
{
	leaves_nothing(by_instruction, 0);
}

static void a_dropped_duplicate_leaves_nothing(void)
{
	leaves_nothing(by_dropping_a_duplicate, 0);
}

static void a_drain_after_a_pending_read_leaves_nothing(void)
{
	leaves_nothing(by_exit, 1);
}

/* A CONNECT that outlives its ring, because the listener's backlog is full, ends when there is room again. Its result
 * must not reach the ring that was made since, perhaps in the same place. */
static void a_late_connect_reaches_no_other_ring(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_STREAM, 0);
	int first = socket(AF_UNIX, SOCK_STREAM, 0);
	int late = socket(AF_UNIX, SOCK_STREAM, 0);
	struct io_uring old, new;
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;

	snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "anyring-late-connect-%d", getpid());
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(listen(listener, 0) == 0);
	CHECK(connect(first, (struct sockaddr *)&address, sizeof(address)) == 0);

	init_ring(&old, 8, 0);
	sqe = next_sqe(&old);
	io_uring_prep_connect(sqe, late, (struct sockaddr *)&address, sizeof(address));
	sqe->flags |= IOSQE_ASYNC;
	sqe->user_data = 1;
	submit(&old, 1);
	wait_others_asleep(0); /* until a worker sleeps in the call */
	io_uring_queue_exit(&old);

	CHECK(pipe(pipes) == 0);
	init_ring(&new, 8, 0);
	submit_read(&new, pipes[0], buffer, 4, 77);
	CHECK(accept(listener, NULL, NULL) >= 0);
	CHECK(wait_ms(&new, &cqe, 300) == -ETIME);
	write_all(pipes[1], "abcd");
	expect(&new, 77, 4);
	CHECK(wait_ms(&new, &cqe, 20) == -ETIME);
}

/* A registered ring is used through its index, so its number may be closed. */
static void a_registered_ring_outlives_its_number(void)
{
	struct io_uring ring;

	init_ring(&ring, 8, 0);
	CHECK(answer(io_uring_register_ring_fd(&ring)) == 1);
	CHECK(close(ring.ring_fd) == 0);
	CHECK(pipe(pipes) == 0);
	prepare_nop(&ring, 1);
	CHECK(answer(io_uring_submit_and_wait(&ring, 1)) == 1);
	take(&ring, 1, 0);
	submit_read(&ring, pipes[0], buffer, 4, 2);
	write_all(pipes[1], "abcd");
	expect(&ring, 2, 4);
}

/* A duplicate is readable exactly while there are CQEs, both beside the first number and after that number's close. */
static void a_duplicate_keeps_level_readiness(void)
{
	struct io_uring ring;
	struct pollfd polled = {.events = POLLIN};

	init_ring(&ring, 8, 0);
	polled.fd = dup(ring.ring_fd);
	CHECK(polled.fd >= 0);
	for (int round = 0; round < 2; round++) {
		CHECK(poll(&polled, 1, 20) == 0);
		prepare_nop(&ring, round);
		submit(&ring, 1);
		CHECK(poll(&polled, 1, LONG_MS) == 1);
		if (round == 1)
			CHECK(close(ring.ring_fd) == 0);
		CHECK(poll(&polled, 1, LONG_MS) == 1);
		take(&ring, round, 0);
		CHECK(poll(&polled, 1, 100) == 0);
	}
}

/* As above, but the duplicate was only used for io_uring_enter(2). */
static void an_entered_duplicate_keeps_level_readiness(void)
{
	struct io_uring ring;
	struct pollfd polled = {.events = POLLIN};

	init_ring(&ring, 8, 0);
	polled.fd = dup(ring.ring_fd);
	CHECK(polled.fd >= 0);
	prepare_nop(&ring, 1);
	CHECK(syscall(__NR_io_uring_enter, polled.fd, 0, 0, 0, NULL, 0) == 0);
	submit(&ring, 1);
	CHECK(close(ring.ring_fd) == 0);
	CHECK(poll(&polled, 1, LONG_MS) == 1);
	take(&ring, 1, 0);
	CHECK(poll(&polled, 1, 100) == 0);
}

CASES({"close-by-threads", threads_close_through_rings_of_their_own},
      {"leak-exit", exit_leaves_nothing},
      {"leak-close", close_leaves_nothing},
      {"leak-syscall", close_by_syscall_leaves_nothing},
      {"leak-instruction", close_by_instruction_leaves_nothing},
      {"leak-duplicate", a_dropped_duplicate_leaves_nothing},
      {"leak-drain", a_drain_after_a_pending_read_leaves_nothing},
      {"late-connect", a_late_connect_reaches_no_other_ring},
      {"registered", a_registered_ring_outlives_its_number},
      {"duplicate", a_duplicate_keeps_level_readiness},
      {"duplicate-entered", an_entered_duplicate_keeps_level_readiness})
