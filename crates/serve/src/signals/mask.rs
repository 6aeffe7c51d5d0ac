//! The guarded signals that a thread wishes to block. They are never really blocked by that wish; it is kept beside
//! the thread's real mask, in thread-local memory of the initial-exec kind, which needs neither an allocation nor a
//! lock and is thus fit for signal handlers. Only the owning thread and its handlers touch it.

use super::deferred::Kept;
use super::{action, bit, guarded, in_borrowed_memory, index, GUARDABLE};
use crate::sys;
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::os;
use anyring_engine::os::handlers;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{compiler_fence, AtomicPtr, AtomicU64, Ordering};
use libc::{siginfo_t, sigset_t};

/// What one thread wishes.
#[repr(C)]
struct Thread {
    /// Guarded signals it blocks.
    wished: AtomicU64,
    /// Of these, the ones that arrived meanwhile.
    held: AtomicU64,
    /// Guarded signals that are blocked since handlers of them run, or were left otherwise than by return; not by the wish that
    /// the thread had before.
    by_handlers: AtomicU64,
    /// The child in this memory (vfork(2)) that has its own mask in truth, and not what the thread wishes. 0 for none.
    settled: AtomicU64,
    /// Signals of the program's that wait until no lock is held.
    kept: AtomicPtr<Kept>,
    /// How each of these arrived.
    infos: [core::mem::MaybeUninit<siginfo_t>; GUARDABLE.len()],
}

const SIZE: usize = 40 + 3 * 128;
const _: () = assert!(size_of::<Thread>() == SIZE && align_of::<Thread>() <= 16);

anyring_engine::thread_local_memory!("anyring_thread_signals", SIZE);

/// The calling thread's record.
fn thread() -> *mut Thread {
    anyring_engine::own_memory!("anyring_thread_signals")
}

fn words() -> (&'static AtomicU64, &'static AtomicU64) {
    let thread = thread();
    // SAFETY: thread-local memory lives as long as the thread, which cannot hand these references to another.
    unsafe { (&(*thread).wished, &(*thread).held) }
}

/// The calling thread's list of signals that wait.
pub(super) fn kept() -> &'static AtomicPtr<Kept> {
    // SAFETY: as above.
    unsafe { &(*thread()).kept }
}

fn by_handlers() -> &'static AtomicU64 {
    // SAFETY: as above.
    unsafe { &(*thread()).by_handlers }
}

/// The guarded signals that the calling thread wishes to block.
pub fn wished() -> u64 {
    words().0.load(Ordering::Relaxed)
}

/// What the thread blocks of the guarded signals becomes a wish.
pub fn take_over(blocked: u64) {
    words().0.fetch_or(blocked, Ordering::Relaxed);
}

/// All that the calling thread really blocks.
pub fn real_now() -> u64 {
    let mut real = 0_u64;
    let ask = [libc::SIG_BLOCK as usize, 0, &raw mut real as usize, 8, 0, 0];
    // SAFETY: the set is a local.
    unsafe { sys::call(libc::SYS_rt_sigprocmask, ask) };
    real
}

/// What the calling thread really blocks of the guarded signals, since it has done so from before they were guarded or by an
/// instruction that nobody saw, becomes a wish. False in a process whose masks are not kept here.
pub fn open_here() -> bool {
    if !active() {
        return false;
    }
    action::take_back();
    let blocked = real_now() & guarded();
    if blocked != 0 {
        take_over(blocked); // before anything arrives that was pending
        let open = [libc::SIG_UNBLOCK as usize, &raw const blocked as usize, 0, 8, 0, 0];
        // SAFETY: as above.
        unsafe { sys::call(libc::SYS_rt_sigprocmask, open) };
    }
    true
}

/// How a thread blocks what is guarded when a handler of the program's begins: what it does again when that returns.
pub struct Interrupted {
    wished: u64,
    by_handlers: u64,
    seen: bool,
}

