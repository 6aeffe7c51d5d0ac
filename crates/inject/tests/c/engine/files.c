/* What becomes of the program's files when it registers them. */
#include "engine.h"

/* Whether another process sees a record lock on the file. */
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

/* A process loses its record locks on a file when it closes any descriptor of it; unregistering closes none that the
 * program has. */
static void unregistering_keeps_record_locks(void)
{
	struct flock lock = {.l_type = F_WRLCK}, unlock = {.l_type = F_UNLCK};
	char name[] = "locked-XXXXXX";
	int file = mkstemp(name);
	struct io_uring ring;

	CHECK(file >= 0);
	CHECK(fcntl(file, F_SETLK, &lock) == 0);
	CHECK(is_locked(name));
	init_ring(&ring, 8, 0);
	CHECK(answer(io_uring_register_files(&ring, &file, 1)) == 0);
	CHECK(is_locked(name));
	CHECK(answer(io_uring_unregister_files(&ring)) == 0);
	CHECK(is_locked(name));
	CHECK(fcntl(file, F_SETLK, &unlock) == 0);
	CHECK(!is_locked(name));
	CHECK(unlink(name) == 0);
}

CASES({"record-locks", unregistering_keeps_record_locks})
