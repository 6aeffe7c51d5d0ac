//! Threads that end inside the library's code: by pthread_cancel(3), or in a signal handler by pthread_exit(3) or at a
//! cancellation point.
//!
//! libc ends a thread by forced unwinding: it removes the frames of its stack one by one, beginning at the signal
//! handler. A signal may interrupt the library's code between any two instructions, where nothing could clean up. Nor
//! may a `catch` stop such an unwinding. Therefore:
//!
//! - **An interrupted call is completed first.** When the unwinder reaches the frame of
//!   [`anyring_serve::entry::inside`], the handler's frames are already unwound. The thread then continues in the call
//!   as if the handler had returned. Waits end with EINTR. When the call is done, [`go_on`] ends the thread from there.
//! - **All other frames of the library hold nothing** that needs cleaning up. The unwinder passes them as it passes
//!   frames of C: [`personality`] replaces the standard library's function of that name.
//!
//! A handler may throw a C++ exception out of the function that it interrupts. The exception passes the library's
//! frames in the same way, and leaves a call as siglongjmp(3) does.
//!
//! Until a thread ends, all this costs one load in each call.
#![cfg_attr(test, allow(dead_code))] // unit tests leave the standard library's personality alone

use crate::jump;
use crate::next::next;
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::os::{self, arch, user_read};
use anyring_serve::entry::DUE;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use libc::ucontext_t;

next! {
    UNWIND_NEXT = c"__pthread_unwind_next": fn(*mut Cleanup) -> !;
    REGISTER_CANCEL = c"__pthread_register_cancel": fn(*mut Cleanup);
    UNREGISTER_CANCEL = c"__pthread_unregister_cancel": fn(*mut Cleanup);
}

/// Ends the calling thread if its end was deferred.
#[cold]
fn end_if_due() {
    if os::wait_again() {
        DUE.fetch_sub(1, Ordering::Relaxed);
        let mut first = Cleanup::FREE;
        fill_first(&mut first);
        if let Some(unwind) = UNWIND_NEXT.get() {
            // SAFETY: libc makes this call itself after a cleanup handler, to run the handlers registered before it.
            unsafe { unwind(&mut first) }
        }
    }
}

/// The function that unwinders call for a frame. Its arguments are the version, `_UA_*`, the exception's class, the
/// exception, and the frame.
type Personality = extern "C" fn(c_int, c_int, u64, *mut c_void, *mut Context) -> c_int;

/// An unwinder's view of a frame (`struct _Unwind_Context`).
#[repr(C)]
pub struct Context([u8; 0]);

/// The exception classes of Rust's panics. The standard library has used both byte orders.
const PANICS: [u64; 2] = [u64::from_ne_bytes(*b"MOZ\0RUST"), u64::from_be_bytes(*b"MOZ\0RUST")];

/// _UA_SEARCH_PHASE, _UA_FORCE_UNWIND, _URC_CONTINUE_UNWIND, _URC_NORMAL_STOP (unwind.h).
const SEARCH_PHASE: c_int = 1;
const FORCE_UNWIND: c_int = 8;
const CONTINUE_UNWIND: c_int = 8;
const NORMAL_STOP: c_int = 4;
/// _URC_END_OF_STACK: the last frame has no unwind information.
const END_OF_STACK: c_int = 5;

unsafe extern "C" {
    /// The word in which unwinders find the personality of this library's frames. The compiler makes the word, and
    /// nothing else reads it.
    #[link_name = "DW.ref.rust_eh_personality"]
    static mut PERSONALITY: Personality;
    fn rust_eh_personality(
        version: c_int,
        actions: c_int,
        class: u64,
        exception: *mut c_void,
        context: *mut Context,
    ) -> c_int;
    fn _Unwind_Backtrace(step: extern "C" fn(*mut Context, *mut c_void) -> c_int, walk: *mut c_void) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut Context, is_interrupted: *mut c_int) -> usize;
    fn _Unwind_GetCFA(context: *mut Context) -> usize;
    fn _Unwind_GetGR(context: *mut Context, register: c_int) -> usize;
    /// The linker's names for the ends of the section.
    fn __start_anyring_inside();
    fn __stop_anyring_inside();
}

