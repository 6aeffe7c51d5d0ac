//! The kernel's AIO: io_setup(2), io_submit(2), io_getevents(2), by libc's `syscall()`. One call submits all transfers
//! begun.

use super::{Transfer, Transfers};
use crate::aio::Aio;
use crate::outcome::Outcome;
use anyring_abi::{IoEvent, Iocb, IOCB_CMD_POLL, IOCB_CMD_PREAD, IOCB_CMD_PWRITE};
use anyring_lab::message::Door;

/// A context.
pub struct KernelAio {
    aio: Aio,
    queued: Vec<Iocb>,
    events: Vec<IoEvent>,
    rw_flags: i32,
}

impl KernelAio {
    /// Makes a context with room for `in_flight` transfers. Each transfer has the flags `rw_flags` (RWF_*).
    pub fn new(in_flight: u32, rw_flags: i32) -> Outcome<Self> {
        let events = vec![IoEvent::default(); in_flight.min(1024) as usize];
        Ok(KernelAio { aio: Aio::new(Door::Libc, in_flight)?, queued: Vec::new(), events, rw_flags })
    }

    /// Queues a poll for `fd` to be readable.
    pub fn begin_poll(&mut self, slot: u64, fd: i32) {
        self.queued.push(poll_of(slot, fd));
    }
}

/// Makes an IOCB_CMD_POLL for `fd` to be readable.
pub fn poll_of(data: u64, fd: i32) -> Iocb {
    Iocb { data, opcode: IOCB_CMD_POLL, fd: fd as u32, buf: libc::POLLIN as u64, ..Iocb::default() }
}

/// Makes an IOCB_CMD_PREAD of this memory.
pub fn read_of(data: u64, fd: i32, memory: *mut u8, bytes: usize) -> Iocb {
    let (buf, bytes) = (memory as u64, bytes as u64);
    Iocb { data, opcode: IOCB_CMD_PREAD, fd: fd as u32, buf, bytes, ..Iocb::default() }
}

impl Transfers for KernelAio {
    fn begin(&mut self, slot: u64, what: Transfer) -> Outcome<()> {
        self.queued.push(Iocb {
            rw_flags: self.rw_flags as u32,
            opcode: if what.write { IOCB_CMD_PWRITE } else { IOCB_CMD_PREAD },
            offset: what.offset.unwrap_or(0) as i64,
            ..read_of(slot, what.fd, what.address, what.bytes as usize)
        });
        Ok(())
    }

    fn flush(&mut self) -> Outcome<()> {
        let pointers: Vec<*const Iocb> = self.queued.iter().map(std::ptr::from_ref).collect();
        // SAFETY: pointers to iocbs that stay until the call has copied them; the caller keeps their memory for as long
        // as the transfers take.
        unsafe { self.aio.submit(&pointers) }?;
        self.queued.clear();
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<(u64, i64)>) -> Outcome<()> {
        self.flush()?;
        let count = self.aio.get_events(&mut self.events)?;
        ended.extend(self.events[..count].iter().map(|event| (event.data, event.res)));
        Ok(())
    }
}
