//! System calls by number, for libc's `syscall()` and for trapped instructions. [`call`] does the same work for a
//! number as the wrapper of that call, and then makes the call from anyring's own code.

use crate::arch;
use crate::host::Host;
use crate::signals::mask::read_program;
use crate::{descriptor, door, entry, memory, named, passing, sys, wait};
use anyring_abi::{
    NR_IO_CANCEL, NR_IO_DESTROY, NR_IO_GETEVENTS, NR_IO_PGETEVENTS, NR_IO_SETUP, NR_IO_SUBMIT, NR_IO_URING_ENTER,
    NR_IO_URING_REGISTER, NR_IO_URING_SETUP,
};
use anyring_engine::{identity, os, process, Errno};

/// The number of dup2(2). This and the next three are numbers that no call has on aarch64.
pub const DUP2: i64 = arch::DUP2;
/// The number of epoll_wait(2).
pub const EPOLL_WAIT: i64 = arch::EPOLL_WAIT;
/// The number of poll(2).
pub const POLL: i64 = arch::POLL;
/// The number of select(2).
pub const SELECT: i64 = arch::SELECT;

/// The numbers that [`call`] handles specially, apart from [`identity::NUMBERS`] and [`named::CALLS`]. All others may
/// go straight to the kernel. Newer architectures lack calls that newer calls have replaced.
pub const NUMBERS: &[i64] = &[
    NR_IO_URING_SETUP,
    NR_IO_URING_ENTER,
    NR_IO_URING_REGISTER,
    NR_IO_SETUP,
    NR_IO_DESTROY,
    NR_IO_GETEVENTS,
    NR_IO_SUBMIT,
    NR_IO_CANCEL,
    NR_IO_PGETEVENTS,
    libc::SYS_mmap,
    libc::SYS_mlockall,
    libc::SYS_close,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_close_range,
    libc::SYS_fcntl,
    libc::SYS_epoll_ctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigsuspend,
    libc::SYS_sigaltstack,
];

/// Performs system call `number`. Returns the kernel's register; errno is untouched.
pub fn call<H: Host>(number: i64, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    match number {
        NR_IO_URING_SETUP => match H::setup_refusal() {
            0 => door::setup::<H>(a as u32, b as *mut _, false),
            errno => -(errno as isize),
        },
        NR_IO_URING_ENTER => door::enter::<H>(a as u32, b as u32, c as u32, d as u32, e as *const _, f),
        NR_IO_URING_REGISTER => door::register::<H>(a as u32, b as u32, c as *mut _, d as u32),
        NR_IO_SETUP | NR_IO_DESTROY | NR_IO_GETEVENTS | NR_IO_SUBMIT | NR_IO_CANCEL | NR_IO_PGETEVENTS => {
            door::aio::<H>(number, args)
        }
        libc::SYS_exit => {
            entry::aside(|| door::exiting(a as i32));
            kernel(number, args)
        }
        libc::SYS_rt_sigaction => entry::answer_any(|| H::sigaction(args)),
        libc::SYS_rt_sigprocmask => entry::answer_any(|| H::sigprocmask(args)),
        libc::SYS_rt_sigsuspend => {
            H::with_mask(a as *const u64, b, |mask| waiting(number, [mask as usize, b, c, d, e, f]))
        }
        libc::SYS_sigaltstack => {
            let answer = kernel(number, args);
            if answer == 0 && a != 0 {
                // SAFETY: the kernel has just read it.
                H::record_alternate(unsafe { &*(a as *const libc::stack_t) });
            }
            answer
        }
        libc::SYS_mmap => {
            let mut really = Ok(args);
            entry::aside(|| really = memory::substituted(args));
            really.map_or_else(
                |error| error,
                |really| {
                    let answer = kernel(number, really);
                    if answer > 0 {
                        memory::mapped(&args, &really, answer as usize);
                    }
                    answer
                },
            )
        }
        libc::SYS_mlockall => {
            let answer = kernel(number, args);
            if answer == 0 {
                os::unlocked::record_mlockall(a);
            }
            answer
        }
        libc::SYS_sendmmsg => {
            let mut count = Ok(c as u32);
            let sendable = || named::check(number, &args).and_then(|()| passing::sendable(b as *const _, c as u32));
            entry::aside(|| count = sendable());
            match count {
                Ok(count) => waiting(number, [a, b, count as usize, d, e, f]),
                Err(error) => -(error.raw_os_error() as isize),
            }
        }
        libc::SYS_close => {
            let mut closed = Ok(false);
            entry::aside(|| closed = descriptor::close(a as i32));
            match closed {
                Ok(true) => 0,
                Ok(false) => kernel(number, args),
                Err(error) => -(error.raw_os_error() as isize),
            }
        }
        libc::SYS_close_range => {
            let close =
                |first, last, flags| kernel(number, [first as usize, last as usize, flags as usize, d, e, f]);
            descriptor::close_range_by(a as u32, b as u32, c as u32, close)
        }
        libc::SYS_unshare => {
            entry::aside(|| process::before_identity_call(number, a));
            descriptor::unshare_by(a as u32, |flags| kernel(number, [flags as usize, b, c, d, e, f]))
        }
        _ => {
            let mut verdict = Ok(());
            entry::aside(|| verdict = prepare(number, &args));
            match verdict {
                Ok(()) => wait_or_pass::<H>(number, args),
                Err(error) => -(error.raw_os_error() as isize),
            }
        }
    }
}