/// Makes unwinders call [`personality`] for the frames of this library.
#[cfg(not(test))]
pub fn prepare() {
    anyring_serve::entry::at_end(end_if_due);
    anyring_engine::chaos::caller::found_by(callers);
    // SAFETY: a word of this library's own writable data, which unwinders only read. No other thread of the program
    // runs in this library yet.
    unsafe { (&raw mut PERSONALITY).write(personality) };
}

extern "C" fn personality(
    version: c_int,
    actions: c_int,
    class: u64,
    exception: *mut c_void,
    context: *mut Context,
) -> c_int {
    let is_forced = actions & FORCE_UNWIND != 0;
    if !is_forced && (PANICS.contains(&class) || mutated(Mutation::ThrowsAreCaught)) {
        // SAFETY: the unwinder's own arguments.
        return unsafe { rust_eh_personality(version, actions, class, exception, context) };
    }
    if actions & SEARCH_PHASE != 0 {
        return CONTINUE_UNWIND;
    }
    // SAFETY: the unwinder's own context, of a frame that is on the stack.
    match interrupted_inside(unsafe { _Unwind_GetCFA(context) }) {
        Some(signal_frame) if is_forced && !mutated(Mutation::InterruptedCallsAreLeft) => {
            // SAFETY: the frame was found on the stack, and the handler's frames have been unwound.
            unsafe { complete(signal_frame) }
        }
        Some(_) if !is_forced => jump::leaving(),
        _ => {}
    }
    CONTINUE_UNWIND
}

/// A walk over the stack from here to one frame.
#[repr(C)]
struct Walk {
    /// The stack pointer in that frame.
    until: usize,
    /// The stack pointer in the frame before the current one.
    before: usize,
    /// The last signal frame that was passed.
    signal_frame: usize,
    /// True if [`anyring_serve::entry::inside`] was seen after that signal frame.
    is_inside: bool,
    has_arrived: bool,
}

/// Finds the signal frame that interrupted the frame with stack pointer `until`, or a function called from it. None
/// unless [`anyring_serve::entry::inside`] is among the interrupted functions.
fn interrupted_inside(until: usize) -> Option<usize> {
    let mut walk = Walk { until, before: 0, signal_frame: 0, is_inside: false, has_arrived: false };
    // SAFETY: `step` gets a pointer to `walk`, which lives as long as the walk.
    unsafe { _Unwind_Backtrace(step, (&raw mut walk).cast()) };
    (walk.has_arrived && walk.is_inside && walk.signal_frame != 0).then_some(walk.signal_frame)
}

extern "C" fn step(context: *mut Context, walk: *mut c_void) -> c_int {
    let mut is_interrupted = 0;
    // SAFETY: the unwinder's own context, and the pointer that `interrupted_inside` passed.
    let (walk, instruction, pointer) = unsafe {
        (&mut *walk.cast::<Walk>(), _Unwind_GetIPInfo(context, &mut is_interrupted), _Unwind_GetCFA(context))
    };
    if is_interrupted != 0 {
        // A handler returns to the code that makes rt_sigreturn(2), with the stack pointer at the signal's frame.
        (walk.signal_frame, walk.is_inside) = (walk.before + arch::CONTEXT_IN_FRAME, false);
    }
    let section = __start_anyring_inside as *const () as usize..__stop_anyring_inside as *const () as usize;
    walk.is_inside |= section.contains(&(instruction - usize::from(is_interrupted == 0)));
    walk.has_arrived = pointer == walk.until;
    walk.before = pointer;
    if walk.has_arrived {
        NORMAL_STOP
    } else {
        0
    }
}

/// The result of [`callers`].
#[repr(C)]
struct Found<'a> {
    places: &'a mut [usize],
    count: usize,
    /// The frame pointer in the last frame.
    frame: usize,
}

