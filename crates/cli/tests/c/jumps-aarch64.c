// Makes io_uring_enter(2) by one svc instruction, many times and from several threads, while that becomes a jump. Each call
// may change x0 only. The values of all other registers are compared, with the flags, and the word below the stack pointer.
//
// usage: jumps [svc|b]      (the instruction that must be there in the end)
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SETUP = 425, ENTER = 426, THREADS = 3, CALLS = 3000 };

struct registers {
  uint64_t x[31];
  uint64_t flags, float_status, below;
  uint64_t vectors[64];
};

// Loads `before`, makes the call, and stores the registers that come back.
void call_with(const struct registers *before, struct registers *after);
extern const uint32_t site[];

__asm__(
    ".text\n"
    ".globl call_with, site\n"
    ".type call_with, %function\n"
    "call_with:\n"
    "stp x29, x30, [sp, -192]!\n"
    "stp x19, x20, [sp, 16]\n stp x21, x22, [sp, 32]\n stp x23, x24, [sp, 48]\n stp x25, x26, [sp, 64]\n stp x27, x28, [sp, 80]\n"
    "stp d8, d9, [sp, 96]\n stp d10, d11, [sp, 112]\n stp d12, d13, [sp, 128]\n stp d14, d15, [sp, 144]\n"
    "str x1, [sp, 160]\n"
    "ldp x1, x2, [x0, 248]\n msr nzcv, x1\n msr fpsr, x2\n"
    "ldr x1, [x0, 264]\n str x1, [sp, -8]\n"
    "add x1, x0, 272\n"
    "ldp q0, q1, [x1]\n ldp q2, q3, [x1, 32]\n ldp q4, q5, [x1, 64]\n ldp q6, q7, [x1, 96]\n"
    "ldp q8, q9, [x1, 128]\n ldp q10, q11, [x1, 160]\n ldp q12, q13, [x1, 192]\n ldp q14, q15, [x1, 224]\n"
    "ldp q16, q17, [x1, 256]\n ldp q18, q19, [x1, 288]\n ldp q20, q21, [x1, 320]\n ldp q22, q23, [x1, 352]\n"
    "ldp q24, q25, [x1, 384]\n ldp q26, q27, [x1, 416]\n ldp q28, q29, [x1, 448]\n ldp q30, q31, [x1, 480]\n"
    "ldp x1, x2, [x0, 8]\n ldp x3, x4, [x0, 24]\n ldp x5, x6, [x0, 40]\n ldp x7, x8, [x0, 56]\n ldp x9, x10, [x0, 72]\n"
    "ldp x11, x12, [x0, 88]\n ldp x13, x14, [x0, 104]\n ldp x15, x16, [x0, 120]\n ldp x17, x18, [x0, 136]\n"
    "ldp x19, x20, [x0, 152]\n ldp x21, x22, [x0, 168]\n ldp x23, x24, [x0, 184]\n ldp x25, x26, [x0, 200]\n"
    "ldp x27, x28, [x0, 216]\n ldp x29, x30, [x0, 232]\n ldr x0, [x0]\n"
    "site: svc 0\n"
    "str x1, [sp, 168]\n ldr x1, [sp, 160]\n"
    "str x0, [x1]\n stp x2, x3, [x1, 16]\n stp x4, x5, [x1, 32]\n stp x6, x7, [x1, 48]\n stp x8, x9, [x1, 64]\n"
    "stp x10, x11, [x1, 80]\n stp x12, x13, [x1, 96]\n stp x14, x15, [x1, 112]\n stp x16, x17, [x1, 128]\n"
    "stp x18, x19, [x1, 144]\n stp x20, x21, [x1, 160]\n stp x22, x23, [x1, 176]\n stp x24, x25, [x1, 192]\n"
    "stp x26, x27, [x1, 208]\n stp x28, x29, [x1, 224]\n str x30, [x1, 240]\n"
    "ldr x2, [sp, 168]\n str x2, [x1, 8]\n"
    "mrs x2, nzcv\n mrs x3, fpsr\n stp x2, x3, [x1, 248]\n ldr x2, [sp, -8]\n str x2, [x1, 264]\n"
    "add x1, x1, 272\n"
    "stp q0, q1, [x1]\n stp q2, q3, [x1, 32]\n stp q4, q5, [x1, 64]\n stp q6, q7, [x1, 96]\n"
    "stp q8, q9, [x1, 128]\n stp q10, q11, [x1, 160]\n stp q12, q13, [x1, 192]\n stp q14, q15, [x1, 224]\n"
    "stp q16, q17, [x1, 256]\n stp q18, q19, [x1, 288]\n stp q20, q21, [x1, 320]\n stp q22, q23, [x1, 352]\n"
    "stp q24, q25, [x1, 384]\n stp q26, q27, [x1, 416]\n stp q28, q29, [x1, 448]\n stp q30, q31, [x1, 480]\n"
    "ldp d14, d15, [sp, 144]\n ldp d12, d13, [sp, 128]\n ldp d10, d11, [sp, 112]\n ldp d8, d9, [sp, 96]\n"
    "ldp x27, x28, [sp, 80]\n ldp x25, x26, [sp, 64]\n ldp x23, x24, [sp, 48]\n ldp x21, x22, [sp, 32]\n ldp x19, x20, [sp, 16]\n"
    "ldp x29, x30, [sp], 192\n"
    "ret\n");