impl Interrupted {
    /// A handler begins that really blocks these guarded signals: whoever is to copy from memory that may be a bad pointer, in
    /// the handler or where it was left for, opens them first.
    pub fn by_handler(blocking: u64) -> Interrupted {
        let (wished, by_handlers) = (wished(), by_handlers());
        let before =
            Interrupted { wished, by_handlers: by_handlers.load(Ordering::Relaxed), seen: handlers::is_seen() };
        if blocking != 0 && !mutated(Mutation::HandlersLeaveFaultsBlocked) {
            by_handlers.fetch_or(blocking & !wished, Ordering::Relaxed);
            handlers::set_seen(false);
        }
        before
    }

    /// The handler is about to return, by which the kernel sets the mask.
    pub fn go_on(self) {
        words().0.store(self.wished, Ordering::Relaxed);
        by_handlers().store(self.by_handlers, Ordering::Relaxed);
        handlers::set_seen(self.seen);
        deliver_held();
    }
}

/// In a jmp_buf, behind the registers (glibc's bits/types/struct___jmp_buf_tag.h): whether the mask was saved.
const MASK_WAS_SAVED: usize = os::arch::JUMP_WORDS * size_of::<u64>();
/// The mask.
const SAVED_MASK: usize = MASK_WAS_SAVED + size_of::<u64>();

/// libc is about to fill `environment`, and saves the thread's mask: what it believes goes beside that.
///
/// # Safety
/// `environment` is a sigjmp_buf.
pub unsafe fn note_in_environment(environment: *mut c_void) {
    // SAFETY: the caller vouches for it: libc's set there has two words.
    unsafe { note(environment.byte_add(SAVED_MASK).cast()) };
}

/// The calling thread is about to leave by longjmp(3) to where `environment` was filled: if the mask was saved there, the thread
/// believes what it did then.
///
/// # Safety
/// `environment` is a jmp_buf that has been filled.
pub unsafe fn leaving_by_jump(environment: *const c_void) {
    // SAFETY: the caller vouches for it.
    unsafe {
        if environment.byte_add(MASK_WAS_SAVED).cast::<c_int>().read() == 0 {
            return;
        }
        let left = by_handlers().load(Ordering::Relaxed);
        // The set itself holds no guarded signal: libc has read it from the kernel.
        let _ = goes_on_with(environment.byte_add(SAVED_MASK).cast());
        if left != 0 && active() {
            by_handlers().store(0, Ordering::Relaxed);
            handlers::set_seen(false);
        }
    }
}

/// In the second word of a set, which the kernel does not know: what the thread believed to block of the guarded
/// signals, which are not among them in truth. The rest of the word is this.
const NOTE: u64 = 0x616e_7972_0000_0000;
const _: () = assert!(super::ALL & !0xffff_ffff == 0);

/// The first two words of a set: the kernel's, and where a note may be.
fn words_of(set: &sigset_t) -> [u64; 2] {
    // SAFETY: libc's sets have room for 1024 signals.
    unsafe { core::ptr::from_ref(set).cast::<[u64; 2]>().read() }
}

/// In a note: nothing else was blocked. Then a set that is empty was not emptied since.
const ALONE: u64 = 1;

/// The note of what is `missing` in a set whose first word is `real`.
fn note_of(missing: u64, real: u64) -> u64 {
    NOTE | missing | if real == 0 { ALONE } else { 0 }
}

fn is_note(word: u64) -> bool {
    word & !(super::ALL | ALONE) == NOTE
}

/// What the note says in a set that was not emptied since.
fn noted([real, note]: [u64; 2]) -> Option<u64> {
    (is_note(note) && (real != 0 || note & ALONE != 0)).then_some(note & super::ALL)
}

/// All the signals of a set.
pub fn word(set: &sigset_t) -> u64 {
    words_of(set)[0]
}

