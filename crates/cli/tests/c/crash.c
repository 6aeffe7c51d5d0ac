// Programs that keep data in a folder, and their recovery. `crash store CASE FOLDER` writes data, and prints a line
// for each item that it takes for durable. `crash check CASE FOLDER` checks, after a loss of power, that these items
// are there. Each case is right, or has one bug if `bad-` is before its name. With `plain-` before the name (after `bad-`) the
// program makes ordinary calls instead of requests.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
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

// A log that is new, and open with O_DSYNC.
static void store_dsync(void) {
	unsigned char record[RECORD];
	int fd = open(path, O_CREAT | O_WRONLY | (bad ? 0 : O_DSYNC), 0644);
	for (int number = 1; number <= ROUNDS; number++) {
		fill(record, RECORD, number);
		write_at(fd, record, RECORD, (number - 1L) * RECORD);
		say(number);
	}
}

// A log with sync_file_range(2), which makes no new size durable: the file must have its size before.
static void store_range(void) {
	unsigned char record[RECORD] = {0};
	int fd = open(path, O_CREAT | O_WRONLY, 0644);
	for (int number = 0; number < ROUNDS && !bad; number++) write_at(fd, record, RECORD, (long)number * RECORD);
	sync_file(fd);
	for (int number = 1; number <= ROUNDS; number++) {
		long at = (number - 1L) * RECORD;
		fill(record, RECORD, number);
		write_at(fd, record, RECORD, at);
		if (sync_file_range(fd, at, RECORD, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER)) die("sync_file_range");
		say(number);
	}
}

// A symbolic link that leads to the newest of several files.
static void store_current(void) {
	unsigned char record[RECORD];
	char name[512], target[16];
	int at = open(folder, O_RDONLY | O_DIRECTORY);
	for (int number = 1; number <= ROUNDS; number++) {
		sprintf(target, "v%d", number);
		snprintf(name, sizeof name, "%s/%s", folder, target);
		int fd = open(name, O_CREAT | O_WRONLY, 0644);
		fill(record, RECORD, number);
		write_at(fd, record, RECORD, 0);
		sync_file(fd);
		close(fd);
		if (symlink(target, other) || rename(other, path)) die("rename");
		if (!bad) sync_file(at);
		say(number);
	}
}

// Files that are written before they have a name.
static void store_nameless(void) {
	unsigned char record[RECORD];
	char name[512], own[64];
	int at = open(folder, O_RDONLY | O_DIRECTORY);
	for (int number = 1; number <= ROUNDS; number++) {
		int fd = open(folder, O_TMPFILE | O_WRONLY, 0644);
		fill(record, RECORD, number);
		write_at(fd, record, RECORD, 0);
		if (!bad) sync_file(fd);
		snprintf(name, sizeof name, "%s/v%d", folder, number);
		sprintf(own, "/proc/self/fd/%d", fd);
		if (linkat(AT_FDCWD, own, AT_FDCWD, name, AT_SYMLINK_FOLLOW)) die("linkat");
		sync_file(at);
		close(fd);
		say(number);
	}
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int appended;

static void *append(void *fd) {
	unsigned char record[RECORD];
	fill(record, RECORD, 1);
	for (int number = 1; number <= ROUNDS; number++) {
		if (write(*(int *)fd, record, RECORD) != RECORD) die("write");
		if (!bad && fdatasync(*(int *)fd)) die("fdatasync");
		pthread_mutex_lock(&mutex);
		say(++appended);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

// Four threads append to one log.
static void store_together(void) {
	pthread_t threads[4];
	int fd = open(path, O_CREAT | O_WRONLY | O_APPEND, 0644);
	sync_file(fd);
	for (int at = 0; at < 4; at++) pthread_create(&threads[at], NULL, append, &fd);
	for (int at = 0; at < 4; at++) pthread_join(threads[at], NULL);
}

// Number of files `v1`, `v2` ... that are whole.
static int versions(void) {
	for (int number = 1;; number++) {
		unsigned char record[RECORD] = {0};
		char name[512];
		snprintf(name, sizeof name, "%s/v%d", folder, number);
		int fd = open(name, O_RDONLY), count = fd < 0 ? 0 : read(fd, record, RECORD);
		close(fd);
		if (count != RECORD || !is_filled(record, RECORD, number)) return number - 1;
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
	if (!strcmp(what, "log") || !strcmp(what, "dsync") || !strcmp(what, "range"))
		while ((found + 1) * RECORD <= count && is_filled(bytes + found * RECORD, RECORD, found + 1)) found++;
	else if (!strcmp(what, "rename"))
		found = count && is_filled(bytes, PAGE, bytes[0]) ? bytes[0] : 0;
	else if (!strcmp(what, "current"))
		found = count && is_filled(bytes, RECORD, bytes[0]) ? bytes[0] : 0;
	else if (!strcmp(what, "nameless"))
		found = versions();
	else if (!strcmp(what, "together"))
		for (int at = 0; at + RECORD <= count; at += RECORD) found += is_filled(bytes + at, RECORD, 1);
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
	else if (!strcmp(what, "dsync")) store_dsync();
	else if (!strcmp(what, "range")) store_range();
	else if (!strcmp(what, "current")) store_current();
	else if (!strcmp(what, "nameless")) store_nameless();
	else if (!strcmp(what, "together")) store_together();
	else die("no such case");
	return 0;
}
