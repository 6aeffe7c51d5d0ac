//! Engine threads do not count as the program's: when the program's last thread leaves, the process ends, as it would
//! without them.
//!
//! The kernel's io_uring has workers that belong to the kernel, so they never keep a process alive. If a program's
//! last thread calls pthread_exit(3) or returns, libc calls exit(0). If it calls exit(2), the process ends with that
//! status. glibc counts the threads that it started, in a variable that it shares with its debugging library. The
//! engine subtracts its own threads from that variable. A call of exit(2) by libc's `syscall()` is reported to
//! [`exiting`].

use crate::mutation::{mutated, Mutation};
use crate::os::{self, calls, is_filtered, syscall, Os, Sys};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use rustix::fs::{Mode, OFlags};

/// Number of engine threads that run; never too high. Relaxed, like all atomics of this module: they are counts,
/// which order nothing.
static RUNNING: AtomicU32 = AtomicU32::new(0);
/// Number of engine threads that were made, or are about to be, and do not run yet. Such a thread still has its
/// maker's name.
static STARTING: AtomicU32 = AtomicU32::new(0);
/// Address of glibc's count, or `UNKNOWN` or `MISSING`.
static LIBC_COUNT: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = 0;
const MISSING: usize = 1;
/// The process's first thread has left before others, by an exit(2) that was reported to [`exiting`]. libc still
/// counts it.
static LEADER_EXITED: AtomicBool = AtomicBool::new(false);
/// libc's count when the fork was noticed that made this process; 0 before any. After _Fork(3) and clone(2) libc still
/// counts the parent's threads.
static LIBC_COUNT_AT_FORK: AtomicU32 = AtomicU32::new(0);
/// A number of threads that /proc/sys/kernel/threads-max never allows, so no count of threads is that large.
const MOST_THREADS: u32 = 1 << 24;

/// Finds glibc's count, before the process's first engine thread. Another libc, or a glibc that keeps the count
/// elsewhere, counts engine threads as the program's.
pub fn prepare() {
    if LIBC_COUNT.load(Ordering::Relaxed) != UNKNOWN {
        return;
    }
    let found = super::symbol::of_libc(c"__nptl_nthreads").map(|address| address as *const AtomicU32);
    let is_count = found.is_some_and(|found| {
        // SAFETY: the variable lives as long as libc, and libc changes it atomically.
        found.is_aligned() && (1..MOST_THREADS).contains(&unsafe { &*found }.load(Ordering::Relaxed))
    });
    LIBC_COUNT.store(found.filter(|_| is_count).map_or(MISSING, |found| found as usize), Ordering::Relaxed);
}

fn libc_count() -> Option<&'static AtomicU32> {
    if mutated(Mutation::ThreadsOfOursCount) {
        return None;
    }
    match LIBC_COUNT.load(Ordering::Relaxed) {
        UNKNOWN | MISSING => None,
        // SAFETY: as in `prepare`, which has stored it.
        address => Some(unsafe { &*(address as *const AtomicU32) }),
    }
}

/// True if libc counts several program threads. False before [`prepare`], and if libc's count is unknown.
pub fn program_has_several() -> bool {
    libc_count().is_some_and(|count| count.load(Ordering::Relaxed) > 1)
}

/// True if the program has threads other than the process's first one, which may have left. For engine threads.
pub fn is_one_of_several() -> bool {
    threads().map_or_else(program_has_several, |threads| threads != RUNNING.load(Ordering::Relaxed) + 1)
}

/// Counts an engine thread that is about to be started.
pub fn starts() {
    STARTING.fetch_add(1, Ordering::Relaxed);
}

/// Undoes [`starts`], since the thread could not be started.
pub fn failed() {
    STARTING.fetch_sub(1, Ordering::Relaxed);
}

