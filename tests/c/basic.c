/* Uses liburing as programs do, through the header's inline functions and the library's own. Prints one line for each
 * step. The output must be the same whichever library serves it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

static void expect(const char *what, long got)
{
	/* A sentinel that no call may change: liburing never touches errno. */
	printf("%s: %ld%s\n", what, got, errno == 4242 ? "" : " (errno changed)");
	errno = 4242;
}

static void nop(struct io_uring *ring, __u64 data)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	io_uring_prep_nop(sqe);
	io_uring_sqe_set_data64(sqe, data);
}

static void reap(struct io_uring *ring, const char *what)
{
	struct io_uring_cqe *cqe = NULL;
	int ret = io_uring_wait_cqe(ring, &cqe);

	expect(what, ret);
	if (ret)
		return;
	printf("  user_data %llu res %d flags %u\n", (unsigned long long) cqe->user_data, cqe->res, cqe->flags);
	io_uring_cqe_seen(ring, cqe);
}

/* Waits until the polling thread sleeps, which sets IORING_SQ_NEED_WAKEUP. Waits forever if it never sleeps. */
static void let_the_poller_sleep(struct io_uring *ring)
{
	while (!(IO_URING_READ_ONCE(*ring->sq.kflags) & IORING_SQ_NEED_WAKEUP))
		usleep(1000);
}

static void queues(void)
{
	struct io_uring ring;
	struct io_uring_cqe *cqe, *cqes[8];
	unsigned i, head, seen = 0;

	expect("init 0", io_uring_queue_init(0, &ring, 0));
	expect("init 65536", io_uring_queue_init(65536, &ring, 0));
	expect("init clamped", io_uring_queue_init(65536, &ring, IORING_SETUP_CLAMP));
	printf("  sq %u cq %u\n", *ring.sq.kring_entries, *ring.cq.kring_entries);
	io_uring_queue_exit(&ring);
	expect("init 5", io_uring_queue_init(5, &ring, 0));
	printf("  sq %u %u mask %u %u cq %u %u mask %u %u\n", *ring.sq.kring_entries, ring.sq.ring_entries,
	       *ring.sq.kring_mask, ring.sq.ring_mask, *ring.cq.kring_entries, ring.cq.ring_entries,
	       *ring.cq.kring_mask, ring.cq.ring_mask);
	expect("dontfork", io_uring_ring_dontfork(&ring));
	expect("submit nothing", io_uring_submit(&ring));
	expect("peek nothing", io_uring_peek_cqe(&ring, &cqe));
	expect("peek batch nothing", io_uring_peek_batch_cqe(&ring, cqes, 8));
	expect("wait 0", __io_uring_get_cqe(&ring, &cqe, 0, 0, NULL));

	for (i = 0; i < 8; i++)
		nop(&ring, 100 + i);
	expect("ready", io_uring_sq_ready(&ring));
	expect("space", io_uring_sq_space_left(&ring));
	expect("exhausted", io_uring_get_sqe(&ring) == NULL);
	expect("submit", io_uring_submit(&ring));
	expect("ready after", io_uring_sq_ready(&ring));
	expect("cq ready", io_uring_cq_ready(&ring));
	expect("peek batch", io_uring_peek_batch_cqe(&ring, cqes, 5));
	for (i = 0; i < 5; i++)
		printf("  user_data %llu\n", (unsigned long long) cqes[i]->user_data);
	io_uring_cq_advance(&ring, 5);
	io_uring_for_each_cqe(&ring, head, cqe) {
		printf("  user_data %llu\n", (unsigned long long) cqe->user_data);
		seen++;
	}
	io_uring_cq_advance(&ring, seen);
	expect("cq ready at last", io_uring_cq_ready(&ring));

	/* Goes round the queues twice, so that the indices wrap. Each NOP is submitted by its own call, which also
	 * waits. */
	for (i = 0; i < 40; i++) {
		nop(&ring, i);
		if (io_uring_submit_and_wait(&ring, 1) != 1 || io_uring_peek_cqe(&ring, &cqe) || cqe->user_data != i)
			printf("  round %u went wrong\n", i);
		io_uring_cqe_seen(&ring, cqe);
	}
	expect("rounds", 40);

	/* More completions than the CQ holds. */
	for (i = 0; i < 32; i++) {
		nop(&ring, i);
		if (i % 8 == 7)
			io_uring_submit(&ring);
	}
	expect("overflow", io_uring_cq_has_overflow(&ring));
	expect("get events", io_uring_get_events(&ring));
	for (i = 0; i < 32; i++) {
		if (io_uring_wait_cqe(&ring, &cqe) || cqe->user_data != i)
			printf("  completion %u went wrong\n", i);
		else
			io_uring_cqe_seen(&ring, cqe);
	}
	expect("overflow after", io_uring_cq_has_overflow(&ring));
	nop(&ring, 7);
	expect("submit and get events", io_uring_submit_and_get_events(&ring));
	reap(&ring, "its completion");
	expect("sqring wait", io_uring_sqring_wait(&ring));
	io_uring_queue_exit(&ring);
	expect("exit", 0);
}

