//! The numbers 0, 1 and 2: nothing that the engine makes ever has one, not for an instant. A program that closed them may have
//! threads that write there.
//!
//! What the kernel makes gets the lowest free number. So those of the three that are free are held meanwhile, by descriptors of
//! no use: with O_PATH a read or write is EBADF, as on a number that is not open. Once all three were found open this costs a
//! load, until one is seen to be closed.

use super::handlers;
use super::linux::{nap, syscall};
use crate::mutation::{mutated, Mutation};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The lowest number that the engine's own may have.
pub const END: i32 = 3;

/// Whether all three are known to be open. Relaxed: a close at the same time is not seen in either order.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Set once threads have tables of their own, in which a number means different files.
static LEFT_ALONE: AtomicBool = AtomicBool::new(false);
/// How many threads make something ([`MAKER`] for each), which numbers are held (bit n: number n), and [`BUSY`].
static STATE: AtomicU32 = AtomicU32::new(0);
/// A thread is changing the word, and what is held by it. It may open and close only, and no handler interrupts it.
const BUSY: u32 = 1 << 31;
const MAKER: u32 = 1 << END;
const HELD: u32 = MAKER - 1;

/// Makes descriptors: none gets a number below 3.
///
/// # Errors
/// Those of `make`.
#[inline]
pub fn above<T, E>(make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let left_alone = LEFT_ALONE.load(Ordering::Relaxed) || mutated(Mutation::StandardNumbersAreTaken);
    if cfg!(feature = "simulated") || left_alone || OPEN.load(Ordering::Relaxed) || are_open() {
        return make();
    }
    let _making = Making::begin();
    make()
}

#[cold]
fn are_open() -> bool {
    let is_open = |fd: i32| syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) >= 0;
    let all = STATE.load(Ordering::Relaxed) == 0 && (0..END).all(is_open);
    OPEN.store(all, Ordering::Relaxed);
    all
}

/// While it is there, no number of the three is free.
struct Making;

impl Making {
    #[cold]
    fn begin() -> Making {
        handlers::hold();
        change(|mut state| loop {
            match open_nothing() {
                held @ 0..END => state |= 1 << held,
                other => {
                    close(other);
                    return state + MAKER;
                }
            }
        });
        Making
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        change(|state| match state - MAKER {
            held @ 0..MAKER => {
                give_back(held);
                0
            }
            others => others,
        });
        handlers::let_go();
    }
}

/// Changes the state, and what is held with it, as the only thread.
fn change(by: impl FnOnce(u32) -> u32) {
    handlers::hold();
    let (mut state, mut tries) = (STATE.load(Ordering::Relaxed) & !BUSY, 0);
    // Acquire: partner is the Release store of whoever was busy before.
    while let Err(now) = STATE.compare_exchange(state, state | BUSY, Ordering::Acquire, Ordering::Relaxed) {
        state = now & !BUSY;
        if now & BUSY != 0 {
            nap(tries);
            tries += 1;
        }
    }
    STATE.store(by(state), Ordering::Release); // partner: the Acquire exchange above
    handlers::let_go();
}

/// The number of a descriptor that can neither be read nor written.
fn open_nothing() -> i32 {
    let flags = (libc::O_PATH | libc::O_CLOEXEC) as usize;
    syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, c"/".as_ptr() as usize, flags, 0, 0, 0]) as i32
}

fn close(fd: i32) {
    if fd >= 0 {
        syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
    }
}

fn give_back(held: u32) {
    (0..END).filter(|fd| held & (1 << fd) != 0).for_each(close);
}

/// The program is about to close number `fd`.
#[inline]
pub fn closing(fd: i32) {
    if (0..END).contains(&fd) {
        OPEN.store(false, Ordering::Relaxed);
    }
}

/// Whether number `fd` is held: to the program it is not open.
pub fn is_held(fd: i32) -> bool {
    (0..END).contains(&fd) && STATE.load(Ordering::Relaxed) & (1 << fd) != 0
}

/// The program is about to have something else under number `fd`, which is held: it is the program's from now on.
#[cold]
pub fn replacing(fd: i32) {
    change(|state| state & !(1 << fd));
}

/// Threads of the program's have tables of their own.
pub fn leave_alone() {
    LEFT_ALONE.store(true, Ordering::Relaxed);
}

/// In a forked child: what threads of the parent's are making is not made here. `shared`: the child has its table together with
/// the parent, which gives back what is held.
pub fn reset_after_fork(shared: bool) {
    LEFT_ALONE.store(false, Ordering::Relaxed);
    let state = STATE.swap(0, Ordering::Relaxed);
    if !shared {
        give_back(state & HELD);
    }
}
