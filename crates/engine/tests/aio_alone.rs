//! Reads of Linux AIO that wait on a pipe without a slot (`issue::single`), in a process where the engine notices every
//! close. These tests need a process of their own, since the unit tests close descriptors without reporting it.

use anyring_abi::{AioRing, IoEvent, Iocb, Timespec, IOCB_CMD_POLL, IOCB_CMD_PREAD};
use anyring_engine::aio::{io_cancel, io_destroy, io_getevents, io_setup, io_submit, Wait};
use anyring_engine::ring::Ring;
use anyring_engine::{descriptors, process, Errno};
use rustix::fd::{AsRawFd, OwnedFd};

struct Program {
    context: u64,
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Program {
    /// Makes a context and a pipe that was read often, so that the next read waits without a slot.
    fn new() -> Program {
        descriptors::set_closes_are_seen(true);
        let mut context = 0;
        io_setup(16, &raw mut context as u64).expect("io_setup");
        let (reader, writer) = rustix::pipe::pipe().expect("pipe");
        let program = Program { context, reader, writer };
        let mut buffer = [0; 8];
        let read = program.read(&mut buffer);
        for _ in 0..8 {
            program.submit(&read);
            program.write(b"x");
            assert_eq!(program.results(1), [1]);
        }
        program
    }

    fn read(&self, buffer: &mut [u8]) -> Iocb {
        let (fd, buf, bytes) = (self.reader.as_raw_fd() as u32, buffer.as_mut_ptr() as u64, buffer.len() as u64);
        Iocb { opcode: IOCB_CMD_PREAD, fd, buf, bytes, ..Iocb::default() }
    }

    fn submit(&self, iocb: &Iocb) {
        let addresses = [&raw const *iocb];
        assert_eq!(io_submit(self.context, 1, addresses.as_ptr() as u64), Ok(1));
    }

    fn write(&self, bytes: &[u8]) {
        assert_eq!(rustix::io::write(&self.writer, bytes), Ok(bytes.len()));
    }

    /// Returns the results of `count` events. For 0, asserts that there is none.
    fn results(&self, count: usize) -> Vec<i64> {
        let mut events = [IoEvent::default(); 8];
        let tv_sec = if count == 0 { 0 } else { 10 };
        let time = Timespec { tv_sec, tv_nsec: 0 };
        let wait = Wait {
            context: self.context,
            at_least: count as i64,
            at_most: 8,
            events: events.as_mut_ptr() as u64,
            timeout: &raw const time as u64,
        };
        let got = io_getevents(&wait).expect("io_getevents") as usize;
        assert_eq!(got, count);
        events[..got].iter().map(|event| event.res).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = io_destroy(self.context);
        process::closing(self.reader.as_raw_fd());
        process::closing(self.writer.as_raw_fd());
    }
}

#[test]
fn a_lone_read_is_cancelled() {
    let program = Program::new();
    let mut buffer = [0; 8];
    let read = program.read(&mut buffer);
    program.submit(&read);
    assert_eq!(io_cancel(program.context, &raw const read as u64), Err(Errno::INPROGRESS));
    assert_eq!(program.results(1), [-i64::from(Errno::CANCELED.raw_os_error())]);
    program.write(b"x");
    assert_eq!(program.results(0), []);
    assert_eq!(io_cancel(program.context, &raw const read as u64), Err(Errno::INVAL));
}

#[test]
fn another_read_joins_a_lone_one_and_each_gets_its_part() {
    let program = Program::new();
    let (mut one, mut two) = ([0; 1], [0; 1]);
    let reads = [program.read(&mut one), program.read(&mut two)];
    let poll = Iocb { opcode: IOCB_CMD_POLL, buf: libc::POLLIN as u64, bytes: 0, ..reads[0] };
    program.submit(&reads[0]);
    program.submit(&poll);
    program.submit(&reads[1]);
    assert_eq!(program.results(0), []);
    program.write(b"ab");
    assert_eq!(program.results(3), [1, 1, i64::from(libc::POLLIN)]);
    let mut parts = [one[0], two[0]];
    parts.sort_unstable();
    assert_eq!(parts, *b"ab");
}

#[test]
fn a_lone_read_goes_on_after_its_number_was_closed() {
    let program = Program::new();
    let mut buffer = [0; 8];
    let read = program.read(&mut buffer);
    program.submit(&read);
    process::closing(program.reader.as_raw_fd());
    let (other, _writer) = rustix::pipe::pipe().expect("pipe");
    // SAFETY: both are open, and the number is replaced as one of the program's dup2(2) calls would.
    assert!(unsafe { libc::dup2(other.as_raw_fd(), program.reader.as_raw_fd()) } >= 0);
    program.write(b"hello");
    assert_eq!(program.results(1), [5]);
    assert_eq!(buffer[..5], *b"hello");
}

#[test]
fn another_reader_consumes_what_woke_a_lone_read() {
    let program = Program::new();
    let (mut buffer, mut taken) = ([0; 8], [0; 8]);
    let read = program.read(&mut buffer);
    program.submit(&read);
    assert_eq!(program.results(0), []);
    for _ in 0..3 {
        program.write(b"lost");
        assert_eq!(rustix::io::read(&program.reader, &mut taken), Ok(4));
        assert_eq!(program.results(0), []);
    }
    program.write(b"ours");
    assert_eq!(program.results(1), [4]);
    assert_eq!(buffer[..4], *b"ours");
}

#[test]
fn a_lone_read_ends_without_an_event_where_the_context_does() {
    let mut program = Program::new();
    let mut buffer = [0; 8];
    let read = program.read(&mut buffer);
    program.submit(&read);
    // Another test's context may be at this address from now on.
    assert_eq!(io_destroy(core::mem::take(&mut program.context)), Ok(()));
    program.write(b"hello");
    let mut data = [0; 8];
    assert_eq!(rustix::io::read(&program.reader, &mut data), Ok(5));
    assert_eq!(buffer, [b'\0'; 8]);
}

#[test]
fn a_lone_read_ends_with_eio_after_a_panic_in_the_context() {
    let program = Program::new();
    let mut buffer = [0; 8];
    let read = program.read(&mut buffer);
    program.submit(&read);
    let header = program.context as *const AioRing;
    // SAFETY: the completion ring is mapped as long as the context lives.
    let tail = || unsafe { core::ptr::read_volatile(&raw const (*header).tail) };
    let (before, rings) = (tail(), anyring_engine::ring::table::rings());
    // The tests run side by side, so only the ring of this context is broken.
    let is_ours = |ring: &&'static Ring| {
        ring.lock()
            .is_ok_and(|guard| guard.aio.as_ref().is_some_and(|context| context.address() == program.context))
    };
    rings.into_iter().find(is_ours).expect("the context's ring").mark_panicked();
    assert_eq!(tail(), before + 1);
    // SAFETY: as above; an event before the tail.
    let event = unsafe { *header.byte_add(32).cast::<IoEvent>().add(before as usize) };
    assert_eq!((event.obj, event.res), (&raw const read as u64, -i64::from(Errno::IO.raw_os_error())));
}
