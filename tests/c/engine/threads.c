/* Threads that end inside a call: by pthread_cancel(3), or by pthread_exit(3) in a signal handler. The cleanup of
 * their frames runs, and the ring still works for the others. */
#include "engine.h"

#include <linux/aio_abi.h>
#include <sys/select.h>

#define ROUNDS 100
#define MANY 4096

static struct io_uring ring;
static int pipes[2];
static char buffer[64];
static atomic_int cleaned, started;
static atomic_uint thread_id;
static int exit_value;

static void clean(void *unused)
{
	(void)unused;
	cleaned++;
}

static void clean_variable(int *unused)
{
	(void)unused;
	cleaned++;
}

/* The door by which the thread enters. */
enum door { LIBURING, LIBC, INSTRUCTION };

static enum door door;
static bool is_deferred, ends_in_handler;
static void (*work)(void);

static int enter(unsigned submit, unsigned wait)
{
	if (door == LIBC)
		return syscall(__NR_io_uring_enter, ring.ring_fd, submit, wait, IORING_ENTER_GETEVENTS, NULL, 0);
	return raw6(__NR_io_uring_enter, ring.ring_fd, submit, wait, IORING_ENTER_GETEVENTS, 0, 0);
}

/* From here on both frames above have something to clean up, wherever the thread ends. Both are in a call, which
 * matters because the compiler's tables say nothing about places between calls. */
static __attribute__((noinline)) void start_to_work(void)
{
	started = 1;
	work();
}

/* Two frames with something to clean up: one by an attribute, one by pthread_cleanup_push(3). */
static __attribute__((noinline)) void work_in_a_frame(void)
{
	__attribute__((cleanup(clean_variable))) int variable = 0;

	(void)variable;
	start_to_work();
}

