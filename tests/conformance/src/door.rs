//! Three ways in which programs reach the kernel's io_uring, so that each case can be tried through each of them.
//!
//! Every call returns the value of the kernel's result register: a value, or `-errno`.

use crate::arch;
use crate::evidence;
use anyring_abi::{Params, NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use anyring_abi::{NR_IO_CANCEL, NR_IO_DESTROY, NR_IO_GETEVENTS, NR_IO_SETUP, NR_IO_SUBMIT};
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::sync::OnceLock;

/// The way in which a case calls the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Door {
    /// The three functions that liburing.so.2 exports; everything else by libc.
    Liburing,
    /// libc's `syscall()`, and libc's functions for the ring's descriptor and memory.
    Libc,
    /// Inline `syscall` instructions, as liburing's own compiled code and rustix issue them.
    Raw,
}

/// True if this program is linked statically. anyring serves such a program as its guest.
pub const IS_STATIC: bool = cfg!(target_feature = "crt-static");

type Setup = unsafe extern "C" fn(u32, *mut Params) -> c_int;
type Enter = unsafe extern "C" fn(u32, u32, u32, u32, *const c_void, usize) -> c_int;
type Register = unsafe extern "C" fn(u32, u32, *const c_void, u32) -> c_int;

/// The exported functions that the `liburing` door calls.
#[derive(Clone, Copy)]
struct Exports {
    setup: Setup,
    enter2: Enter,
    register: Register,
}

/// The address of `name` as a program linked with liburing would get it: a preloaded library's symbol comes first.
/// `None` when liburing.so.2 is not installed or lacks the name, and in a static program, which loads no libraries.
pub fn liburing_symbol(name: &CStr) -> Option<*mut c_void> {
    if IS_STATIC {
        return None;
    }
    static LOADED: OnceLock<bool> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        // SAFETY: a constant name; loading liburing runs no constructor that depends on our state.
        !unsafe { libc::dlopen(c"liburing.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null()
    });
    if !loaded {
        return None;
    }
    // SAFETY: `name` is NUL-terminated and RTLD_DEFAULT is always a valid handle.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

fn exports() -> Option<Exports> {
    static EXPORTS: OnceLock<Option<Exports>> = OnceLock::new();
    *EXPORTS.get_or_init(|| {
        let setup = liburing_symbol(c"io_uring_setup")?;
        let enter2 = liburing_symbol(c"io_uring_enter2")?;
        let register = liburing_symbol(c"io_uring_register")?;
        // SAFETY: these are the functions of those names in liburing.h, whose C signatures the types repeat.
        unsafe {
            Some(Exports {
                setup: std::mem::transmute::<*mut c_void, Setup>(setup),
                enter2: std::mem::transmute::<*mut c_void, Enter>(enter2),
                register: std::mem::transmute::<*mut c_void, Register>(register),
            })
        }
    })
}

/// Waits by instructions: poll(2) and epoll_wait(2), or ppoll(2) and epoll_pwait(2) where the kernel lacks the others.
mod waits {
    use super::{arch, raw};

    pub fn poll(entry: usize, timeout_ms: i32) -> isize {
        arch::poll(raw, entry, timeout_ms)
    }

    pub fn epoll(epoll: i32, event: usize, timeout_ms: i32) -> isize {
        raw(arch::EPOLL_WAIT, [epoll as usize, event, 1, timeout_ms as usize, 0, 0])
    }
}

/// A system call from an instruction of the program's own.
pub type Instruction = fn(i64, [usize; 6]) -> isize;

/// The raw door's instruction, once [`have_instructions`] has set it.
static INSTRUCTION: OnceLock<Instruction> = OnceLock::new();

/// Enables the raw door: this program has `syscall` instructions of its own, unlike most programs.
pub fn have_instructions() {
    let _ = INSTRUCTION.set(arch::instruction); // perhaps once more
}

fn raw(number: i64, args: [usize; 6]) -> isize {
    INSTRUCTION.get().expect("the runner has checked Door::missing")(number, args)
}

/// The libc convention (-1 and errno) as a register value.
fn from_libc(answer: i64) -> isize {
    if answer == -1 {
        -(std::io::Error::last_os_error().raw_os_error().unwrap_or(0) as isize)
    } else {
        answer as isize
    }
}

fn libc_syscall(number: i64, args: [usize; 6]) -> isize {
    // SAFETY: as in `arch::instruction`; libc passes the six words on unchanged.
    from_libc(unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) })
}

