//! Wrappers for libc's functions on signal actions and masks. The head of [`anyring_serve::signals`] says when anyring
//! takes the guarded signals over. Until then a wrapper only calls libc, with two exceptions. A function that is about
//! to block a guarded signal first takes the guarded signals over. [`sigaltstack`] also records the stack.

use super::action::{self, Action};
use super::{bit, guarded, mask};
use crate::next::{missing, next};
use crate::{entry, raw, sys};
use anyring_engine::forced::{point, Point};
use anyring_engine::mutation::{mutated, Mutation};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use libc::{sighandler_t, sigset_t, stack_t};

next! {
    SIGACTION = c"sigaction": fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    SIGNAL = c"signal": fn(c_int, sighandler_t) -> sighandler_t;
    SYSV_SIGNAL = c"__sysv_signal": fn(c_int, sighandler_t) -> sighandler_t;
    SIGSET = c"sigset": fn(c_int, sighandler_t) -> sighandler_t;
    SIGHOLD = c"sighold": fn(c_int) -> c_int;
    SIGRELSE = c"sigrelse": fn(c_int) -> c_int;
    SIGIGNORE = c"sigignore": fn(c_int) -> c_int;
    SIGINTERRUPT = c"siginterrupt": fn(c_int, c_int) -> c_int;
    SIGPROCMASK = c"sigprocmask": fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;
    PTHREAD_SIGMASK = c"pthread_sigmask": fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;
    SIGALTSTACK = c"sigaltstack": fn(*const stack_t, *mut stack_t) -> c_int;
    SIGSUSPEND = c"sigsuspend": fn(*const sigset_t) -> c_int;
    SIGPENDING = c"sigpending": fn(*mut sigset_t) -> c_int;
}

/// Signals for which siginterrupt(3) says that handlers set by signal(3) interrupt calls.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// The error value of `signal` and its relatives.
const SIG_ERR: sighandler_t = usize::MAX;
/// The argument of sigset(3) that blocks a signal. sigset(3) also returns this value if the signal was blocked
/// before.
const SIG_HOLD: sighandler_t = 2;
/// A flag of the kernel's interface only. A program that reads an action gets the flag in any case, also without this
/// library.
const SA_INTERRUPT: c_int = 0x2000_0000;

/// Returns the first word of a set. It has a bit for each of the kernel's signals.
///
/// # Safety
/// `set` may be read.
unsafe fn word(set: *const sigset_t) -> u64 {
    // SAFETY: the caller vouches for `set`; a sigset_t begins with the kernel's word.
    unsafe { *set.cast::<u64>() }
}

/// sigaction(2).
///
/// # Safety
/// As libc's `sigaction`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let Some(next) = SIGACTION.get() else {
        return missing();
    };
    if !action::is_kept(signal) || mutated(Mutation::ProgramTakesSigsys) {
        // SAFETY: the caller's own arguments.
        return unsafe { next(signal, new, old) };
    }
    // SAFETY: the caller vouches for `new` and `old`, each null or valid.
    let (wanted, old) = unsafe { (new.as_ref().map(from_libc), old.as_mut()) };
    let mut before = None;
    entry::aside(|| {
        point(Point::Sigaction);
        match wanted {
            Some(wanted) if old.is_none() => action::set(signal, wanted),
            _ => before = Some(action::exchange(signal, wanted)),
        }
    });
    if let (Some(before), Some(old)) = (before, old) {
        write_libc(&before, old);
    }
    0
}

fn from_libc(action: &libc::sigaction) -> Action {
    Action {
        handler: action.sa_sigaction as u64,
        flags: action.sa_flags as u32 as u64,
        restorer: 0,
        // SAFETY: a reference's target may be read.
        mask: unsafe { word(&action.sa_mask) },
    }
}

fn write_libc(action: &Action, into: &mut libc::sigaction) {
    into.sa_sigaction = action.handler as usize;
    into.sa_flags = action.flags as u32 as c_int;
    // SAFETY: the field is a nullable function pointer that the program passed to the kernel, or libc did for it.
    into.sa_restorer = unsafe { core::mem::transmute::<usize, Option<extern "C" fn()>>(action.restorer as usize) };
    // SAFETY: a set begins with the kernel's word; the rest stays, as libc leaves it.
    unsafe { (&raw mut into.sa_mask).cast::<u64>().write(action.mask) };
}

/// Does the work of signal(3) and its variants for a signal whose action is kept here.
fn set_simply(signal: c_int, handler: sighandler_t, flags: c_int, mask: u64) -> sighandler_t {
    if handler == SIG_ERR {
        sys::set_errno(libc::EINVAL);
        return SIG_ERR;
    }
    let wanted = Action { handler: handler as u64, flags: flags as u32 as u64, restorer: 0, mask };
    let mut before = SIG_ERR;
    entry::aside(|| {
        point(Point::Sigaction);
        before = action::exchange(signal, Some(wanted)).handler as sighandler_t;
    });
    before
}