/// True if [`call`] makes the call unchanged after [`prepare`], or answers it with that function's error.
pub fn is_prepared_only(number: i64) -> bool {
    matches!(number, DUP2 | libc::SYS_dup3 | libc::SYS_epoll_ctl | EPOLL_WAIT | POLL | SELECT | libc::SYS_sendmsg)
}

/// Prepares a call on descriptors.
///
/// # Errors
/// The error that answers the call instead of the kernel.
pub fn prepare(number: i64, args: &[usize; 6]) -> Result<(), Errno> {
    named::check(number, args)?;
    let [a, b, c, d, ..] = *args;
    match number {
        DUP2 => return descriptor::before_dup(a as i32, b as i32, 0),
        libc::SYS_dup3 => return descriptor::before_dup(a as i32, b as i32, c as i32),
        libc::SYS_sendmsg => return passing::before_sendmsg(b as *const _),
        libc::SYS_fcntl => descriptor::before_fcntl(a as i32, b as i32, c),
        libc::SYS_epoll_ctl => wait::before_epoll_ctl(b as i32, c as i32, d as *const _),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => wait::before_epoll_wait(),
        libc::SYS_ppoll => wait::before_poll(a as *const _, b),
        libc::SYS_pselect6 => wait::before_select(a as i32, b as *const _),
        EPOLL_WAIT => wait::before_epoll_wait(),
        POLL => wait::before_poll(a as *const _, b),
        SELECT => wait::before_select(a as i32, b as *const _),
        _ if identity::NUMBERS.contains(&number) => process::before_identity_call(number, a),
        _ => {}
    }
    Ok(())
}

/// Makes the call. If it has a signal mask, the guarded signals are taken out of that mask.
fn wait_or_pass<H: Host>(number: i64, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    match number {
        libc::SYS_ppoll => H::with_mask(d as *const u64, e, |mask| waiting(number, [a, b, c, mask as usize, e, f])),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => {
            H::with_mask(e as *const u64, f, |mask| waiting(number, [a, b, c, d, mask as usize, f]))
        }
        libc::SYS_pselect6 => pselect6::<H>(args),
        libc::SYS_dup3 => kernel(number, args),
        DUP2 => kernel(number, args),
        _ => waiting(number, args),
    }
}

/// Makes a pselect6(2): its sixth argument points to the mask's address and size.
fn pselect6<H: Host>([a, b, c, d, e, f]: [usize; 6]) -> isize {
    let kernel_call = |sixth: usize| waiting(libc::SYS_pselect6, [a, b, c, d, e, sixth]);
    let Some([mask, size]) = read_program::<[usize; 2]>(f) else {
        return kernel_call(f);
    };
    H::with_mask(mask as *const u64, size, |mask| {
        let pair = [mask as usize, size];
        kernel_call(&raw const pair as usize)
    })
}

/// Makes a call that may wait. The wait ends early if the thread must end.
fn waiting(number: i64, args: [usize; 6]) -> isize {
    os::wait(number, args)
}

/// Makes a call unconditionally.
fn kernel(number: i64, args: [usize; 6]) -> isize {
    // SAFETY: the program asked for this very call with these arguments, which the kernel checks. A substituted
    // argument is only a descriptor, an offset or a mask from anyring.
    unsafe { sys::call(number, args) }
}