/// The address of libaio's function `name`, as a program linked with it would get it.
fn libaio_symbol(name: &CStr) -> *mut c_void {
    static LOADED: OnceLock<bool> = OnceLock::new();
    let load = |library: &CStr| {
        // SAFETY: a constant name; libaio has no constructor.
        !unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null()
    };
    let loaded = LOADED.get_or_init(|| load(c"libaio.so.1") || load(c"libaio.so.1t64"));
    // SAFETY: `name` is NUL-terminated and RTLD_DEFAULT is always a valid handle.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !loaded || address.is_null() {
        crate::sys::skip(&format!("libaio.so.1 with {name:?} is not installed"));
    }
    address
}

fn by_libaio(number: i64, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int;
    let (name, last) = match number {
        NR_IO_SETUP => (c"io_setup", f),
        NR_IO_DESTROY => (c"io_destroy", f),
        NR_IO_SUBMIT => (c"io_submit", f),
        NR_IO_CANCEL => (c"io_cancel", f),
        NR_IO_GETEVENTS => (c"io_getevents", f),
        // The function takes the mask itself, the call takes a pointer to it and its size. Cases pass a valid pointer
        // or null.
        // SAFETY: the pointer is valid or null, as above.
        _ => (c"io_pgetevents", if f == 0 { 0 } else { unsafe { *(f as *const usize) } }),
    };
    // SAFETY: the functions of these names take up to six words; on x86-64 those that they do not take are ignored.
    unsafe { std::mem::transmute::<*mut c_void, Function>(libaio_symbol(name))(a, b, c, d, e, last) as isize }
}

