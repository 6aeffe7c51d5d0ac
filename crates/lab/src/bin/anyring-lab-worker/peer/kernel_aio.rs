//! The kernel's AIO: io_setup(2), io_submit(2), io_getevents(2). What was begun goes with one call.

use super::{Transfer, Transfers};
use crate::outcome::{available, checked, Outcome};

// linux/aio_abi.h
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;
const IOCB_CMD_POLL: u16 = 5;

/// `struct iocb` on little-endian machines.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    address: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct IoEvent {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<IoEvent>() == 32);

/// A context.
pub struct KernelAio {
    context: u64,
    queued: Vec<Iocb>,
    events: Vec<IoEvent>,
    rw_flags: i32,
}

impl KernelAio {
    /// Room for so many in flight; `rw_flags` (RWF_*) go with each transfer.
    pub fn new(in_flight: u32, rw_flags: i32) -> Outcome<Self> {
        let mut context = 0u64;
        // SAFETY: `context` is writable and zero.
        available("io_setup", unsafe { libc::syscall(libc::SYS_io_setup, in_flight, &mut context) })?;
        let events = vec![IoEvent::default(); in_flight.min(1024) as usize];
        Ok(KernelAio { context, queued: Vec::new(), events, rw_flags })
    }

    /// Waits until `fd` is readable.
    pub fn begin_poll(&mut self, slot: u64, fd: i32) {
        let address = libc::POLLIN as u64;
        self.queued.push(Iocb { data: slot, opcode: IOCB_CMD_POLL, fd: fd as u32, address, ..Iocb::default() });
    }
}

impl Transfers for KernelAio {
    fn begin(&mut self, slot: u64, what: Transfer) -> Outcome<()> {
        self.queued.push(Iocb {
            data: slot,
            rw_flags: self.rw_flags,
            opcode: if what.write { IOCB_CMD_PWRITE } else { IOCB_CMD_PREAD },
            fd: what.fd as u32,
            address: what.address as u64,
            bytes: u64::from(what.bytes),
            offset: what.offset.unwrap_or(0) as i64,
            ..Iocb::default()
        });
        Ok(())
    }

    fn flush(&mut self) -> Outcome<()> {
        let pointers: Vec<*const Iocb> = self.queued.iter().map(std::ptr::from_ref).collect();
        let mut done = 0;
        while done < pointers.len() {
            let rest = &pointers[done..];
            // SAFETY: pointers to initialised structures, which the kernel copies in the call; the memory that they name
            // is the caller's for as long as the transfers take.
            let answer = unsafe { libc::syscall(libc::SYS_io_submit, self.context, rest.len(), rest.as_ptr()) };
            done += checked("io_submit", answer)? as usize;
        }
        self.queued.clear();
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<(u64, i64)>) -> Outcome<()> {
        self.flush()?;
        let (room, none) = (self.events.len(), std::ptr::null::<libc::timespec>());
        // SAFETY: room for as many events as is said.
        let answer =
            unsafe { libc::syscall(libc::SYS_io_getevents, self.context, 1, room, self.events.as_mut_ptr(), none) };
        let count = checked("io_getevents", answer)? as usize;
        ended.extend(self.events[..count].iter().map(|event| (event.data, event.result)));
        Ok(())
    }
}

impl Drop for KernelAio {
    fn drop(&mut self) {
        // SAFETY: a context that io_setup made, not used after this.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}
