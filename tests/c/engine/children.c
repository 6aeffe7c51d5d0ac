/* A forked child that closes its parent's rings keeps no resources of them, as if they had never existed. */
#include "engine.h"
#include "holdings.h"


static char buffer[64];
static int pipes[2];

/* A ring with one of each thing that takes a descriptor or a mapping. */
struct full {
	struct io_uring ring;
	void *buffers;
	int eventfd;
};

/* Constants of liburing 2.4. */
#define PBUF_RING_MMAP 1
#define OFF_PBUF_RING 0x80000000ULL
#define BUFFERS_BYTES (8 * sizeof(struct io_uring_buf))

static void *provide_buffers(struct io_uring *ring)
{
	struct io_uring_buf_reg buffers = {.ring_entries = 8, .bgid = 1};
	void *mapped;

	((uint16_t *)&buffers)[7] = PBUF_RING_MMAP; /* `flags` comes after `bgid` */
	CHECK(answer(io_uring_register_buf_ring(ring, &buffers, 0)) == 0);
	mapped = mmap(NULL, BUFFERS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, ring->ring_fd, OFF_PBUF_RING | 1 << 16);
	CHECK(mapped != MAP_FAILED);
	return mapped;
}

static void fill(struct full *full, unsigned flags)
{
	struct io_uring *ring = &full->ring;
	struct iovec iovec = {buffer, sizeof(buffer)};

	init_ring(ring, 8, flags);
	full->eventfd = eventfd(0, EFD_CLOEXEC);
	CHECK(full->eventfd >= 0);
	CHECK(io_uring_register_eventfd(ring, full->eventfd) == 0);
	CHECK(io_uring_register_files(ring, pipes, 2) == 0);
	CHECK(io_uring_register_buffers(ring, &iovec, 1) == 0);
	full->buffers = provide_buffers(ring);
	submit_read(ring, pipes[0], buffer, 4, 1);
}

static void empty(struct full *full)
{
	CHECK(munmap(full->buffers, BUFFERS_BYTES) == 0);
	io_uring_queue_exit(&full->ring);
	CHECK(close(full->eventfd) == 0);
}

/* Counts the descriptors of this process whose target has `part` in its name. */
static int holds(const char *part)
{
	DIR *entries = opendir("/proc/self/fd");
	struct dirent *entry;
	char line[512];
	int held = 0;

	CHECK(entries);
	while ((entry = readdir(entries))) {
		ssize_t size = readlinkat(dirfd(entries), entry->d_name, line, sizeof(line) - 1);

		line[size > 0 ? size : 0] = 0;
		held += strstr(line, part) != NULL;
	}
	closedir(entries);
	return held;
}

/* Mappings that the process shares with others. */
static int shared_mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512], permissions[8];
	int count = 0;

	CHECK(maps);
	while (fgets(line, sizeof(line), maps)) {
		CHECK(sscanf(line, "%*s %7s", permissions) == 1);
		count += permissions[3] == 's';
	}
	fclose(maps);
	return count;
}

static void leave(struct full *full, int by_close)
{
	if (!by_close)
		return empty(full);
	CHECK(close(full->ring.ring_fd) == 0);
	CHECK(close(full->eventfd) == 0);
	CHECK(munmap(full->ring.sq.sqes, 8 * sizeof(struct io_uring_sqe)) == 0);
	CHECK(munmap(full->ring.sq.ring_ptr, full->ring.sq.ring_sz) == 0);
	CHECK(munmap(full->buffers, BUFFERS_BYTES) == 0);
}

static void child_leaves(unsigned flags, int by_close)
{
	int descriptors, mappings;
	struct full one, other;
	pid_t child;

	need_proc();
	CHECK(pipe(pipes) == 0);
	descriptors = entries_of("/proc/self/fd");
	mappings = shared_mappings();
	fill(&one, flags);
	fill(&other, flags);
	child = fork();
	if (child == 0) {
		int with_both = entries_of("/proc/self/fd");

		leave(&one, by_close);
		CHECK(entries_of("/proc/self/fd") < with_both);
		leave(&other, by_close);
		CHECK(holds("anyring") == 0);
		CHECK(entries_of("/proc/self/fd") == descriptors);
		CHECK(shared_mappings() == mappings);
		CHECK(entries_of("/proc/self/task") == 1);
		_exit(0);
	}
	wait_for_child(child);
	write_all(pipes[1], "abcdefgh");
	expect(&one.ring, 1, 4);
	expect(&other.ring, 1, 4);
	empty(&one);
	empty(&other);
}

/* The child also has no ring memory, although it did nothing to release it. */
static void child_is_kept_from_rings(void)
{
	struct io_uring ring;
	int mappings;
	pid_t child;

	need_proc();
	mappings = shared_mappings();
	init_ring(&ring, 8, 0);
	CHECK(io_uring_ring_dontfork(&ring) == 0);
	child = fork();
	if (child == 0) {
		struct io_uring own;

		CHECK(close(ring.ring_fd) == 0);
		CHECK(shared_mappings() == mappings && holds("anyring") == 0);
		init_ring(&own, 8, 0);
		prepare_nop(&own, 1);
		submit(&own, 1);
		expect(&own, 1, 0);
		io_uring_queue_exit(&own);
		_exit(0);
	}
	wait_for_child(child);
	prepare_nop(&ring, 1);
	submit(&ring, 1);
	expect(&ring, 1, 0);
	io_uring_queue_exit(&ring);
}