static void *thread(void *unused)
{
	(void)unused;
	CHECK(pthread_setcanceltype(is_deferred ? PTHREAD_CANCEL_DEFERRED : PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
	pthread_cleanup_push(clean, NULL);
	thread_id = gettid();
	work_in_a_frame();
	pthread_cleanup_pop(0);
	return NULL;
}

static pthread_t start(void (*what)(void))
{
	pthread_t id;

	work = what;
	cleaned = started = 0;
	CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
	while (!started)
		sched_yield();
	return id;
}

static void exit_in_handler(int signal)
{
	(void)signal;
	pthread_exit(&exit_value);
}

static void enter_all_the_time(void);
static void submit_all_the_time(void);

/* A patched instruction jumps to an island. Unwinders have no information on a few of its instructions. A thread that
 * ends in these skips the cleanup of its frames. */
static bool may_be_in_an_island(void)
{
	return door == INSTRUCTION && (work == enter_all_the_time || work == submit_all_the_time);
}

/* Ends the thread, and checks that it has cleaned up. */
static void end(pthread_t id)
{
	void *result;

	CHECK((ends_in_handler ? pthread_kill(id, SIGUSR1) : pthread_cancel(id)) == 0);
	CHECK(pthread_join(id, &result) == 0);
	CHECK(result == (ends_in_handler ? &exit_value : PTHREAD_CANCELED));
	CHECK(cleaned == 2 || may_be_in_an_island());
}

static void in_handlers(void)
{
	struct sigaction action = {.sa_handler = exit_in_handler, .sa_flags = SA_RESTART};

	ends_in_handler = true;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
}

static void wait_for_a_cqe(void)
{
	struct io_uring_cqe *cqe;

	if (door == LIBURING)
		io_uring_wait_cqe(&ring, &cqe);
	else
		enter(0, 1);
	CHECK(!"a thread that ends here");
}

/* Another thread's request on the ring completes, and its CQE can be waited for. */
static void use(uint64_t user_data)
{
	submit_read(&ring, pipes[0], buffer, 1, user_data);
	write_all(pipes[1], "x");
	expect(&ring, user_data, 1);
}

static void ends_waits_of(unsigned flags)
{
	init_ring(&ring, 8, flags);
	for (door = LIBURING; door <= INSTRUCTION; door++) {
		for (int i = 0; i < 3; i++) {
			pthread_t id = start(wait_for_a_cqe);

			wait_asleep(thread_id);
			end(id);
		}
		use(door);
		/* With a request that is armed: the thread sleeps on the poll set. */
		submit_read(&ring, pipes[0], buffer, 1, 100 + door);
		for (int i = 0; i < 3; i++) {
			pthread_t id = start(wait_for_a_cqe);

			wait_asleep(thread_id);
			end(id);
		}
		write_all(pipes[1], "y");
		expect(&ring, 100 + door, 1);
	}
	io_uring_queue_exit(&ring);
}

static void ends_waits(void)
{
	CHECK(pipe(pipes) == 0);
	ends_waits_of(0);
	ends_waits_of(IORING_SETUP_SQPOLL);
}

static void exits_in_waits(void)
{
	in_handlers();
	ends_waits();
}

/* The call never sleeps, so whenever the thread ends, it is probably in the call. */
static void enter_all_the_time(void)
{
	for (;;)
		CHECK(enter(0, 0) == 0);
}

static void submit_all_the_time(void)
{
	for (;;)
		CHECK(enter(1, 0) >= 0);
}

static void ends_anywhere_in(void (*what)(void))
{
	unsigned seed = 1;

	CHECK(pipe(pipes) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		unsigned published;
		pthread_t id;

		door = LIBC + round % 2;
		init_ring(&ring, MANY, 0);
		/* All SQEs are published here. The thread submits them. */
		for (int i = 0; what == submit_all_the_time && i < MANY; i++)
			io_uring_prep_nop(next_sqe(&ring));
		published = *ring.sq.ktail + (ring.sq.sqe_tail - ring.sq.sqe_head);
		for (unsigned i = *ring.sq.ktail; ring.sq.array && i != published; i++)
			ring.sq.array[i & *ring.sq.kring_mask] = i & *ring.sq.kring_mask;
		ring.sq.sqe_head = ring.sq.sqe_tail;
		__atomic_store_n(ring.sq.ktail, published, __ATOMIC_RELEASE);
		id = start(what);
		for (volatile int i = rand_r(&seed) % 20000; i > 0; i--)
			;
		end(id);
		/* Each SQE that was consumed has its CQE. */
		CHECK(syscall(__NR_io_uring_enter, ring.ring_fd, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0) == 0);
		CHECK(io_uring_cq_ready(&ring) == MANY * (what == submit_all_the_time) - io_uring_sq_ready(&ring));
		io_uring_cq_advance(&ring, io_uring_cq_ready(&ring));
		io_uring_queue_exit(&ring);
	}
}

static void ends_anywhere(void)
{
	ends_anywhere_in(enter_all_the_time);
}

static void exits_anywhere(void)
{
	in_handlers();
	ends_anywhere_in(enter_all_the_time);
}

static void ends_submissions(void)
{
	ends_anywhere_in(submit_all_the_time);
}

static void exits_in_submissions(void)
{
	in_handlers();
	ends_anywhere_in(submit_all_the_time);
}

/* io_uring_enter is no cancellation point. */
static void wait_deferred(void)
{
	CHECK(enter(0, 1) == 0);
	started = 2;
	pthread_testcancel();
	CHECK(!"a thread that was cancelled");
}

static void is_no_point(void)
{
	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	is_deferred = true;
	for (door = LIBC; door <= INSTRUCTION; door++) {
		void *result;
		pthread_t id;

		submit_read(&ring, pipes[0], buffer, 1, door);
		id = start(wait_deferred);
		wait_asleep(thread_id);
		CHECK(pthread_cancel(id) == 0);
		wait_asleep(thread_id);
		CHECK(started == 1);
		write_all(pipes[1], "x");
		CHECK(pthread_join(id, &result) == 0);
		CHECK(result == PTHREAD_CANCELED && started == 2 && cleaned == 2);
		expect(&ring, door, 1);
	}
}

static int epoll, sockets[2];

static void in_poll(void)
{
	struct pollfd set = {pipes[0], POLLIN, 0};

	poll(&set, 1, -1);
}

static void in_ppoll(void)
{
	struct pollfd set = {pipes[0], POLLIN, 0};
	sigset_t none;

	sigemptyset(&none);
	ppoll(&set, 1, NULL, &none);
}

static void in_epoll_wait(void)
{
	struct epoll_event event;

	epoll_wait(epoll, &event, 1, -1);
}

static void in_epoll_pwait(void)
{
	struct epoll_event event;
	sigset_t none;

	sigemptyset(&none);
	epoll_pwait(epoll, &event, 1, -1, &none);
}

static void in_select(void)
{
	fd_set set;

	FD_ZERO(&set);
	FD_SET(pipes[0], &set);
	select(pipes[0] + 1, &set, NULL, NULL, NULL);
}

static void in_pselect(void)
{
	fd_set set;
	sigset_t none;

	sigemptyset(&none);
	FD_ZERO(&set);
	FD_SET(pipes[0], &set);
	pselect(pipes[0] + 1, &set, NULL, NULL, NULL, &none);
}

static void in_sigsuspend(void)
{
	sigset_t none;

	sigemptyset(&none);
	sigsuspend(&none);
}

static void in_sendmsg(void)
{
	static char full[1 << 20];
	struct iovec part = {full, sizeof(full)};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	sendmsg(sockets[0], &message, 0);
}


static void in_sleeping_syscall(void)
{
	struct pollfd set = {pipes[0], POLLIN, 0};

	syscall(__NR_poll, &set, 1, -1);
}

static void in_sleeping_instruction(void)
{
	struct pollfd set = {pipes[0], POLLIN, 0};

	raw6(__NR_poll, (long)&set, 1, -1, 0, 0, 0);
}

static void end_asleep(void (*what)(void))
{
	pthread_t id = start(what);

	wait_asleep(thread_id);
	end(id);
}

/* A cancellation point stays a cancellation point, with a ring in the process and without. */
static void points(void)
{
	static void (*const all[])(void) = {in_poll,	in_ppoll,   in_epoll_wait, in_epoll_pwait,
					    in_select,	in_pselect, in_sigsuspend, in_sendmsg};
	struct epoll_event event = {.events = EPOLLIN};

	CHECK(pipe(pipes) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	epoll = epoll_create1(0);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event) == 0);
	for (int with_ring = 0; with_ring < 2; with_ring++) {
		if (with_ring) {
			init_ring(&ring, 8, 0);
			event.data.fd = ring.ring_fd;
			CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ring.ring_fd, &event) == 0);
		}
		for (int deferred = 0; deferred < 2; deferred++)
			for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
				is_deferred = deferred;
				end_asleep(all[i]);
			}
		/* These calls are no cancellation points. */
		is_deferred = false;
		end_asleep(in_sleeping_syscall);
		end_asleep(in_sleeping_instruction);
	}
	use(1);
}