static void files(void)
{
	char name[] = "/tmp/anyring-basic-XXXXXX", out[64] = "hello from liburing", in[64];
	struct iovec iov = { .iov_base = in, .iov_len = sizeof(in) };
	int fd = mkstemp(name), pair[2], none = -1, set[2];
	struct io_uring_sqe *sqe;
	struct io_uring ring;
	__u64 tag = 77;

	if (fd < 0 || pipe(pair))
		exit(1);
	unlink(name);
	errno = 4242;
	expect("init", io_uring_queue_init(4, &ring, 0));

	io_uring_prep_write(io_uring_get_sqe(&ring), fd, out, strlen(out), 0);
	expect("submit write", io_uring_submit(&ring));
	reap(&ring, "write");
	memset(in, 0, sizeof(in));
	io_uring_prep_readv(io_uring_get_sqe(&ring), fd, &iov, 1, 6);
	expect("submit readv", io_uring_submit(&ring));
	reap(&ring, "readv");
	printf("  %s\n", in);

	set[0] = fd;
	set[1] = -1;
	expect("unregister no files", io_uring_unregister_files(&ring));
	expect("register files", io_uring_register_files(&ring, set, 2));
	expect("register files again", io_uring_register_files(&ring, set, 2));
	expect("update files", io_uring_register_files_update(&ring, 1, &pair[0], 1));
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_read(sqe, 0, in, 5, 0);
	io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	expect("submit fixed file", io_uring_submit(&ring));
	reap(&ring, "read fixed file");
	expect("update outside", io_uring_register_files_update(&ring, 2, &none, 1));
	expect("update tag", io_uring_register_files_update_tag(&ring, 1, &none, &tag, 1));
	expect("unregister files", io_uring_unregister_files(&ring));
	expect("files sparse", io_uring_register_files_sparse(&ring, 16));
	expect("alloc range", io_uring_register_file_alloc_range(&ring, 4, 8));
	expect("alloc range outside", io_uring_register_file_alloc_range(&ring, 12, 8));
	expect("unregister files", io_uring_unregister_files(&ring));
	expect("files tags", io_uring_register_files_tags(&ring, set, &(__u64[]){ 0, 0 }[0], 2));

	expect("register buffers", io_uring_register_buffers(&ring, &iov, 1));
	io_uring_prep_read_fixed(io_uring_get_sqe(&ring), fd, in, 5, 6, 0);
	expect("submit read fixed", io_uring_submit(&ring));
	reap(&ring, "read fixed");
	printf("  %.5s\n", in);
	expect("unregister buffers", io_uring_unregister_buffers(&ring));
	expect("unregister buffers again", io_uring_unregister_buffers(&ring));
	expect("buffers sparse", io_uring_register_buffers_sparse(&ring, 4));
	expect("buffers update", io_uring_register_buffers_update_tag(&ring, 1, &iov, &(__u64){ 0 }, 1));
	expect("unregister buffers", io_uring_unregister_buffers(&ring));
	expect("buffers tags", io_uring_register_buffers_tags(&ring, &iov, &(__u64){ 0 }, 1));

	io_uring_queue_exit(&ring);
	close(fd);
	close(pair[0]);
	close(pair[1]);
}

