//! The guest's signals. They are handled by [`anyring_serve::signals`], which calls the guest's handlers in the guest's
//! world.

use crate::arch::crossing;
use crate::filter::MARK;
use crate::world::{self, Block};
use anyring_engine::log;
use anyring_serve::engine::recover_copy;
use anyring_serve::signals::trap::trapped_call;
use anyring_serve::signals::{action, bit, guarded, install_guard, mask, set_way, Way};
use anyring_serve::sys;
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use libc::{siginfo_t, ucontext_t};

/// The signal handling of guests. No signal is reserved: in a guest, even the signals of glibc and other libraries have
/// handlers like any other.
static WAY: Way = Way {
    entry: crossing::on_signal,
    reserved: 0,
    install_first: |_| Ok(crossing::restorer()),
    sees_all: || true,
    adjust,
    call,
};

/// Takes over the actions of all signals, and guards the engine's copies of the guest's memory.
pub fn prepare() -> Result<(), &'static str> {
    set_way(&WAY);
    let guards =
        [(libc::SIGSYS, no_trap as _), (libc::SIGSEGV, recover_copy as _), (libc::SIGBUS, recover_copy as _)];
    for (signal, guard) in guards {
        install_guard(signal, guard).map_err(|_| "a signal handler cannot be installed")?;
    }
    anyring_engine::os::handler_installed();
    anyring_engine::thread::follow::begin();
    Ok(())
}

/// Logs a trap that ends the process, because its thread has no record: code that is not trapped has made the thread.
unsafe fn no_trap(_: &mut ucontext_t, info: &siginfo_t) -> bool {
    if trapped_call(info, MARK).is_some() {
        log::line("a system call of the guest's ends it: the host does not know the thread that makes it");
    }
    false
}

/// Adjusts the action of SIGSYS, since a trap may come on any stack and nothing may interrupt its handler.
fn adjust(signal: c_int, action: &mut action::Action) {
    if signal == libc::SIGSYS {
        action.flags |= libc::SA_ONSTACK as u64;
        action.mask = u64::MAX;
    }
}

/// Calls a handler, see [`Way::call`].
unsafe fn call(handler: u64, signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    match world::mine() {
        // SAFETY: the caller vouches for all but the block, which is the calling thread's.
        Some(block) => unsafe { crossing::call_handler(handler, signal, info, context, block) },
        // A fault in a thread of the engine's: no handler of the guest's can handle that.
        None => action::set_real(signal, &action::Action::default()),
    }
}

/// Serves rt_sigaction(2), with the kernel's arguments and answer.
pub fn sigaction(block: &Block, args: [usize; 6]) -> isize {
    if !block.is_borrowed.load(Ordering::Relaxed) {
        return action::system_call(args);
    }
    borrowed_action(args)
}

/// Serves rt_sigaction(2) in a process that runs in its parent's memory. In the kernel it has its own actions, but
/// those kept here are the parent's. Such a process cannot set a handler, and guarded signals stay as they are.
fn borrowed_action([signal, new, old, size, ..]: [usize; 6]) -> isize {
    let signal = signal as c_int;
    if size != size_of::<u64>() || !(1..=64).contains(&signal) {
        return -(libc::EINVAL as isize);
    }
    let Ok(real) = action::installed(signal) else { return -(libc::EINVAL as isize) };
    let before =
        if real.handler == crossing::on_signal as *const () as u64 { action::of_program(signal) } else { real };
    if new != 0 {
        let Some(wanted) = sys::read_program(new as *const action::Action) else { return -(libc::EFAULT as isize) };
        let is_handler = ![action::SIG_DFL, action::SIG_IGN].contains(&wanted.handler);
        if is_handler && wanted.handler != before.handler {
            return -(libc::EINVAL as isize);
        }
        if !is_handler && guarded() & bit(signal) == 0 {
            action::set_real(signal, &wanted);
        }
    }
    match old != 0 && !sys::write_program(old as *mut action::Action, before) {
        true => -(libc::EFAULT as isize),
        false => 0,
    }
}

/// Serves rt_sigprocmask(2), with the kernel's arguments and answer.
pub fn sigprocmask(block: &Block, args: [usize; 6]) -> isize {
    match block.is_borrowed.load(Ordering::Relaxed) {
        true => mask::system_call_with_own_record(args),
        false => mask::system_call(args),
    }
}

/// Runs a waiting call that has its own signal mask.
pub fn with_mask(mask: *const u64, size: usize, wait: impl FnOnce(*const u64) -> isize) -> isize {
    if !world::mine().is_some_and(|block| block.is_borrowed.load(Ordering::Relaxed)) {
        return mask::with_temporary(mask, size, wait);
    }
    match sys::read_program(mask) {
        Some(wanted) if size == size_of::<u64>() => wait(&(wanted & !guarded())),
        _ => wait(mask),
    }
}
