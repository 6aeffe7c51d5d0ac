//! The guarded signals that a thread wishes to block. They are never really blocked by that wish; it is kept beside
//! the thread's real mask, in thread-local memory of the initial-exec kind, which needs neither an allocation nor a
//! lock and is thus fit for signal handlers. Only the owning thread and its handlers touch it.

use super::{action, bit, guarded, in_borrowed_memory, index, GUARDABLE};
use crate::sys;
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::os;
use anyring_engine::os::handlers;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{compiler_fence, AtomicU64, Ordering};
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
    /// How each of these arrived.
    infos: [core::mem::MaybeUninit<siginfo_t>; GUARDABLE.len()],
}

const SIZE: usize = 24 + 3 * 128;
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

/// What the calling thread really blocks of the guarded signals, since it has done so from before they were guarded or by an
/// instruction that nobody saw, becomes a wish. False in a process whose masks are not kept here.
pub fn open_here() -> bool {
    if !active() {
        return false;
    }
    action::take_back();
    let mut real = 0_u64;
    let ask = [libc::SIG_BLOCK as usize, 0, &raw mut real as usize, 8, 0, 0];
    // SAFETY: the set is a local.
    unsafe { sys::call(libc::SYS_rt_sigprocmask, ask) };
    let blocked = real & guarded();
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

/// The calling thread is about to leave by longjmp(3) to where `environment` was filled: if the mask was saved there, it is the
/// one from before the handlers that are left.
///
/// # Safety
/// `environment` is a jmp_buf that has been filled.
pub unsafe fn leaving_by_jump(environment: *const c_void) {
    /// Behind the registers (glibc's bits/types/struct___jmp_buf_tag.h).
    const MASK_WAS_SAVED: usize = os::arch::JUMP_WORDS * size_of::<u64>();
    // First: coroutines jump all the time, and to know whether masks are ours to keep takes a system call.
    if by_handlers().load(Ordering::Relaxed) == 0 || !active() {
        return;
    }
    // SAFETY: the caller vouches for it.
    let was_saved = unsafe { environment.byte_add(MASK_WAS_SAVED).cast::<c_int>().read() };
    if was_saved != 0 {
        words().0.fetch_and(!by_handlers().swap(0, Ordering::Relaxed), Ordering::Relaxed);
        handlers::set_seen(false);
    }
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
    if !active() || size != 8 {
        return kernel(set);
    }
    let wanted = if set == 0 { None } else { sys::read_program(set as *const u64) };
    let really = wanted.map(|wanted| real(how as c_int, wanted));
    let answer = kernel(really.as_ref().map_or(set, |really| core::ptr::from_ref(really) as usize));
    if answer < 0 {
        return answer;
    }
    let before = changed(how as c_int, wanted);
    if old != 0 && before != 0 {
        if let Some(real) = sys::read_program(old as *const u64) {
            sys::write_program(old as *mut u64, real | before);
        }
    }
    answer
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
