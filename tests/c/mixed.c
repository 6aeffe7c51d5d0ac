/* The kernel's and anyring's rings and contexts in one process. A filter refuses setups by their number of entries, so
 * it is known who serves each ring. Without anyring the refused rings could not be made. This program is for anyring
 * only. */
#include "engine/engine.h"
#include "filter.h"

#include <linux/aio_abi.h>

/* The error that refuses a setup with this number of entries. */
static const struct {
	unsigned entries;
	int error;
} REFUSED[] = {{64, ENOMEM}, {16, EPERM}, {32, ENOSYS}, {128, EMFILE}, {256, EINVAL}, {512, ENXIO}};

#define NO_SQARRAY (1U << 16)
#define OURS 64
#define THEIRS 8

static void refuse(void)
{
	for (size_t i = 0; i < sizeof(REFUSED) / sizeof(REFUSED[0]); i++) {
		struct sock_filter code[] = {
			BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 3),
			BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, REFUSED[i].entries, 0, 1),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | REFUSED[i].error),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		};
		FILTER_CALLS(code, 0);
	}
}

static int is_kernels(int fd)
{
	char path[32], name[64] = {0};

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	CHECK(readlink(path, name, sizeof(name) - 1) > 0);
	return !strcmp(name, "anon_inode:[io_uring]");
}

/* Makes a ring of the kernel and a ring of anyring. */
static void both(struct io_uring *theirs, struct io_uring *ours)
{
	refuse();
	init_ring(theirs, THEIRS, 0);
	init_ring(ours, OURS, 0);
	CHECK(is_kernels(theirs->ring_fd) && !is_kernels(ours->ring_fd));
}

static int result(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	int res;

	CHECK(answer(io_uring_submit_and_wait(ring, 1)) >= 0 && io_uring_peek_cqe(ring, &cqe) == 0);
	res = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return res;
}

static void works(struct io_uring *ring)
{
	int ends[2];
	char byte = 0;

	prepare_nop(ring, 1);
	CHECK(answer(result(ring)) == 0);
	CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
	prepare_read(ring, ends[0], &byte, 1, 2);
	CHECK(answer(result(ring)) == 1 && byte == 'x');
	close(ends[0]), close(ends[1]);
}

static void rings(void)
{
	struct io_uring theirs, ours, again;

	both(&theirs, &ours);
	for (int i = 0; i < 3; i++)
		works(&theirs), works(&ours);
	init_ring(&again, THEIRS, DEFERRED);
	CHECK(is_kernels(again.ring_fd));
	works(&again);
	io_uring_queue_exit(&ours);
	works(&theirs), works(&again);
	io_uring_queue_exit(&theirs);
	init_ring(&ours, OURS, DEFERRED);
	works(&ours), works(&again);
	io_uring_queue_exit(&ours), io_uring_queue_exit(&again);
}

static long setup(unsigned entries, struct io_uring_params *params)
{
	return syscall(SYS_io_uring_setup, entries, params);
}

/* The refusals after which anyring serves, by libc's syscall(). */
static void refusals(void)
{
	struct io_uring_params good = {0}, bad = {.flags = 1u << 30};
	long fd;

	refuse();
	for (unsigned entries = 16; entries <= 64; entries *= 2) {
		struct io_uring_params params = {0};

		fd = setup(entries, &params);
		CHECK(fd >= 0 && !is_kernels(fd) && params.sq_entries == entries);
		CHECK(syscall(SYS_io_uring_enter, fd, 0, 0, 0, NULL, 0) == 0);
		close(fd);
	}
	CHECK(setup(128, &good) == -1 && errno == EMFILE);
	CHECK(setup(512, &good) == -1 && errno == ENXIO);
	CHECK(setup(64, (void *)8) == -1 && errno == ENOMEM);
	/* A setup flag that only the engine knows, then one that neither side knows. */
	fd = setup(256, &good);
	CHECK(fd >= 0 && !is_kernels(fd));
	close(fd);
	CHECK(setup(256, &bad) == -1 && errno == EINVAL);
	CHECK(setup(8, &bad) == -1 && errno == EINVAL);
	CHECK(setup(0, &good) == -1 && errno == EINVAL);
}

/* If the kernel refuses a ring without an index array, the library asks it for a ring with the array before anyring
 * makes it. */
static void falls_back_to_an_index_array(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct io_uring ring;

	FILTER_CALLS(code, 0);
	init_ring(&ring, THEIRS, 0);
	CHECK(!is_kernels(ring.ring_fd) && !(ring.flags & NO_SQARRAY));
	works(&ring);
}

