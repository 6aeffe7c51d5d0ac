// Programs for the tests of `anyring chaos`. `chaos CASE` has a bug that only shows when io_uring does something
// rare, and `chaos CASE right` is the same program without it. Exit status 1 says that the bug occurred.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 6000

static struct io_uring ring;
static bool right;

// Ends the program: status 1 for the bug, 2 for something that must not happen at all.
static void end(int status, const char *what) {
    fprintf(stderr, "chaos: %s\n", what);
    exit(status);
}

static void set_up(unsigned entries) {
    if (io_uring_queue_init(entries, &ring, 0) < 0) end(2, "no ring");
}

// Submits all SQEs, however often the call is refused.
static void submit_all(unsigned count) {
    while (count != 0) {
        int taken = io_uring_submit(&ring);
        if (taken > 0) count -= taken;
        else if (taken != -EAGAIN && taken != -EINTR && taken != -EBUSY) end(2, "submit");
    }
}

// The fields of a CQE.
struct said {
    unsigned long long user_data;
    int res;
    unsigned flags;
};

static struct said wait_one(void) {
    struct io_uring_cqe *cqe;
    int answer;
    while ((answer = io_uring_wait_cqe(&ring, &cqe)) == -EINTR || answer == -EAGAIN || answer == -EBUSY) {}
    if (answer < 0) end(2, "wait");
    struct said copy = { cqe->user_data, cqe->res, cqe->flags };
    io_uring_cqe_seen(&ring, cqe);
    return copy;
}

// Waits for the requests with user_data 1 and 2; their results are indexed by it.
static void wait_two(int results[3]) {
    for (int at = 0; at < 2; at++) {
        struct said cqe = wait_one();
        results[cqe.user_data] = cqe.res;
    }
}

static int request(struct io_uring_sqe *sqe) {
    (void)sqe;
    submit_all(1);
    return wait_one().res;
}

static char pattern(size_t at) { return (char)(at % 251 + 1); }

// A temporary file that contains the pattern.
static int make_file(void) {
    int fd = memfd_create("chaos", 0);
    for (size_t at = 0; at < BYTES; at++) {
        char byte = pattern(at);
        if (write(fd, &byte, 1) != 1) end(2, "write");
    }
    return fd;
}

// A pipe with 64 bytes in it.
static int make_pipe(int *to) {
    static const char data[64];
    int pipes[2];
    if (pipe(pipes) || write(pipes[1], data, sizeof data) != sizeof data) end(2, "pipe");
    if (to) *to = pipes[1];
    return pipes[0];
}

// Bug: assumes that a read is complete.
static void short_read(void) {
    static char data[BYTES];
    int fd = make_file();
    set_up(8);
    size_t done = 0;
    do {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_read(sqe, fd, data + done, BYTES - done, done);
        int count = request(sqe);
        if (count <= 0) end(2, "read");
        done += count;
    } while (right && done < BYTES);
    for (size_t at = 0; at < BYTES; at++) {
        if (data[at] != pattern(at)) end(1, "bytes are missing");
    }
}

// Bug: assumes that a send is complete, so the peer misses the rest.
static void short_send(void) {
    static char data[BYTES], got[BYTES];
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) end(2, "socketpair");
    for (size_t at = 0; at < BYTES; at++) data[at] = pattern(at);
    set_up(8);
    size_t done = 0;
    do {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_send(sqe, pair[0], data + done, BYTES - done, 0);
        int count = request(sqe);
        if (count <= 0) end(2, "send");
        done += count;
    } while (right && done < BYTES);
    shutdown(pair[0], SHUT_WR);
    size_t received = 0;
    ssize_t count;
    while ((count = read(pair[1], got + received, BYTES - received)) > 0) received += count;
    if (received != BYTES || memcmp(got, data, BYTES) != 0) end(1, "bytes are missing");
}

// No bug: transfers with MSG_WAITALL, of one message, or to a pipe must be complete with any seed.
static void whole(void) {
    char data[512], got[512] = {0};
    int stream[2], datagrams[2], packets[2], pipes[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, stream) || socketpair(AF_UNIX, SOCK_DGRAM, 0, datagrams)) end(2, "pair");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets) || pipe(pipes)) end(2, "pair");
    memset(data, 'x', sizeof data);
    set_up(8);
    struct { int from, to, flags; bool socket; } ways[] = {
        { stream[0], stream[1], MSG_WAITALL, true }, { datagrams[0], datagrams[1], 0, true },
        { packets[0], packets[1], 0, true },
    };
    for (int way = 0; way < 3; way++) {
        for (int round = 0; round < 20; round++) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            io_uring_prep_send(sqe, ways[way].from, data, sizeof data, ways[way].flags);
            if (request(sqe) != sizeof data) end(1, "a send is short");
            sqe = io_uring_get_sqe(&ring);
            io_uring_prep_recv(sqe, ways[way].to, got, sizeof got, ways[way].flags);
            if (request(sqe) != sizeof got) end(1, "a receive is short");
        }
    }
    for (int round = 0; round < 20; round++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_write(sqe, pipes[1], data, sizeof data, 0);
        if (request(sqe) != sizeof data) end(1, "a write to a pipe is short");
        if (read(pipes[0], got, sizeof got) != sizeof got) end(2, "read");
    }
}

