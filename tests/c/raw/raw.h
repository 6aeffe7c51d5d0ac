/* Shared parts of the programs here: io_uring by their own `syscall` instructions, and checks that report where
 * they failed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../check.h"

/* The limit for an event that has to come: only a completion that never comes takes that long. */
#define LONG_MS 30000

static inline __attribute__((always_inline)) long raw6(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long answer;

	__asm__ volatile("syscall"
			 : "=a"(answer)
			 : "0"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return answer;
}

/* Does the same as raw6(), by an instruction in memory to which no file is mapped. The library cannot find it, just
 * like those of a just-in-time compiler. */
static inline long unseen6(long nr, long a, long b, long c, long d, long e, long f)
{
	static const unsigned char code[] = {0x0f, 0x05, 0xc3}; /* syscall; ret */
	static void *page;
	long answer;

	if (!page) {
		page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(page != MAP_FAILED);
		memcpy(page, code, sizeof(code));
		CHECK(mprotect(page, 4096, PROT_READ | PROT_EXEC) == 0);
	}
	{
		register long r10 __asm__("r10") = d;
		register long r8 __asm__("r8") = e;
		register long r9 __asm__("r9") = f;
		__asm__ volatile("sub $128, %%rsp\n\tcall *%[page]\n\tadd $128, %%rsp"
				 : "=a"(answer)
				 : "0"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9), [page] "b"(page)
				 : "rcx", "r11", "memory", "cc");
	}
	return answer;
}

/* struct kernel_sigaction. */
struct real_action {
	void *handler;
	unsigned long flags;
	void *restorer;
	uint64_t mask;
};

/* sigaction(2) past every library's wrapper. libc provides the code to which a signal handler returns. */
static inline void set_handler_unseen(int signal, void (*handler)(int), unsigned long flags)
{
	struct sigaction any = {.sa_handler = handler}, none = {.sa_handler = SIG_DFL};
	struct real_action real;

	CHECK(sigaction(SIGURG, &any, NULL) == 0);
	CHECK(unseen6(__NR_rt_sigaction, SIGURG, 0, (long)&real, 8, 0, 0) == 0);
	CHECK(sigaction(SIGURG, &none, NULL) == 0);
	real.handler = (void *)handler;
	real.flags = flags | 0x04000000; /* SA_RESTORER */
	real.mask = 0;
	CHECK(unseen6(__NR_rt_sigaction, signal, (long)&real, 0, 8, 0, 0) == 0);
}

struct ring {
	int fd;
	void *rings;
	size_t size, sqes_size;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
};

static inline int ring_open(struct ring *ring, unsigned entries)
{
	struct io_uring_params p;
	char *rings;
	size_t size;

	memset(&p, 0, sizeof(p));
	ring->fd = raw6(__NR_io_uring_setup, entries, (long)&p, 0, 0, 0, 0);
	if (ring->fd < 0)
		return ring->fd;
	size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	if (size < p.sq_off.array + p.sq_entries * sizeof(unsigned))
		size = p.sq_off.array + p.sq_entries * sizeof(unsigned);
	rings = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
	CHECK(rings != MAP_FAILED);
	ring->rings = rings;
	ring->size = size;
	ring->sqes_size = p.sq_entries * sizeof(struct io_uring_sqe);
	ring->sqes = mmap(NULL, ring->sqes_size, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQES);
	CHECK(ring->sqes != MAP_FAILED);
	ring->sq_tail = (unsigned *)(rings + p.sq_off.tail);
	ring->sq_mask = (unsigned *)(rings + p.sq_off.ring_mask);
	ring->sq_array = (unsigned *)(rings + p.sq_off.array);
	ring->cq_head = (unsigned *)(rings + p.cq_off.head);
	ring->cq_tail = (unsigned *)(rings + p.cq_off.tail);
	ring->cq_mask = (unsigned *)(rings + p.cq_off.ring_mask);
	ring->cqes = (struct io_uring_cqe *)(rings + p.cq_off.cqes);
	return 0;
}

static inline void ring_close(struct ring *ring)
{
	CHECK(munmap(ring->rings, ring->size) == 0 && munmap(ring->sqes, ring->sqes_size) == 0);
	CHECK(raw6(SYS_close, ring->fd, 0, 0, 0, 0, 0) == 0);
}

static inline struct io_uring_sqe *ring_sqe(struct ring *ring)
{
	unsigned index = *ring->sq_tail & *ring->sq_mask;

	memset(&ring->sqes[index], 0, sizeof(struct io_uring_sqe));
	ring->sq_array[index] = index;
	return &ring->sqes[index];
}

static inline void ring_push(struct ring *ring)
{
	__atomic_store_n(ring->sq_tail, *ring->sq_tail + 1, __ATOMIC_RELEASE);
}

static inline __attribute__((always_inline)) long ring_enter(struct ring *ring, unsigned submit, unsigned wait)
{
	return raw6(__NR_io_uring_enter, ring->fd, submit, wait, wait ? IORING_ENTER_GETEVENTS : 0, 0, 0);
}

