//! Seccomp filters of this process. The functions check whether a filter may be added, add it, and count the filters.
//! [`bpf`] builds their programs.

pub mod bpf;

use crate::sys;
use anyring_engine::os::{ask_in_child, is_filtered};
use anyring_engine::thread;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{sock_filter, sock_fprog};

/// Number of filters from which on programs run as guests. A guest that executes a program needs no further filter; a
/// preloaded program adds its own.
const MANY: usize = 16;

/// The way in which a filter is added.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// seccomp(2), for all threads.
    AllThreads,
    /// prctl(2), for the only thread. An allow list, such as systemd's `@system-service`, may lack seccomp(2).
    OnlyThread,
}

/// True once seccomp(2) was found to be permitted. Relaxed: no other memory depends on it. It is never reset, even if
/// the program adds filters, since those must allow the engine's calls (docs/limits.md).
static SECCOMP: AtomicBool = AtomicBool::new(false);

/// Returns how a filter may be added now, or `None` if no filter may be added. Call this first, so that no_new_privs is
/// not set in vain.
pub fn way() -> Option<Way> {
    if SECCOMP.load(Ordering::Relaxed) {
        return Some(Way::AllThreads);
    }
    // A filter in force may kill for the question.
    let is_refused = if is_filtered() { ask_in_child(ask_for_seccomp) != Some(0) } else { ask_for_seccomp() != 0 };
    match is_refused {
        false => {
            SECCOMP.store(true, Ordering::Relaxed);
            Some(Way::AllThreads)
        }
        true => (is_filtered() && thread::is_alone() && prctl_accepts_filters()).then_some(Way::OnlyThread),
    }
}

/// Asks the kernel whether seccomp(2) is permitted. A kernel that has filters but not this operation (before Linux
/// 4.14) answers EINVAL.
fn ask_for_seccomp() -> isize {
    let action = libc::SECCOMP_RET_TRAP;
    let question = [libc::SECCOMP_GET_ACTION_AVAIL as usize, 0, &raw const action as usize, 0, 0, 0];
    // SAFETY: the call reads one word, `action`.
    match unsafe { sys::call(libc::SYS_seccomp, question) } {
        answer if answer == -(libc::EINVAL as isize) => 0,
        answer => answer,
    }
}

/// Asks the kernel whether prctl(2) accepts filters. For a filter at a null address it then answers EFAULT
/// (PR_SET_SECCOMP in prctl(2)).
fn prctl_accepts_filters() -> bool {
    let question = [libc::PR_SET_SECCOMP as usize, libc::SECCOMP_MODE_FILTER as usize, 0, 0, 0, 0];
    // SAFETY: the address is null, so the kernel can add nothing.
    unsafe { sys::call(libc::SYS_prctl, question) == -(libc::EFAULT as isize) }
}

impl Way {
    /// Adds a filter, and sets no_new_privs.
    ///
    /// # Errors
    /// The system's error, positive.
    pub fn install(self, program: &[sock_filter]) -> Result<(), c_int> {
        let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        let at = &raw const program as usize;
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC as usize;
        let (number, filter) = match self {
            Way::AllThreads => (libc::SYS_seccomp, [libc::SECCOMP_SET_MODE_FILTER as usize, flags, at, 0, 0, 0]),
            Way::OnlyThread => {
                (libc::SYS_prctl, [libc::PR_SET_SECCOMP as usize, libc::SECCOMP_MODE_FILTER as usize, at, 0, 0, 0])
            }
        };
        // SAFETY: the program and what it points to outlive the calls, which copy them; the kernel verifies it.
        let answer = unsafe {
            // May be refused if it is set already.
            sys::call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]);
            sys::call(number, filter)
        };
        match answer {
            0 => Ok(()),
            // Positive: the thread that could not be given the filter (SECCOMP_FILTER_FLAG_TSYNC in seccomp(2)).
            1.. => Err(libc::ESRCH),
            refused => Err(-refused as c_int),
        }
    }
}

/// True if there are so many seccomp filters that no preloaded program should add its own. The kernel limits them
/// (about 250, or 32,768 instructions), and each makes calls slower.
pub fn are_many() -> bool {
    if !is_filtered() {
        return false;
    }
    let open = [libc::AT_FDCWD as usize, c"/proc/self/status".as_ptr() as usize, libc::O_CLOEXEC as usize, 0, 0, 0];
    let mut page = vec![0_u8; 2048];
    // SAFETY: a path and an array of this function. Nothing else uses the descriptor.
    let bytes = unsafe {
        let file = sys::call(libc::SYS_openat, open);
        if file < 0 {
            return false;
        }
        let bytes = sys::call(libc::SYS_read, [file as usize, page.as_mut_ptr() as usize, page.len(), 0, 0, 0]);
        sys::call(libc::SYS_close, [file as usize, 0, 0, 0, 0, 0]);
        bytes.max(0) as usize
    };
    let name = b"Seccomp_filters:";
    let Some(at) = page[..bytes].windows(name.len()).position(|window| window == name) else { return false };
    let digits = page[at + name.len()..bytes].iter().skip_while(|byte| byte.is_ascii_whitespace());
    let digits = digits.take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |sum: usize, digit| sum.saturating_mul(10) + usize::from(digit - b'0')) >= MANY
}
