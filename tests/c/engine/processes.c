/* Rings that several processes use at once, as PostgreSQL 18 does. They are made before the fork. One process
 * submits to a ring and another waits on it, and either may be killed. */
#include "engine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

/* The limit for events that docs promise within a second, with room for a busy machine. */
#define SOON_MS 5000
#define BLOCK 4096
#define BLOCKS 256

static void *shared_memory(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	return memory;
}

static void init_shared_mutex(pthread_mutex_t *mutex)
{
	pthread_mutexattr_t attributes;

	CHECK(pthread_mutexattr_init(&attributes) == 0);
	CHECK(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
	CHECK(pthread_mutex_init(mutex, &attributes) == 0);
}

static double now_ms(void)
{
	struct timespec now;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

/* A file of BLOCKS blocks, each full of its number, opened with O_DIRECT where the file system has that. */
static int numbered_file(void)
{
	char name[] = "processes-XXXXXX";
	unsigned *block = aligned_alloc(BLOCK, BLOCK);
	int fd = mkstemp(name), direct;

	CHECK(fd >= 0 && block);
	for (unsigned b = 0; b < BLOCKS; b++) {
		for (unsigned i = 0; i < BLOCK / sizeof(*block); i++)
			block[i] = b;
		CHECK(write(fd, block, BLOCK) == BLOCK);
	}
	CHECK(fsync(fd) == 0);
	direct = open(name, O_RDONLY | O_DIRECT);
	CHECK(unlink(name) == 0);
	free(block);
	if (direct < 0)
		return fd;
	CHECK(close(fd) == 0);
	return direct;
}

static bool holds_number(const void *block, unsigned number)
{
	const unsigned *words = block;

	for (unsigned i = 0; i < BLOCK / sizeof(*words); i++)
		if (words[i] != number)
			return false;
	return true;
}

#define SUBMITTERS 4
#define NOPS 40000

struct crowd {
	struct io_uring ring;
	pthread_mutex_t sq, cq;
	unsigned taken;
	_Atomic unsigned ready;
	unsigned char seen[SUBMITTERS][NOPS];
};

/* Puts one SQE into the SQ by hand. Returns false if the SQ is full. The caller holds the SQ's mutex. */
static bool put_nop(struct io_uring *ring, uint64_t user_data)
{
	unsigned tail = *ring->sq.ktail, mask = *ring->sq.kring_mask;
	struct io_uring_sqe *sqe = &ring->sq.sqes[tail & mask];

	if (tail - __atomic_load_n(ring->sq.khead, __ATOMIC_ACQUIRE) == *ring->sq.kring_entries)
		return false;
	io_uring_prep_nop(sqe);
	sqe->user_data = user_data;
	if (ring->sq.array) /* newer liburings do without */
		ring->sq.array[tail & mask] = tail & mask;
	__atomic_store_n(ring->sq.ktail, tail + 1, __ATOMIC_RELEASE);
	return true;
}

static void take_what_is_there(struct crowd *crowd)
{
	struct io_uring_cqe *cqe;

	CHECK(pthread_mutex_lock(&crowd->cq) == 0);
	while (io_uring_peek_cqe(&crowd->ring, &cqe) == 0) {
		unsigned who = cqe->user_data >> 32, which = cqe->user_data;

		CHECK(cqe->res == 0 && who < SUBMITTERS && which < NOPS);
		crowd->seen[who][which]++;
		crowd->taken++;
		io_uring_cqe_seen(&crowd->ring, cqe);
	}
	CHECK(pthread_mutex_unlock(&crowd->cq) == 0);
}

static void submit_nops(struct crowd *crowd, unsigned who)
{
	crowd->ready++;
	while (crowd->ready < SUBMITTERS)
		sched_yield();
	for (unsigned i = 0; i < NOPS; i++) {
		bool put;

		do {
			CHECK(pthread_mutex_lock(&crowd->sq) == 0);
			put = put_nop(&crowd->ring, (uint64_t)who << 32 | i);
			CHECK(pthread_mutex_unlock(&crowd->sq) == 0);
			/* The call is made outside the mutex, so that several processes are in it at once. */
			CHECK(io_uring_enter(crowd->ring.ring_fd, 1, 0, 0, NULL) >= 0);
		} while (!put);
		if (i % 16 == who)
			take_what_is_there(crowd);
	}
}

/* Each NOP of each process completes once, whichever process takes the SQE. */
static void submit_at_once(void)
{
	struct crowd *crowd = shared_memory(sizeof(*crowd));
	pid_t children[SUBMITTERS];

	init_ring(&crowd->ring, 8, 0);
	init_shared_mutex(&crowd->sq);
	init_shared_mutex(&crowd->cq);
	for (unsigned who = 1; who < SUBMITTERS; who++) {
		children[who] = fork();
		if (children[who] == 0) {
			submit_nops(crowd, who);
			_exit(0);
		}
	}
	submit_nops(crowd, 0);
	for (unsigned who = 1; who < SUBMITTERS; who++)
		wait_for_child(children[who]);
	for (int look = 0; look < 1000 && crowd->taken < SUBMITTERS * NOPS; look++) {
		CHECK(io_uring_enter(crowd->ring.ring_fd, 0, 0, IORING_ENTER_GETEVENTS, NULL) >= 0);
		take_what_is_there(crowd);
	}
	for (unsigned who = 0; who < SUBMITTERS; who++)
		for (unsigned i = 0; i < NOPS; i++)
			CHECK(crowd->seen[who][i] == 1);
}

/* When a process dies with requests in flight, the kernel ends each when it would have run. The engine can no longer
 * run them, and ends them within a second of the death. */
static void let_it_run(int pipe_end)
{
	if (!getenv("ANYRING_BACKEND"))
		write_all(pipe_end, "x");
}

static void let_it_have_run(int pipe_end)
{
	char byte;

	if (!getenv("ANYRING_BACKEND"))
		CHECK(read(pipe_end, &byte, 1) == 1);
}

struct pair {
	struct io_uring ring;
	int to_read[2], started[2], file;
	char text[8];
	unsigned char *block;
};

enum { FROM_PIPE = 1, FROM_FILE = 2 };

static struct pair *make_pair(void)
{
	struct pair *pair = shared_memory(sizeof(*pair));

	pair->block = shared_memory(BLOCK);
	pair->file = numbered_file();
	CHECK(pipe(pair->to_read) == 0 && pipe(pair->started) == 0);
	init_ring(&pair->ring, 8, 0);
	return pair;
}

static void submit_both(struct pair *pair)
{
	prepare_read(&pair->ring, pair->to_read[0], pair->text, 4, FROM_PIPE);
	prepare_read(&pair->ring, pair->file, pair->block, BLOCK, FROM_FILE)->off = 7 * BLOCK;
	submit(&pair->ring, 2);
}

static void wait_until_started(struct pair *pair)
{
	char byte;

	CHECK(read(pair->started[0], &byte, 1) == 1);
}

/* Reaps the CQEs of both reads, and stores the results by user_data. */
static void take_both(struct pair *pair, int results[3], int within_ms)
{
	double begin = now_ms();

	results[FROM_PIPE] = results[FROM_FILE] = 1 << 30;
	for (int n = 0; n < 2; n++) {
		struct io_uring_cqe *cqe;

		CHECK(wait_ms(&pair->ring, &cqe, within_ms) == 0);
		CHECK(cqe->user_data == FROM_PIPE || cqe->user_data == FROM_FILE);
		CHECK(results[cqe->user_data] == 1 << 30);
		results[cqe->user_data] = cqe->res;
		io_uring_cqe_seen(&pair->ring, cqe);
	}
	CHECK(now_ms() - begin < within_ms);
	CHECK(io_uring_cq_ready(&pair->ring) == 0);
}

/* The child waits on its parent's ring while the parent computes. */
static void child_collects(void)
{
	struct pair *pair = make_pair();
	volatile unsigned long work = 0;
	int status = 0;
	pid_t child = fork();

	if (child == 0) {
		int results[3];

		wait_until_started(pair);
		write_all(pair->to_read[1], "abcd");
		take_both(pair, results, LONG_MS);
		CHECK(results[FROM_PIPE] == 4 && !memcmp(pair->text, "abcd", 4));
		CHECK(results[FROM_FILE] == BLOCK && holds_number(pair->block, 7));
		_exit(0);
	}
	submit_both(pair);
	write_all(pair->started[1], "s");
	while (waitpid(child, &status, WNOHANG) == 0)
		for (int i = 0; i < 1000; i++)
			work++;
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The parent waits for a request that a child has submitted. The child is dead by then, but not reaped. */
static void collect_from(bool killed)
{
	struct pair *pair = make_pair();
	int results[3];
	siginfo_t info;
	pid_t child = fork();

	if (child == 0) {
		submit_both(pair);
		write_all(pair->started[1], "s");
		while (killed)
			pause();
		_exit(0);
	}
	wait_until_started(pair);
	if (killed)
		CHECK(kill(child, SIGKILL) == 0);
	CHECK(waitid(P_PID, child, &info, WEXITED | WNOWAIT) == 0);
	let_it_run(pair->to_read[1]);
	take_both(pair, results, SOON_MS);
	let_it_have_run(pair->to_read[0]);
	CHECK(results[FROM_PIPE] == -ECANCELED);
	CHECK(results[FROM_FILE] == -ECANCELED || (results[FROM_FILE] == BLOCK && holds_number(pair->block, 7)));
	CHECK(waitpid(child, NULL, 0) == child);
	/* The ring still works. */
	submit_both(pair);
	write_all(pair->to_read[1], "efgh");
	take_both(pair, results, LONG_MS);
	CHECK(results[FROM_PIPE] == 4 && results[FROM_FILE] == BLOCK && !memcmp(pair->text, "efgh", 4));
}

static void owner_was_killed(void)
{
	collect_from(true);
}

static void owner_exited(void)
{
	collect_from(false);
}

/* Waits for the end of a process that need not be a child. The kernel has cancelled the process's requests by then. */
static void wait_until_dead(pid_t process)
{
	struct pollfd dead = {.fd = (int)syscall(SYS_pidfd_open, process, 0), .events = POLLIN};

	CHECK(dead.fd >= 0);
	CHECK(poll(&dead, 1, LONG_MS) == 1);
	close(dead.fd);
}

/* As above, but the waiter sleeps in io_uring_enter(2) when the owner dies. It may have slept since before the ring was
 * known to be shared. */
static void killed_during_the_wait(bool child_comes_late)
{
	struct pair *pair = make_pair();
	struct io_uring_cqe *cqe;
	pid_t child = fork(), killer;

	if (child == 0) {
		if (child_comes_late)
			wait_asleep(getppid());
		submit_read(&pair->ring, pair->to_read[0], pair->text, 4, FROM_PIPE);
		write_all(pair->started[1], "s");
		for (;;)
			pause();
	}
	if (!child_comes_late)
		wait_until_started(pair);
	killer = fork();
	if (killer == 0) {
		if (child_comes_late)
			wait_until_started(pair);
		wait_asleep(getppid());
		CHECK(kill(child, SIGKILL) == 0);
		wait_until_dead(child);
		let_it_run(pair->to_read[1]);
		_exit(0);
	}
	CHECK(wait_ms(&pair->ring, &cqe, SOON_MS) == 0);
	CHECK(cqe->user_data == FROM_PIPE && cqe->res == -ECANCELED);
	io_uring_cqe_seen(&pair->ring, cqe);
	wait_for_child(killer);
	CHECK(waitpid(child, NULL, 0) == child);
}

static void owner_is_killed(void)
{
	killed_during_the_wait(false);
}

static void late_owner_is_killed(void)
{
	killed_during_the_wait(true);
}

/* A process sleeps with its own reads armed. Each completion that another process posts wakes it, even after more wakes
 * were sent than the socket between them holds. */
static void others_posts_wake(void)
{
	enum { ROUNDS = 600 };
	struct pair *pair = make_pair();
	int answers[2];
	char byte;
	double begin;
	pid_t child;

	CHECK(pipe(answers) == 0);
	submit_read(&pair->ring, pair->to_read[0], pair->text, 4, FROM_PIPE);
	child = fork();
	if (child == 0) {
		for (int i = 0; i < ROUNDS; i++) {
			wait_until_started(pair);
			usleep(i % 4 * 100);
			prepare_nop(&pair->ring, 1000 + i);
			submit(&pair->ring, 1);
		}
		CHECK(read(answers[0], &byte, 1) == 1);
		_exit(0);
	}
	begin = now_ms();
	for (int i = 0; i < ROUNDS; i++) {
		write_all(pair->started[1], "s");
		expect(&pair->ring, 1000 + i, 0);
	}
	/* Without wake-ups each round would take the time after which a waiter checks by itself. */
	CHECK(now_ms() - begin < ROUNDS * 20);
	write_all(answers[1], "a");
	wait_for_child(child);
	write_all(pair->to_read[1], "abcd");
	expect(&pair->ring, FROM_PIPE, 4);
}

#define READS_AT_MOST 4096

/* A child is killed anywhere, often in the middle of a submission or a post. Its reads that were surely submitted
 * end once each, and the ring still works. */
static void killed_anywhere(void)
{
	struct io_uring *ring = shared_memory(sizeof(*ring));
	unsigned *submitted = shared_memory(sizeof(*submitted));
	unsigned char *seen = malloc(READS_AT_MOST);
	int pipes[2];
	char buffer[8];

	CHECK(pipe(pipes) == 0 && seen);
	init_ring(ring, 64, 0);
	srandom(1);
	for (int round = 0; round < 100; round++) {
		unsigned ended = 0, last = 0;
		struct io_uring_cqe *cqe;
		pid_t child;

		*submitted = 0;
		memset(seen, 0, READS_AT_MOST);
		child = fork();
		if (child == 0) {
			while (*submitted < READS_AT_MOST - 1) {
				submit_read(ring, pipes[0], buffer, 1, (uint64_t)round << 32 | (1 + *submitted));
				__atomic_add_fetch(submitted, 1, __ATOMIC_RELEASE);
				for (int i = 0; i < 56; i++)
					prepare_nop(ring, 0);
				CHECK(io_uring_submit(ring) == 56);
				while (io_uring_peek_cqe(ring, &cqe) == 0 && cqe->user_data == 0)
					io_uring_cqe_seen(ring, cqe);
			}
			pause();
		}
		usleep(200 + random() % 3000);
		CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
		let_it_run(pipes[1]);
		/* Requests that the child prepared and did not submit become NOPs. */
		for (unsigned i = 0; i < *ring->sq.kring_entries; i++) {
			io_uring_prep_nop(&ring->sq.sqes[i]);
			ring->sq.sqes[i].user_data = 0;
		}
		ring->sq.sqe_head = ring->sq.sqe_tail = *ring->sq.ktail;
		io_uring_enter(ring->ring_fd, *ring->sq.ktail - *ring->sq.khead, 0, 0, NULL);
		prepare_nop(ring, (uint64_t)round << 32 | READS_AT_MOST);
		submit(ring, 1);
		while (ended < *submitted || !last) {
			unsigned which;

			CHECK(wait_ms(ring, &cqe, SOON_MS) == 0);
			which = cqe->user_data;
			CHECK(which <= READS_AT_MOST && cqe->user_data >> 32 <= (unsigned)round);
			if (which == READS_AT_MOST) {
				CHECK(cqe->res == 0);
				last++;
			} else if (which != 0) {
				CHECK(answer(cqe->res) == -ECANCELED);
				/* A READ of an earlier round may have been submitted just before that round's death,
				 * without being counted. */
				if (cqe->user_data >> 32 == (unsigned)round) {
					CHECK(seen[which]++ == 0);
					ended += which <= *submitted;
				}
			}
			io_uring_cqe_seen(ring, cqe);
		}
		CHECK(last == 1);
		let_it_have_run(pipes[0]);
	}
}

#define BACKENDS 6
#define READS 400
#define SLOTS 8

/* One process's ring, and the reads it has in flight. */
struct backend {
	struct io_uring ring;
	pthread_mutex_t submission, completion;
	struct {
		_Atomic int state; /* 0 free, 1 in flight, 2 done */
		unsigned block;
		unsigned char *buffer;
	} slots[SLOTS];
};

/* Waits until a slot of any backend is not in flight, taking that backend's CQEs under its mutex. */
static void wait_for_slot(struct backend *backend, int slot)
{
	CHECK(pthread_mutex_lock(&backend->completion) == 0);
	while (backend->slots[slot].state == 1) {
		struct io_uring_cqe *cqe;

		CHECK(wait_ms(&backend->ring, &cqe, LONG_MS) == 0);
		do {
			unsigned which = cqe->user_data;

			CHECK(which < SLOTS && cqe->res == BLOCK);
			CHECK(backend->slots[which].state == 1);
			CHECK(holds_number(backend->slots[which].buffer, backend->slots[which].block));
			backend->slots[which].state = 2;
			io_uring_cqe_seen(&backend->ring, cqe);
		} while (io_uring_peek_cqe(&backend->ring, &cqe) == 0);
	}
	CHECK(pthread_mutex_unlock(&backend->completion) == 0);
}

static void run_backend(struct backend *backends, int me, int file)
{
	struct backend *mine = &backends[me];

	srandom(me);
	for (int read = 0; read < READS; read++) {
		int slot = read % SLOTS;
		struct io_uring_sqe *sqe;

		wait_for_slot(mine, slot);
		mine->slots[slot].block = random() % BLOCKS;
		memset(mine->slots[slot].buffer, 0xff, BLOCK);
		mine->slots[slot].state = 1;
		sqe = next_sqe(&mine->ring);
		io_uring_prep_read(sqe, file, mine->slots[slot].buffer, BLOCK, mine->slots[slot].block * BLOCK);
		sqe->user_data = slot;
		if (read % 3 == 0)
			sqe->flags |= IOSQE_ASYNC;
		submit(&mine->ring, 1);
		wait_for_slot(&backends[random() % BACKENDS], random() % SLOTS);
	}
	for (int slot = 0; slot < SLOTS; slot++)
		wait_for_slot(mine, slot);
}

/* Every backend submits to its own ring and waits for reads of all. */
static void backends(void)
{
	struct backend *all = shared_memory(BACKENDS * sizeof(*all));
	int file = numbered_file();
	pid_t children[BACKENDS];

	for (int b = 0; b < BACKENDS; b++) {
		init_ring(&all[b].ring, 16, 0);
		init_shared_mutex(&all[b].completion);
		for (int slot = 0; slot < SLOTS; slot++)
			all[b].slots[slot].buffer = shared_memory(BLOCK);
	}
	for (int b = 0; b < BACKENDS; b++) {
		children[b] = fork();
		if (children[b] == 0) {
			run_backend(all, b, file);
			_exit(0);
		}
	}
	for (int b = 0; b < BACKENDS; b++)
		wait_for_child(children[b]);
}

/* The owner closes numbers of the ring, each in another way, but keeps one number. Processes that come later can still
 * use the ring. */
static void owner_closes_other_numbers(void)
{
	int pipes[2], null = open("/dev/null", O_RDONLY), copies[3];
	struct io_uring ring;
	char buffer[8];
	FILE *stream;
	pid_t child;

	CHECK(null >= 0 && pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], buffer, 1, 1);
	for (int i = 0; i < 3; i++)
		CHECK((copies[i] = dup(ring.ring_fd)) >= 0);
	CHECK(close(copies[0]) == 0);
	CHECK(dup2(null, copies[1]) == copies[1] && read(copies[1], buffer, 1) == 0);
	stream = fdopen(copies[2], "r");
	CHECK(stream && fclose(stream) == 0);
	CHECK(fcntl(copies[0], F_GETFD) == -1 && fcntl(copies[2], F_GETFD) == -1);
	child = fork();
	if (child == 0) {
		CHECK(answer(io_uring_get_events(&ring)) >= 0);
		CHECK(io_uring_cq_ready(&ring) == 0);
		_exit(0);
	}
	wait_for_child(child);
	write_all(pipes[1], "x");
	expect(&ring, 1, 1);
	io_uring_queue_exit(&ring);
}

CASES({"submit-at-once", submit_at_once},
      {"other-numbers", owner_closes_other_numbers},
      {"child-collects", child_collects},
      {"owner-was-killed", owner_was_killed},
      {"owner-exited", owner_exited},
      {"owner-is-killed", owner_is_killed},
      {"late-owner-is-killed", late_owner_is_killed},
      {"wake", others_posts_wake},
      {"killed-anywhere", killed_anywhere},
      {"backends", backends})