static void fail(const char *what, long value) {
  fprintf(stderr, "%s: %ld\n", what, value);
  exit(1);
}

static int is_jump(void) { return __atomic_load_n(site, __ATOMIC_RELAXED) >> 26 == 5; }

// A call with other values in all registers each time. `below`: the word below the stack pointer may not change. It may if the
// call traps, since the signal's frame is there, or if another signal comes.
static long call(long number, const long arguments[6], int below) {
  static uint64_t seed = 1;
  struct registers before, after;
  uint64_t value = __atomic_add_fetch(&seed, 1, __ATOMIC_RELAXED) * 0x9e3779b97f4a7c15;
  for (size_t at = 0; at < sizeof before / 8; at++) ((uint64_t *)&before)[at] = value += 0x123456789abcdef;
  for (int at = 0; at < 6; at++) before.x[at] = arguments[at];
  before.x[8] = number;
  before.flags &= 0xf0000000;
  before.float_status &= 0x9f;
  call_with(&before, &after);
  long answer = after.x[0];
  after.x[0] = before.x[0];
  if (!below) after.below = before.below;
  for (size_t at = 0; at < sizeof before / 8; at++)
    if (((uint64_t *)&before)[at] != ((uint64_t *)&after)[at]) fail("a register has changed", at);
  return answer;
}

struct ring {
  int fd;
  unsigned *sq_tail, *cq_head, *cq_tail, mask;
  struct io_uring_sqe *sqes;
};

static void make(struct ring *ring) {
  struct io_uring_params params = {};
  ring->fd = call(SETUP, (long[6]){8, (long)&params}, 0);
  if (ring->fd < 0) fail("io_uring_setup", ring->fd);
  size_t bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
  if (bytes < params.sq_off.array + 32) bytes = params.sq_off.array + 32;
  char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
  ring->sqes = mmap(0, 8 * sizeof *ring->sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQES);
  if (at == MAP_FAILED || ring->sqes == MAP_FAILED) fail("mmap", errno);
  ring->sq_tail = (unsigned *)(at + params.sq_off.tail);
  ring->cq_head = (unsigned *)(at + params.cq_off.head);
  ring->cq_tail = (unsigned *)(at + params.cq_off.tail);
  ring->mask = 7;
  for (unsigned index = 0; index < 8; index++) ((unsigned *)(at + params.sq_off.array))[index] = index;
}

static void nop(struct ring *ring, int below) {
  unsigned tail = *ring->sq_tail;
  ring->sqes[tail & ring->mask] = (struct io_uring_sqe){.opcode = IORING_OP_NOP};
  __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
  long answer = call(ENTER, (long[6]){ring->fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0}, below);
  if (answer != 1) fail("io_uring_enter", answer);
  unsigned head = *ring->cq_head;
  if (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) fail("no completion", head);
  __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
}

static void *work(void *unused) {
  (void)unused;
  struct ring ring;
  make(&ring);
  for (int count = 0; count < CALLS; count++) {
    nop(&ring, is_jump());
    // Another call by the same instruction, which goes to the kernel.
    if (call(172 /* getpid */, (long[6]){0}, 1) != getpid()) fail("getpid", count);
  }
  return 0;
}

static struct ring of_handler;
static volatile int handled;

static void handle(int signal) {
  (void)signal;
  nop(&of_handler, 0);
  handled++;
}

int main(int count, char **arguments) {
  sigset_t alarms;
  sigemptyset(&alarms);
  sigaddset(&alarms, SIGALRM);
  sigprocmask(SIG_BLOCK, &alarms, 0);
  pthread_t threads[THREADS];
  for (int at = 0; at < THREADS; at++) pthread_create(&threads[at], 0, work, 0);
  struct ring ring;
  make(&ring);
  make(&of_handler);
  signal(SIGALRM, handle);
  struct itimerval often = {{0, 2000}, {0, 2000}}, never = {};
  setitimer(ITIMER_REAL, &often, 0);
  sigprocmask(SIG_UNBLOCK, &alarms, 0);
  for (int done = 0; done < CALLS || handled < 20; done++) nop(&ring, 0);
  setitimer(ITIMER_REAL, &never, 0);
  for (int at = 0; at < THREADS; at++) pthread_join(threads[at], 0);
  pid_t child = fork();
  if (child == 0) {
    struct ring own;
    make(&own);
    for (int done = 0; done < CALLS; done++) nop(&own, is_jump());
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  printf("child %d\n", status);
  if (count > 1 && is_jump() != !strcmp(arguments[1], "b")) fail("the instruction is", *site);
  return 0;
}
