/* Compares each inline preparation function of the installed header with the exported one of the library named in
 * argv[1], on zeroed SQEs. Exit status 0 if every pair fills its SQE alike. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>

static void *library;
static int failures, compared;

static void differ(const char *name, const char *how)
{
	printf("%s: %s\n", name, how);
	failures++;
}

/* Distinct arguments, so that a swapped pair shows. */
#define P(n) ((void *) (0x1000000000UL + 0x1000 * (n)))
#define PREP(name, ...)                                                                    \
	do {                                                                               \
		__typeof__(&name) ours = (__typeof__(&name)) dlsym(library, #name);         \
		struct io_uring_sqe a = { 0 }, b = { 0 };                                   \
                                                                                           \
		compared++;                                                                \
		if (!ours) {                                                               \
			differ(#name, "missing");                                          \
			break;                                                             \
		}                                                                          \
		name(&a __VA_OPT__(, ) __VA_ARGS__);                                       \
		ours(&b __VA_OPT__(, ) __VA_ARGS__);                                       \
		if (memcmp(&a, &b, sizeof(a)))                                             \
			differ(#name, "differs");                                          \
	} while (0)

static void files(void)
{
	PREP(io_uring_prep_nop);
	PREP(io_uring_prep_read, 3, P(1), 0x80000005U, 0x8000000000000006ULL);
	PREP(io_uring_prep_write, 3, P(1), 5, 6);
	PREP(io_uring_prep_read_fixed, 3, P(1), 5, 6, 7);
	PREP(io_uring_prep_write_fixed, 3, P(1), 5, 6, 7);
	PREP(io_uring_prep_readv, 3, P(1), 5, 6);
	PREP(io_uring_prep_writev, 3, P(1), 5, 6);
	PREP(io_uring_prep_readv2, 3, P(1), 5, 6, -7);
	PREP(io_uring_prep_writev2, 3, P(1), 5, 6, 7);
	PREP(io_uring_prep_splice, 3, -4, 5, -6, 7, 8);
	PREP(io_uring_prep_tee, 3, 4, 5, 6);
	PREP(io_uring_prep_fsync, 3, 4);
	PREP(io_uring_prep_sync_file_range, 3, 4, 5, 6);
	PREP(io_uring_prep_fallocate, 3, 4, 5, 6);
	PREP(io_uring_prep_fadvise, 3, 4, 5, 6);
	PREP(io_uring_prep_madvise, P(1), 4, 5);
	PREP(io_uring_prep_openat, -100, P(1), 4, 0644);
	PREP(io_uring_prep_openat_direct, 3, P(1), 4, 0644, 6);
	PREP(io_uring_prep_openat2, 3, P(1), P(2));
	PREP(io_uring_prep_openat2_direct, 3, P(1), P(2), 6);
	PREP(io_uring_prep_close, 3);
	PREP(io_uring_prep_close_direct, 3);
	PREP(io_uring_prep_statx, 3, P(1), 4, 5, P(2));
	PREP(io_uring_prep_unlinkat, 3, P(1), 4);
	PREP(io_uring_prep_unlink, P(1), 4);
	PREP(io_uring_prep_renameat, 3, P(1), 4, P(2), 5);
	PREP(io_uring_prep_rename, P(1), P(2));
	PREP(io_uring_prep_mkdirat, 3, P(1), 0755);
	PREP(io_uring_prep_mkdir, P(1), 0755);
	PREP(io_uring_prep_symlinkat, P(1), 3, P(2));
	PREP(io_uring_prep_symlink, P(1), P(2));
	PREP(io_uring_prep_linkat, 3, P(1), 4, P(2), 5);
	PREP(io_uring_prep_link, P(1), P(2), 5);
	PREP(io_uring_prep_getxattr, P(1), P(2), P(3), 4);
	PREP(io_uring_prep_setxattr, P(1), P(2), P(3), 4, 5);
	PREP(io_uring_prep_fgetxattr, 3, P(1), P(2), 4);
	PREP(io_uring_prep_fsetxattr, 3, P(1), P(2), 4, 5);
	PREP(io_uring_prep_files_update, P(1), 3, -4);
	PREP(io_uring_prep_provide_buffers, P(1), 3, 4, 5, 6);
	PREP(io_uring_prep_remove_buffers, 3, 4);
}

static void sockets(void)
{
	PREP(io_uring_prep_socket, 3, 4, 5, 6);
	PREP(io_uring_prep_socket_direct, 3, 4, 5, 6, 7);
	PREP(io_uring_prep_socket_direct_alloc, 3, 4, 5, 6);
	PREP(io_uring_prep_connect, 3, P(1), 5);
	PREP(io_uring_prep_accept, 3, P(1), P(2), 4);
	PREP(io_uring_prep_accept_direct, 3, P(1), P(2), 4, 5);
	PREP(io_uring_prep_multishot_accept, 3, P(1), P(2), 4);
	PREP(io_uring_prep_multishot_accept_direct, 3, P(1), P(2), 4);
	PREP(io_uring_prep_shutdown, 3, 4);
	PREP(io_uring_prep_send, 3, P(1), 4, 5);
	PREP(io_uring_prep_send_zc, 3, P(1), 4, 5, 6);
	PREP(io_uring_prep_send_zc_fixed, 3, P(1), 4, 5, 9, 7);
	PREP(io_uring_prep_send_set_addr, P(1), 16);
	PREP(io_uring_prep_sendmsg, 3, P(1), 4);
	PREP(io_uring_prep_sendmsg_zc, 3, P(1), 4);
	PREP(io_uring_prep_recv, 3, P(1), 4, 5);
	PREP(io_uring_prep_recv_multishot, 3, P(1), 4, 5);
	PREP(io_uring_prep_recvmsg, 3, P(1), 4);
	PREP(io_uring_prep_recvmsg_multishot, 3, P(1), 4);
}

static void others(void)
{
	PREP(io_uring_prep_poll_add, 3, 0x80000004U);
	PREP(io_uring_prep_poll_multishot, 3, 4);
	PREP(io_uring_prep_poll_remove, 0x8000000000000003ULL);
	PREP(io_uring_prep_poll_update, 3, 4, 5, 6);
	PREP(io_uring_prep_epoll_ctl, 3, -4, 5, P(1));
	PREP(io_uring_prep_timeout, P(1), 3, 4);
	PREP(io_uring_prep_timeout_remove, 3, 4);
	PREP(io_uring_prep_timeout_update, P(1), 3, 4);
	PREP(io_uring_prep_link_timeout, P(1), 3);
	PREP(io_uring_prep_cancel64, 3, 4);
	PREP(io_uring_prep_cancel, P(1), 4);
	PREP(io_uring_prep_cancel_fd, 3, 4);
	PREP(io_uring_prep_msg_ring, 3, 4, 5, 6);
	PREP(io_uring_sqe_set_data, P(1));
	PREP(io_uring_sqe_set_data64, 3);
	PREP(io_uring_sqe_set_flags, 0x105);
}

#ifdef IO_URING_VERSION_MAJOR
/* Functions that the header gained after 2.3. */
static void newer(void)
{
#if !IO_URING_CHECK_VERSION(2, 15)
	PREP(io_uring_prep_nop128);
	PREP(io_uring_prep_readv_fixed, 3, P(1), 5, 6, 7, 8);
	PREP(io_uring_prep_writev_fixed, 3, P(1), 5, 6, 7, 8);
	PREP(io_uring_prep_read_multishot, 3, 4, 5, 6);
	PREP(io_uring_prep_ftruncate, 3, -4);
	PREP(io_uring_prep_fadvise64, 3, 4, 5, 6);
	PREP(io_uring_prep_madvise64, P(1), -4, 5);
	PREP(io_uring_prep_open, P(1), 4, 0644);
	PREP(io_uring_prep_open_direct, P(1), 4, 0644, IORING_FILE_INDEX_ALLOC);
	PREP(io_uring_prep_openat_direct, 3, P(1), 4, 0644, IORING_FILE_INDEX_ALLOC);
	PREP(io_uring_prep_openat2_direct, 3, P(1), P(2), IORING_FILE_INDEX_ALLOC);
	PREP(io_uring_prep_accept_direct, 3, P(1), P(2), 4, IORING_FILE_INDEX_ALLOC);
	PREP(io_uring_prep_socket_direct, 3, 4, 5, IORING_FILE_INDEX_ALLOC, 7);
	PREP(io_uring_prep_fixed_fd_install, 3, 4);
	PREP(io_uring_prep_bind, 3, P(1), 5);
	PREP(io_uring_prep_listen, 3, 4);
	PREP(io_uring_prep_send_bundle, 3, 4, 5);
	PREP(io_uring_prep_sendto, 3, P(1), 4, 5, P(2), 16);
	PREP(io_uring_prep_sendmsg_zc_fixed, 3, P(1), 4, 5);
	PREP(io_uring_prep_pipe, P(1), 4);
	PREP(io_uring_prep_pipe_direct, P(1), 4, 5);
	PREP(io_uring_prep_epoll_wait, 3, P(1), 4, 5);
	PREP(io_uring_prep_waitid, 3, 4, P(1), 5, 6);
	PREP(io_uring_prep_futex_wake, P(1), 3, 4, 5, 6);
	PREP(io_uring_prep_futex_wait, P(1), 3, 4, 5, 6);
	PREP(io_uring_prep_futex_waitv, P(1), 3, 4);
	PREP(io_uring_prep_msg_ring_cqe_flags, 3, 4, 5, 6, 7);
	PREP(io_uring_prep_msg_ring_fd, 3, 4, 5, 6, 7);
	PREP(io_uring_prep_msg_ring_fd, 3, -4, -1, 6, 7);
	PREP(io_uring_prep_msg_ring_fd_alloc, 3, 4, 5, 6);
	PREP(io_uring_prep_uring_cmd, -3, 4);
	PREP(io_uring_prep_uring_cmd128, 3, 4);
	PREP(io_uring_prep_cmd_sock, 3, 4, -5, 6, P(1), 7);
	PREP(io_uring_prep_cmd_getsockname, 3, P(1), P(2), 4);
	PREP(io_uring_prep_cmd_discard, 3, 4, 5);
	PREP(io_uring_sqe_set_buf_group, 3);
#endif
}
#endif

/* io_uring_prep_rw has its SQE in second place. */
static void rw(void)
{
	__typeof__(&io_uring_prep_rw) ours = (__typeof__(&io_uring_prep_rw)) dlsym(library, "io_uring_prep_rw");
	struct io_uring_sqe a = { 0 }, b = { 0 };

	compared++;
	io_uring_prep_rw(200, &a, -3, P(1), 4, 5);
	ours(200, &b, -3, P(1), 4, 5);
	if (memcmp(&a, &b, sizeof(a)))
		differ("io_uring_prep_rw", "differs");
}

/* A received message of two control messages and a payload. Both functions take it apart. */
static void received(void)
{
	__typeof__(&io_uring_recvmsg_validate) validate = dlsym(library, "io_uring_recvmsg_validate");
	__typeof__(&io_uring_recvmsg_name) name = dlsym(library, "io_uring_recvmsg_name");
	__typeof__(&io_uring_recvmsg_cmsg_firsthdr) first = dlsym(library, "io_uring_recvmsg_cmsg_firsthdr");
	__typeof__(&io_uring_recvmsg_cmsg_nexthdr) next = dlsym(library, "io_uring_recvmsg_cmsg_nexthdr");
	__typeof__(&io_uring_recvmsg_payload) payload = dlsym(library, "io_uring_recvmsg_payload");
	__typeof__(&io_uring_recvmsg_payload_length) length = dlsym(library, "io_uring_recvmsg_payload_length");
	_Alignas(16) char buf[256] = "";
	struct io_uring_recvmsg_out *out = (void *) buf;
	struct msghdr msg = { .msg_namelen = 16, .msg_controllen = 64 };
	struct cmsghdr *a, *b;

	compared++;
	for (int len = -1; len < 256; len++)
		if (validate(buf, len, &msg) != io_uring_recvmsg_validate(buf, len, &msg))
			differ("io_uring_recvmsg_validate", "differs");
	if (name(out) != io_uring_recvmsg_name(out) || payload(out, &msg) != io_uring_recvmsg_payload(out, &msg) ||
	    length(out, 200, &msg) != io_uring_recvmsg_payload_length(out, 200, &msg))
		differ("io_uring_recvmsg_payload", "differs");
	for (out->controllen = 0; out->controllen <= 64; out->controllen++) {
		a = io_uring_recvmsg_cmsg_firsthdr(out, &msg);
		b = first(out, &msg);
		if (a)
			a->cmsg_len = 21;
		while (a && a == b) {
			a = io_uring_recvmsg_cmsg_nexthdr(out, &msg, a);
			b = next(out, &msg, b);
			if (a)
				a->cmsg_len = 17;
		}
		if (a != b)
			differ("io_uring_recvmsg_cmsg_nexthdr", "differs");
	}
}

int main(int argc, char **argv)
{
	library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	if (!library) {
		printf("%s\n", argc > 1 ? dlerror() : "usage: ffi LIBRARY");
		return 2;
	}
	files();
	sockets();
	others();
#ifdef IO_URING_VERSION_MAJOR
	newer();
#endif
	rw();
	received();
	printf("%d compared, %d differ\n", compared, failures);
	return failures != 0 || compared < 70;
}
