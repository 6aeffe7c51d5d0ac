/* A child closes, uses or ignores the rings that it inherited. The parent's requests are not affected. */
#include "engine.h"
#include "../filter.h"

#include <dlfcn.h>
#include <sys/mman.h>

static char buffer[8];
static int pipes[2];
static struct io_uring ring;

/* Makes a ring with a pending READ. After the wait, every part of the engine that watches pending requests has it. */
static void begin_read(void)
{
	struct io_uring_cqe *cqe;

	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 8, 0);
	submit_read(&ring, pipes[0], buffer, 4, 1);
	CHECK(wait_ms(&ring, &cqe, 20) == -ETIME);
}

static void finish_read(void)
{
	write_all(pipes[1], "abcd");
	expect(&ring, 1, 4);
	CHECK(!memcmp(buffer, "abcd", 4));
}

/* The epoll registration of the pipe is shared with the child. The child's close must not end it for the parent. */
static void child_closes_the_pipe(void)
{
	pid_t child;

	begin_read();
	child = fork();
	if (child == 0) {
		CHECK(close(pipes[0]) == 0);
		CHECK(close(pipes[1]) == 0);
		_exit(0);
	}
	wait_for_child(child);
	finish_read();
}

static void child_closes_the_ring(void)
{
	pid_t child;

	begin_read();
	child = fork();
	if (child == 0) {
		CHECK(close(ring.ring_fd) == 0);
		_exit(0);
	}
	wait_for_child(child);
	finish_read();
}

static void child_exits_the_ring(void)
{
	pid_t child;

	begin_read();
	child = fork();
	if (child == 0) {
		io_uring_queue_exit(&ring);
		exit(0);
	}
	wait_for_child(child);
	finish_read();
}

static void use_rings_of_its_own(void)
{
	for (int i = 0; i < 3; i++) {
		struct io_uring own;
		char own_buffer[8] = "";
		int own_pipes[2];

		CHECK(pipe(own_pipes) == 0);
		init_ring(&own, 8, 0);
		submit_read(&own, own_pipes[0], own_buffer, 4, 2);
		write_all(own_pipes[1], "efgh");
		if (i == 0)
			only_look(&own); /* so that the child has a helper, too */
		expect(&own, 2, 4);
		CHECK(!memcmp(own_buffer, "efgh", 4));
		io_uring_queue_exit(&own);
		CHECK(close(own_pipes[0]) == 0 && close(own_pipes[1]) == 0);
	}
}

static void child_makes_rings(void)
{
	pid_t child;

	begin_read();
	child = fork();
	if (child == 0) {
		use_rings_of_its_own();
		exit(0);
	}
	wait_for_child(child);
	finish_read();
	use_rings_of_its_own();
}

/* A vfork child runs in the parent's memory, but closes numbers in its own descriptor table. */
static void vfork_child_closes_the_pipe(void)
{
	pid_t child;

	begin_read();
	child = vfork();
	if (child == 0) {
		close(pipes[0]);
		_exit(0);
	}
	wait_for_child(child);
	finish_read();
}

static void nops(struct io_uring *shared, int count)
{
	int i;

	for (i = 0; i < count; i++) {
		prepare_nop(shared, 1000 + i);
		submit(shared, 1);
		expect(shared, 1000 + i, 0);
	}
}

/* Parent, child and grandchild submit to one ring in turn: each continues in the SQ where the last one stopped. */
static void three_generations_take_turns(void)
{
	struct io_uring *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child, grandchild;

	CHECK(shared != MAP_FAILED);
	init_ring(shared, 8, 0);
	nops(shared, 20);
	child = fork();
	if (child == 0) {
		nops(shared, 30);
		grandchild = fork();
		if (grandchild == 0) {
			nops(shared, 10);
			_exit(0);
		}
		wait_for_child(grandchild);
		nops(shared, 30);
		_exit(0);
	}
	wait_for_child(child);
	nops(shared, 20);
}

static atomic_int stop;