impl Door {
    /// Returns the name that follows a case's name.
    pub fn name(self) -> &'static str {
        match self {
            Door::Liburing => "liburing",
            Door::Libc => "libc",
            Door::Raw => "raw",
        }
    }

    /// Returns the reason why this door cannot be used here, if it cannot.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Door::Liburing if IS_STATIC => Some("this program is static, and liburing.so.2 a shared library"),
            Door::Liburing if exports().is_none() => {
                Some("liburing.so.2 with io_uring_setup, io_uring_enter2 and io_uring_register is not installed")
            }
            Door::Raw if INSTRUCTION.get().is_none() => Some("this program has no such instructions"),
            _ => None,
        }
    }

    fn exports(self) -> Option<Exports> {
        (self == Door::Liburing).then(|| exports().expect("the runner has checked Door::missing"))
    }

    fn syscall(self, number: i64, args: [usize; 6]) -> isize {
        match self {
            Door::Raw => raw(number, args),
            Door::Liburing | Door::Libc => libc_syscall(number, args),
        }
    }

    /// A call of Linux AIO by its number; the `liburing` door calls libaio's function of that name. Ends the case as skipped
    /// where there is none.
    pub fn aio(self, number: i64, args: [usize; 6]) -> isize {
        match self {
            Door::Liburing => by_libaio(number, args),
            _ => self.syscall(number, args),
        }
    }

    /// io_uring_setup(2) with `params` as an address, so that bad ones can be passed.
    pub fn setup(self, entries: u32, params: usize) -> isize {
        evidence::setup(params, || match self.exports() {
            // SAFETY: the function passes the address on to the kernel (or the engine), which checks it.
            Some(exports) => unsafe { (exports.setup)(entries, params as *mut Params) as isize },
            None => self.syscall(NR_IO_URING_SETUP, [entries as usize, params, 0, 0, 0, 0]),
        })
    }

    /// io_uring_enter(2) with its six arguments.
    pub fn enter(self, fd: i32, to_submit: u32, min_complete: u32, flags: u32, arg: usize, size: usize) -> isize {
        let answer = self.enter_unseen(fd, to_submit, min_complete, flags, arg, size);
        evidence::enter(to_submit, flags, arg, answer);
        answer
    }

    /// Calls io_uring_enter(2) without recording evidence. Timing decides whether a case makes this call to wait for a
    /// CQE, so the record would differ from run to run.
    pub fn enter_unseen(
        self,
        fd: i32,
        to_submit: u32,
        min_complete: u32,
        flags: u32,
        arg: usize,
        size: usize,
    ) -> isize {
        match self.exports() {
            // SAFETY: as in `setup`.
            Some(exports) => unsafe {
                (exports.enter2)(fd as u32, to_submit, min_complete, flags, arg as *const c_void, size) as isize
            },
            None => {
                let args = [fd as usize, to_submit as usize, min_complete as usize, flags as usize, arg, size];
                self.syscall(NR_IO_URING_ENTER, args)
            }
        }
    }

    /// io_uring_register(2).
    pub fn register(self, fd: i32, opcode: u32, arg: usize, count: u32) -> isize {
        evidence::register(opcode, arg, count, || match self.exports() {
            // SAFETY: as in `setup`.
            Some(exports) => unsafe { (exports.register)(fd as u32, opcode, arg as *const c_void, count) as isize },
            None => self.syscall(NR_IO_URING_REGISTER, [fd as usize, opcode as usize, arg, count as usize, 0, 0]),
        })
    }

    /// mmap(2) of one area of a ring: read and write, shared, populated, anywhere.
    pub fn mmap(self, length: usize, fd: i32, offset: u64) -> isize {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        let answer = if self == Door::Raw {
            let args = [0, length, protection as usize, flags as usize, fd as usize, offset as usize];
            raw(libc::SYS_mmap, args)
        } else {
            // SAFETY: no address is asked for, so no mapping of the process can be replaced.
            let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, offset as i64) };
            from_libc(address as i64)
        };
        evidence::mapping(offset, answer);
        answer
    }

    /// munmap(2) of what `mmap` returned.
    pub fn munmap(self, address: usize, length: usize) -> isize {
        if self == Door::Raw {
            return raw(libc::SYS_munmap, [address, length, 0, 0, 0, 0]);
        }
        // SAFETY: only `Ring` calls this, with the mapping that it owns and no longer uses.
        from_libc(i64::from(unsafe { libc::munmap(address as *mut c_void, length) }))
    }

    /// close(2).
    pub fn close(self, fd: i32) -> isize {
        if self == Door::Raw {
            return raw(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
        }
        // SAFETY: the caller owns the number it closes.
        from_libc(i64::from(unsafe { libc::close(fd) }))
    }

    /// poll(2) of one descriptor for `events`. Returns the events (0 after `timeout_ms`), or `-errno`.
    pub fn poll(self, fd: i32, events: i16, timeout_ms: i32) -> isize {
        let mut entry = libc::pollfd { fd, events, revents: 0 };
        let answer = if self == Door::Raw {
            waits::poll(&raw mut entry as usize, timeout_ms)
        } else {
            // SAFETY: one entry is passed, and it lives until the call returns.
            from_libc(i64::from(unsafe { libc::poll(&mut entry, 1, timeout_ms) }))
        };
        if answer < 0 {
            answer
        } else {
            entry.revents as isize
        }
    }

    /// epoll_ctl(2) that adds `fd` for `events`.
    pub fn epoll_add(self, epoll: i32, fd: i32, events: u32) -> isize {
        let mut event = libc::epoll_event { events, u64: fd as u64 };
        if self == Door::Raw {
            let add = libc::EPOLL_CTL_ADD as usize;
            return raw(libc::SYS_epoll_ctl, [epoll as usize, add, fd as usize, &raw mut event as usize, 0, 0]);
        }
        // SAFETY: `event` lives until the call returns.
        from_libc(i64::from(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) }))
    }

    /// epoll_wait(2) for one event. Returns its bits, 0 after `timeout_ms`, or `-errno`.
    pub fn epoll_wait(self, epoll: i32, timeout_ms: i32) -> isize {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let answer = if self == Door::Raw {
            waits::epoll(epoll, &raw mut event as usize, timeout_ms)
        } else {
            // SAFETY: room for one event is passed, and it lives until the call returns.
            from_libc(i64::from(unsafe { libc::epoll_wait(epoll, &mut event, 1, timeout_ms) }))
        };
        if answer == 1 {
            event.events as isize
        } else {
            answer
        }
    }
}
