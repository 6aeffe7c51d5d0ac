/* A program uses every feature of a ring or a context in many rounds. Afterwards it holds as many resources
 * as after the first rounds. argv[1] is the number of rounds. */
#include "engine.h"

#include "holdings.h"
#include "made.h"

#include <linux/aio_abi.h>

enum { WARM_ROUNDS = 24, SHORT_ROUNDS = 60, SOAK_ROUNDS = 3000, BYTES = 64 };

/* The allowance for more rounds, whatever their number: stacks of the threads that happen to live, and the rounding
 * of libc's and the library's memory. */
enum { FEW_MAPPINGS = 40, FEW_RESIDENT_KIB = 512 };

/* Constants of the kernel's interface that the headers of liburing 2.3 lack. */
enum {
	OP_WAITID = 50,
	OP_FUTEX_WAIT = 51,
	REGISTER_CLONE_BUFFERS = 30,
	REGISTER_RESIZE_RINGS = 33,
	MSG_DATA = 0,
	MSG_SEND_FD = 1,
	FUTEX2_32_PRIVATE = 2 | 128,
};

/* All rounds use this ring, so what a round leaves in it stays. */
static struct io_uring ring;

static void end_somehow(int round)
{
	static void (*const ends[])(struct made *) = {
		by_exit, by_close, by_close_after_unmapping, by_dropping_duplicates, by_replacing, by_closing_a_range,
		by_exit_of_a_thread,
	};
	struct made made;

	make(&made, round);
	ends[round % (sizeof(ends) / sizeof(ends[0]))](&made);
}

/* Reaps `count` CQEs, whatever their results. */
static void take_any(struct io_uring *of, int count)
{
	struct io_uring_cqe *cqe;

	for (; count; count--) {
		CHECK(wait_ms(of, &cqe, LONG_MS) == 0);
		io_uring_cqe_seen(of, cqe);
	}
	CHECK(!io_uring_cq_ready(of));
}

/* A child uses an inherited ring. It then closes the ring, exits with it, executes another program, or is killed. */
static void fork_with_a_ring(int round)
{
	struct made made;
	pid_t child;

	if (round % 5 == 4) {
		make(&made, round / 5 * 2 % 20);
		with_a_killed_child(&made);
		return;
	}
	memset(&made, 0, sizeof(made));
	init_ring(&made.ring, 8, 0);
	made.fd = made.ring.ring_fd;
	submit_read(&made.ring, pipes[0], buffers[1], 1, 1);
	child = fork();
	if (child == 0) {
		if (round % 5 == 0) {
			prepare_nop(&made.ring, 2);
			submit(&made.ring, 1);
			expect(&made.ring, 2, 0);
		} else if (round % 5 == 1) {
			io_uring_queue_exit(&made.ring);
			init_ring(&made.ring, 8, 0);
		} else if (round % 5 == 2) {
			execl("/bin/true", "true", NULL);
			_exit(1);
		}
		_exit(0);
	}
	wait_for_child(child);
	by_exit(&made);
}

static void *uses_its_index(void *of)
{
	struct io_uring *shared = of, own;

	init_ring(&own, 8, 0);
	CHECK(answer(io_uring_register_ring_fd(&own)) == 1);
	submit_read(&own, pipes[0], buffers[2], 1, 1);
	prepare_nop(&own, 2);
	submit(&own, 1);
	expect(&own, 2, 0);
	io_uring_prep_msg_ring(next_sqe(&own), shared->ring_fd, 0, 3, 0);
	submit(&own, 1);
	take_any(&own, 1);
	CHECK(close(own.ring_fd) == 0); /* its index stays until the thread ends */
	CHECK(munmap(own.sq.sqes, own.sq.ring_entries * sizeof(struct io_uring_sqe)) == 0);
	CHECK(munmap(own.sq.ring_ptr, own.sq.ring_sz) == 0);
	return NULL;
}