/// signal(3), which on Linux keeps the handler and restarts interrupted calls.
///
/// # Safety
/// As libc's `signal`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if action::is_kept(signal) {
        let interrupts = INTERRUPTING.load(Ordering::Relaxed) & bit(signal) != 0;
        return set_simply(signal, handler, if interrupts { 0 } else { libc::SA_RESTART }, bit(signal));
    }
    // SAFETY: the caller's own arguments.
    SIGNAL.get().map_or_else(|| missing() as sighandler_t, |next| unsafe { next(signal, handler) })
}

/// bsd_signal(3), another name for [`signal`].
///
/// # Safety
/// As libc's `signal`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's contract is the same.
    unsafe { signal(number, handler) }
}

/// ssignal(3), another name for [`signal`].
///
/// # Safety
/// As libc's `signal`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's contract is the same.
    unsafe { signal(number, handler) }
}

/// sysv_signal(3): the handler runs once, and blocks nothing.
///
/// # Safety
/// As libc's `__sysv_signal`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if action::is_kept(signal) {
        let flags = libc::SA_RESETHAND | libc::SA_NODEFER | SA_INTERRUPT;
        return set_simply(signal, handler, flags, 0);
    }
    // SAFETY: the caller's own arguments.
    SYSV_SIGNAL.get().map_or_else(|| missing() as sighandler_t, |next| unsafe { next(signal, handler) })
}

/// sysv_signal(3), another name for [`__sysv_signal`].
///
/// # Safety
/// As libc's `sysv_signal`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's contract is the same.
    unsafe { __sysv_signal(signal, handler) }
}

/// sigset(3).
///
/// # Safety
/// As libc's `sigset`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn sigset(signal: c_int, disposition: sighandler_t) -> sighandler_t {
    if disposition == SIG_HOLD && (1..=64).contains(&signal) {
        mask::are_kept(libc::SIG_BLOCK, Some(bit(signal)));
    }
    if !action::is_kept(signal) {
        // SAFETY: the caller's own arguments.
        return SIGSET.get().map_or_else(|| missing() as sighandler_t, |next| unsafe { next(signal, disposition) });
    }
    let (how, before) = if disposition == SIG_HOLD {
        (libc::SIG_BLOCK, action::exchange(signal, None).handler as sighandler_t)
    } else {
        (libc::SIG_UNBLOCK, set_simply(signal, disposition, 0, 0))
    };
    let (set, mut old) = (mask::as_set(bit(signal)), mask::as_set(0));
    // SAFETY: both sets are locals.
    if before == SIG_ERR || unsafe { sigprocmask(how, &set, &mut old) } != 0 {
        return SIG_ERR;
    }
    // SAFETY: a local.
    if unsafe { word(&old) } & bit(signal) != 0 {
        SIG_HOLD
    } else {
        before
    }
}

/// sighold(3).
///
/// # Safety
/// As libc's `sighold`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn sighold(signal: c_int) -> c_int {
    if (1..=64).contains(&signal)
        && mask::are_kept(libc::SIG_BLOCK, Some(bit(signal)))
        && action::is_guarded(signal)
    {
        mask::changed(libc::SIG_BLOCK, Some(bit(signal)));
        return 0;
    }
    // SAFETY: the caller's own argument.
    SIGHOLD.get().map_or_else(missing, |next| unsafe { next(signal) })
}

/// sigrelse(3).
///
/// # Safety
/// As libc's `sigrelse`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn sigrelse(signal: c_int) -> c_int {
    if action::is_guarded(signal) {
        mask::changed(libc::SIG_UNBLOCK, Some(bit(signal)));
        return 0;
    }
    // SAFETY: the caller's own argument.
    SIGRELSE.get().map_or_else(missing, |next| unsafe { next(signal) })
}

/// sigignore(3).
///
/// # Safety
/// As libc's `sigignore`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn sigignore(signal: c_int) -> c_int {
    if action::is_kept(signal) {
        set_simply(signal, libc::SIG_IGN, 0, 0);
        return 0;
    }
    // SAFETY: the caller's own argument.
    SIGIGNORE.get().map_or_else(missing, |next| unsafe { next(signal) })
}

/// siginterrupt(3).
///
/// # Safety
/// As libc's `siginterrupt`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    if !action::is_kept(signal) {
        // SAFETY: the caller's own arguments.
        return SIGINTERRUPT.get().map_or_else(missing, |next| unsafe { next(signal, interrupts) });
    }
    let restart = libc::SA_RESTART as u64;
    match interrupts {
        0 => INTERRUPTING.fetch_and(!bit(signal), Ordering::Relaxed),
        _ => INTERRUPTING.fetch_or(bit(signal), Ordering::Relaxed),
    };
    action::change(signal, |before| {
        let flags = if interrupts != 0 { before.flags & !restart } else { before.flags | restart };
        Action { flags, ..*before }
    });
    0
}

type NextMask = unsafe extern "C-unwind" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

