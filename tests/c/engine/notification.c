/* Ways to learn of completions without waiting in io_uring_enter(2): an eventfd, the ring's readiness, and polling the
 * CQ. */
#include "engine.h"

#include <sys/timerfd.h>

#define MESSAGES 20000

static char buffer[8];
static int pipes[2];
static struct io_uring ring;

/* Work that is deferred to the next io_uring_enter(2) is announced every time, not only the first time. */
static void eventfd_of_a_deferred_ring(void)
{
	struct pollfd polled = {.events = POLLIN};
	uint64_t count;

	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, DEFERRED);
	polled.fd = eventfd(0, EFD_NONBLOCK);
	CHECK(answer(io_uring_register_eventfd(&ring, polled.fd)) == 0);
	for (int round = 0; round < 4; round++) {
		submit_read(&ring, pipes[0], buffer, 4, round);
		wait_others_asleep(0);
		write_all(pipes[1], "abcd");
		CHECK(poll(&polled, 1, LONG_MS) == 1);
		wait_others_asleep(0);
		CHECK(io_uring_get_events(&ring) >= 0);
		take(&ring, round, 4);
		while (read(polled.fd, &count, sizeof(count)) == sizeof(count))
			continue;
	}
}

/* If the eventfd's count cannot grow, the signalling thread must not block, although the eventfd is a blocking one. */
static void eventfd_near_its_maximum(void)
{
	const uint64_t maximum = ~0UL - 1;

	for (uint64_t room = 0; room < 2; room++) {
		int event = eventfd(0, 0);
		uint64_t count = maximum - room;

		CHECK(write(event, &count, sizeof(count)) == sizeof(count));
		init_ring(&ring, 8, 0);
		CHECK(answer(io_uring_register_eventfd(&ring, event)) == 0);
		for (int i = 0; i < 3; i++) {
			prepare_nop(&ring, i);
			submit(&ring, 1);
			take(&ring, i, 0);
		}
		CHECK(read(event, &count, sizeof(count)) == sizeof(count));
		CHECK(count >= maximum);
		io_uring_queue_exit(&ring);
	}
}

/* After a wait that timed out, an engine thread goes on serving the ring. It must learn of a timer that is submitted
 * later, since the program makes no further call. */
static void timer_after_a_wait(void)
{
	struct __kernel_timespec five_ms = {0, 5000000};
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;

	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], buffer, 4, 1);
	wait_others_asleep(0);
	CHECK(wait_ms(&ring, &cqe, 5) == -ETIME);
	wait_others_asleep(0);
	sqe = next_sqe(&ring);
	io_uring_prep_timeout(sqe, &five_ms, 0, 0);
	sqe->user_data = 2;
	submit(&ring, 1);
	only_look(&ring);
	take(&ring, 2, -ETIME);
}

/* Deferred work makes the ring readable. The ring stays readable for a thread that begins to wait later. */
static void level_epoll_on_a_deferred_ring(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int epoll = epoll_create1(0);

	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, DEFERRED);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ring.ring_fd, &event) == 0);
	submit_read(&ring, pipes[0], buffer, 4, 1);
	wait_others_asleep(0);
	write_all(pipes[1], "abcd");
	wait_others_asleep(0);
	CHECK(epoll_wait(epoll, &event, 1, LONG_MS) == 1);
	CHECK(epoll_wait(epoll, &event, 1, LONG_MS) == 1);
	CHECK(io_uring_get_events(&ring) >= 0);
	take(&ring, 1, 4);
	CHECK(epoll_wait(epoll, &event, 1, 20) == 0);
}

static void *write_messages(void *unused)
{
	for (int i = 0; i < MESSAGES; i++) {
		write_all(pipes[1], "x");
		if (i % 64 == 0)
			usleep(100);
	}
	return unused;
}

/* In the kernel, work that is deferred to the thread interrupts its epoll_wait, as a signal might. */
static int wait_in_epoll(int epoll, struct epoll_event *event)
{
	int ready;

	do
		ready = epoll_wait(epoll, event, 1, LONG_MS);
	while (ready < 0 && errno == EINTR);
	return ready;
}

/* No completion is missed by a program that sleeps only in epoll_wait while another thread causes them. */
static void every_message_wakes(unsigned trigger)
{
	struct epoll_event event = {.events = EPOLLIN | trigger};
	int epoll = epoll_create1(0);
	struct io_uring_cqe *cqe;
	pthread_t writer;

	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 64, 0);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ring.ring_fd, &event) == 0);
	CHECK(pthread_create(&writer, NULL, write_messages, NULL) == 0);
	submit_read(&ring, pipes[0], buffer, 1, 0);
	for (int taken = 0; taken < MESSAGES;) {
		CHECK(wait_in_epoll(epoll, &event) == 1);
		while (io_uring_peek_cqe(&ring, &cqe) == 0) {
			take(&ring, taken, 1);
			submit_read(&ring, pipes[0], buffer, 1, ++taken);
		}
	}
	CHECK(pthread_join(writer, NULL) == 0);
}

static void every_message_wakes_level_epoll(void)
{
	every_message_wakes(0);
}

static void every_message_wakes_edge_epoll(void)
{
	every_message_wakes(EPOLLET);
}

/* Only an eventfd can be registered as one, even if nothing shows what a number names. */
static void only_eventfds_without_proc(void)
{
	int event = eventfd(3, 0), others[] = {epoll_create1(0), timerfd_create(CLOCK_MONOTONIC, 0), open("/dev/null", O_RDWR)};
	struct io_uring ring;
	uint64_t count;

	if (!own_mounts())
		skip("no mount namespace can be made");
	hide_proc();
	init_ring(&ring, 8, 0);
	for (int i = 0; i < 3; i++)
		CHECK(io_uring_register_eventfd(&ring, others[i]) == -EINVAL);
	CHECK(answer(io_uring_register_eventfd(&ring, event)) == 0);
	CHECK(read(event, &count, sizeof(count)) == sizeof(count) && count == 3);
}

CASES({"eventfd-deferred", eventfd_of_a_deferred_ring},
      {"eventfd-without-proc", only_eventfds_without_proc},
      {"eventfd-full", eventfd_near_its_maximum},
      {"timer", timer_after_a_wait},
      {"epoll-deferred", level_epoll_on_a_deferred_ring},
      {"epoll-level", every_message_wakes_level_epoll},
      {"epoll-edge", every_message_wakes_edge_epoll})