static void end_a_thread(int round)
{
	pthread_t thread;

	(void)round;
	CHECK(pthread_create(&thread, NULL, uses_its_index, &ring) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	take_any(&ring, 1);
}

static void *waits_for_ever(void *of)
{
	struct io_uring_cqe *cqe;

	__atomic_store_n((pid_t *)of, gettid(), __ATOMIC_RELEASE);
	while (io_uring_wait_cqe(&ring, &cqe) == 0)
		io_uring_cqe_seen(&ring, cqe);
	return NULL;
}

/* pthread_cancel(3) ends a thread in its wait. */
static void cancel_a_thread(int round)
{
	pthread_t thread;
	pid_t tid = 0;

	if (round % 8)
		return; /* it takes milliseconds to see that the thread sleeps */
	CHECK(pthread_create(&thread, NULL, waits_for_ever, &tid) == 0);
	while (!__atomic_load_n(&tid, __ATOMIC_ACQUIRE))
		sched_yield();
	wait_asleep(tid);
	CHECK(pthread_kill(thread, SIGUSR2) == 0); /* whose signal handler exits: io_uring_enter is no cancellation point */
	CHECK(pthread_join(thread, NULL) == 0);
}

static void exits(int signal)
{
	(void)signal;
	pthread_exit(NULL);
}

static void use_linux_aio(int round)
{
	struct iocb polled = {.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = pipes[0], .aio_buf = POLLIN};
	struct iocb read = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = file, .aio_nbytes = 8};
	struct iocb *iocbs[] = {&read, &polled};
	struct io_event events[2];
	aio_context_t context = 0;

	if (round % 4 > 1)
		return; /* a context of the kernel takes tens of milliseconds to end */
	read.aio_buf = (uintptr_t)buffers[3];
	CHECK(syscall(SYS_io_setup, 8, &context) == 0);
	CHECK(syscall(SYS_io_submit, context, 2, iocbs) == 2);
	CHECK(syscall(SYS_io_getevents, context, 1, 2, events, NULL) == 1 && events[0].res == 8);
	if (round % 2)
		syscall(SYS_io_cancel, context, &polled, events);
	CHECK(syscall(SYS_io_destroy, context) == 0);
}

/* Registers, uses, updates and unregisters. */
static void register_files(int round)
{
	int files[] = {pipes[0], file, -1, -1}, other[] = {pipes[1], pipes[0]};

	CHECK(answer(io_uring_register_files(&ring, files, 4)) == 0);
	prepare_read(&ring, 0, buffers[4], 1, 1)->flags |= IOSQE_FIXED_FILE; /* keeps the file that it has */
	submit(&ring, 1);
	CHECK(answer(io_uring_register_files_update(&ring, 0, other, 2)) == 2);
	io_uring_prep_openat_direct(next_sqe(&ring), AT_FDCWD, "/dev/null", O_RDWR, 0, 2);
	submit(&ring, 1);
	take_any(&ring, 1);
	if (round % 2) {
		io_uring_prep_close_direct(next_sqe(&ring), 2);
		submit(&ring, 1);
		take_any(&ring, 1);
	}
	CHECK(answer(io_uring_unregister_files(&ring)) == 0);
	io_uring_prep_cancel64(next_sqe(&ring), 1, 0);
	submit(&ring, 1);
	take_any(&ring, 2);
}

static void register_buffers(int round)
{
	struct iovec areas[] = {{buffers[0], BYTES}, {buffers[1], 4 * BYTES}};
	struct {
		unsigned from, flags, at_source, at_target, count, reserved[3];
	} clone = {.from = ring.ring_fd};
	struct io_uring other;

	CHECK(answer(io_uring_register_buffers(&ring, areas, 2)) == 0);
	io_uring_prep_read_fixed(next_sqe(&ring), file, buffers[1], 8, 0, 1);
	submit(&ring, 1);
	take_any(&ring, 1);
	CHECK(answer(io_uring_register_buffers_update_tag(&ring, 0, areas + 1, NULL, 1)) == 1);
	init_ring(&other, 8, 0);
	CHECK(syscall(__NR_io_uring_register, other.ring_fd, REGISTER_CLONE_BUFFERS, &clone, 1) == 0);
	if (round % 2)
		CHECK(answer(io_uring_unregister_buffers(&other)) == 0);
	io_uring_queue_exit(&other);
	CHECK(answer(io_uring_unregister_buffers(&ring)) == 0);
}