impl Found<'_> {
    /// Adds a return address. False if there is no room, or no caller.
    fn add(&mut self, address: usize) -> bool {
        match self.places.get_mut(self.count) {
            Some(place) if address != 0 => {
                *place = address;
                self.count += 1;
                true
            }
            _ => false,
        }
    }

    /// Adds the callers of a frame without unwind information, by frame pointers. Code that a program generates has
    /// such frames. In other code the frame pointer's register may hold anything, so each value is checked.
    fn follow_pointers(&mut self) {
        while let (true, Ok([outer, address])) =
            (self.frame.is_multiple_of(8), user_read::<[usize; 2]>(self.frame as u64))
        {
            // Callers have higher addresses on the same stack.
            if !self.add(address) || !(1..FARTHEST).contains(&outer.wrapping_sub(self.frame)) {
                return;
            }
            self.frame = outer;
        }
    }
}

/// The most bytes of one frame that is found by frame pointers.
const FARTHEST: usize = 1 << 20;

/// Writes the return addresses of the calling thread's frames, innermost first. Returns their number.
fn callers(places: &mut [usize]) -> usize {
    let mut found = Found { places, count: 0, frame: 0 };
    let walk: *mut Found = &mut found;
    // SAFETY: `record_frame` gets a pointer to `found`, which lives as long as the walk.
    if unsafe { _Unwind_Backtrace(record_frame, walk.cast()) } == END_OF_STACK {
        found.follow_pointers();
    }
    found.count
}

extern "C" fn record_frame(context: *mut Context, walk: *mut c_void) -> c_int {
    let mut is_interrupted = 0;
    // SAFETY: the unwinder's own context, and the pointer that `callers` passed.
    let (found, address, frame) = unsafe {
        let address = _Unwind_GetIPInfo(context, &mut is_interrupted);
        (&mut *walk.cast::<Found>(), address, _Unwind_GetGR(context, arch::FRAME_POINTER))
    };
    found.frame = frame;
    if found.add(address) {
        0
    } else {
        NORMAL_STOP
    }
}

/// The record by which libc lists cleanup handlers of C (`__pthread_unwind_buf_t` in pthread.h).
#[repr(C, align(16))]
pub(crate) struct Cleanup {
    registers: [u64; arch::JUMP_WORDS],
    mask_was_saved: c_int,
    outer: *mut Cleanup,
    private: [usize; 3],
}

/// Continues the thread at the place where the signal of this frame interrupted it. The thread ends when its call is
/// done.
///
/// # Safety
/// `signal_frame` is the address of the ucontext_t in a signal frame of this thread. The frames of its handler have
/// been unwound.
unsafe fn complete(signal_frame: usize) -> ! {
    forget_cleanups(signal_frame);
    // SAFETY: the caller vouches for it.
    unsafe {
        let context = &mut *(signal_frame as *mut ucontext_t);
        arch::set_instruction(context, os::end_waits(arch::instruction(context)));
        DUE.fetch_add(1, Ordering::Relaxed);
        arch::return_from_handler(signal_frame)
    }
}

impl Cleanup {
    const FREE: Cleanup = Cleanup {
        registers: [0; arch::JUMP_WORDS],
        mask_was_saved: 0,
        outer: core::ptr::null_mut(),
        private: [0; 3],
    };
}

/// Fills in `own` with the values that libc would store if it were the first record on its list.
fn fill_first(own: &mut Cleanup) {
    if let (Some(register), Some(unregister)) = (REGISTER_CANCEL.get(), UNREGISTER_CANCEL.get()) {
        // SAFETY: libc's own functions on a buffer of the right size, which is taken off the list at once.
        unsafe {
            register(own);
            unregister(own);
        }
    }
}

/// Removes the cleanup handlers that have run from libc's list: those of the frames between this function and the
/// signal frame.
fn forget_cleanups(signal_frame: usize) {
    let mut own = Cleanup::FREE;
    loop {
        fill_first(&mut own);
        let here = &raw const own as usize;
        if !(here..signal_frame).contains(&(own.outer as usize)) {
            return;
        }
        if let Some(unregister) = UNREGISTER_CANCEL.get() {
            // SAFETY: it is the first on the list, and in a frame that is gone, whose memory is unchanged.
            unsafe { unregister(own.outer) };
        }
    }
}
