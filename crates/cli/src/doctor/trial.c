/* The program with which doctor tries the ways into a preloaded libanyring.so: trial WAY. With `preload` it prints
 * glibc's version.
 *
 * It is dynamically linked, unlike anyring itself, and starts without libc's start code, so that any glibc can load it.
 * Only the calls under trial go through libc or liburing; all others use a system call instruction. It makes a few
 * requests, as programs do; one of them waits. */

#define WEAK __attribute__((weak))

#ifdef __aarch64__
enum { READ_LINK_AT = 78, EXIT_GROUP = 94, FSTAT = 80, WRITE = 64, SOCKETPAIR = 199, MODE_OFFSET = 16 };
#else
enum { READ_LINK_AT = 267, EXIT_GROUP = 231, FSTAT = 5, WRITE = 1, SOCKETPAIR = 53, MODE_OFFSET = 24 };
#endif
#ifdef __aarch64__
enum { MMAP = 222, FUTEX = 98 };
#else
enum { MMAP = 9, FUTEX = 202 };
#endif
enum { WAKE_PRIVATE = 129 };
enum { SETUP = 425, ENTER = 426, CURRENT_FOLDER = -100, GETEVENTS = 1 };
enum { NOP = 0, TIMEOUT = 11, READ = 22, RECV = 27 };
enum { READ_WRITE = 3, SHARED = 1, SINGLE_MMAP = 1, OFFSET_SQES = 0x10000000 };

long syscall(long number, ...);
void *mmap(void *address, unsigned long length, int protection, int flags, int fd, long offset);
const char *gnu_get_libc_version(void);
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags) WEAK;
int io_uring_submit_and_wait(void *ring, unsigned count) WEAK;

/* `struct io_uring` of liburing (static programs fix its size), with room to spare. */
static struct {
    struct {
        unsigned *head, *tail, *mask, *entries, *flags, *dropped, *array;
        struct sqe *sqes;
        unsigned sqe_head, sqe_tail;
        unsigned long bytes;
        void *ring;
        unsigned ring_mask, ring_entries, pad[2];
    } sq;
    struct {
        unsigned *head, *tail, *mask, *entries, *flags, *overflow;
        struct cqe *cqes;
        unsigned long bytes;
        void *ring;
        unsigned ring_mask, ring_entries, pad[2];
    } cq;
    unsigned flags;
    int fd;
    char rest[256];
} ring;

struct sqe {
    unsigned char opcode, flags;
    unsigned short priority;
    int fd;
    unsigned long offset, address;
    unsigned length, op_flags;
    unsigned long user_data, rest[3];
};

struct cqe {
    unsigned long user_data;
    int result;
    unsigned flags;
};

/* `struct io_uring_params`. */
static struct {
    unsigned sq_entries, cq_entries, flags, cpu, idle, features, wq_fd, reserved[3];
    unsigned sq_head, sq_tail, sq_mask, sq_ring_entries, sq_flags, sq_dropped, sq_array, sq_reserved[3];
    unsigned cq_head, cq_tail, cq_mask, cq_ring_entries, cq_overflow, cq_cqes, cq_flags, cq_reserved[3];
} params;

static inline __attribute__((always_inline)) long call(long number, long a, long b, long c, long d, long e, long f)
{
#ifdef __aarch64__
    register long first __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    register long fourth __asm__("x3") = d;
    register long fifth __asm__("x4") = e;
    register long sixth __asm__("x5") = f;
    register long which __asm__("x8") = number;
    __asm__ volatile("svc 0"
                     : "+r"(first)
                     : "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth), "r"(which)
                     : "memory");
    return first;
#else
    long answer;
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    register long sixth __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    return answer;
#endif
}

/* Makes the calls that are not under trial, by one instruction for all: the library examines each instruction. */
static __attribute__((noinline)) long instruction(long number, long a, long b, long c, long d, long e, long f)
{
    return call(number, a, b, c, d, e, f);
}

static int is_same(const char *text, const char *other)
{
    while (*text && *text == *other)
        text++, other++;
    return *text == *other;
}

