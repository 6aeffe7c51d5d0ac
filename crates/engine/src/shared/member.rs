//! Which processes use a ring: how one joins, how its death is noticed, and what becomes of what it leaves.
//!
//! Every process that uses a ring has a number and holds a POSIX record lock on the byte of that number of the engine's end of
//! the ring's descriptor. The kernel gives such a lock up when the process ends, however it ends and before anybody has reaped
//! it, and a forked child does not inherit it, so asking for the lock tells exactly whether its owner lives: a process id
//! may be reused, belong to a zombie or mean nothing in another pid namespace. Closing any descriptor of that end gives the lock
//! up, too, so nothing duplicates it.
//!
//! The process that makes a ring is member 0. A forked child joins at its first entry. The first child that joins also
//! ends the time in which the maker may take SQEs and post without compare-and-swap: `shared` is set, a memory barrier is
//! forced on every thread of the machine, and a submission or post that began before is waited for.
//!
//! What a dead member leaves (requests in flight, its part of the waiters' counts) is taken over by whoever finds out: a
//! process that waits on the ring looks every [`LOOK_NS`], one that joins looks at the number that it gets. Requests of the
//! dead end with -ECANCELED, as the kernel ends those of a task that exits.

use crate::descriptors::LOCKS_FROM;
use crate::mutation::{mutated, Mutation};
use crate::os::{check, syscall, Os, Sys};
use crate::shared::control::{Control, MEMBERS};
use crate::Errno;
use core::sync::atomic::{AtomicU32, Ordering};

/// How long a thread that waits on a shared ring sleeps at most before it looks for dead members, in nanoseconds.
pub const LOOK_NS: u64 = 100_000_000;

/// The number of the process that made the ring.
pub(crate) const MAKER: u32 = 0;

/// In `Header::shared`: nobody submits or posts without compare-and-swap any more.
pub(crate) const SHARED: u32 = 2;

/// How many readiness bytes may pile up in the engine's end before they are taken out: few enough for the program's end
/// to stay writable.
pub(crate) const KICKS: u32 = 32;

/// fcntl(2) on the record lock of member `number`: `kind` is `F_WRLCK` or `F_UNLCK`.
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
    /// Whether the process with member number `number` lives. Not to be asked about oneself: one's own lock does not
    /// conflict. Where the kernel does not tell, it does.
    pub fn lives(&self, number: u32) -> bool {
        if self.header().locks_are_blind.load(Ordering::Relaxed) != 0 {
            return true;
        }
        match record_lock(self.lock_file, libc::F_GETLK, libc::F_WRLCK, number) {
            Ok(lock) => lock.l_type != libc::F_UNLCK as _,
            Err(_) => true,
        }
    }

    /// Makes the calling process, which has just made the ring, its first member. Locks are held on `lock_file`; where there is
    /// none, no member is ever taken for dead.
    pub fn found(&mut self, lock_file: i32) {
        self.lock_file = lock_file;
        let _ = record_lock(self.lock_file, libc::F_SETLK, libc::F_WRLCK, MAKER);
        self.header().members_end.store(MAKER + 1, Ordering::Relaxed);
        self.member(MAKER).joined.store(1, Ordering::Relaxed);
        self.member = MAKER;
    }

    /// Takes a number whose lock nobody has, the lowest that can be had.
    pub(crate) fn take_number(&mut self) -> Result<u32, Errno> {
        for number in 0..MEMBERS {
            let joined = self.member(number).joined.load(Ordering::Relaxed) != 0;
            // A number that is taken is asked about first: taking the lock of a live member fails anyway, but this is the
            // usual case when many processes share a ring, and a failed F_SETLK allocates.
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

    /// From now on every process takes SQEs and posts by compare-and-swap. False when it was so already.
    pub(crate) fn begin_sharing(&self) -> bool {
        let header = self.header();
        if header.shared.load(Ordering::Acquire) == SHARED {
            return false; // partner: the Release store below
        }
        // SeqCst, with the barrier below: who did not see this has its mark in `submitter` or `poster` by then.
        header.shared.fetch_max(1, Ordering::SeqCst);
        const GLOBAL: usize = 1; // MEMBARRIER_CMD_GLOBAL
        if check(syscall(libc::SYS_membarrier, [GLOBAL, 0, 0, 0, 0, 0])).is_err() {
            // Not to be had: a millisecond is long for a store buffer.
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

    /// Takes the readiness byte's road backwards: wakes epoll waits of other processes on this ring. `program_end` is a
    /// number of the ring's descriptor, `engine_end` the other end, in which the bytes arrive and which every poll set
    /// watches.
    pub(crate) fn kick_others(&self, program_end: i32, engine_end: i32) {
        if mutated(Mutation::OtherProcessesSleepOn) {
            return;
        }
        let byte = 1u8;
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
        let send = [program_end as usize, &byte as *const u8 as usize, 1, flags, 0, 0];
        // A sleeper never takes bytes out: it might take the edge that another one has not seen yet. Whoever sends does,
        // and sends afterwards, which is a fresh edge for all.
        let full = self.header().kicks.fetch_add(1, Ordering::Relaxed) % KICKS == KICKS - 1;
        if full {
            take_bytes(engine_end);
        }
        if check(syscall(libc::SYS_sendto, send)) == Err(Errno::AGAIN) {
            take_bytes(engine_end);
            syscall(libc::SYS_sendto, send);
        }
    }
}

fn take_bytes(socket: i32) {
    let mut bytes = [0u8; 64];
    let args = [socket as usize, bytes.as_mut_ptr() as usize, bytes.len(), libc::MSG_DONTWAIT as usize, 0, 0];
    while syscall(libc::SYS_recvfrom, args) == bytes.len() as isize {}
}
