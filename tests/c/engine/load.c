/* Load: many connections, many requests in flight, many rings at once. A round must release all that it took. This
 * is counted after a first round, and again after more. LOAD_SAY prints the cost of a round. */
#include "engine.h"

#include "holdings.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <time.h>

/* The resources that the process holds, and the resident memory of the process and of the kernel. */
struct amount {
	struct holdings held;
	long resident_kib, kernel_kib;
};

/* malloc(3) and the engine may round up what they keep. */
enum { FEW_RESIDENT_KIB = 1024 };

static struct timespec begun;
static struct amount before;

static long field_of(const char *file, const char *name)
{
	FILE *lines = fopen(file, "r");
	char line[256];
	long value = 0;

	CHECK(lines);
	while (fgets(line, sizeof(line), lines))
		if (!strncmp(line, name, strlen(name)))
			value += atol(line + strlen(name));
	fclose(lines);
	return value;
}

static struct amount measure(void)
{
	struct amount now = {look(), 0, 0};

	now.resident_kib = field_of("/proc/self/status", "RssAnon:") + field_of("/proc/self/status", "RssShmem:");
	now.kernel_kib = field_of("/proc/meminfo", "Slab:");
	return now;
}

static void begin(void)
{
	if (getenv("LOAD_SAY"))
		before = measure();
	clock_gettime(CLOCK_MONOTONIC, &begun);
}

/* Prints the cost of a round, for docs/reliability.md. */
static void say(const char *what, long count)
{
	struct timespec now;
	struct amount amount;

	if (!getenv("LOAD_SAY"))
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	amount = measure();
	fprintf(stderr, "%-12s %8ld: %6.0f ns and %6ld B resident, %6ld B of the kernel's each; %d descriptors, %d threads, %d mappings\n",
		what, count, ((now.tv_sec - begun.tv_sec) * 1e9 + (now.tv_nsec - begun.tv_nsec)) / count,
		(amount.resident_kib - before.resident_kib) * 1024 / count,
		(amount.kernel_kib - before.kernel_kib) * 1024 / count, amount.held.descriptors, amount.held.threads,
		amount.held.mappings);
	begin();
}

static int has_more(const struct amount *now, const struct amount *then)
{
	return now->held.descriptors > then->held.descriptors || now->held.threads > then->held.threads ||
	       now->held.mappings > then->held.mappings || now->resident_kib > then->resident_kib + FEW_RESIDENT_KIB;
}

/* The first round warms up. After each later round there are no more resources than after the first. */
static void repeat(void (*round)(unsigned), unsigned size, int rounds)
{
	struct amount warm, now;

	need_proc();
	round(size);
	warm = measure();
	for (int i = 1; i < rounds; i++) {
		round(size);
		now = measure();
		for (int ms = 0; ms < LONG_MS && has_more(&now, &warm); ms += 10, now = measure())
			usleep(10000);
		if (has_more(&now, &warm))
			fprintf(stderr, "round %d of %u: %d descriptors, %d threads, %d mappings, %ld KiB; after the first %d, %d, %d, %ld\n",
				i + 1, size, now.held.descriptors, now.held.threads, now.held.mappings, now.resident_kib,
				warm.held.descriptors, warm.held.threads, warm.held.mappings, warm.resident_kib);
		CHECK(!has_more(&now, &warm));
	}
}

/* Raises the limit to that many descriptors, or skips the case. */
static void need_descriptors(unsigned count)
{
	struct rlimit limit;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	if (limit.rlim_max < count)
		skip("the hard limit of descriptors is too low");
}

static void init_large(struct io_uring *ring, unsigned entries, unsigned cq_entries)
{
	struct io_uring_params params = {.flags = IORING_SETUP_CQSIZE, .cq_entries = cq_entries};

	CHECK(answer(io_uring_queue_init_params(entries, ring, &params)) == 0);
}

/* Returns the next SQE. If the SQ is full, submits the SQEs before it first. */
static struct io_uring_sqe *any_sqe(struct io_uring *ring)
{
	if (!io_uring_sq_space_left(ring))
		CHECK(answer(io_uring_submit(ring)) > 0);
	return next_sqe(ring);
}

static void submit_all(struct io_uring *ring)
{
	while (io_uring_sq_ready(ring))
		CHECK(answer(io_uring_submit(ring)) >= 0);
}

/* Waits for at least one CQE, and passes each CQE in the CQ to `take_one`. */
static void collect(struct io_uring *ring, void (*take_one)(uint64_t, int, void *), void *context)
{
	struct io_uring_cqe *cqe, copy;

	CHECK(wait_ms(ring, &cqe, LONG_MS) == 0);
	while (io_uring_peek_cqe(ring, &cqe) == 0) {
		copy = *cqe;
		io_uring_cqe_seen(ring, cqe);
		CHECK(!(copy.flags & IORING_CQE_F_MORE));
		take_one(copy.user_data, copy.res, context);
	}
}