static long print(int fd, const char *text)
{
    long length = 0;
    while (text[length])
        length++;
    return length ? instruction(WRITE, fd, (long)text, length, 0, 0, 0) : 0;
}

static void __attribute__((noreturn)) end(const char *why)
{
    print(2, why);
    for (;;)
        instruction(EXIT_GROUP, *why != 0, 0, 0, 0, 0, 0);
}

/* True if the kernel made the ring: /proc names it so. Without /proc, a file of the kernel's has no type. */
static int is_of_kernel(int fd)
{
    static const char name[] = "anon_inode:[io_uring]";
    char path[32] = "/proc/self/fd/", digits[12], link[64];
    _Alignas(8) unsigned char status[256];
    enum { TYPE = 0170000 };
    int at = 14, count = 0, rest = fd;
    do
        digits[count++] = '0' + rest % 10;
    while (rest /= 10);
    while (count)
        path[at++] = digits[--count];
    path[at] = 0;
    long length = instruction(READ_LINK_AT, CURRENT_FOLDER, (long)path, (long)link, sizeof link - 1, 0, 0);
    if (length >= 0) {
        link[length] = 0;
        return is_same(link, name);
    }
    if (instruction(FSTAT, fd, (long)status, 0, 0, 0, 0) != 0)
        return 0;
    return (*(unsigned *)(status + MODE_OFFSET) & TYPE) == 0;
}

/* The way to call io_uring_enter(2). */
static long (*enter)(long fd, unsigned submit, unsigned wait);

static long enter_by_syscall(long fd, unsigned submit, unsigned wait)
{
    return syscall(ENTER, fd, submit, wait, GETEVENTS, 0, 0);
}

static long enter_by_instruction(long fd, unsigned submit, unsigned wait)
{
    return call(ENTER, fd, submit, wait, GETEVENTS, 0, 0);
}

static long enter_by_liburing(long fd, unsigned submit, unsigned wait)
{
    (void)fd, (void)submit;
    return io_uring_submit_and_wait(&ring, wait);
}

/* Maps a ring that was made by a system call, as liburing does. */
static void map(int fd, int by_instruction)
{
    unsigned long bytes = params.sq_array + params.sq_entries * sizeof(unsigned);
    unsigned long cqs = params.cq_cqes + params.cq_entries * sizeof(struct cqe);
    char *at, *sqes;
    if (!(params.features & SINGLE_MMAP))
        end("the ring has two mappings\n");
    if (cqs > bytes)
        bytes = cqs;
    if (by_instruction) {
        at = (char *)instruction(MMAP, 0, bytes, READ_WRITE, SHARED, fd, 0);
        sqes = (char *)instruction(MMAP, 0, params.sq_entries * sizeof(struct sqe), READ_WRITE, SHARED, fd, OFFSET_SQES);
    } else {
        at = mmap(0, bytes, READ_WRITE, SHARED, fd, 0);
        sqes = mmap(0, params.sq_entries * sizeof(struct sqe), READ_WRITE, SHARED, fd, OFFSET_SQES);
    }
    if ((unsigned long)at > -4096UL || (unsigned long)sqes > -4096UL)
        end("its ring cannot be mapped\n");
    ring.fd = fd;
    ring.sq.tail = (unsigned *)(at + params.sq_tail);
    ring.sq.array = (unsigned *)(at + params.sq_array);
    ring.sq.sqes = (struct sqe *)sqes;
    ring.cq.tail = (unsigned *)(at + params.cq_tail);
    ring.cq.cqes = (struct cqe *)(at + params.cq_cqes);
}

static int result_of(unsigned long user_data, unsigned count)
{
    for (unsigned index = 0; index < count; index++)
        if (ring.cq.cqes[index].user_data == user_data)
            return ring.cq.cqes[index].result;
    return -1000;
}

