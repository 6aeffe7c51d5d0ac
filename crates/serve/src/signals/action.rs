//! The program's own signal actions, and the actions that are really installed in their place.
//!
//! A thread that takes signals over holds [`Lock`]. Code that changes one action takes no lock, and neither does a
//! signal handler that reads it.

use super::{bit, guarded, mask, way, GUARDABLE};
use crate::sys;
use anyring_engine::descriptors;
use anyring_engine::os::nap;
use core::ffi::c_int;
use core::sync::atomic::{fence, AtomicU64, AtomicUsize, Ordering};

pub use crate::sys::{set_mask, thread_lives};

/// SIG_DFL as the kernel holds it.
pub const SIG_DFL: u64 = libc::SIG_DFL as u64;
/// SIG_IGN as the kernel holds it.
pub const SIG_IGN: u64 = libc::SIG_IGN as u64;
/// The flag of an action that names the code which ends the handler. On x86-64 every action does. On aarch64 the
/// kernel has such code, and libc names none.
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
    /// The code to which the handler returns.
    pub restorer: u64,
    /// Signals blocked while the handler runs.
    pub mask: u64,
}

/// Number of places for one action. Each handler that interrupts an exchange may begin another.
const PLACES: usize = 8;
/// The bits of [`Kept::current`] that hold the index of the current place.
const PLACE: u64 = 7;
/// The bit of [`Kept::current`] that is set if place 0 is taken. The bits of the other places follow. A place is taken
/// if it is current or being filled.
const IN_USE: u64 = 8;
/// The unit of the count of changes in [`Kept::current`]. The count takes the remaining bits.
const CHANGE: u64 = IN_USE << PLACES;

/// One of the program's signal actions. It has no lock, since a handler may interrupt the code that changes the action,
/// change it as well, and leave by a jump.
struct Kept {
    /// The word that the constants above describe.
    current: AtomicU64,
    /// The change whose action was last installed in the kernel, as [`change_of`] returns it. Relaxed: a hint, by which
    /// an action that the program has set past anyring is recognized.
    installed: AtomicU64,
    places: [[AtomicU64; 4]; PLACES],
}

/// The program's actions, by signal number.
static KEPT: [Kept; SIGNALS as usize + 1] = [const { Kept::new() }; SIGNALS as usize + 1];

/// The signals whose actions are kept in addition to those of the guarded signals. Relaxed: written under [`Lock`].
static OTHERS: AtomicU64 = AtomicU64::new(0);

/// The code to which libc's handlers return. With it, unwinders and debuggers also recognize the frames of the handler
/// here.
static RESTORER: AtomicU64 = AtomicU64::new(0);

/// Returns the part of [`Kept::current`] that identifies a change: the current place, and the count of changes.
fn change_of(word: u64) -> u64 {
    word & (PLACE | !(CHANGE - 1))
}

impl Kept {
    const fn new() -> Kept {
        let places = [const { [const { AtomicU64::new(0) }; 4] }; PLACES];
        Kept { current: AtomicU64::new(IN_USE), installed: AtomicU64::new(0), places }
    }

    /// Returns the action, and the value of `current` that said where it is.
    fn read(&self) -> (Action, u64) {
        loop {
            // Acquire pairs with the Release that ends `exchange`.
            let current = self.current.load(Ordering::Acquire);
            let words = &self.places[(current & PLACE) as usize];
            let [handler, flags, restorer, mask] = [0, 1, 2, 3].map(|at: usize| words[at].load(Ordering::Relaxed));
            // Pairs with the Release fence in `fill`: if one of these words belongs to a later action, `current` does
            // too.
            fence(Ordering::Acquire);
            if change_of(current) == change_of(self.current.load(Ordering::Relaxed)) {
                return (Action { handler, flags, restorer, mask }, current);
            }
        }
    }

