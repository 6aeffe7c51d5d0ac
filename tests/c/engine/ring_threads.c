/* Several threads that use one ring, or a ring each. No request and no CQE is lost between them. */
#include "engine.h"

#define ROUNDS 20000

/* Two links: links[0] carries the first thread's messages, links[1] the second thread's answers. */
static int links[2][2];
static unsigned setup_flags;

static void transfer(struct io_uring *ring, int is_write, int fd, unsigned *value)
{
	struct io_uring_sqe *sqe = next_sqe(ring);

	if (is_write)
		io_uring_prep_write(sqe, fd, value, sizeof(*value), 0);
	else
		io_uring_prep_read(sqe, fd, value, sizeof(*value), 0);
	CHECK(answer(io_uring_submit_and_wait(ring, 1)) == 1);
	take(ring, 0, sizeof(*value));
}

static void *answer_pings(void *unused)
{
	struct io_uring ring;
	unsigned value;

	init_ring(&ring, 8, setup_flags);
	for (int i = 0; i < ROUNDS; i++) {
		transfer(&ring, 0, links[0][0], &value);
		value++;
		transfer(&ring, 1, links[1][1], &value);
	}
	io_uring_queue_exit(&ring);
	return unused;
}

/* Every round has two waits, each of which the other thread has to end. */
static void ping_pong(void)
{
	struct io_uring ring;
	pthread_t partner;

	CHECK(pthread_create(&partner, NULL, answer_pings, NULL) == 0);
	init_ring(&ring, 8, setup_flags);
	for (unsigned i = 0; i < ROUNDS; i++) {
		unsigned said = i, heard = 0;

		transfer(&ring, 1, links[0][1], &said);
		transfer(&ring, 0, links[1][0], &heard);
		CHECK(heard == i + 1);
	}
	CHECK(pthread_join(partner, NULL) == 0);
}

static void ping_pong_over_pipes(void)
{
	CHECK(pipe(links[0]) == 0 && pipe(links[1]) == 0);
	ping_pong();
}

static void ping_pong_over_pipes_deferred(void)
{
	setup_flags = DEFERRED;
	ping_pong_over_pipes();
}

static void ping_pong_over_sockets(void)
{
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, links[0]) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, links[1]) == 0);
	ping_pong();
}

enum { THREADS = 3, REQUESTS = 8000, MOST_IN_FLIGHT = 500 };

static struct io_uring shared;
static pthread_mutex_t sq_mutex = PTHREAD_MUTEX_INITIALIZER, cq_mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_long submitted, completed;
static int all_done; /* under cq_mutex */
static int pipes[THREADS][2];

/* Prepares a NOP, a READ that waits, a short timeout or a NOP by a worker; returns whether it is the READ. */
static int prepare_any(int reader, unsigned *seed)
{
	static struct __kernel_timespec short_time = {0, 200000};
	static char byte;
	struct io_uring_sqe *sqe = next_sqe(&shared);

	switch (rand_r(seed) % 4) {
	case 0:
		io_uring_prep_nop(sqe);
		return 0;
	case 1:
		io_uring_prep_read(sqe, reader, &byte, 1, 0);
		return 1;
	case 2:
		io_uring_prep_timeout(sqe, &short_time, 0, 0);
		return 0;
	default:
		io_uring_prep_nop(sqe);
		sqe->flags |= IOSQE_ASYNC;
		return 0;
	}
}

static void *submit_in_a_crowd(void *own_pipe)
{
	int *ends = own_pipe;
	unsigned seed = ends[0];

	for (int i = 0; i < REQUESTS; i++) {
		int reads;

		CHECK(pthread_mutex_lock(&sq_mutex) == 0);
		reads = prepare_any(ends[0], &seed);
		submit(&shared, 1);
		submitted++;
		CHECK(pthread_mutex_unlock(&sq_mutex) == 0);
		if (reads)
			write_all(ends[1], "x");
		while (submitted - completed > MOST_IN_FLIGHT)
			usleep(50);
	}
	return NULL;
}

static void *wait_in_a_crowd(void *unused)
{
	for (;;) {
		struct io_uring_cqe *cqe;
		int leave;

		/* A system call, because liburing's waits are for one thread at a time. */
		CHECK(syscall(__NR_io_uring_enter, shared.ring_fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) >= 0);
		CHECK(pthread_mutex_lock(&cq_mutex) == 0);
		leave = all_done;
		for (; !leave && io_uring_peek_cqe(&shared, &cqe) == 0; completed++)
			io_uring_cqe_seen(&shared, cqe);
		CHECK(pthread_mutex_unlock(&cq_mutex) == 0);
		if (leave)
			return unused;
	}
}

/* Some threads submit, others wait, all on one ring. */
static void a_shared_ring(void)
{
	pthread_t submitters[THREADS], waiters[THREADS];

	init_ring(&shared, 1024, 0);
	for (int i = 0; i < THREADS; i++) {
		CHECK(pipe(pipes[i]) == 0);
		CHECK(pthread_create(&submitters[i], NULL, submit_in_a_crowd, pipes[i]) == 0);
		CHECK(pthread_create(&waiters[i], NULL, wait_in_a_crowd, NULL) == 0);
	}
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(submitters[i], NULL) == 0);
	for (int ms = 0; ms < LONG_MS && completed < submitted; ms++)
		usleep(1000);
	CHECK(completed == submitted);
	CHECK(pthread_mutex_lock(&cq_mutex) == 0);
	all_done = 1;
	CHECK(pthread_mutex_unlock(&cq_mutex) == 0);
	prepare_nop(&shared, 0); /* no thread reaps its CQE, so the CQE ends the wait of every thread */
	submit(&shared, 1);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(waiters[i], NULL) == 0);
}

CASES({"ping-pong-pipes", ping_pong_over_pipes},
      {"ping-pong-deferred", ping_pong_over_pipes_deferred},
      {"ping-pong-sockets", ping_pong_over_sockets},
      {"shared-ring", a_shared_ring})
