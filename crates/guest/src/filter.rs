//! The seccomp filter program, which decides which of the guest's calls are trapped.
//!
//! It checks the number and the arguments first, then the address of the instruction. Guests have their code in two
//! ranges. Code that is linked for fixed addresses is in the lowest 4 GiB. All other code is in [`WINDOW`], where the
//! kernel maps nothing by itself. So the same filter serves every program that a guest executes. An exec adds no
//! filter, and the host's own calls are never trapped.

use crate::arch::calls;
use crate::start;
use anyring_abi::{AIO_CALLS, NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use anyring_engine::os::arch::page_bytes;
use anyring_engine::{identity, log};
use anyring_serve::door::RING_NUMBERS;
use anyring_serve::filters::bpf::{self, jump, load, ret, ALLOW, ANY_BIT, EQUAL};
use anyring_serve::filters::{self, Way};
use anyring_serve::{named, sys};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use libc::sock_filter;

/// SECCOMP_RET_DATA of the host's filters. It reaches the handler as si_errno, and distinguishes their traps from those
/// of the guest's filters.
pub const MARK: u16 = 0x6167;

/// The range of a guest's code that can be at any address. Its bounds are multiples of 4 GiB, so that
/// [`calls::WINDOW_MASK`] selects it.
pub const WINDOW: Range<usize> = calls::WINDOW;
/// The range of code that is linked for fixed addresses.
const LOW: Range<usize> = 0..1 << 32;

const TRAP: u32 = libc::SECCOMP_RET_TRAP | MARK as u32;

/// Calls that are trapped whatever their arguments, like those of io_uring, [`identity::NUMBERS`] and
/// [`calls::ALWAYS`]. They concern threads, processes, signals or the engine's descriptors. exit(2) is not among them:
/// see `world.rs`.
const ALWAYS: [i64; 9] = [
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigsuspend,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_readlinkat,
    libc::SYS_close_range,
];
/// Calls that are trapped if this argument points to a signal mask, since the mask must not block SIGSYS.
const WITH_MASK: [(i64, usize); 4] =
    [(libc::SYS_ppoll, 3), (libc::SYS_pselect6, 5), (libc::SYS_epoll_pwait, 4), (libc::SYS_epoll_pwait2, 4)];
/// Calls that are trapped once there is a ring. For waits and messages, a filter cannot read whether a ring is among
/// their descriptors. The others may close a number whose file the engine knows.
const WITH_RINGS: [i64; 5] =
    [libc::SYS_ppoll, libc::SYS_sendmsg, libc::SYS_sendmmsg, libc::SYS_close, libc::SYS_dup3];
/// Calls that are trapped once an epoll set has a level-triggered ring. The ring's readability has to be brought up to
/// date before each wait.
const WITH_LEVELS: [i64; 2] = [libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
/// The calls that a filter traps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// The calls that matter from the beginning.
    General,
    /// The calls that only matter once there is a ring.
    WithRings,
    /// The calls that only matter once an epoll set has a level-triggered ring.
    WithLevels,
}

/// Number of filters for code that is neither in [`WINDOW`] nor in [`LOW`]. Each such filter makes all calls slower.
static COVERED: AtomicU32 = AtomicU32::new(0);
const COVERED_MOST: u32 = 16;

/// Adds the filter that traps these calls to all threads. Returns the way in which it was added.
///
/// # Errors
/// The reason why that is not possible.
pub fn install(calls: Calls) -> Result<Way, &'static str> {
    install_program(&program(calls, &[WINDOW, LOW]))
}

/// Adds a filter for code that has been mapped at these addresses, unless the filters trap it already.
pub fn cover(code: Range<usize>) {
    if is_covered(&code) || code.is_empty() {
        return;
    }
    if COVERED.fetch_add(1, Ordering::Relaxed) >= COVERED_MOST {
        log::line("there are too many seccomp filters for another: new code of the guest's is left to the kernel");
        return;
    }
    for calls in start::trapped() {
        if let Err(why) = install_program(&program(calls, core::slice::from_ref(&code))) {
            log::line(&format!("new code of the guest's is left to the kernel: {why}"));
        }
    }
}

/// True if this code is within one of the two ranges in which all code is trapped.
pub fn is_covered(code: &Range<usize>) -> bool {
    [WINDOW, LOW].iter().any(|all| all.start <= code.start && code.end <= all.end)
}