// Bug: assumes that CQEs arrive in the order of their SQEs.
static void late(void) {
    static char data[4][64];
    set_up(8);
    for (int at = 0; at < 4; at++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_read(sqe, make_pipe(NULL), data[at], 64, 0);
        io_uring_sqe_set_data64(sqe, at);
    }
    submit_all(4);
    unsigned seen = 0;
    for (int at = 0; at < 4; at++) {
        struct said cqe = wait_one();
        if (cqe.res <= 0) end(2, "read");
        if (right) seen |= 1u << cqe.user_data;
        else if (cqe.user_data != (unsigned)at) end(1, "another read has completed");
    }
    if (right && seen != 15) end(2, "a read has not completed");
}

// No bug: links and the order of writes to one stream must hold with any seed.
static void ordered(void) {
    char got[64];
    int pipes[2];
    if (pipe(pipes)) end(2, "pipe");
    set_up(64);
    for (int round = 0; round < 8; round++) {
        static char letters[16];
        for (int at = 0; at < 16; at++) {
            letters[at] = 'a' + at;
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            io_uring_prep_write(sqe, pipes[1], &letters[at], 1, 0);
            if (round % 2) sqe->flags |= at < 15 ? IOSQE_IO_LINK : 0;
            sqe->user_data = at;
        }
        submit_all(16);
        for (int at = 0; at < 16; at++) {
            struct said cqe = wait_one();
            if (cqe.res != 1) end(1, "a write failed");
            if (round % 2 && cqe.user_data != (unsigned)at) end(1, "links complete in another order");
        }
        if (read(pipes[0], got, sizeof got) != 16 || memcmp(got, letters, 16)) end(1, "the order is another");
    }
    // A drained request completes after all before it.
    int fd = make_file();
    static char data[8][16];
    for (int at = 0; at < 8; at++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_read(sqe, fd, data[at], 16, 16 * at);
        sqe->user_data = 0;
    }
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_nop(sqe);
    sqe->flags |= IOSQE_IO_DRAIN;
    sqe->user_data = 1;
    submit_all(9);
    for (int at = 0; at < 9; at++) {
        if ((wait_one().user_data == 1) != (at == 8)) end(1, "a drain completes before others");
    }
}

// Bug: assumes that one call submits all SQEs and waits for all CQEs.
static void enter(void) {
    set_up(8);
    for (int round = 0; round < 20; round++) {
        for (int at = 0; at < 4; at++) io_uring_prep_nop(io_uring_get_sqe(&ring));
        if (right) {
            submit_all(4);
            for (int at = 0; at < 4; at++) wait_one();
            continue;
        }
        if (io_uring_submit_and_wait(&ring, 4) != 4) end(1, "not all was submitted");
        if (io_uring_cq_ready(&ring) != 4) end(1, "not all is there");
        io_uring_cq_advance(&ring, 4);
    }
}

// Bug: assumes that a multishot poll stays armed.
static void multishot(void) {
    int pipes[2];
    char byte = 'x';
    if (pipe(pipes)) end(2, "pipe");
    set_up(8);
    bool armed = false;
    for (int round = 0; round < 20; round++) {
        if (!armed) {
            io_uring_prep_poll_multishot(io_uring_get_sqe(&ring), pipes[0], POLLIN);
            submit_all(1);
            armed = true;
        }
        if (write(pipes[1], &byte, 1) != 1) end(2, "write");
        struct said cqe = wait_one();
        if (cqe.res < 0 || !(cqe.res & POLLIN)) end(2, "poll");
        if (read(pipes[0], &byte, 1) != 1) end(2, "read");
        // Not armed again, the poll would leave the next round waiting forever.
        if (!(cqe.flags & IORING_CQE_F_MORE)) armed = !right;
    }
}

// Bug: assumes that a cancellation always returns 0.
static void cancel(void) {
    int pipes[2];
    char byte;
    if (pipe(pipes)) end(2, "pipe");
    set_up(8);
    for (int round = 0; round < 20; round++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_read(sqe, pipes[0], &byte, 1, 0);
        sqe->user_data = 1;
        submit_all(1);
        sqe = io_uring_get_sqe(&ring);
        io_uring_prep_cancel64(sqe, 1, 0);
        sqe->user_data = 2;
        submit_all(1);
        for (int at = 0; at < 2; at++) {
            struct said cqe = wait_one();
            if (cqe.user_data == 1 && cqe.res != -ECANCELED && cqe.res != -EINTR) end(2, "the read");
            if (cqe.user_data == 2 && cqe.res != 0 && !(right && cqe.res == -EALREADY)) end(1, "the cancellation");
        }
    }
}