static int message(struct io_uring *from, int to)
{
	io_uring_prep_msg_ring(next_sqe(from), to, 5, 6, 0);
	return result(from);
}

/* For each side, the other's ring is a file that is no ring. Calls fail as the kernel's do for a pipe. */
static void messages(void)
{
	struct io_uring theirs, ours;
	int ends[2];

	both(&theirs, &ours);
	CHECK(pipe(ends) == 0);
	CHECK(message(&theirs, ends[0]) == -EBADFD);
	CHECK(message(&theirs, ours.ring_fd) == -EBADFD && message(&ours, theirs.ring_fd) == -EBADFD);
	works(&theirs), works(&ours);
}

static int clone_buffers(struct io_uring *into, struct io_uring *from)
{
	struct {
		unsigned fd, flags, source_offset, offset, count, padding[3];
	} what = {.fd = from->ring_fd};

	return syscall(SYS_io_uring_register, into->ring_fd, 30, &what, 1) == 0 ? 0 : -errno;
}

static void clones(void)
{
	struct io_uring theirs, ours;
	char page[4096];
	struct iovec part = {page, sizeof(page)};

	both(&theirs, &ours);
	CHECK(io_uring_register_buffers(&theirs, &part, 1) == 0);
	CHECK(clone_buffers(&ours, &theirs) == -EOPNOTSUPP);
	CHECK(io_uring_register_buffers(&ours, &part, 1) == 0);
	CHECK(io_uring_unregister_buffers(&theirs) == 0);
	CHECK(clone_buffers(&theirs, &ours) == -EOPNOTSUPP);
}

static void attached(void)
{
	struct io_uring theirs, ours, more, poller;
	struct io_uring_params params = {.flags = IORING_SETUP_ATTACH_WQ};

	both(&theirs, &ours);
	params.wq_fd = theirs.ring_fd;
	CHECK(answer(io_uring_queue_init_params(OURS, &more, &params)) == 0);
	CHECK(!is_kernels(more.ring_fd) && params.flags & IORING_SETUP_ATTACH_WQ);
	works(&more);
	/* A new ring shall attach to one of anyring's. The kernel could make the ring, but cannot attach it. */
	memset(&params, 0, sizeof(params));
	params.flags = IORING_SETUP_ATTACH_WQ | IORING_SETUP_SQPOLL;
	params.wq_fd = ours.ring_fd;
	CHECK(answer(io_uring_queue_init_params(THEIRS, &poller, &params)) == -EINVAL);
	params = (struct io_uring_params){.flags = IORING_SETUP_SQPOLL};
	CHECK(answer(io_uring_queue_init_params(OURS, &poller, &params)) == 0);
	params = (struct io_uring_params){.flags = IORING_SETUP_ATTACH_WQ | IORING_SETUP_SQPOLL, .wq_fd = poller.ring_fd};
	CHECK(answer(io_uring_queue_init_params(THEIRS, &more, &params)) == 0);
	CHECK(!is_kernels(more.ring_fd));
	works(&more), works(&theirs), works(&ours);
	/* Attaching to a descriptor that is no ring fails. */
	params = (struct io_uring_params){.flags = IORING_SETUP_ATTACH_WQ, .wq_fd = 0};
	CHECK(answer(io_uring_queue_init_params(OURS, &more, &params)) == -ENOMEM);
}

/* `watcher` polls `watched`, which first has no CQE, then gets a CQE, and is emptied. */
static void polled(struct io_uring *watcher, struct io_uring *watched)
{
	struct __kernel_timespec moment = {.tv_nsec = 50000000};
	struct io_uring_cqe *cqe;

	for (int round = 0; round < 3; round++) {
		io_uring_prep_poll_add(next_sqe(watcher), watched->ring_fd, POLLIN);
		CHECK(answer(io_uring_submit(watcher)) == 1);
		CHECK(io_uring_wait_cqe_timeout(watcher, &cqe, &moment) == -ETIME);
		prepare_nop(watched, 3);
		CHECK(answer(io_uring_submit(watched)) == 1);
		CHECK(answer(io_uring_wait_cqe(watcher, &cqe)) == 0 && cqe->res & POLLIN);
		io_uring_cqe_seen(watcher, cqe);
		CHECK(io_uring_peek_cqe(watched, &cqe) == 0);
		io_uring_cqe_seen(watched, cqe);
	}
}

