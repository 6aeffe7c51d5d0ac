//! Makes engine threads.
//!
//! They are made by libc's own pthread_create(3), so that libc knows them: its setuid(3) changes every thread that it
//! knows. A thread that it missed would be a way back to privileges that the program gave up.
//!
//! But pthread_create(3) calls the program's malloc(3), which one of the program's signal handlers may have
//! interrupted. So in a handler the maker makes the thread (`thread/maker.rs`). Without a maker, a handler makes no
//! thread.

use super::{change_mask, count, follow, maker, name, open_signals, place, symbol, tables, IS_OURS, NAMES};
use crate::os::{self, handlers, owner, Os, Sys};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a thread needs of its stack.
const STACK_BYTES: usize = 256 * 1024;
/// Bytes of a stack that libc takes for thread-local memory, which the program's libraries may have much of.
static LOCAL_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The function that a new engine thread runs.
pub(super) type Entry = extern "C" fn(*mut c_void) -> *mut c_void;

/// Starts a detached thread that serves the whole process, for a caller that can do without it. False if the system
/// refuses the thread. Also false in one of the program's signal handlers, if there is no maker.
pub fn spawn(entry: Entry, argument: *mut c_void) -> bool {
    if !handlers::is_running() {
        return spawn_needed(entry, argument);
    }
    maker::ask(entry, argument).unwrap_or(false)
}

/// Starts a detached thread that serves the whole process, for a caller that needs it. In a process that runs in
/// another one's memory, only the other one's maker can make it.
pub fn spawn_needed(entry: Entry, argument: *mut c_void) -> bool {
    maker::keep_maker_if_unfiltered();
    maker::ask(entry, argument).unwrap_or_else(|| make(entry, argument, Like::Process))
}

/// Starts a detached thread that is scheduled as the calling thread. False if the system refuses it.
pub fn spawn_like_caller(entry: Entry, argument: *mut c_void) -> bool {
    make(entry, argument, Like::Caller)
}

/// Starts a detached thread that keeps the identity of the calling thread ([`follow`]). False if the system refuses
/// it, or in one of the program's signal handlers.
pub fn spawn_member(entry: Entry, argument: *mut c_void) -> bool {
    !handlers::is_running() && make(entry, argument, Like::Identity)
}

/// The properties that a new thread takes from its maker.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Like {
    /// The thread serves the process, and is scheduled as the process.
    Process,
    Caller,
    Identity,
}

/// Address of libc's own pthread_create(3); 0 before the search. Relaxed: a function pointer publishes no other
/// memory.
static CREATE: AtomicUsize = AtomicUsize::new(0);

/// Finds the needed functions of libc itself, before the process's first engine thread. This is best done when the
/// process begins, since the loader may be locked later, in a forked child even forever.
pub fn prepare() {
    if CREATE.load(Ordering::Relaxed) == 0 {
        count::prepare();
        let linked = libc::pthread_create as *const () as usize;
        CREATE.store(symbol::of_libc(c"pthread_create").unwrap_or(linked), Ordering::Relaxed);
        LOCAL_BYTES.store(local_bytes(), Ordering::Relaxed);
        if let Some(clock) = symbol::of_libc(c"clock_gettime") {
            os::set_clock(clock);
        }
    }
}

/// Returns the least size of a stack that libc accepts, or 0 where libc does not say.
fn local_bytes() -> usize {
    type GetMinstack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
    let Some(address) = symbol::of_libc(c"__pthread_get_minstack") else { return 0 };
    // SAFETY: glibc's function has this type, and only reads the attributes, which are initialised.
    unsafe {
        let mut attributes = core::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        let bytes = core::mem::transmute::<usize, GetMinstack>(address)(&attributes);
        libc::pthread_attr_destroy(&mut attributes);
        bytes
    }
}

type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;

/// Makes a thread, in the calling thread.
pub(super) fn make(entry: Entry, argument: *mut c_void, like: Like) -> bool {
    if owner::is_another() {
        return false;
    }
    prepare();
    // In a child of _Fork(3) or clone(2), libc still counts the parent's threads. One of those may have held malloc's
    // lock, which is never released in the child.
    if count::may_count_the_parents() {
        return false;
    }
    let old = change_mask(!open_signals());
    // SAFETY: `prepare` has stored a function of this type.
    let create = unsafe { core::mem::transmute::<usize, Create>(CREATE.load(Ordering::Relaxed)) };
    // SAFETY: the attribute object is initialised before use and destroyed after, and `entry` has the type that
    // pthread_create calls.
    let started = unsafe {
        let start = Box::into_raw(Box::new(Start {
            entry,
            argument,
            table: tables::mine(),
            birth: follow::prepare(like == Like::Identity),
            settles: like == Like::Process && !is_of_the_process(),
        }));
        let mut attributes = core::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK_BYTES + LOCAL_BYTES.load(Ordering::Relaxed));
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let mut thread = core::mem::zeroed();
        count::starts();
        let mut try_once = || match may_start() {
            true => create(&mut thread, &attributes, begin, start.cast()),
            false => libc::EAGAIN,
        };
        let mut answer = try_once();
        if answer == libc::EAGAIN {
            answer = place::make_under_deadline(try_once).unwrap_or(answer);
        }
        follow::prepared();
        libc::pthread_attr_destroy(&mut attributes);
        if answer != 0 {
            count::failed();
            drop(Box::from_raw(start));
        }
        answer == 0
    };
    if started {
        count::started();
    }
    change_mask(old);
    started
}

/// True if the calling thread is scheduled as the process is. The main thread is, and the maker schedules itself so.
fn is_of_the_process() -> bool {
    super::id() == Sys::process_id() || maker::is_this_thread()
}

/// False if a simulated system refuses the next thread.
#[inline(always)]
fn may_start() -> bool {
    #[cfg(feature = "simulated")]
    return crate::os::simulated::starts();
    #[cfg(not(feature = "simulated"))]
    true
}

/// Arguments of a new thread.
struct Start {
    entry: Entry,
    argument: *mut c_void,
    /// The descriptor table of the thread's maker.
    table: u32,
    birth: Option<follow::Birth>,
    /// True if the thread must be scheduled as the process, and its maker is not.
    settles: bool,
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: `make` gave the box to this thread only.
    let Start { entry, argument, table, birth, settles } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    #[cfg(feature = "simulated")]
    let _running = crate::os::simulated::Running::begin();
    IS_OURS.set(true);
    #[cfg(debug_assertions)]
    crate::os::standard::lowest::report_this_thread();
    tables::set_mine(table);
    name(NAMES[0]); // from now on, the name distinguishes this thread from the program's threads
    count::began();
    follow::join(birth);
    if settles {
        place::as_the_process();
    }
    let answer = entry(argument);
    follow::leave();
    count::ends();
    answer
}
