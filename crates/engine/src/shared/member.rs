//! Membership: how a process joins a ring, how its death is noticed, and how its requests and counts are taken over.
//!
//! Every process that uses a ring has a number. It holds a POSIX record lock on one byte, at the offset of that
//! number, in the engine's end of the ring's descriptor (`EngineEnds::kicked`). The kernel releases such a lock when
//! the process ends in any way, before anybody has reaped it. A forked child does not inherit the lock. So a test of
//! the lock shows exactly whether its owner lives.
//!
//! A process id would not do: it may be reused, belong to a zombie, or mean nothing in another pid namespace. Closing
//! any descriptor of the engine's end also releases the lock, so that end is never duplicated.
//!
//! The process that makes a ring is member 0. A forked child joins at its first call on the ring. Until the first
//! child joins, the maker takes SQEs and posts without compare-and-swap. That child sets `shared`. Unless the maker has
//! fences (`shared::fences`), it forces a memory barrier on every thread of the machine. It then waits for a submission
//! or post that began before.
//!
//! A process that notices a death takes over the dead member's requests in flight and its part of the waiters'
//! counts. A process that waits on the ring checks every [`CHECK_NS`]. A process that joins checks the number that it
//! gets. Requests of a dead member end with -ECANCELED, as the kernel ends those of a task that exits.

use crate::descriptors::ends::EngineEnds;
use crate::descriptors::LOCKS_FROM;
use crate::mutation::{mutated, Mutation};
use crate::os::{check, syscall, Os, Sys};
use crate::shared::control::{Control, MEMBERS};
use crate::shared::fences;
use crate::Errno;
use core::sync::atomic::{fence, AtomicU32, Ordering};

/// The longest sleep, in nanoseconds, of a thread that waits on a shared ring before it checks for dead members.
pub const CHECK_NS: u64 = 100_000_000;

/// The number of the process that made the ring.
pub(crate) const MAKER: u32 = 0;

/// The value of `Header::shared` once no process submits or posts without compare-and-swap any more.
pub(crate) const SHARED: u32 = 2;

/// Number of readiness bytes that may accumulate in the engine's end before they are taken out. It is so small that
/// the program's end stays writable.
pub(crate) const KICKS: u32 = 32;

/// Calls fcntl(2) with `operation` on the record lock of member `number`. `kind` is `F_WRLCK` or `F_UNLCK`.
pub(crate) fn record_lock(file: i32, operation: i32, kind: i32, number: u32) -> Result<libc::flock, Errno> {
    // SAFETY: all-zero bytes are a value of this C struct of integers.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = (LOCKS_FROM + u64::from(number)) as _;
    lock.l_len = 1;
    let args = [file as usize, operation as usize, &raw mut lock as usize, 0, 0, 0];
    check(syscall(libc::SYS_fcntl, args)).map(|_| lock)
}

impl Control {
    /// True if the process with member number `number` lives, or if the kernel cannot tell. The answer is wrong for
    /// the caller's own number, since its own lock does not conflict.
    pub fn lives(&self, number: u32) -> bool {
        if self.header().locks_are_blind.load(Ordering::Relaxed) != 0 {
            return true;
        }
        match record_lock(self.lock_file, libc::F_GETLK, libc::F_WRLCK, number) {
            Ok(lock) => lock.l_type != libc::F_UNLCK as _,
            Err(_) => true,
        }
    }

    /// Makes the calling process, which has just made the ring, its first member. Locks are held on `lock_file`.
    /// Without a lock file, no member is ever considered dead.
    pub fn found(&mut self, lock_file: i32) {
        self.lock_file = lock_file;
        let _ = record_lock(self.lock_file, libc::F_SETLK, libc::F_WRLCK, MAKER);
        self.header().members_end.store(MAKER + 1, Ordering::Relaxed);
        self.header().maker_depth.store(fences::depth(), Ordering::Relaxed);
        self.member(MAKER).joined.store(1, Ordering::Relaxed);
        self.member = MAKER;
    }

    /// Claims the lowest number whose lock is free.
    pub(crate) fn claim_number(&mut self) -> Result<u32, Errno> {
        for number in 0..MEMBERS {
            let joined = self.member(number).joined.load(Ordering::Relaxed) != 0;
            // A number in use is tested before its lock is tried. Taking the lock of a live member fails anyway, but
            // a failed F_SETLK allocates, and many processes may share a ring.
            if joined && self.lives(number) {
                continue;
            }
            if record_lock(self.lock_file, libc::F_SETLK, libc::F_WRLCK, number).is_ok() {
                self.header().members_end.fetch_max(number + 1, Ordering::Relaxed);
                return Ok(number);
            }
        }
        Err(Errno::NOMEM)
    }

    /// Makes every process take SQEs and post by compare-and-swap from now on. False if all did so already.
    pub(crate) fn begin_sharing(&self) -> bool {
        let header = self.header();
        if header.shared.load(Ordering::Acquire) == SHARED {
            return false; // partner: the Release store below
        }
        // SeqCst, with the maker's fence or the barrier below: a process that does not read this store has set its mark in
        // `submitter` or `poster` by then.
        header.shared.fetch_max(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        const GLOBAL: usize = 1; // MEMBARRIER_CMD_GLOBAL
        let is_fenced = fences::are_made_by(header.maker_depth.load(Ordering::Relaxed));
        if !is_fenced && check(syscall(libc::SYS_membarrier, [GLOBAL, 0, 0, 0, 0, 0])).is_err() {
            // The call is unavailable. Wait a millisecond, which is long for a store buffer.
            let _ = Sys::futex_wait(&AtomicU32::new(0), 0, Some(1_000_000));
        }
        loop {
            let submitter = header.submitter.load(Ordering::Acquire); // partner: the Release store of 0 after a submission
            if submitter == 0 || !self.lives(submitter - 1) {
                break;
            }
            let _ = Sys::futex_wait(&header.submitter, submitter, Some(50_000));
        }
        self.wait_for_poster();
        header.shared.store(SHARED, Ordering::Release);
        true
    }

    /// Wakes epoll waits of other processes on this ring. `program_end` is a number of the ring's descriptor. `ends` are
    /// the engine's; each poll set watches them for kicks.
    pub(crate) fn kick_others(&self, program_end: i32, ends: EngineEnds) {
        if mutated(Mutation::OtherProcessesSleepOn) {
            return;
        }
        let is_full = self.header().kicks.fetch_add(1, Ordering::Relaxed) % KICKS == KICKS - 1;
        ends.kick(program_end, is_full);
    }
}
