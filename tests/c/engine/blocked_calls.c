/* A thread is stuck in a call on its ring. It may be in a page fault that is not answered yet, as on a file system
 * whose server is gone. Or it may be in a close that lingers. No other thread waits for it, not even a thread that
 * closes descriptors or forks. No other ring waits either. */
#include "engine.h"
#include "../filter.h"
#include "fault.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <semaphore.h>
#include <sys/fsuid.h>
#include <sys/stat.h>

static struct io_uring ring, other;
static pthread_t submitter;
static long tid;

static void *submits(void *unused)
{
	__atomic_store_n(&tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
	submit(&ring, io_uring_sq_ready(&ring));
	return unused;
}

/* Another thread submits what has been prepared. */
static void submit_elsewhere(void)
{
	CHECK(pthread_create(&submitter, NULL, submits, NULL) == 0);
}

static void others_go_on(void)
{
	struct __kernel_timespec soon = {.tv_nsec = 2000000};
	int first[2], second[2], set = epoll_create1(EPOLL_CLOEXEC), event = eventfd(1, 0);
	struct epoll_event readable = {.events = EPOLLIN};
	char byte;
	pid_t child;

	/* A ring completes its requests, and its timer fires without an io_uring_enter(2). */
	prepare_nop(&other, 10);
	submit(&other, 1);
	expect(&other, 10, 0);
	io_uring_prep_timeout(next_sqe(&other), &soon, 0, 0);
	submit(&other, 1);
	only_look(&other);
	take(&other, 0, -ETIME);
	/* Descriptors that the other ring uses are closed. */
	CHECK(pipe(first) == 0 && pipe(second) == 0);
	submit_read(&other, first[0], &byte, 1, 11);
	CHECK(close(first[0]) == 0 && close(second[0]) == 0 && close(second[1]) == 0);
	write_all(first[1], "x");
	expect(&other, 11, 1);
	CHECK(close(first[1]) == 0);
	/* The ring that is stuck is in an epoll set. */
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ring.ring_fd, &readable) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, event, &readable) == 0);
	CHECK(epoll_wait(set, &readable, 1, LONG_MS) == 1);
	CHECK(close(set) == 0 && close(event) == 0);
	/* A child makes and uses rings. */
	child = fork();
	if (!child) {
		struct io_uring own;

		init_ring(&own, 8, 0);
		prepare_nop(&own, 12);
		submit(&own, 1);
		expect(&own, 12, 0);
		CHECK(close(faults) == 0);
		io_uring_queue_exit(&own);
		io_uring_queue_exit(&other);
		_exit(0);
	}
	wait_for_child(child);
	/* Another ring can be closed and made. */
	io_uring_queue_exit(&other);
	init_ring(&other, 8, 0);
}

/* The page is the target of a transfer, which the kernel, too, makes under the ring's lock. A READ that waits on the
 * same ring keeps its pipe, even if another file has that number by then. */
static void transfers(void)
{
	int sockets[2], waits[2], file;
	char byte = 0;

	make_page();
	init_ring(&ring, 8, 0);
	init_ring(&other, 8, 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0 && pipe(waits) == 0);
	prepare_read(&ring, waits[0], &byte, 1, 2);
	write_all(sockets[1], "abc");
	io_uring_prep_recv(next_sqe(&ring), sockets[0], page, 3, 0);
	submit_elsewhere();
	wait_for_fault();
	CHECK(close(waits[0]) == 0);
	file = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	CHECK(file == waits[0]);
	write_all(waits[1], "y");
	others_go_on();
	answer_fault();
	CHECK(pthread_join(submitter, NULL) == 0);
	expect(&ring, 0, 3);
	expect(&ring, 2, 1);
	CHECK(byte == 'y' && !memcmp(page, "abc", 3));
	CHECK(close(file) == 0);
	io_uring_queue_exit(&ring);
}

/* A thread that changes its identity does not wait for the thread that is stuck. */
static void changes_of_identity(void)
{
	int sockets[2], waits[2];
	char byte = 0;

	make_page();
	init_ring(&ring, 8, 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0 && pipe(waits) == 0);
	submit_read(&ring, waits[0], &byte, 1, 2);
	write_all(sockets[1], "abc");
	io_uring_prep_recv(next_sqe(&ring), sockets[0], page, 3, 0);
	submit_elsewhere();
	wait_for_fault();
	alarm(20);
	setfsuid(getuid());
	setfsgid(getgid());
	alarm(0);
	answer_fault();
	CHECK(pthread_join(submitter, NULL) == 0);
	expect(&ring, 0, 3);
	write_all(waits[1], "y");
	expect(&ring, 2, 1);
	CHECK(byte == 'y');
	io_uring_queue_exit(&ring);
}

