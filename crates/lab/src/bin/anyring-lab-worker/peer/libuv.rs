//! libuv (docs.libuv.org), by symbol from the installed libuv.so.1: file operations on its thread pool, and timers of
//! its loop. Its structures are opaque here: libuv returns their sizes. The first word of a request or handle is the
//! user's.

use super::{Transfer, Transfers};
use crate::outcome::{Outcome, Stop};
use std::cell::RefCell;
use std::ffi::{c_char, c_void, CStr};

// uv.h
const UV_RUN_ONCE: i32 = 1;
const UV_FS: i32 = 6;
const UV_TIMER: i32 = 13;

#[repr(C)]
struct UvBuf {
    base: *mut c_char,
    len: usize,
}

type Callback = unsafe extern "C" fn(*mut c_void);
type FsTransfer =
    unsafe extern "C" fn(*mut c_void, *mut c_void, i32, *const UvBuf, u32, i64, Option<Callback>) -> i32;

macro_rules! functions {
    ($($field:ident: $name:literal = $type:ty;)*) => {
        /// libuv's functions.
        #[derive(Clone, Copy)]
        struct Functions { $($field: $type,)* }

        impl Functions {
            fn look_up(handle: *mut c_void) -> Outcome<Self> {
                // SAFETY: each type is that of the function of this name in uv.h.
                unsafe { Ok(Functions { $($field: std::mem::transmute::<*mut c_void, $type>(symbol(handle, $name)?),)* }) }
            }
        }
    };
}

functions! {
    loop_size: c"uv_loop_size" = unsafe extern "C" fn() -> usize;
    loop_init: c"uv_loop_init" = unsafe extern "C" fn(*mut c_void) -> i32;
    run: c"uv_run" = unsafe extern "C" fn(*mut c_void, i32) -> i32;
    now: c"uv_now" = unsafe extern "C" fn(*const c_void) -> u64;
    update_time: c"uv_update_time" = unsafe extern "C" fn(*mut c_void);
    req_size: c"uv_req_size" = unsafe extern "C" fn(i32) -> usize;
    handle_size: c"uv_handle_size" = unsafe extern "C" fn(i32) -> usize;
    fs_read: c"uv_fs_read" = FsTransfer;
    fs_write: c"uv_fs_write" = FsTransfer;
    fs_result: c"uv_fs_get_result" = unsafe extern "C" fn(*const c_void) -> isize;
    fs_cleanup: c"uv_fs_req_cleanup" = unsafe extern "C" fn(*mut c_void);
    timer_init: c"uv_timer_init" = unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32;
    timer_start: c"uv_timer_start" = unsafe extern "C" fn(*mut c_void, Callback, u64, u64) -> i32;
    timer_stop: c"uv_timer_stop" = unsafe extern "C" fn(*mut c_void) -> i32;
}

fn symbol(handle: *mut c_void, name: &CStr) -> Outcome<*mut c_void> {
    // SAFETY: a terminated name and a handle from dlopen.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    match address.is_null() {
        true => Err(Stop::Missing(format!("libuv.so.1 is too old: it has no {}", name.to_string_lossy()))),
        false => Ok(address),
    }
}

/// A loop. It and its requests stay until the process ends.
pub struct Libuv {
    functions: Functions,
    event_loop: *mut c_void,
    /// The list to which callbacks add ended transfers; never freed, since requests point to it.
    ended: &'static RefCell<Vec<(u64, i64)>>,
}

/// Allocates zeroed memory of libuv's size, which is never freed.
fn opaque(bytes: usize) -> *mut c_void {
    let words = vec![0u64; bytes.div_ceil(8)];
    Box::leak(words.into_boxed_slice()).as_mut_ptr().cast()
}

/// The target of the user's word of a request.
struct Owner {
    slot: u64,
    functions: Functions,
    ended: &'static RefCell<Vec<(u64, i64)>>,
}

