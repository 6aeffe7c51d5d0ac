// Programs that keep data in a folder, and their recovery. `crash store CASE FOLDER` writes data, and prints a line
// for each item that it takes for durable. `crash check CASE FOLDER` checks, after a loss of power, that these items
// are there. Each case is right, or has one bug if `bad-` is before its name. With `plain-` before the name (after `bad-`) the
// program makes ordinary calls instead of requests.

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROUNDS = 12, RECORD = 100, PAGE = 4096 };

static struct io_uring ring;
static char folder[256], path[512], other[512];
static bool bad, plain;

static void die(const char *what) {
	fprintf(stderr, "crash: %s\n", what);
	exit(1);
}

static int finish(void) {
	struct io_uring_cqe *cqe;
	if (io_uring_submit(&ring) != 1 || io_uring_wait_cqe(&ring, &cqe) != 0) die("submit");
	int res = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	if (res < 0) die(strerror(-res));
	return res;
}

static int open_file(const char *name, int flags) {
	if (plain) return open(name, flags, 0644);
	io_uring_prep_openat(io_uring_get_sqe(&ring), AT_FDCWD, name, flags, 0644);
	return finish();
}

static void write_at(int fd, const void *bytes, unsigned count, long offset) {
	if (plain) {
		if (pwrite(fd, bytes, count, offset) != (int)count) die("pwrite");
		return;
	}
	io_uring_prep_write(io_uring_get_sqe(&ring), fd, bytes, count, offset);
	if (finish() != (int)count) die("a short write");
}

static void sync_file(int fd) {
	if (plain) {
		if (fsync(fd)) die("fsync");
		return;
	}
	io_uring_prep_fsync(io_uring_get_sqe(&ring), fd, 0);
	finish();
}

static void say(int number) {
	char line[16];
	int length = sprintf(line, "%d\n", number);
	if (write(1, line, length) != length) die("standard output");
}

static void fill(unsigned char *bytes, int count, int number) { memset(bytes, number, count); }

static bool is_filled(const unsigned char *bytes, int count, int number) {
	for (int at = 0; at < count; at++)
		if (bytes[at] != number) return false;
	return true;
}

// A log: each record is appended, and durable before its line is printed.
static void store_log(void) {
	unsigned char record[RECORD];
	int fd = open_file(path, O_CREAT | O_WRONLY | O_TRUNC);
	for (int number = 1; number <= ROUNDS; number++) {
		fill(record, RECORD, number);
		write_at(fd, record, RECORD, (number - 1L) * RECORD);
		if (!bad) sync_file(fd);
		say(number);
	}
}

// A file that is replaced as a whole.
static void store_rename(void) {
	unsigned char page[PAGE];
	int at = open(folder, O_RDONLY | O_DIRECTORY);
	for (int number = 1; number <= ROUNDS; number++) {
		int fd = open_file(other, O_CREAT | O_WRONLY | O_TRUNC);
		fill(page, PAGE, number);
		write_at(fd, page, PAGE, 0);
		sync_file(fd);
		close(fd);
		if (plain) {
			if (rename(other, path)) die("rename");
		} else {
			io_uring_prep_renameat(io_uring_get_sqe(&ring), AT_FDCWD, other, AT_FDCWD, path, 0);
			finish();
		}
		if (!bad) sync_file(at);
		say(number);
	}
}

// A header with the number of records.
static void store_header(void) {
	unsigned char record[RECORD];
	int fd = open_file(path, O_CREAT | O_WRONLY | O_TRUNC);
	unsigned char count = 0;
	write_at(fd, &count, 1, 0);
	sync_file(fd);
	for (int number = 1; number <= ROUNDS; number++) {
		count = number;
		if (bad) write_at(fd, &count, 1, 0);
		fill(record, RECORD, number);
		write_at(fd, record, RECORD, PAGE + (number - 1L) * RECORD);
		if (!bad) {
			sync_file(fd);
			write_at(fd, &count, 1, 0);
		}
		sync_file(fd);
		say(number);
	}
}

// A page that is overwritten repeatedly: in place (bad), or in turns with a second one.
static void store_page(void) {
	unsigned char page[PAGE];
	int fd = open_file(path, O_CREAT | O_WRONLY | O_TRUNC);
	for (int number = 1; number <= ROUNDS; number++) {
		fill(page, PAGE, number);
		write_at(fd, page, PAGE, bad ? 0 : (number % 2) * (long)PAGE);
		sync_file(fd);
		say(number);
	}
}

// A mapped file: one of two pages in turns, durable before it is printed.
static void store_mapped(void) {
	int fd = open(path, O_CREAT | O_RDWR, 0644);
	if (ftruncate(fd, 2 * PAGE)) die("ftruncate");
	unsigned char *memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED) die("mmap");
	for (int number = 1; number <= ROUNDS; number++) {
		unsigned char *page = memory + number % 2 * PAGE;
		fill(page, PAGE, number);
		if (msync(page, PAGE, bad ? MS_ASYNC : MS_SYNC)) die("msync");
		say(number);
	}
}

// The last number that was printed before power was lost.
static int said(void) {
	FILE *file = fopen(getenv("ANYRING_CRASH_OUTPUT"), "r");
	int number = 0, last = 0;
	while (file && fscanf(file, "%d", &number) == 1) last = number;
	return last;
}

static void check(const char *what) {
	unsigned char bytes[4 * PAGE] = {0};
	int last = said(), found = 0, count = 0;
	int fd = open(path, O_RDONLY);
	if (fd >= 0) count = read(fd, bytes, sizeof bytes);
	if (!strcmp(what, "log"))
		while ((found + 1) * RECORD <= count && is_filled(bytes + found * RECORD, RECORD, found + 1)) found++;
	else if (!strcmp(what, "rename"))
		found = count && is_filled(bytes, PAGE, bytes[0]) ? bytes[0] : 0;
	else if (!strcmp(what, "header"))
		for (found = bytes[0], count = 0; count < found; count++)
			if (!is_filled(bytes + PAGE + count * RECORD, RECORD, count + 1)) die("the header counts what is not there");
	if (!strcmp(what, "page") || !strcmp(what, "mapped"))
		for (int at = 0; at < 2; at++)
			if (bytes[at * PAGE] > found && is_filled(bytes + at * PAGE, PAGE, bytes[at * PAGE])) found = bytes[at * PAGE];
	if (found < last) {
		fprintf(stderr, "crash: %d was said, %d is there\n", last, found);
		exit(1);
	}
}

int main(int argc, char **argv) {
	if (argc != 4) die("usage: crash store|check CASE FOLDER");
	const char *what = argv[2];
	bad = !strncmp(what, "bad-", 4);
	if (bad) what += 4;
	plain = !strncmp(what, "plain-", 6);
	if (plain) what += 6;
	snprintf(folder, sizeof folder, "%s", argv[3]);
	snprintf(path, sizeof path, "%s/data", folder);
	snprintf(other, sizeof other, "%s/data.new", folder);
	if (!strcmp(argv[1], "check")) {
		check(what);
		return 0;
	}
	if (!plain && io_uring_queue_init(8, &ring, 0) != 0) die("io_uring_queue_init");
	if (!strcmp(what, "log")) store_log();
	else if (!strcmp(what, "rename")) store_rename();
	else if (!strcmp(what, "header")) store_header();
	else if (!strcmp(what, "page")) store_page();
	else if (!strcmp(what, "mapped")) store_mapped();
	else die("no such case");
	return 0;
}
