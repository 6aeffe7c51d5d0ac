//! The *program mask* of a thread: the guarded signals that the thread has asked to block. They are not in its real
//! mask, since they must never really be blocked. The program mask is kept in thread-local memory of the initial-exec
//! kind. Such memory needs neither an allocation nor a lock, so signal handlers may use it. Only the owning thread and
//! its handlers touch it.

use super::deferred::Kept;
use super::{action, bit, guarded, in_borrowed_memory, index, GUARDABLE};
use crate::sys;
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::os;
use anyring_engine::os::handlers;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{compiler_fence, AtomicPtr, AtomicU64, Ordering};
use libc::{siginfo_t, sigset_t};

/// The record of one thread's program mask.
#[repr(C)]
struct Thread {
    /// The program mask: guarded signals that the thread has asked to block.
    blocked_by_program: AtomicU64,
    /// Signals of the program mask that have arrived and are held.
    held: AtomicU64,
    /// Guarded signals that are really blocked because a handler runs, or was left by a jump. Those that were in the
    /// program mask before are not among them.
    by_handlers: AtomicU64,
    /// The process id of a child in this memory (vfork(2)) that has set its own mask. The program mask does not apply
    /// to such a child any more. 0 if there is none.
    settled: AtomicU64,
    /// The program's signals that wait until the thread holds no engine lock.
    kept: AtomicPtr<Kept>,
    /// The siginfo of each held signal.
    infos: [core::mem::MaybeUninit<siginfo_t>; GUARDABLE.len()],
}

const SIZE: usize = 40 + 3 * 128;
const _: () = assert!(size_of::<Thread>() == SIZE && align_of::<Thread>() <= 16);

anyring_engine::thread_local_memory!("anyring_thread_signals", SIZE);

/// Returns the calling thread's record.
fn thread() -> *mut Thread {
    anyring_engine::own_memory!("anyring_thread_signals")
}

fn words() -> (&'static AtomicU64, &'static AtomicU64) {
    let thread = thread();
    // SAFETY: thread-local memory lives as long as the thread, which cannot hand these references to another.
    unsafe { (&(*thread).blocked_by_program, &(*thread).held) }
}

/// Returns the calling thread's list of signals that wait.
pub(super) fn kept() -> &'static AtomicPtr<Kept> {
    // SAFETY: as above.
    unsafe { &(*thread()).kept }
}

fn by_handlers() -> &'static AtomicU64 {
    // SAFETY: as above.
    unsafe { &(*thread()).by_handlers }
}

/// Returns the calling thread's program mask.
pub fn blocked_by_program() -> u64 {
    words().0.load(Ordering::Relaxed)
}

/// Adds guarded signals that the thread really blocks to its program mask.
pub fn add_blocked(blocked: u64) {
    words().0.fetch_or(blocked, Ordering::Relaxed);
}

/// Returns all signals that the calling thread really blocks.
pub fn real_now() -> u64 {
    let mut real = 0_u64;
    let ask = [libc::SIG_BLOCK as usize, 0, &raw mut real as usize, 8, 0, 0];
    // SAFETY: the set is a local.
    unsafe { sys::call(libc::SYS_rt_sigprocmask, ask) };
    real
}

/// Unblocks the guarded signals that the calling thread really blocks, and adds them to its program mask. The thread
/// blocked them before they were guarded, or by an instruction that nothing traps. False in a process whose masks are
/// not kept here.
pub fn open_here() -> bool {
    if !active() {
        return false;
    }
    action::reinstall();
    let blocked = real_now() & guarded();
    if blocked != 0 {
        add_blocked(blocked); // before anything arrives that was pending
        let open = [libc::SIG_UNBLOCK as usize, &raw const blocked as usize, 0, 8, 0, 0];
        // SAFETY: as above.
        unsafe { sys::call(libc::SYS_rt_sigprocmask, open) };
    }
    true
}

/// The thread's record as it was when one of the program's handlers began. It is restored when the handler returns.
pub struct Interrupted {
    blocked_by_program: u64,
    by_handlers: u64,
    seen: bool,
}

impl Interrupted {
    /// Records that a handler begins during which these guarded signals are really blocked. Code that copies from a
    /// pointer which may be bad must unblock them first. This applies in the handler, and after a jump out of it.
    pub fn by_handler(blocking: u64) -> Interrupted {
        let (blocked_by_program, by_handlers) = (blocked_by_program(), by_handlers());
        let before = Interrupted {
            blocked_by_program,
            by_handlers: by_handlers.load(Ordering::Relaxed),
            seen: handlers::is_seen(),
        };
        if blocking != 0 && !mutated(Mutation::HandlersLeaveFaultsBlocked) {
            by_handlers.fetch_or(blocking & !blocked_by_program, Ordering::Relaxed);
            handlers::set_seen(false);
        }
        before
    }