static void provide_buffers(int round)
{
	static char area[16][BYTES] __attribute__((aligned(4096)));
	static char memory[4096] __attribute__((aligned(4096)));
	struct io_uring_buf_ring *provided = (struct io_uring_buf_ring *)memory;
	struct io_uring_buf_reg reg = {.ring_addr = (uintptr_t)memory, .ring_entries = 8, .bgid = 7};
	struct io_uring_sqe *sqe;

	CHECK(answer(io_uring_register_buf_ring(&ring, &reg, 0)) == 0);
	io_uring_buf_ring_init(provided);
	io_uring_buf_ring_add(provided, area[0], BYTES, 0, 7, 0);
	io_uring_buf_ring_advance(provided, 1);
	sqe = prepare_read(&ring, file, NULL, BYTES, 1);
	sqe->flags |= IOSQE_BUFFER_SELECT;
	sqe->buf_group = 7;
	submit(&ring, 1);
	take_any(&ring, 1);
	CHECK(answer(io_uring_unregister_buf_ring(&ring, 7)) == 0);
	io_uring_prep_provide_buffers(next_sqe(&ring), area, BYTES, 16, 8, 0);
	submit(&ring, 1);
	take_any(&ring, 1);
	sqe = prepare_read(&ring, file, NULL, BYTES, 1);
	sqe->flags |= IOSQE_BUFFER_SELECT;
	sqe->buf_group = 8;
	submit(&ring, 1);
	take_any(&ring, 1);
	io_uring_prep_remove_buffers(next_sqe(&ring), round % 2 ? 15 : 16, 8);
	submit(&ring, 1);
	take_any(&ring, 1);
}

static void register_the_rest(int round)
{
	int eventfd_number = eventfd(0, EFD_CLOEXEC), personality;

	CHECK(eventfd_number >= 0 && answer(io_uring_register_eventfd(&ring, eventfd_number)) == 0);
	prepare_nop(&ring, 1);
	submit(&ring, 1);
	expect(&ring, 1, 0);
	CHECK(answer(io_uring_unregister_eventfd(&ring)) == 0);
	CHECK(close(eventfd_number) == 0);
	if (round % 4)
		return; /* a personality takes an engine thread */
	personality = io_uring_register_personality(&ring);
	CHECK(answer(personality) > 0);
	io_uring_prep_openat(next_sqe(&ring), AT_FDCWD, "/dev/null", O_RDONLY, 0);
	ring.sq.sqes[(ring.sq.sqe_tail - 1) & *ring.sq.kring_mask].personality = personality;
	submit(&ring, 1);
	{
		struct io_uring_cqe *cqe;

		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
		CHECK(answer(cqe->res) >= 0 && close(cqe->res) == 0);
		io_uring_cqe_seen(&ring, cqe);
	}
	CHECK(answer(io_uring_unregister_personality(&ring, personality)) == 0);
}

/* The new rings are not mapped. The old mappings are unmapped with the close of the number. */
static void resize(int round)
{
	struct io_uring_params p = {.sq_entries = 16 << round % 3, .cq_entries = 64 << round % 3,
				    .flags = IORING_SETUP_CQSIZE};
	struct made made;

	memset(&made, 0, sizeof(made));
	init_ring(&made.ring, 8, DEFERRED);
	made.fd = made.ring.ring_fd;
	submit_read(&made.ring, pipes[0], buffers[5], 1, 1);
	CHECK(syscall(__NR_io_uring_register, made.fd, REGISTER_RESIZE_RINGS, &p, 1) == 0);
	by_close(&made);
}

