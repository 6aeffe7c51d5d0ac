//! The faults that the seed injects: errors that the call may return, and short transfers.
//!
//! Only calls on resources that may fail get faults: a wake-up, a close or a read of the clock always works. EAGAIN
//! is injected where another path must then be taken (RWF_NOWAIT on a file), not where only readiness ends it.

use anyring_test_kit::Choices;
use std::collections::BTreeMap;

/// The flag of preadv2(2) that keeps it from waiting.
pub const RWF_NOWAIT: usize = 8;

/// The outcome that a fault gives a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No fault: the call is made.
    None,
    /// The call returns this error, and is not made.
    Fails(i32),
    /// The call moves only a part.
    Short,
}

/// The faults of a run.
pub struct Faults {
    /// True if faults happen now.
    pub on: bool,
    /// One of this many calls that may fail does; 0 for none.
    every: u64,
    /// One of this many transfers is short; 0 for none.
    short_every: u64,
    /// True if calls that may wait come out short, too. After a short call with RWF_NOWAIT the engine continues the
    /// transfer.
    short_plain: bool,
    counts: BTreeMap<(&'static str, i32), u64>,
}

impl Faults {
    /// Draws the rates of a run's faults. In a third of the runs no call fails.
    pub fn new(random: &mut fastrand::Rng) -> Faults {
        let every = random.choose(&[0, 0, 1000, 200, 50, 20]);
        let short_every = random.choose(&[0, 20, 5]);
        Faults { on: false, every, short_every, short_plain: random.bool(), counts: BTreeMap::new() }
    }

    /// Counts faults of this kind.
    pub fn count(&mut self, kind: &'static str, count: u64) {
        *self.counts.entry((kind, 0)).or_default() += count;
    }

    /// True if a call has failed with this error.
    pub fn has_failed_with(&self, error: i32) -> bool {
        self.counts.iter().any(|((_, of), _)| *of == error)
    }

    /// True if a call that may wait has been short.
    pub fn has_been_short(&self) -> bool {
        self.counts.contains_key(&("short plain transfer", 0))
    }