/// Subtracts an engine thread that was started from libc's count.
pub fn started() {
    // This was the last thread in libc's count if another engine thread made it, and the program's last thread ended
    // before this line. That thread did not end the process, since libc counted the new engine thread as one of the
    // program's.
    if libc_count().is_some_and(|count| count.fetch_sub(1, Ordering::Relaxed) == 1) {
        // SAFETY: the program's last thread would have called the same.
        unsafe { libc::exit(0) };
    }
}

/// Counts the calling thread, an engine thread, as running.
pub fn began() {
    RUNNING.fetch_add(1, Ordering::Relaxed);
    STARTING.fetch_sub(1, Ordering::Relaxed);
}

/// Records that the calling thread, an engine thread, is about to end.
pub fn ends() {
    if RUNNING.load(Ordering::Relaxed) == 1 && threads() == Some(2) && leader_has_left() {
        // The program's last thread has left by an exit(2) that was not reported to `exiting`.
        if let Some(status) = status_of_leader().filter(|status| *status != 0) {
            end_process(status);
        }
    }
    RUNNING.fetch_sub(1, Ordering::Relaxed);
    // libc believes that the calling thread is one of those that it counted.
    if let Some(count) = libc_count() {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Resets the counts in a forked child, which has no engine thread.
pub fn reset_after_fork() {
    RUNNING.store(0, Ordering::Relaxed);
    STARTING.store(0, Ordering::Relaxed);
    LEADER_EXITED.store(false, Ordering::Relaxed);
    let count = libc_count().map_or(0, |count| count.load(Ordering::Relaxed));
    LIBC_COUNT_AT_FORK.store(count, Ordering::Relaxed);
}

/// True if libc counts several program threads, but all except the caller may be the parent's. One of those may have
/// held a lock of libc's. Without /proc and below a filter, that is so until libc counts another thread.
pub fn may_count_the_parents() -> bool {
    let is_as_forked = |count: &AtomicU32| {
        let at_fork = LIBC_COUNT_AT_FORK.load(Ordering::Relaxed);
        at_fork != 0 && !are_there() && count.load(Ordering::Relaxed) == at_fork
    };
    program_has_several() && (is_alone() || threads().is_none() && libc_count().is_some_and(is_as_forked))
}

/// Called before a program thread calls exit(2). Does not return if that thread is the program's last.
pub fn exiting(status: i32) {
    let ours = RUNNING.load(Ordering::Relaxed);
    if ours == 0 {
        return;
    }
    let is_leader = Sys::thread_id() == Sys::process_id();
    let alone = match threads() {
        Some(threads) if is_leader => threads == ours + 1,
        Some(threads) => threads == ours + 2 && leader_has_left(),
        None => libc_counts_one() && (is_leader || leader_has_left()),
    };
    if alone {
        end_process(status);
    }
    if is_leader {
        LEADER_EXITED.store(true, Ordering::Relaxed);
    }
}

/// True if libc counts one program thread that has not left. Used without /proc. libc also counts those that left by
/// exit(2).
fn libc_counts_one() -> bool {
    let exited = u32::from(LEADER_EXITED.load(Ordering::Relaxed));
    libc_count().is_some_and(|count| count.load(Ordering::Relaxed) == 1 + exited)
}

/// True if the process has engine threads.
pub fn are_there() -> bool {
    RUNNING.load(Ordering::Relaxed) + STARTING.load(Ordering::Relaxed) != 0
}

/// True if the calling thread is the program's only thread. False if that cannot be determined.
pub fn is_only_one_of_program() -> bool {
    loop {
        let starting = STARTING.load(Ordering::Relaxed);
        let mut unnamed = 0;
        if others_without_our_names(|_| unnamed += 1).is_none() {
            return is_alone();
        }
        if starting == STARTING.load(Ordering::Relaxed) {
            return unnamed <= starting;
        }
    }
}

/// Returns a program thread to which the calling engine thread can pass on a signal that the kernel delivered to it.
/// It is the thread that the kernel prefers, if that thread still exists.
pub fn one_of_program() -> Option<u32> {
    if !leader_has_left() {
        return Some(Sys::process_id());
    }
    let mut other = None;
    others_without_our_names(|thread| other = other.or(Some(thread)));
    other
}

/// Calls `see` with the other threads of the process whose name is not one of the engine's. Engine threads keep their
/// names until they end.
fn others_without_our_names(mut see: impl FnMut(u32)) -> Option<()> {
    let (me, flags) = (Sys::thread_id(), OFlags::RDONLY | OFlags::CLOEXEC);
    let open = |path: &CStr| calls::open(path, flags, Mode::empty());
    let tasks = open(c"/proc/self/task").ok()?;
    let mut space = Vec::with_capacity(2048);
    let mut entries = calls::directory(&tasks, space.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let thread = entry.ok()?.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok());
        let Some(thread) = thread.filter(|thread| *thread != me) else { continue }; // "." and ".."
        let path = std::ffi::CString::new(format!("/proc/self/task/{thread}/comm")).ok()?;
        let Ok(file) = open(&path) else { continue }; // the thread has ended
        let mut name = [0u8; 17];
        let bytes = calls::read(&file, &mut name).unwrap_or(0);
        if !super::NAMES.iter().any(|ours| name[..bytes].trim_ascii_end() == ours.to_bytes()) {
            see(thread);
        }
    }
    Some(())
}

fn end_process(status: i32) {
    syscall(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]);
}

