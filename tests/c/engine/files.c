/* Effects of a registration on the program's files. */
#include "engine.h"

/* Whether another process finds a record lock on the file. */
static int is_locked(const char *name)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		struct flock lock = {.l_type = F_WRLCK};
		int file = open(name, O_RDWR);

		CHECK(fcntl(file, F_GETLK, &lock) == 0);
		_exit(lock.l_type == F_UNLCK ? 2 : 3);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) >= 2);
	return WEXITSTATUS(status) == 3;
}

static void lock(int file, int way)
{
	struct flock whole = {.l_type = F_WRLCK};

	switch (way) {
	case 0: CHECK(fcntl(file, F_SETLK, &whole) == 0); break;
	case 1: CHECK(fcntl(file, F_SETLKW, &whole) == 0); break;
	case 2: CHECK(lockf(file, F_LOCK, 0) == 0); break;
	case 3: CHECK(lockf64(file, F_TLOCK, 0) == 0); break;
	case 4: CHECK(syscall(__NR_fcntl, file, F_SETLK, &whole) == 0); break;
	}
}

static void register_and_unregister(int file)
{
	struct io_uring ring;

	init_ring(&ring, 8, 0);
	CHECK(answer(io_uring_register_files(&ring, &file, 1)) == 0);
	CHECK(answer(io_uring_unregister_files(&ring)) == 0);
	io_uring_queue_exit(&ring);
}

/* A process loses its record locks on a file when it closes any descriptor of it. So unregistering the file must close
 * no descriptor in the program's table. Each way to lock is tried in a new process, which first registers the file
 * without a lock. */
static void unregistering_keeps_record_locks(void)
{
	for (int way = 0; way < 5; way++) {
		pid_t child = fork();
		int status;

		if (child == 0) {
			struct flock unlock = {.l_type = F_UNLCK};
			char name[] = "locked-XXXXXX";
			int file = mkstemp(name);

			CHECK(file >= 0);
			register_and_unregister(file);
			CHECK(!is_locked(name));
			lock(file, way);
			CHECK(is_locked(name));
			register_and_unregister(file);
			CHECK(is_locked(name));
			CHECK(fcntl(file, F_SETLK, &unlock) == 0);
			CHECK(!is_locked(name));
			CHECK(unlink(name) == 0);
			_exit(77);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 77);
	}
}

/* An executed program keeps the process's record locks. */
static void record_locks_of_before(void)
{
	char name[] = "locked-XXXXXX", number[16];
	int file;

	need_proc();
	file = mkstemp(name);
	CHECK(file >= 0);
	lock(file, 0);
	snprintf(number, sizeof(number), "%d", file);
	CHECK(setenv("LOCKED_FILE", number, 1) == 0 && setenv("LOCKED_NAME", name, 1) == 0);
	execl("/proc/self/exe", "files", "record-locks-after", NULL);
	CHECK(!"executed");
}

static void record_locks_after(void)
{
	const char *name = getenv("LOCKED_NAME");

	CHECK(is_locked(name));
	register_and_unregister(atoi(getenv("LOCKED_FILE")));
	CHECK(is_locked(name));
	CHECK(unlink(name) == 0);
}

/* Locks a byte range in a child, which keeps the lock until it is killed. */
static pid_t hold_elsewhere(const char *name, int type, off_t first, off_t bytes)
{
	int ready[2];
	pid_t child;
	char byte;

	CHECK(pipe(ready) == 0);
	child = fork();
	if (child == 0) {
		struct flock range = {.l_type = type, .l_start = first, .l_len = bytes};
		int file = open(name, O_RDWR);

		CHECK(fcntl(file, F_SETLK, &range) == 0);
		write_all(ready[1], "x");
		for (;;)
			pause();
	}
	CHECK(child > 0 && read(ready[0], &byte, 1) == 1);
	CHECK(close(ready[0]) == 0 && close(ready[1]) == 0);
	return child;
}

/* The number of descriptors of the file. */
static int descriptors_of(const char *name)
{
	struct stat wanted, found;
	char path[64];
	int count = 0;

	CHECK(stat(name, &wanted) == 0);
	for (int fd = 0; fd < 8192; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		count += stat(path, &found) == 0 && found.st_ino == wanted.st_ino && found.st_dev == wanted.st_dev;
	}
	return count;
}

/* Other processes have locks on the file, around the program's and on the same bytes. */
static void record_locks_among_others(void)
{
	static const struct {
		int others, own;
		off_t first, bytes, own_first;
	} cases[] = {
		{F_WRLCK, F_WRLCK, 0, 10, 20}, {F_WRLCK, F_WRLCK, 30, 0, 20},
		{F_RDLCK, F_RDLCK, 0, 100, 20}, {F_RDLCK, F_WRLCK, 30, 10, 20},
	};

	need_proc();
	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct flock own = {.l_type = cases[i].own, .l_start = cases[i].own_first, .l_len = 1};
		char name[] = "locked-XXXXXX", other_name[] = "other-XXXXXX";
		int file = mkstemp(name), other = mkstemp(other_name);
		pid_t holders[2];

		CHECK(file >= 0 && other >= 0);
		lock(other, 0);
		holders[0] = hold_elsewhere(name, cases[i].others, cases[i].first, cases[i].bytes);
		holders[1] = hold_elsewhere(name, cases[i].others, 15, 1);
		register_and_unregister(file);
		for (int ms = 0; ms < LONG_MS && descriptors_of(name) > 1; ms++)
			usleep(1000);
		CHECK(descriptors_of(name) == 1);
		CHECK(fcntl(file, F_SETLK, &own) == 0);
		register_and_unregister(file);
		for (int j = 0; j < 2; j++)
			CHECK(kill(holders[j], SIGKILL) == 0 && waitpid(holders[j], NULL, 0) == holders[j]);
		CHECK(is_locked(name));
		CHECK(unlink(name) == 0 && unlink(other_name) == 0);
		CHECK(close(file) == 0 && close(other) == 0);
	}
}

