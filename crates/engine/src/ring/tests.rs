//! Tests of a ring in the test's own memory, through the calls that programs make, at positions that wrap.

use super::broken::Uncompleted;
use super::{Ring, RingGuard};
use crate::memory::layout::word;
use crate::op::rw::Rw;
use crate::op::{Op, Verdict};
use crate::os::{Os, Sys};
use crate::process;
use crate::request::{Cancelled, Request, State, Target};
use crate::ring::table;
use crate::wait::enter::{enter, Enter};
use crate::wq::{Approach, Job, Origin};
use anyring_abi::{
    Opcode, Params, Sqe, IORING_ENTER_GETEVENTS, IORING_SETUP_NO_MMAP, IORING_SETUP_NO_SQARRAY, IOSQE_ASYNC,
};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const ENTRIES: u32 = 8;

/// Zeroed, page-aligned memory for a ring of [`ENTRIES`] entries, which is never freed.
#[repr(align(4096))]
struct Areas([AtomicU32; 2048]);

struct Program {
    areas: &'static Areas,
    fd: i32,
}

impl Program {
    /// Makes a ring with CQ positions from `start` on.
    fn starting_at(start: u32) -> Program {
        let areas: &'static Areas = Box::leak(Box::new(Areas([const { AtomicU32::new(0) }; 2048])));
        let base = areas.0.as_ptr() as u64;
        let flags = IORING_SETUP_NO_MMAP | IORING_SETUP_NO_SQARRAY;
        let mut params = Params { flags, ..Params::default() };
        (params.cq_off.user_addr, params.sq_off.user_addr) = (base, base + 4096);
        let fd = crate::setup(ENTRIES, &raw mut params as u64).expect("a ring");
        let program = Program { areas, fd };
        program.complete_until(start);
        program
    }