// Bug: assumes that as many buffers suffice as there are messages, though a stream has no message boundaries.
static void nobufs(void) {
    enum { COUNT = 4, SIZE = 64 };
    static char buffers[COUNT][SIZE];
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) end(2, "socketpair");
    set_up(8);
    struct io_uring_buf_ring *group;
    if (posix_memalign((void **)&group, 4096, 4096) != 0) end(2, "no memory");
    io_uring_buf_ring_init(group);
    struct io_uring_buf_reg named = { .ring_addr = (unsigned long)group, .ring_entries = COUNT };
    if (io_uring_register_buf_ring(&ring, &named, 0) != 0) end(2, "no ring of buffers");
    for (int at = 0; at < COUNT; at++) io_uring_buf_ring_add(group, buffers[at], SIZE, at, COUNT - 1, at);
    io_uring_buf_ring_advance(group, COUNT);
    char message[SIZE];
    memset(message, 'm', SIZE);
    for (int at = 0; at < COUNT; at++) {
        if (write(pair[1], message, SIZE) != SIZE) end(2, "write");
    }
    shutdown(pair[1], SHUT_WR);
    size_t received = 0;
    bool armed = false;
    while (received < COUNT * SIZE) {
        if (!armed) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            io_uring_prep_recv_multishot(sqe, pair[0], NULL, 0, 0);
            sqe->flags |= IOSQE_BUFFER_SELECT;
            submit_all(1);
            armed = true;
        }
        struct said cqe = wait_one();
        armed = cqe.flags & IORING_CQE_F_MORE;
        if (cqe.res == -ENOBUFS) {
            if (!right) end(1, "there are no buffers");
            continue;
        }
        if (cqe.res <= 0) end(2, "receive");
        received += cqe.res;
        if (right) {
            int id = cqe.flags >> IORING_CQE_BUFFER_SHIFT;
            io_uring_buf_ring_add(group, buffers[id], SIZE, id, COUNT - 1, 0);
            io_uring_buf_ring_advance(group, 1);
        }
    }
}

// Makes a ring, and a pipe with a multishot poll for data.
static void poll_pipe(int pipes[2]) {
    if (pipe(pipes)) end(2, "pipe");
    set_up(8);
    io_uring_prep_poll_multishot(io_uring_get_sqe(&ring), pipes[0], POLLIN);
    submit_all(1);
}

// Bug: reads the CQ but ignores its overflow.
static void overflow(void) {
    int pipes[2];
    char byte = 'x';
    poll_pipe(pipes);
    for (int round = 0; round < 20; round++) {
        if (write(pipes[1], &byte, 1) != 1) end(2, "write");
        struct io_uring_cqe *cqe = NULL;
        unsigned head;
        for (int look = 0; !cqe; look++) {
            io_uring_for_each_cqe(&ring, head, cqe) break;
            if (cqe) break;
            if (right && io_uring_cq_has_overflow(&ring)) io_uring_get_events(&ring);
            else usleep(1000);
            if (look == 2000) end(1, "nothing comes");
        }
        if (!(cqe->flags & IORING_CQE_F_MORE)) end(2, "it ended");
        io_uring_cq_advance(&ring, 1);
        if (read(pipes[0], &byte, 1) != 1) end(2, "read");
    }
}

// Bug: assumes that a reported event is still there, and reads without O_NONBLOCK.
static void spurious(void) {
    int pipes[2];
    char byte = 'x';
    poll_pipe(pipes);
    if (right) fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    for (int round = 0; round < 20; round++) {
        if (write(pipes[1], &byte, 1) != 1) end(2, "write");
        for (bool taken = false; !taken || io_uring_cq_ready(&ring) != 0;) {
            struct said cqe = wait_one();
            if (cqe.res < 0 || !(cqe.flags & IORING_CQE_F_MORE)) end(2, "poll");
            struct pollfd now = { .fd = pipes[0], .events = POLLIN };
            if (!right && poll(&now, 1, 0) == 0) end(1, "nothing is there, and a read would wait for good");
            bool found = read(pipes[0], &byte, 1) == 1;
            taken |= found;
            if (!found && errno != EAGAIN) end(2, "read");
        }
    }
}

// Bug: takes a refused io_uring_enter for the end. Without the bug it makes room in the CQ and tries again.
static void busy(void) {
    int pipes[2];
    char byte = 'x';
    poll_pipe(pipes);
    for (int round = 0; round < 20; round++) {
        // One CQE is in the CQ, and after it one that finds no room.
        io_uring_prep_nop(io_uring_get_sqe(&ring));
        submit_all(1);
        if (write(pipes[1], &byte, 1) != 1) end(2, "write");
        for (int look = 0; io_uring_cq_ready(&ring) < 2 && !io_uring_cq_has_overflow(&ring); look++) {
            if (look == 10000) end(2, "nothing comes");
            usleep(1000);
        }
        int answer = io_uring_get_events(&ring);
        if (answer < 0 && !(right && answer == -EBUSY)) end(1, "the CQ has no room");
        for (int at = 0; at < 2; at++) {
            struct io_uring_cqe *cqe;
            while ((answer = io_uring_wait_cqe(&ring, &cqe)) == -EBUSY || answer == -EINTR) {}
            if (answer < 0) end(2, "wait");
            io_uring_cqe_seen(&ring, cqe);
        }
        if (read(pipes[0], &byte, 1) != 1) end(2, "read");
    }
}