/* Makes a NOP, a READ, a TIMEOUT, and a RECV that waits for the others. Without sockets a READ replaces the RECV. */
static void request(int has_sockets)
{
    static const long time[2] = {0, 300000};
    static char bytes[4];
    int file[2], pair[2], has_pair = instruction(SOCKETPAIR, 1, 1, 0, (long)pair, 0, 0) == 0;
    struct sqe wanted[] = {
        {.opcode = NOP, .fd = -1, .user_data = 1},
        {.opcode = TIMEOUT, .fd = -1, .address = (unsigned long)time, .length = 1, .user_data = 2},
        {.opcode = READ, .offset = -1, .address = (unsigned long)bytes, .length = 1, .user_data = 3},
        {.opcode = has_sockets ? RECV : READ, .address = (unsigned long)(bytes + 1), .length = 1, .user_data = 4},
    };
    unsigned count = 2;
    if (has_pair && instruction(SOCKETPAIR, 1, 1, 0, (long)file, 0, 0) == 0) {
        print(file[1], "r");
        wanted[2].fd = file[0];
        wanted[3].fd = pair[0];
        wanted[3].offset = has_sockets ? 0 : -1;
        count = 4;
    }
    for (unsigned index = 0; index < count; index++) {
        ring.sq.sqes[index] = wanted[index];
        if (enter != enter_by_liburing)
            ring.sq.array[index] = index;
    }
    if (enter == enter_by_liburing)
        ring.sq.sqe_tail = count;
    else
        __atomic_store_n(ring.sq.tail, count, __ATOMIC_RELEASE);
    if (enter(ring.fd, count, count == 4 ? 3 : count) < 0)
        end("io_uring_enter failed\n");
    if (count == 4) {
        print(pair[1], "r");
        if (enter(ring.fd, 0, 4) < 0)
            end("io_uring_enter failed where a request waits\n");
    }
    if (__atomic_load_n(ring.cq.tail, __ATOMIC_ACQUIRE) != count)
        end("a request did not complete\n");
    if (result_of(1, count) != 0)
        end("a NOP failed\n");
    if (result_of(2, count) != -62)
        end("a TIMEOUT failed\n");
    if (count == 4 && result_of(3, count) != 1)
        end("a READ failed\n");
    if (count == 4 && result_of(4, count) != 1)
        end("a request that waited failed\n");
}

static void judge(long fd, int has_sockets)
{
    if (fd < 0)
        end("no ring could be made by it\n");
    if (has_sockets && is_of_kernel(fd))
        end("the kernel answered, not the library\n");
    /* Only threads that meet at a lock make this call, and this program has one thread. A filter may kill for it. */
    static unsigned lock;
    instruction(FUTEX, (long)&lock, WAKE_PRIVATE, 1, 0, 0, 0);
    if (enter != enter_by_liburing)
        map(fd, enter == enter_by_instruction);
    request(has_sockets);
    end("");
}

static void __attribute__((noreturn, used)) begin(long *stack)
{
    const char *way = stack[0] > 1 ? (const char *)stack[2] : "";
    int has_sockets = stack[0] > 2;
    if (is_same(way, "preload")) {
        if (!io_uring_queue_init)
            end("the loader did not load it\n");
        print(1, gnu_get_libc_version());
        end("");
    } else if (is_same(way, "liburing")) {
        if (!io_uring_queue_init || !io_uring_submit_and_wait)
            end("the library does not export io_uring_queue_init\n");
        int error = io_uring_queue_init(8, &ring, 0);
        enter = enter_by_liburing;
        judge(error < 0 ? error : ring.fd, has_sockets);
    } else if (is_same(way, "syscall")) {
        enter = enter_by_syscall;
        judge(syscall(SETUP, 8, &params), has_sockets);
    } else if (is_same(way, "raw")) {
        enter = enter_by_instruction;
        judge(call(SETUP, 8, (long)&params, 0, 0, 0, 0), has_sockets);
    }
    end("which way?\n");
}

/* At the start the stack pointer points to the number of arguments, followed by the arguments. */
#ifdef __aarch64__
__asm__(".globl _start\n_start:\n\tmov x29, xzr\n\tmov x0, sp\n\tbl begin\n");
#else
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n");
#endif
