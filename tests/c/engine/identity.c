/* Operations whose result depends on the caller's identity, submitted by threads with their own credentials,
 * directory or umask. A worker, or a thread that completes a chain, must not use its own identity for them. */
#include "identity.h"

static char buffer[8];
static int pipes[2];
static struct io_uring ring;

/* Makes a directory through the ring, with IOSQE_ASYNC. */
static void make_directory(const char *path, int expected)
{
	struct io_uring_sqe *sqe = next_sqe(&ring);

	io_uring_prep_mkdirat(sqe, AT_FDCWD, path, 0777);
	sqe->flags |= IOSQE_ASYNC;
	sqe->user_data = 5;
	submit(&ring, 1);
	expect(&ring, 5, expected);
}

static void *as_nobody(void *unused)
{
	become_nobody();
	make_directory("by-nobody", 0);
	CHECK(stat_of("by-nobody").st_uid == NOBODY && stat_of("by-nobody").st_gid == NOBODY);
	make_directory("by-root/inside", -EACCES);
	return unused;
}

static void *with_file_system_ids(void *unused)
{
	syscall(SYS_setfsgid, NOBODY);
	syscall(SYS_setfsuid, NOBODY);
	make_directory("by-fsuid", 0);
	CHECK(stat_of("by-fsuid").st_uid == NOBODY && stat_of("by-fsuid").st_gid == NOBODY);
	make_directory("by-root/inside", -EACCES);
	return unused;
}

static void *without_capabilities(void *unused)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};

	CHECK(syscall(SYS_capset, &header, none) == 0);
	make_directory("closed/inside", -EACCES);
	return unused;
}

/* Between the other threads' requests, root's threads keep their own identity. */
static void credentials_are_the_submitters(void)
{
	root_only();
	enter_new_directory(0777);
	init_ring(&ring, 8, 0);
	make_directory("by-root", 0);
	CHECK(chmod("by-root", 0755) == 0);
	in_a_thread(as_nobody);
	make_directory("by-root/a", 0);
	in_a_thread(with_file_system_ids);
	make_directory("by-root/b", 0);
	CHECK(stat_of("by-root/b").st_uid == 0);
	CHECK(mkdir("closed", 0) == 0 && chmod("closed", 0) == 0);
	in_a_thread(without_capabilities);
	make_directory("closed/inside", 0);
	leave_and_remove();
}

static void own_directory(void)
{
	CHECK(unshare(CLONE_FS) == 0);
	CHECK(mkdir("own", 0777) == 0 && chdir("own") == 0);
	umask(077);
}

/* Newer than the installed header. */
#define OP_BIND 56

static void bind_socket(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct io_uring_sqe *sqe = next_sqe(&ring);

	strcpy(address.sun_path, path);
	io_uring_prep_connect(sqe, socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, sizeof(address));
	sqe->opcode = OP_BIND;
	sqe->flags |= IOSQE_ASYNC;
	sqe->user_data = 6;
	submit(&ring, 1);
	expect(&ring, 6, 0);
}

/* Returns the result of reading an attribute that no file has. */
static int attribute_of(const char *path)
{
	struct io_uring_sqe *sqe = next_sqe(&ring);
	struct io_uring_cqe *cqe;
	int result;

	io_uring_prep_getxattr(sqe, "user.none", buffer, path, sizeof(buffer));
	sqe->flags |= IOSQE_ASYNC;
	submit(&ring, 1);
	CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
	result = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return result;
}

static void *in_own_directory(void *unused)
{
	own_directory();
	make_directory("inside", 0);
	CHECK((stat_of("inside").st_mode & 0777) == 0700);
	bind_socket("socket");
	CHECK((stat_of("socket").st_mode & 0777) == 0700);
	CHECK(attribute_of("inside") != -ENOENT);
	CHECK(attribute_of("first") == -ENOENT);
	return unused;
}

static void directory_and_umask_are_the_submitters(void)
{
	enter_new_directory(0755);
	umask(022);
	init_ring(&ring, 8, 0);
	make_directory("first", 0);
	in_a_thread(in_own_directory);
	CHECK((stat_of("own/inside").st_mode & 0777) == 0700);
	make_directory("last", 0);
	CHECK((stat_of("last").st_mode & 0777) == 0755);
	leave_and_remove();
}

static atomic_int submitted, stop;

/* A READ that waits, and after it a request that depends on the caller's identity. */
static void submit_after_a_read(unsigned read_flags, unsigned flags)
{
	struct io_uring_sqe *sqe;

	prepare_read(&ring, pipes[0], buffer, 1, 1)->flags |= read_flags;
	sqe = next_sqe(&ring);
	io_uring_prep_mkdirat(sqe, AT_FDCWD, "inside", 0777);
	sqe->flags |= flags;
	sqe->user_data = 2;
	submit(&ring, 2);
}

