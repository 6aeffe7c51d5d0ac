/* Rings of every kind, with requests of every kind in flight, and all the ways in which rings end. `open_files` opens
 * `pipes`, `file` and `direct`. */
#include <stddef.h>

#ifndef IORING_SETUP_NO_MMAP
#define IORING_SETUP_NO_MMAP (1U << 14)
#endif

static char buffers[16][64];
/* Opened with O_DIRECT; -1 if the folder's file system does not support that. */
static int pipes[2], file, direct;
static char *pages;

/* A liburing ring, or a ring in the program's own memory (NO_MMAP), which has only a descriptor. */
struct made {
	struct io_uring ring;
	void *own;
	int fd;
};

#define OWN_BYTES (64 * 1024)

static int make_in_own_memory(struct made *made)
{
	struct io_uring_params p = {.flags = IORING_SETUP_NO_MMAP};
	struct io_uring_sqe *sqes;
	char *rings;

	made->own = mmap(NULL, OWN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(made->own != MAP_FAILED);
	sqes = made->own;
	rings = (char *)made->own + 4096;
	memcpy((char *)&p + offsetof(struct io_uring_params, sq_off) + 32, &sqes, 8);
	memcpy((char *)&p + offsetof(struct io_uring_params, cq_off) + 32, &rings, 8);
	made->fd = syscall(__NR_io_uring_setup, 8, &p);
	CHECK(made->fd >= 0);
	for (unsigned i = 0; i < 2; i++) {
		((unsigned *)(rings + p.sq_off.array))[i] = i;
		sqes[i].opcode = i ? IORING_OP_READ : IORING_OP_NOP;
		sqes[i].fd = pipes[0];
		sqes[i].addr = (uintptr_t)buffers[i];
		sqes[i].len = 1;
	}
	__atomic_store_n((unsigned *)(rings + p.sq_off.tail), 2, __ATOMIC_RELEASE);
	CHECK(syscall(__NR_io_uring_enter, made->fd, 2, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 2);
	return made->fd;
}

static void register_things(struct io_uring *ring)
{
	struct iovec area = {buffers, sizeof(buffers)};
	int files[] = {pipes[0], file, -1, -1};
	int eventfd_number = eventfd(0, EFD_CLOEXEC);

	CHECK(answer(io_uring_register_buffers(ring, &area, 1)) == 0);
	CHECK(answer(io_uring_register_files(ring, files, 4)) == 0);
	CHECK(eventfd_number >= 0 && answer(io_uring_register_eventfd(ring, eventfd_number)) == 0);
	CHECK(close(eventfd_number) == 0);
	io_uring_prep_read_fixed(next_sqe(ring), 1, buffers[5], 8, 0, 0);
	ring->sq.sqes[(ring->sq.sqe_tail - 1) & *ring->sq.kring_mask].flags |= IOSQE_FIXED_FILE;
	io_uring_prep_read(next_sqe(ring), 0, buffers[6], 8, 0);
	ring->sq.sqes[(ring->sq.sqe_tail - 1) & *ring->sq.kring_mask].flags |= IOSQE_FIXED_FILE;
	submit(ring, 2);
}

#define DIRECT_BYTES (64 * 1024)

static void open_direct(void)
{
	char name[64];

	snprintf(name, sizeof(name), "direct-%d", getpid());
	CHECK(posix_memalign((void **)&pages, 4096, 2 * DIRECT_BYTES) == 0);
	memset(pages, 'x', 2 * DIRECT_BYTES);
	direct = open(name, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
	unlink(name);
	if (direct >= 0)
		CHECK(write(direct, pages, DIRECT_BYTES) == DIRECT_BYTES && fsync(direct) == 0);
}

/* The requests in flight when the ring ends: on the device, armed, timed, chained, drained, on a worker. */
static void leave_in_flight(struct io_uring *ring, int round)
{
	static struct __kernel_timespec long_time = {3600, 0};

	prepare_read(ring, pipes[0], buffers[1], 1, 1);
	if (round % 3 == 0)
		io_uring_prep_timeout(next_sqe(ring), &long_time, 0, 0);
	if (round % 3 == 1) {
		prepare_read(ring, pipes[0], buffers[2], 1, 2)->flags |= IOSQE_IO_LINK;
		io_uring_prep_openat(next_sqe(ring), AT_FDCWD, "/dev/null", O_RDONLY, 0);
	}
	if (round % 3 == 2) {
		prepare_read(ring, file, buffers[3], 8, 3)->flags |= IOSQE_ASYNC;
		prepare_read(ring, pipes[0], buffers[4], 1, 4)->flags |= IOSQE_ASYNC;
	}
	io_uring_submit(ring);
	if (direct >= 0 && (round % 4 == 1 || round % 8 == 4) && *ring->sq.kflags == 0) {
		prepare_read(ring, direct, pages, DIRECT_BYTES, 5);
		prepare_read(ring, direct, pages + DIRECT_BYTES, DIRECT_BYTES, 6);
		io_uring_submit(ring);
	}
}

static void make(struct made *made, int round)
{
	static const unsigned flags[] = {0, DEFERRED, IORING_SETUP_SQPOLL, IORING_SETUP_CQSIZE};
	struct io_uring_params p = {.flags = flags[round % 4], .cq_entries = 64, .sq_thread_idle = 1};
	struct __kernel_timespec soon = {0, 1000000};
	struct io_uring_cqe *cqe;

	memset(made, 0, sizeof(*made));
	if (round % 5 == 4) {
		make_in_own_memory(made);
		return;
	}
	/* Only each tenth ring that asks for a polling thread gets one, since a thousand threads take their time. */
	if (p.flags & IORING_SETUP_SQPOLL && (round % 10 || io_uring_queue_init_params(8, &made->ring, &p) != 0))
		p.flags = 0;
	if (!(p.flags & IORING_SETUP_SQPOLL))
		CHECK(answer(io_uring_queue_init_params(8, &made->ring, &p)) == 0);
	made->fd = made->ring.ring_fd;
	prepare_nop(&made->ring, 0);
	CHECK(answer(io_uring_submit_and_wait(&made->ring, 1)) == 1);
	take(&made->ring, 0, 0);
	if (round % 7 == 0)
		register_things(&made->ring);
	leave_in_flight(&made->ring, round);
	if (round % 20 == 0) /* so that the helper, too, watches the pending requests */
		io_uring_wait_cqe_timeout(&made->ring, &cqe, &soon);
}

static void unmap(struct made *made)
{
	struct io_uring *ring = &made->ring;

	if (made->own) {
		CHECK(munmap(made->own, OWN_BYTES) == 0);
		return;
	}
	CHECK(munmap(ring->sq.sqes, *ring->sq.kring_entries * sizeof(struct io_uring_sqe)) == 0);
	CHECK(munmap(ring->sq.ring_ptr, ring->sq.ring_sz) == 0);
	if (ring->cq.ring_ptr != ring->sq.ring_ptr)
		CHECK(munmap(ring->cq.ring_ptr, ring->cq.ring_sz) == 0);
}

static void by_exit(struct made *made)
{
	if (made->own) {
		CHECK(close(made->fd) == 0);
		unmap(made);
		return;
	}
	io_uring_queue_exit(&made->ring);
}

static void by_close(struct made *made)
{
	CHECK(close(made->fd) == 0);
	unmap(made);
}

static void by_close_after_unmapping(struct made *made)
{
	unmap(made);
	CHECK(close(made->fd) == 0);
}

static void by_dropping_duplicates(struct made *made)
{
	int first = dup(made->fd), second = fcntl(made->fd, F_DUPFD_CLOEXEC, 0);

	CHECK(first >= 0 && second >= 0);
	by_exit(made);
	CHECK(close(second) == 0);
	CHECK(syscall(SYS_close, first) == 0);
}

static void by_replacing(struct made *made)
{
	CHECK(dup2(file, made->fd) == made->fd);
	CHECK(close(made->fd) == 0);
	unmap(made);
}

static void by_closing_a_range(struct made *made)
{
	CHECK(close_range(made->fd, made->fd, 0) == 0 || (errno == ENOSYS && close(made->fd) == 0));
	unmap(made);
}

static void *register_and_exit(void *ring_fd)
{
	struct io_uring_rsrc_update update = {.offset = -1U, .data = (uintptr_t)ring_fd};

	int registered = syscall(__NR_io_uring_register, (int)(intptr_t)ring_fd, IORING_REGISTER_RING_FDS, &update, 1);

	CHECK(registered == 1 || errno == EEXIST); /* a ring with a single issuer is the other thread's */
	CHECK(close((int)(intptr_t)ring_fd) == 0);
	return NULL;
}

/* The number is closed, but the thread keeps the ring by its registered index. The ring ends with the thread. */
static void by_exit_of_a_thread(struct made *made)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, register_and_exit, (void *)(intptr_t)made->fd) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	unmap(made);
}

/* A child sleeps in a wait on the inherited ring and is killed. Then the parent closes the ring. */
static void with_a_killed_child(struct made *made)
{
	pid_t child;

	if (made->own) {
		by_exit(made);
		return;
	}
	child = fork();
	if (child == 0) {
		struct io_uring_cqe *cqe;

		if (!(made->ring.flags & (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_SQPOLL))) {
			prepare_read(&made->ring, pipes[0], buffers[7], 1, 7)->flags |= IOSQE_ASYNC;
			io_uring_submit(&made->ring);
		}
		while (io_uring_wait_cqe(&made->ring, &cqe) == 0)
			io_uring_cqe_seen(&made->ring, cqe); /* CQEs of the parent's requests, which would end the wait */
		for (;;) /* on a DEFER_TASKRUN ring the child may not wait, so it only stays */
			pause();
	}
	CHECK(child > 0);
	wait_asleep(child);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	by_exit(made);
}

static void open_files(void)
{
	CHECK(pipe(pipes) == 0);
	file = open("/dev/zero", O_RDWR | O_CLOEXEC);
	CHECK(file >= 0);
	open_direct();
}
