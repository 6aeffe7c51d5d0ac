/* Reads and writes with unusual ranges: outside the registered buffer, beyond 2 GiB, aligned and direct. */
#include "engine.h"

#include <sys/inotify.h>

static struct io_uring ring;

static void read_fixed(int file, char *where, unsigned size, int index, unsigned flags, int res)
{
	struct io_uring_sqe *sqe = next_sqe(&ring);

	io_uring_prep_read_fixed(sqe, file, where, size, 0, index);
	sqe->flags |= flags;
	sqe->user_data = 1;
	submit(&ring, 1);
	expect(&ring, 1, res);
}

/* A read into a range that is not wholly in the buffer of that index fails with EFAULT, and nothing is read. This holds
 * whichever thread attempts the read. */
static void fixed_reads_stay_inside_their_buffer(void)
{
	static char memory[3 * 4096], untouched[sizeof(memory)];
	char *registered = memory + 4096;
	struct iovec range = {registered, 4096};
	int file = open("/dev/zero", O_RDONLY);

	memset(memory, 'm', sizeof(memory));
	memcpy(untouched, memory, sizeof(memory));
	init_ring(&ring, 8, 0);
	CHECK(answer(io_uring_register_buffers(&ring, &range, 1)) == 0);
	for (unsigned flags = 0; flags <= IOSQE_ASYNC; flags += IOSQE_ASYNC) {
		read_fixed(file, memory, 16, 0, flags, -EFAULT);
		read_fixed(file, registered - 8, 16, 0, flags, -EFAULT);
		read_fixed(file, registered + 4096 - 8, 16, 0, flags, -EFAULT);
		read_fixed(file, registered + 4096, 16, 0, flags, -EFAULT);
		read_fixed(file, registered, 4097, 0, flags, -EFAULT);
		read_fixed(file, registered, 16, 1, flags, -EFAULT);
		CHECK(!memcmp(memory, untouched, sizeof(memory)));
	}
	for (unsigned flags = 0; flags <= IOSQE_ASYNC; flags += IOSQE_ASYNC)
		read_fixed(file, registered, 4096, 0, flags, 4096);
	CHECK(!memcmp(memory, untouched, 4096) && !memcmp(memory + 2 * 4096, untouched, 4096));
}

/* One read moves at most INT_MAX bytes, rounded down to a page. Ranges beyond that must not be read, nor make the
 * result negative. The file is one hole. Its start is in the page cache, so that the first attempt, which does not
 * wait, is short and is continued. All ranges are the same memory. */
static void a_vector_of_3_gib(void)
{
	enum { RANGES = 1024, RANGE = 3 << 20, CACHED = 1 << 20 };
	static struct iovec ranges[RANGES];
	char *memory = mmap(NULL, RANGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char name[] = "hole-XXXXXX";
	int file = mkstemp(name);

	CHECK(memory != MAP_FAILED);
	CHECK(file >= 0 && unlink(name) == 0);
	CHECK(ftruncate(file, 5L << 30) == 0);
	CHECK(pread(file, memory, CACHED, 0) == CACHED);
	for (int i = 0; i < RANGES; i++)
		ranges[i] = (struct iovec){memory, RANGE};
	init_ring(&ring, 8, 0);
	for (unsigned flags = 0; flags <= IOSQE_ASYNC; flags += IOSQE_ASYNC) {
		struct io_uring_sqe *sqe = next_sqe(&ring);

		io_uring_prep_readv(sqe, file, ranges, RANGES, 0);
		sqe->flags |= flags;
		sqe->user_data = 1;
		submit(&ring, 1);
		expect(&ring, 1, INT32_MAX & ~4095);
	}
}

/* Workers do several writes at a time, each at its own offset. All data arrives at the right place. */
static void direct_writes_by_workers(void)
{
	enum { BLOCKS = 256, BLOCK = 4096, AT_A_TIME = 32 };
	char name[] = "direct-XXXXXX", *blocks, *read_back;
	int file = mkostemp(name, O_DIRECT);
	int sent = 0, done = 0;

	if (file < 0 && errno == EINVAL)
		skip("the scratch directory's file system has no O_DIRECT");
	CHECK(file >= 0);
	CHECK(unlink(name) == 0);
	CHECK(posix_memalign((void **)&blocks, BLOCK, BLOCKS * BLOCK) == 0);
	CHECK(posix_memalign((void **)&read_back, BLOCK, BLOCK) == 0);
	for (int i = 0; i < BLOCKS; i++)
		memset(blocks + i * BLOCK, i * 7 + 1, BLOCK);
	init_ring(&ring, 64, 0);
	while (done < BLOCKS) {
		struct io_uring_cqe *cqe;

		for (; sent < BLOCKS && sent - done < AT_A_TIME; sent++) {
			struct io_uring_sqe *sqe = next_sqe(&ring);

			io_uring_prep_write(sqe, file, blocks + sent * BLOCK, BLOCK, (BLOCKS - 1L - sent) * BLOCK);
			sqe->flags |= IOSQE_ASYNC;
		}
		CHECK(answer(io_uring_submit_and_wait(&ring, 1)) >= 0);
		for (; io_uring_peek_cqe(&ring, &cqe) == 0; done++)
			take(&ring, 0, BLOCK);
	}
	for (int i = 0; i < BLOCKS; i++) {
		CHECK(pread(file, read_back, BLOCK, (BLOCKS - 1L - i) * BLOCK) == BLOCK);
		CHECK(!memcmp(read_back, blocks + i * BLOCK, BLOCK));
	}
}

/* Reading an inotify descriptor cannot be attempted without waiting. Data that is already readable must be read,
 * although no further event comes. */
static void one_event_of_several(void)
{
	char names[3][16] = {"first-XXXXXX", "second-XXXXXX", "third-XXXXXX"}, directory[] = "watched-XXXXXX";
	union {
		struct inotify_event event;
		char room[sizeof(struct inotify_event) + 16];
	} buffer;
	int watched = inotify_init1(0);

	CHECK(watched >= 0 && mkdtemp(directory));
	CHECK(inotify_add_watch(watched, directory, IN_CREATE) >= 0);
	CHECK(chdir(directory) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(mkstemp(names[i]) >= 0 && unlink(names[i]) == 0);
	CHECK(chdir("..") == 0 && rmdir(directory) == 0);
	init_ring(&ring, 8, 0);
	for (int i = 0; i < 3; i++) {
		prepare_read(&ring, watched, &buffer, sizeof(buffer), 1);
		submit(&ring, 1);
		expect(&ring, 1, sizeof(buffer));
		CHECK(buffer.event.mask == IN_CREATE);
	}
}

CASES({"fixed", fixed_reads_stay_inside_their_buffer},
      {"huge", a_vector_of_3_gib},
      {"direct", direct_writes_by_workers},
      {"inotify", one_event_of_several})
