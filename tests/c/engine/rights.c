/* Requests whose effect depends on the submitter's privileges, submitted by threads whose privileges differ from the
 * process's. A write by a thread without CAP_FSETID clears a file's set-user-ID bit; a message carries its sender's
 * ids. A worker, or a thread that completes a waiting request, must not use its own privileges. */
#include "identity.h"

#define SETUID_MODE 04777
/* Newer than the installed header. */
#define OP_FTRUNCATE 55

static struct io_uring ring;
static char byte[1] = {'x'};
static atomic_int submitted, stop;
static int pipes[2];

/* Returns a file with the set-user-ID bit, opened by root. */
static int setuid_file(const char *name)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	CHECK(fd >= 0 && fchmod(fd, SETUID_MODE) == 0);
	return fd;
}

static int keeps_bit(int fd)
{
	struct stat stat;

	CHECK(fstat(fd, &stat) == 0);
	return stat.st_mode & S_ISUID ? 1 : 0;
}

static void prepare_write(struct io_uring_sqe *sqe, int fd)
{
	io_uring_prep_write(sqe, fd, byte, 1, 0);
}

static void prepare_fallocate(struct io_uring_sqe *sqe, int fd)
{
	io_uring_prep_fallocate(sqe, fd, 0, 0, 4096);
}

static void prepare_ftruncate(struct io_uring_sqe *sqe, int fd)
{
	io_uring_prep_rw(OP_FTRUNCATE, sqe, fd, NULL, 0, 1);
}

static void prepare_splice(struct io_uring_sqe *sqe, int fd)
{
	write_all(pipes[1], "x");
	io_uring_prep_splice(sqe, pipes[0], -1, fd, 0, 1, 0);
}

static void prepare_registered_write(struct io_uring_sqe *sqe, int fd)
{
	io_uring_prep_write_fixed(sqe, fd, byte, 1, 0, 0);
}

static void (*const changes[])(struct io_uring_sqe *, int) = {prepare_write, prepare_registered_write, prepare_fallocate,
							       prepare_ftruncate, prepare_splice};
#define CHANGES (sizeof(changes) / sizeof(changes[0]))

/* Makes each change to its own file, without and with IOSQE_ASYNC, and checks whether the bit stays. */
static void change_files(int stays)
{
	for (size_t i = 0; i < 2 * CHANGES; i++) {
		int fd = setuid_file("file");
		struct io_uring_sqe *sqe = next_sqe(&ring);
		struct io_uring_cqe *cqe;

		changes[i / 2](sqe, fd);
		if (i & 1)
			sqe->flags |= IOSQE_ASYNC;
		submit(&ring, 1);
		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
		CHECK(answer(cqe->res) >= 0);
		io_uring_cqe_seen(&ring, cqe);
		if (keeps_bit(fd) != stays) {
			fprintf(stderr, "change %zu: the bit %s\n", i, stays ? "is gone" : "stays");
			_exit(1);
		}
		close(fd);
	}
}

/* Root may open the files for a thread that has lost its rights. */
static int files[2 * CHANGES];

static void change_open_files(int stays)
{
	for (size_t i = 0; i < 2 * CHANGES; i++) {
		struct io_uring_sqe *sqe = next_sqe(&ring);
		struct io_uring_cqe *cqe;

		changes[i / 2](sqe, files[i]);
		if (i & 1)
			sqe->flags |= IOSQE_ASYNC;
		submit(&ring, 1);
		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
		CHECK(answer(cqe->res) >= 0);
		io_uring_cqe_seen(&ring, cqe);
		if (keeps_bit(files[i]) != stays) {
			fprintf(stderr, "change %zu: the bit %s\n", i, stays ? "is gone" : "stays");
			_exit(1);
		}
	}
}

static void open_files(void)
{
	for (size_t i = 0; i < 2 * CHANGES; i++) {
		char name[16];

		snprintf(name, sizeof(name), "file%zu", i);
		files[i] = setuid_file(name);
	}
}

static void *changes_as_nobody(void *unused)
{
	become_nobody();
	change_open_files(0);
	return unused;
}

static void *changes_with_file_system_ids(void *unused)
{
	setfsgid(NOBODY);
	setfsuid(NOBODY);
	change_open_files(0);
	return unused;
}

/* Takes capabilities from the calling thread, but root's ids stay. */
static void drop(unsigned capability, int for_good)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct sets[2];

	CHECK(syscall(SYS_capget, &header, sets) == 0);
	sets[0].effective &= ~(1u << capability);
	if (for_good)
		sets[0].permitted &= ~(1u << capability);
	CHECK(syscall(SYS_capset, &header, sets) == 0);
}

static void *changes_without_fsetid(void *unused)
{
	drop(CAP_FSETID, 1);
	change_open_files(0);
	return unused;
}

