//! Threads that disturb the first one.

use super::{call, is_gentle, numbers, poke, poke_u32, protect, rings, wait_for_child};
use crate::arena::{self, Area};
use crate::child::{self, report};
use crate::generate::place;
use crate::program::*;
use anyring_abi::*;
use libc::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The most threads of this kind.
const MOST: usize = 8;

/// One thread: its nuisance, as a number, and its seed. Written before the thread is made.
struct Seat {
    kind: AtomicUsize,
    seed: AtomicU64,
    thread: AtomicU64,
}

static SEATS: [Seat; MOST] =
    [const { Seat { kind: AtomicUsize::new(0), seed: AtomicU64::new(0), thread: AtomicU64::new(0) } }; MOST];
static OPENED: AtomicUsize = AtomicUsize::new(0);
static END: AtomicBool = AtomicBool::new(false);
/// The first thread, for signals.
static FIRST: AtomicU64 = AtomicU64::new(0);

const KINDS: [Nuisance; 8] = [
    Nuisance::Rewrites,
    Nuisance::Unmaps,
    Nuisance::Closes,
    Nuisance::Enters,
    Nuisance::Signals,
    Nuisance::Forks,
    Nuisance::Scrambles,
    Nuisance::Logs,
];

/// Makes the calling thread the target of the signals.
pub fn prepare() {
    // SAFETY: only asks.
    FIRST.store(unsafe { libc::pthread_self() }, Ordering::Relaxed);
}

/// Starts a nuisance, if a thread can be made.
pub fn start(kind: Nuisance, seed: u64) {
    let number = OPENED.load(Ordering::Relaxed);
    let Some(seat) = SEATS.get(number) else { return };
    let index = KINDS.iter().position(|known| *known == kind).expect("all kinds are listed");
    seat.kind.store(index, Ordering::Relaxed);
    seat.seed.store(seed, Ordering::Relaxed);
    // SAFETY: plain numbers and locals; pthread_create publishes what was stored before. The alarm stays with the first thread.
    unsafe {
        let (mut alarm, mut kept): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&mut alarm);
        libc::sigaddset(&mut alarm, libc::SIGALRM);
        for signal in child::SIGNALS {
            libc::sigaddset(&mut alarm, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &alarm, &mut kept);
        let mut thread = 0;
        let answer = libc::pthread_create(&mut thread, std::ptr::null(), be, number as *mut c_void);
        libc::pthread_sigmask(libc::SIG_SETMASK, &kept, std::ptr::null_mut());
        if answer == 0 {
            seat.thread.store(thread, Ordering::Relaxed);
            OPENED.store(number + 1, Ordering::Relaxed);
        }
    }
}

/// Ends them all, and reports the ones that do not end.
pub fn end(patience: Duration) {
    END.store(true, Ordering::Relaxed);
    for seat in &SEATS[..OPENED.load(Ordering::Relaxed)] {
        let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a thread that was made and not joined; locals.
        let answer = unsafe {
            libc::clock_gettime(libc::CLOCK_REALTIME, &mut until);
            until.tv_sec += patience.as_secs() as i64;
            libc::pthread_timedjoin_np(seat.thread.load(Ordering::Relaxed), std::ptr::null_mut(), &until)
        };
        if answer != 0 {
            report(format_args!(
                "hang: the thread that {:?} does not end",
                KINDS[seat.kind.load(Ordering::Relaxed)]
            ));
            // The later steps would interfere with it.
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        }
    }
}

extern "C" fn be(number: *mut c_void) -> *mut c_void {
    child::IS_PROGRAMS.set(true);
    let seat = &SEATS[number as usize];
    let kind = KINDS[seat.kind.load(Ordering::Relaxed)];
    let mut random = fastrand::Rng::with_seed(seat.seed.load(Ordering::Relaxed));
    while !END.load(Ordering::Relaxed) {
        once(kind, &mut random);
        if random.u8(0..8) == 0 {
            std::thread::sleep(Duration::from_micros(random.u64(10..300)));
        }
    }
    std::ptr::null_mut()
}

