//! The workloads' programs.

pub mod echo;
pub mod files;
pub mod idle;
pub mod messages;
pub mod nop;
pub mod paired;
pub mod pipes;
pub mod polls;
pub mod timers;
pub mod tokens;
pub mod writes;

/// Counts the threads of the kernel's io-wq in this process. The kernel keeps a thread for some seconds after its last
/// request.
fn io_wq_threads() -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().map(name).filter(|name| name.starts_with("iou-wrk")).count() as u64
}

/// Returns CLOCK_MONOTONIC in ns.
#[inline]
fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the user and system time of this process so far, in us.
fn cpu_us() -> f64 {
    // SAFETY: numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is writable; the call cannot fail for RUSAGE_SELF.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}
