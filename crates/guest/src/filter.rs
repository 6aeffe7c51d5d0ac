//! The seccomp program: which calls of the guest's are trapped.
//!
//! It judges by number and arguments first, then by the address of the instruction. Guests have their code in two places: what
//! is linked for fixed addresses in the lowest 4 GiB, all else in [`WINDOW`], where the kernel maps nothing by itself. So one
//! filter serves every program that a guest becomes, none is added by an exec, and what the host does is never trapped.

use crate::start;
use anyring_abi::{AIO_CALLS, NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use anyring_engine::{identity, log};
use anyring_serve::door::{KNOWN_NUMBERS, RING_NUMBERS};
use anyring_serve::filters::{self, Way};
use anyring_serve::sys;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use libc::{seccomp_data, sock_filter};

/// SECCOMP_RET_DATA of our filters, which reaches the handler as si_errno and tells our traps from the guest's own.
pub const MARK: u16 = 0x6167;

/// Where a guest's code is mapped that can be anywhere. Multiples of 4 GiB; as many as [`WINDOW_MASK`] leaves open.
pub const WINDOW: Range<usize> = 0x2000_0000_0000..0x2100_0000_0000;
const WINDOW_MASK: u32 = 0xffff_ff00;
/// Where code is mapped that is linked for fixed addresses.
const LOW: Range<usize> = 0..1 << 32;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const TRAP: u32 = libc::SECCOMP_RET_TRAP | MARK as u32;
/// AUDIT_ARCH_X86_64 (linux/audit.h): EM_X86_64, 64-bit, little-endian.
const ARCH: u32 = 0xc000_003e;

/// Trapped whatever the arguments, as those of io_uring and [`identity::NUMBERS`]: what concerns threads, processes, signals or
/// the engine's descriptors. Not exit(2): see `world.rs`.
const ALWAYS: [i64; 13] = [
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigsuspend,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_close_range,
    libc::SYS_arch_prctl,
];
/// Trapped with the argument that has to be in the range of ring numbers.
const ON_RINGS: [(i64, usize); 6] = [
    (libc::SYS_close, 0),
    (libc::SYS_dup2, 1),
    (libc::SYS_dup3, 1),
    (libc::SYS_epoll_ctl, 2),
    (libc::SYS_fcntl, 0),
    (libc::SYS_mmap, 4),
];
/// Trapped where a signal mask is given by this argument: it must not block SIGSYS.
const WITH_MASK: [(i64, usize); 4] =
    [(libc::SYS_ppoll, 3), (libc::SYS_pselect6, 5), (libc::SYS_epoll_pwait, 4), (libc::SYS_epoll_pwait2, 4)];
/// Trapped once there is a ring: waits and messages of which a filter cannot see whether a ring is among their descriptors, and
/// what may end a number of which the engine knows the file.
const WITH_RINGS: [i64; 7] = [
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_close,
    libc::SYS_dup2,
    libc::SYS_dup3,
];
/// Trapped once a ring is in an epoll set level-triggered: it has to be brought up to date before each wait.
const WITH_LEVELS: [i64; 3] = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
/// Those whose first argument has to reach to the numbers of rings.
const SELECTS: [i64; 2] = [libc::SYS_select, libc::SYS_pselect6];

/// Which calls a filter traps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// What matters from the beginning.
    General,
    /// What only matters once there is a ring.
    WithRings,
    /// What only matters once a ring is in an epoll set level-triggered.
    WithLevels,
}

/// How many filters cover code that is neither in [`WINDOW`] nor in [`LOW`]: each makes all calls slower.
static COVERED: AtomicU32 = AtomicU32::new(0);
const COVERED_MOST: u32 = 16;

/// Adds the filter of these calls to all threads, and answers how.
///
/// # Errors
/// Why that is not possible.
pub fn install(calls: Calls) -> Result<Way, &'static str> {
    let program = Program::new(calls).trapping(WINDOW).trapping(LOW);
    program.install()
}