    /// Claims a free place.
    fn claim_place(&self) -> u64 {
        let mut tries = 0;
        loop {
            let current = self.current.load(Ordering::Relaxed);
            let place = u64::from((!(current / IN_USE)).trailing_zeros());
            if place < PLACES as u64 {
                // Acquire pairs with the Release by which it ceased to be current.
                let taken = current | IN_USE << place;
                if self.current.compare_exchange(current, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return place;
                }
                continue;
            }
            tries += 1;
            nap(tries); // a thread that has taken a place may be waiting for a CPU
            if tries > TRIES {
                // The places belong to threads that the fork left out, or to handlers that were left by a jump.
                let free = current & !(CHANGE - IN_USE) | IN_USE << (current & PLACE);
                let _ = self.current.compare_exchange(current, free, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    fn fill(&self, place: u64, action: &Action) {
        // Pairs with the Acquire fence in `read`: a reader that sees these words also sees that the place is no
        // longer current.
        fence(Ordering::Release);
        let values = [action.handler, action.flags, action.restorer, action.mask];
        for (word, value) in self.places[place as usize].iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Replaces the action by the result of `change`. Returns the old and the new action, each with the value of
    /// `current` that says where it is.
    fn exchange(&self, change: impl Fn(&Action) -> Action) -> [(Action, u64); 2] {
        let place = self.claim_place();
        loop {
            let (old, before) = self.read();
            let new = change(&old);
            self.fill(place, &new);
            let others = before & !(PLACE | IN_USE << (before & PLACE));
            let now = others.wrapping_add(CHANGE) | place;
            // Release pairs with the Acquire in `read`, and in `claim_place`.
            if self.current.compare_exchange(before, now, Ordering::Release, Ordering::Relaxed).is_ok() {
                return [(old, before), (new, now)];
            }
        }
    }

    /// Records that the kernel has the action that this value of `current` names. False if that action is no longer
    /// current.
    fn record_installed(&self, word: u64) -> bool {
        let is_current = change_of(self.current.load(Ordering::Relaxed)) == change_of(word);
        if is_current {
            self.installed.store(change_of(word), Ordering::Relaxed);
        }
        is_current
    }

    /// True if the kernel has the action that this value of `current` names.
    fn is_installed(&self, word: u64) -> bool {
        self.installed.load(Ordering::Relaxed) == change_of(word)
    }

    /// Stores an installed action as the program's own.
    fn set(&self, action: &Action) {
        let [_, (_, word)] = self.exchange(|_| *action);
        self.record_installed(word);
    }
}

/// Number of short sleeps after which a taken place counts as abandoned.
const TRIES: u32 = 1000;

/// A lock for the code that takes signals over. While a thread holds it, no other thread takes signals over, and no
/// signal handler runs on this thread. The word is the owner's thread id. A child that was forked while another
/// thread held the lock finds an owner that does not exist, and takes the lock from it.
pub struct Lock {
    mask: u64,
}

static OWNER: AtomicUsize = AtomicUsize::new(0);

impl Lock {
    /// Waits for the lock, with every signal of this thread blocked.
    pub fn acquire() -> Self {
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

    /// Makes the release of the lock leave `signals` unblocked. Returns those of them that the thread blocked before.
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

/// Makes the rt_sigaction(2) call.
fn kernel(signal: c_int, new: Option<&Action>, old: Option<&mut Action>) -> isize {
    let new = new.map_or(0, |new| core::ptr::from_ref(new) as usize);
    let old = old.map_or(0, |old| core::ptr::from_mut(old) as usize);
    // SAFETY: each is null or an exclusive or shared reference to a whole action.
    unsafe { sys::call(libc::SYS_rt_sigaction, [signal as usize, new, old, SET_SIZE, 0, 0]) }
}

/// Returns the action to install when the program's own action is `program`. Its handler is anyring's, for each
/// guarded signal and for each other signal for which the program has a handler. Its flags are the program's,
/// except SA_RESETHAND, whose work [`reset`] does. If the program has no handler for a guarded signal, anyring's
/// handler runs on the alternate stack, which is the safest place.
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
    // A guarded signal may come from anyring's own code, and its handler may be on a small alternate stack. If the
    // program's handler for another signal interrupted it, that handler would run there instead of on the thread's
    // stack, and have no room. [`deliver`](super) unblocks the signals again.
    let mask = if is_guarded { !guarded() } else { unblocking(signal, program.mask) };
    let handler = way().entry as *const () as u64;
    let mut real = with_restorer(Action { handler, flags: flags | libc::SA_SIGINFO as u64, restorer: 0, mask });
    (way().adjust)(signal, &mut real);
    real
}

/// Returns the handler of the action that [`real`] returns.
fn real_handler(signal: c_int, program: &Action) -> u64 {
    match program.handler {
        SIG_DFL | SIG_IGN if guarded() & bit(signal) == 0 => program.handler,
        _ => way().entry as *const () as u64,
    }
}

/// Returns the action with the code by which libc's handlers end, if there is one.
fn with_restorer(action: Action) -> Action {
    match RESTORER.load(Ordering::Relaxed) {
        0 => Action { flags: action.flags & !SA_RESTORER, restorer: 0, ..action },
        restorer => Action { flags: action.flags | SA_RESTORER, restorer, ..action },
    }
}

/// Returns `mask` without the signals that a handler of `signal` must not block. SIGSYS is never blocked. Other
/// guarded signals are blocked only in handlers of guarded signals, where the kernel would block them too.
fn unblocking(signal: c_int, mask: u64) -> u64 {
    if guarded() & bit(signal) != 0 {
        mask & !bit(libc::SIGSYS)
    } else {
        mask & !guarded()
    }
}

/// Returns the additional signals that are blocked while the program's handler of `signal` runs, if its action is
/// `program`.
pub fn blocking(signal: c_int, program: &Action) -> u64 {
    let stays_open = real(signal, program).flags & libc::SA_NODEFER as u64 != 0;
    unblocking(signal, program.mask) | if stays_open { 0 } else { bit(signal) }
}

/// Returns the program's own action for `signal`, which is kept here. Signal handlers may call it, too.
pub fn of_program(signal: c_int) -> Action {
    KEPT.get(signal as usize).map_or_else(Action::default, |kept| kept.read().0)
}

/// Does the work of SA_RESETHAND: the handler is about to run for the last time. Flags and mask stay, as in the
/// kernel.
pub fn reset(signal: c_int) {
    change(signal, |old| Action { handler: SIG_DFL, ..*old });
}

/// Installs `action` in the kernel, whatever is kept here.
pub fn set_real(signal: c_int, action: &Action) {
    kernel(signal, Some(action), None);
}

/// Keeps the actions of the guarded signals. Calls `now_kept` once they are kept, before anyring's actions are
/// installed.
pub fn install_guarded(_lock: &Lock, now_kept: impl FnOnce()) -> Result<(), c_int> {
    let signals = || GUARDABLE.into_iter();
    keep(signals())?;
    now_kept();
    RESTORER.store((way().install_first)(libc::SIGSYS)?, Ordering::Relaxed);
    install_over(signals())
}

/// Keeps the actions of all other signals, except the kernel's and glibc's own. Then anyring's handler precedes
/// every handler of the program, and no sa_mask holds a guarded signal. If the program's sigaction(2) is libc's (with a
/// drop-in liburing.so.2), the program would read anyring's actions. In this case its own actions stay installed.
pub fn install_others(_lock: &Lock) -> Result<(), c_int> {
    if OTHERS.load(Ordering::Relaxed) != 0 {
        return Ok(());
    }
    let signals = || of_programs().filter(|signal| guarded() & bit(*signal) == 0);
    keep(signals())?;
    OTHERS.store(!not_programs(), Ordering::Relaxed);
    match (way().sees_all)() {
        true => install_over(signals()),
        false => Ok(()),
    }
}

/// Stores the installed actions as the program's own.
fn keep(mut signals: impl Iterator<Item = c_int>) -> Result<(), c_int> {
    signals.try_for_each(|signal| {
        KEPT[signal as usize].set(&installed(signal)?);
        Ok(())
    })
}

/// Installs anyring's actions in front of the program's own, where the two differ.
fn install_over(mut signals: impl Iterator<Item = c_int>) -> Result<(), c_int> {
    signals.try_for_each(|signal| {
        let program = of_program(signal);
        match real(signal, &program) == program || install(signal) {
            true => Ok(()),
            false => Err(libc::EINVAL),
        }
    })
}

/// Installs anyring's action in front of the program's. Repeats that if another thread changed the program's action
/// before the installation was done. False if the kernel refuses.
fn install(signal: c_int) -> bool {
    let kept = &KEPT[signal as usize];
    loop {
        let (program, word) = kept.read();
        let is_set = kernel(signal, Some(&real(signal, &program)), None) == 0;
        if kept.record_installed(word) {
            return is_set;
        }
    }
}

/// Returns the action that the kernel has for `signal`.
///
/// # Errors
/// The error of rt_sigaction(2).
pub fn installed(signal: c_int) -> Result<Action, c_int> {
    let mut action = Action::default();
    match kernel(signal, None, Some(&mut action)) {
        0.. => Ok(without_rest(action)),
        error => Err(-error as c_int),
    }
}

/// Clears the restorer if its flag is not set, since the field is undefined then.
fn without_rest(given: Action) -> Action {
    match given.flags & SA_RESTORER {
        0 => Action { restorer: 0, ..given },
        _ => given,
    }
}

/// Takes back the guarded signals for which the program has set an action unknown to anyring. The program's action
/// becomes the kept one, and anyring's is installed in front of it. If none of the program's instructions can set an
/// action, only a libc function that it looked up itself can do so. Then only SIGSEGV, the commonest signal, is
/// checked.
pub fn reinstall() {
    let is_lost =
        |signal: &c_int| installed(*signal).is_ok_and(|real| real.handler != way().entry as *const () as u64);
    let is_asked = |signal: &&c_int| **signal == libc::SIGSEGV || !descriptors::closes_are_seen();
    if guarded() == 0 || !GUARDABLE.iter().filter(is_asked).any(is_lost) || super::in_borrowed_memory() {
        return;
    }
    let _lock = Lock::acquire();
    for signal in GUARDABLE.into_iter().filter(is_lost) {
        let Ok(program) = installed(signal) else { continue };
        KEPT[signal as usize].set(&program);
        install(signal);
    }
}

/// Returns the signals whose actions are kept here.
fn of_programs() -> impl Iterator<Item = c_int> {
    (1..=SIGNALS).filter(|signal| not_programs() & bit(*signal) == 0)
}

/// Returns the mask of the signals whose actions are never kept here.
fn not_programs() -> u64 {
    way().reserved | bit(libc::SIGKILL) | bit(libc::SIGSTOP)
}

/// Replaces the program's action by the result of `change`, and installs it. This takes one system call, unless another
/// thread changes the action at the same time.
pub fn change(signal: c_int, change: impl Fn(&Action) -> Action) {
    replace(signal, change, None);
}

/// Does the work of [`change`], and returns the previous action. If the program had set that past anyring, it is the
/// kernel's.
fn exchange_kept(signal: c_int, change: impl Fn(&Action) -> Action) -> Action {
    let mut was = Action::default();
    let (old, is_there) = replace(signal, change, Some(&mut was));
    match is_there && was.handler != real_handler(signal, &old) {
        true => without_rest(was),
        false => old,
    }
}

/// Does the work of [`change`], and stores the kernel's action in `was`. Returns the previous action, and whether it
/// was installed.
fn replace(signal: c_int, change: impl Fn(&Action) -> Action, was: Option<&mut Action>) -> (Action, bool) {
    let kept = &KEPT[signal as usize];
    let [(old, before), (new, word)] = kept.exchange(|old| {
        let new = change(old);
        // As the kernel does with every mask.
        Action { mask: new.mask & !(bit(libc::SIGKILL) | bit(libc::SIGSTOP)), ..new }
    });
    let was_installed = kept.is_installed(before);
    let is_set = kernel(signal, Some(&real(signal, &new)), was) >= 0;
    if !kept.record_installed(word) {
        // Two threads may have called the kernel in the other order.
        install(signal);
    }
    (old, was_installed && is_set)
}

/// Returns the program's action for a signal whose action is kept. If the program has set an action unknown to
/// anyring, the answer is the one that the kernel has.
fn ask_kept(signal: c_int) -> Action {
    let kept = &KEPT[signal as usize];
    let (program, word) = kept.read();
    let now = installed(signal).ok().filter(|_| kept.is_installed(word));
    now.filter(|now| now.handler != real_handler(signal, &program)).unwrap_or(program)
}

/// True if the action of `signal` is kept here, for this process.
pub fn is_kept(signal: c_int) -> bool {
    let kept = guarded() | OTHERS.load(Ordering::Relaxed);
    (1..=SIGNALS).contains(&signal) && kept & bit(signal) != 0 && !super::in_borrowed_memory()
}

/// True if `signal` is guarded, in this process.
pub fn is_guarded(signal: c_int) -> bool {
    is_kept(signal) && guarded() & bit(signal) != 0
}

/// Serves sigaction(2) for a signal whose action [is kept](is_kept): returns the old action, and sets `new`.
pub fn exchange(signal: c_int, new: Option<Action>) -> Action {
    match new {
        Some(new) => exchange_kept(signal, |_| by_libc(new)),
        None => ask_kept(signal),
    }
}

/// Does the same as [`exchange`] for a caller that does not ask for the old action.
pub fn set(signal: c_int, new: Action) {
    change(signal, |_| by_libc(new));
}

/// Returns an action of libc's sigaction(3) as libc passes it on to the kernel.
fn by_libc(action: Action) -> Action {
    match action.restorer {
        0 => with_restorer(action),
        _ => action,
    }
}

/// Serves rt_sigaction(2) by number, with the kernel's arguments.
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
    if let (Some(wanted), 0) = (wanted, old) {
        change(signal, |_| wanted);
        return 0;
    }
    let before = wanted.map_or_else(|| ask_kept(signal), |wanted| exchange_kept(signal, |_| wanted));
    match old == 0 || mask::write_program(old, before) {
        true => 0,
        false => -(libc::EFAULT as isize),
    }
}

// SAFETY: four integers.
unsafe impl sys::Plain for Action {}
// SAFETY: as above.
unsafe impl anyring_engine::os::Plain for Action {}
