//! Linux AIO as cases use it: a context, iocbs, events, through each door.

use crate::door::Door;
use anyring_abi::*;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Longer than any event takes.
const PATIENCE_MS: i64 = 10_000;

/// A context; it is destroyed when dropped.
pub struct Aio {
    /// The door to it.
    pub door: Door,
    /// The context that io_setup stored.
    pub context: u64,
}

/// io_setup: its result, and the value at the context's address afterwards.
pub fn setup(door: Door, requests: u32, before: u64) -> (isize, u64) {
    let mut context = before;
    let answer = door.aio(NR_IO_SETUP, [requests as usize, &raw mut context as usize, 0, 0, 0, 0]);
    (answer, context)
}

/// Ends the case as skipped where libaio's functions follow pointers before the kernel sees them.
pub fn skip_libaio(door: Door) {
    if door == Door::Liburing {
        crate::sys::skip("libaio's function follows this pointer itself");
    }
}

impl Aio {
    /// A context for this many requests.
    pub fn new(door: Door, requests: u32) -> Aio {
        let (answer, context) = setup(door, requests, 0);
        assert_eq!(answer, 0, "io_setup({requests})");
        Aio { door, context }
    }

    /// io_submit with an array of addresses, which may be bad.
    pub fn submit_at(&self, count: isize, iocbs: usize) -> isize {
        self.door.aio(NR_IO_SUBMIT, [self.context as usize, count as usize, iocbs, 0, 0, 0])
    }

    /// io_submit of all of these.
    pub fn submit(&self, iocbs: &mut [Iocb]) -> isize {
        let addresses: Vec<*mut Iocb> = iocbs.iter_mut().map(|iocb| &raw mut *iocb).collect();
        self.submit_at(addresses.len() as isize, addresses.as_ptr() as usize)
    }

    /// io_getevents with its arguments.
    pub fn get_at(&self, at_least: isize, at_most: isize, events: usize, timeout: usize) -> isize {
        let args = [self.context as usize, at_least as usize, at_most as usize, events, timeout, 0];
        self.door.aio(NR_IO_GETEVENTS, args)
    }

    /// io_getevents with room for `at_most` events. Returns those that came, or `-errno`.
    pub fn get(&self, at_least: isize, at_most: isize, timeout_ms: i64) -> Result<Vec<IoEvent>, isize> {
        let mut events = vec![IoEvent::default(); at_most.max(0) as usize];
        let timeout = Timespec { tv_sec: timeout_ms / 1000, tv_nsec: timeout_ms % 1000 * 1_000_000 };
        let got = self.get_at(at_least, at_most, events.as_mut_ptr() as usize, &raw const timeout as usize);
        if got < 0 {
            return Err(got);
        }
        events.truncate(got as usize);
        Ok(events)
    }

    /// Waits for exactly `count` events.
    pub fn wait(&self, count: usize) -> Vec<IoEvent> {
        let events = self.get(count as isize, count as isize, PATIENCE_MS).expect("io_getevents");
        assert_eq!(events.len(), count, "events within {PATIENCE_MS} ms");
        events
    }

    /// Submits one request, waits for it and returns the event's result.
    pub fn run(&self, mut iocb: Iocb) -> i64 {
        assert_eq!(self.submit(std::slice::from_mut(&mut iocb)), 1, "io_submit");
        self.wait(1)[0].res
    }

    /// Submits one request, which is refused. Returns the error.
    pub fn refused(&self, mut iocb: Iocb) -> isize {
        self.submit(std::slice::from_mut(&mut iocb))
    }

    /// io_cancel.
    pub fn cancel(&self, iocb: *const Iocb) -> isize {
        let mut event = IoEvent::default();
        let args = [self.context as usize, iocb as usize, &raw mut event as usize, 0, 0, 0];
        self.door.aio(NR_IO_CANCEL, args)
    }

    /// io_destroy.
    pub fn destroy(&self) -> isize {
        self.door.aio(NR_IO_DESTROY, [self.context as usize, 0, 0, 0, 0, 0])
    }

    /// Returns the current header of the completion ring.
    pub fn header(&self) -> AioRing {
        // SAFETY: io_setup answered with the address of a completion ring, which is mapped until io_destroy.
        unsafe { (self.context as *const AioRing).read_volatile() }
    }

    /// The event in this place of the completion ring.
    pub fn event_at(&self, index: u32) -> IoEvent {
        let header = self.header();
        assert!(index < header.nr);
        let at = self.context + u64::from(header.header_bytes) + u64::from(index) * size_of::<IoEvent>() as u64;
        // SAFETY: as above; `nr` events follow the ring's head.
        unsafe { (at as *const IoEvent).read_volatile() }
    }

    /// Stores the head: events up to this index were read from memory.
    pub fn set_head(&self, index: u32) {
        // SAFETY: as above; the head is the program's to store.
        unsafe { (&raw mut (*(self.context as *mut AioRing)).head).write_volatile(index) };
    }

    /// True if `count` unread events appear in the completion ring's memory without a call.
    pub fn appear(&self, count: u32) -> bool {
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(PATIENCE_MS as u64) {
            let AioRing { head, tail, nr, .. } = self.header();
            if (tail + nr - head) % nr >= count {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        self.destroy();
    }
}

fn iocb(opcode: u16, file: &impl AsRawFd, buf: u64, bytes: u64, offset: i64) -> Iocb {
    Iocb { opcode, fd: file.as_raw_fd() as u32, buf, bytes, offset, ..Iocb::default() }
}

/// IOCB_CMD_PREAD.
pub fn pread(file: &impl AsRawFd, buffer: &mut [u8], offset: i64) -> Iocb {
    iocb(IOCB_CMD_PREAD, file, buffer.as_mut_ptr() as u64, buffer.len() as u64, offset)
}

/// IOCB_CMD_PWRITE.
pub fn pwrite(file: &impl AsRawFd, buffer: &[u8], offset: i64) -> Iocb {
    iocb(IOCB_CMD_PWRITE, file, buffer.as_ptr() as u64, buffer.len() as u64, offset)
}

/// IOCB_CMD_PREADV or IOCB_CMD_PWRITEV.
pub fn vector(opcode: u16, file: &impl AsRawFd, iovecs: &[libc::iovec], offset: i64) -> Iocb {
    iocb(opcode, file, iovecs.as_ptr() as u64, iovecs.len() as u64, offset)
}

/// IOCB_CMD_FSYNC or IOCB_CMD_FDSYNC.
pub fn sync(opcode: u16, file: &impl AsRawFd) -> Iocb {
    iocb(opcode, file, 0, 0, 0)
}

/// True if a poll that had to wait for POLLIN reports it. Such a poll reports all events of the waker, requested or
/// not (`aio_poll_wake` in fs/aio.c): POLLRDNORM, say.
pub fn is_readable(event: &IoEvent) -> bool {
    let waker = libc::POLLIN | libc::POLLPRI | libc::POLLRDNORM | libc::POLLRDBAND;
    event.res & i64::from(libc::POLLIN) != 0 && event.res & !i64::from(waker) == 0
}

/// IOCB_CMD_POLL for `POLL*` events.
pub fn poll(file: &impl AsRawFd, events: i16) -> Iocb {
    iocb(IOCB_CMD_POLL, file, events as u16 as u64, 0, 0)
}