static void child_exits_rings(void)
{
	child_leaves(0, 0);
}

static void child_closes_rings(void)
{
	child_leaves(0, 1);
}

static void child_closes_deferred_rings(void)
{
	child_leaves(DEFERRED, 1);
}

static void child_closes_polled_rings(void)
{
	child_leaves(IORING_SETUP_SQPOLL, 1);
}

/* The child closes one of two rings, and still uses the other. */
static void child_keeps_one_of_two(void)
{
	struct full one, other;
	pid_t child;

	CHECK(pipe(pipes) == 0);
	fill(&one, 0);
	fill(&other, 0);
	child = fork();
	if (child == 0) {
		leave(&one, 1);
		prepare_nop(&other.ring, 7);
		submit(&other.ring, 1);
		expect(&other.ring, 7, 0);
		leave(&other, 1);
		_exit(0);
	}
	wait_for_child(child);
	write_all(pipes[1], "abcdefgh");
	expect(&one.ring, 1, 4);
	expect(&other.ring, 1, 4);
}

/* Shared mappings that this process has. */
struct area {
	unsigned long from, to;
};

static int shared_areas(struct area *areas, int room)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512], permissions[8];
	int count = 0;

	CHECK(maps);
	while (count < room && fgets(line, sizeof(line), maps)) {
		CHECK(sscanf(line, "%lx-%lx %7s", &areas[count].from, &areas[count].to, permissions) == 3);
		count += !strncmp(permissions, "rw-s", 4);
	}
	fclose(maps);
	return count;
}

/* Makes every file that it has smaller, if it may. */
static void truncate_all(void)
{
	for (int fd = 3; fd < 4096; fd++)
		if (ftruncate(fd, 0) && errno == EPERM)
			continue;
}

/* The child writes at random places of all memory that it shares with its parent, until its parent ends it. */
static void scribble(unsigned seed, atomic_int *times)
{
	struct area areas[64];
	int count = shared_areas(areas, 64);

	for (;; ++*times)
		for (int i = 0; i < count; i++) {
			if (areas[i].from <= (unsigned long)times && (unsigned long)times < areas[i].to)
				continue;
			unsigned *words = (unsigned *)areas[i].from;
			/* Most words with a meaning are at the beginning. */
			unsigned range = rand_r(&seed) % 2 ? 256 : (areas[i].to - areas[i].from) / 4;
			unsigned index = rand_r(&seed) % range, word = rand_r(&seed);

			word = rand_r(&seed) % 3 ? word % 8 : word << 16 ^ rand_r(&seed);
			/* An SQE stays a NOP, since the kernel, too, would execute another SQE for the parent. */
			words[index] = index % 16 ? word : word & ~0xff;
		}
}

/* Whatever a child writes into shared memory, the parent continues, and its next ring works. The ring itself also
 * belongs to the child, so the results of its requests are not checked. */
static void parent_outlives_a_hostile_child(void)
{
	atomic_int *times = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	need_proc();
	CHECK(times != MAP_FAILED && pipe(pipes) == 0);
	for (unsigned round = 0; round < 20; round++) {
		struct __kernel_timespec short_while = {0, 1000000};
		struct io_uring_cqe *cqe;
		struct full full;
		pid_t child;

		fill(&full, round % 2 ? DEFERRED : 0);
		child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			truncate_all();
			if (round % 4 >= 2) {
				io_uring_submit(&full.ring); /* the child submits to the inherited ring */
			}
			scribble(round + 1, times);
		}
		for (*times = 0; *times < 20000;) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&full.ring);

			if (sqe)
				io_uring_prep_nop(sqe);
			io_uring_submit(&full.ring);
			if (!io_uring_wait_cqe_timeout(&full.ring, &cqe, &short_while))
				io_uring_cqe_seen(&full.ring, cqe);
		}
		CHECK(kill(child, SIGKILL) == 0);
		CHECK(waitpid(child, NULL, 0) == child);
		CHECK(close(full.ring.ring_fd) == 0);
		CHECK(close(full.eventfd) == 0);
		init_ring(&full.ring, 4, 0);
		prepare_nop(&full.ring, 7);
		submit(&full.ring, 1);
		expect(&full.ring, 7, 0);
		io_uring_queue_exit(&full.ring);
	}
}

CASES({"hostile", parent_outlives_a_hostile_child},
      {"kept", child_is_kept_from_rings},
      {"exits", child_exits_rings},
      {"closes", child_closes_rings},
      {"closes-deferred", child_closes_deferred_rings},
      {"closes-polled", child_closes_polled_rings},
      {"keeps-one", child_keeps_one_of_two})