// Bug: assumes that the notification of a zero-copy send is the next CQE.
static void notify(void) {
    static char data[4][64];
    int pair[2];
    char got[64];
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof to;
    pair[0] = socket(AF_INET, SOCK_DGRAM, 0), pair[1] = socket(AF_INET, SOCK_DGRAM, 0);
    if (bind(pair[1], (struct sockaddr *)&to, size) || getsockname(pair[1], (struct sockaddr *)&to, &size)) end(2, "bind");
    if (connect(pair[0], (struct sockaddr *)&to, size)) end(2, "connect");
    set_up(16);
    for (int round = 0; round < 10; round++) {
        for (int at = 0; at < 4; at++) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            io_uring_prep_send_zc(sqe, pair[0], data[at], 64, 0, 0);
            sqe->user_data = at;
        }
        submit_all(4);
        unsigned sent = 0, told = 0;
        for (int last = -1; sent != 15 || told != 15;) {
            struct said cqe = wait_one();
            if (cqe.flags & IORING_CQE_F_NOTIF) {
                if (!(sent & 1u << cqe.user_data)) end(1, "a notification comes before its send");
                if (told & 1u << cqe.user_data) end(1, "a notification comes twice");
                if (!right && (int)cqe.user_data != last) end(1, "the notification is another send's");
                told |= 1u << cqe.user_data;
            } else {
                if (cqe.res != 64 || !(cqe.flags & IORING_CQE_F_MORE)) end(2, "send");
                if (!right && last >= 0 && !(told & 1u << last)) end(1, "the notification is not the next CQE");
                sent |= 1u << (last = (int)cqe.user_data);
            }
        }
        // A notification does not stand for a request, so there is nothing to cancel.
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_send_zc(sqe, pair[0], data[0], 64, 0, 0);
        sqe->user_data = 7;
        submit_all(1);
        struct said cqe = wait_one();
        if (cqe.res != 64) end(2, "send");
        sqe = io_uring_get_sqe(&ring);
        io_uring_prep_cancel64(sqe, 7, 0);
        sqe->user_data = 8;
        submit_all(1);
        for (int at = 0; at < 2; at++) {
            cqe = wait_one();
            if (cqe.user_data == 7 && (cqe.res != 0 || !(cqe.flags & IORING_CQE_F_NOTIF))) end(1, "the notification");
            if (cqe.user_data == 8 && cqe.res != -ENOENT) end(1, "a notification was cancelled");
        }
        for (int at = 0; at < 5; at++) {
            if (recv(pair[1], got, sizeof got, MSG_DONTWAIT) != 64) end(2, "recv");
        }
    }
}

// Bug: assumes that the timeout has lost if the read finds something.
static void edge(void) {
    int to, from = make_pipe(&to);
    char data[64];
    struct __kernel_timespec soon = { .tv_nsec = 5000000 };
    set_up(8);
    for (int round = 0; round < 10; round++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_read(sqe, from, data, sizeof data, 0);
        sqe->flags |= IOSQE_IO_LINK;
        sqe->user_data = 1;
        sqe = io_uring_get_sqe(&ring);
        io_uring_prep_link_timeout(sqe, &soon, 0);
        sqe->user_data = 2;
        submit_all(2);
        int results[3] = {0};
        wait_two(results);
        int read = results[1], timeout = results[2];
        if (!right && timeout != -ECANCELED) end(1, "the timeout has not lost");
        bool won = read == -ECANCELED && timeout == -ETIME, lost = read > 0 && timeout == -ECANCELED;
        if (!won && !lost && !(read > 0 && timeout == -EALREADY)) end(1, "both, or none, has lost");
        if (read > 0 && write(to, data, read) != read) end(2, "write");
    }
}

// Bug: assumes that a timeout with a count ends by the count if enough CQEs are there; it may end by its time.
static void edge_count(void) {
    struct __kernel_timespec soon = { .tv_nsec = 5000000 };
    set_up(8);
    for (int round = 0; round < 10; round++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_timeout(sqe, &soon, 1, 0);
        sqe->user_data = 1;
        sqe = io_uring_get_sqe(&ring);
        io_uring_prep_nop(sqe);
        sqe->user_data = 2;
        submit_all(2);
        for (int at = 0; at < 2; at++) {
            struct said cqe = wait_one();
            if (cqe.user_data == 2) continue;
            if (!right && cqe.res != 0) end(1, "the count was not reached");
            if (cqe.res != 0 && cqe.res != -ETIME) end(1, "the timeout");
        }
    }
}

// Bug: assumes that a removed timeout does not fire. Its time is absolute in every other round.
static void edge_remove(void) {
    set_up(8);
    for (int round = 0; round < 10; round++) {
        struct __kernel_timespec soon = { .tv_nsec = 5000000 };
        bool absolute = round % 2 != 0;
        if (absolute) {
            struct timespec now;
            clock_gettime(CLOCK_MONOTONIC, &now);
            soon.tv_nsec += now.tv_nsec;
            soon.tv_sec = now.tv_sec + soon.tv_nsec / 1000000000;
            soon.tv_nsec %= 1000000000;
        }
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_timeout(sqe, &soon, 0, absolute ? IORING_TIMEOUT_ABS : 0);
        sqe->user_data = 1;
        sqe = io_uring_get_sqe(&ring);
        io_uring_prep_timeout_remove(sqe, 1, 0);
        sqe->user_data = 2;
        submit_all(2);
        int results[3] = {0};
        wait_two(results);
        bool removed = results[2] == 0 && results[1] == -ECANCELED;
        if (!right && !removed) end(1, "it was not removed");
        bool fired = (results[2] == -EALREADY || results[2] == -ENOENT) && results[1] == -ETIME;
        if (!removed && !fired) end(1, "removed and fired, or neither");
    }
}

