//! A ring that no step names, with a READ on a pipe that no step names. Whatever else the program does, both must be
//! intact at the end.

use crate::child::report;
use crate::execute::call_interrupted;
use crate::program::Program;
use anyring_abi::*;
use libc::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The numbers of its ring, the ends of its pipe, and its file. No request, close or duplicate uses these.
const NUMBERS: [c_int; 4] = [RING, READER, WRITER, FILE];
const RING: c_int = 300;
const READER: c_int = 301;
const WRITER: c_int = 302;
const FILE: c_int = 303;
const ENTRIES: u32 = 4;
const DATA: [u8; 8] = *b"witness\n";

/// The addresses of the ring's words and SQEs; 0 for none. Relaxed: stored by the first thread, or by one that it
/// joins.
static WORDS: AtomicUsize = AtomicUsize::new(0);
static SQES: AtomicUsize = AtomicUsize::new(0);
/// The offsets of the CQEs and of the array.
static OFFSETS: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];
/// 0 as long as there is no READ.
static SUBMITTED: AtomicU32 = AtomicU32::new(0);
/// The READ's buffer.
static BUFFER: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// Makes the ring, in whichever thread this is. Further calls change nothing.
pub fn make(flags: u32) {
    if WORDS.load(Ordering::Relaxed) != 0 {
        return;
    }
    let mut params = Params { flags, ..Params::default() };
    let ring = crate::call::call(NR_IO_URING_SETUP, [u64::from(ENTRIES), &raw mut params as u64, 0, 0, 0, 0]);
    let mut ends = [-1; 2];
    // SAFETY: a local for two numbers, and a constant path.
    let file = unsafe {
        libc::pipe(ends.as_mut_ptr());
        libc::open(c"witness".as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC, 0o600)
    };
    let mut got = [ring as c_int, ends[0], ends[1], file];
    for (fd, number) in got.iter_mut().zip(NUMBERS) {
        // SAFETY: numbers that were just opened, which nothing else depends on.
        unsafe {
            let opened = std::mem::replace(fd, libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, number));
            libc::close(opened);
        }
    }
    // If the number table is nearly full, the engine may have one of these numbers. The next free number, which
    // fcntl(2) then returned, does not replace it.
    if got != NUMBERS {
        for fd in got {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
        return;
    }
    // SAFETY: addresses that the kernel chooses.
    let [words, sqes] = unsafe {
        [IORING_OFF_SQ_RING, IORING_OFF_SQES].map(|offset| {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), 4096, both, libc::MAP_SHARED, RING, offset as i64)
        })
    };
    if [words, sqes].contains(&libc::MAP_FAILED) {
        return;
    }
    OFFSETS[0].store(params.cq_off.cqes, Ordering::Relaxed);
    OFFSETS[1].store(params.sq_off.array, Ordering::Relaxed);
    SQES.store(sqes as usize, Ordering::Relaxed);
    WORDS.store(words as usize, Ordering::Relaxed);
}

/// A word of the ring, which the kernel or the engine changes as well.
fn word(offset: u32) -> &'static AtomicU32 {
    // SAFETY: inside the ring's page, which is never unmapped.
    unsafe { &*((WORDS.load(Ordering::Relaxed) + offset as usize) as *const AtomicU32) }
}

/// Submits this SQE, and waits for this many CQEs.
fn submit(sqe: &Sqe, wait_for: u32) -> i64 {
    let tail = word(4).load(Ordering::Relaxed);
    let at = tail % ENTRIES;
    // SAFETY: an SQE in a page that is never unmapped. It is not read before the tail is stored.
    unsafe { ((SQES.load(Ordering::Relaxed) + 64 * at as usize) as *mut Sqe).write(*sqe) };
    word(OFFSETS[1].load(Ordering::Relaxed) + 4 * at).store(at, Ordering::Relaxed);
    // Release: pairs with the Acquire of the side that takes the SQE.
    word(4).store(tail.wrapping_add(1), Ordering::Release);
    enter(1, wait_for)
}

