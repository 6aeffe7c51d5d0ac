//! The program's own actions, and what is really installed for them.
//!
//! Whoever takes signals over holds [`Lock`]; what changes one action does without, as the handler of a signal that reads it.

use super::{bit, guarded, mask, way, GUARDABLE};
use crate::sys;
use anyring_engine::descriptors;
use anyring_engine::os::nap;
use core::ffi::c_int;
use core::sync::atomic::{fence, AtomicBool, AtomicU64, AtomicUsize, Ordering};

pub use crate::sys::{set_mask, thread_lives};

/// SIG_DFL and SIG_IGN as the kernel holds them.
pub const SIG_DFL: u64 = libc::SIG_DFL as u64;
/// See [`SIG_DFL`].
pub const SIG_IGN: u64 = libc::SIG_IGN as u64;
/// Flag of an action that names the code which ends the handler. On x86-64 every action does; on aarch64 the kernel has such
/// code, and libc names none.
const SA_RESTORER: u64 = 0x0400_0000;
/// Bytes in the kernel's signal set.
const SET_SIZE: usize = 8;
const SIGNALS: c_int = 64;

/// A signal's action as rt_sigaction(2) takes it (struct kernel_sigaction).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Action {
    /// A function's address, SIG_DFL or SIG_IGN.
    pub handler: u64,
    /// SA_* flags.
    pub flags: u64,
    /// Where the handler returns to.
    pub restorer: u64,
    /// Signals blocked while the handler runs.
    pub mask: u64,
}

/// How many places there are for one action. Each handler that interrupts an exchange may begin another.
const PLACES: usize = 8;
/// In [`Kept::current`]: the place that counts.
const PLACE: u64 = 7;
/// In [`Kept::current`]: the kernel has been told.
const INSTALLED: u64 = 8;
/// In [`Kept::current`]: a bit for each place, that which counts and those that somebody fills; here for the first.
const TAKEN: u64 = 16;
/// In [`Kept::current`]: one change more.
const CHANGE: u64 = TAKEN << PLACES;

/// One program action. No lock: a handler may interrupt who changes it, change it, and leave by a jump.
struct Kept {
    /// See above.
    current: AtomicU64,
    places: [[AtomicU64; 4]; PLACES],
}

/// By signal number.
static KEPT: [Kept; SIGNALS as usize + 1] = [const { Kept::new() }; SIGNALS as usize + 1];

/// Whether every action is kept, not those of the guarded signals alone. Relaxed: written under [`Lock`].
static KEEPS_ALL: AtomicBool = AtomicBool::new(false);

/// Where libc's handlers return to, so that unwinders and debuggers know our frames as well.
static RESTORER: AtomicU64 = AtomicU64::new(0);

/// The change that a word is of: which place counts, since when.
fn change_of(word: u64) -> u64 {
    word & (PLACE | !(CHANGE - 1))
}

impl Kept {
    const fn new() -> Kept {
        let places = [const { [const { AtomicU64::new(0) }; 4] }; PLACES];
        Kept { current: AtomicU64::new(INSTALLED | TAKEN), places }
    }

    /// The action, and the word that said where it is.
    fn read(&self) -> (Action, u64) {
        loop {
            // Acquire pairs with the Release that ends `exchange`.
            let current = self.current.load(Ordering::Acquire);
            let words = &self.places[(current & PLACE) as usize];
            let [handler, flags, restorer, mask] = [0, 1, 2, 3].map(|at: usize| words[at].load(Ordering::Relaxed));
            // Pairs with the Release fence in `fill`: if a word is that of a later action, so is `current`.
            fence(Ordering::Acquire);
            if change_of(current) == change_of(self.current.load(Ordering::Relaxed)) {
                return (Action { handler, flags, restorer, mask }, current);
            }
        }
    }