/// sigprocmask and pthread_sigmask, which differ in how they report an error.
///
/// # Safety
/// As libc's `sigprocmask`.
unsafe fn change_mask(next: NextMask, how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller vouches for `set` and `old`, each null or valid. `set` is read before `old` is written, since
    // both may be the same.
    unsafe {
        let wanted = (!set.is_null()).then(|| word(set));
        let mut are_kept = mask::active();
        if !are_kept {
            entry::aside(|| are_kept = mask::are_kept(how, wanted));
        }
        if !are_kept {
            let before = mask::prepare_change(wanted.map(|_| how));
            let answer = next(how, set, old);
            if answer == 0 && !old.is_null() {
                *old.cast::<u64>() |= before;
            }
            return answer;
        }
        let mut really = wanted.map(|wanted| mask::as_set(wanted & !guarded()));
        entry::aside(|| {
            point(Point::Sigmask);
            really = wanted.map(|wanted| mask::as_set(mask::real(how, wanted)));
        });
        let answer = next(how, really.as_ref().map_or(core::ptr::null(), core::ptr::from_ref), old);
        if answer == 0 {
            let before = mask::changed(how, wanted);
            if !old.is_null() {
                *old.cast::<u64>() |= before;
            }
        }
        answer
    }
}

/// sigprocmask(2).
///
/// # Safety
/// As libc's `sigprocmask`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller's own arguments.
    SIGPROCMASK.get().map_or_else(missing, |next| unsafe { change_mask(next, how, set, old) })
}

/// pthread_sigmask(3), which returns the error itself.
///
/// # Safety
/// As libc's `pthread_sigmask`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller's own arguments.
    PTHREAD_SIGMASK.get().map_or(libc::ENOSYS, |next| unsafe { change_mask(next, how, set, old) })
}

/// Does the work of the 4.2BSD functions, whose sets have 32 signals, by [`sigprocmask`]. Returns the previous mask.
fn change_old_mask(how: c_int, wanted: Option<c_int>) -> c_int {
    let (set, mut old) = (mask::as_set(wanted.unwrap_or_default() as u32 as u64), mask::as_set(0));
    let set = if wanted.is_some() { &raw const set } else { core::ptr::null() };
    // SAFETY: both sets are locals.
    match unsafe { sigprocmask(how, set, &mut old) } {
        0 => mask::word(&old) as c_int,
        error => error,
    }
}

/// sigsetmask(3).
#[cfg_attr(not(test), no_mangle)]
pub extern "C-unwind" fn sigsetmask(mask: c_int) -> c_int {
    change_old_mask(libc::SIG_SETMASK, Some(mask))
}

/// sigblock(3).
#[cfg_attr(not(test), no_mangle)]
pub extern "C-unwind" fn sigblock(mask: c_int) -> c_int {
    change_old_mask(libc::SIG_BLOCK, Some(mask))
}

/// siggetmask(3).
#[cfg_attr(not(test), no_mangle)]
pub extern "C-unwind" fn siggetmask() -> c_int {
    change_old_mask(libc::SIG_BLOCK, None)
}

/// sigpause(3) of 4.2BSD, which waits with this mask.
#[cfg_attr(not(test), no_mangle)]
pub extern "C-unwind" fn sigpause(mask: c_int) -> c_int {
    // SAFETY: a local.
    unsafe { sigsuspend(&mask::as_set(mask as u32 as u64)) }
}

/// sigpause(3) of X/Open, which waits with the thread's mask except this signal.
#[cfg_attr(not(test), no_mangle)]
pub extern "C-unwind" fn __xpg_sigpause(signal: c_int) -> c_int {
    if !(1..=64).contains(&signal) {
        sys::set_errno(libc::EINVAL);
        return -1;
    }
    let mut set = mask::as_set(0);
    // SAFETY: both sets are locals.
    unsafe {
        sigprocmask(libc::SIG_BLOCK, core::ptr::null(), &mut set);
        sigsuspend(&mask::as_set(mask::word(&set) & !bit(signal)))
    }
}

/// sigaltstack(2). Patched calls have to know the place of the stack.
///
/// # Safety
/// As libc's `sigaltstack`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn sigaltstack(new: *const stack_t, old: *mut stack_t) -> c_int {
    // SAFETY: the caller's own arguments.
    let answer = SIGALTSTACK.get().map_or_else(missing, |next| unsafe { next(new, old) });
    if answer == 0 && !new.is_null() {
        // SAFETY: the kernel has just read it.
        raw::record_alternate(unsafe { &*new });
    }
    answer
}

/// sigsuspend(2).
///
/// # Safety
/// As libc's `sigsuspend`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn sigsuspend(set: *const sigset_t) -> c_int {
    mask::with_temporary_set(set, |set| {
        // SAFETY: the caller's own set, or a copy of it without the guarded signals.
        SIGSUSPEND.get().map_or_else(missing, |next| unsafe { next(set) })
    })
}

/// sigpending(2).
///
/// # Safety
/// As libc's `sigpending`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn sigpending(set: *mut sigset_t) -> c_int {
    // SAFETY: the caller's own argument.
    let answer = SIGPENDING.get().map_or_else(missing, |next| unsafe { next(set) });
    if answer == 0 && mask::active() {
        // SAFETY: libc has just written to `set`.
        unsafe { *set.cast::<u64>() |= mask::held() };
    }
    answer
}