static void exits_in_points(void)
{
	in_handlers();
	points();
}

static void cancelled_close(void)
{
	pthread_cancel(pthread_self());
	close(dup(0));
	CHECK(!"a thread that ends here");
}

/* close(2) is a cancellation point that does not sleep. */
static void ends_in_close(void)
{
	void *result;
	pthread_t id;

	init_ring(&ring, 8, 0);
	is_deferred = true;
	id = start(cancelled_close);
	CHECK(pthread_join(id, &result) == 0);
	CHECK(result == PTHREAD_CANCELED && cleaned == 2);
}

static aio_context_t context;

static void wait_for_an_event(void)
{
	struct io_event event;

	syscall(__NR_io_getevents, context, 1, 1, &event, NULL);
	CHECK(!"a thread that ends here");
}

static void ends_aio(void)
{
	struct iocb read = {.aio_lio_opcode = IOCB_CMD_POLL, .aio_data = 7, .aio_buf = POLLIN}, *list = &read;
	struct io_event event;

	CHECK(pipe(pipes) == 0);
	CHECK(syscall(__NR_io_setup, 8, &context) == 0);
	end_asleep(wait_for_an_event);
	in_handlers();
	end_asleep(wait_for_an_event);
	read.aio_fildes = pipes[0];
	CHECK(syscall(__NR_io_submit, context, 1, &list) == 1);
	end_asleep(wait_for_an_event);
	write_all(pipes[1], "x");
	CHECK(syscall(__NR_io_getevents, context, 1, 1, &event, NULL) == 1);
	CHECK(event.data == 7);
}