fn enter(submit: u32, wait_for: u32) -> i64 {
    let args = [RING as u64, u64::from(submit), u64::from(wait_for), u64::from(IORING_ENTER_GETEVENTS), 0, 0];
    crate::call::call(NR_IO_URING_ENTER, args)
}

/// Submits the READ that waits from then on, once, if the ring exists. The first thread calls it.
pub fn arm() {
    if WORDS.load(Ordering::Relaxed) == 0 || SUBMITTED.load(Ordering::Relaxed) != 0 {
        return;
    }
    let addr = BUFFER.as_ptr() as u64;
    let read =
        Sqe { opcode: Opcode::Read as u8, fd: READER, addr, len: 8, off: u64::MAX, user_data: 1, ..Sqe::default() };
    let answer = submit(&read, 0);
    SUBMITTED.store(1, Ordering::Relaxed);
    // Without memory the SQE is consumed later.
    if answer != 1 && answer != -i64::from(libc::EAGAIN) && answer != -i64::from(libc::ENOMEM) {
        report(format_args!("witness: a READ is submitted with {answer}"));
    }
}

/// Returns the number of CQEs to reap.
fn ready() -> u32 {
    // Acquire: pairs with the Release of the side that posts.
    word(12).load(Ordering::Acquire).wrapping_sub(word(8).load(Ordering::Relaxed))
}

/// Checks at the end that the ring still works. The READ still waits, and completes once there is data. A worker
/// completes an FSYNC, which may fail with EPERM if a thread of this program has a filter.
pub fn check(program: &Program, patience: Duration) {
    arm();
    if SUBMITTED.load(Ordering::Relaxed) == 0 {
        return;
    }
    if ready() != 0 {
        report(format_args!("witness: {} CQEs are there before there was anything to read", ready()));
        return;
    }
    // SAFETY: writes from a constant to its own pipe, which is empty.
    let written = unsafe { libc::write(WRITER, DATA.as_ptr().cast::<c_void>(), DATA.len()) };
    if written != 8 {
        let error = std::io::Error::last_os_error();
        report(format_args!("witness: its pipe takes {written} of 8 bytes: {error}"));
        return;
    }
    let flags = IOSQE_ASYNC;
    submit(&Sqe { opcode: Opcode::Fsync as u8, flags, fd: FILE, user_data: 2, ..Sqe::default() }, 2);
    let start = Instant::now();
    while ready() < 2 {
        if start.elapsed() > patience {
            report(format_args!("hang: a ring that nobody named has {} of 2 CQEs", ready()));
            return;
        }
        // Also submits SQEs that were not consumed yet.
        let answer = enter(word(4).load(Ordering::Relaxed).wrapping_sub(word(0).load(Ordering::Acquire)), 2);
        if answer < 0 && !call_interrupted(answer) {
            report(format_args!("witness: its ring's enter answers {answer}"));
            return;
        }
    }
    let cqes = WORDS.load(Ordering::Relaxed) + OFFSETS[0].load(Ordering::Relaxed) as usize;
    for number in 0..2 {
        // SAFETY: a posted CQE in a page that is never unmapped.
        let cqe = unsafe { *((cqes + 16 * number) as *const Cqe) };
        let expected = match cqe.user_data {
            1 => 8,
            2 if cqe.res == -libc::EPERM && program.filters_threads() => cqe.res,
            2 => 0,
            _ => c_int::MIN,
        };
        if cqe.res != expected {
            report(format_args!(
                "witness: request {} of a ring that nobody named ends with {}",
                cqe.user_data, cqe.res
            ));
        }
    }
    let read = BUFFER.each_ref().map(|half| half.load(Ordering::Relaxed).to_ne_bytes());
    if read[0] != DATA[..4] || read[1] != DATA[4..] {
        report(format_args!("witness: its READ got {read:?}"));
    }
}