static void *changes_without_fsetid_by_wrapper(void *unused)
{
	extern int capset(struct __user_cap_header_struct *, const struct __user_cap_data_struct *);
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	const struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};

	CHECK(capset(&header, none) == 0);
	change_open_files(0);
	return unused;
}

static void begin(unsigned flags)
{
	struct iovec registered = {byte, sizeof(byte)};

	root_only();
	enter_new_directory(0777);
	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, flags);
	CHECK(answer(io_uring_register_buffers(&ring, &registered, 1)) == 0);
	change_files(1); /* so that there are workers with root's identity */
}

static void end(void)
{
	io_uring_queue_exit(&ring);
	leave_and_remove();
}

static void changes_are_the_submitters(void)
{
	static void *(*const threads[])(void *) = {changes_as_nobody, changes_with_file_system_ids,
						   changes_without_fsetid, changes_without_fsetid_by_wrapper};

	begin(0);
	for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
		open_files();
		in_a_thread(threads[i]);
		change_files(1);
	}
	end();
}

/* Makes no call on the ring, but other system calls, in which the kernel issues the second request. */
static void stay_away(void)
{
	submitted = gettid();
	while (!stop)
		usleep(1000);
}

static unsigned after_flags, read_flags;

/* A READ that waits, and after it a WRITE. */
static void submit_after_a_read(void)
{
	struct io_uring_sqe *sqe;

	prepare_read(&ring, pipes[0], byte, 1, 1)->flags |= read_flags;
	sqe = next_sqe(&ring);
	prepare_write(sqe, files[0]);
	sqe->flags |= after_flags;
	sqe->user_data = 2;
	submit(&ring, 2);
}

static void *submit_as_nobody(void *unused)
{
	become_nobody();
	submit_after_a_read();
	stay_away();
	return unused;
}

/* The thread is root again by the time that its request is made. */
static void *submit_as_nobody_for_a_while(void *unused)
{
	CHECK(syscall(SYS_setresuid, -1, NOBODY, -1) == 0);
	submit_after_a_read();
	CHECK(syscall(SYS_setresuid, -1, 0, -1) == 0);
	write_all(pipes[1], "x");
	expect(&ring, 1, 1);
	expect(&ring, 2, 1);
	return unused;
}

static void wait_for_two(int in_enter)
{
	if (!in_enter)
		for (int ms = 0; ms < LONG_MS && io_uring_cq_ready(&ring) < 2; ms++)
			usleep(1000);
	expect(&ring, 1, 1);
	expect(&ring, 2, 1);
}

static void completed_by_others(void *(*run)(void *), unsigned of_read, unsigned after, int in_enter)
{
	pthread_t thread;

	open_files();
	submitted = stop = 0;
	read_flags = of_read;
	after_flags = after;
	CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
	while (!submitted)
		usleep(1000);
	wait_others_asleep(submitted);
	write_all(pipes[1], "x");
	wait_for_two(in_enter);
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(!keeps_bit(files[0]));
}

static void what_waits_its_turn_is_the_submitters(void)
{
	begin(0);
	for (int in_enter = 0; in_enter < 2; in_enter++) {
		completed_by_others(submit_as_nobody, IOSQE_IO_LINK, 0, in_enter);
		completed_by_others(submit_as_nobody, IOSQE_IO_LINK, IOSQE_ASYNC, in_enter);
		completed_by_others(submit_as_nobody, 0, IOSQE_IO_DRAIN, in_enter);
	}
	open_files();
	read_flags = 0;
	after_flags = IOSQE_IO_DRAIN;
	in_a_thread(submit_as_nobody_for_a_while);
	CHECK(!keeps_bit(files[0]));
	end();
}

/* A polling thread that rings share acts with the rights of each ring's maker. */
static void *poll_as_nobody(void *unused)
{
	struct io_uring_params params = {.flags = IORING_SETUP_SQPOLL | IORING_SETUP_ATTACH_WQ,
					 .wq_fd = ring.ring_fd,
					 .sq_thread_idle = 100};
	struct io_uring own;
	struct io_uring_sqe *sqe;

	become_nobody();
	CHECK(answer(io_uring_queue_init_params(8, &own, &params)) == 0);
	for (int i = 0; i < 2; i++) {
		sqe = next_sqe(&own);
		prepare_write(sqe, files[i]);
		sqe->flags |= i ? IOSQE_ASYNC : 0;
		submit(&own, 1);
		expect(&own, 0, 1);
		CHECK(!keeps_bit(files[i]));
	}
	io_uring_queue_exit(&own);
	return unused;
}

static void a_polling_thread_is_the_makers(void)
{
	begin(IORING_SETUP_SQPOLL);
	open_files();
	in_a_thread(poll_as_nobody);
	change_files(1);
	end();
}

static int sockets[2];