// Bug: assumes that CQEs only arrive within the program's own calls.
static void aside(void) {
    char data[64];
    int to, from = make_pipe(&to);
    set_up(8);
    for (int round = 0; round < 20; round++) {
        io_uring_prep_read(io_uring_get_sqe(&ring), from, data, sizeof data, 0);
        submit_all(1);
        bool there = io_uring_cq_ready(&ring);
        // While this loop waits, no thread calls io_uring_enter(2).
        for (int look = 0; !there && io_uring_cq_ready(&ring) == 0; look++) {
            if (look == 10000) end(2, "nothing comes");
            usleep(1000);
        }
        if (!right && !there) end(1, "a CQE came by itself");
        int count = wait_one().res;
        if (count <= 0 || write(to, data, count) != count) end(2, "read");
    }
}

// Bug: does not expect errors of a file.
static void faults(void) {
    static char data[64];
    int fd = make_file();
    set_up(8);
    for (int round = 0; round < 20; round++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_write(sqe, fd, data, 64, 0);
        int count = request(sqe);
        if (count != 64 && !(right && (count == -EIO || count == -ENOSPC || count == -ENOMEM))) end(1, "write");
        sqe = io_uring_get_sqe(&ring);
        char got[64];
        io_uring_prep_read(sqe, fd, got, 64, 1000);
        count = request(sqe);
        if (count != 64 && !(right && (count == -EIO || count == -ENOMEM))) end(1, "read");
        for (int at = 0; at < 64 && !right; at++) {
            if (got[at] != pattern(1000 + at)) end(1, "a byte is wrong");
        }
    }
}

// Bug: assumes that a descriptor is closed once its CLOSE is submitted, so that a reader has seen the end.
static void close_late(void) {
    set_up(8);
    for (int round = 0; round < 20; round++) {
        int pipes[2];
        char byte;
        if (pipe2(pipes, O_NONBLOCK) != 0) end(2, "pipe");
        io_uring_prep_close(io_uring_get_sqe(&ring), pipes[1]);
        submit_all(1);
        if (right && wait_one().res != 0) end(2, "close");
        if (read(pipes[0], &byte, 1) != 0) end(1, "it is not closed yet");
        if (!right && wait_one().res != 0) end(2, "close");
        close(pipes[0]);
    }
}

// Bug: closes again what was closed with an error. The number belongs to another file by then.
static void close_again(void) {
    set_up(8);
    for (int round = 0; round < 20; round++) {
        int fd = memfd_create("one", 0);
        io_uring_prep_close(io_uring_get_sqe(&ring), fd);
        submit_all(1);
        int result = wait_one().res;
        if (result != 0 && result != -EINTR && result != -EIO) end(2, "close");
        int other = memfd_create("other", 0);
        if (other != fd) end(2, "it is not closed");
        if (result != 0 && !right) close(fd);
        if (write(other, "a", 1) != 1) end(1, "another file was closed");
        close(other);
    }
}

// No bug: a slot is empty once a CLOSE of it is submitted, so that an UPDATE that follows fills it.
static void close_slot(void) {
    set_up(8);
    int fds[2] = { make_file(), make_pipe(NULL) };
    if (io_uring_register_files(&ring, fds, 1) != 0) end(2, "register");
    for (int round = 0; round < 20; round++) {
        io_uring_prep_close_direct(io_uring_get_sqe(&ring), 0);
        submit_all(1);
        if (io_uring_register_files_update(&ring, 0, fds, 1) != 1) end(2, "update");
        if (wait_one().res != 0) end(2, "close");
        char byte;
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_read(sqe, 0, &byte, 1, 0);
        sqe->flags |= IOSQE_FIXED_FILE;
        if (request(sqe) != 1 || byte != pattern(0)) end(1, "the slot is empty");
    }
}

// Two bugs that only matter together.
static void both(void) {
    static char data[2][64];
    int from[2], to[2];
    set_up(8);
    bool was_short = false, was_turned = false;
    for (int at = 0; at < 2; at++) from[at] = make_pipe(&to[at]);
    for (int round = 0; round < 10; round++) {
        for (int at = 0; at < 2; at++) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            io_uring_prep_read(sqe, from[at], data[at], 64, 0);
            sqe->user_data = at;
        }
        submit_all(2);
        for (int at = 0; at < 2; at++) {
            struct said cqe = wait_one();
            was_short |= cqe.res != 64;
            was_turned |= cqe.user_data != (unsigned)at;
        }
        for (int at = 0; at < 2; at++) {
            if (write(to[at], data[at], 64) != 64) end(2, "write");
        }
    }
    if (was_short && was_turned) end(1, "both");
}

// Bug: uses the memory of a request before its CQE, by writing or unmapping it.
enum way { WRITE, SEND, WRITEV, SENDMSG, UNMAP, FIXED, READ, READV, RECV, RECVMSG, UNMAP_RECV };