/// Takes the result from a request that has ended, and frees the request and its owner.
unsafe extern "C" fn transfer_ended(request: *mut c_void) {
    // SAFETY: libuv calls this once for each request, in uv_run, with the request that `begin` made; its first word is
    // the owner that `begin` leaked.
    unsafe {
        let owner = Box::from_raw(request.cast::<*mut Owner>().read());
        owner.ended.borrow_mut().push((owner.slot, (owner.functions.fs_result)(request) as i64));
        (owner.functions.fs_cleanup)(request);
        libc::free(request);
    }
}

impl Libuv {
    /// Opens the installed library and makes a loop.
    pub fn new() -> Outcome<Self> {
        // SAFETY: libuv has no constructor that could disturb this process.
        let handle = unsafe { libc::dlopen(c"libuv.so.1".as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            let what = "libuv.so.1 is not installed; on Debian: apt-get install libuv1 (libuv1t64 since 13)";
            return Err(Stop::Missing(what.to_owned()));
        }
        let functions = Functions::look_up(handle)?;
        // SAFETY: memory of the size that libuv returned.
        let event_loop = opaque(unsafe { (functions.loop_size)() });
        // SAFETY: the same memory.
        match unsafe { (functions.loop_init)(event_loop) } {
            0 => Ok(Libuv { functions, event_loop, ended: Box::leak(Box::default()) }),
            error => Err(format!("uv_loop_init answered {error}").into()),
        }
    }

    /// Updates the loop's time and returns it in ms.
    pub fn now_ms(&self) -> u64 {
        // SAFETY: a loop that uv_loop_init made.
        unsafe {
            (self.functions.update_time)(self.event_loop);
            (self.functions.now)(self.event_loop)
        }
    }

    /// Makes a timer.
    pub fn timer(&self) -> Timer {
        // SAFETY: memory of the size that libuv returned, and a loop that uv_loop_init made; it cannot fail.
        unsafe {
            let handle = opaque((self.functions.handle_size)(UV_TIMER));
            (self.functions.timer_init)(self.event_loop, handle);
            Timer { handle, functions: self.functions }
        }
    }

    /// Waits for the next events.
    pub fn run_once(&self) {
        // SAFETY: a loop that uv_loop_init made, run by this thread only.
        unsafe { (self.functions.run)(self.event_loop, UV_RUN_ONCE) };
    }
}

/// A uv_timer_t.
#[derive(Clone, Copy)]
pub struct Timer {
    handle: *mut c_void,
    functions: Functions,
}

impl Timer {
    /// Calls `callback` with `data` in `timeout_ms`. `data` must be valid then.
    pub fn start(&self, timeout_ms: u64, callback: Callback, data: *mut c_void) {
        // SAFETY: a handle that uv_timer_init made; its first word is the user's.
        unsafe {
            self.handle.cast::<*mut c_void>().write(data);
            (self.functions.timer_start)(self.handle, callback, timeout_ms, 0);
        }
    }

    /// Stops the timer.
    pub fn stop(&self) {
        // SAFETY: a handle that uv_timer_init made.
        unsafe { (self.functions.timer_stop)(self.handle) };
    }
}

impl Transfers for Libuv {
    fn begin(&mut self, slot: u64, what: Transfer) -> Outcome<()> {
        let owner = Box::new(Owner { slot, functions: self.functions, ended: self.ended });
        let buffer = UvBuf { base: what.address.cast(), len: what.bytes as usize };
        let offset = what.offset.map_or(-1, |offset| offset as i64);
        let function = if what.write { self.functions.fs_write } else { self.functions.fs_read };
        // SAFETY: a request of the size that libuv returned, freed by its callback; the call copies the buffer's
        // description, and the memory is the caller's until the end.
        let answer = unsafe {
            let request = libc::calloc(1, (self.functions.req_size)(UV_FS));
            if request.is_null() {
                return Err("no memory for a request".into());
            }
            request.cast::<*mut Owner>().write(Box::into_raw(owner));
            function(self.event_loop, request, what.fd, &buffer, 1, offset, Some(transfer_ended))
        };
        match answer {
            0 => Ok(()),
            error => Err(format!("libuv answered {error}").into()),
        }
    }

    fn flush(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<(u64, i64)>) -> Outcome<()> {
        while self.ended.borrow().is_empty() {
            self.run_once();
        }
        ended.append(&mut self.ended.borrow_mut());
        Ok(())
    }
}
