/* Functions that liburing added after 2.3, declared here because an older header lacks them. Linked with a drop-in.
 * The expected results are those of liburing 2.15 on Linux 6.18. Exit status 0 if all agree. */
#define _GNU_SOURCE
#include <errno.h>
#include <liburing.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int io_uring_major_version(void);
int io_uring_minor_version(void);
bool io_uring_check_version(int major, int minor);
ssize_t io_uring_memory_size(unsigned entries, unsigned flags);
ssize_t io_uring_memory_size_params(unsigned entries, struct io_uring_params *p);
int io_uring_queue_init_mem(unsigned entries, struct io_uring *ring, struct io_uring_params *p, void *buf, size_t size);
int io_uring_close_ring_fd(struct io_uring *ring);
struct io_uring_buf_ring *io_uring_setup_buf_ring(struct io_uring *ring, unsigned nentries, int bgid, unsigned flags,
						  int *err);
int io_uring_free_buf_ring(struct io_uring *ring, struct io_uring_buf_ring *br, unsigned nentries, int bgid);
int io_uring_buf_ring_head(struct io_uring *ring, int group, uint16_t *head);
int io_uring_submit_and_wait_min_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned wait_nr,
					 struct __kernel_timespec *ts, unsigned min_wait, sigset_t *mask);
int io_uring_wait_cqes_min_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned wait_nr,
				   struct __kernel_timespec *ts, unsigned min_wait, sigset_t *mask);
int io_uring_submit_and_wait_reg(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned wait_nr, int index);
int io_uring_register_wait_reg(struct io_uring *ring, void *reg, int nr);
int io_uring_register_region(struct io_uring *ring, void *region);
int io_uring_resize_rings(struct io_uring *ring, struct io_uring_params *p);
int io_uring_clone_buffers(struct io_uring *dst, struct io_uring *src);
int io_uring_clone_buffers_offset(struct io_uring *dst, struct io_uring *src, unsigned dst_off, unsigned src_off,
				  unsigned nr, unsigned flags);
int __io_uring_clone_buffers(struct io_uring *dst, struct io_uring *src, unsigned flags);
int io_uring_register_napi(struct io_uring *ring, void *napi);
int io_uring_unregister_napi(struct io_uring *ring, void *napi);
int io_uring_register_clock(struct io_uring *ring, void *clock);
int io_uring_register_ifq(struct io_uring *ring, void *ifq);
int io_uring_register_zcrx_ctrl(struct io_uring *ring, void *control);
int io_uring_register_sync_msg(struct io_uring_sqe *sqe);
int io_uring_register_bpf_filter(struct io_uring *ring, void *filter);
int io_uring_register_bpf_filter_task(void *filter);
int io_uring_register_query(void *query);
int io_uring_set_iowait(struct io_uring *ring, bool enable);

#define SETUP_NO_MMAP (1U << 14)
#define SETUP_REGISTERED_FD_ONLY (1U << 15)
#define SETUP_NO_SQARRAY (1U << 16)

static int failures;

static void expect(const char *what, long got, long wanted)
{
	if (got == wanted && errno == 4242)
		return;
	failures++;
	printf("%s: %ld instead of %ld%s\n", what, got, wanted, errno == 4242 ? "" : " (errno changed)");
	errno = 4242;
}

/* Fills the SQ and reaps everything, three times round. */
static void nops(const char *what, struct io_uring *ring)
{
	unsigned filled, i, total = 0;
	struct io_uring_cqe *cqe;
	struct io_uring_sqe *sqe;

	for (int round = 0; round < 3; round++) {
		for (filled = 0; (sqe = io_uring_get_sqe(ring)); filled++) {
			io_uring_prep_nop(sqe);
			sqe->user_data = total + filled;
		}
		expect(what, filled, ring->sq.ring_entries);
		expect(what, io_uring_submit_and_wait(ring, filled), filled);
		for (i = 0; i < filled; i++) {
			expect(what, io_uring_peek_cqe(ring, &cqe), 0);
			expect(what, cqe->user_data, total + i);
			io_uring_cqe_seen(ring, cqe);
		}
		total += filled;
	}
}

