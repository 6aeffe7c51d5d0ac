//! FUTEX_WAIT, FUTEX_WAITV, FUTEX_WAKE: arguments and checks. `wq::futex` waits.

use super::{call, reject_unused, Context, Field, Operation, Punt, Verdict, Waiter};
use crate::os::{can_wait_for_several, user_read, GuardedWords};
use crate::Errno;
use anyring_abi::{Opcode, Sqe};

/// `FUTEX2_*` of linux/futex.h.
const SIZE_MASK: u32 = 3;
const SIZE_U32: u32 = 2;
const NUMA: u32 = 4;
const MPOL: u32 = 8;
/// FUTEX2_PRIVATE: only threads of one process use the futex.
const PRIVATE: u32 = 128;
/// The flags of a private 32-bit futex.
pub const PRIVATE_U32: u32 = SIZE_U32 | PRIVATE;

/// The calls of Linux 6.7 have these numbers on every architecture.
const SYS_FUTEX_WAKE: libc::c_long = 454;
/// Came with `SYS_FUTEX_WAKE`.
pub const SYS_FUTEX_WAIT: libc::c_long = 455;
/// Came with `SYS_FUTEX_WAKE`.
pub const SYS_FUTEX_REQUEUE: libc::c_long = 456;

/// `FUTEX_BITSET_MATCH_ANY`.
pub const ANY: u32 = u32::MAX;
/// `FUTEX_WAITV_MAX`.
pub const WORDS_MAX: usize = 128;

/// A futex, and the value that it must have for a thread to wait on it.
#[derive(Debug, Clone, Copy)]
pub struct Word {
    /// The address in program memory, which may be invalid.
    pub address: u64,
    /// The value that the program expects at `address`.
    pub value: u32,
    /// `FUTEX2_*`.
    pub flags: u32,
}

impl Word {
    fn new(address: u64, value: u64, flags: u32) -> Result<Word, Errno> {
        let known = flags & !(SIZE_MASK | NUMA | MPOL | PRIVATE) == 0;
        if !known || flags & SIZE_MASK != SIZE_U32 {
            return Err(Errno::INVAL);
        }
        Ok(Word { address, value: u32::try_from(value).map_err(|_| Errno::INVAL)?, flags })
    }

    /// Checks the address first, like `get_futex_key` in kernel/futex/core.c.
    fn check_place(&self) -> Result<(), Errno> {
        let bytes = if self.flags & NUMA != 0 { 8 } else { 4 };
        if !self.address.is_multiple_of(bytes) {
            return Err(Errno::INVAL);
        }
        if self.address >= 1 << 63 {
            return Err(Errno::FAULT);
        }
        Ok(())
    }

    /// Returns `EAGAIN` if the futex holds another value.
    pub fn check(&self) -> Result<(), Errno> {
        self.check_place()?;
        match GuardedWords::load(self.address as usize)? {
            value if value == self.value => Ok(()),
            _ => Err(Errno::AGAIN),
        }
    }

    /// The flag by which futex(2) separates private futexes from shared ones: FUTEX_PRIVATE_FLAG.
    pub fn private_flag(&self) -> i32 {
        if self.flags & PRIVATE != 0 {
            libc::FUTEX_PRIVATE_FLAG
        } else {
            0
        }
    }

    /// True if the program chose the futex's memory node, which only the calls of Linux 6.7 know.
    pub fn has_node(&self) -> bool {
        self.flags & (NUMA | MPOL) != 0
    }
}

/// Waits until one of several futexes is woken. Source: io_uring_enter(2), IORING_OP_FUTEX_WAIT and
/// IORING_OP_FUTEX_WAITV; io_uring/futex.c.
#[derive(Debug)]
pub struct Wait {
    first: Word,
    others: Box<[Word]>,
    /// A wake must have one of these bits.
    pub mask: u32,
}

impl Wait {
    /// Reads the SQE: `fd` has the flags, `off` (`addr2`) the value, `addr3` the mask.
    pub fn prep(sqe: &Sqe) -> Result<Wait, Errno> {
        let (first, mask) = read(sqe)?;
        Ok(Wait { first, others: Box::default(), mask })
    }