    /// A place that is nobody's.
    fn take_place(&self) -> u64 {
        let mut tries = 0;
        loop {
            let current = self.current.load(Ordering::Relaxed);
            let place = u64::from((!(current / TAKEN)).trailing_zeros());
            if place < PLACES as u64 {
                // Acquire pairs with the Release by which it ceased to count.
                let taken = current | TAKEN << place;
                if self.current.compare_exchange(current, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return place;
                }
                continue;
            }
            tries += 1;
            nap(tries); // who has one may have no CPU
            if tries > TRIES {
                // Those of threads that a fork has left behind, or of handlers that were left by a jump.
                let free = current & !(CHANGE - TAKEN) | TAKEN << (current & PLACE);
                let _ = self.current.compare_exchange(current, free, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    fn fill(&self, place: u64, action: &Action) {
        // Pairs with the Acquire fence in `read`: the place does not count any more for who sees these.
        fence(Ordering::Release);
        let values = [action.handler, action.flags, action.restorer, action.mask];
        for (word, value) in self.places[place as usize].iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Puts what `change` makes of the action in its place: both, and the words that say where they are.
    fn exchange(&self, change: impl Fn(&Action) -> Action) -> [(Action, u64); 2] {
        let place = self.take_place();
        loop {
            let (old, before) = self.read();
            let new = change(&old);
            self.fill(place, &new);
            let others = before & !(PLACE | INSTALLED | TAKEN << (before & PLACE));
            let now = others.wrapping_add(CHANGE) | place;
            // Release pairs with the Acquire in `read`, and in `take_place`.
            if self.current.compare_exchange(before, now, Ordering::Release, Ordering::Relaxed).is_ok() {
                return [(old, before), (new, now)];
            }
        }
    }

    /// The kernel has been told what the word says where to find; false if that does not count any more.
    fn note_installed(&self, word: u64) -> bool {
        let mut now = word;
        while change_of(now) == change_of(word) {
            match self.current.compare_exchange(now, now | INSTALLED, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// What is installed already is the program's action.
    fn set(&self, action: &Action) {
        let [_, (_, word)] = self.exchange(|_| *action);
        self.note_installed(word);
    }
}

/// After how many naps a place that is taken is nobody's.
const TRIES: u32 = 1000;

/// Excludes others that take signals over, and signal handlers on this thread. The word is the owner's thread id: a child that was
/// forked while another thread held the lock finds an owner that does not exist, and takes it from it.
pub struct Lock {
    mask: u64,
}

static OWNER: AtomicUsize = AtomicUsize::new(0);

impl Lock {
    /// Waits for the lock, with every signal of this thread blocked.
    pub fn take() -> Self {
        let mask = set_mask(u64::MAX);
        let me = sys::thread_id() as usize;
        let mut tries = 0_u32;
        // Acquire pairs with the Release in `drop`.
        while let Err(owner) = OWNER.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed) {
            tries += 1;
            if owner != 0 && tries.is_multiple_of(64) && !thread_lives(owner) {
                // Only one thread succeeds in taking a dead owner's place.
                if OWNER.compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    break;
                }
            }
            nap(tries);
        }
        Lock { mask }
    }

    /// The thread is to have `signals` unblocked when the lock is released; answers which of them it blocked.
    pub fn leave_open(&mut self, signals: u64) -> u64 {
        let blocked = self.mask & signals;
        self.mask &= !signals;
        blocked
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `take`.
        OWNER.store(0, Ordering::Release);
        set_mask(self.mask);
    }
}

/// rt_sigaction(2) itself.
fn kernel(signal: c_int, new: Option<&Action>, old: Option<&mut Action>) -> isize {
    let new = new.map_or(0, |new| core::ptr::from_ref(new) as usize);
    let old = old.map_or(0, |old| core::ptr::from_mut(old) as usize);
    // SAFETY: each is null or an exclusive or shared reference to a whole action.
    unsafe { sys::call(libc::SYS_rt_sigaction, [signal as usize, new, old, SET_SIZE, 0, 0]) }
}

/// What is really installed when the program's own action is `program`: our handler in place of one of the program's and for
/// every guarded signal, with the flags of the program's but for SA_RESETHAND, which [`reset`] does. Where a guarded signal
/// has no handler of the program's there is nothing to preserve, and an alternate stack is the safest place.
fn real(signal: c_int, program: &Action) -> Action {
    let is_guarded = guarded() & bit(signal) != 0;
    let mut flags = match program.handler {
        SIG_DFL | SIG_IGN if !is_guarded => return *program,
        SIG_DFL | SIG_IGN => (libc::SA_ONSTACK | libc::SA_RESTART) as u64,
        _ => program.flags & !(libc::SA_RESETHAND as u32 as u64),
    };
    if signal == libc::SIGSYS {
        // The program's SIGSYS handler may itself make a call that is trapped.
        flags |= libc::SA_NODEFER as u64;
    }
    // A guarded signal comes from our own code and may be on a small alternate stack, where a handler of the program's for
    // another signal, which natively is on the thread's stack, would have no room. [`deliver`](super) opens these again.
    let mask = if is_guarded { !guarded() } else { unblocking(signal, program.mask) };
    let handler = way().entry as *const () as u64;
    let mut real = with_restorer(Action { handler, flags: flags | libc::SA_SIGINFO as u64, restorer: 0, mask });
    (way().adjust)(signal, &mut real);
    real
}

/// The handler of [`real`].
fn real_handler(signal: c_int, program: &Action) -> u64 {
    match program.handler {
        SIG_DFL | SIG_IGN if guarded() & bit(signal) == 0 => program.handler,
        _ => way().entry as *const () as u64,
    }
}

/// The action with the code by which libc's handlers end, where there is one.
fn with_restorer(action: Action) -> Action {
    match RESTORER.load(Ordering::Relaxed) {
        0 => Action { flags: action.flags & !SA_RESTORER, restorer: 0, ..action },
        restorer => Action { flags: action.flags | SA_RESTORER, restorer, ..action },
    }
}

/// `mask` without what a handler of `signal` must not block: SIGSYS never, the others only in their own handlers,
/// where the kernel would block them too.
fn unblocking(signal: c_int, mask: u64) -> u64 {
    if guarded() & bit(signal) != 0 {
        mask & !bit(libc::SIGSYS)
    } else {
        mask & !guarded()
    }
}

/// The extra signals blocked while the program's handler of `signal` runs, when its action is `program`.
pub fn blocking(signal: c_int, program: &Action) -> u64 {
    let stays_open = real(signal, program).flags & libc::SA_NODEFER as u64 != 0;
    unblocking(signal, program.mask) | if stays_open { 0 } else { bit(signal) }
}

/// The program's own action for `signal`, which is kept here. For use in a signal handler too.
pub fn of_program(signal: c_int) -> Action {
    KEPT.get(signal as usize).map_or_else(Action::default, |kept| kept.read().0)
}

/// SA_RESETHAND: the handler is about to run for the last time. As the kernel does, flags and mask stay.
pub fn reset(signal: c_int) {
    exchange_kept(signal, |old| Action { handler: SIG_DFL, ..*old });
}

/// Installs `action` for real, past everything here.
pub fn set_real(signal: c_int, action: &Action) {
    kernel(signal, Some(action), None);
}

/// Takes over the actions of the guarded signals, which `now_kept` says in between.
pub fn take_over_guarded(_lock: &Lock, now_kept: impl FnOnce()) -> Result<(), c_int> {
    let signals = || GUARDABLE.into_iter();
    keep(signals())?;
    now_kept();
    RESTORER.store((way().install_first)(libc::SIGSYS)?, Ordering::Relaxed);
    install_over(signals())
}

/// Takes over those of all other signals but the kernel's and glibc's own: every handler of the program's has ours in front of
/// it, and no sa_mask holds a guarded signal. Where the program's sigaction(2) is not the one of this library (a drop-in
/// liburing.so.2), it would read ours: there they stay as they are.
pub fn take_over_others(_lock: &Lock) -> Result<(), c_int> {
    if KEEPS_ALL.load(Ordering::Relaxed) {
        return Ok(());
    }
    let signals = || of_programs().filter(|signal| guarded() & bit(*signal) == 0);
    keep(signals())?;
    KEEPS_ALL.store(true, Ordering::Relaxed);
    match (way().sees_all)() {
        true => install_over(signals()),
        false => Ok(()),
    }
}

/// What is installed becomes the program's own action.
fn keep(mut signals: impl Iterator<Item = c_int>) -> Result<(), c_int> {
    signals.try_for_each(|signal| {
        KEPT[signal as usize].set(&installed(signal)?);
        Ok(())
    })
}

/// Installs what is to be in front of the program's own actions, where that is something else.
fn install_over(mut signals: impl Iterator<Item = c_int>) -> Result<(), c_int> {
    signals.try_for_each(|signal| {
        let program = of_program(signal);
        match real(signal, &program) == program || install(signal) {
            true => Ok(()),
            false => Err(libc::EINVAL),
        }
    })
}

/// Installs what is to be in front of the program's action, until that is the one which counts.
fn install(signal: c_int) -> bool {
    let kept = &KEPT[signal as usize];
    loop {
        let (program, word) = kept.read();
        let is_told = kernel(signal, Some(&real(signal, &program)), None) == 0;
        if kept.note_installed(word) {
            return is_told;
        }
    }
}

/// What is really installed for `signal`.
///
/// # Errors
/// What rt_sigaction(2) answered.
pub fn installed(signal: c_int) -> Result<Action, c_int> {
    let mut action = Action::default();
    match kernel(signal, None, Some(&mut action)) {
        0.. => Ok(without_rest(action)),
        error => Err(-error as c_int),
    }
}

/// Without the flag the restorer is whatever somebody had there.
fn without_rest(told: Action) -> Action {
    match told.flags & SA_RESTORER {
        0 => Action { restorer: 0, ..told },
        _ => told,
    }
}

/// Looks whether the program has set an action of a guarded signal past us: that becomes the one which is kept, and ours
/// comes in front of it. Where no instruction of the program's can do so, only a function that it has found in libc itself, the
/// commonest signal stands for all.
pub fn take_back() {
    let is_lost =
        |signal: &c_int| installed(*signal).is_ok_and(|real| real.handler != way().entry as *const () as u64);
    let is_asked = |signal: &&c_int| **signal == libc::SIGSEGV || !descriptors::closes_are_seen();
    if guarded() == 0 || !GUARDABLE.iter().filter(is_asked).any(is_lost) || super::in_borrowed_memory() {
        return;
    }
    let _lock = Lock::take();
    for signal in GUARDABLE.into_iter().filter(is_lost) {
        let Ok(program) = installed(signal) else { continue };
        KEPT[signal as usize].set(&program);
        install(signal);
    }
}

/// The signals whose actions are kept here.
fn of_programs() -> impl Iterator<Item = c_int> {
    (1..=SIGNALS).filter(|signal| not_programs() & bit(*signal) == 0)
}

/// All others, as a mask.
fn not_programs() -> u64 {
    way().left_alone | bit(libc::SIGKILL) | bit(libc::SIGSTOP)
}

/// Puts what `change` makes of the program's action in its place, and tells the kernel: by one system call, unless somebody else
/// does the same meanwhile. Answers the action before; one that was set past us is what it says.
fn exchange_kept(signal: c_int, change: impl Fn(&Action) -> Action) -> Action {
    let kept = &KEPT[signal as usize];
    let [(old, before), (new, word)] = kept.exchange(|old| {
        let new = change(old);
        // As the kernel does with every mask.
        Action { mask: new.mask & !(bit(libc::SIGKILL) | bit(libc::SIGSTOP)), ..new }
    });
    let mut was = Action::default();
    let is_told = kernel(signal, Some(&real(signal, &new)), Some(&mut was)) >= 0;
    if !kept.note_installed(word) {
        // Of two the kernel may have been told in the other order.
        install(signal);
    }
    match is_told && before & INSTALLED != 0 && was.handler != real_handler(signal, &old) {
        true => without_rest(was),
        false => old,
    }
}

/// The program's action for a signal that is kept; one that was set past us is what it says.
fn ask_kept(signal: c_int) -> Action {
    let (kept, word) = KEPT[signal as usize].read();
    let told = installed(signal).ok().filter(|_| word & INSTALLED != 0);
    told.filter(|now| now.handler != real_handler(signal, &kept)).unwrap_or(kept)
}

/// Whether `signal` is one whose action is kept here, for this process.
pub fn is_kept(signal: c_int) -> bool {
    let keeps = match KEEPS_ALL.load(Ordering::Relaxed) {
        true => (1..=SIGNALS).contains(&signal) && not_programs() & bit(signal) == 0,
        false => (1..=SIGNALS).contains(&signal) && guarded() & bit(signal) != 0,
    };
    keeps && !super::in_borrowed_memory()
}

/// Whether `signal` is guarded, in this process.
pub fn is_guarded(signal: c_int) -> bool {
    is_kept(signal) && guarded() & bit(signal) != 0
}

/// sigaction(2) for a signal of which [`is_kept`] holds: the old action, and `new` in its place.
pub fn exchange(signal: c_int, new: Option<Action>) -> Action {
    let Some(new) = new else { return ask_kept(signal) };
    exchange_kept(signal, |_| match new.restorer {
        0 => with_restorer(new),
        _ => new,
    })
}

/// rt_sigaction(2) by number, with the kernel's arguments.
pub fn system_call(args: [usize; 6]) -> isize {
    let [signal, new, old, size, ..] = args;
    let signal = signal as c_int;
    if size != SET_SIZE || !is_kept(signal) {
        // SAFETY: the program's own call.
        return unsafe { sys::call(libc::SYS_rt_sigaction, args) };
    }
    let wanted = match new {
        0 => None,
        _ => match mask::read_program(new) {
            Some(action) => Some(action),
            None => return -(libc::EFAULT as isize),
        },
    };
    let before = wanted.map_or_else(|| ask_kept(signal), |wanted| exchange_kept(signal, |_| wanted));
    if old != 0 && !mask::write_program(old, before) {
        return -(libc::EFAULT as isize);
    }
    0
}

// SAFETY: four integers.
unsafe impl sys::Plain for Action {}
// SAFETY: as above.
unsafe impl anyring_engine::os::Plain for Action {}
