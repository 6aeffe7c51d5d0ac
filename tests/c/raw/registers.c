/* A trapped instruction preserves what an untrapped one does: general, vector and floating-point registers, the control
 * words, the direction flag, and the red zone. */
#include "raw.h"
#include <stddef.h>
#include <xmmintrin.h>

/* The assembly knows these offsets. */
struct state {
	uint64_t general[12]; /* rbx rbp r12 r13 r14 r15 rdi rsi rdx r10 r8 r9 */
	uint64_t flags, rsp_before, rsp_after, rcx, next, red[16];
	unsigned char vector[16][32], x87[8][10];
	uint32_t mxcsr;
	uint16_t control;
};
_Static_assert(offsetof(struct state, vector) == 264 && offsetof(struct state, control) == 860, "offsets");

/* Loads registers from `before`, fills the red zone, makes the call (io_uring_enter), stores all to `after`. */
long probe(struct state *before, struct state *after);
extern const unsigned char probe_call[];
__asm__(".text\n.globl probe\nprobe:\n"
	"push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\n"
	"push %rsi\npush %rdx\n"
	"mov %rdi, %rcx\n"
	".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nvmovdqu 264+\\n*32(%rcx), %ymm\\n\n.endr\n"
	"fldpi\nfld1\nfldl2t\n"
	"mov %rsp, 104(%rcx)\n"
	".irp n,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\nmovq $1000+\\n, -8*\\n(%rsp)\n.endr\n"
	"mov 0(%rcx), %rbx\nmov 8(%rcx), %rbp\nmov 16(%rcx), %r12\nmov 24(%rcx), %r13\nmov 32(%rcx), %r14\n"
	"mov 40(%rcx), %r15\nmov 48(%rcx), %rdi\nmov 56(%rcx), %rsi\nmov 64(%rcx), %rdx\nmov 72(%rcx), %r10\n"
	"mov 80(%rcx), %r8\nmov 88(%rcx), %r9\n"
	"std\nstc\n"
	".p2align 3\nmov $426, %eax\nprobe_call: syscall\n"
	"1:\n"
	"mov %rcx, stored_rcx(%rip)\n"
	"mov 8(%rsp), %rcx\n" /* `after` */
	"mov %rbx, 0(%rcx)\nmov %rbp, 8(%rcx)\nmov %r12, 16(%rcx)\nmov %r13, 24(%rcx)\nmov %r14, 32(%rcx)\n"
	"mov %r15, 40(%rcx)\nmov %rdi, 48(%rcx)\nmov %rsi, 56(%rcx)\nmov %rdx, 64(%rcx)\nmov %r10, 72(%rcx)\n"
	"mov %r8, 80(%rcx)\nmov %r9, 88(%rcx)\n"
	".irp n,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\nmov -8*\\n(%rsp), %rbx\nmov %rbx, 136+8*(\\n-1)(%rcx)\n.endr\n"
	"mov %rsp, 112(%rcx)\n"
	"pushf\npop %rbx\nmov %rbx, 96(%rcx)\ncld\n"
	"mov stored_rcx(%rip), %rbx\nmov %rbx, 120(%rcx)\n"
	"lea 1b(%rip), %rbx\nmov %rbx, 128(%rcx)\n"
	".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nvmovdqu %ymm\\n, 264+\\n*32(%rcx)\n.endr\n"
	"fstpt 776(%rcx)\nfstpt 786(%rcx)\nfstpt 796(%rcx)\n"
	"stmxcsr 856(%rcx)\nfnstcw 860(%rcx)\n"
	"vzeroupper\n"
	"pop %rdx\npop %rsi\n"
	"pop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n"
	".local stored_rcx\n.comm stored_rcx,8,8\n");

/* Vector registers whose upper halves are unused, as most programs leave them, and, if `wide`, those beyond 15 and the
 * masks. */