/* Many requests in flight: some are cancelled one by one, some end by events, the rest is cancelled at once. */
enum { RINGS = 10, ENDS = 48, KINDS = 4, SINGLE = 97 };
enum { A_TIMEOUT, A_POLL, A_RECV, A_READ };

/* Bits of user_data that mark the results of cancels. */
#define ONE (1ULL << 32)
#define AT_ONCE (1ULL << 33)

static struct io_uring rings[RINGS];
/* The first of each pair is the end on which requests wait. Several requests share a pair. */
static int pipes[RINGS][ENDS][2], sockets[RINGS][ENDS][2];
static char bytes[8];

/* Each request gets one CQE. */
static struct tally {
	unsigned char *ended;
	unsigned count, left, answers;
} tallies[RINGS];

static int end_of(unsigned request)
{
	return request / KINDS % ENDS;
}

static void prepare_kind(int number, unsigned request)
{
	static struct __kernel_timespec an_hour = {3600, 0};
	struct io_uring_sqe *sqe = any_sqe(&rings[number]);
	int end = end_of(request);

	switch (request % KINDS) {
	case A_TIMEOUT:
		io_uring_prep_timeout(sqe, &an_hour, 0, 0);
		break;
	case A_POLL:
		io_uring_prep_poll_add(sqe, pipes[number][end][0], POLLIN);
		break;
	case A_RECV:
		io_uring_prep_recv(sqe, sockets[number][end][0], bytes, 1, 0);
		break;
	default:
		io_uring_prep_read(sqe, sockets[number][end][1], bytes, 1, 0);
		break;
	}
	sqe->user_data = request;
}

static void end_one(uint64_t user_data, int res, void *context)
{
	struct tally *tally = context;

	if (user_data & (ONE | AT_ONCE)) {
		CHECK(answer(res) == (user_data & ONE ? 0 : (int)(uint32_t)user_data));
		tally->answers++;
		return;
	}
	CHECK(user_data < tally->count && !tally->ended[user_data]);
	CHECK(answer(res) == -ECANCELED || res == 1); /* POLLIN or one byte */
	tally->ended[user_data] = 1;
	tally->left--;
}

static void collect_until(int number, unsigned left, unsigned answers)
{
	struct tally *tally = &tallies[number];

	while (tally->left > left || tally->answers < answers)
		collect(&rings[number], end_one, tally);
	CHECK(tally->left == left && tally->answers == answers && !io_uring_cq_ready(&rings[number]));
}

static void cancel_each(int number)
{
	struct tally *tally = &tallies[number];
	unsigned cancelled = 0;

	for (unsigned request = 0; request < tally->count; request += SINGLE, cancelled++) {
		struct io_uring_sqe *sqe = any_sqe(&rings[number]);

		io_uring_prep_cancel64(sqe, request, 0);
		sqe->user_data = ONE;
	}
	submit_all(&rings[number]);
	collect_until(number, tally->count - cancelled, cancelled);
}

/* The requests that wait for the even ends. */
static unsigned end_by_events(int number)
{
	struct tally *tally = &tallies[number];
	unsigned expected = 0;

	for (unsigned request = 0; request < tally->count; request++)
		expected += !tally->ended[request] && request % KINDS != A_TIMEOUT && end_of(request) % 2 == 0;
	for (int end = 0; end < ENDS; end += 2) {
		char many[4096] = "";

		write_all(pipes[number][end][1], "x");
		/* The buffer has a byte for each request. */
		for (unsigned sent = 0; sent < tally->count / ENDS; sent += sizeof(many)) {
			CHECK(write(sockets[number][end][0], many, sizeof(many)) == sizeof(many));
			CHECK(write(sockets[number][end][1], many, sizeof(many)) == sizeof(many));
		}
	}
	collect_until(number, tally->left - expected, tally->answers);
	return expected;
}

static void cancel_all(int number)
{
	struct io_uring_sqe *sqe = any_sqe(&rings[number]);

	io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
	sqe->user_data = AT_ONCE | tallies[number].left;
	submit_all(&rings[number]);
	collect_until(number, 0, tallies[number].answers + 1);
}