/// Returns a place in [`WINDOW`] for a mapping of that many bytes, as a hint for the kernel.
pub fn place(bytes: usize, alignment: usize) -> usize {
    /// The place of the next mapping; 0 at the beginning.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if NEXT.load(Ordering::Relaxed) == 0 {
        let _ = NEXT.compare_exchange(0, first_place(), Ordering::Relaxed, Ordering::Relaxed);
    }
    let room = bytes.saturating_add(alignment).saturating_add(16 * page_bytes());
    let at = NEXT.fetch_add(room.next_multiple_of(page_bytes()), Ordering::Relaxed);
    at.next_multiple_of(alignment.max(page_bytes()))
}

/// Returns a place in the lower half of the window, random unless the process has no address randomization.
fn first_place() -> usize {
    const ADDR_NO_RANDOMIZE: isize = 0x0004_0000;
    let (mut random, half) = (0_usize, WINDOW.len() / 2);
    // SAFETY: asks for the personality, and has the kernel fill a local.
    unsafe {
        if sys::call(libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0]) & ADDR_NO_RANDOMIZE == 0 {
            sys::call(libc::SYS_getrandom, [&raw mut random as usize, size_of::<usize>(), 0, 0, 0, 0]);
        }
    }
    WINDOW.start + page_bytes() + (random % half) / page_bytes() * page_bytes()
}

/// Returns the program that traps these calls in `code`.
fn program(calls: Calls, code: &[Range<usize>]) -> Vec<sock_filter> {
    let mut found = bpf::Calls::new();
    match calls {
        Calls::General => general(&mut found),
        Calls::WithLevels => {
            WITH_LEVELS.iter().chain(calls::WITH_LEVELS).for_each(|number| found.always(*number));
        }
        Calls::WithRings => {
            WITH_RINGS.iter().chain(calls::WITH_RINGS).for_each(|number| found.always(*number));
            found.within(calls::SELECTS, 0, RING_NUMBERS.start + 1..i32::MAX);
        }
    }
    let mut program = found.end();
    for code in code {
        if *code == WINDOW {
            let [_, upper] = bpf::ADDRESS;
            let is_window = jump(EQUAL, (WINDOW.start >> 32) as u32, 0, 1);
            program.extend([load(upper), bpf::mask(calls::WINDOW_MASK), is_window, ret(TRAP)]);
        } else {
            program.extend(bpf::by_upper_half(code).flat_map(|part| bpf::in_range(part, TRAP)));
        }
    }
    program.push(ret(ALLOW));
    program
}

/// Selects the calls that matter from the beginning.
fn general(found: &mut bpf::Calls) {
    let aio = if start::serves_aio() { &AIO_CALLS[..] } else { &[] };
    ALWAYS
        .iter()
        .chain(calls::ALWAYS)
        .chain(&identity::NUMBERS)
        .chain(aio)
        .for_each(|number| found.always(*number));
    found.all(NR_IO_URING_SETUP, NR_IO_URING_REGISTER);
    named::find(found);
    for (number, index) in WITH_MASK {
        let [low, high] = bpf::argument(index);
        found.add(&[jump(EQUAL, number as u32, 0, 5), load(low)]);
        found.found_if(ANY_BIT, u32::MAX);
        found.add(&[load(high)]);
        found.found_if(ANY_BIT, u32::MAX);
        found.add(&[ret(ALLOW)]);
    }
    // Mappings of code, and of files at no fixed address: the latter may hold code that is made executable later.
    let [address, upper] = bpf::argument(0);
    let ([protection, _], [file, _]) = (bpf::argument(2), bpf::argument(4));
    found.add(&[jump(EQUAL, libc::SYS_mmap as u32, 0, 9), load(protection)]);
    found.found_if(ANY_BIT, libc::PROT_EXEC as u32);
    found.add(&[load(file), jump(ANY_BIT, 1 << 31, 5, 0)]);
    found.add(&[load(address), jump(ANY_BIT, u32::MAX, 3, 0), load(upper)]);
    found.found_if(EQUAL, 0);
    found.add(&[ret(ALLOW)]);
}

fn install_program(program: &[sock_filter]) -> Result<Way, &'static str> {
    let way = filters::way().filter(|way| way.install(program).is_ok());
    way.ok_or("a seccomp filter cannot be installed")
}