static void polls(void)
{
	struct io_uring theirs, ours;

	both(&theirs, &ours);
	polled(&ours, &theirs);
	polled(&theirs, &ours);
}

/* Returns the results of `count` requests, whose user_data counts from 0. */
static void results(struct io_uring *ring, unsigned count, int *results)
{
	struct io_uring_cqe *cqe;

	for (unsigned i = 0; i < count; i++) {
		CHECK(answer(io_uring_wait_cqe(ring, &cqe)) == 0 && cqe->user_data < count);
		results[cqe->user_data] = cqe->res;
		io_uring_cqe_seen(ring, cqe);
	}
}

/* A request linked to a poll of `other` waits until `other` has a CQE. A message to `other` fails, which cancels the
* request after it, unless that is hard-linked. */
static void linked(struct io_uring *ring, struct io_uring *other)
{
	struct io_uring_cqe *cqe;
	int seen[2];

	io_uring_prep_poll_add(next_sqe(ring), other->ring_fd, POLLIN);
	ring->sq.sqes[(ring->sq.sqe_tail - 1) & ring->sq.ring_mask].flags = IOSQE_IO_LINK;
	prepare_nop(ring, 1);
	CHECK(answer(io_uring_submit(ring)) == 2 && io_uring_peek_cqe(ring, &cqe) == -EAGAIN);
	prepare_nop(other, 3);
	CHECK(answer(io_uring_submit(other)) == 1);
	results(ring, 2, seen);
	CHECK(seen[0] & POLLIN && seen[1] == 0);
	CHECK(io_uring_peek_cqe(other, &cqe) == 0);
	io_uring_cqe_seen(other, cqe);
	for (int hard = 0; hard < 2; hard++) {
		io_uring_prep_msg_ring(next_sqe(ring), other->ring_fd, 5, 6, 0);
		ring->sq.sqes[(ring->sq.sqe_tail - 1) & ring->sq.ring_mask].flags = hard ? IOSQE_IO_HARDLINK : IOSQE_IO_LINK;
		prepare_nop(ring, 1);
		CHECK(answer(io_uring_submit(ring)) > 0);
		results(ring, 2, seen);
		CHECK(seen[0] == -EBADFD && seen[1] == (hard ? 0 : -ECANCELED));
	}
	CHECK(io_uring_peek_cqe(other, &cqe) == -EAGAIN);
}

static void links(void)
{
	struct io_uring theirs, ours;

	both(&theirs, &ours);
	linked(&ours, &theirs);
	linked(&theirs, &ours);
	works(&theirs), works(&ours);
}

/* epoll_wait(2), poll(2) and multishot polls report rings of both sides. */
static void waits(void)
{
	struct io_uring theirs, ours, *rings[] = {&theirs, &ours};
	struct io_uring_cqe *cqe;
	int set = epoll_create1(0);

	both(&theirs, &ours);
	for (int i = 0; i < 2; i++)
		CHECK(epoll_ctl(set, EPOLL_CTL_ADD, rings[i]->ring_fd, &(struct epoll_event){.events = EPOLLIN, .data.u32 = i}) == 0);
	for (int round = 0; round < 6; round++) {
		struct io_uring *ring = rings[round % 2];
		struct epoll_event event;
		struct pollfd files[] = {{theirs.ring_fd, POLLIN, 0}, {ours.ring_fd, POLLIN, 0}};

		CHECK(epoll_wait(set, &event, 1, 0) == 0 && poll(files, 2, 0) == 0);
		prepare_nop(ring, 3);
		CHECK(answer(io_uring_submit(ring)) == 1);
		CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u32 == (unsigned)round % 2);
		CHECK(poll(files, 2, -1) == 1 && files[round % 2].revents == POLLIN);
		CHECK(io_uring_peek_cqe(ring, &cqe) == 0);
		io_uring_cqe_seen(ring, cqe);
	}
	for (int i = 0; i < 2; i++) {
		struct io_uring *watcher = rings[i], *watched = rings[1 - i];

		io_uring_prep_poll_multishot(next_sqe(watcher), watched->ring_fd, POLLIN);
		CHECK(answer(io_uring_submit(watcher)) == 1);
		for (int round = 0; round < 3; round++) {
			prepare_nop(watched, 3);
			CHECK(answer(io_uring_submit(watched)) == 1);
			CHECK(answer(io_uring_wait_cqe(watcher, &cqe)) == 0);
			CHECK(cqe->res & POLLIN && cqe->flags & IORING_CQE_F_MORE);
			io_uring_cqe_seen(watcher, cqe);
			CHECK(io_uring_peek_cqe(watched, &cqe) == 0);
			io_uring_cqe_seen(watched, cqe);
			/* As a loop does before it sleeps: a call on the kernel's ring. */
			CHECK(answer(io_uring_get_events(watcher)) >= 0);
		}
		io_uring_prep_poll_remove(next_sqe(watcher), 0);
		io_uring_submit_and_wait(watcher, 2);
		while (io_uring_peek_cqe(watcher, &cqe) == 0)
			io_uring_cqe_seen(watcher, cqe);
	}
	works(&theirs), works(&ours);
}

