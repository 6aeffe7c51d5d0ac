/* A page whose fault another thread answers: a thread that touches it sleeps until then. */
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

static int faults;
static char *page;

static inline void open_faults(void)
{
	struct uffdio_api api = {.api = UFFD_API};

	faults = syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (faults < 0)
		skip("no userfaultfd(2) for the kernel's own faults");
	CHECK(ioctl(faults, UFFDIO_API, &api) == 0);
}

/* Makes a page that no thread has touched. A thread that touches it sleeps until the fault is answered. */
static inline void make_page(void)
{
	struct uffdio_register range = {.mode = UFFDIO_REGISTER_MODE_MISSING};

	if (!faults)
		open_faults();
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	range.range.start = (uintptr_t)page;
	range.range.len = 4096;
	CHECK(ioctl(faults, UFFDIO_REGISTER, &range) == 0);
}

static inline void wait_for_fault(void)
{
	struct pollfd event = {.fd = faults, .events = POLLIN};
	struct uffd_msg message;
	ssize_t length;

	/* The kernel takes different locks for polls and reads, so a read right after a poll may find nothing yet. */
	do {
		CHECK(poll(&event, 1, LONG_MS) == 1);
		length = read(faults, &message, sizeof(message));
	} while (length < 0 && errno == EAGAIN);
	CHECK(length == sizeof(message));
	CHECK(message.event == UFFD_EVENT_PAGEFAULT);
}

static inline void answer_fault(void)
{
	struct uffdio_zeropage zero = {.range = {.start = (uintptr_t)page, .len = 4096}};

	CHECK(ioctl(faults, UFFDIO_ZEROPAGE, &zero) == 0);
}