/// What was given to [`with_note`] for this set; `None` if it is no such set.
pub fn without_note(set: &sigset_t) -> Option<sigset_t> {
    let words = words_of(set);
    noted(words).map(|missing| as_set(words[0] | missing))
}

/// The set that may be set in truth, with a note of what is missing; `None` where nothing is, or masks are not kept here.
pub fn with_note(set: &sigset_t) -> Option<sigset_t> {
    let [wanted, _] = words_of(set);
    let missing = wanted & super::ALL;
    if missing == 0 || !are_kept(libc::SIG_SETMASK, Some(wanted)) {
        return None;
    }
    let mut really = as_set(wanted & !missing);
    // SAFETY: as in `words_of`.
    unsafe { (&raw mut really).cast::<u64>().add(1).write(note_of(missing, wanted & !missing)) };
    Some(really)
}

/// A set without the guarded signals, if it has any and there are any.
pub fn stripped(set: &sigset_t) -> Option<sigset_t> {
    (word(set) & guarded() != 0).then(|| as_set(word(set) & !guarded()))
}

/// libc is about to have the kernel write the thread's mask to `set`: what it believes goes beside that.
///
/// # Safety
/// The set may be written.
pub unsafe fn note(set: *mut sigset_t) {
    if guarded() != 0 {
        let note = match wished() {
            0 => 0,
            wished => note_of(wished, real_now()),
        };
        // SAFETY: the caller vouches for it; the set need not be initialised, nor be longer than two words.
        unsafe { set.cast::<u64>().add(1).write(note) };
    }
}

/// libc is about to set this mask of a context: the thread believes what it says from now on. Answers what is to be set instead,
/// if that is something else.
///
/// # Safety
/// The set may be read, as the kernel reads it, and the word behind that.
pub unsafe fn goes_on_with(set: *const sigset_t) -> Option<sigset_t> {
    // SAFETY: the caller vouches for it; a context that a handler was passed has something else behind the kernel's word.
    let words = unsafe { set.cast::<[u64; 2]>().read() };
    let [real, note] = words;
    let (missing, before) = (real & super::ALL, wished());
    let wanted = match noted(words) {
        Some(noted) => noted | missing,
        // Nothing was noted, or the program has emptied or filled the set.
        None if [0, u64::MAX].contains(&note) || is_note(note) => missing,
        None => before & !by_handlers().load(Ordering::Relaxed) | missing,
    };
    if (missing == 0 && wanted == before) || !are_kept(libc::SIG_SETMASK, Some(missing)) {
        return None;
    }
    changed(libc::SIG_SETMASK, Some(wanted));
    (missing != 0).then(|| as_set(real & !missing))
}

/// Keeps a signal that came while the thread wished to block it. As in the kernel, one of a kind is enough.
pub fn hold(signal: c_int, info: &siginfo_t) {
    let (thread, Some(index)) = (thread(), index(signal)) else {
        return;
    };
    let (_, held) = words();
    if held.load(Ordering::Relaxed) & bit(signal) == 0 {
        // SAFETY: own thread-local memory; the bit says that nobody reads this slot.
        unsafe { (*thread).infos[index].write(*info) };
        compiler_fence(Ordering::Release);
        held.fetch_or(bit(signal), Ordering::Relaxed);
    }
}

/// Sends this thread what was held and is no longer blocked; whether there was anything.
pub fn deliver_held() -> bool {
    let (wished, held) = words();
    let mut due = held.load(Ordering::Relaxed) & !wished.load(Ordering::Relaxed);
    let any = due != 0;
    while due != 0 {
        let signal = due.trailing_zeros() as c_int + 1;
        due &= due - 1;
        let Some(index) = index(signal) else {
            continue;
        };
        // SAFETY: own thread-local memory, written before the bit was set; the copy is taken before the bit is
        // cleared. The kernel reads the copy.
        unsafe {
            let info = (*thread()).infos[index].assume_init();
            held.fetch_and(!bit(signal), Ordering::Relaxed);
            let (process, id) = (sys::process_id() as usize, sys::thread_id() as usize);
            let target = [process, id, signal as usize, &raw const info as usize, 0, 0];
            sys::call(libc::SYS_rt_tgsigqueueinfo, target);
        }
    }
    any
}