static char buffer[8];

static void read_registered(struct io_uring *ring, unsigned slot)
{
	memset(buffer, 0, sizeof(buffer));
	prepare_read(ring, slot, buffer, 1, slot)->flags |= IOSQE_FIXED_FILE;
	submit(ring, 1);
}

static void replace(struct io_uring *ring, int file)
{
	CHECK(answer(io_uring_register_files_update(ring, 0, &file, 1)) == 1);
}

/* One slot holds a pipe, another pipe and a file in turn. State cached about one file is wrong for the next, although
 * the engine may give both the same number. */
static void a_slot_holds_one_file_after_the_other(void)
{
	char name[] = "replaced-XXXXXX";
	int file = mkstemp(name), none = -1, pipes[2];
	struct io_uring ring;

	CHECK(file >= 0 && unlink(name) == 0);
	write_all(file, "abc");
	init_ring(&ring, 8, 0);
	CHECK(answer(io_uring_register_files(&ring, &none, 1)) == 0);
	for (int round = 0; round < 8; round++) {
		CHECK(pipe(pipes) == 0);
		replace(&ring, pipes[0]);
		read_registered(&ring, 0);
		write_all(pipes[1], "x");
		expect(&ring, 0, 1);
		CHECK(buffer[0] == 'x');
		if (round % 2) { /* at offset 0 each time, whatever the position of the file is */
			replace(&ring, file);
			for (int i = 0; i < 3; i++) {
				read_registered(&ring, 0);
				expect(&ring, 0, 1);
				CHECK(buffer[0] == 'a');
			}
		}
		CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
	}
}

/* A stream is closed with a READ in flight. The READ still waits for its pipe, whichever file gets the number. */
static void the_number_of_a_waiting_read_is_used_again(void)
{
	struct io_uring ring;
	char late[8];

	init_ring(&ring, 8, 0);
	for (int round = 0; round < 20; round++) {
		int old[2], new[2];
		FILE *stream;

		CHECK(pipe(old) == 0);
		stream = fdopen(old[0], "r");
		submit_read(&ring, old[0], late, 1, 1);
		CHECK(stream && fclose(stream) == 0);
		CHECK(pipe(new) == 0 && new[0] == old[0]);
		submit_read(&ring, new[0], buffer, 1, 2);
		write_all(new[1], "n");
		expect(&ring, 2, 1);
		CHECK(buffer[0] == 'n');
		write_all(old[1], "o");
		expect(&ring, 1, 1);
		CHECK(late[0] == 'o');
		CHECK(close(new[0]) == 0 && close(new[1]) == 0 && close(old[1]) == 0);
	}
}

/* Registered files are replaced by threads with rings of their own, and numbers that were used are given again. No ring
 * is made or closed while the threads run, since in the kernel a READ on a ring's number waits until the ring has a
 * CQE. */
enum { REPLACERS = 4, UPDATES = 600 };
static pthread_barrier_t made, done;

static void *replace_files(void *unused)
{
	struct io_uring ring;
	char byte;
	int none = -1, file = memfd_create("file", MFD_CLOEXEC);

	(void)unused;
	CHECK(file >= 0);
	init_ring(&ring, 16, 0);
	CHECK(io_uring_register_files(&ring, &none, 1) == 0);
	pthread_barrier_wait(&made);
	for (int round = 0; round < UPDATES; round++) {
		int lowest = dup(file);

		CHECK(lowest >= 0 && close(lowest) == 0);
		for (int ahead = 0; ahead < 3; ahead++)
			prepare_read(&ring, lowest + ahead, &byte, 1, 0);
		submit(&ring, 3);
		for (int ahead = 0; ahead < 3; ahead++) {
			struct io_uring_cqe *cqe;

			CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
			io_uring_cqe_seen(&ring, cqe);
		}
		CHECK(io_uring_register_files_update(&ring, 0, &file, 1) == 1);
		CHECK(io_uring_register_files_update(&ring, 0, &none, 1) == 1);
	}
	pthread_barrier_wait(&done);
	io_uring_queue_exit(&ring);
	close(file);
	return NULL;
}

static void replace_files_at_once(void)
{
	pthread_t threads[REPLACERS];

	CHECK(pthread_barrier_init(&made, NULL, REPLACERS) == 0 && pthread_barrier_init(&done, NULL, REPLACERS) == 0);
	for (int i = 0; i < REPLACERS; i++)
		CHECK(pthread_create(&threads[i], NULL, replace_files, NULL) == 0);
	for (int i = 0; i < REPLACERS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

CASES({"at-once", replace_files_at_once},
      {"replaced", a_slot_holds_one_file_after_the_other},
      {"reused", the_number_of_a_waiting_read_is_used_again},
      {"record-locks", unregistering_keeps_record_locks},
      {"record-locks-among-others", record_locks_among_others},
      {"record-locks-before", record_locks_of_before},
      {"record-locks-after", record_locks_after})