static void memory(void)
{
	struct io_uring_params p = { 0 };
	struct io_uring ring, second;
	char *buf = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int used;

	expect("major", io_uring_major_version(), 2);
	expect("minor", io_uring_minor_version(), 15);
	expect("2.3 is older", io_uring_check_version(2, 3), 0);
	expect("2.15 is this", io_uring_check_version(2, 15), 0);
	expect("2.16 is newer", io_uring_check_version(2, 16), 1);
	expect("3.0 is newer", io_uring_check_version(3, 0), 1);

	expect("size 0", io_uring_memory_size(0, 0), -EINVAL);
	expect("size 8", io_uring_memory_size(8, 0), 8192);
	expect("size 64", io_uring_memory_size(64, 0), 8192);
	expect("size 128", io_uring_memory_size(128, 0), 16384);
	expect("size 128 without array", io_uring_memory_size(128, SETUP_NO_SQARRAY), 16384);
	expect("size 65536", io_uring_memory_size(65536, 0), -EINVAL);
	expect("size clamped", io_uring_memory_size(65536, IORING_SETUP_CLAMP), 3280896);
	expect("size of big entries", io_uring_memory_size(128, IORING_SETUP_SQE128 | IORING_SETUP_CQE32), 28672);
	p = (struct io_uring_params){ .flags = IORING_SETUP_CQSIZE, .cq_entries = 4 };
	expect("cq smaller than sq", io_uring_memory_size_params(8, &p), -EINVAL);
	p.cq_entries = 0;
	expect("cq of none", io_uring_memory_size_params(8, &p), -EINVAL);
	p.cq_entries = 1000;
	expect("cq of 1000", io_uring_memory_size_params(8, &p), 4096 + 20480);

	p = (struct io_uring_params){ 0 };
	expect("mem too small", io_uring_queue_init_mem(128, &ring, &p, buf, 12288), -ENOMEM);
	p = (struct io_uring_params){ 0 };
	used = io_uring_queue_init_mem(128, &ring, &p, buf, 2 << 20);
	expect("mem", used, 16384);
	expect("sqes at the start", (char *) ring.sq.sqes - buf, 0);
	p = (struct io_uring_params){ .flags = IORING_SETUP_CQSIZE, .cq_entries = 32 };
	expect("mem of a second", io_uring_queue_init_mem(4, &second, &p, buf + used, (2 << 20) - used), 8192);
	nops("nops in own memory", &ring);
	nops("nops in the rest", &second);
	io_uring_queue_exit(&ring);
	io_uring_queue_exit(&second);
	buf[0] = 1; /* still mapped */

	p = (struct io_uring_params){ .flags = SETUP_NO_MMAP | SETUP_REGISTERED_FD_ONLY };
	expect("registered only", io_uring_queue_init_params(8, &ring, &p), 0);
	expect("no descriptor", ring.ring_fd, -1);
	nops("nops by index", &ring);
	expect("register by index", io_uring_unregister_files(&ring), -ENXIO);
	io_uring_queue_exit(&ring);
	/* If the SQEs or the rings are larger than a page, each takes a huge page, which the machine may not have. */
	p = (struct io_uring_params){ .flags = SETUP_NO_MMAP };
	used = io_uring_queue_init_params(128, &ring, &p);
	expect("own memory of huge pages", used == 0 || used == -ENOMEM, 1);
	if (!used) {
		nops("nops in huge pages", &ring);
		io_uring_queue_exit(&ring);
	}
	p = (struct io_uring_params){ .flags = SETUP_NO_MMAP | IORING_SETUP_CQE32 };
	expect("more than a huge page", io_uring_queue_init_params(32768, &ring, &p), -ENOMEM);
	p = (struct io_uring_params){ .flags = SETUP_REGISTERED_FD_ONLY };
	expect("registered only, mapped", io_uring_queue_init_params(8, &ring, &p), -EINVAL);
	munmap(buf, 2 << 20);
}

static void resizing(void)
{
	struct io_uring_params p = { .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN };
	struct io_uring ring;

	expect("init", io_uring_queue_init_params(8, &ring, &p), 0);
	io_uring_prep_nop(io_uring_get_sqe(&ring));
	expect("submit before", io_uring_submit(&ring), 1);
	p = (struct io_uring_params){ .flags = IORING_SETUP_CQSIZE, .sq_entries = 32, .cq_entries = 128 };
	expect("resize", io_uring_resize_rings(&ring, &p), 0);
	expect("sq", ring.sq.ring_entries, 32);
	expect("cq", ring.cq.ring_entries, 128);
	expect("kept", io_uring_cq_ready(&ring), 1);
	io_uring_cq_advance(&ring, 1);
	nops("nops resized", &ring);
	p.flags = 1 << 30;
	expect("resize badly", io_uring_resize_rings(&ring, &p), -EINVAL);
	nops("nops after", &ring);
	io_uring_queue_exit(&ring);
}