/* Requests that wait, and are then cancelled, removed or updated, each by its own call. */
static void cancel(int round)
{
	struct __kernel_timespec long_time = {3600, 0};

	prepare_read(&ring, pipes[0], buffers[6], 1, 1);
	io_uring_prep_poll_multishot(next_sqe(&ring), pipes[0], POLLIN);
	ring.sq.sqes[(ring.sq.sqe_tail - 1) & *ring.sq.kring_mask].user_data = 2;
	io_uring_prep_timeout(next_sqe(&ring), &long_time, 0, 0);
	ring.sq.sqes[(ring.sq.sqe_tail - 1) & *ring.sq.kring_mask].user_data = 3;
	prepare_read(&ring, pipes[0], buffers[7], 1, 4)->flags |= IOSQE_IO_LINK;
	io_uring_prep_link_timeout(next_sqe(&ring), &long_time, 0);
	submit(&ring, 5);
	if (round % 3 == 0) {
		io_uring_prep_cancel(next_sqe(&ring), NULL, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
		submit(&ring, 1);
		take_any(&ring, 6);
		return;
	}
	io_uring_prep_poll_remove(next_sqe(&ring), 2);
	io_uring_prep_timeout_update(next_sqe(&ring), &long_time, 3, 0);
	io_uring_prep_timeout_remove(next_sqe(&ring), 3, 0);
	submit(&ring, 3);
	take_any(&ring, 5);
	if (round % 3 == 1) {
		struct io_uring_sync_cancel_reg reg = {.fd = pipes[0], .timeout = {-1, -1},
						       .flags = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL};

		CHECK(answer(io_uring_register_sync_cancel(&ring, &reg)) >= 0);
		take_any(&ring, 3);
		return;
	}
	io_uring_prep_cancel_fd(next_sqe(&ring), pipes[0], IORING_ASYNC_CANCEL_ALL);
	submit(&ring, 1);
	take_any(&ring, 4);
}

/* Workers, and threads that wait. */
static void have_work_done(int round)
{
	static unsigned word;
	struct io_uring_sqe *sqe;
	struct statx answers;
	siginfo_t info;
	pid_t child = round % 4 ? 0 : fork();
	int own[2];

	if (round % 4 == 0 && child == 0)
		_exit(0);
	prepare_read(&ring, file, buffers[9], 8, 1)->flags |= IOSQE_ASYNC;
	sqe = next_sqe(&ring);
	io_uring_prep_statx(sqe, AT_FDCWD, "/", 0, STATX_TYPE, &answers);
	sqe->flags |= IOSQE_ASYNC;
	sqe = next_sqe(&ring);
	io_uring_prep_rw(OP_FUTEX_WAIT, sqe, FUTEX2_32_PRIVATE, &word, 0, 0);
	sqe->addr3 = UINT32_MAX;
	sqe->user_data = 2;
	submit(&ring, 3);
	take_any(&ring, 2);
	io_uring_prep_cancel64(next_sqe(&ring), 2, 0);
	submit(&ring, 1);
	take_any(&ring, 2);
	CHECK(pipe2(own, O_CLOEXEC) == 0);
	prepare_read(&ring, own[0], buffers[8], 1, 3)->flags |= IOSQE_ASYNC;
	submit(&ring, 1);
	write_all(own[1], "x");
	take_any(&ring, 1);
	CHECK(close(own[0]) == 0 && close(own[1]) == 0);
	if (round % 4)
		return;
	sqe = next_sqe(&ring);
	io_uring_prep_rw(OP_WAITID, sqe, child, NULL, P_PID, 0);
	sqe->file_index = WEXITED;
	sqe->addr2 = (uintptr_t)&info;
	submit(&ring, 1);
	take_any(&ring, 1);
}

static void tell_another_ring(int round)
{
	struct io_uring_sqe *sqe;
	struct io_uring other;
	int files[] = {file};

	init_ring(&other, 8, round % 2 ? DEFERRED : 0);
	CHECK(answer(io_uring_register_files_sparse(&other, 2)) == 0);
	CHECK(answer(io_uring_register_files(&ring, files, 1)) == 0);
	io_uring_prep_msg_ring(next_sqe(&ring), other.ring_fd, 5, 6, 0);
	sqe = next_sqe(&ring);
	io_uring_prep_rw(IORING_OP_MSG_RING, sqe, other.ring_fd, (void *)MSG_SEND_FD, 0, 7);
	sqe->file_index = 1; /* the first free slot is named by its number and one */
	submit(&ring, 2);
	take_any(&ring, 2);
	take_any(&other, 2);
	CHECK(answer(io_uring_unregister_files(&ring)) == 0);
	io_uring_queue_exit(&other);
}

/* A ring in epoll sets, under several numbers that are closed in another order. */
static void watch(int round)
{
	struct epoll_event event = {.events = EPOLLIN | (round % 2 ? EPOLLET : 0)};
	int set = epoll_create1(EPOLL_CLOEXEC), number;
	struct io_uring other;

	init_ring(&other, 8, round % 3 ? 0 : DEFERRED);
	number = dup(other.ring_fd);
	CHECK(set >= 0 && number >= 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, round % 4 < 2 ? number : other.ring_fd, &event) == 0);
	prepare_nop(&other, 1);
	prepare_read(&other, pipes[0], buffers[10], 1, 2);
	submit(&other, 2);
	CHECK(epoll_wait(set, &event, 1, LONG_MS) == 1);
	if (round % 2) {
		CHECK(close(set) == 0);
		io_uring_queue_exit(&other);
		CHECK(close(number) == 0);
	} else {
		CHECK(close(number) == 0);
		io_uring_queue_exit(&other);
		CHECK(close(set) == 0);
	}
}