/* Submits a READ of a byte from a stream. */
static inline void ring_read(struct ring *ring, int fd, char *byte)
{
	struct io_uring_sqe *sqe = ring_sqe(ring);

	sqe->opcode = IORING_OP_READ;
	sqe->fd = fd;
	sqe->addr = (uintptr_t)byte;
	sqe->len = 1;
	sqe->off = -1;
	ring_push(ring);
	CHECK(ring_enter(ring, 1, 0) == 1);
}

static inline int ring_reap(struct ring *ring, uint64_t *user_data, int *res)
{
	unsigned head = *ring->cq_head;

	if (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE))
		return 0;
	*user_data = ring->cqes[head & *ring->cq_mask].user_data;
	*res = ring->cqes[head & *ring->cq_mask].res;
	__atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
	return 1;
}

/* Submits one NOP and reaps it. */
static inline void ring_nop(struct ring *ring, uint64_t user_data)
{
	uint64_t seen;
	int res;

	ring_sqe(ring)->opcode = IORING_OP_NOP;
	ring->sqes[*ring->sq_tail & *ring->sq_mask].user_data = user_data;
	ring_push(ring);
	CHECK(ring_enter(ring, 1, 1) == 1);
	CHECK(ring_reap(ring, &seen, &res));
	CHECK(seen == user_data && res == 0);
}

/* Whether a filter is on this process: the tests expect one exactly where the trap should be. */
static inline int filtered(void)
{
	return prctl(PR_GET_SECCOMP) == 2;
}
static inline void expect_trap(void)
{
	const char *expected = getenv("EXPECT_TRAP");

	CHECK(expected);
	CHECK(filtered() == atoi(expected));
}

/* Whether the five bytes before the `syscall` at `call` are a jump. */
static inline int is_patched(const unsigned char *call)
{
	return ((const volatile unsigned char *)call)[-5] == 0xe9;
}

/* Checks that the call, which was made often enough, was patched exactly if that was to be expected. */
static inline void expect_patched(const unsigned char *call)
{
	const char *trapped = getenv("EXPECT_TRAP"), *patch = getenv("ANYRING_PATCH");

	CHECK(trapped);
	CHECK(is_patched(call) == (atoi(trapped) && !(patch && !strcmp(patch, "0"))));
}

/* The time, in milliseconds, in which threads should fall asleep. Used if no /proc shows which threads sleep. */
#define BLIND_MS 20

static inline int is_blind(void)
{
	return access("/proc/self/task", R_OK) != 0;
}

/* Returns the number of voluntary context switches of the thread, or of the process of one thread, while it sleeps
 * (proc_pid_status(5): state S or D); -1 while it runs, -2 when it has ended. */
static inline long switches_asleep(pid_t tid)
{
	char path[64], line[256], state = 0;
	long switches = -2;
	FILE *status;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)tid);
	status = fopen(path, "r");
	if (!status)
		return -2;
	while (fgets(line, sizeof(line), status)) {
		sscanf(line, "State: %c", &state);
		sscanf(line, "voluntary_ctxt_switches: %ld", &switches);
	}
	fclose(status);
	if (state == 'Z' || state == 'X')
		return -2;
	return state == 'S' || state == 'D' ? switches : -1;
}

/* Returns the sum of `switches_asleep` for all threads of this process except the caller and `busy` (0: none); never
 * -2. */
static inline long others_switches_asleep(pid_t busy)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	long all = 0;

	CHECK(tasks);
	while (all >= 0 && (task = readdir(tasks))) {
		pid_t tid = atoi(task->d_name);
		long switches = tid && tid != busy && tid != gettid() ? switches_asleep(tid) : -2;

		if (switches == -1)
			all = -1;
		else if (switches >= 0)
			all += 1 + switches; /* so that one more thread makes a difference, too */
	}
	closedir(tasks);
	return all;
}

/* Waits until `look` returns the same sleep five times in a row, or until the thread has ended. */
static inline void wait_for_sleep(long (*look)(pid_t), pid_t tid)
{
	long last = -1;
	int looks = 0;

	if (is_blind()) {
		usleep(BLIND_MS * 1000);
		return;
	}
	for (int ms = 0; looks < 5; ms++) {
		long switches = look(tid);

		if (switches == -2)
			return;
		CHECK(ms < LONG_MS);
		looks = switches >= 0 && switches == last ? looks + 1 : 0;
		last = switches;
		usleep(1000);
	}
}

/* Waits until that thread sleeps and stays asleep, or has ended. Call it before the event that should wake the thread.
 * */
static inline void wait_asleep(pid_t tid)
{
	wait_for_sleep(switches_asleep, tid);
}

/* Waits until all other threads of this process sleep. The engine in it has then seen every submission (a worker
 * sleeps in its call, the helper has the ring). `busy`, if not 0, is a thread that need not sleep. */
static inline void wait_others_asleep(pid_t busy)
{
	wait_for_sleep(others_switches_asleep, busy);
}
