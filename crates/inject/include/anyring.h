/*
 * anyring, linked into a program: `-lanyring` before `-luring`. The program's rings are then served where the kernel refuses
 * io_uring, without a call of these functions. They say whether that is so, and why not.
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
 *  0  the kernel, and anyring the rings that it refuses
 *  1  anyring
 * <0  nobody, and the errno is why: -EEXIST where liburing, or another library with a syscall(), comes before anyring on the
 *     linker's command line; else what the kernel answered, or what anyring lacks here (anyring doctor says more)
 */
int anyring_install(void);

#ifdef __cplusplus
}
#endif

#endif