/* The ring is closed while the thread is stuck in a call on it. */
static void ends(void)
{
	int sockets[2], number;

	make_page();
	init_ring(&ring, 8, 0);
	init_ring(&other, 8, 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	write_all(sockets[1], "abc");
	io_uring_prep_recv(next_sqe(&ring), sockets[0], page, 3, 0);
	submit_elsewhere();
	wait_for_fault();
	number = ring.ring_fd;
	CHECK(close(number) == 0);
	CHECK(fcntl(number, F_GETFD) == -1 && errno == EBADF);
	answer_fault();
	CHECK(pthread_join(submitter, NULL) == 0);
	CHECK(!memcmp(page, "abc", 3));
	prepare_nop(&other, 10);
	submit(&other, 1);
	expect(&other, 10, 0);
}

/* A STATX by path writes its result to the page. In the kernel a worker makes the call, so the ring is not locked. */
static void names(void)
{
	struct __kernel_timespec soon = {.tv_nsec = 2000000};

	make_page();
	init_ring(&ring, 8, 0);
	init_ring(&other, 8, 0);
	io_uring_prep_statx(next_sqe(&ring), AT_FDCWD, "/", 0, STATX_TYPE, (struct statx *)page);
	submit_elsewhere();
	wait_for_fault();
	prepare_nop(&ring, 1);
	submit(&ring, 1);
	expect(&ring, 1, 0);
	io_uring_prep_timeout(next_sqe(&ring), &soon, 0, 0);
	ring.sq.sqes[(ring.sq.sqe_tail - 1) & *ring.sq.kring_mask].user_data = 2;
	submit(&ring, 1);
	expect(&ring, 2, -ETIME);
	others_go_on();
	answer_fault();
	CHECK(pthread_join(submitter, NULL) == 0);
	expect(&ring, 0, 0);
	CHECK(S_ISDIR(((struct statx *)page)->stx_mode));
	io_uring_queue_exit(&ring);
}

/* A stream socket with data that nobody reads: its last close lingers until `*to` is closed. */
static void *registers(void *unused)
{
	CHECK(answer(io_uring_register_files(&ring, (const int *)page, 1)) == 0);
	return unused;
}

/* A thread keeps a ring in io_uring_register(2) while a descriptor of its requests becomes ready. The polling thread,
 * which polls without pause for the first second, has noticed the readiness by then, and gets no second report. */
static void events_of_a_polled_ring(void)
{
	int waits[2];
	char byte;

	make_page();
	CHECK(pipe(waits) == 0);
	init_ring(&ring, 8, IORING_SETUP_SQPOLL);
	prepare_read(&ring, waits[0], &byte, 1, 1);
	prepare_nop(&ring, 2);
	submit(&ring, 2);
	expect(&ring, 2, 0);
	CHECK(pthread_create(&submitter, NULL, registers, NULL) == 0);
	wait_for_fault();
	write_all(waits[1], "x");
	wait_others_asleep(0);
	answer_fault();
	CHECK(pthread_join(submitter, NULL) == 0);
	expect(&ring, 1, 1);
}

static int lingering_socket(int *to, int *listener)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct linger linger = {1, 10 * LONG_MS / 1000}; /* longer than any test waits */
	socklen_t length = sizeof(address);
	int from = socket(AF_INET, SOCK_STREAM, 0);
	static char data[65536];

	*listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(bind(*listener, (struct sockaddr *)&address, length) == 0 && listen(*listener, 1) == 0);
	CHECK(getsockname(*listener, (struct sockaddr *)&address, &length) == 0);
	CHECK(connect(from, (struct sockaddr *)&address, length) == 0);
	*to = accept(*listener, NULL, NULL);
	CHECK(*to >= 0);
	while (send(from, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	CHECK(setsockopt(from, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
	return from;
}

/* A close lingers. In the kernel the submitter makes it on its way out of the call, and the ring is not locked. */
static void lingers(void)
{
	int to, listener, from = lingering_socket(&to, &listener);

	init_ring(&ring, 8, 0);
	init_ring(&other, 8, 0);
	io_uring_prep_close(next_sqe(&ring), from);
	submit_elsewhere();
	while (!__atomic_load_n(&tid, __ATOMIC_ACQUIRE))
		sched_yield();
	while (fcntl(from, F_GETFD) >= 0)
		sched_yield();
	wait_asleep(tid);
	prepare_nop(&ring, 1);
	submit(&ring, 1);
	for (int taken = 0; !taken;) {
		struct io_uring_cqe *cqe;

		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
		taken = cqe->user_data == 1;
		CHECK(cqe->res == 0);
		io_uring_cqe_seen(&ring, cqe);
	}
	CHECK(close(to) == 0 && close(listener) == 0); /* with data unread: a reset */
	CHECK(pthread_join(submitter, NULL) == 0);
	io_uring_queue_exit(&ring);
}

static void *unregisters(void *unused)
{
	__atomic_store_n(&tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
	CHECK(answer(io_uring_unregister_files(&ring)) == 0);
	return unused;
}

static void *clears_slots(void *unused)
{
	int none[] = {-1};

	__atomic_store_n(&tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
	CHECK(answer(io_uring_register_files_update(&ring, 0, none, 1)) == 1);
	return unused;
}

/* The last close of a registered file lingers. In the kernel it happens on the way out of the call that removes the
 * file from the table. */
static void registered_file_lingers(void *(*gives_up)(void *))
{
	int to, listener, from = lingering_socket(&to, &listener);

	init_ring(&ring, 8, 0);
	CHECK(answer(io_uring_register_files(&ring, &from, 1)) == 0);
	CHECK(close(from) == 0);
	CHECK(pthread_create(&submitter, NULL, gives_up, NULL) == 0);
	while (!__atomic_load_n(&tid, __ATOMIC_ACQUIRE))
		sched_yield();
	wait_asleep(tid);
	prepare_nop(&ring, 1);
	submit(&ring, 1);
	expect(&ring, 1, 0);
	CHECK(close(to) == 0 && close(listener) == 0);
	CHECK(pthread_join(submitter, NULL) == 0);
	io_uring_queue_exit(&ring);
}

static void unregistered_file_lingers(void)
{
	registered_file_lingers(unregisters);
}

static void cleared_slot_lingers(void)
{
	registered_file_lingers(clears_slots);
}

static sem_t go_on, end;

static char received;

/* In the kernel a thread's requests end with the thread, which closes their files itself. So the thread stays. */
static void *receives(void *unused)
{
	struct io_uring_sqe *sqe = next_sqe(&ring);

	io_uring_prep_recv(sqe, 0, &received, 1, 0);
	sqe->flags |= IOSQE_FIXED_FILE;
	submit(&ring, 1);
	CHECK(sem_post(&go_on) == 0);
	while (sem_wait(&end) != 0)
		;
	return unused;
}

/* A request has the last reference to a file, and the close of this file lingers. The request is completed although no
 * thread of the program makes a call, and other rings are served. */
static void received_file_lingers(void)
{
	struct __kernel_timespec soon = {.tv_nsec = 2000000};
	int to, listener, from = lingering_socket(&to, &listener), none[] = {-1};

	init_ring(&ring, 8, 0);
	init_ring(&other, 8, 0);
	CHECK(sem_init(&go_on, 0, 0) == 0 && sem_init(&end, 0, 0) == 0);
	CHECK(answer(io_uring_register_files(&ring, &from, 1)) == 0);
	CHECK(pthread_create(&submitter, NULL, receives, NULL) == 0);
	while (sem_wait(&go_on) != 0)
		;
	CHECK(answer(io_uring_register_files_update(&ring, 0, none, 1)) == 1);
	CHECK(close(from) == 0);
	write_all(to, "x");
	only_look(&ring);
	take(&ring, 0, 1);
	io_uring_prep_timeout(next_sqe(&other), &soon, 0, 0);
	submit(&other, 1);
	only_look(&other);
	take(&other, 0, -ETIME);
	CHECK(received == 'x');
	CHECK(close(to) == 0 && close(listener) == 0);
	CHECK(sem_post(&end) == 0 && pthread_join(submitter, NULL) == 0);
	io_uring_queue_exit(&other);
	io_uring_queue_exit(&ring);
}

/* In the kernel a thread's requests end with the thread, so this thread stays. */
static void *submits_when_told(void *unused)
{
	while (sem_wait(&go_on) != 0)
		;
	submits(unused);
	while (sem_wait(&end) != 0)
		;
	return unused;
}

/* No thread can be made any more. (The kernel makes io_uring's threads without a call of the program.) */
static void refuse_threads(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
	};

	FILTER_CALLS(code, SECCOMP_FILTER_FLAG_TSYNC);
}

/* A request for a worker sleeps, and no worker can be made. */
static void sleeps_without_threads(int received)
{
	make_page();
	init_ring(&ring, 8, 0);
	CHECK(sem_init(&go_on, 0, 0) == 0 && sem_init(&end, 0, 0) == 0);
	CHECK(pthread_create(&submitter, NULL, submits_when_told, NULL) == 0);
	if (received) {
		int sockets[2];
		struct io_uring_sqe *sqe = next_sqe(&ring);

		CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
		write_all(sockets[1], "abc");
		io_uring_prep_recv(sqe, sockets[0], page, 3, 0);
		sqe->user_data = 2;
		sqe->flags |= IOSQE_ASYNC;
	} else {
		struct io_uring_sqe *sqe = next_sqe(&ring);

		io_uring_prep_statx(sqe, AT_FDCWD, "/", 0, STATX_TYPE, (struct statx *)page);
		sqe->user_data = 2;
		sqe->flags |= IOSQE_ASYNC;
	}
	refuse_threads();
	CHECK(sem_post(&go_on) == 0);
	wait_for_fault();
	prepare_nop(&ring, 1);
	submit(&ring, 1);
	expect(&ring, 1, 0);
	answer_fault();
	expect(&ring, 2, received);
	CHECK(sem_post(&end) == 0 && pthread_join(submitter, NULL) == 0);
	io_uring_queue_exit(&ring);
}

static void receives_without_threads(void)
{
	sleeps_without_threads(3);
}

static void looks_without_threads(void)
{
	sleeps_without_threads(0);
}

/* More requests than there are workers. */
#define SENT 40

/* Sends file 0 of `other` to `ring`, into whichever slot is free. */
static struct io_uring_sqe *prepare_message(uint64_t told, uint64_t user_data)
{
	struct io_uring_sqe *sqe = next_sqe(&other);

	io_uring_prep_msg_ring(sqe, ring.ring_fd, 0, told, 0);
	sqe->addr = 1; /* IORING_MSG_SEND_FD */
	sqe->file_index = IORING_FILE_INDEX_ALLOC;
	sqe->user_data = user_data;
	return sqe;
}

static void *sends_files(void *unused)
{
	for (int i = 0; i < SENT; i++)
		prepare_message(100 + i, i)->flags |= i % 2 ? IOSQE_ASYNC : 0;
	submit(&other, SENT);
	CHECK(sem_post(&go_on) == 0);
	/* In the kernel the requests that a thread has submitted end with the thread. */
	for (int i = 0; i < SENT; i++) {
		struct io_uring_cqe *cqe;

		CHECK(wait_ms(&other, &cqe, LONG_MS) == 0);
		CHECK(answer(cqe->res) >= 0 && cqe->res < SENT);
		io_uring_cqe_seen(&other, cqe);
	}
	return unused;
}

/* The ring has room for files. It is locked by a thread that waits for the page. The other ring has a file to send. */
static void keep_ring_from_files(int *sockets)
{
	make_page();
	init_ring(&ring, 64, 0);
	init_ring(&other, 64, 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	CHECK(answer(io_uring_register_files_sparse(&ring, SENT)) == 0);
	CHECK(answer(io_uring_register_files(&other, sockets, 1)) == 0);
	write_all(sockets[1], "abc");
	io_uring_prep_recv(next_sqe(&ring), sockets[0], page, 3, 0);
	submit_elsewhere();
	wait_for_fault();
}

/* Files that are sent to the ring have to wait until the thread is no longer stuck. (In the kernel they wait in the
 * sender's own workers.) Requests of other rings that need workers are done. */
static void messages(void)
{
	int sockets[2], file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), slots[SENT] = {0};
	struct io_uring third;
	pthread_t sender;
	char byte;

	init_ring(&third, 8, 0);
	CHECK(sem_init(&go_on, 0, 0) == 0);
	keep_ring_from_files(sockets);
	CHECK(pthread_create(&sender, NULL, sends_files, NULL) == 0);
	while (sem_wait(&go_on) != 0)
		;
	prepare_read(&third, file, &byte, 1, 1)->flags |= IOSQE_ASYNC;
	submit(&third, 1);
	expect(&third, 1, 1);
	CHECK(!io_uring_cq_ready(&other));
	answer_fault();
	CHECK(pthread_join(submitter, NULL) == 0 && pthread_join(sender, NULL) == 0);
	for (int i = 0; i < SENT + 1; i++) {
		struct io_uring_cqe *cqe;

		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
		if (cqe->user_data == 0) {
			CHECK(answer(cqe->res) == 3);
		} else {
			CHECK(cqe->user_data >= 100 && cqe->user_data < 100 + SENT);
			CHECK(cqe->res >= 0 && cqe->res < SENT && !slots[cqe->res]++);
		}
		io_uring_cqe_seen(&ring, cqe);
	}
	/* The ring has the files. */
	write_all(sockets[1], "d");
	prepare_read(&ring, SENT - 1, &byte, 1, 1)->flags |= IOSQE_FIXED_FILE;
	submit(&ring, 1);
	expect(&ring, 1, 1);
	CHECK(byte == 'd');
	io_uring_queue_exit(&ring);
}

/* The ring to which a file is sent is closed while the file waits. The sender gets an error, or the ring received the
 * file before it ended. */
static void last_message(void)
{
	struct io_uring_cqe *cqe;
	int sockets[2];

	keep_ring_from_files(sockets);
	prepare_message(100, 1);
	submit(&other, 1);
	CHECK(close(ring.ring_fd) == 0);
	answer_fault();
	CHECK(wait_ms(&other, &cqe, LONG_MS) == 0);
	CHECK(cqe->res == 0 || cqe->res == -EBADFD);
	CHECK(pthread_join(submitter, NULL) == 0);
}

/* A message that waits for the ring can be cancelled. */
static void cancelled_message(void)
{
	int sockets[2], gone = 0;
	struct io_uring_sqe *sqe;

	keep_ring_from_files(sockets);
	prepare_message(100, 1);
	submit(&other, 1);
	sqe = next_sqe(&other);
	io_uring_prep_cancel64(sqe, 1, 0);
	sqe->user_data = 2;
	submit(&other, 1);
	answer_fault();
	CHECK(pthread_join(submitter, NULL) == 0);
	for (int i = 0; i < 2; i++) {
		struct io_uring_cqe *cqe;

		CHECK(wait_ms(&other, &cqe, LONG_MS) == 0);
		if (cqe->user_data == 2) /* in the kernel a worker may sleep for it by now */
			CHECK(cqe->res == 0 || cqe->res == -EALREADY);
		else
			gone = cqe->res == -ECANCELED;
		io_uring_cqe_seen(&other, cqe);
	}
	expect(&ring, 0, 3);
	if (!gone)
		expect(&ring, 100, 0);
	CHECK(!io_uring_cq_ready(&ring));
}

#define SIGNALS 40

static volatile sig_atomic_t handled;

static void check_order(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	CHECK(info->si_code == SI_QUEUE && info->si_pid == getpid() && info->si_uid == getuid());
	CHECK(info->si_value.sival_int == handled);
	handled++;
}

/* Signals that are sent to the stuck thread are handled in their order, each once, and with the sender's value. */
static void signals(void)
{
	struct sigaction action = {.sa_sigaction = check_order, .sa_flags = SA_SIGINFO | SA_RESTART};
	int sockets[2];

	make_page();
	CHECK(sigaction(SIGRTMIN, &action, NULL) == 0);
	init_ring(&ring, 8, 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	write_all(sockets[1], "abc");
	io_uring_prep_recv(next_sqe(&ring), sockets[0], page, 3, 0);
	submit_elsewhere();
	wait_for_fault();
	for (int i = 0; i < SIGNALS; i++)
		CHECK(pthread_sigqueue(submitter, SIGRTMIN, (union sigval){.sival_int = i}) == 0);
	CHECK(handled == 0);
	answer_fault();
	CHECK(pthread_join(submitter, NULL) == 0);
	CHECK(handled == SIGNALS);
	expect(&ring, 0, 3);
}

CASES({"transfers", transfers},
      {"changes-of-identity", changes_of_identity},
      {"ends", ends}, {"names", names}, {"lingers", lingers},
      {"unregistered", unregistered_file_lingers},
      {"cleared", cleared_slot_lingers},
      {"received", received_file_lingers},
      {"no-worker", receives_without_threads},
      {"no-creds-pool", looks_without_threads}, {"polled", events_of_a_polled_ring},
      {"signals", signals},
      {"messages", messages}, {"last-message", last_message}, {"cancelled-message", cancelled_message})