    /// Restores the record. The handler is about to return, upon which the kernel restores the mask.
    pub fn go_on(self) {
        words().0.store(self.blocked_by_program, Ordering::Relaxed);
        by_handlers().store(self.by_handlers, Ordering::Relaxed);
        handlers::set_seen(self.seen);
        deliver_held();
    }
}

/// The offset in a jmp_buf of the word that says whether the mask was saved. It comes after the registers (glibc's
/// bits/types/struct___jmp_buf_tag.h).
const MASK_WAS_SAVED: usize = os::arch::JUMP_WORDS * size_of::<u64>();
/// The offset of the saved mask in a jmp_buf.
const SAVED_MASK: usize = MASK_WAS_SAVED + size_of::<u64>();

/// Stores the program mask in `environment`, before libc fills in the environment and saves the thread's mask there.
///
/// # Safety
/// `environment` is a sigjmp_buf.
pub unsafe fn save_in_environment(environment: *mut c_void) {
    // SAFETY: the caller vouches for it: libc's set there has two words.
    unsafe { stamp(environment.byte_add(SAVED_MASK).cast()) };
}

/// Restores the program mask before longjmp(3), if `environment` holds a saved mask.
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
        // The set itself holds no guarded signal: libc got it from the kernel.
        let _ = goes_on_with(environment.byte_add(SAVED_MASK).cast());
        if left != 0 && active() {
            by_handlers().store(0, Ordering::Relaxed);
            handlers::set_seen(false);
        }
    }
}

/// The bits that mark a *stamp*. A stamp is in the second word of a set, which the kernel does not use. Its other bits
/// are the guarded signals that the thread believed to block, and that the set itself lacks.
const STAMP: u64 = 0x616e_7972_0000_0000;
const _: () = assert!(super::ALL & !0xffff_ffff == 0);

/// Returns the first two words of a set: the kernel's, and the place of a stamp.
fn words_of(set: &sigset_t) -> [u64; 2] {
    // SAFETY: libc's sets have room for 1024 signals.
    unsafe { core::ptr::from_ref(set).cast::<[u64; 2]>().read() }
}

/// The flag of a stamp in a set whose first word was empty when the stamp was made. If an empty set's stamp lacks the
/// flag, the program has emptied the set since then.
const ALONE: u64 = 1;

/// Returns the second word that marks a set whose first word is `real`: the real mask lacks the signals `missing`.
fn stamp_of(missing: u64, real: u64) -> u64 {
    STAMP | missing | if real == 0 { ALONE } else { 0 }
}

fn is_stamp(word: u64) -> bool {
    word & !(super::ALL | ALONE) == STAMP
}

/// Returns the signals in a set's stamp. `None` if the set has no stamp, or was emptied since the stamp was made.
fn stamped([real, stamp]: [u64; 2]) -> Option<u64> {
    (is_stamp(stamp) && (real != 0 || stamp & ALONE != 0)).then_some(stamp & super::ALL)
}

/// Returns the signals of a set.
pub fn word(set: &sigset_t) -> u64 {
    words_of(set)[0]
}

/// Undoes [`with_stamp`]: returns the set that it was given. `None` if the set has no stamp.
pub fn without_stamp(set: &sigset_t) -> Option<sigset_t> {
    let words = words_of(set);
    stamped(words).map(|missing| as_set(words[0] | missing))
}

/// Returns the set that may really be set, with a stamp about the signals that it lacks. `None` if it lacks no signal,
/// or if masks are not kept here.
pub fn with_stamp(set: &sigset_t) -> Option<sigset_t> {
    let [wanted, _] = words_of(set);
    let missing = wanted & super::ALL;
    if missing == 0 || !are_kept(libc::SIG_SETMASK, Some(wanted)) {
        return None;
    }
    let mut really = as_set(wanted & !missing);
    // SAFETY: as in `words_of`.
    unsafe { (&raw mut really).cast::<u64>().add(1).write(stamp_of(missing, wanted & !missing)) };
    Some(really)
}

/// Returns a set without the guarded signals. `None` if it has no guarded signal.
pub fn stripped(set: &sigset_t) -> Option<sigset_t> {
    (word(set) & guarded() != 0).then(|| as_set(word(set) & !guarded()))
}