static void reuse(enum way way) {
    enum { COUNT = 64 };
    const bool parted = way == WRITEV || way == SENDMSG || way == READV || way == RECVMSG;
    const bool unmaps = way == UNMAP || way == UNMAP_RECV, receives = way >= RECV;
    int pair[2], fd = make_file();
    char sent[COUNT];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) end(2, "socketpair");
    for (int at = 0; at < COUNT; at++) sent[at] = pattern(at);
    set_up(8);
    char *data = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct iovec parts[2] = { { data, 10 }, { data + 100, COUNT - 10 } };
    struct iovec whole = { data, 4096 };
    if (way == FIXED && io_uring_register_buffers(&ring, &whole, 1) != 0) end(2, "no registered buffer");
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
    for (int round = 0; round < 20; round++) {
        memset(data, 'a' + round, 4096);
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        if (way == WRITE || way == UNMAP) io_uring_prep_write(sqe, fd, data, COUNT, 0);
        if (way == SEND) io_uring_prep_send(sqe, pair[0], data, COUNT, 0);
        if (way == WRITEV) io_uring_prep_writev(sqe, fd, parts, 2, 0);
        if (way == SENDMSG) io_uring_prep_sendmsg(sqe, pair[0], &message, 0);
        if (way == FIXED) io_uring_prep_write_fixed(sqe, fd, data, COUNT, 0, 0);
        if (way == READ) io_uring_prep_read(sqe, fd, data, COUNT, 0);
        if (way == READV) io_uring_prep_readv(sqe, fd, parts, 2, 0);
        if (way == RECV || way == UNMAP_RECV) io_uring_prep_recv(sqe, pair[0], data, COUNT, 0);
        if (way == RECVMSG) io_uring_prep_recvmsg(sqe, pair[0], &message, 0);
        sqe->user_data = 7;
        submit_all(1);
        if (!right && unmaps) munmap(data, 4096);
        else if (!right) data[parted ? 103 : 3] ^= 1;
        if (receives && write(pair[1], sent, COUNT) != COUNT) end(2, "write");
        // An error is possible in the program with the bug, and does not matter.
        int res = wait_one().res;
        for (int at = 0; right && way >= READ && at < COUNT; at++) {
            if (res != COUNT || data[parted && at >= 10 ? at + 90 : at] != sent[at]) end(1, "bytes are missing");
        }
        if (right && way >= READ && data[parted ? COUNT + 90 : COUNT] != 'a' + round) end(1, "a byte too many");
        if (unmaps) mmap(data, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
}

static void reuse_write(void) { reuse(WRITE); }
static void reuse_send(void) { reuse(SEND); }
static void reuse_writev(void) { reuse(WRITEV); }
static void reuse_sendmsg(void) { reuse(SENDMSG); }
static void reuse_fixed(void) { reuse(FIXED); }
static void unmap_write(void) { reuse(UNMAP); }
static void reuse_read(void) { reuse(READ); }
static void reuse_readv(void) { reuse(READV); }
static void reuse_recv(void) { reuse(RECV); }
static void reuse_recvmsg(void) { reuse(RECVMSG); }
static void unmap_recv(void) { reuse(UNMAP_RECV); }

// Bug: before the CQE, changes memory in which a request returns something other than data.
enum part { ADDR, ADDRLEN, FLAGS, NAME, CONTROL, RIGHTS, STATXBUF, EVENTS, INFOP, VALUE };

// A socket of this kind on loopback, and its address.
static int bound(int kind, struct sockaddr_in *name) {
    socklen_t bytes = sizeof *name;
    int fd = socket(AF_INET, kind, 0);
    *name = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    if (bind(fd, (struct sockaddr *)name, bytes) != 0 || getsockname(fd, (struct sockaddr *)name, &bytes) != 0) end(2, "bind");
    if (kind == SOCK_STREAM && listen(fd, 4) != 0) end(2, "listen");
    return fd;
}

static void reuse_part(enum part part) {
    struct sockaddr_in to, from;
    int server = bound(part <= ADDRLEN ? SOCK_STREAM : SOCK_DGRAM, &to), epoll = epoll_create1(0), fd = make_file(), ends[2], pair[2];
    if (pipe(ends) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) end(2, "pipe");
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &(struct epoll_event){ .events = EPOLLIN, .data.u64 = 77 });
    set_up(8);
    for (int round = 0; round < 20; round++) {
        // The length is not next to the address, and so on.
        static struct { struct sockaddr_in name; socklen_t length; char control[64], data[4]; } one;
        static struct statx statxbuf;
        static struct epoll_event events[4];
        static siginfo_t infop;
        static char value[16];
        memset(&one, 0, sizeof one);
        one.length = sizeof one.name;
        struct iovec iov = { one.data, sizeof one.data };
        struct msghdr message = { .msg_name = &one.name, .msg_namelen = sizeof one.name, .msg_iov = &iov, .msg_iovlen = 1,
                                  .msg_control = one.control, .msg_controllen = sizeof one.control };
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        char *changed = NULL;
        pid_t child = 0;
        switch (part) {
        case ADDR: case ADDRLEN:
            io_uring_prep_accept(sqe, server, (struct sockaddr *)&one.name, &one.length, 0);
            changed = part == ADDR ? (char *)&one.name : (char *)&one.length;
            break;
        case FLAGS: case NAME: case CONTROL:
            io_uring_prep_recvmsg(sqe, server, &message, 0);
            changed = part == NAME ? (char *)&one.name : part == CONTROL ? one.control : (char *)&message.msg_flags;
            break;
        case RIGHTS:
            message.msg_name = NULL;
            message.msg_controllen = CMSG_SPACE(sizeof(int));
            *CMSG_FIRSTHDR(&message) = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
            memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof fd);
            io_uring_prep_sendmsg(sqe, pair[0], &message, 0);
            changed = (char *)CMSG_DATA(CMSG_FIRSTHDR(&message));
            break;
        case STATXBUF:
            io_uring_prep_statx(sqe, fd, "", AT_EMPTY_PATH, STATX_SIZE, &statxbuf);
            changed = (char *)&statxbuf;
            break;
        case EVENTS:
            io_uring_prep_rw(59 /* IORING_OP_EPOLL_WAIT */, sqe, epoll, events, 4, 0);
            changed = (char *)events;
            break;
        case INFOP:
            if ((child = fork()) == 0) _exit(read(ends[0], value, 1) == 1 ? 5 : 6);
            io_uring_prep_rw(50 /* IORING_OP_WAITID */, sqe, child, NULL, P_PID, (uintptr_t)&infop);
            sqe->file_index = WEXITED;
            changed = (char *)&infop;
            break;
        case VALUE:
            io_uring_prep_fgetxattr(sqe, fd, "user.chaos", value, sizeof value);
            changed = value;
            break;
        }
        sqe->user_data = 7;
        submit_all(1);
        message.msg_iov = NULL; // the engine no longer reads it
        if (!right) changed[3] ^= 1;
        int client = socket(AF_INET, part <= ADDRLEN ? SOCK_STREAM : SOCK_DGRAM, 0);
        if (part <= CONTROL && connect(client, (struct sockaddr *)&to, sizeof to) != 0) end(2, "connect");
        socklen_t bytes = sizeof from;
        if (getsockname(client, (struct sockaddr *)&from, &bytes) != 0) end(2, "getsockname");
        if (part >= FLAGS && part <= CONTROL && send(client, "abcd", 4, 0) != 4) end(2, "send");
        if ((part == EVENTS || part == INFOP) && write(ends[1], "x", 1) != 1) end(2, "write");
        int res = wait_one().res;
        bool named = one.name.sin_port == from.sin_port && one.name.sin_addr.s_addr == from.sin_addr.s_addr;
        if (right && part <= ADDRLEN && (res < 0 || !named || one.length != sizeof one.name)) end(1, "accept");
        if (part <= ADDRLEN && res >= 0) close(res);
        if (right && part >= FLAGS && part <= CONTROL
            && (res != 4 || !named || message.msg_namelen != sizeof one.name || message.msg_controllen != 0
                || memcmp(one.data, "abcd", 4) != 0)) end(1, "recvmsg");
        if (right && part == RIGHTS && res != 4) end(1, "sendmsg");
        if (right && part == STATXBUF && (res != 0 || statxbuf.stx_size != BYTES)) end(1, "statx");
        if (right && part == EVENTS && (res != 1 || events[0].data.u64 != 77)) end(1, "epoll_wait");
        if (right && part == INFOP && (res != 0 || infop.si_pid != child || infop.si_status != 5)) end(1, "waitid");
        if (right && part == VALUE && res >= 0) end(1, "a value of nothing");
        if (part == EVENTS && read(ends[0], value, 1) != 1) end(2, "read");
        close(client);
    }
}

