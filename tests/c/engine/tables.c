/* Threads with their own descriptor table (unshare(2), close_range(2)). A number names a file in the submitting
 * thread's table. */
#include "engine.h"

#include <linux/close_range.h>
#include <sys/stat.h>

static struct io_uring ring;
static pthread_barrier_t step;

/* Whether the ring is the kernel's. A worker of the kernel looks up files in the table that its thread had when the
 * worker was made. FALLOCATE and FSYNC always go to a worker. If the worker was made before the unshare, such a request
 * fails with EBADF, or finds another file. */
static int is_kernels(const struct io_uring *ring)
{
	char path[64], name[64] = "";

	snprintf(path, sizeof(path), "/proc/self/fd/%d", ring->ring_fd);
	CHECK(readlink(path, name, sizeof(name) - 1) > 0);
	return strstr(name, "io_uring") != NULL;
}

/* Has a worker make calls on a new number. */
static void call_by_worker(struct io_uring *ring)
{
	char name[] = "table-XXXXXX";
	int file = mkstemp(name);
	struct io_uring_sqe *sqe;
	struct stat status;

	CHECK(file >= 0 && unlink(name) == 0);
	sqe = next_sqe(ring);
	io_uring_prep_fallocate(sqe, file, 0, 0, 4096);
	sqe->user_data = 4;
	submit(ring, 1);
	expect(ring, 4, 0);
	CHECK(fstat(file, &status) == 0 && status.st_size == 4096);
	sqe = next_sqe(ring);
	io_uring_prep_fsync(sqe, file, 0);
	sqe->user_data = 5;
	submit(ring, 1);
	expect(ring, 5, 0);
	CHECK(close(file) == 0);
}

/* Reads that wait: in io_uring_enter(2), or without that call if `looks`. */
static void read_pipes(struct io_uring *ring, int looks)
{
	for (int round = 0; round < 4; round++) {
		char buffer[1];
		int pipes[2];

		CHECK(pipe(pipes) == 0);
		submit_read(ring, pipes[0], buffer, 1, 2);
		write_all(pipes[1], "x");
		if (looks && round % 2)
			only_look(ring);
		expect(ring, 2, 1);
		CHECK(close(pipes[0]) == 0);
		submit_read(ring, pipes[1], buffer, 1, 3);
		expect(ring, 3, -EBADF);
		CHECK(close(pipes[1]) == 0);
	}
}

static void get_table(int how)
{
	switch (how) {
	case 0:
		CHECK(unshare(CLONE_FILES) == 0);
		break;
	case 1:
		CHECK(syscall(SYS_unshare, CLONE_FILES | CLONE_FS) == 0);
		break;
	default:
		CHECK(syscall(SYS_close_range, 400, 410, CLOSE_RANGE_UNSHARE) == 0);
	}
}

/* A program with one thread. Its old ring still works, and so do new rings. */
static void the_only_thread(void)
{
	struct io_uring new;

	init_ring(&ring, 8, 0);
	if (!is_kernels(&ring))
		call_by_worker(&ring); /* so that there are workers with the old table */
	read_pipes(&ring, 1);
	for (int how = 0; how < 3; how++) {
		CHECK(dup2(0, 405) == 405);
		get_table(how);
		CHECK((fcntl(405, F_GETFD) == 0) == (how < 2));
		init_ring(&new, 8, 0);
		if (!is_kernels(&ring) || how == 2) { /* these calls leave workers with the new table */
			call_by_worker(&ring);
			call_by_worker(&new);
		}
		read_pipes(&ring, 1);
		read_pipes(&new, 1);
		read_pipes(&ring, 1);
		io_uring_queue_exit(&new);
	}
}

/* Gets a new table before its first ring. */
static void before_the_first_ring(void)
{
	get_table(0);
	init_ring(&ring, 8, 0);
	call_by_worker(&ring);
	read_pipes(&ring, 1);
}

static void before_the_first_ring_without_proc(void)
{
	if (!own_mounts())
		skip("no mount namespace can be made");
	hide_proc();
	before_the_first_ring();
}

/* One of two threads makes a ring in its own table. The other thread continues with its table. */
static void *with_a_table(void *how)
{
	struct io_uring mine;

	get_table((int)(intptr_t)how);
	pthread_barrier_wait(&step);
	for (int round = 0; round < 8; round++) {
		init_ring(&mine, 8, 0);
		call_by_worker(&mine);
		read_pipes(&mine, 0);
		io_uring_queue_exit(&mine);
	}
	pthread_barrier_wait(&step);
	return NULL;
}

static void a_thread_of_several(void)
{
	for (int how = 0; how < 3; how++) {
		pthread_t thread;

		CHECK(pthread_barrier_init(&step, NULL, 2) == 0);
		init_ring(&ring, 8, 0);
		call_by_worker(&ring);
		CHECK(pthread_create(&thread, NULL, with_a_table, (void *)(intptr_t)how) == 0);
		pthread_barrier_wait(&step);
		for (int round = 0; round < 8; round++) {
			struct io_uring another;

			init_ring(&another, 8, 0);
			call_by_worker(&another);
			read_pipes(&another, 1);
			call_by_worker(&ring);
			read_pipes(&ring, 1);
			io_uring_queue_exit(&another);
		}
		pthread_barrier_wait(&step);
		CHECK(pthread_join(thread, NULL) == 0);
		io_uring_queue_exit(&ring);
	}
}

/* The number that one thread closes in its table is still a file in the other's, with a request in flight. */
static void *close_in_a_table(void *number)
{
	get_table(0);
	CHECK(close((int)(intptr_t)number) == 0);
	CHECK(dup2(0, (int)(intptr_t)number) == (int)(intptr_t)number);
	return NULL;
}

static void a_close_elsewhere(void)
{
	pthread_t thread;
	char buffer[1];
	int pipes[2];

	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], buffer, 1, 1);
	CHECK(pthread_create(&thread, NULL, close_in_a_table, (void *)(intptr_t)pipes[0]) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, close_in_a_table, (void *)(intptr_t)ring.ring_fd) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	write_all(pipes[1], "xy");
	expect(&ring, 1, 1);
	submit_read(&ring, pipes[0], buffer, 1, 2);
	expect(&ring, 2, 1);
	call_by_worker(&ring);
}

CASES({"only", the_only_thread}, {"early", before_the_first_ring}, {"early-without-proc", before_the_first_ring_without_proc}, {"several", a_thread_of_several}, {"elsewhere", a_close_elsewhere})