static void *use_rings_for_a_while(void *unused)
{
	while (!stop)
		use_rings_of_its_own();
	return unused;
}

/* A thread that is in io_uring_enter(2) for the ring, or close to it, most of the time. */
static void *hammer(void *unused)
{
	while (!stop)
		nops(&ring, 8);
	return unused;
}

/* The thread that holds a lock when the process forks does not exist in the child. */
static void a_fork_while_threads_hold_locks(void)
{
	pthread_t threads[2];

	init_ring(&ring, 8, 0);
	CHECK(pthread_create(&threads[0], NULL, hammer, NULL) == 0);
	CHECK(pthread_create(&threads[1], NULL, use_rings_for_a_while, NULL) == 0);
	for (int round = 0; round < 200; round++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(20);
			use_rings_of_its_own();
			CHECK(close(ring.ring_fd) == 0);
			_exit(0);
		}
		wait_for_child(child);
	}
	stop = 1;
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Forks by the system call itself, so that no atfork handler runs. */
static void a_raw_fork_is_noticed(void)
{
	pid_t child;

	begin_read();
	child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (child == 0) {
		use_rings_of_its_own();
		CHECK(close(pipes[0]) == 0);
		CHECK(close(ring.ring_fd) == 0);
		_exit(0);
	}
	wait_for_child(child);
	finish_read();
}

static void vfork_child_closes_everything_and_execs(void)
{
	pid_t child;

	begin_read();
	child = vfork();
	if (child == 0) {
		close_range(3, ~0U, 0);
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	wait_for_child(child);
	write_all(pipes[1], "abcd");
	only_look(&ring); /* the helper still knows the ring */
	expect(&ring, 1, 4);
}

/* A thread that ends releases its ring registrations. A forked child's thread has inherited none. */
static void a_child_exits_whose_thread_registered_the_ring(void)
{
	pthread_t thread;

	init_ring(&ring, 8, 0);
	CHECK(pthread_create(&thread, NULL, hammer, NULL) == 0);
	for (int round = 0; round < 200; round++) {
		struct io_uring own = ring;
		pid_t child;

		CHECK(io_uring_register_ring_fd(&own) == 1);
		child = fork();
		if (child == 0) {
			alarm(20);
			exit(0);
		}
		wait_for_child(child);
		CHECK(io_uring_unregister_ring_fd(&own) == 1);
	}
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
}

/* Names a library that is not loaded yet and takes some time to load. */
static const char *const LIBRARIES[] = {"libcrypto.so.3", "libstdc++.so.6", "libm.so.6"};

static void *load_and_unload(void *unused)
{
	while (!stop)
		for (size_t i = 0; i < sizeof(LIBRARIES) / sizeof(LIBRARIES[0]); i++) {
			void *handle = dlopen(LIBRARIES[i], RTLD_LAZY | RTLD_LOCAL);

			if (handle)
				dlclose(handle);
		}
	return unused;
}

/* The child makes the first ring. One of the parent's threads was loading a library at the fork. */
static void a_first_ring_after_a_fork_while_libraries_are_loaded(void)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, load_and_unload, NULL) == 0);
	for (int round = 0; round < 200; round++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(20);
			init_ring(&ring, 8, 0);
			prepare_nop(&ring, 1);
			submit(&ring, 1);
			expect(&ring, 1, 0);
			io_uring_queue_exit(&ring);
			_exit(0);
		}
		wait_for_child(child);
	}
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
}

/* A fork and then a vfork. The grandchild's closes affect only the grandchild. The engine notices the child's closes.
 * */
static void a_child_of_a_child_borrows_its_memory(void)
{
	pid_t child;

	begin_read();
	child = fork();
	if (child == 0) {
		pid_t borrower = vfork();

		if (borrower == 0) {
			close(ring.ring_fd);
			close(pipes[0]);
			_exit(0);
		}
		wait_for_child(borrower);
		prepare_nop(&ring, 2);
		submit(&ring, 1);
		expect(&ring, 2, 0);
		CHECK(close(ring.ring_fd) == 0);
		_exit(0);
	}
	wait_for_child(child);
	finish_read();
}