static void in_flight(unsigned total)
{
	unsigned count = total / RINGS, ended = 0, left = 0;

	for (int i = 0; i < RINGS; i++) {
		init_large(&rings[i], 4096, 65536);
		tallies[i] = (struct tally){calloc(1, count), count, count, 0};
		CHECK(tallies[i].ended);
		memset(tallies[i].ended, 0, count);
		for (int end = 0; end < ENDS; end++) {
			CHECK(pipe(pipes[i][end]) == 0);
			CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[i][end]) == 0);
		}
	}
	begin();
	for (int i = 0; i < RINGS; i++) {
		for (unsigned request = 0; request < count; request++)
			prepare_kind(i, request);
		submit_all(&rings[i]);
		CHECK(!io_uring_cq_ready(&rings[i]));
	}
	say("submitted", total);
	for (int i = 0; i < RINGS; i++)
		cancel_each(i);
	say("cancelled", total / SINGLE);
	for (int i = 0; i < RINGS; i++)
		ended += end_by_events(i);
	say("by events", ended);
	for (int i = 0; i < RINGS; i++) {
		left += tallies[i].left;
		cancel_all(i);
	}
	say("at once", left);
	for (int i = 0; i < RINGS; i++) {
		io_uring_queue_exit(&rings[i]);
		free(tallies[i].ended);
		for (int end = 0; end < ENDS; end++)
			CHECK(!close(pipes[i][end][0]) && !close(pipes[i][end][1]) && !close(sockets[i][end][0]) &&
			      !close(sockets[i][end][1]));
	}
	say("closed", total);
}

static void add_result(uint64_t user_data, int res, void *sum)
{
	CHECK(res == (user_data == 2 ? 7 : 0) && user_data != 1);
	*(int *)sum += res + (user_data == 2 ? 0 : 100);
}

/* Many rings at once. Each has a request in flight, and gets a message from its neighbour. */
static void many_rings(unsigned count)
{
	struct io_uring *all = calloc(count, sizeof(*all));
	int idle[2];

	CHECK(all && pipe(idle) == 0);
	begin();
	for (unsigned i = 0; i < count; i++) {
		init_ring(&all[i], 8, i % 2 ? DEFERRED : 0);
		submit_read(&all[i], idle[0], bytes, 1, 1);
	}
	say("rings", count);
	for (unsigned i = 0; i < count; i++) {
		io_uring_prep_msg_ring(next_sqe(&all[i]), all[(i + 1) % count].ring_fd, 7, 2, 0);
		submit(&all[i], 1);
	}
	for (unsigned i = 0; i < count; i++)
		for (int sum = 0; sum != 107;) /* the message, and the answer to its own */
			collect(&all[i], add_result, &sum);
	say("messages", count);
	for (unsigned i = 0; i < count; i++)
		io_uring_queue_exit(&all[i]);
	say("closed", count);
	free(all);
	CHECK(close(idle[0]) == 0 && close(idle[1]) == 0);
}

/* Many connections: this process serves, a child connects, so that neither has both ends of each. */
enum { MESSAGES = 4, MESSAGE_BYTES = 64 };
enum { ON_ACCEPT = 1, ON_RECV, ON_SEND, ON_CONNECT };

#define TAG(kind, index) ((uint64_t)(kind) << 32 | (index))

struct peers {
	struct io_uring ring;
	unsigned count, open, ended;
	int *fds, listener;
	unsigned *received;
	char (*buffers)[MESSAGE_BYTES];
};

static struct sockaddr_in address = {.sin_family = AF_INET};

static void init_peers(struct peers *peers, unsigned count)
{
	memset(peers, 0, sizeof(*peers));
	init_large(&peers->ring, 1024, 32768);
	peers->count = count;
	peers->fds = calloc(count, sizeof(*peers->fds));
	peers->received = calloc(count, sizeof(*peers->received));
	peers->buffers = calloc(count, sizeof(*peers->buffers));
	CHECK(peers->fds && peers->received && peers->buffers);
}

static void prepare_recv(struct peers *peers, unsigned index)
{
	struct io_uring_sqe *sqe = any_sqe(&peers->ring);

	io_uring_prep_recv(sqe, peers->fds[index], peers->buffers[index], MESSAGE_BYTES, MSG_WAITALL);
	sqe->user_data = TAG(ON_RECV, index);
}

static void prepare_send(struct peers *peers, unsigned index)
{
	struct io_uring_sqe *sqe = any_sqe(&peers->ring);

	io_uring_prep_send(sqe, peers->fds[index], peers->buffers[index], MESSAGE_BYTES, MSG_WAITALL);
	sqe->user_data = TAG(ON_SEND, index);
}

static void prepare_accept(struct peers *peers)
{
	struct io_uring_sqe *sqe = any_sqe(&peers->ring);

	io_uring_prep_accept(sqe, peers->listener, NULL, NULL, SOCK_CLOEXEC);
	sqe->user_data = TAG(ON_ACCEPT, 0);
}