struct vectors {
	unsigned char low[16][32], high[16][64];
	uint64_t masks[8];
};
_Static_assert(offsetof(struct vectors, high) == 512 && offsetof(struct vectors, masks) == 1536, "offsets");
long probe_vectors(struct vectors *before, struct vectors *after, int wide);
extern const unsigned char vectors_call[];
__asm__(".text\n.globl probe_vectors\nprobe_vectors:\n"
	"vzeroupper\n"
	".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nmovups \\n*32(%rdi), %xmm\\n\n.endr\n"
	"test %edx, %edx\nje 1f\n"
	".irp n,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\nvmovdqu64 512+(\\n-16)*64(%rdi), %zmm\\n\n.endr\n"
	".irp n,0,1,2,3,4,5,6,7\nkmovq 1536+\\n*8(%rdi), %k\\n\n.endr\n"
	"1: push %rsi\npush %rdx\nmov $-1, %edi\nxor %r10d, %r10d\n"
	".p2align 3\nmov $426, %eax\nvectors_call: syscall\n"
	"pop %rdx\npop %rsi\n"
	".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nvmovdqu %ymm\\n, \\n*32(%rsi)\n.endr\n"
	"test %edx, %edx\nje 2f\n"
	".irp n,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\nvmovdqu64 %zmm\\n, 512+(\\n-16)*64(%rsi)\n.endr\n"
	".irp n,0,1,2,3,4,5,6,7\nkmovq %k\\n, 1536+\\n*8(%rsi)\n.endr\n"
	"2: ret\n");

static void vectors_once(int seed)
{
	static struct vectors before, after;
	const int wide = __builtin_cpu_supports("avx512bw") != 0;

	for (size_t i = 0; i < sizeof(before); i++)
		((unsigned char *)&before)[i] = (unsigned char)(i * 5 + i / 64 + (size_t)seed);
	for (int i = 0; i < 16; i++)
		memset(before.low[i] + 16, 0, 16);
	memset(&after, 0, sizeof(after));
	CHECK(probe_vectors(&before, &after, wide) == -EBADF);
	CHECK(memcmp(&before, &after, wide ? sizeof(before) : sizeof(before.low)) == 0);
}

static int is_close(const unsigned char *x87, long double value)
{
	return memcmp(x87, &value, 10) == 0;
}

static void once(int seed)
{
	static struct state before, after;
	unsigned mxcsr;

	for (size_t i = 0; i < sizeof(before); i++)
		((unsigned char *)&before)[i] = (unsigned char)(i * 7 + (size_t)seed);
	memset(&after, 0, sizeof(after));
	mxcsr = _mm_getcsr();
	CHECK(probe(&before, &after) == -EINVAL); /* the flags are no flags */
	CHECK(memcmp(before.general, after.general, sizeof(after.general)) == 0);
	CHECK(after.flags & 0x400 && after.flags & 1);
	CHECK(after.rsp_after == before.rsp_before);
	CHECK(after.rcx == after.next);
	for (int i = 0; i < 16; i++)
		CHECK(after.red[i] == 1001 + (uint64_t)i);
	CHECK(memcmp(before.vector, after.vector, sizeof(after.vector)) == 0);
	CHECK(is_close(after.x87[1], 1.0L));
	CHECK(after.mxcsr == mxcsr);
	CHECK((after.control & 0xc00) >> 10 == (mxcsr & 0x6000) >> 13);
}

/* As fesetround(3), which would need another library: `mode` as in the x87 control word. */
static void set_rounding(unsigned mode)
{
	uint16_t control;

	__asm__ volatile("fnstcw %0" : "=m"(control));
	control = (uint16_t)((control & ~0xc00u) | mode);
	__asm__ volatile("fldcw %0" : : "m"(control));
	_mm_setcsr((_mm_getcsr() & ~0x6000u) | mode << 3);
}

int main(void)
{
	expect_trap();
	for (int i = 0; i < 500; i++) {
		once(i);
		vectors_once(i);
	}
	expect_patched(probe_call);
	expect_patched(vectors_call);
	set_rounding(0x800); /* upwards */
	for (int i = 0; i < 500; i++)
		once(i);
	puts("done");
	return 0;
}