/// Returns the number of threads of the process, including a leader that has left before others. The link count of
/// the folder /proc/self/task is that number plus two. Reading it takes no descriptor, whose number the program might
/// expect.
#[allow(clippy::useless_conversion)] // a u64 on x86-64, a u32 on aarch64
pub(super) fn threads() -> Option<u32> {
    let links = calls::stat(c"/proc/self/task").ok()?.st_nlink;
    u32::try_from(links).ok()?.checked_sub(2)
}

/// True if the process has only the calling thread; false if that is unknown, as without /proc.
pub fn is_surely_alone() -> bool {
    threads() == Some(1)
}

/// True if the process has only the calling thread; false if that is unknown. Without /proc, this calls unshare(2):
/// the kernel lets only a process with one thread unshare its threads. A seccomp filter may kill for that call.
pub fn is_alone() -> bool {
    let parts = || !is_filtered() && syscall(libc::SYS_unshare, [libc::CLONE_THREAD as usize, 0, 0, 0, 0, 0]) == 0;
    threads().map_or_else(parts, |threads| threads == 1)
}

/// True if the process's first thread has left. Then the kernel shows no working directory for it. Without /proc, the
/// test is that its memory cannot be read.
pub fn leader_has_left() -> bool {
    let mut target = [0u8; 1];
    let (path, room) = (c"/proc/self/cwd".as_ptr() as usize, target.as_mut_ptr() as usize);
    let link = syscall(libc::SYS_readlinkat, [libc::AT_FDCWD as usize, path, room, target.len(), 0, 0]);
    link == -(libc::ENOENT as isize)
        && (threads().is_some() || os::kernel_copies() && os::has_memory(Sys::process_id()) == Some(false))
}

/// Returns the leader's exit status, if it left by exit(2): the last field of proc_pid_stat(5), in the format of
/// wait(2). Opening the file takes a descriptor number for a moment, but no program thread is left that could expect
/// that number.
fn status_of_leader() -> Option<i32> {
    let line = os::standard::on_any_thread(|| calls::read_text("/proc/self/stat")).ok()?;
    let status: i32 = line.rsplit(' ').next()?.trim().parse().ok()?;
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_seen_as_it_is() {
        let before = threads().expect("/proc");
        assert!(before >= 1);
        std::thread::scope(|scope| {
            let (tell, ended) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || ended.recv());
            // Other tests' threads come and go.
            assert!((0..1000).any(|_| threads() > Some(1)));
            drop(tell);
        });
        assert!(!leader_has_left());
        assert_eq!(status_of_leader(), Some(0));
        prepare();
        let counted = libc_count().expect("glibc's count").load(Ordering::Relaxed);
        assert!((1..MOST_THREADS).contains(&counted));
    }
}