/// Code has been mapped there: it is trapped as well, if it is not anyway.
pub fn cover(code: Range<usize>) {
    if is_covered(&code) || code.is_empty() {
        return;
    }
    if COVERED.fetch_add(1, Ordering::Relaxed) >= COVERED_MOST {
        log::line("there are too many seccomp filters for another: new code of the guest's is left to the kernel");
        return;
    }
    for calls in start::trapped() {
        if let Err(why) = Program::new(calls).trapping(code.clone()).install() {
            log::line(&format!("new code of the guest's is left to the kernel: {why}"));
        }
    }
}

/// Whether what is there is trapped whatever it is.
pub fn is_covered(code: &Range<usize>) -> bool {
    [WINDOW, LOW].iter().any(|all| all.start <= code.start && code.end <= all.end)
}

/// A place in [`WINDOW`] for a mapping of that many bytes, for the kernel as a hint.
pub fn place(bytes: usize, alignment: usize) -> usize {
    const PAGE: usize = 4096;
    /// Where the next mapping goes; 0 at the beginning.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if NEXT.load(Ordering::Relaxed) == 0 {
        let _ = NEXT.compare_exchange(0, first_place(), Ordering::Relaxed, Ordering::Relaxed);
    }
    let room = bytes.saturating_add(alignment).saturating_add(16 * PAGE);
    let at = NEXT.fetch_add(room.next_multiple_of(PAGE), Ordering::Relaxed);
    at.next_multiple_of(alignment.max(PAGE))
}

/// Somewhere in the lower half of the window, as random as addresses are.
fn first_place() -> usize {
    const PAGE: usize = 4096;
    const ADDR_NO_RANDOMIZE: isize = 0x0004_0000;
    let (mut random, half) = (0_usize, WINDOW.len() / 2);
    // SAFETY: asks for the personality, and has the kernel fill a local.
    unsafe {
        if sys::call(libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0]) & ADDR_NO_RANDOMIZE == 0 {
            sys::call(libc::SYS_getrandom, [&raw mut random as usize, size_of::<usize>(), 0, 0, 0, 0]);
        }
    }
    WINDOW.start + PAGE + (random % half) / PAGE * PAGE
}

/// A program for the kernel.
struct Program(Vec<sock_filter>);

impl Program {
    /// What comes before any address.
    fn new(calls: Calls) -> Program {
        let mut program = Program(Vec::new());
        let (arch, number) = (offset_of!(seccomp_data, arch), offset_of!(seccomp_data, nr));
        program.add(&[load(arch), jump(EQUAL, ARCH, 1, 0), answer(ALLOW), load(number)]);
        // Jumps to the search behind, whose distance is not known yet.
        let mut found = Vec::new();
        match calls {
            Calls::General => program.general(&mut found),
            Calls::WithLevels => WITH_LEVELS.iter().for_each(|number| program.always(*number, &mut found)),
            Calls::WithRings => {
                WITH_RINGS.iter().for_each(|number| program.always(*number, &mut found));
                let reaching = RING_NUMBERS.start as u32 + 1..i32::MAX as u32;
                SELECTS.iter().for_each(|number| program.within(*number, 0, reaching.clone(), &mut found));
            }
        }
        program.add(&[answer(ALLOW)]);
        for at in found {
            program.0[at].k = (program.0.len() - at - 1) as u32;
        }
        program
    }