fn once(kind: Nuisance, random: &mut fastrand::Rng) {
    match kind {
        Nuisance::Rewrites => rewrite(random),
        Nuisance::Unmaps => {
            let slot = random.u8(0..2);
            let number = random.u8(0..4);
            let areas = [
                Area::Shaky,
                Area::Shaky,
                Area::Shaky,
                Area::Rings(slot),
                Area::Sqes(slot),
                Area::BufferRing(number),
            ];
            let most = if random.u8(0..8) == 0 { areas.len() } else { 3 };
            let area = areas[random.usize(0..most)];
            protect(area, random.u8(0..4), random.u8(1..4), random.u8(0..6));
        }
        Nuisance::Closes => {
            child::open_victim(FIRST_VICTIM + random.i32(0..VICTIMS), random.u8(0..40));
            if random.u8(0..4) == 0 {
                // SAFETY: a victim's number.
                unsafe { libc::close(FIRST_VICTIM + random.i32(0..VICTIMS)) };
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Nuisance::Enters => {
            rings::enter(&Enter {
                ring: Fd::Ring(random.u8(0..3)),
                to_submit: random.u32(0..3),
                min_complete: random.u32(0..3),
                flags: IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
                argument: Word::At(Area::Fixed, arena::WAITS),
                size: 24,
            });
        }
        Nuisance::Signals => {
            // SAFETY: the first thread lives until this one was joined.
            unsafe { libc::pthread_kill(FIRST.load(Ordering::Relaxed), child::SIGNALS[random.usize(0..3)]) };
            std::thread::sleep(Duration::from_micros(random.u64(50..2000)));
        }
        Nuisance::Forks => fork(random),
        Nuisance::Logs => (0..random.u32(1..100)).for_each(|_| numbers::log()),
        Nuisance::Scrambles if is_gentle() => std::thread::sleep(Duration::from_millis(1)),
        Nuisance::Scrambles => {
            let slot = random.u8(0..3);
            let words = Area::Rings(slot).start();
            let offset = match random.u8(0..4) {
                0 => 4 * random.usize(0..16),
                1 => [0, 4, 8, 12, 36, 44][random.usize(0..6)],
                _ => 64 + 4 * random.usize(0..256),
            };
            poke_u32(words + offset, [0, 1, 2, 7, 8, 100, u32::MAX, 1 << 31][random.usize(0..8)]);
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Changes SQEs and the memory that they name. A read into an exact buffer never becomes longer: see `Sqes` in
/// `Generator::address`.
fn rewrite(random: &mut fastrand::Rng) {
    let areas = [Area::Scratch, Area::Shaky, Area::Half, Area::Unmapped, Area::ReadOnly, Area::Structs];
    let area = areas[random.usize(0..areas.len())];
    let address = (area.start() + 8 * random.usize(0..512)) as u64;
    match random.u8(0..5) {
        0 | 1 => {
            let sqe = Area::Sqes(random.u8(0..3)).start() + 64 * random.usize(0..16);
            match random.u8(0..4) {
                0 => poke(sqe + 16, &address.to_ne_bytes()),
                1 => poke(sqe + 24, &random.u32(0..2).to_ne_bytes()),
                2 => poke(sqe + 32, &random.u64(0..64).to_ne_bytes()),
                _ => poke(sqe + 2, &[random.u8(0..4)]),
            };
        }
        2 => {
            let vector = Area::Structs.start() + place::VECTORS as usize + 8 * random.usize(0..128);
            let word = if random.bool() { address } else { random.u64(0..8192) };
            poke(vector, &word.to_ne_bytes());
        }
        3 => {
            let iocb = Area::Structs.start() + place::IOCBS as usize + 64 * random.usize(0..32);
            poke(iocb + 24, &address.to_ne_bytes());
        }
        _ => {
            let entry = Area::BufferRing(random.u8(0..4)).start() + 16 * random.usize(0..8);
            match random.u8(0..3) {
                0 => poke(entry, &address.to_ne_bytes()),
                1 => poke(entry + 8, &random.u32(0..8192).to_ne_bytes()),
                _ => poke((entry & !0xff) + 14, &random.u16(..).to_ne_bytes()),
            };
        }
    }
}

/// Forks a child that uses its parent's rings and ends.
fn fork(random: &mut fastrand::Rng) {
    let (ring, closes, submits) = (random.u8(0..3), random.bool(), random.u32(0..3));
    // SAFETY: the child makes system calls and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let fd = rings::number(Fd::Ring(ring));
        let wait = Area::Fixed.start() as u64 + u64::from(arena::WAITS);
        let flags = u64::from(IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG);
        call::call(NR_IO_URING_ENTER, [fd as u64, u64::from(submits), 1, flags, wait, 24]);
        // SAFETY: a ring's number; then the end of the child.
        unsafe {
            if closes && fd >= 10 {
                libc::close(fd);
            }
            libc::_exit(0)
        }
    }
    if child > 0 {
        let begun = Instant::now();
        wait_for_child(child, super::PATIENCE);
        std::thread::sleep(begun.elapsed().min(Duration::from_millis(5)) + Duration::from_millis(1));
    }
}