    /// Reads the SQE and the vector of `struct futex_waitv` that it points to.
    pub fn prep_vector(sqe: &Sqe) -> Result<Wait, Errno> {
        reject_unused(sqe, &[Field::BufIndex, Field::FileIndex, Field::Off, Field::OpFlags, Field::Addr3])?;
        let count = sqe.len as usize;
        if sqe.fd != 0 || !(1..=WORDS_MAX).contains(&count) || !can_wait_for_several() {
            return Err(Errno::INVAL);
        }
        let mut words = Vec::with_capacity(count);
        for place in 0..count as u64 {
            let [value, address, rest]: [u64; 3] = user_read(sqe.addr.wrapping_add(place * 24))?;
            if rest >> 32 != 0 {
                return Err(Errno::INVAL);
            }
            words.push(Word::new(address, value, rest as u32)?);
        }
        let first = words.remove(0);
        Ok(Wait { first, others: words.into(), mask: ANY })
    }

    /// The futexes in the order of the vector.
    pub fn words(&self) -> impl Iterator<Item = &Word> {
        core::iter::once(&self.first).chain(&self.others)
    }

    /// Checks that all futexes still hold their values.
    pub fn check(&self) -> Result<(), Errno> {
        if self.mask == 0 {
            return Err(Errno::INVAL);
        }
        self.words().try_for_each(Word::check)
    }
}

impl Operation for Wait {
    fn issue(&mut self, _context: Context) -> Verdict {
        match self.check() {
            Ok(()) => Verdict::NeedsWorker(Punt::WouldWait),
            Err(error) => Verdict::error(error),
        }
    }

    fn waiter(&self) -> Option<Waiter> {
        Some(Waiter::Futex)
    }

    fn is_brought(&self, _result: i32, inline: bool) -> bool {
        !inline
    }
}

/// Wakes waiters on a futex. Source: io_uring_enter(2), IORING_OP_FUTEX_WAKE; io_uring/futex.c.
#[derive(Debug, Clone, Copy)]
pub struct Wake {
    /// The futex. Its `value` is the number of waiters to wake.
    word: Word,
    mask: u32,
}

impl Wake {
    /// Reads the SQE, whose fields are those of FUTEX_WAIT.
    pub fn prep(sqe: &Sqe) -> Result<Wake, Errno> {
        let (word, mask) = read(sqe)?;
        Ok(Wake { word, mask })
    }
}

impl Operation for Wake {
    fn issue(&mut self, _context: Context) -> Verdict {
        let Word { address, value: count, flags } = self.word;
        let (address, count) = (address as usize, count as usize);
        // futex(2) treats a count of 0 as 1, so only a count above 0 goes to it.
        if count != 0 && !self.word.has_node() {
            let operation = libc::FUTEX_WAKE_BITSET | self.word.private_flag();
            return Verdict::of(call(
                libc::SYS_futex,
                [address, operation as usize, count, 0, 0, self.mask as usize],
            ));
        }
        match call(SYS_FUTEX_WAKE, [address, self.mask as usize, count, flags as usize, 0, 0]) {
            // The call is missing before Linux 6.7, or a filter does not know it.
            Err(Errno::NOSYS | Errno::PERM) if self.word.has_node() || self.mask == 0 => {
                Verdict::error(Errno::INVAL)
            }
            Err(Errno::NOSYS | Errno::PERM) => Verdict::of(self.word.check_place().map(|()| 0)),
            answer => Verdict::of(answer),
        }
    }
}

/// Reads the arguments that waits and wakes share, in the order of `io_futex_prep`.
fn read(sqe: &Sqe) -> Result<(Word, u32), Errno> {
    reject_unused(sqe, &[Field::Len, Field::OpFlags, Field::BufIndex, Field::FileIndex])?;
    let word = Word::new(sqe.addr, sqe.off, sqe.fd as u32)?;
    Ok((word, u32::try_from(sqe.addr3).map_err(|_| Errno::INVAL)?))
}

/// Reads the SQE of an `Opcode::FutexWait` or `Opcode::FutexWaitv`.
pub fn prep_wait(opcode: Opcode, sqe: &Sqe) -> Result<Wait, Errno> {
    match opcode {
        Opcode::FutexWaitv => Wait::prep_vector(sqe),
        _ => Wait::prep(sqe),
    }
}
