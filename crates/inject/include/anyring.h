/*
 * anyring, linked into a program: `-lanyring` before `-luring`. The program's rings are then served where the kernel refuses
 * io_uring. No call of these functions is needed. They report whether the rings are served, and why not.
 */
#ifndef ANYRING_H
#define ANYRING_H

#ifdef __cplusplus
extern "C" {
#endif

/* The release: "0.1.0". */
const char *anyring_version(void);

/*
 * Decides who serves the process's rings, by making one and closing it. Any thread may call it, any number of times.
 *
 *  0  the kernel; anyring serves the rings that it refuses
 *  1  anyring
 * <0  nobody, and the errno says why: -EEXIST if liburing, or another library with a syscall(), comes before anyring on the
 *     linker's command line; otherwise the kernel's error, or that of a call that anyring needs (see anyring doctor)
 */
int anyring_install(void);

#ifdef __cplusplus
}
#endif

#endif
