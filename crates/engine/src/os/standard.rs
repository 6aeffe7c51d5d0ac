//! Protection of the descriptor numbers 0, 1 and 2: no engine descriptor ever has one of them, not for an instant. A
//! program that closed these numbers may have threads that write to them.
//!
//! The kernel gives a new descriptor the lowest free number. So while the engine makes a descriptor, it fills those
//! of the three numbers that are free with useless descriptors. These have O_PATH, so a read or write fails with
//! EBADF, as on a number that is not open. Once all three were found open, the protection costs one load, until one
//! of them is closed.

use super::handlers;
use super::linux::{nap, syscall};
use crate::mutation::{mutated, Mutation};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The lowest number that the engine's own descriptors may have.
pub const END: i32 = 3;

/// True if all three numbers are known to be open. Relaxed: no order is guaranteed with a close at the same time.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Set once threads have descriptor tables of their own, where one number names different files.
static TABLES_DIFFER: AtomicBool = AtomicBool::new(false);
/// Number of threads that are making a descriptor (times [`MAKER`]), the numbers that the engine fills (bit n: number
/// n), and [`BUSY`].
static STATE: AtomicU32 = AtomicU32::new(0);
/// Set while a thread changes the word, and the descriptors that fill numbers. That thread may only open and close, and
/// no signal handler interrupts it.
const BUSY: u32 = 1 << 31;
const MAKER: u32 = 1 << END;
const HELD: u32 = MAKER - 1;

/// Makes descriptors, none with a number below 3.
///
/// # Errors
/// Those of `make`.
#[inline]
#[cfg_attr(debug_assertions, track_caller)]
pub fn above<T, E>(make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let tables_differ = TABLES_DIFFER.load(Ordering::Relaxed) || mutated(Mutation::StandardNumbersAreTaken);
    if cfg!(feature = "simulated") || tables_differ || OPEN.load(Ordering::Relaxed) || are_open() {
        return reported(make);
    }
    let _making = Making::begin();
    reported(make)
}

#[cfg(debug_assertions)]
use lowest::reported;

#[cfg(not(debug_assertions))]
#[inline(always)]
fn reported<T, E>(make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    make()
}

/// Makes a descriptor on whichever thread needs it, for a reason that docs/limits.md gives. Whatever else engine
/// threads need is opened in a call of the program. For a moment it has the number that the program's next open
/// expects.
#[inline]
pub fn on_any_thread<T>(make: impl FnOnce() -> T) -> T {
    #[cfg(debug_assertions)]
    let _excused = lowest::Excused::begin();
    make()
}

/// Reports engine threads that make descriptors, in builds with assertions.
#[cfg(debug_assertions)]
pub mod lowest;

#[cold]
fn are_open() -> bool {
    let is_open = |fd: i32| syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) >= 0;
    let all = STATE.load(Ordering::Relaxed) == 0 && (0..END).all(is_open);
    OPEN.store(all, Ordering::Relaxed);
    all
}

/// Lives while none of the three numbers is free.
struct Making;

impl Making {
    #[cold]
    fn begin() -> Making {
        handlers::enter_critical();
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
        handlers::leave_critical();
    }
}

/// Changes the state and the descriptors that fill numbers, one thread at a time.
fn change(by: impl FnOnce(u32) -> u32) {
    handlers::enter_critical();
    let (mut state, mut tries) = (STATE.load(Ordering::Relaxed) & !BUSY, 0);
    // Acquire: partner is the Release store of the thread that was busy before.
    while let Err(now) = STATE.compare_exchange(state, state | BUSY, Ordering::Acquire, Ordering::Relaxed) {
        state = now & !BUSY;
        if now & BUSY != 0 {
            nap(tries);
            tries += 1;
        }
    }
    STATE.store(by(state), Ordering::Release); // partner: the Acquire exchange above
    handlers::leave_critical();
}

/// Opens a descriptor that can neither be read nor written. Returns its number.
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

/// Records that the program is about to close number `fd`.
#[inline]
pub fn closing(fd: i32) {
    if (0..END).contains(&fd) {
        OPEN.store(false, Ordering::Relaxed);
    }
}

/// True if an engine descriptor fills number `fd`. For the program, that number is not open.
pub fn is_held(fd: i32) -> bool {
    (0..END).contains(&fd) && STATE.load(Ordering::Relaxed) & (1 << fd) != 0
}

/// Gives number `fd`, which an engine descriptor fills, to the program, which is about to open something else under
/// it.
#[cold]
pub fn replacing(fd: i32) {
    change(|state| state & !(1 << fd));
}

/// Stops the protection, since program threads have descriptor tables of their own.
pub fn stop_protecting() {
    TABLES_DIFFER.store(true, Ordering::Relaxed);
}

/// Forgets, in a forked child, the descriptors that the parent's threads are making. `shared`: the child shares the
/// parent's table, so the parent closes the descriptors that fill numbers.
pub fn reset_after_fork(shared: bool) {
    TABLES_DIFFER.store(false, Ordering::Relaxed);
    let state = STATE.swap(0, Ordering::Relaxed);
    if !shared {
        give_back(state & HELD);
    }
}