/* A request on anyring's ring closes a ring of the kernel, and a registered ring of the other side stays usable. */
static void files(void)
{
	struct io_uring theirs, ours, more;

	both(&theirs, &ours);
	CHECK(answer(io_uring_register_files(&ours, &theirs.ring_fd, 1)) == 0);
	CHECK(answer(io_uring_register_files(&theirs, &ours.ring_fd, 1)) == 0);
	works(&theirs), works(&ours);
	CHECK(answer(io_uring_unregister_files(&ours)) == 0 && answer(io_uring_unregister_files(&theirs)) == 0);
	works(&theirs), works(&ours);
	init_ring(&more, THEIRS, 0);
	io_uring_prep_close(next_sqe(&ours), more.ring_fd);
	CHECK(result(&ours) == 0);
	CHECK(syscall(SYS_io_uring_enter, more.ring_fd, 0, 0, 0, NULL, 0) == -1 && errno == EBADF);
	works(&theirs), works(&ours);
}

static void *registers_ours(void *both)
{
	struct io_uring *theirs = ((struct io_uring **)both)[0], *ours = ((struct io_uring **)both)[1];

	CHECK(answer(io_uring_register_ring_fd(ours)) == 1);
	works(ours), works(theirs);
	CHECK(io_uring_register_ring_fd(theirs) == -EBUSY);
	works(ours), works(theirs);
	CHECK(answer(io_uring_unregister_ring_fd(ours)) == 1);
	CHECK(answer(io_uring_register_ring_fd(theirs)) == 1);
	works(ours), works(theirs);
	CHECK(answer(io_uring_unregister_ring_fd(theirs)) == 1);
	return NULL;
}

/* A thread has registered rings of one side only, so an index belongs to that side. */
static void registered(void)
{
	struct io_uring theirs, ours, more;
	struct io_uring *rings[] = {&theirs, &more};
	pthread_t thread;

	both(&theirs, &ours);
	CHECK(answer(io_uring_register_ring_fd(&theirs)) == 1);
	works(&theirs), works(&ours);
	CHECK(io_uring_register_ring_fd(&ours) == -EBUSY);
	works(&theirs), works(&ours);
	init_ring(&more, OURS, 0);
	CHECK(answer(io_uring_unregister_ring_fd(&theirs)) == 1);
	CHECK(pthread_create(&thread, NULL, registers_ours, rings) == 0 && pthread_join(thread, NULL) == 0);
	CHECK(answer(io_uring_register_ring_fd(&ours)) == 1);
	works(&theirs), works(&ours);
}

static void children(void)
{
	struct io_uring theirs, ours;
	int status;

	both(&theirs, &ours);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct io_uring more;

		init_ring(&more, THEIRS, 0);
		CHECK(is_kernels(more.ring_fd));
		works(&more);
		init_ring(&more, OURS, 0);
		works(&more), works(&ours), works(&theirs);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	init_ring(&theirs, THEIRS, 0), init_ring(&ours, OURS, 0);
	works(&theirs), works(&ours);
}

static void *makes(void *unused)
{
	struct io_uring ring;

	for (int i = 0; i < 20; i++) {
		init_ring(&ring, i % 2 ? OURS : THEIRS, 0);
		works(&ring);
		io_uring_queue_exit(&ring);
	}
	return unused;
}

/* Several threads make rings at the moment of the first refusal. */
static void threads(void)
{
	pthread_t threads[4];

	refuse();
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, makes, NULL) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