/* Makes no call on the ring, but other system calls, in which the kernel issues the second request. */
static void stay_away(void)
{
	submitted = gettid();
	while (!stop)
		usleep(1000);
}

static void *submit_chain(void *unused)
{
	own_directory();
	submit_after_a_read(IOSQE_IO_LINK, 0);
	stay_away();
	return unused;
}

static void *submit_asynchronous_chain(void *unused)
{
	own_directory();
	submit_after_a_read(IOSQE_IO_LINK, IOSQE_ASYNC);
	stay_away();
	return unused;
}

static void *submit_after_a_drain(void *unused)
{
	own_directory();
	submit_after_a_read(0, IOSQE_IO_DRAIN);
	stay_away();
	return unused;
}

static void completed_by_others(void *(*run)(void *), int wait_in_enter)
{
	pthread_t thread;

	enter_new_directory(0755);
	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	submitted = stop = 0;
	CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
	while (!submitted)
		usleep(1000);
	wait_others_asleep(submitted);
	write_all(pipes[1], "x");
	if (!wait_in_enter)
		for (int ms = 0; ms < LONG_MS && io_uring_cq_ready(&ring) < 2; ms++)
			usleep(1000);
	expect(&ring, 1, 1);
	expect(&ring, 2, 0);
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK((stat_of("own/inside").st_mode & 0777) == 0700);
	io_uring_queue_exit(&ring);
	leave_and_remove();
}

/* No thread is in io_uring_enter(2) when the READ completes. */
static void a_chain_that_nobody_waits_for(void)
{
	completed_by_others(submit_chain, 0);
	completed_by_others(submit_asynchronous_chain, 0);
	completed_by_others(submit_after_a_drain, 0);
}

/* Another thread is in io_uring_enter(2) when the READ completes. */
static void a_chain_that_another_thread_waits_for(void)
{
	completed_by_others(submit_chain, 1);
	completed_by_others(submit_asynchronous_chain, 1);
	completed_by_others(submit_after_a_drain, 1);
}

/* Each of the two requests waits for the other, so they need two threads with the same identity. */
static void *open_both_ends(void *unused)
{
	own_directory();
	CHECK(mkfifo("fifo", 0600) == 0);
	for (int i = 0; i < 2; i++) {
		struct io_uring_sqe *sqe = next_sqe(&ring);

		io_uring_prep_openat(sqe, AT_FDCWD, "fifo", i ? O_WRONLY : O_RDONLY, 0);
		sqe->flags |= IOSQE_ASYNC;
	}
	CHECK(answer(io_uring_submit(&ring)) == 2);
	for (int i = 0; i < 2; i++) {
		struct io_uring_cqe *cqe;

		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
		CHECK(answer(cqe->res) >= 0);
		io_uring_cqe_seen(&ring, cqe);
	}
	return unused;
}

static void both_ends_of_a_fifo_are_opened(void)
{
	enter_new_directory(0755);
	init_ring(&ring, 8, 0);
	make_directory("first", 0); /* so that there is a worker with another identity */
	in_a_thread(open_both_ends);
	leave_and_remove();
}

static void *connect_as_nobody(void *unused)
{
	struct sockaddr_un address = {AF_UNIX, "socket"};
	struct io_uring_sqe *sqe;
	int client = socket(AF_UNIX, SOCK_STREAM, 0);

	CHECK(unshare(CLONE_FS) == 0 && chdir("below") == 0);
	become_nobody();
	sqe = next_sqe(&ring);
	io_uring_prep_connect(sqe, client, (struct sockaddr *)&address, sizeof(address));
	sqe->flags |= IOSQE_ASYNC;
	submit(&ring, 1);
	expect(&ring, 0, 0);
	return unused;
}

/* The path is looked up with the submitter's identity, and the peer gets the submitter's credentials. */
static void a_connection_is_the_submitters(void)
{
	struct sockaddr_un address = {AF_UNIX, "below/socket"};
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), peer;
	struct ucred who;
	socklen_t size = sizeof(who);

	root_only();
	enter_new_directory(0755);
	init_ring(&ring, 8, 0);
	make_directory("below", 0); /* so that there is a worker with another identity */
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(listener, 4) == 0);
	CHECK(chmod("below/socket", 0777) == 0);
	in_a_thread(connect_as_nobody);
	peer = accept(listener, NULL, NULL);
	CHECK(peer >= 0 && getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0);
	CHECK(who.uid == NOBODY && who.gid == NOBODY);
	leave_and_remove();
}

CASES({"credentials", credentials_are_the_submitters},
      {"directory", directory_and_umask_are_the_submitters},
      {"chain", a_chain_that_nobody_waits_for},
      {"chain-another-waits", a_chain_that_another_thread_waits_for},
      {"fifo", both_ends_of_a_fifo_are_opened},
      {"connect", a_connection_is_the_submitters})