/// The held signals, for sigpending(2).
pub fn held() -> u64 {
    words().1.load(Ordering::Relaxed)
}

/// Whether masks need any care in this process.
#[inline]
pub fn active() -> bool {
    guarded() != 0 && !in_borrowed_memory() && !mutated(Mutation::ProgramBlocksSigsys)
}

/// Whether masks need any care now that the program asks for `set`, `how` as in sigprocmask(2): from when it first would block
/// what is never to be blocked.
pub fn are_kept(how: c_int, set: Option<u64>) -> bool {
    if guarded() == 0 && how != libc::SIG_UNBLOCK && set.is_some_and(|set| set & super::ALL != 0) {
        super::believe();
    }
    active()
}

/// What the calling thread believes to block without having it in its mask, nor anybody who sees the mask: a wish, but not that of a
/// child in borrowed memory that has set its mask since.
fn unseen() -> u64 {
    match wished() {
        0 => 0,
        // SAFETY: own thread-local memory.
        _ if unsafe { &(*thread()).settled }.load(Ordering::Relaxed) == sys::process_id() as u64 => 0,
        wished => wished,
    }
}

/// A child in borrowed memory, whose masks are not kept here, is about to change its mask, `how` as in sigprocmask(2), or to ask for
/// it: then `None`. Answers what belongs to what it is told of the mask before.
pub fn settle(how: Option<c_int>) -> u64 {
    let unseen = unseen();
    let Some(how) = how.filter(|_| unseen != 0) else { return unseen };
    if how != libc::SIG_SETMASK {
        action::set_mask(real_now() | unseen);
    }
    // SAFETY: own thread-local memory; the parent's thread waits.
    unsafe { &(*thread()).settled }.store(sys::process_id() as u64, Ordering::Relaxed);
    unseen
}

/// Runs an exec(3), or a spawn: the program that it starts inherits the mask that the thread believes to have.
pub fn inherited<T>(start: impl FnOnce() -> T) -> T {
    let unseen = unseen();
    if unseen == 0 {
        return start();
    }
    let before = action::set_mask(real_now() | unseen);
    let answer = start();
    action::set_mask(before);
    answer
}

/// The mask that a program is to inherit, where it is another than the thread has in truth.
pub fn to_inherit() -> Option<u64> {
    Some(unseen()).filter(|unseen| *unseen != 0).map(|unseen| real_now() | unseen)
}

/// The mask to really set where the program asks for `set`, `how` as in sigprocmask(2).
pub fn real(how: c_int, set: u64) -> u64 {
    if how == libc::SIG_UNBLOCK {
        set
    } else {
        set & !guarded()
    }
}

/// Notes what the program asked for, after the kernel accepted it; answers the wish before.
pub fn changed(how: c_int, set: Option<u64>) -> u64 {
    let (wished, _) = words();
    let before = wished.load(Ordering::Relaxed);
    let Some(set) = set.map(|set| set & guarded()) else {
        return before;
    };
    let now = match how {
        libc::SIG_BLOCK => before | set,
        libc::SIG_UNBLOCK => before & !set,
        _ => set,
    };
    wished.store(now, Ordering::Relaxed);
    let said = if how == libc::SIG_SETMASK { u64::MAX } else { set };
    by_handlers().fetch_and(!said, Ordering::Relaxed);
    deliver_held();
    before
}

