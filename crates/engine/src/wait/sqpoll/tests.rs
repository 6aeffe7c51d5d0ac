//! Tests of the polling thread, with rings in the test's own memory, through the calls that programs make.

use super::*;
use crate::memory::layout::word;
use crate::ring::RingGuard;
use anyring_abi::{
    Cqe, Sqe, IORING_SETUP_NO_MMAP, IORING_SETUP_NO_SQARRAY, IORING_SETUP_R_DISABLED, IORING_SQ_NEED_WAKEUP,
};
use std::time::{Duration, Instant};

const ENTRIES: u32 = 8;

/// Zeroed memory of a ring of [`ENTRIES`], page-aligned, never freed.
#[repr(align(4096))]
struct Areas([AtomicU32; 2048]);

/// A ring as it is given to a polling thread, with an idle time of 0.
fn attached(guard: &RingGuard) -> Attached {
    Attached { ring: guard.ring(), view: guard.memory.view, control: guard.control, idle_ns: 0 }
}

struct Program {
    areas: &'static Areas,
    fd: i32,
    tail: u32,
}

impl Poller {
    fn has_ended(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == ENDED
    }
}

impl Program {
    fn with(flags: u32, more: Params) -> Result<Program, Errno> {
        Program::make(flags | IORING_SETUP_SQPOLL, more)
    }

    fn make(flags: u32, more: Params) -> Result<Program, Errno> {
        let areas: &'static Areas = Box::leak(Box::new(Areas([const { AtomicU32::new(0) }; 2048])));
        let base = areas.0.as_ptr() as u64;
        let flags = flags | IORING_SETUP_NO_MMAP | IORING_SETUP_NO_SQARRAY;
        let mut params = Params { flags, sq_thread_idle: 1, ..more };
        (params.cq_off.user_addr, params.sq_off.user_addr) = (base, base + 4096);
        let fd = crate::setup(ENTRIES, &raw mut params as u64)?;
        Ok(Program { areas, fd, tail: 0 })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        &self.areas.0[offset / 4]
    }

    fn ring(&self) -> &'static Ring {
        table::ring(self.fd).expect("a ring")
    }

    fn enter(&self, flags: u32) -> Result<u32, Errno> {
        let fd = self.fd as u32;
        crate::enter(&Enter { fd, to_submit: 0, min_complete: 1, flags, arg: 0, arg_size: 0 })
    }

    /// Submits a NOP as liburing does: it calls io_uring_enter(2) only if the polling thread asks for that.
    fn nop(&mut self, user_data: u64) {
        let slot = 4096 + 64 * (self.tail % ENTRIES) as usize;
        let sqe = Sqe { user_data, ..Sqe::default() };
        // SAFETY: the slot is free and inside the areas, which are plain words.
        unsafe { (self.areas.0.as_ptr().byte_add(slot) as *mut Sqe).write_volatile(sqe) };
        self.tail += 1;
        self.word(word::SQ_TAIL).store(self.tail, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.word(word::SQ_FLAGS).load(Ordering::Relaxed) & IORING_SQ_NEED_WAKEUP != 0 {
            self.enter(IORING_ENTER_SQ_WAKEUP).expect("an enter that wakes");
        }
    }

    /// Returns the next CQE's user_data, read from ring memory. `None` if none comes within 30 s.
    fn reap(&self) -> Option<u64> {
        let head = self.word(word::CQ_HEAD).load(Ordering::Relaxed);
        let patience = Instant::now() + Duration::from_secs(30);
        while self.word(word::CQ_TAIL).load(Ordering::Acquire) == head {
            if Instant::now() > patience {
                return None;
            }
            std::thread::yield_now();
        }
        let slot = word::CQES + 16 * (head % (2 * ENTRIES)) as usize;
        // SAFETY: the slot is inside the areas, and its CQE was posted.
        let cqe = unsafe { (self.areas.0.as_ptr().byte_add(slot) as *const Cqe).read_volatile() };
        self.word(word::CQ_HEAD).store(head + 1, Ordering::Release);
        Some(cqe.user_data)
    }

    fn close(self) {
        process::closing(self.fd);
        Sys::close(self.fd);
    }
}