static void waiting(void)
{
	struct __kernel_timespec ts = { .tv_nsec = 30 * 1000000 };
	struct io_uring_cqe *cqe;
	struct io_uring ring;

	expect("init", io_uring_queue_init(8, &ring, 0), 0);
	expect("iowait off", io_uring_set_iowait(&ring, false), 0);
	expect("min timeout", io_uring_wait_cqes_min_timeout(&ring, &cqe, 2, &ts, 1000, NULL), -ETIME);
	io_uring_prep_nop(io_uring_get_sqe(&ring));
	expect("submit, min timeout", io_uring_submit_and_wait_min_timeout(&ring, &cqe, 2, &ts, 1000, NULL), 1);
	expect("its cqe", cqe && cqe->res == 0, 1);
	io_uring_cqe_seen(&ring, cqe);
	expect("iowait on", io_uring_set_iowait(&ring, true), 0);
	expect("wait by an index that is not registered", io_uring_submit_and_wait_reg(&ring, &cqe, 1, 0), -EFAULT);
	expect("register wait reg", io_uring_register_wait_reg(&ring, NULL, 0), -EINVAL);
	ring.features = 0;
	expect("no min timeout", io_uring_wait_cqes_min_timeout(&ring, &cqe, 1, &ts, 1, NULL), -EINVAL);
	expect("no min timeout", io_uring_submit_and_wait_min_timeout(&ring, &cqe, 1, &ts, 1, NULL), -EINVAL);
	expect("no ext arg", io_uring_submit_and_wait_reg(&ring, &cqe, 1, 0), -EINVAL);
	expect("no iowait", io_uring_set_iowait(&ring, false), -EOPNOTSUPP);
	expect("no closing", io_uring_close_ring_fd(&ring), -EOPNOTSUPP);
	io_uring_queue_exit(&ring);
}

static void registering(void)
{
	struct io_uring ring, other;
	struct io_uring_buf_ring *buffers;
	struct iovec iov = { .iov_base = &ring, .iov_len = 64 };
	struct io_uring_sqe message = { .opcode = IORING_OP_MSG_RING, .off = 42, .len = 7 };
	struct io_uring_cqe *cqe;
	char zeroes[256] = "";
	uint16_t head = 9;
	int error = 5;

	expect("init", io_uring_queue_init(8, &ring, 0), 0);
	expect("init", io_uring_queue_init(8, &other, 0), 0);
	expect("unregister ring fd", io_uring_unregister_ring_fd(&ring), -EINVAL);
	expect("close unregistered", io_uring_close_ring_fd(&ring), -EINVAL);
	expect("register ring fd", io_uring_register_ring_fd(&ring), 1);
	expect("register ring fd again", io_uring_register_ring_fd(&ring), -EEXIST);

	buffers = io_uring_setup_buf_ring(&ring, 8, 1, 0, &error);
	expect("setup buf ring", buffers != NULL, 1);
	expect("no error", error, 0);
	expect("head", io_uring_buf_ring_head(&ring, 1, &head), 0);
	expect("head", head, 0);
	expect("no such head", io_uring_buf_ring_head(&ring, 2, &head), -ENOENT);
	expect("setup buf ring of 3", io_uring_setup_buf_ring(&ring, 3, 2, 0, &error) == NULL, 1);
	expect("error", error, -EINVAL);
	expect("free buf ring", io_uring_free_buf_ring(&ring, buffers, 8, 1), 0);
	expect("free buf ring again", io_uring_free_buf_ring(&ring, buffers, 8, 1), -ENOENT);

	expect("register buffers", io_uring_register_buffers(&ring, &iov, 1), 0);
	expect("clone from the index", io_uring_clone_buffers(&other, &ring), 0);
	expect("clone again", io_uring_clone_buffers(&other, &ring), -EBUSY);
	expect("unregister", io_uring_unregister_buffers(&other), 0);
	expect("clone a range", io_uring_clone_buffers_offset(&other, &ring, 2, 0, 1, 0), 0);
	expect("unregister", io_uring_unregister_buffers(&other), 0);
	expect("clone from the descriptor", __io_uring_clone_buffers(&other, &ring, 0), 0);
	expect("clone nothing", io_uring_clone_buffers_offset(&other, &ring, 0, 7, 1, 2), -EOVERFLOW);

	message.fd = other.ring_fd;
	expect("message", io_uring_register_sync_msg(&message), 0);
	expect("its arrival", io_uring_wait_cqe(&other, &cqe), 0);
	expect("its data", cqe->user_data == 42 && cqe->res == 7, 1);
	io_uring_cqe_seen(&other, cqe);

	expect("close ring fd", io_uring_close_ring_fd(&ring), 1);
	expect("close ring fd again", io_uring_close_ring_fd(&ring), -EBADF);
	nops("nops without descriptor", &ring);
	expect("napi", io_uring_register_napi(&other, zeroes) <= 0, 1);
	expect("napi off", io_uring_unregister_napi(&other, zeroes) <= 0, 1);
	expect("clock", io_uring_register_clock(&other, NULL), -EINVAL);
	expect("ifq", io_uring_register_ifq(&other, NULL) < 0, 1);
	expect("zcrx control", io_uring_register_zcrx_ctrl(&other, NULL) < 0, 1);
	expect("region", io_uring_register_region(&other, NULL), -EINVAL);
	expect("filter", io_uring_register_bpf_filter(&other, NULL) < 0, 1);
	expect("task filter", io_uring_register_bpf_filter_task(NULL) < 0, 1);
	expect("query", io_uring_register_query(NULL) <= 0, 1);
	io_uring_queue_exit(&ring);
	io_uring_queue_exit(&other);
}

int main(void)
{
	errno = 4242;
	memory();
	resizing();
	waiting();
	registering();
	printf("%d unexpected\n", failures);
	return failures != 0;
}
