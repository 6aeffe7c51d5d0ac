//! Cases without a counterpart in the kernel's AIO, so that no conformance case can cover them. In the engine, reads
//! of empty pipes and sockets wait outside of io_submit(2), and can be cancelled.

use super::*;
use anyring_abi::IoEvent;
use anyring_abi::{IOCB_CMD_POLL, IOCB_CMD_PREAD, IOCB_CMD_PWRITE, IOCB_FLAG_RESFD};
use rustix::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Serialises the tests that make contexts, since a new context could get the address of one that has ended.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A context, through the calls that programs make.
struct Program(u64, #[allow(dead_code)] MutexGuard<'static, ()>);

impl Program {
    fn new() -> Program {
        let (mut context, turn) = (0, turn());
        io_setup(16, &raw mut context as u64).expect("io_setup");
        Program(context, turn)
    }

    fn submit(&self, iocb: &Iocb) {
        let addresses = [&raw const *iocb];
        assert_eq!(io_submit(self.0, 1, addresses.as_ptr() as u64), Ok(1));
    }

    /// Returns up to `at_most` events, after no more than a timeout.
    fn events(&self, at_least: i64, at_most: usize, timeout_ms: i64) -> Vec<IoEvent> {
        let mut events = vec![IoEvent::default(); at_most];
        let time = anyring_abi::Timespec { tv_sec: timeout_ms / 1000, tv_nsec: timeout_ms % 1000 * 1_000_000 };
        let wait = Wait {
            context: self.0,
            at_least,
            at_most: at_most as i64,
            events: events.as_mut_ptr() as u64,
            timeout: &raw const time as u64,
        };
        let got = io_getevents(&wait).expect("io_getevents");
        events.truncate(got as usize);
        events
    }

    /// Returns the result of the one event that comes.
    fn event(&self) -> i64 {
        let events = self.events(1, 1, 10_000);
        assert_eq!(events.len(), 1, "an event in time");
        events[0].res
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = io_destroy(self.0);
    }
}

fn iocb(opcode: u16, fd: &OwnedFd, buffer: &mut [u8]) -> Iocb {
    let (fd, buf, bytes) = (fd.as_raw_fd() as u32, buffer.as_mut_ptr() as u64, buffer.len() as u64);
    Iocb { opcode, fd, buf, bytes, ..Iocb::default() }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe().expect("pipe")
}

#[test]
fn a_read_of_an_empty_pipe_waits_outside_of_the_call() {
    let (program, (reader, writer)) = (Program::new(), pipe());
    let mut buffer = [0; 8];
    for round in 0..50 {
        let read = iocb(IOCB_CMD_PREAD, &reader, &mut buffer);
        program.submit(&read);
        assert_eq!(program.events(0, 1, 0), []);
        rustix::io::write(&writer, b"hello").expect("write");
        assert_eq!(program.event(), 5, "round {round}");
        assert_eq!(buffer[..5], *b"hello");
    }
}

#[test]
fn a_write_to_a_full_pipe_waits_outside_of_the_call() {
    let (program, (reader, writer)) = (Program::new(), pipe());
    let mut page = [b'x'; 4096];
    for _ in 0..16 {
        assert_eq!(rustix::io::write(&writer, &page), Ok(4096));
    }
    let write = iocb(IOCB_CMD_PWRITE, &writer, &mut page);
    program.submit(&write);
    assert_eq!(program.events(0, 1, 0), []);
    let mut buffer = [0; 65_536];
    assert_eq!(rustix::io::read(&reader, &mut buffer), Ok(65_536));
    assert_eq!(program.event(), 4096);
}

#[test]
fn a_read_of_a_socket_is_reported_in_memory_and_by_an_eventfd() {
    let program = Program::new();
    let (one, other) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::empty(),
        None,
    )
    .expect("socketpair");
    let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("eventfd");
    let mut buffer = [0; 8];
    let read = iocb(IOCB_CMD_PREAD, &one, &mut buffer);
    let read = Iocb { flags: IOCB_FLAG_RESFD, eventfd: counter.as_raw_fd() as u32, ..read };
    program.submit(&read);
    rustix::io::write(&other, b"hello").expect("write");
    let mut count = [0; 8];
    rustix::io::read(&counter, &mut count).expect("read the eventfd"); // nobody enters: the helper completes it
    assert_eq!(u64::from_ne_bytes(count), 1);
    assert_eq!(program.events(0, 8, 0).len(), 1);
}

