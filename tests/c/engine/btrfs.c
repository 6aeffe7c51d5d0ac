/* Direct reads and writes of a file on btrfs, of all sizes. btrfs reads through the page cache what is not aligned to its
 * blocks, or is compressed. If only the first pages are cached, a transfer that must not wait is short. */
#include "engine.h"

#include <linux/aio_abi.h>
#include <linux/loop.h>
#include <sys/ioctl.h>

enum { IMAGE_BYTES = 256 << 20, FILE_BYTES = 1 << 20, BLOCK = 512, LARGEST = 24 << 10, TIMES = 1500 };

static struct io_uring ring;
static aio_context_t context;
static int direct, cached;
static unsigned char *buffer, content[FILE_BYTES];

/* Runs a program to its end, with its output in a file. Returns whether it succeeded. */
static int succeeds(char *const *words)
{
	pid_t child = fork();
	int status;

	if (!child) {
		int log = open("btrfs.log", O_WRONLY | O_CREAT | O_TRUNC, 0600);

		dup2(log, 1);
		dup2(log, 2);
		execvp(words[0], words);
		_exit(127);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	return status == 0;
}

/* Makes a file system in an image file, and mounts it in this process's own mount namespace, where the process stays.
 * It is gone when the process ends. */
static void mount_image(const char *options)
{
	const char *folder = "mounted";
	char name[] = "btrfs-XXXXXX", device[32];
	struct loop_config loop = {.fd = mkstemp(name), .info.lo_flags = LO_FLAGS_AUTOCLEAR};
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), number, file;

	if (control < 0 || (number = ioctl(control, LOOP_CTL_GET_FREE)) < 0)
		skip("there is no free loop device");
	CHECK(loop.fd != (unsigned)-1 && ftruncate(loop.fd, IMAGE_BYTES) == 0 && setenv("PATH", "/usr/sbin:/usr/bin", 1) == 0);
	if (!succeeds((char *[]){"mkfs.btrfs", "--quiet", name, NULL})) {
		CHECK(unlink(name) == 0);
		skip("no btrfs can be made (Debian: btrfs-progs)");
	}
	CHECK(unlink(name) == 0 && (mkdir(folder, 0700) == 0 || errno == EEXIST));
	snprintf(device, sizeof(device), "/dev/loop%d", number);
	file = open(device, O_RDWR | O_CLOEXEC);
	if (file < 0 || ioctl(file, LOOP_CONFIGURE, &loop) != 0 || !own_mounts() ||
	    mount(device, folder, "btrfs", 0, options) != 0)
		skip("no btrfs can be mounted");
	CHECK(chdir(folder) == 0 && close(loop.fd) == 0 && close(file) == 0 && close(control) == 0);
}

static void open_file(void)
{
	CHECK(posix_memalign((void **)&buffer, 4096, LARGEST) == 0);
	for (int i = 0; i < FILE_BYTES; i++)
		content[i] = i / BLOCK + i % 7; /* so that it can be compressed */
	cached = open("file", O_RDWR | O_CREAT, 0600);
	direct = open("file", O_RDWR | O_DIRECT);
	CHECK(cached >= 0 && direct >= 0);
	CHECK(write(cached, content, FILE_BYTES) == FILE_BYTES && fsync(cached) == 0);
	CHECK(posix_fadvise(cached, 0, 0, POSIX_FADV_RANDOM) == 0);
	init_ring(&ring, 8, 0);
	CHECK(syscall(SYS_io_setup, 8, &context) == 0);
}

/* Leaves only the page with this byte in the page cache, as far as the kernel drops the others. */
static void cache_only_page_of(off_t place)
{
	char byte;

	CHECK(fdatasync(cached) == 0 && posix_fadvise(cached, 0, 0, POSIX_FADV_DONTNEED) == 0);
	CHECK(pread(cached, &byte, 1, place) == 1);
}

static int by_ring(void)
{
	struct io_uring_cqe *cqe;
	int res;

	submit(&ring, 1);
	CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
	res = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return res;
}

static long by_aio(int opcode, size_t bytes, off_t place)
{
	struct iocb iocb = {.aio_lio_opcode = opcode, .aio_fildes = direct, .aio_buf = (uintptr_t)buffer};
	struct iocb *list = &iocb;
	struct io_event event;

	iocb.aio_nbytes = bytes;
	iocb.aio_offset = place;
	CHECK(syscall(SYS_io_submit, context, 1, &list) == 1);
	CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1);
	return event.res;
}

static void read_range(int way, unsigned bytes, off_t place)
{
	struct iovec halves[2] = {{buffer, BLOCK}, {buffer + BLOCK, bytes - BLOCK}};
	long result;

	cache_only_page_of(place);
	memset(buffer, 0, bytes);
	if (way == 0)
		io_uring_prep_read(next_sqe(&ring), direct, buffer, bytes, place);
	else if (way == 1)
		io_uring_prep_readv(next_sqe(&ring), direct, halves, 2, place);
	result = way < 2 ? by_ring() : by_aio(IOCB_CMD_PREAD, bytes, place);
	if (result != bytes || memcmp(buffer, content + place, bytes)) {
		fprintf(stderr, "way %d, %u bytes at %ld: %ld\n", way, bytes, place, result);
		_exit(1);
	}
}

static void write_range(int way, unsigned bytes, off_t place)
{
	cache_only_page_of(place);
	memset(buffer, rand(), bytes);
	memcpy(content + place, buffer, bytes);
	if (way < 2)
		io_uring_prep_write(next_sqe(&ring), direct, buffer, bytes, place);
	CHECK((way < 2 ? by_ring() : by_aio(IOCB_CMD_PWRITE, bytes, place)) == bytes);
}

static void transfers(void)
{
	open_file();
	for (int i = 0; i < TIMES; i++) {
		unsigned bytes = (2 + rand() % (LARGEST / BLOCK - 1)) * BLOCK;
		off_t place = rand() % ((FILE_BYTES - bytes) / BLOCK) * BLOCK;

		if (rand() % 4)
			read_range(rand() % 3, bytes, place);
		else
			write_range(rand() % 3, bytes, place);
	}
}

static void of_parts_of_blocks(void)
{
	mount_image("");
	transfers();
}

static void of_what_is_compressed(void)
{
	mount_image("compress-force=zstd");
	transfers();
}

static void by_fio(void)
{
	char *job[] = {"fio", "--name=verified", "--ioengine=io_uring", "--direct=1", "--blocksize_unaligned",
		       "--bsrange=512-4096", "--rw=randrw", "--iodepth=16", "--size=2m", "--verify=crc32c",
		       "--verify_fatal=1", NULL};

	if (!succeeds((char *[]){"fio", "--version", NULL}))
		skip("fio is not installed");
	mount_image("");
	CHECK(succeeds(job));
}

CASES({"parts", of_parts_of_blocks}, {"compressed", of_what_is_compressed}, {"fio", by_fio})
