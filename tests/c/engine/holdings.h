/* Counts the resources of a process that a ring might leave behind, as /proc/self shows them. */
#include <dirent.h>
#include <stdio.h>

struct holdings {
	int descriptors, threads, mappings;
	long mapped_kib;
	/* Number of contexts of the kernel's AIO, counted by their completion rings. */
	int contexts;
};

/* Returns the number of entries of a directory, without `.` and `..`. */
static inline int entries_of(const char *directory)
{
	DIR *entries = opendir(directory);
	struct dirent *entry;
	int count = 0;

	CHECK(entries);
	while ((entry = readdir(entries)))
		count += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
	closedir(entries);
	return count;
}

/* Counts only memory that the process itself has mapped. The pages of the kernel's rings do not count: the kernel frees
 * them later, and they are none of the process's own mappings. */
static inline struct holdings look(void)
{
	struct holdings now = {entries_of("/proc/self/fd"), entries_of("/proc/self/task"), 0, 0, 0};
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	char line[512];

	CHECK(maps);
	while (fgets(line, sizeof(line), maps)) {
		CHECK(sscanf(line, "%lx-%lx", &from, &to) == 2);
		now.mappings++;
		now.contexts += strstr(line, "/[aio]") != NULL;
		now.mapped_kib += (to - from) / 1024;
	}
	fclose(maps);
	return now;
}
