/* A file whose server no longer answers, as on a network file system. The server is a child process, by FUSE.
 * Requests on the file wait for it. A submission does not, and the ring stays usable. */
#include "engine.h"

#include <linux/fuse.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define FILE_NODE 2
#define FILE_BYTES 4096

static char folder[] = "served.XXXXXX";

static void reply(int fuse, const struct fuse_in_header *to, int error, const void *body, size_t bytes)
{
	struct fuse_out_header header = {sizeof(header) + bytes, error, to->unique};
	struct iovec parts[] = {{&header, sizeof(header)}, {(void *)body, bytes}};

	/* ENOENT: the request was interrupted, and nobody waits for the answer. */
	CHECK(writev(fuse, parts, 2) == (ssize_t)header.len || errno == ENOENT);
}

static struct fuse_attr attributes_of(uint64_t node)
{
	struct fuse_attr attributes = {.ino = node, .nlink = 1, .blksize = 4096};

	attributes.mode = node == FILE_NODE ? S_IFREG | 0666 : S_IFDIR | 0755;
	attributes.size = node == FILE_NODE ? FILE_BYTES : 0;
	attributes.uid = getuid();
	attributes.gid = getgid();
	return attributes;
}

/* Serves one request. Attributes are never cached, so that each use of them makes a request. */
static int serve(int fuse)
{
	static char request[FUSE_MIN_READ_BUFFER + 65536], zeroes[FILE_BYTES];
	const struct fuse_in_header *header = (void *)request;
	const void *argument = header + 1;
	ssize_t bytes = read(fuse, request, sizeof(request));

	if (bytes < 0)
		return errno == EINTR || errno == ENOENT;
	switch (header->opcode) {
	case FUSE_INIT: {
		struct fuse_init_out out = {.major = 7, .minor = 31, .max_write = 65536, .max_background = 16};

		out.flags = FUSE_ASYNC_READ; /* a nonblocking attempt starts the read and returns without waiting for it */

		reply(fuse, header, 0, &out, sizeof(out));
		break;
	}
	case FUSE_LOOKUP: {
		struct fuse_entry_out out = {.nodeid = FILE_NODE, .entry_valid = 3600};

		out.attr = attributes_of(FILE_NODE);
		reply(fuse, header, 0, &out, sizeof(out));
		break;
	}
	case FUSE_GETATTR: {
		struct fuse_attr_out out = {.attr = attributes_of(header->nodeid)};

		reply(fuse, header, 0, &out, sizeof(out));
		break;
	}
	case FUSE_OPEN: {
		struct fuse_open_out out = {0};

		reply(fuse, header, 0, &out, sizeof(out));
		break;
	}
	case FUSE_READ: {
		const struct fuse_read_in *in = argument;
		size_t left = in->offset < FILE_BYTES ? FILE_BYTES - in->offset : 0;

		reply(fuse, header, 0, zeroes, in->size < left ? in->size : left);
		break;
	}
	case FUSE_WRITE: {
		struct fuse_write_out out = {.size = ((const struct fuse_write_in *)argument)->size};

		reply(fuse, header, 0, &out, sizeof(out));
		break;
	}
	case FUSE_STATFS: {
		struct fuse_statfs_out out = {0};

		reply(fuse, header, 0, &out, sizeof(out));
		break;
	}
	case FUSE_RELEASE:
		reply(fuse, header, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	default:
		reply(fuse, header, -ENOSYS, NULL, 0);
	}
	return 1;
}

static void send_files(int to, const int *files, size_t count)
{
	char byte = 0, control[CMSG_SPACE(2 * sizeof(int))] = {0};
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control};
	struct cmsghdr *part = (void *)control;

	message.msg_controllen = CMSG_SPACE(count * sizeof(int));
	part->cmsg_level = SOL_SOCKET;
	part->cmsg_type = SCM_RIGHTS;
	part->cmsg_len = CMSG_LEN(count * sizeof(int));
	memcpy(CMSG_DATA(part), files, count * sizeof(int));
	CHECK(sendmsg(to, &message, 0) == 1);
}

/* The child's child: opens the file and sends it to the program. */
static void open_files_for(int to)
{
	char path[sizeof(folder) + 8];
	struct pollfd event = {.events = POLLIN};
	int files[2];

	snprintf(path, sizeof(path), "%s/file", folder);
	files[0] = open(path, O_RDWR | O_CLOEXEC);
	files[1] = open(path, O_WRONLY | O_CLOEXEC);
	CHECK(files[0] >= 0 && files[1] >= 0);
	event.fd = files[0];
	CHECK(poll(&event, 1, LONG_MS) == 1); /* the kernel learns that the server lacks FUSE_POLL, and asks no more */
	send_files(to, files, 2);
	CHECK(close(files[0]) == 0 && close(files[1]) == 0);
	_exit(0);
}

/* The child answers requests until the program has opened the file. Afterwards it answers only once the program asks
 * it to. */