static void talk(int round)
{
	int sockets[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
	io_uring_prep_recv(next_sqe(&ring), sockets[0], buffers[11], BYTES, 0);
	submit(&ring, 1);
	io_uring_prep_send(next_sqe(&ring), sockets[1], "x", 1, 0);
	submit(&ring, 1);
	take_any(&ring, 2);
	io_uring_prep_recv(next_sqe(&ring), sockets[0], buffers[11], BYTES, 0);
	submit(&ring, 1);
	if (round % 2) {
		io_uring_prep_close(next_sqe(&ring), sockets[1]);
		submit(&ring, 1);
		take_any(&ring, 2);
		CHECK(close(sockets[0]) == 0);
		return;
	}
	CHECK(close(sockets[0]) == 0 && close(sockets[1]) == 0); /* the request keeps its file */
	take_any(&ring, 1);
}

static volatile sig_atomic_t caught;

static void count_signal(int signal)
{
	(void)signal;
	caught++;
}

/* Signals come in the middle of submissions. */
static void interrupt(int round)
{
	struct itimerval soon = {.it_value = {0, 100 + round % 7 * 10}};
	int before = caught;

	CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
	while (caught == before) {
		for (int i = 0; i < 32; i++)
			prepare_nop(&ring, i);
		submit(&ring, 32);
		for (int i = 0; i < 32; i++)
			take(&ring, i, 0);
	}
}

static void (*const kinds[])(int) = {
	end_somehow, fork_with_a_ring, end_a_thread, cancel_a_thread, use_linux_aio, register_files, register_buffers,
	provide_buffers, register_the_rest, resize, cancel, have_work_done, tell_another_ring, watch, talk, interrupt,
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* All resources that are compared. */
struct usage {
	struct holdings held;
	long resident_kib, filters;
};

static struct usage current_usage(void)
{
	struct usage now = {look(), 0, 0};
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	long value;

	CHECK(status);
	while (fgets(line, sizeof(line), status)) {
		if (sscanf(line, "RssAnon: %ld", &value) == 1 || sscanf(line, "RssShmem: %ld", &value) == 1)
			now.resident_kib += value;
		sscanf(line, "Seccomp_filters: %ld", &now.filters);
	}
	fclose(status);
	return now;
}

static int has_more(const struct usage *now, const struct usage *before)
{
	return now->held.descriptors > before->held.descriptors || now->filters > before->filters ||
	       now->held.mappings > before->held.mappings + FEW_MAPPINGS ||
	       now->resident_kib > before->resident_kib + FEW_RESIDENT_KIB;
}

/* Returns the resources held, after those of ended rings have been released. */
static struct usage settle(const struct usage *before)
{
	struct usage now = current_usage();

	for (int ms = 0; ms < LONG_MS && has_more(&now, before); ms += 10, now = current_usage())
		usleep(10000);
	return now;
}

static void say(const char *when, const struct usage *it)
{
	fprintf(stderr, "%s: %d descriptors, %d threads, %d mappings of %ld KiB, %d contexts, %ld filters, %ld KiB resident\n", when,
		it->held.descriptors, it->held.threads, it->held.mappings, it->held.mapped_kib, it->held.contexts, it->filters,
		it->resident_kib);
}

static void go(int rounds)
{
	const char *only = getenv("WEAR_KIND"); /* to find the kind that leaks */

	for (int round = 0; round < rounds; round++)
		for (int kind = 0; kind < KINDS; kind++)
			if (!only || atoi(only) == kind)
				kinds[kind](round);
}

static void repeat(int rounds)
{
	struct usage warm, once, twice;

	need_proc();
	signal(SIGALRM, count_signal);
	signal(SIGUSR2, exits);
	open_files();
	init_ring(&ring, 64, 0);
	go(WARM_ROUNDS);
	warm = current_usage();
	go(rounds);
	once = settle(&warm);
	go(rounds);
	twice = settle(&once);
	if (has_more(&once, &warm) || has_more(&twice, &once))
		say("warm", &warm), say("once", &once), say("twice", &twice);
	CHECK(!has_more(&once, &warm) && !has_more(&twice, &once));
	io_uring_queue_exit(&ring);
	for (int ms = 0; once.held.threads > 1 || once.held.contexts; ms += 10, once.held = look()) {
		CHECK(ms < LONG_MS); /* some threads and contexts are kept as long as there is a ring */
		usleep(10000);
	}
}

static void for_a_moment(void)
{
	repeat(SHORT_ROUNDS);
}

static void soak(void)
{
	repeat(SOAK_ROUNDS);
}

CASES({"short", for_a_moment}, {"soak", soak})