/// rt_sigprocmask(2) by number, with the kernel's arguments.
pub fn system_call(args: [usize; 6]) -> isize {
    let [how, set, old, size, ..] = args;
    // SAFETY: the program's own call, or one with a local copy of its set.
    let kernel = |set: usize| unsafe { sys::call(libc::SYS_rt_sigprocmask, [how, set, old, size, 0, 0]) };
    // Before there is a guard a bad pointer can be read by the kernel only.
    if size != 8 || guarded() == 0 && !os::kernel_copies() {
        return kernel(set);
    }
    let wanted = if set == 0 { None } else { read_program(set) };
    if !are_kept(how as c_int, wanted) {
        let before = settle(wanted.map(|_| how as c_int));
        let answer = kernel(set);
        if answer == 0 && old != 0 && before != 0 {
            tell(old, before);
        }
        return answer;
    }
    let really = wanted.map(|wanted| real(how as c_int, wanted));
    let answer = kernel(really.as_ref().map_or(set, |really| core::ptr::from_ref(really) as usize));
    if answer < 0 {
        return answer;
    }
    let before = changed(how as c_int, wanted);
    if old != 0 && before != 0 {
        tell(old, before);
    }
    answer
}

/// What the program has at `from`. The guarded routine takes no call for it, and opens what it needs to where that is blocked.
pub(super) fn read_program<T: sys::Plain + os::Plain>(from: usize) -> Option<T> {
    if active() {
        os::user_read(from as u64).ok()
    } else {
        sys::read_program(from as *const T)
    }
}

/// Tells the program at `to`, likewise; whether it can be told there.
pub(super) fn write_program<T: sys::Plain + os::Plain>(to: usize, value: T) -> bool {
    if active() {
        os::user_write(to as u64, &value).is_ok()
    } else {
        sys::write_program(to as *mut T, value)
    }
}

/// Adds to the mask that the kernel has told.
fn tell(old: usize, before: u64) {
    if let Some(real) = read_program::<u64>(old) {
        write_program(old, real | before);
    }
}

/// Runs a waiting system call that has a mask of its own, `size` bytes at `mask`, with one that blocks no guarded
/// signal. The answer is the register: -EINTR at once if a held signal becomes due.
pub fn with_temporary(mask: *const u64, size: usize, wait: impl FnOnce(*const u64) -> isize) -> isize {
    if mask.is_null() || size != 8 || !active() {
        return wait(mask);
    }
    let Some(wanted) = sys::read_program(mask) else {
        return wait(mask);
    };
    temporarily(wanted, || {
        let really = wanted & !guarded();
        wait(&really)
    })
    .unwrap_or(-(libc::EINTR as isize))
}

/// The same for libc's functions, with errno.
pub fn with_temporary_set(mask: *const sigset_t, wait: impl FnOnce(*const sigset_t) -> c_int) -> c_int {
    if mask.is_null() || !active() {
        return wait(mask);
    }
    // Eight bytes, as the kernel reads. A bad pointer is its to answer.
    let Ok(wanted) = os::user_read::<u64>(mask as u64) else {
        return wait(mask);
    };
    temporarily(wanted, || wait(&as_set(wanted & !guarded()))).unwrap_or_else(|| {
        sys::set_errno(libc::EINTR);
        -1
    })
}

/// Runs `wait` with `wanted` as the thread's wish; `None` if a held signal came first.
fn temporarily<T>(wanted: u64, wait: impl FnOnce() -> T) -> Option<T> {
    let (wished, _) = words();
    let before = wished.swap(wanted & guarded(), Ordering::Relaxed);
    let answer = if deliver_held() { None } else { Some(wait()) };
    wished.store(before, Ordering::Relaxed);
    answer
}

/// A libc set of the signals in `mask`.
pub fn as_set(mask: u64) -> sigset_t {
    // SAFETY: all zeroes is a valid (empty) set, and its first word is the kernel's.
    unsafe {
        let mut set: sigset_t = core::mem::zeroed();
        (&raw mut set).cast::<u64>().write(mask);
        set
    }
}