/* A number changes its owner, and so do duplicates. */
static void numbers(void)
{
	struct io_uring theirs, ours;
	int number, copy;

	both(&theirs, &ours);
	number = ours.ring_fd;
	copy = dup(number);
	CHECK(copy >= 0 && syscall(SYS_io_uring_enter, copy, 0, 0, 0, NULL, 0) == 0);
	close(number);
	CHECK(dup2(theirs.ring_fd, number) == number);
	CHECK(is_kernels(number) && syscall(SYS_io_uring_enter, number, 0, 0, 0, NULL, 0) == 0);
	CHECK(syscall(SYS_io_uring_register, number, IORING_UNREGISTER_EVENTFD, NULL, 0) == -1 && errno == ENXIO);
	CHECK(dup2(copy, number) == number);
	works(&ours), works(&theirs);
}

/* A bad pointer, and signals that the program blocked before there was an anyring ring. */
static void faults(void)
{
	struct io_uring theirs, ours;
	sigset_t all;

	sigfillset(&all);
	CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
	both(&theirs, &ours);
	io_uring_prep_openat(next_sqe(&ours), AT_FDCWD, (void *)8, O_RDONLY, 0);
	CHECK(result(&ours) == -EFAULT);
	works(&ours), works(&theirs);
}

static unsigned long status_of(const char *name)
{
	char line[256];
	unsigned long value = ~0UL;
	FILE *file = fopen("/proc/self/status", "r");

	CHECK(file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			value = strtoul(line + strlen(name) + 1, NULL, 16);
	fclose(file);
	return value;
}

/* As long as nothing is refused, nothing changes in the process: no handler, no filter, no thread, no descriptor. */
static void untouched(void)
{
	struct io_uring ring;
	struct sigaction action;
	int before = dup(0), after;

	close(before);
	init_ring(&ring, THEIRS, 0);
	CHECK(is_kernels(ring.ring_fd) && ring.ring_fd == before);
	works(&ring);
	io_uring_queue_exit(&ring);
	after = dup(0);
	CHECK(after == before);
	CHECK(status_of("SigCgt:") == 0 && status_of("Seccomp:") == 0 && status_of("NoNewPrivs:") == 0);
	CHECK(status_of("Threads:") == 1);
	CHECK(syscall(SYS_rt_sigaction, SIGSEGV, NULL, &action, 8) == 0 && action.sa_handler == SIG_DFL);
	CHECK(syscall(SYS_rt_sigaction, SIGSYS, NULL, &action, 8) == 0 && action.sa_handler == SIG_DFL);
}

static long io_setup(unsigned requests, aio_context_t *context)
{
	return syscall(SYS_io_setup, requests, context);
}

static void reads(aio_context_t context)
{
	int file = open("/proc/self/exe", O_RDONLY);
	char byte = 0;
	struct iocb request = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = file, .aio_buf = (uintptr_t)&byte, .aio_nbytes = 1};
	struct iocb *requests[] = {&request};
	struct io_event event;

	CHECK(file >= 0 && syscall(SYS_io_submit, context, 1, requests) == 1);
	CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1 && event.res == 1 && byte == 0x7f);
	close(file);
}

/* Contexts of Linux AIO: more requests than all processes may ask the kernel for. */
static void contexts(void)
{
	aio_context_t theirs = 0, ours = 0, none = 0;
	unsigned long most = 0;
	FILE *file = fopen("/proc/sys/fs/aio-max-nr", "r");

	if (!file)
		skip("there is no /proc here");
	CHECK(fscanf(file, "%lu", &most) == 1);
	fclose(file);
	CHECK(io_setup(4, &theirs) == 0);
	reads(theirs);
	CHECK(io_setup(most + 1, &ours) == 0);
	for (int i = 0; i < 3; i++)
		reads(theirs), reads(ours);
	CHECK(io_setup(0, &none) == -1 && errno == EINVAL);
	CHECK(io_setup(~0u, &none) == -1 && errno == EINVAL);
	CHECK(syscall(SYS_io_destroy, ours) == 0);
	CHECK(syscall(SYS_io_destroy, ours) == -1 && errno == EINVAL);
	reads(theirs);
	CHECK(syscall(SYS_io_destroy, theirs) == 0);
}

CASES({"rings", rings}, {"refusals", refusals}, {"index-array", falls_back_to_an_index_array}, {"messages", messages}, {"clones", clones},
      {"attached", attached}, {"polls", polls}, {"links", links}, {"waits", waits}, {"files", files}, {"registered", registered}, {"children", children},
      {"threads", threads}, {"numbers", numbers}, {"faults", faults}, {"untouched", untouched}, {"contexts", contexts})