    /// Returns the number of faults by kind.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let name = |(kind, error): &(&str, i32)| match error {
            0 => kind.to_string(),
            error => format!("{kind} {}", name_of(*error)),
        };
        self.counts.iter().map(|(of, count)| (name(of), *count)).collect()
    }

    fn hits(&self, random: &mut fastrand::Rng, every: u64) -> bool {
        self.on && every != 0 && random.u64(..every) == 0
    }

    fn one_of(&mut self, random: &mut fastrand::Rng, kind: &'static str, errors: &[i32]) -> i32 {
        let error = random.choose(errors);
        *self.counts.entry((kind, error)).or_default() += 1;
        error
    }

    /// Picks a sleep to end spuriously, now and then.
    pub fn spurious(&mut self, random: &mut fastrand::Rng) -> Option<usize> {
        self.hits(random, self.every * 4).then(|| {
            self.count("sleep that ends for nothing", 1);
            random.usize(..)
        })
    }

    /// Returns the error for a call that rustix makes, or for the start of a thread; `None` to let it work.
    pub fn before(&mut self, random: &mut fastrand::Rng, number: libc::c_long) -> Option<i32> {
        let (kind, errors): (_, &[i32]) = match number {
            libc::SYS_mmap | libc::SYS_mremap => ("mmap", &[libc::ENOMEM]),
            libc::SYS_memfd_create | libc::SYS_eventfd2 | libc::SYS_epoll_create1 | libc::SYS_socketpair => {
                ("descriptor", &[libc::EMFILE, libc::ENFILE, libc::ENOMEM])
            }
            libc::SYS_openat | libc::SYS_pipe2 => ("descriptor", &[libc::EMFILE, libc::ENFILE, libc::ENOMEM]),
            libc::SYS_ftruncate | libc::SYS_fallocate => {
                ("memory file", &[libc::ENOSPC, libc::ENOMEM, libc::EINTR])
            }
            libc::SYS_clone3 => ("thread", &[libc::EAGAIN]),
            _ => return None,
        };
        self.hits(random, self.every).then(|| self.one_of(random, kind, errors))
    }

    /// Returns the fault for a call that the engine makes itself.
    pub fn of_call(&mut self, random: &mut fastrand::Rng, number: libc::c_long, args: &[usize; 6]) -> Fault {
        let nowait = args[5] & RWF_NOWAIT != 0;
        let is_file = matches!(number, libc::SYS_preadv2 | libc::SYS_pwritev2) && has_blocks(args[0]);
        let (kind, errors): (_, &[i32]) = match number {
            libc::SYS_preadv2 if is_file && nowait => {
                ("read", &[libc::EAGAIN, libc::EAGAIN, libc::EIO, libc::ENOMEM])
            }
            libc::SYS_pwritev2 if is_file && nowait => {
                ("write", &[libc::EAGAIN, libc::EAGAIN, libc::EIO, libc::ENOSPC])
            }
            libc::SYS_read | libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => {
                ("read", &[libc::EINTR, libc::EIO, libc::ENOMEM])
            }
            libc::SYS_pwritev | libc::SYS_pwritev2 | libc::SYS_writev => {
                ("write", &[libc::EINTR, libc::EIO, libc::ENOSPC])
            }
            libc::SYS_recvfrom | libc::SYS_recvmsg if args[1] != 0 && is_transfer(number, args) => {
                ("receive", &[libc::EINTR, libc::ENOMEM])
            }
            libc::SYS_epoll_ctl if args[1] as i32 == libc::EPOLL_CTL_ADD => {
                ("epoll_ctl", &[libc::ENOMEM, libc::ENOSPC])
            }
            libc::SYS_fsync | libc::SYS_fdatasync => ("fsync", &[libc::EIO, libc::EINTR]),
            _ => return Fault::None,
        };
        if is_file && self.hits(random, self.short_every) && (nowait || self.short_plain) {
            self.count(if nowait { "short transfer" } else { "short plain transfer" }, 1);
            return Fault::Short;
        }
        // A read of eight bytes counts as one of the engine's own eventfds, and does not fail.
        let reads_eventfd = number == libc::SYS_read && args[2] == 8;
        match !reads_eventfd && self.hits(random, self.every) {
            true => Fault::Fails(self.one_of(random, kind, errors)),
            false => Fault::None,
        }
    }
}

/// True if the call is one of the program's transfers. The engine's own receives take single bytes out of the sockets
/// of rings, and do not count.
fn is_transfer(number: libc::c_long, args: &[usize; 6]) -> bool {
    number == libc::SYS_recvmsg || args[2] > 32
}

fn has_blocks(fd: usize) -> bool {
    // SAFETY: all zeros are a stat, and the call fills it in.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    let at = &raw mut found as usize;
    anyring_engine::os::simulated::kernel(libc::SYS_fstat, [fd, at, 0, 0, 0, 0]) == 0
        && found.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// Makes the preadv2 or pwritev2 call on the first half of its first buffer; on all of a buffer of one byte.
pub fn shorter(number: libc::c_long, args: [usize; 6], kernel: fn(libc::c_long, [usize; 6]) -> isize) -> isize {
    if args[2] == 0 {
        return kernel(number, args);
    }
    // SAFETY: the array of at least one iovec that the engine gives the call.
    let mut first = unsafe { *(args[1] as *const [usize; 2]) };
    first[1] = first[1].div_ceil(2);
    kernel(number, [args[0], first.as_ptr() as usize, 1, args[3], args[4], args[5]])
}

/// Returns the symbolic name of an error, as in errno(3).
pub fn name_of(error: i32) -> String {
    match error {
        libc::EINTR => "EINTR".into(),
        libc::EAGAIN => "EAGAIN".into(),
        libc::ENOMEM => "ENOMEM".into(),
        libc::EMFILE => "EMFILE".into(),
        libc::ENFILE => "ENFILE".into(),
        libc::EIO => "EIO".into(),
        libc::ENOSPC => "ENOSPC".into(),
        error => format!("error {error}"),
    }
}