static void reuse_addr(void) { reuse_part(ADDR); }
static void reuse_addrlen(void) { reuse_part(ADDRLEN); }
static void reuse_flags(void) { reuse_part(FLAGS); }
static void reuse_name(void) { reuse_part(NAME); }
static void reuse_control(void) { reuse_part(CONTROL); }
static void reuse_rights(void) { reuse_part(RIGHTS); }
static void reuse_statxbuf(void) { reuse_part(STATXBUF); }
static void reuse_events(void) { reuse_part(EVENTS); }
static void reuse_infop(void) { reuse_part(INFOP); }
static void reuse_value(void) { reuse_part(VALUE); }

// Bug: frees the memory of a request before its CQE.
static void freed(void) {
    int ends[2];
    if (pipe(ends) != 0) end(2, "pipe");
    set_up(8);
    for (int round = 0; round < 20; round++) {
        char *data = malloc(64);
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_read(sqe, ends[0], data, 64, 0);
        sqe->user_data = 7;
        submit_all(1);
        if (!right) free(data);
        if (write(ends[1], "abcd", 4) != 4) end(2, "write");
        wait_one();
        if (right) free(data);
    }
}

// No bug: a read fills memory that a write of the same chain takes, repeatedly.
static void copy(void) {
    static char data[BYTES];
    int from = make_file(), to = memfd_create("chaos", 0);
    set_up(8);
    for (int round = 0; round < 20; round++) {
        memset(data, 0, sizeof data);
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_read(sqe, from, data, BYTES, 0);
        sqe->flags |= IOSQE_IO_LINK;
        io_uring_prep_write(io_uring_get_sqe(&ring), to, data, BYTES, 0);
        submit_all(2);
        for (int at = 0; at < 2; at++) wait_one();
    }
    // After the end of a ring, its memory belongs to the program.
    char *last = malloc(BYTES);
    io_uring_prep_write(io_uring_get_sqe(&ring), to, memset(last, 1, BYTES), BYTES, 0);
    submit_all(1);
    io_uring_queue_exit(&ring);
    free(last);
}

