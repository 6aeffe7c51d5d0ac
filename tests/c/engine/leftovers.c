/* A program makes, uses and ends 1,000 rings. A second later it has exactly the descriptors and threads that it had
 * before. It has the same mappings as after the first round, in which libraries set up caches (stacks in libc, one
 * chunk of an allocator). argv[1] names the way in which the rings end. */
#include "engine.h"

#include "holdings.h"
#include "made.h"


#define RINGS 1000
/* Resources that all rounds together may leave beyond the first. libc caches stacks, two mappings each, for as many
 * threads as happened to run at once. If each ring, or each ring of one kind, left something, there would be more. */
#define FEW 40
#define FEW_KIB 16384
/* A worker without work ends after 5 s if there are still rings. This time is shorter than that, and long enough on a
 * busy machine. */
#define SOON_MS 4000
/* The kernel's own pollers and workers may take longer to end on a busy machine. */
#define NATIVELY_MS 10000

static int as_before(struct holdings before, struct holdings after_first, struct holdings now)
{
	return now.descriptors == before.descriptors && now.threads == before.threads &&
	       now.contexts == before.contexts && now.mappings <= after_first.mappings + FEW && now.mapped_kib <= after_first.mapped_kib + FEW_KIB;
}

static struct holdings wait_until_as_before(struct holdings before, struct holdings after_first)
{
	int most_ms = getenv("ANYRING_BACKEND") ? SOON_MS : NATIVELY_MS;
	struct holdings now = look();

	for (int ms = 0; ms < most_ms && !as_before(before, after_first, now); ms += 10, now = look())
		usleep(10000);
	return now;
}

/* Makes the program's own empty directories in place of those that hold what outlives processes. Returns "", or the
 * reason why that is impossible. */
static const char *isolate(void)
{
	if (!own_mounts())
		return "no mount namespace can be made";
	if (mount("tmpfs", "/tmp", "tmpfs", 0, NULL) != 0 || mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL) != 0)
		return "no tmpfs can be mounted";
	return "";
}

static void leaves_nothing(void (*end)(struct made *), int rings)
{
	struct holdings before, after_first, after;
	struct made made;

	open_files();
	before = look();
	for (int round = 0; round < 40; round++) { /* each kind of ring once */
		make(&made, round);
		end(&made);
	}
	after_first = before;
	after_first.mappings = after_first.mapped_kib = 1 << 30;
	after_first = wait_until_as_before(before, after_first);
	for (int round = 0; round < rings; round++) {
		make(&made, round);
		end(&made);
	}
	after = wait_until_as_before(before, after_first);
	if (!as_before(before, after_first, after))
		fprintf(stderr, "descriptors %d %d %d, threads %d %d %d, mappings %d %d %d, KiB %ld %ld %ld\n",
			before.descriptors, after_first.descriptors, after.descriptors, before.threads,
			after_first.threads, after.threads, before.mappings, after_first.mappings, after.mappings,
			before.mapped_kib, after_first.mapped_kib, after.mapped_kib);
	CHECK(as_before(before, after_first, after));
}

static void exit_leaves_nothing(void)
{
	leaves_nothing(by_exit, RINGS);
}

static void close_leaves_nothing(void)
{
	leaves_nothing(by_close, RINGS);
}

static void close_after_unmapping_leaves_nothing(void)
{
	leaves_nothing(by_close_after_unmapping, RINGS);
}

static void dropping_duplicates_leaves_nothing(void)
{
	leaves_nothing(by_dropping_duplicates, RINGS);
}

static void replacing_leaves_nothing(void)
{
	leaves_nothing(by_replacing, RINGS);
}

static void closing_a_range_leaves_nothing(void)
{
	leaves_nothing(by_closing_a_range, RINGS);
}

static void exit_of_a_thread_leaves_nothing(void)
{
	leaves_nothing(by_exit_of_a_thread, RINGS);
}

static void a_killed_child_leaves_nothing(void)
{
	leaves_nothing(with_a_killed_child, RINGS / 10);
}

/* Checks that no named file stays in any of the usual places. */
static void no_files_are_left(void)
{
	const char *reason = isolate();

	if (*reason)
		skip(reason);
	leaves_nothing(by_exit, RINGS / 10);
	leaves_nothing(with_a_killed_child, 10);
	CHECK(entries_of("/tmp") == 0);
	CHECK(entries_of("/dev/shm") == 0);
}

CASES({"exit", exit_leaves_nothing},
      {"close", close_leaves_nothing},
      {"close-after-unmapping", close_after_unmapping_leaves_nothing},
      {"duplicates", dropping_duplicates_leaves_nothing},
      {"replaced", replacing_leaves_nothing},
      {"range", closing_a_range_leaves_nothing},
      {"thread", exit_of_a_thread_leaves_nothing},
      {"killed-child", a_killed_child_leaves_nothing},
      {"files", no_files_are_left})