/// Stores the program mask in `set`, before libc makes the kernel write the thread's mask there.
///
/// # Safety
/// The set may be written.
pub unsafe fn stamp(set: *mut sigset_t) {
    if guarded() != 0 {
        let stamp = match blocked_by_program() {
            0 => 0,
            blocked_by_program => stamp_of(blocked_by_program, real_now()),
        };
        // SAFETY: the caller vouches for it; the set need not be initialised, nor be longer than two words.
        unsafe { set.cast::<u64>().add(1).write(stamp) };
    }
}

/// Sets the program mask as a context's mask and its stamp say, before libc sets that mask. Returns the mask to set
/// instead, if the context's mask must not be set.
///
/// # Safety
/// The set may be read, as the kernel reads it, and so may the word after it.
pub unsafe fn goes_on_with(set: *const sigset_t) -> Option<sigset_t> {
    // SAFETY: the caller vouches for both words. In a context that a handler was passed, the second is no stamp.
    let words = unsafe { set.cast::<[u64; 2]>().read() };
    let [real, stamp] = words;
    let (missing, before) = (real & super::ALL, blocked_by_program());
    let wanted = match stamped(words) {
        Some(stamped) => stamped | missing,
        // There is no stamp, or the program has emptied or filled the set.
        None if [0, u64::MAX].contains(&stamp) || is_stamp(stamp) => missing,
        None => before & !by_handlers().load(Ordering::Relaxed) | missing,
    };
    if (missing == 0 && wanted == before) || !are_kept(libc::SIG_SETMASK, Some(missing)) {
        return None;
    }
    changed(libc::SIG_SETMASK, Some(wanted));
    (missing != 0).then(|| as_set(real & !missing))
}

/// Keeps a signal that came while it was in the program mask. As in the kernel, one signal of each number is enough.
pub fn keep_pending(signal: c_int, info: &siginfo_t) {
    let (thread, Some(index)) = (thread(), index(signal)) else {
        return;
    };
    let (_, held) = words();
    if held.load(Ordering::Relaxed) & bit(signal) == 0 {
        // SAFETY: own thread-local memory; the bit says that this slot is not in use.
        unsafe { (*thread).infos[index].write(*info) };
        compiler_fence(Ordering::Release);
        held.fetch_or(bit(signal), Ordering::Relaxed);
    }
}

/// Sends this thread the held signals that are no longer in its program mask. True if there were any.
pub fn deliver_held() -> bool {
    let (blocked_by_program, held) = words();
    let due = held.load(Ordering::Relaxed) & !blocked_by_program.load(Ordering::Relaxed);
    send_held(due);
    due != 0
}

/// Sends this thread the held signals in `due`, which are held no longer.
fn send_held(mut due: u64) {
    let (_, held) = words();
    while due != 0 {
        let signal = due.trailing_zeros() as c_int + 1;
        due &= due - 1;
        let Some(index) = index(signal) else {
            continue;
        };
        // SAFETY: own thread-local memory, written before the bit was set. The copy is taken before the bit is cleared.
        // The kernel reads the copy.
        unsafe {
            let info = (*thread()).infos[index].assume_init();
            held.fetch_and(!bit(signal), Ordering::Relaxed);
            let (process, id) = (sys::process_id() as usize, sys::thread_id() as usize);
            let target = [process, id, signal as usize, &raw const info as usize, 0, 0];
            sys::call(libc::SYS_rt_tgsigqueueinfo, target);
        }
    }
}

/// Returns the held signals, for sigpending(2).
pub fn held() -> u64 {
    words().1.load(Ordering::Relaxed)
}

/// True if masks are kept in this process.
#[inline]
pub fn active() -> bool {
    guarded() != 0 && !in_borrowed_memory() && !mutated(Mutation::ProgramBlocksSigsys)
}

/// True if masks are kept in this process, now that the program asks for `set` (`how` as in sigprocmask(2)). They
/// are kept from the first request to block a signal that must never be blocked.
pub fn are_kept(how: c_int, set: Option<u64>) -> bool {
    if guarded() == 0 && how != libc::SIG_UNBLOCK && set.is_some_and(|set| set & super::ALL != 0) {
        super::believe();
    }
    active()
}

/// Returns the calling thread's program mask: the signals that it believes to block and that its real mask lacks. The
/// mask is empty in a child in borrowed memory that has set its own mask.
fn unseen() -> u64 {
    match blocked_by_program() {
        0 => 0,
        // SAFETY: own thread-local memory.
        _ if unsafe { &(*thread()).settled }.load(Ordering::Relaxed) == sys::process_id() as u64 => 0,
        blocked_by_program => blocked_by_program,
    }
}