    fn ring(&self) -> &'static Ring {
        table::ring(self.fd).expect("a ring")
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        &self.areas.0[offset / 4]
    }

    /// Acts as if CQEs had been posted and taken until the CQ's tail is at `position`.
    fn complete_until(&self, position: u32) {
        let guard = self.ring().lock().expect("the ring");
        guard.control.lock_post().advance(position, 0);
        self.word(word::CQ_TAIL).store(position, Ordering::Release);
        self.word(word::CQ_HEAD).store(position, Ordering::Release);
    }

    fn wait_for(&self, min_complete: u32) {
        let (fd, flags) = (self.fd as u32, IORING_ENTER_GETEVENTS);
        enter(&Enter { fd, to_submit: 0, min_complete, flags, arg: 0, arg_size: 0 }).expect("a wait");
    }

    fn nop(&self) {
        self.submit(Sqe::default());
    }

    fn put(&self, sqe: Sqe) {
        let tail = self.word(word::SQ_TAIL).load(Ordering::Relaxed);
        let slot = 4096 + 64 * (tail % ENTRIES) as usize;
        // SAFETY: the slot is free and inside the areas, which are plain words.
        unsafe { (self.areas.0.as_ptr().byte_add(slot) as *mut Sqe).write_volatile(sqe) };
        self.word(word::SQ_TAIL).store(tail + 1, Ordering::Release);
    }

    fn submit(&self, sqe: Sqe) {
        self.put(sqe);
        let call = Enter { fd: self.fd as u32, to_submit: 1, min_complete: 0, flags: 0, arg: 0, arg_size: 0 };
        assert_eq!(enter(&call), Ok(1));
    }

    fn posted(&self) -> u32 {
        self.word(word::CQ_TAIL).load(Ordering::Acquire)
    }

    fn asleep(&self) -> u32 {
        let guard = self.ring().lock().expect("the ring");
        guard.control.header().waiters.waiting.load(Ordering::Relaxed)
    }

    fn close(&self) {
        process::closing(self.fd);
        Sys::close(self.fd);
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Positions near a wrap at 32 bits, or near a change of sign of their difference.
const STARTS: [u32; 4] = [0, (1 << 31) - 2, 1 << 31, u32::MAX - 1];

/// Starts a thread that waits. The thread is not scoped, so that the test ends even if the wait does not.
fn spawn_wait(program: &'static Program, count: u32) -> JoinHandle<()> {
    std::thread::spawn(move || program.wait_for(count))
}

#[test]
fn waits_end_where_positions_come_round() {
    for start in STARTS {
        let program: &Program = Box::leak(Box::new(Program::starting_at(start)));
        let waits = [2, 4].map(|count| spawn_wait(program, count));
        until("two threads wait", || program.asleep() == 2);
        program.nop();
        program.nop();
        until("the wait for two ends", || waits[0].is_finished());
        program.nop();
        assert!(!waits[1].is_finished(), "from {start:#x}");
        program.nop();
        until("the wait for four ends", || waits[1].is_finished());
        program.close();
    }
}

#[test]
fn a_wait_ends_though_2_to_the_31_completions_went_by() {
    for start in STARTS {
        let program: &Program = Box::leak(Box::new(Program::starting_at(start)));
        let wait = spawn_wait(program, 4);
        until("a thread waits", || program.asleep() == 1);
        program.complete_until(start.wrapping_add(1 << 31).wrapping_add(10));
        program.nop();
        until("the wait ends", || wait.is_finished());
        program.close();
    }
}

/// IOSQE_ASYNC is only a hint: such a request may complete inside the call, which returns with its CQE in the CQ.
#[test]
fn a_request_shorter_than_waking_a_worker_is_made_at_once() {
    let file = std::fs::File::open("/proc/self/exe").expect("this program, which the page cache has");
    let mut bytes = [0u8; 2];
    let iovec = [bytes.as_mut_ptr() as usize, 1];
    let args = [file.as_raw_fd() as usize, iovec.as_ptr() as usize, 1, 0, 0, libc::RWF_NOWAIT as usize];
    if crate::os::syscall(libc::SYS_preadv2, args) != 1 {
        return eprintln!("skipped: the file system of this program does not know RWF_NOWAIT");
    }
    let program = Program::starting_at(0);
    program.submit(Sqe { flags: IOSQE_ASYNC, ..Sqe::default() });
    assert_eq!(program.posted(), 1);
    let addr = bytes[1..].as_mut_ptr() as u64;
    let fd = file.as_raw_fd();
    program.submit(Sqe { opcode: Opcode::Read as u8, flags: IOSQE_ASYNC, fd, addr, len: 1, ..Sqe::default() });
    assert_eq!(program.posted(), 2);
    assert_eq!(std::hint::black_box(bytes), [0x7f; 2], "the first byte of an ELF file");
    program.close();
}

/// A file in /proc does not know RWF_NOWAIT, but its data is in memory.
#[test]
fn a_read_from_memory_needs_no_worker() {
    let file = std::fs::File::open("/proc/self/comm").expect("a file");
    let mut byte = 0u8;
    let (fd, addr) = (file.as_raw_fd(), &raw mut byte as u64);
    let program = Program::starting_at(0);
    for count in 1..=3 {
        program.submit(Sqe { opcode: Opcode::Read as u8, fd, addr, len: 1, ..Sqe::default() });
        assert_eq!(program.posted(), count);
    }
    assert_ne!(std::hint::black_box(byte), 0);
    program.close();
}

/// The submitting thread makes both calls, and its wait for one completion ends at once.
#[test]
fn results_of_calls_are_in_the_cq_when_their_submission_returns() {
    let program = Program::starting_at(0);
    let (opcode, addr) = (Opcode::Unlinkat as u8, c"/proc/self/no-such-file".as_ptr() as u64);
    for _ in 0..2 {
        program.put(Sqe { opcode, fd: libc::AT_FDCWD, addr, ..Sqe::default() });
    }
    let (fd, flags) = (program.fd as u32, IORING_ENTER_GETEVENTS);
    assert_eq!(enter(&Enter { fd, to_submit: 2, min_complete: 1, flags, arg: 0, arg_size: 0 }), Ok(2));
    assert_eq!(program.posted(), 2);
    program.close();
}

/// A sleeping connect is cancelled without its worker. The worker brings its result before the cancelled request has
/// ended.
#[test]
fn a_result_that_comes_late_completes_nothing() {
    let program = Program::starting_at(0);
    let mut guard = program.ring().lock().expect("the ring");
    let request = Request::new(Op::default(), Opcode::Connect, 0, 7, Target::None);
    let id = guard.admit(request, Uncompleted::new(program.ring(), 7, None));
    let of: (&'static dyn Origin, u64, u64) = (program.ring(), guard.cookie, id.to_word());
    let job = Job::new(of, (Opcode::Nop, Op::default()), (-1, None), Approach::Plain, None);
    guard.slab.queue(id, job.clone());
    assert!(job.begin());
    assert_eq!(guard.cancel_one(id), Ok(0));
    *job.verdict.lock().expect("nobody has it") = Some(Verdict::Done(0));
    guard.receive(job);
    assert!(
        matches!(guard.slab[id].state(), State::Cancelled(Cancelled { result, .. }) if *result == -libc::ECANCELED)
    );
    drop(guard);
    program.close();
}

/// Looking up an unknown number shows that it duplicates a ring's number. A number that is being closed is no
/// duplicate.
#[test]
fn a_number_that_is_being_closed_is_not_mistaken_for_a_duplicate() {
    static LOOKS: AtomicBool = AtomicBool::new(false);
    static IS_CLOSED: AtomicBool = AtomicBool::new(false);
    for _ in 0..300 {
        let program = Program::starting_at(0);
        let (fd, ring) = (program.fd, program.ring());
        LOOKS.store(false, Ordering::Relaxed);
        IS_CLOSED.store(false, Ordering::Relaxed);
        let other = std::thread::spawn(move || {
            while !IS_CLOSED.load(Ordering::Relaxed) {
                let _ = table::adopt(fd);
                LOOKS.store(true, Ordering::Relaxed);
            }
        });
        until("another thread looks the number up", || LOOKS.load(Ordering::Relaxed));
        program.close();
        IS_CLOSED.store(true, Ordering::Relaxed);
        other.join().expect("a thread that looks");
        // By now another test may have reused the ring.
        let is_named = table::ring(fd).is_some_and(|named| core::ptr::eq(named, ring));
        assert!(!is_named || ring.cookie.load(Ordering::Relaxed) != 0, "number {fd} names a ring that has ended");
    }
}

/// Small reads that the page cache may hold are not worth a thread each. Reads that certainly wait for a device are,
/// and so are long reads.
#[test]
fn small_reads_that_cannot_be_attempted_are_made_by_one_worker() {
    let program = Program::starting_at(0);
    let mut guard = program.ring().lock().expect("the ring");
    let exe = std::fs::File::open("/proc/self/exe").expect("a file");
    let mut options = std::fs::File::options();
    let direct = options.read(true).custom_flags(libc::O_DIRECT).open("/proc/self/exe").ok();
    let mut approach = |opcode, len, fd| {
        let sqe = Sqe { addr: 0x10000, len, ..Sqe::default() };
        let op = Op::Rw(Rw::prep(opcode, &sqe).expect("a transfer"));
        let request = Request::new(op, opcode, 0, 7, Target::Number(fd));
        let id = guard.admit(request, Uncompleted::new(program.ring(), 7, None));
        let approach = guard.plain_approach(id);
        guard.finish(id, 0, false);
        approach
    };
    assert_eq!(approach(Opcode::Read, 4096, exe.as_raw_fd()), Approach::Quick);
    assert_eq!(approach(Opcode::Read, 1 << 20, exe.as_raw_fd()), Approach::Plain);
    assert_eq!(approach(Opcode::Write, 4096, exe.as_raw_fd()), Approach::Plain);
    match direct {
        Some(direct) => assert_eq!(approach(Opcode::Read, 4096, direct.as_raw_fd()), Approach::Plain),
        None => eprintln!("not checked with O_DIRECT: the file system does not take it"),
    }
    drop(guard);
    program.close();
}

/// A ring is closed while a worker has a request with a successor. The successor ends, and the worker's result does not
/// look for it.
#[test]
fn a_request_linked_after_a_workers_ends_with_its_ring() {
    let program = Program::starting_at(0);
    let mut guard = program.ring().lock().expect("the ring");
    let admit = |guard: &mut RingGuard, opcode, user_data| {
        let request = Request::new(Op::default(), opcode, 0, user_data, Target::None);
        guard.admit(request, Uncompleted::new(program.ring(), user_data, None))
    };
    let id = admit(&mut guard, Opcode::Fsync, 7);
    let after = admit(&mut guard, Opcode::Nop, 8);
    guard.slab[id].next = Some(after);
    let of: (&'static dyn Origin, u64, u64) = (program.ring(), guard.cookie, id.to_word());
    let job = Job::new(of, (Opcode::Fsync, Op::default()), (-1, None), Approach::Plain, None);
    guard.slab.queue(id, job.clone());
    assert!(job.begin());
    guard.close();
    guard.abandon_requests();
    assert!(guard.slab.get(id).is_some() && guard.slab.get(after).is_none());
    *job.verdict.lock().expect("nobody has it") = Some(Verdict::Done(0));
    guard.receive(job);
    assert!(guard.slab.get(id).is_none());
    guard.reopen();
    drop(guard);
    program.close();
}
