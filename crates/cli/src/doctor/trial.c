/* The program by which doctor tries the ways into a preloaded libanyring.so: trial WAY. With `preload` it prints
 * glibc's version.
 *
 * It is dynamically linked, which anyring itself is not, and begins without libc's start code, so that each glibc can load it.
 * Whatever helps is asked of the kernel by an instruction; only what is tried goes by libc or liburing. */

#define WEAK __attribute__((weak))

#ifdef __aarch64__
enum { READ_LINK_AT = 78, EXIT_GROUP = 94, FSTAT = 80, WRITE = 64, MODE_OFFSET = 16 };
#else
enum { READ_LINK_AT = 267, EXIT_GROUP = 231, FSTAT = 5, WRITE = 1, MODE_OFFSET = 24 };
#endif
enum { SETUP = 425, ENTER = 426, CURRENT_FOLDER = -100 };

long syscall(long number, ...);
const char *gnu_get_libc_version(void);
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags) WEAK;

/* `struct io_uring` of liburing is 216 bytes (static programs fix its size); this has room to spare. Its `ring_fd` is behind two
 * queues of 104 and 88 bytes and the flags. */
static _Alignas(8) char ring[512];
enum { RING_FD_OFFSET = 196 };

/* `struct io_uring_params`. */
static _Alignas(8) char params[120];

static long instruction(long number, long a, long b, long c, long d, long e, long f)
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

/* Whether the kernel made the ring: it names it so, and a file of its own has no type where there is no /proc. */
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

static void judge(long fd)
{
    if (fd < 0)
        end("no ring could be made by it\n");
    if (is_of_kernel(fd))
        end("the kernel answered, not the library\n");
    end("");
}

static void __attribute__((noreturn, used)) begin(long *stack)
{
    const char *way = stack[0] > 1 ? (const char *)stack[2] : "";
    if (is_same(way, "preload")) {
        if (!io_uring_queue_init)
            end("the loader did not load it\n");
        print(1, gnu_get_libc_version());
        end("");
    } else if (is_same(way, "liburing")) {
        if (!io_uring_queue_init)
            end("the library does not export io_uring_queue_init\n");
        int error = io_uring_queue_init(2, ring, 0);
        judge(error < 0 ? error : *(int *)(ring + RING_FD_OFFSET));
    } else if (is_same(way, "syscall")) {
        long fd = syscall(SETUP, 2, params);
        if (fd >= 0 && syscall(ENTER, fd, 0, 0, 0, 0, 0) != 0)
            end("io_uring_enter failed\n");
        judge(fd);
    } else if (is_same(way, "raw")) {
        long fd = instruction(SETUP, 2, (long)params, 0, 0, 0, 0);
        if (fd >= 0 && instruction(ENTER, fd, 0, 0, 0, 0, 0) != 0)
            end("io_uring_enter failed\n");
        judge(fd);
    }
    end("which way?\n");
}

/* The kernel and the loader leave the count of the arguments, and behind it these, where the stack pointer is. */
#ifdef __aarch64__
__asm__(".globl _start\n_start:\n\tmov x29, xzr\n\tmov x0, sp\n\tbl begin\n");
#else
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n");
#endif