/// Prepares a change of the mask in a child in borrowed memory, whose masks are not kept here. `how` is as in
/// sigprocmask(2), or `None` if the child only asks for its mask. Unless the change replaces the whole mask, the
/// program mask first becomes part of the real mask. Returns the signals to add to the old mask that the child reads.
pub fn prepare_change(how: Option<c_int>) -> u64 {
    let unseen = unseen();
    let Some(how) = how.filter(|_| unseen != 0) else { return unseen };
    if how != libc::SIG_SETMASK {
        action::set_mask(real_now() | unseen);
    }
    // SAFETY: own thread-local memory; the parent's thread waits.
    unsafe { &(*thread()).settled }.store(sys::process_id() as u64, Ordering::Relaxed);
    unseen
}

/// Runs an exec(3) with the mask that the thread believes to have: the executed program inherits it. The program also
/// finds the held signals pending. If nothing is executed, they come back here.
pub fn inherited<T>(start: impl FnOnce() -> T) -> T {
    let unseen = unseen();
    if unseen == 0 {
        return start();
    }
    let before = action::set_mask(real_now() | unseen);
    if !in_borrowed_memory() {
        send_held(held());
    }
    let answer = start();
    action::set_mask(before);
    answer
}

/// Gives a thread that is about to be made the calling thread's program mask. `distance`, in bytes, is that of the new
/// thread's thread-local memory from the calling thread's.
///
/// # Safety
/// The new thread's memory is there, and nothing uses it yet.
pub unsafe fn pass_on(distance: usize) {
    let new = thread().wrapping_byte_add(distance);
    // SAFETY: the caller vouches for the memory, whose layout is the same in each thread.
    unsafe { &(*new).blocked_by_program }.store(blocked_by_program(), Ordering::Relaxed);
}

/// Unblocks the guarded signals that are really blocked only because a program is being executed ([`inherited`]). The
/// program's handler, which is about to run in that moment, may make calls that are trapped.
pub(super) fn open_for_handler(interrupted: u64) {
    let blocked = interrupted & blocked_by_program();
    if blocked != 0 {
        let open = [libc::SIG_UNBLOCK as usize, &raw const blocked as usize, 0, 8, 0, 0];
        // SAFETY: the set is a local.
        unsafe { sys::call(libc::SYS_rt_sigprocmask, open) };
    }
}

/// Returns the mask that a program must inherit, if the thread's real one differs.
pub fn to_inherit() -> Option<u64> {
    Some(unseen()).filter(|unseen| *unseen != 0).map(|unseen| real_now() | unseen)
}

/// Returns the mask to really set when the program asks for `set`, `how` as in sigprocmask(2).
pub fn real(how: c_int, set: u64) -> u64 {
    if how == libc::SIG_UNBLOCK {
        set
    } else {
        set & !guarded()
    }
}

/// Records the program's request after the kernel accepted it. Returns the previous program mask.
pub fn changed(how: c_int, set: Option<u64>) -> u64 {
    let (blocked_by_program, _) = words();
    let before = blocked_by_program.load(Ordering::Relaxed);
    let Some(set) = set.map(|set| set & guarded()) else {
        return before;
    };
    let now = match how {
        libc::SIG_BLOCK => before | set,
        libc::SIG_UNBLOCK => before & !set,
        _ => set,
    };
    blocked_by_program.store(now, Ordering::Relaxed);
    let changed = if how == libc::SIG_SETMASK { u64::MAX } else { set };
    by_handlers().fetch_and(!changed, Ordering::Relaxed);
    deliver_held();
    before
}

/// Makes the program's own rt_sigprocmask(2), or one with another set.
fn kernel([how, _, old, size, ..]: [usize; 6], set: usize) -> isize {
    // SAFETY: the program's own arguments, or a local set.
    unsafe { sys::call(libc::SYS_rt_sigprocmask, [how, set, old, size, 0, 0]) }
}

/// Serves rt_sigprocmask(2) by number, with the kernel's arguments.
pub fn system_call(args: [usize; 6]) -> isize {
    let [how, set, old, size, ..] = args;
    let kernel = |set| kernel(args, set);
    if size != 8 {
        return kernel(set);
    }
    if guarded() == 0 {
        // Only the kernel can read a bad pointer without a guard.
        let answer = kernel(set);
        let is_read = answer == 0 && set != 0 && how as c_int != libc::SIG_UNBLOCK;
        let asked = || match set.abs_diff(old) {
            ..8 => real_now(), // the kernel has written there
            // SAFETY: the kernel has just read it.
            _ => unsafe { (set as *const u64).read_unaligned() },
        };
        if is_read && asked() & super::ALL != 0 {
            super::believe();
            open_here();
        }
        return answer;
    }
    let wanted = if set == 0 { None } else { read_program(set) };
    if !are_kept(how as c_int, wanted) {
        let before = prepare_change(wanted.map(|_| how as c_int));
        let answer = kernel(set);
        if answer == 0 && old != 0 && before != 0 {
            add_kernel_mask(old, before);
        }
        return answer;
    }
    kept_call(args, wanted)
}

