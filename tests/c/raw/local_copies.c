/* Copies of the library that do not find each other by name: argv[1] and argv[2] are loaded with RTLD_LOCAL
 * (argv[3] "local"), or argv[1] in another namespace, beside the preloaded one ("namespace"). Their rings work, and so
 * do raw calls, bad pointers and the program's own handler of faults. */
#include "raw.h"
#include <dlfcn.h>
#include <liburing.h>

struct copy {
	struct io_uring ring;
	int (*init)(unsigned, struct io_uring *, unsigned);
	int (*submit)(struct io_uring *, unsigned);
	int (*buffers)(struct io_uring *, const struct iovec *, unsigned);
	int made;
};

static sigjmp_buf back;
static volatile int faults;

static void jump(int signal)
{
	faults += signal == SIGSEGV;
	siglongjmp(back, 1);
}

static void use(struct copy *copy)
{
	struct iovec nowhere = {.iov_base = (void *)8, .iov_len = 4096};

	for (int i = 0; i < 100 && copy->made; i++) {
		io_uring_prep_nop(io_uring_get_sqe(&copy->ring));
		CHECK(copy->submit(&copy->ring, 1) == 1 && io_uring_cq_ready(&copy->ring) == 1);
		io_uring_cq_advance(&copy->ring, 1);
	}
	if (copy->made) {
		CHECK(copy->buffers(&copy->ring, &nowhere, 1) == -EFAULT);
		CHECK(copy->buffers(&copy->ring, (void *)8, 1) == -EFAULT);
	}
}

static void fault(void)
{
	if (sigsetjmp(back, 1) == 0)
		*(volatile int *)8 = 1;
}

static void load(struct copy *copy, void *handle)
{
	CHECK(handle);
	copy->init = (int (*)(unsigned, struct io_uring *, unsigned))dlsym(handle, "io_uring_queue_init");
	copy->submit = (int (*)(struct io_uring *, unsigned))dlsym(handle, "io_uring_submit_and_wait");
	copy->buffers =
		(int (*)(struct io_uring *, const struct iovec *, unsigned))dlsym(handle, "io_uring_register_buffers");
	CHECK(copy->init && copy->submit && copy->buffers);
	copy->made = copy->init(4, &copy->ring, 0) == 0;
}

int main(int argc, char **argv)
{
	static struct copy first, second;
	struct sigaction action = {.sa_handler = jump};
	struct ring raw;
	int preloaded;

	CHECK(argc == 4);
	preloaded = strcmp(argv[3], "namespace") == 0;
	if (preloaded) {
		CHECK(ring_open(&raw, 4) == 0);
		load(&first, dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW | RTLD_LOCAL));
	} else {
		load(&first, dlopen(argv[1], RTLD_NOW | RTLD_LOCAL));
		load(&second, dlopen(argv[2], RTLD_NOW | RTLD_LOCAL));
		CHECK(first.made);
	}
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	for (int round = 1; round <= 3; round++) {
		use(&first);
		use(&second);
		for (int i = 0; i < 100 && preloaded; i++)
			ring_nop(&raw, i);
		fault();
		CHECK(faults == round);
	}
	puts("done");
	return 0;
}