/* The server sends each message back, and ends a connection with its peer. */
static void serve_one(uint64_t user_data, int res, void *context)
{
	struct peers *peers = context;
	unsigned index = user_data;

	switch (user_data >> 32) {
	case ON_ACCEPT:
		CHECK(answer(res) >= 0 && peers->open < peers->count);
		peers->fds[peers->open] = res;
		prepare_recv(peers, peers->open++);
		if (peers->open < peers->count)
			prepare_accept(peers);
		break;
	case ON_RECV:
		if (res == 0) {
			CHECK(peers->received[index] == MESSAGES && close(peers->fds[index]) == 0);
			peers->ended++;
			break;
		}
		CHECK(answer(res) == MESSAGE_BYTES);
		peers->received[index]++;
		prepare_send(peers, index);
		break;
	default:
		CHECK(answer(res) == MESSAGE_BYTES);
		prepare_recv(peers, index);
	}
}

/* The client opens all connections before it sends on any of them. */
static void ask_one(uint64_t user_data, int res, void *context)
{
	struct peers *peers = context;
	unsigned index = user_data;

	switch (user_data >> 32) {
	case ON_CONNECT:
		CHECK(answer(res) == 0);
		peers->open++;
		return;
	case ON_SEND:
		CHECK(answer(res) == MESSAGE_BYTES);
		prepare_recv(peers, index);
		return;
	}
	CHECK(answer(res) == MESSAGE_BYTES);
	CHECK(peers->buffers[index][0] == (char)index && peers->buffers[index][MESSAGE_BYTES - 1] == (char)(index >> 8));
	if (++peers->received[index] == MESSAGES)
		peers->ended++;
	else
		prepare_send(peers, index);
}

static void connect_all(unsigned count)
{
	struct peers peers;

	init_peers(&peers, count);
	for (unsigned i = 0; i < count; i++) {
		struct io_uring_sqe *sqe = any_sqe(&peers.ring);

		peers.fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		CHECK(peers.fds[i] >= 0);
		io_uring_prep_connect(sqe, peers.fds[i], (struct sockaddr *)&address, sizeof(address));
		sqe->user_data = TAG(ON_CONNECT, i);
		memset(peers.buffers[i], i, MESSAGE_BYTES - 1);
		peers.buffers[i][MESSAGE_BYTES - 1] = i >> 8;
	}
	while (peers.open < count) {
		submit_all(&peers.ring);
		collect(&peers.ring, ask_one, &peers);
	}
	for (unsigned i = 0; i < count; i++)
		prepare_send(&peers, i);
	while (peers.ended < count) {
		submit_all(&peers.ring);
		collect(&peers.ring, ask_one, &peers);
	}
	_exit(0);
}

static void connections(unsigned count)
{
	socklen_t length = sizeof(address);
	struct peers peers;
	pid_t child;

	begin();
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	address.sin_port = 0;
	init_peers(&peers, count);
	peers.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(peers.listener >= 0 && bind(peers.listener, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(listen(peers.listener, 4096) == 0);
	CHECK(getsockname(peers.listener, (struct sockaddr *)&address, &length) == 0);
	child = fork();
	if (child == 0) {
		CHECK(close(peers.listener) == 0);
		io_uring_queue_exit(&peers.ring);
		connect_all(count);
	}
	prepare_accept(&peers);
	while (peers.ended < count) {
		submit_all(&peers.ring);
		collect(&peers.ring, serve_one, &peers);
		if (peers.open == count && peers.listener >= 0) {
			say("open", count);
			CHECK(close(peers.listener) == 0);
			peers.listener = -1;
		}
	}
	wait_for_child(child);
	io_uring_queue_exit(&peers.ring);
	free(peers.fds), free(peers.received), free(peers.buffers);
	say("ended", count);
}

static void few_requests(void)
{
	repeat(in_flight, 20000, 3);
}

/* The kernel takes much longer to cancel more. */
static void many_requests(void)
{
	repeat(in_flight, 100000, 3);
}

static void million_requests(void)
{
	repeat(in_flight, 1000000, 3);
}

static void few_rings(void)
{
	repeat(many_rings, 100, 3);
}

static void thousand_rings(void)
{
	need_descriptors(6000);
	repeat(many_rings, 1000, 5);
}

static void few_connections(void)
{
	need_descriptors(1100);
	repeat(connections, 500, 3);
}

static void many_connections(void)
{
	need_descriptors(11000);
	repeat(connections, 10000, 3);
}

CASES({"requests", few_requests}, {"requests-soak", many_requests}, {"million-soak", million_requests}, {"rings", few_rings},
      {"rings-soak", thousand_rings}, {"connections", few_connections}, {"connections-soak", many_connections})