/// Serves rt_sigprocmask(2) of a process in borrowed memory whose only thread has a record of its own, as in a guest.
pub fn system_call_with_own_record(args: [usize; 6]) -> isize {
    let [_, set, _, size, ..] = args;
    match size {
        8 => kept_call(args, if set == 0 { None } else { read_program(set) }),
        _ => kernel(args, set),
    }
}

/// Serves rt_sigprocmask(2) of a thread whose mask is kept here. `wanted` is the set, if there is one that can be read.
fn kept_call(args: [usize; 6], wanted: Option<u64>) -> isize {
    let [how, set, old, ..] = args;
    let really = wanted.map(|wanted| real(how as c_int, wanted));
    let answer = kernel(args, really.as_ref().map_or(set, |really| core::ptr::from_ref(really) as usize));
    if answer < 0 {
        return answer;
    }
    let before = changed(how as c_int, wanted);
    if old != 0 && before != 0 {
        add_kernel_mask(old, before);
    }
    answer
}

/// Reads the program's value at `from`. If masks are kept, the engine's guarded copy routine does that. It makes no
/// system call, and unblocks the signals that it needs.
pub(crate) fn read_program<T: sys::Plain + os::Plain>(from: usize) -> Option<T> {
    if active() {
        os::user_read(from as u64).ok()
    } else {
        sys::read_program(from as *const T)
    }
}

/// Writes the program's value at `to`, in the same way as [`read_program`]. False if it cannot be written.
pub(super) fn write_program<T: sys::Plain + os::Plain>(to: usize, value: T) -> bool {
    if active() {
        os::user_write(to as u64, &value).is_ok()
    } else {
        sys::write_program(to as *mut T, value)
    }
}

/// Adds the program mask `before` to the old mask that the kernel has written at `old`.
fn add_kernel_mask(old: usize, before: u64) {
    if let Some(real) = read_program::<u64>(old) {
        write_program(old, real | before);
    }
}

/// Runs a waiting system call that has its own mask of `size` bytes at `mask`. The mask that the call gets blocks no
/// guarded signal. Returns the kernel's register, or -EINTR at once if a held signal becomes due.
pub fn with_temporary(mask: *const u64, size: usize, wait: impl FnOnce(*const u64) -> isize) -> isize {
    if mask.is_null() || size != 8 || !active() {
        return wait(mask);
    }
    let Some(wanted) = read_program::<u64>(mask as usize) else {
        return wait(mask);
    };
    temporarily(wanted, || {
        let really = wanted & !guarded();
        wait(&really)
    })
    .unwrap_or(-(libc::EINTR as isize))
}

/// Does the same as [`with_temporary`] for libc's functions, with errno.
pub fn with_temporary_set(mask: *const sigset_t, wait: impl FnOnce(*const sigset_t) -> c_int) -> c_int {
    if mask.is_null() || !active() {
        return wait(mask);
    }
    // Read eight bytes, as the kernel does. The kernel answers for a bad pointer.
    let Ok(wanted) = os::user_read::<u64>(mask as u64) else {
        return wait(mask);
    };
    temporarily(wanted, || wait(&as_set(wanted & !guarded()))).unwrap_or_else(|| {
        sys::set_errno(libc::EINTR);
        -1
    })
}

/// Runs `wait` with `wanted` as the program mask. `None` if a held signal came first.
fn temporarily<T>(wanted: u64, wait: impl FnOnce() -> T) -> Option<T> {
    let (blocked_by_program, _) = words();
    let before = blocked_by_program.swap(wanted & guarded(), Ordering::Relaxed);
    let answer = if deliver_held() { None } else { Some(wait()) };
    blocked_by_program.store(before, Ordering::Relaxed);
    answer
}

/// Returns a libc set of the signals in `mask`.
pub fn as_set(mask: u64) -> sigset_t {
    // SAFETY: all zeroes is a valid (empty) set, and its first word is the kernel's.
    unsafe {
        let mut set: sigset_t = core::mem::zeroed();
        (&raw mut set).cast::<u64>().write(mask);
        set
    }
}