/* A socket pair, full of root's messages, whose second end reports the sender's credentials. */
static void fill_socket(void)
{
	static char many[4096];
	int on = 1;

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
	CHECK(setsockopt(sockets[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0);
	while (send(sockets[0], many, sizeof(many), MSG_DONTWAIT) > 0)
		;
	CHECK(errno == EAGAIN);
}

/* Receives until the message of one byte comes, and returns its sender's user. */
static struct ucred sender(void)
{
	for (;;) {
		char data[4096];
		union {
			char bytes[CMSG_SPACE(sizeof(struct ucred))];
			struct cmsghdr align;
		} control;
		struct iovec iov = {data, sizeof(data)};
		struct msghdr message = {.msg_iov = &iov,
					 .msg_iovlen = 1,
					 .msg_control = &control,
					 .msg_controllen = sizeof(control)};
		ssize_t got = recvmsg(sockets[1], &message, 0);
		struct ucred who;

		CHECK(got > 0);
		if (got > 1)
			continue;
		CHECK(CMSG_FIRSTHDR(&message) && CMSG_FIRSTHDR(&message)->cmsg_type == SCM_CREDENTIALS);
		memcpy(&who, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(who));
		return who;
	}
}

static int by_write;

static void submit_message(unsigned flags)
{
	struct io_uring_sqe *sqe = next_sqe(&ring);

	if (by_write)
		io_uring_prep_write(sqe, sockets[0], byte, 1, 0);
	else
		io_uring_prep_send(sqe, sockets[0], byte, 1, 0);
	sqe->flags |= flags;
	sqe->user_data = 7;
	submit(&ring, 1);
}

static void *send_as_nobody(void *unused)
{
	become_nobody();
	submit_message(0);
	stay_away();
	return unused;
}

static void *send_asynchronously_as_nobody(void *unused)
{
	become_nobody();
	submit_message(IOSQE_ASYNC);
	stay_away();
	return unused;
}

static void *send_as_root(void *unused)
{
	submit_message(0);
	stay_away();
	return unused;
}

/* The request is completed by a thread that has become another user since the submission. */
static void *wait_as_nobody(void *unused)
{
	become_nobody();
	CHECK(sender().uid == 0);
	expect(&ring, 7, 1);
	return unused;
}

static void sent_by(void *(*run)(void *), int in_enter, uid_t expected)
{
	pthread_t thread;

	fill_socket();
	submitted = stop = 0;
	CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
	while (!submitted)
		usleep(1000);
	wait_others_asleep(submitted);
	if (expected == 0)
		in_a_thread(wait_as_nobody);
	else {
		struct ucred who = sender();

		CHECK(who.uid == expected && who.gid == expected);
		if (!in_enter)
			only_look(&ring);
		expect(&ring, 7, 1);
	}
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	close(sockets[0]);
	close(sockets[1]);
}

static void messages_are_the_submitters(void)
{
	begin(0);
	for (by_write = 0; by_write < 2; by_write++) {
		if (by_write == 0)
			sent_by(send_as_root, 1, 0); /* before any thread becomes another user */
		for (int in_enter = 0; in_enter < 2; in_enter++) {
			sent_by(send_as_nobody, in_enter, NOBODY);
			sent_by(send_asynchronously_as_nobody, in_enter, NOBODY);
		}
		sent_by(send_as_root, 1, 0);
	}
	end();
}

/* A socket that an accept made after a wait belongs to the submitter. */
static int listener;

static void *accept_as_nobody(void *unused)
{
	struct io_uring_sqe *sqe = next_sqe(&ring);

	become_nobody();
	io_uring_prep_multishot_accept(sqe, listener, NULL, NULL, 0);
	submit(&ring, 1);
	stay_away();
	return unused;
}

static void accepted_sockets_are_the_submitters(void)
{
	struct sockaddr_un address = {AF_UNIX, "socket"};
	pthread_t thread;

	begin(0);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(listener, 8) == 0);
	CHECK(pthread_create(&thread, NULL, accept_as_nobody, NULL) == 0);
	while (!submitted)
		usleep(1000);
	wait_others_asleep(submitted);
	for (int i = 0; i < 6; i++) {
		int client = socket(AF_UNIX, SOCK_STREAM, 0);
		struct io_uring_cqe *cqe;
		struct stat stat;

		CHECK(connect(client, (struct sockaddr *)&address, sizeof(address)) == 0);
		if (i & 1)
			only_look(&ring);
		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
		CHECK(answer(cqe->res) >= 0 && cqe->flags & IORING_CQE_F_MORE);
		CHECK(fstat(cqe->res, &stat) == 0 && stat.st_uid == NOBODY);
		close(cqe->res);
		close(client);
		io_uring_cqe_seen(&ring, cqe);
	}
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	end();
}

CASES({"changes", changes_are_the_submitters},
      {"turn", what_waits_its_turn_is_the_submitters},
      {"polled", a_polling_thread_is_the_makers},
      {"messages", messages_are_the_submitters},
      {"accepted", accepted_sockets_are_the_submitters})