#[test]
fn a_read_finds_what_is_left_beside_others_that_are_always_ready() {
    let (program, left, busy) = (Program::new(), pipe(), pipe());
    let (mut one, mut two) = ([0; 1], [0; 1]);
    let (rare, often) = (iocb(IOCB_CMD_PREAD, &left.0, &mut one), iocb(IOCB_CMD_PREAD, &busy.0, &mut two));
    for bytes in [&b"x"[..], b"x", b"x", b"x", b"x", b"x", b"xy"] {
        program.submit(&rare);
        assert_eq!(program.events(0, 1, 0), []);
        rustix::io::write(&left.1, bytes).expect("write");
        assert_eq!(program.event(), 1);
    }
    program.submit(&rare);
    let found = (0..2_000).any(|_| {
        program.submit(&often);
        rustix::io::write(&busy.1, b"x").expect("write");
        program.events(1, 2, 10_000).iter().any(|event| event.obj == &raw const rare as u64)
    });
    assert!(found);
}

#[test]
fn pending_reads_are_cancelled() {
    let (program, (reader, writer)) = (Program::new(), pipe());
    let (mut one, mut two) = ([0; 8], [0; 8]);
    let reads = [iocb(IOCB_CMD_PREAD, &reader, &mut one), iocb(IOCB_CMD_PREAD, &reader, &mut two)];
    reads.iter().for_each(|read| program.submit(read));
    assert_eq!(io_cancel(program.0, &raw const reads[0] as u64), Err(Errno::INPROGRESS));
    let events = program.events(1, 8, 10_000);
    assert_eq!(events.len(), 1);
    let cancelled = i64::from(-Errno::CANCELED.raw_os_error());
    assert_eq!((events[0].obj, events[0].res), (&raw const reads[0] as u64, cancelled));
    rustix::io::write(&writer, b"hello").expect("write");
    assert_eq!(program.event(), 5);
    assert_eq!((&one[..5], &two[..5]), (&[0; 5][..], &b"hello"[..]));
}

#[test]
fn destroying_a_context_leaves_pending_reads_undone() {
    let (program, (reader, writer)) = (Program::new(), pipe());
    let mut buffer = [0; 8];
    let read = iocb(IOCB_CMD_PREAD, &reader, &mut buffer);
    program.submit(&read);
    assert_eq!(io_destroy(program.0), Ok(()));
    rustix::io::write(&writer, b"hello").expect("write");
    assert_eq!(io_destroy(program.0), Err(Errno::INVAL));
    let mut data = [0; 8];
    assert_eq!(rustix::io::read(&reader, &mut data), Ok(5));
    assert_eq!(buffer, [0; 8]);
}

#[test]
fn contexts_have_no_limit_of_requests() {
    let _turn = turn();
    let contexts: Vec<u64> = (0..20)
        .map(|_| {
            let mut context = 0u64;
            assert_eq!(io_setup(1 << 20, &raw mut context as u64), Ok(()));
            context
        })
        .collect();
    contexts.into_iter().for_each(|context| assert_eq!(io_destroy(context), Ok(())));
}

#[test]
fn a_completion_ring_that_the_program_moved_goes_on() {
    use rustix::mm::{mmap_anonymous, mremap_fixed, MapFlags, MremapFlags, ProtFlags};
    let (mut program, (reader, writer)) = (Program::new(), pipe());
    let poll = Iocb { buf: libc::POLLIN as u64, bytes: 0, ..iocb(IOCB_CMD_POLL, &reader, &mut []) };
    program.submit(&poll);
    let bytes = 4096; // bytes of the first page, by which the context is known
                      // SAFETY: the program's mapping of the page is moved onto a new mapping, and the engine has its
                      // own.
    let moved = unsafe {
        let place =
            mmap_anonymous(core::ptr::null_mut(), bytes, ProtFlags::empty(), MapFlags::PRIVATE).expect("mmap");
        mremap_fixed(program.0 as *mut _, bytes, bytes, MremapFlags::MAYMOVE, place).expect("mremap")
    };
    rustix::io::write(&writer, b"x").expect("write");
    let before = std::mem::replace(&mut program.0, moved as u64);
    assert_eq!(program.event(), i64::from(libc::POLLIN));
    assert_eq!(io_destroy(before), Err(Errno::INVAL));
}

#[test]
fn a_completion_ring_that_the_program_cannot_access_does_no_harm() {
    let (program, (reader, writer)) = (Program::new(), pipe());
    let poll = Iocb { buf: libc::POLLIN as u64, bytes: 0, ..iocb(IOCB_CMD_POLL, &reader, &mut []) };
    program.submit(&poll);
    let access = |flags| {
        // SAFETY: the range is the program's mapping of the completion ring, which only guarded accesses touch.
        unsafe { rustix::mm::mprotect(program.0 as *mut _, 4096, flags) }.expect("mprotect");
    };
    access(rustix::mm::MprotectFlags::empty());
    rustix::io::write(&writer, b"x").expect("write");
    assert_eq!(io_destroy(program.0), Err(Errno::INVAL), "the index is in that memory");
    access(rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE);
    assert_eq!(program.event(), i64::from(libc::POLLIN));
}