fn plain() -> Program {
    Program::with(0, Params::default()).expect("a polled ring")
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn parameters_are_read_as_the_kernel_does() {
    let params = |flags| Params { flags, wq_fd: 60_000, sq_thread_cpu: 1, ..Params::default() };
    assert!(options(&params(0)).is_ok_and(|options| options.is_none()));
    assert_eq!(options(&params(IORING_SETUP_SQ_AFF)).err(), Some(Errno::INVAL));
    assert_eq!(options(&params(IORING_SETUP_ATTACH_WQ)).err(), Some(Errno::NXIO));
    assert_eq!(options(&params(IORING_SETUP_ATTACH_WQ | IORING_SETUP_SQPOLL)).err(), Some(Errno::NXIO));
    let asked = options(&params(IORING_SETUP_SQPOLL)).expect("well-formed").expect("polling");
    assert_eq!((asked.cpu, asked.idle_ns), (None, 1_000_000_000));
    let asked = options(&params(IORING_SETUP_SQPOLL | IORING_SETUP_SQ_AFF)).expect("well-formed").expect("polling");
    assert_eq!(asked.cpu, Some(1));
}

#[test]
fn a_wake_up_at_the_edge_of_sleep_is_not_lost() {
    let mut program = plain();
    let mut slept = 0;
    for n in 0..300 {
        program.nop(n);
        assert_eq!(program.reap(), Some(n));
        // The pauses are about the idle time, so that the thread is just falling asleep when the next NOP comes.
        let end = Instant::now() + Duration::from_micros(900 + 7 * (n % 60));
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        let asks = program.word(word::SQ_FLAGS).load(Ordering::Relaxed) & IORING_SQ_NEED_WAKEUP;
        slept += u32::from(asks != 0);
    }
    assert!(slept > 0, "it never slept, so nothing was tried");
    program.close();
}

#[test]
fn the_thread_ends_with_its_last_ring() {
    let first = plain();
    let poller = first.ring().poller().expect("a poller");
    let wq = Params { wq_fd: first.fd as u32, ..Params::default() };
    let mut second = Program::with(IORING_SETUP_ATTACH_WQ, wq).expect("an attached ring");
    assert!(second.ring().poller().is_some_and(|other| Arc::ptr_eq(&poller, &other)));
    first.close();
    second.nop(5);
    assert_eq!(second.reap(), Some(5));
    assert!(!poller.has_ended());
    let late = attached(&second.ring().lock().expect("the ring"));
    second.close();
    wait_for("the thread's end", || poller.has_ended());
    assert_eq!(poller.attach(late), Err(Errno::NXIO));
}

#[test]
fn a_ring_that_somebody_keeps_is_added_without_waiting() {
    let mut first = plain();
    let poller = first.ring().poller().expect("a poller");
    let kept = Program::make(0, Params::default()).expect("a ring");
    let mut guard = kept.ring().lock().expect("the ring");
    let ends = guard.ends;
    guard.poll_set.make_epoll(ends).expect("a poll set");
    poller.attach(attached(&guard)).expect("it lives");
    poller.nudge();
    kept.ring().set_poller(&poller);
    wait_for("it is taken in", || poller.waiting.lock().is_some_and(|waiting| waiting.rings.is_empty()));
    first.nop(5);
    assert_eq!(first.reap(), Some(5));
    drop(guard);
    first.close();
    kept.close();
    wait_for("the thread's end", || poller.has_ended());
}

#[test]
fn a_panic_breaks_its_ring_and_no_other() {
    let first = plain();
    let wq = Params { wq_fd: first.fd as u32, ..Params::default() };
    let mut second = Program::with(IORING_SETUP_ATTACH_WQ, wq).expect("an attached ring");
    // Nothing happens while the ring's own thread holds it.
    while !first.ring().lock().is_ok_and(|guard| guard.is_broken()) {
        let mut polled = PolledRing::new(attached(&first.ring().lock().expect("the ring")));
        polled.with(|_| panic!("as an operation might"));
    }
    assert_eq!(first.enter(IORING_ENTER_SQ_WAKEUP), Err(Errno::IO));
    second.nop(3);
    assert_eq!(second.reap(), Some(3));
    second.close();
}

#[test]
fn a_ring_of_a_dead_thread_says_so() {
    let program = plain();
    let poller = program.ring().poller().expect("a poller");
    let thread = poller.thread.swap(ENDED, Ordering::Relaxed);
    assert_eq!(program.enter(IORING_ENTER_SQ_WAKEUP), Err(Errno::OWNERDEAD));
    poller.thread.store(thread, Ordering::Relaxed);
    assert_eq!(program.enter(IORING_ENTER_SQ_WAKEUP), Ok(0));
    program.close();
    wait_for("the thread's end", || poller.has_ended());
}

#[test]
fn a_disabled_ring_is_left_alone_until_it_is_enabled() {
    let mut program = Program::with(IORING_SETUP_R_DISABLED, Params::default()).expect("a polled ring");
    program.tail = 0;
    program.word(word::SQ_TAIL).store(1, Ordering::Release); // a NOP of zeroes
    std::thread::sleep(Duration::from_millis(20)); // time in which nothing must happen
    assert_eq!(program.word(word::SQ_HEAD).load(Ordering::Acquire), 0);
    assert_eq!(program.enter(IORING_ENTER_SQ_WAKEUP), Err(Errno::BADFD));
    let enable = anyring_abi::IORING_REGISTER_ENABLE_RINGS;
    assert_eq!(crate::register(program.fd as u32, enable, 0, 0), Ok(0));
    assert_eq!(program.reap(), Some(0));
    program.close();
}