static void registered(void)
{
	struct io_uring ring;
	struct io_uring_buf_reg reg = { .ring_entries = 4, .bgid = 3 };
	struct io_uring_buf_ring *buffers;
	struct io_uring_sync_cancel_reg cancel = { .addr = 1, .timeout = { .tv_sec = -1, .tv_nsec = -1 }, .fd = -1 };
	struct io_uring_probe *probe;
	struct io_uring_sqe *sqe;
	unsigned workers[2] = { 0, 0 };
	cpu_set_t cpus;
	int event = eventfd(0, 0), pair[2], id;
	char data[16] = "";
	eventfd_t count;

	if (event < 0 || pipe(pair))
		exit(1);
	errno = 4242;
	expect("init", io_uring_queue_init(4, &ring, 0));
	expect("register ring fd", io_uring_register_ring_fd(&ring));
	nop(&ring, 1);
	expect("submit by index", io_uring_submit(&ring));
	reap(&ring, "by index");
	expect("register eventfd", io_uring_register_eventfd(&ring, event));
	nop(&ring, 2);
	expect("submit with eventfd", io_uring_submit(&ring));
	expect("eventfd read", eventfd_read(event, &count));
	printf("  count %llu\n", (unsigned long long) count);
	reap(&ring, "with eventfd");
	expect("eventfd enabled", io_uring_cq_eventfd_enabled(&ring));
	expect("eventfd off", io_uring_cq_eventfd_toggle(&ring, false));
	expect("eventfd enabled", io_uring_cq_eventfd_enabled(&ring));
	expect("unregister eventfd", io_uring_unregister_eventfd(&ring));
	expect("unregister eventfd again", io_uring_unregister_eventfd(&ring));
	expect("eventfd async", io_uring_register_eventfd_async(&ring, event));
	expect("unregister ring fd", io_uring_unregister_ring_fd(&ring));

	probe = io_uring_get_probe_ring(&ring);
	expect("probe ring", probe != NULL);
	expect("nop supported", io_uring_opcode_supported(probe, IORING_OP_NOP));
	expect("255 supported", io_uring_opcode_supported(probe, 255));
	free(probe);
	probe = io_uring_get_probe();
	expect("probe", probe != NULL && io_uring_opcode_supported(probe, IORING_OP_READ));
	io_uring_free_probe(probe);
	io_uring_free_probe(NULL);

	id = io_uring_register_personality(&ring);
	expect("personality", id > 0);
	expect("unregister personality", io_uring_unregister_personality(&ring, id));
	expect("unregister personality again", io_uring_unregister_personality(&ring, id));
	expect("max workers", io_uring_register_iowq_max_workers(&ring, workers));
	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	expect("worker affinity", io_uring_register_iowq_aff(&ring, sizeof(cpus), &cpus));
	expect("worker affinity too long", io_uring_register_iowq_aff(&ring, 1UL << 31, &cpus));
	expect("unregister affinity", io_uring_unregister_iowq_aff(&ring));
	expect("sync cancel", io_uring_register_sync_cancel(&ring, &cancel));

	buffers = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	reg.ring_addr = (unsigned long) buffers;
	expect("register buf ring", io_uring_register_buf_ring(&ring, &reg, 0));
	io_uring_buf_ring_init(buffers);
	io_uring_buf_ring_add(buffers, data, sizeof(data), 9, io_uring_buf_ring_mask(4), 0);
	io_uring_buf_ring_advance(buffers, 1);
	expect("pipe", write(pair[1], "ring", 4));
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_read(sqe, pair[0], NULL, sizeof(data), 0);
	io_uring_sqe_set_flags(sqe, IOSQE_BUFFER_SELECT);
	sqe->buf_group = 3;
	expect("submit select", io_uring_submit(&ring));
	reap(&ring, "select");
	printf("  %s\n", data);
	expect("unregister buf ring", io_uring_unregister_buf_ring(&ring, 3));
	expect("unregister buf ring again", io_uring_unregister_buf_ring(&ring, 3));
	io_uring_queue_exit(&ring);

	expect("init disabled", io_uring_queue_init(4, &ring, IORING_SETUP_R_DISABLED));
	nop(&ring, 1);
	expect("submit disabled", io_uring_submit(&ring));
	/* 2.3 declares io_uring_enable_rings without exporting it. */
	expect("enable rings", io_uring_register(ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0));
	expect("submit enabled", io_uring_submit(&ring));
	reap(&ring, "enabled");
	io_uring_queue_exit(&ring);
	expect("mlock size", io_uring_mlock_size(8, 0));
	close(event);
	close(pair[0]);
	close(pair[1]);
}