// No bug: a request that chaos held back ends like any other. It ends by its LINK_TIMEOUT, with its registered
// buffer, and by itself if the program waits for its effect.
static void kept(void) {
    static char room[64];
    int ends[2], pair[2];
    struct __kernel_timespec past = { 0, 1 };
    struct iovec whole = { room, sizeof room };
    if (pipe(ends) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) end(2, "pipe");
    set_up(8);
    for (int round = 0; round < 20; round++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_read(sqe, ends[0], room, 1, 0);
        sqe->flags |= IOSQE_IO_LINK;
        sqe->user_data = 1;
        sqe = io_uring_get_sqe(&ring);
        io_uring_prep_link_timeout(sqe, &past, IORING_TIMEOUT_ABS);
        sqe->user_data = 2;
        submit_all(2);
        int results[3];
        wait_two(results);
        if (results[1] != -ECANCELED || results[2] != -ETIME) end(1, "not ended by its LINK_TIMEOUT");

        if (write(ends[1], "abcd", 4) != 4) end(2, "write");
        if (io_uring_register_buffers(&ring, &whole, 1) != 0) end(2, "no registered buffer");
        io_uring_prep_read_fixed(io_uring_get_sqe(&ring), ends[0], room, 4, 0, 0);
        submit_all(1);
        if (io_uring_unregister_buffers(&ring) != 0) end(2, "unregister");
        if (wait_one().res != 4) end(1, "its buffer is gone");
    }
    io_uring_queue_exit(&ring);
    if (io_uring_queue_init(8, &ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) < 0) end(2, "no ring");
    for (int round = 0; round < 20; round++) {
        io_uring_prep_send(io_uring_get_sqe(&ring), pair[0], "abcd", 4, 0);
        submit_all(1);
        if (read(pair[1], room, 4) != 4) end(2, "read");
        wait_one();
    }
}

// Misuse that the kernel does not report.
static void misuse_twice(void) {
    int ends[2];
    char data[2];
    if (pipe(ends) < 0) end(2, "pipe");
    set_up(8);
    for (int at = 0; at < 2; at++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_read(sqe, ends[0], &data[at], 1, 0);
        sqe->user_data = right ? 7 + at : 7;
    }
    submit_all(2);
    if (write(ends[1], "ab", 2) != 2) end(2, "write");
    for (int at = 0; at < 2; at++) wait_one();
    io_uring_queue_exit(&ring);
}

static void misuse_unseen(void) {
    struct io_uring_cqe *cqe;
    set_up(8);
    io_uring_prep_nop(io_uring_get_sqe(&ring));
    submit_all(1);
    if (right) wait_one();
    else if (io_uring_wait_cqe(&ring, &cqe) < 0) end(2, "wait");
    io_uring_queue_exit(&ring);
}

static void misuse_head(void) {
    struct io_uring_cqe *cqe;
    set_up(8);
    for (int round = 0; round < 2; round++) {
        io_uring_prep_nop(io_uring_get_sqe(&ring));
        submit_all(1);
        if (!right && round == 1) break;
        if (io_uring_wait_cqe(&ring, &cqe) < 0) end(2, "wait");
        io_uring_cq_advance(&ring, right ? 1 : 2);
    }
    io_uring_queue_exit(&ring);
}

static void misuse_closed(void) {
    int ends[2];
    char data;
    if (pipe(ends) < 0) end(2, "pipe");
    set_up(8);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_read(sqe, ends[0], &data, 1, 0);
    sqe->user_data = 7;
    submit_all(1);
    if (!right) close(ends[0]);
    if (write(ends[1], "a", 1) != 1) end(2, "write");
    wait_one();
    if (right) close(ends[0]);
    io_uring_queue_exit(&ring);
}

int main(int count, char **words) {
    struct { const char *name; void (*run)(void); } cases[] = {
        { "short-read", short_read }, { "short-send", short_send }, { "whole", whole }, { "late", late },
        { "ordered", ordered }, { "enter", enter }, { "multishot", multishot }, { "cancel", cancel },
        { "nobufs", nobufs }, { "overflow", overflow }, { "faults", faults }, { "both", both },
        { "close-late", close_late }, { "close-again", close_again }, { "close-slot", close_slot },
        { "spurious", spurious }, { "busy", busy }, { "notify", notify }, { "edge", edge },
        { "edge-count", edge_count }, { "edge-remove", edge_remove }, { "aside", aside },
        { "reuse-write", reuse_write }, { "reuse-send", reuse_send }, { "reuse-writev", reuse_writev },
        { "reuse-sendmsg", reuse_sendmsg }, { "reuse-fixed", reuse_fixed }, { "unmap-write", unmap_write },
        { "copy", copy }, { "kept", kept }, { "freed", freed },
        { "reuse-read", reuse_read }, { "reuse-readv", reuse_readv }, { "reuse-recv", reuse_recv },
        { "reuse-recvmsg", reuse_recvmsg }, { "unmap-recv", unmap_recv },
        { "reuse-addr", reuse_addr }, { "reuse-addrlen", reuse_addrlen }, { "reuse-flags", reuse_flags },
        { "reuse-name", reuse_name }, { "reuse-control", reuse_control }, { "reuse-rights", reuse_rights },
        { "reuse-statxbuf", reuse_statxbuf },
        { "reuse-events", reuse_events }, { "reuse-infop", reuse_infop }, { "reuse-value", reuse_value },
        { "misuse-twice", misuse_twice }, { "misuse-unseen", misuse_unseen }, { "misuse-head", misuse_head },
        { "misuse-closed", misuse_closed },
    };
    right = count > 2 && strcmp(words[2], "right") == 0;
    for (size_t at = 0; count > 1 && at < sizeof cases / sizeof *cases; at++) {
        if (strcmp(cases[at].name, words[1]) == 0) {
            cases[at].run();
            return 0;
        }
    }
    end(2, "no such case");
}