static atomic_int nested;

/* The handler itself waits, and is interrupted by another handler that ends the thread. */
static void wait_in_handler(int signal)
{
	__attribute__((cleanup(clean_variable))) int variable = 0;
	void (*volatile what)(void) = wait_for_a_cqe; /* volatile, so that the compiler does not see that nothing is thrown */

	(void)signal;
	(void)variable;
	pthread_cleanup_push(clean, NULL);
	nested = 1;
	what();
	pthread_cleanup_pop(0);
	CHECK(!"a thread that ends here");
}

static void ends_nested_waits(void)
{
	struct sigaction action = {.sa_handler = wait_in_handler};

	CHECK(pipe(pipes) == 0);
	CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
	for (int round = 0; round < 4; round++) {
		pthread_t id;
		void *result;

		init_ring(&ring, 8, 0);
		door = LIBC + round % 2;
		if (round == 2)
			in_handlers();
		id = start(wait_for_a_cqe);
		wait_asleep(thread_id);
		nested = 0;
		CHECK(pthread_kill(id, SIGUSR2) == 0);
		while (!nested)
			sched_yield();
		wait_asleep(thread_id);
		CHECK((ends_in_handler ? pthread_kill(id, SIGUSR1) : pthread_cancel(id)) == 0);
		CHECK(pthread_join(id, &result) == 0);
		CHECK(result == (ends_in_handler ? &exit_value : PTHREAD_CANCELED));
		CHECK(cleaned == 4);
		use(round);
		io_uring_queue_exit(&ring);
	}
}

static void clean_and_exit(int signal)
{
	(void)signal;
	pthread_cleanup_push(clean, NULL);
	pthread_exit(&exit_value);
	pthread_cleanup_pop(0);
}

/* The handler that ends the thread has its own cleanup, which must run once. */
static void exits_with_cleanup(void)
{
	struct sigaction action = {.sa_handler = clean_and_exit};

	CHECK(pipe(pipes) == 0);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	init_ring(&ring, 8, 0);
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t id;
		void *result;

		door = LIBC + round % 2;
		id = start(round % 3 ? enter_all_the_time : wait_for_a_cqe);
		if (round % 3 == 0)
			wait_asleep(thread_id);
		CHECK(pthread_kill(id, SIGUSR1) == 0);
		CHECK(pthread_join(id, &result) == 0);
		CHECK(result == &exit_value);
		CHECK(cleaned == 3 || (cleaned == 1 && may_be_in_an_island()));
		if (round % 3 == 0)
			use(round);
	}
	use(1);
}

CASES({"ends-waits", ends_waits}, {"exits-in-waits", exits_in_waits}, {"ends-anywhere", ends_anywhere},
      {"exits-anywhere", exits_anywhere}, {"ends-submissions", ends_submissions},
      {"exits-in-submissions", exits_in_submissions}, {"is-no-point", is_no_point}, {"points", points},
      {"exits-in-points", exits_in_points}, {"ends-in-close", ends_in_close}, {"ends-aio", ends_aio},
      {"ends-nested-waits", ends_nested_waits}, {"exits-with-cleanup", exits_with_cleanup})