static void calls(void)
{
	struct io_uring_params params = { 0 };
	struct io_uring ring;
	struct io_uring_sqe *sqe;
	unsigned big = 0;
	int fd = io_uring_setup(4, &params);

	errno = 4242;
	expect("setup", fd >= 0);
	expect("mmap", io_uring_queue_mmap(fd, &params, &ring));
	nop(&ring, 5);
	expect("submit on mapped", io_uring_submit(&ring));
	reap(&ring, "on mapped");
	expect("enter", io_uring_enter(fd, 0, 0, IORING_ENTER_GETEVENTS, NULL));
	expect("enter2", io_uring_enter2(fd, 0, 0, 1 << 30, NULL, 0));
	expect("register", io_uring_register(fd, 4242, NULL, 0));
	io_uring_queue_exit(&ring);
	expect("enter closed", io_uring_enter(fd, 0, 0, 0, NULL));
	expect("setup bad", io_uring_setup(4, NULL));

	params = (struct io_uring_params){ .flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32 | IORING_SETUP_CQSIZE,
					   .cq_entries = 64 };
	expect("init big entries", io_uring_queue_init_params(8, &ring, &params));
	printf("  sq %u cq %u\n", ring.sq.ring_entries, ring.cq.ring_entries);
	for (big = 0; big < 20; big++) {
		struct io_uring_cqe *cqe;

		sqe = io_uring_get_sqe(&ring);
		/* Until 2.3 the header's get_sqe and the kernel agree on 128 bytes for each slot. */
		io_uring_prep_nop(sqe);
		sqe->user_data = big;
		io_uring_submit(&ring);
		if (io_uring_wait_cqe(&ring, &cqe) || cqe->user_data != big)
			printf("  big %u went wrong\n", big);
		io_uring_cqe_seen(&ring, cqe);
	}
	expect("big", big);
	io_uring_queue_exit(&ring);

	params = (struct io_uring_params){ .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
						    IORING_SETUP_TASKRUN_FLAG };
	expect("init deferred", io_uring_queue_init_params(8, &ring, &params));
	nop(&ring, 8);
	expect("submit deferred", io_uring_submit_and_wait(&ring, 1));
	reap(&ring, "deferred");
	io_uring_queue_exit(&ring);

	params = (struct io_uring_params){ .flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 50 };
	expect("init sqpoll", io_uring_queue_init_params(4, &ring, &params));
	for (big = 0; big < 20; big++) {
		struct io_uring_cqe *cqe;

		while (!(sqe = io_uring_get_sqe(&ring)))
			io_uring_sqring_wait(&ring);
		io_uring_prep_nop(sqe);
		sqe->user_data = big;
		io_uring_submit(&ring);
		if (big == 10)
			let_the_poller_sleep(&ring);
		if (io_uring_wait_cqe(&ring, &cqe) || cqe->user_data != big)
			printf("  polled %u went wrong\n", big);
		io_uring_cqe_seen(&ring, cqe);
	}
	expect("polled", big);
	io_uring_queue_exit(&ring);
}

int main(void)
{
	errno = 4242;
	queues();
	files();
	registered();
	calls();
	return 0;
}