    fn general(&mut self, found: &mut Vec<usize>) {
        let aio = if start::serves_aio() { &AIO_CALLS[..] } else { &[] };
        for number in ALWAYS.iter().chain(&identity::NUMBERS).chain(aio) {
            self.always(*number, found);
        }
        self.add(&[jump(AT_LEAST, NR_IO_URING_SETUP as u32, 0, 2), jump(ABOVE, NR_IO_URING_REGISTER as u32, 1, 0)]);
        self.go(found);
        for (number, argument) in ON_RINGS {
            self.within(number, argument, KNOWN_NUMBERS.start as u32..KNOWN_NUMBERS.end as u32, found);
        }
        for (number, argument) in WITH_MASK {
            let [low, high] = halves(argument);
            self.add(&[jump(EQUAL, number as u32, 0, 6), load(low), jump(EQUAL, 0, 0, 2), load(high)]);
            self.add(&[jump(EQUAL, 0, 1, 0)]);
            self.go(found);
            self.add(&[answer(ALLOW)]);
        }
        // Mappings of code, and of files wherever there is room: code is among them, perhaps to be made executable later.
        let [address, upper] = halves(0);
        let ([protection, _], [file, _]) = (halves(2), halves(4));
        self.add(&[jump(EQUAL, libc::SYS_mmap as u32, 0, 11), load(protection)]);
        self.add(&[jump(ANY_BIT, libc::PROT_EXEC as u32, 0, 1)]);
        self.go(found);
        self.add(&[load(file), jump(ANY_BIT, 1 << 31, 5, 0), load(address), jump(EQUAL, 0, 0, 3), load(upper)]);
        self.add(&[jump(EQUAL, 0, 0, 1)]);
        self.go(found);
        self.add(&[answer(ALLOW)]);
    }

    fn add(&mut self, instructions: &[sock_filter]) {
        self.0.extend_from_slice(instructions);
    }

    /// Goes to the search.
    fn go(&mut self, found: &mut Vec<usize>) {
        found.push(self.0.len());
        self.add(&[instruction(libc::BPF_JMP | libc::BPF_JA, 0, 0, 0)]);
    }

    fn always(&mut self, number: i64, found: &mut Vec<usize>) {
        self.add(&[jump(EQUAL, number as u32, 0, 1)]);
        self.go(found);
    }

    /// Goes to the search for `number` if the lower half of its argument is in `range`; else on behind this, with the number.
    fn within(&mut self, number: i64, argument: usize, range: Range<u32>, found: &mut Vec<usize>) {
        let [low, _] = halves(argument);
        self.add(&[jump(EQUAL, number as u32, 0, 5), load(low)]);
        self.add(&[jump(AT_LEAST, range.start, 0, 2), jump(AT_LEAST, range.end, 1, 0)]);
        self.go(found);
        self.add(&[load(offset_of!(seccomp_data, nr))]);
    }

    /// Traps what comes from this code.
    fn trapping(mut self, code: Range<usize>) -> Program {
        let [low, high] = {
            let address = offset_of!(seccomp_data, instruction_pointer);
            [address, address + 4]
        };
        if code == WINDOW {
            let mask = instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, WINDOW_MASK, 0, 0);
            self.add(&[load(high), mask, jump(EQUAL, (WINDOW.start >> 32) as u32, 0, 1), answer(TRAP)]);
            return self;
        }
        for upper in code.start >> 32..=(code.end - 1) >> 32 {
            let within = |address: usize| address.clamp(upper << 32, (upper << 32) | 0xffff_ffff) as u32;
            self.add(&[load(high), jump(EQUAL, upper as u32, 0, 4), load(low)]);
            self.add(&[jump(AT_LEAST, within(code.start), 0, 2), jump(ABOVE, within(code.end - 1), 1, 0)]);
            self.add(&[answer(TRAP)]);
        }
        self
    }

    fn install(mut self) -> Result<Way, &'static str> {
        self.add(&[answer(ALLOW)]);
        filters::way().filter(|way| way.install(&self.0)).ok_or("a seccomp filter cannot be installed")
    }
}

const EQUAL: u32 = libc::BPF_JEQ;
const AT_LEAST: u32 = libc::BPF_JGE;
const ABOVE: u32 = libc::BPF_JGT;
const ANY_BIT: u32 = libc::BPF_JSET;

/// Where the halves of an argument are.
fn halves(argument: usize) -> [usize; 2] {
    let low = offset_of!(seccomp_data, args) + argument * 8;
    [low, low + 4]
}

fn load(offset: usize) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32, 0, 0)
}

fn jump(test: u32, value: u32, if_true: u8, if_false: u8) -> sock_filter {
    instruction(libc::BPF_JMP | test | libc::BPF_K, value, if_true, if_false)
}

fn answer(action: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, action, 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}