static void be_server(int to, int go_on)
{
	char options[96], byte;
	int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC), opened[2];
	struct pollfd set[2];
	pid_t opener;

	if (fuse < 0 || unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		_exit(0);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=%d,group_id=%d", fuse, getuid(), getgid());
	if (mount("served", folder, "fuse", MS_NOSUID | MS_NODEV, options) != 0)
		_exit(0);
	CHECK(pipe(opened) == 0);
	opener = fork();
	if (!opener) {
		CHECK(close(fuse) == 0);
		open_files_for(to);
	}
	CHECK(close(opened[1]) == 0);
	set[0] = (struct pollfd){.fd = fuse, .events = POLLIN};
	set[1] = (struct pollfd){.fd = opened[0], .events = POLLIN};
	for (;;) {
		CHECK(poll(set, 2, LONG_MS) > 0);
		if (set[1].revents)
			break;
		CHECK(serve(fuse));
	}
	wait_for_child(opener);
	CHECK(close(to) == 0);
	CHECK(read(go_on, &byte, 1) >= 0);
	while (serve(fuse))
		;
	_exit(0);
}

static int files[2], go_on[2];
static pid_t server;

static void start_server(void)
{
	char byte, control[CMSG_SPACE(sizeof(files))];
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control};
	int ends[2], got;

	message.msg_controllen = sizeof(control);
	CHECK(mkdtemp(folder));
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0 && pipe2(go_on, O_CLOEXEC) == 0);
	server = fork();
	if (!server) {
		CHECK(close(ends[0]) == 0 && close(go_on[1]) == 0);
		be_server(ends[1], go_on[0]);
	}
	CHECK(close(ends[1]) == 0);
	got = recvmsg(ends[0], &message, MSG_CMSG_CLOEXEC);
	if (got == 0) {
		CHECK(rmdir(folder) == 0);
		skip("no file system can be mounted by FUSE");
	}
	CHECK(got == 1 && CMSG_FIRSTHDR(&message)->cmsg_len == CMSG_LEN(sizeof(files)));
	memcpy(files, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(files));
	CHECK(read(ends[0], &byte, 1) == 0); /* from now on the server does not answer */
	CHECK(close(ends[0]) == 0 && close(go_on[0]) == 0);
}

static void let_server_answer(void)
{
	CHECK(close(go_on[1]) == 0);
}

/* No request uses the file any more, so the file system ends, and with it the server. */
static void end_server(void)
{
	CHECK(close(files[0]) == 0 && close(files[1]) == 0);
	CHECK(rmdir(folder) == 0);
	wait_for_child(server);
}

#define TRANSFERS 8

static void prepare(struct io_uring *ring, int number, int *pipes)
{
	static char buffers[TRANSFERS][16];
	struct io_uring_sqe *sqe = next_sqe(ring);
	char *buffer = buffers[number];

	switch (number) {
	case 0:
	case 1:
		io_uring_prep_read(sqe, files[0], buffer, 16, 0);
		break;
	case 2:
	case 3:
		io_uring_prep_write(sqe, files[0], buffer, 16, 0);
		break;
	case 4:
	case 5:
		io_uring_prep_write(sqe, files[1], buffer, 16, 0);
		break;
	default:
		io_uring_prep_splice(sqe, files[0], 0, pipes[1], -1, 16, 0);
	}
	if (number % 2)
		sqe->flags |= IOSQE_ASYNC;
	sqe->user_data = number;
}

/* Workers make transfers of a file whose server no longer answers. Nothing else is blocked. */
static void transfers(void)
{
	unsigned workers[2] = {TRANSFERS, TRANSFERS};
	struct io_uring ring, other;
	unsigned seen = 0;
	int pipes[2];

	start_server();
	CHECK(pipe(pipes) == 0);
	init_ring(&ring, 16, 0);
	init_ring(&other, 8, 0);
	CHECK(answer(io_uring_register_iowq_max_workers(&ring, workers)) == 0);
	for (int i = 0; i < TRANSFERS; i++)
		prepare(&ring, i, pipes);
	prepare_nop(&ring, TRANSFERS);
	submit(&ring, TRANSFERS + 1);
	expect(&ring, TRANSFERS, 0);
	prepare_nop(&other, 1);
	submit(&other, 1);
	expect(&other, 1, 0);
	let_server_answer();
	for (int i = 0; i < TRANSFERS; i++) {
		struct io_uring_cqe *cqe;

		CHECK(wait_ms(&ring, &cqe, LONG_MS) == 0);
		CHECK(answer(cqe->res) == 16 && cqe->user_data < TRANSFERS);
		seen |= 1u << cqe->user_data;
		io_uring_cqe_seen(&ring, cqe);
	}
	CHECK(seen == (1u << TRANSFERS) - 1);
	io_uring_queue_exit(&other);
	io_uring_queue_exit(&ring);
	end_server();
}

/* Requests for the status of a file on such a server, by number and by name. The submission returns at once. */
static void statuses(void)
{
	struct statx status[2] = {0};
	struct io_uring ring;
	char name[32];

	start_server();
	snprintf(name, sizeof(name), "/proc/self/fd/%d", files[0]);
	init_ring(&ring, 8, 0);
	io_uring_prep_statx(next_sqe(&ring), files[0], "", AT_EMPTY_PATH, STATX_BASIC_STATS, &status[0]);
	io_uring_prep_statx(next_sqe(&ring), AT_FDCWD, name, 0, STATX_BASIC_STATS, &status[1]);
	submit(&ring, 2);
	prepare_nop(&ring, 1);
	submit(&ring, 1);
	expect(&ring, 1, 0);
	let_server_answer();
	expect(&ring, 0, 0);
	expect(&ring, 0, 0);
	CHECK(status[0].stx_size == FILE_BYTES && status[1].stx_size == FILE_BYTES);
	io_uring_queue_exit(&ring);
	end_server();
}

CASES({"transfers", transfers}, {"statuses", statuses})