/* Runs the case from the start of a program in which the kernel wipes no pages of a child (no MADV_WIPEONFORK, as
 * in gVisor). */
static void without_wiped_pages(const char *name)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_WIPEONFORK, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	FILTER_CALLS(code, 0);
	execl(program_invocation_name, "forks", name, NULL);
	CHECK(!"executed");
}

static void unwiped_borrows(void)
{
	without_wiped_pages("borrows");
}

static void unwiped_closes_pipe(void)
{
	without_wiped_pages("closes-pipe");
}

static void unwiped_raw(void)
{
	without_wiped_pages("raw");
}

static void unwiped_turns(void)
{
	without_wiped_pages("turns");
}

static void unwiped_vfork(void)
{
	without_wiped_pages("vfork-closes-pipe");
}

/* From now on a process that calls membarrier(2) is killed. The call waits for a grace period, some 10 ms. */
static void kill_for_barriers(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	FILTER_CALLS(code, 0);
}

static void use_ring(struct io_uring *one)
{
	for (int i = 1; i <= 3; i++) {
		prepare_nop(one, i);
		submit(one, 1);
		expect(one, i, 0);
	}
}

static void exit_after_use_of(struct io_uring *one)
{
	use_ring(one);
	_exit(0);
}

/* As a server does that makes a ring for each child: each connection would begin with that wait. */
static void children_join_without_a_barrier(void)
{
	struct io_uring rings[3];
	pid_t child, grandchild;

	for (int i = 0; i < 3; i++) {
		init_ring(&rings[i], 8, 0);
		use_ring(&rings[i]);
	}
	kill_for_barriers();
	for (int i = 0; i < 2; i++) {
		child = fork();
		if (child == 0) {
			grandchild = i == 1 ? fork() : -1;
			if (grandchild == 0)
				exit_after_use_of(&rings[2]);
			if (grandchild > 0)
				wait_for_child(grandchild);
			exit_after_use_of(&rings[i]);
		}
		wait_for_child(child);
	}
}

static void *sleep_on(void *unused)
{
	for (;;)
		pause();
	return unused;
}

/* Another thread of the parent may be between its mark and the next load. So there the call has to be made. */
static void a_child_of_threads_joins_by_a_barrier(void)
{
	pthread_t thread;
	pid_t child;
	int status;

	init_ring(&ring, 8, 0);
	CHECK(pthread_create(&thread, NULL, sleep_on, NULL) == 0);
	kill_for_barriers();
	child = fork();
	if (child == 0)
		exit_after_use_of(&ring);
	CHECK(waitpid(child, &status, 0) == child);
	if (getenv("ANYRING_BACKEND")) /* not on the kernel's ring */
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
	else
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

CASES({"joins", children_join_without_a_barrier},
      {"joins-threads", a_child_of_threads_joins_by_a_barrier},
      {"unwiped-borrows", unwiped_borrows},
      {"unwiped-closes-pipe", unwiped_closes_pipe},
      {"unwiped-raw", unwiped_raw},
      {"unwiped-turns", unwiped_turns},
      {"unwiped-vfork", unwiped_vfork},
      {"registered", a_child_exits_whose_thread_registered_the_ring},
      {"first-ring", a_first_ring_after_a_fork_while_libraries_are_loaded},
      {"borrows", a_child_of_a_child_borrows_its_memory},
      {"closes-pipe", child_closes_the_pipe},
      {"closes-ring", child_closes_the_ring},
      {"exits-ring", child_exits_the_ring},
      {"makes-rings", child_makes_rings},
      {"locks", a_fork_while_threads_hold_locks},
      {"raw", a_raw_fork_is_noticed},
      {"turns", three_generations_take_turns},
      {"vfork-closes-pipe", vfork_child_closes_the_pipe},
      {"vfork-closes-all", vfork_child_closes_everything_and_execs})
