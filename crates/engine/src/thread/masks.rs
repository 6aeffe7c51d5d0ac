//! The signals that other threads of the process really block, according to /proc/self/task.

use crate::os::calls;
use crate::os::{self, Os, Sys};
use rustix::fs::{Mode, OFlags};

/// Number of checks before a thread counts as one that blocks the signal. libc blocks all signals for a moment when
/// it starts a thread, forks or cancels. A thread that blocks for longer does so on purpose.
const LOOKS: u32 = 20;
const PAUSE_NS: u64 = 1_000_000;

/// True if another thread of this process blocks `signal`. If /proc cannot be read, true if there may be other
/// threads.
pub fn another_blocks(signal: i32) -> bool {
    for look in 0..LOOKS {
        if look != 0 {
            os::pause(PAUSE_NS);
        }
        match super::count::threads()
            .and_then(|threads| if threads == 1 { Some(false) } else { blocked_now(signal) })
        {
            None => return super::count::program_has_several(),
            Some(false) => return false,
            Some(true) => {}
        }
    }
    true
}

/// Checks all threads once. The descriptor numbers that this takes are free for the program again when it returns.
fn blocked_now(signal: i32) -> Option<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = calls::open(c"/proc/self/task", flags, Mode::empty()).ok()?;
    let mut room = Vec::with_capacity(2048);
    let mut entries = calls::directory(&folder, room.spare_capacity_mut());
    let me = Sys::thread_id();
    while let Some(Ok(entry)) = entries.next() {
        let thread = entry.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok());
        let mask = thread.filter(|thread| *thread != me).and_then(mask_of);
        if mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0) {
            return Some(true);
        }
    }
    Some(false)
}

/// Reads the line `SigBlk` of proc_pid_status(5). `None` for a thread that has ended.
fn mask_of(thread: u32) -> Option<u64> {
    let path = format!("/proc/self/task/{thread}/status");
    let file = calls::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = vec![0u8; 4096];
    let length = calls::read(&file, &mut text).ok()?;
    let text = core::str::from_utf8(&text[..length]).ok()?;
    let (_, rest) = text.split_once("\nSigBlk:\t")?;
    u64::from_str_radix(rest.get(..16)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::uninterrupted;
    use std::sync::Barrier;

    #[test]
    fn a_blocked_signal_of_another_thread_is_seen() {
        let barrier = Barrier::new(2);
        assert!(!another_blocks(libc::SIGSYS));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                uninterrupted(|| {
                    barrier.wait();
                    assert!(!another_blocks(libc::SIGSYS));
                    barrier.wait();
                });
                barrier.wait();
            });
            barrier.wait();
            assert!(another_blocks(libc::SIGSYS));
            barrier.wait();
            barrier.wait();
        });
    }
}
