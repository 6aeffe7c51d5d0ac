//! A context of the kernel's Linux AIO, and those that no ring has any more.
//!
//! Its completion ring is read from memory, as libaio and fio do: io_getevents(2) is never called. The mapping belongs to
//! one process (MADV_DONTFORK): a forked child has neither the context nor its memory.

use crate::lock::Lock;
use crate::os::{check, syscall, usable_cpus};
use crate::Errno;
use anyring_abi::{AioRing, IoEvent, NR_IO_DESTROY, NR_IO_SETUP, NR_IO_SUBMIT};
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The most transfers that a context has in flight. The kernel makes room for twice as many, so that io_submit(2) finds
/// some on each CPU.
pub const MOST: u32 = 128;

/// The kernel, or a filter, has no io_setup(2) for this process. Relaxed: it says no more than itself.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// Contexts that there are. Relaxed: it bounds them, no more.
static CONTEXTS: AtomicU32 = AtomicU32::new(0);
/// Contexts without anything in flight that belonged to rings which have ended.
static SPARE: Lock<Vec<Context>> = Lock::new(Vec::new());

/// A context. Used by one thread at a time: it is part of a ring's state.
#[derive(Debug)]
pub struct Context {
    ring: NonNull<AioRing>,
    /// Places for events; what the ring in memory says of it is not looked at again.
    places: u32,
}

// SAFETY: the mapping is the process's, and whoever owns the context is the only one who reads it.
unsafe impl Send for Context {}

impl Context {
    /// One that a ring has left, or a new one.
    ///
    /// # Errors
    /// BUSY: as many as the process may have are in use; else as io_setup(2), ENOSYS for a completion ring that is not laid
    /// out as the kernel's.
    pub fn get() -> Result<Context, Errno> {
        if REFUSED.load(Ordering::Relaxed) {
            return Err(Errno::NOSYS);
        }
        if let Some(spare) = SPARE.lock().and_then(|mut spare| spare.pop()) {
            return Ok(spare);
        }
        if CONTEXTS.fetch_add(1, Ordering::Relaxed) >= most_contexts() {
            CONTEXTS.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::BUSY);
        }
        let made = Context::make().inspect_err(|_| _ = CONTEXTS.fetch_sub(1, Ordering::Relaxed));
        // Beyond fs.aio-max-nr (EAGAIN) or without memory the next ring may have more luck.
        if matches!(made, Err(Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS)) {
            REFUSED.store(true, Ordering::Relaxed);
        }
        made
    }

    fn make() -> Result<Context, Errno> {
        let mut address = 0usize;
        check(syscall(NR_IO_SETUP, [MOST as usize, &raw mut address as usize, 0, 0, 0, 0]))?;
        let made = Context { ring: NonNull::new(address as *mut AioRing).ok_or(Errno::NOSYS)?, places: 0 };
        // SAFETY: io_setup(2) has just mapped at least this header there. A kernel that maps something else there (gVisor)
        // says so in the words that are compared.
        let header = unsafe { made.ring.read_volatile() };
        if !header.is_laid_out() || header.nr <= MOST {
            made.end();
            return Err(Errno::NOSYS);
        }
        let bytes = size_of::<AioRing>() + header.nr as usize * size_of::<IoEvent>();
        // Else a child would keep the pages: no more than a waste.
        syscall(libc::SYS_madvise, [address, bytes, libc::MADV_DONTFORK as usize, 0, 0, 0]);
        Ok(Context { places: header.nr, ..made })
    }

    /// Submits the iocbs at these addresses with one call: how many, before the first that was refused.
    pub fn submit(&self, iocbs: &[usize]) -> Result<usize, Errno> {
        check(syscall(NR_IO_SUBMIT, [self.address(), iocbs.len(), iocbs.as_ptr() as usize, 0, 0, 0]))
    }

    /// Whether there are events.
    #[inline]
    pub fn has_events(&self) -> bool {
        // Relaxed: whoever takes one looks again.
        self.word(offset_of!(AioRing, head)).load(Ordering::Relaxed)
            != self.word(offset_of!(AioRing, tail)).load(Ordering::Relaxed)
    }

    /// Takes the next event.
    #[inline]
    pub fn take(&mut self) -> Option<IoEvent> {
        // Nobody else stores the head, since nobody calls io_getevents(2).
        let head = self.word(offset_of!(AioRing, head));
        let at = head.load(Ordering::Relaxed);
        // Acquire: partner is the write barrier of `aio_complete` in fs/aio.c between an event and the tail.
        if at == self.word(offset_of!(AioRing, tail)).load(Ordering::Acquire) {
            return None;
        }
        let place = at % self.places;
        // SAFETY: `place` is below the number of events that the mapping was made for, behind its header. The kernel has
        // written this one and does not write there again before the head has moved on.
        let event = unsafe { self.ring.add(1).cast::<IoEvent>().add(place as usize).read_volatile() };
        // Release: partner is the kernel's read of the head before it uses the place again.
        head.store((place + 1) % self.places, Ordering::Release);
        Some(event)
    }

    fn address(&self) -> usize {
        self.ring.as_ptr() as usize
    }

    /// A word of the ring's header, which the kernel changes meanwhile.
    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `offset` is that of a u32 of the header, which is mapped as long as the context lives and is used as an
        // atomic only.
        unsafe { self.ring.cast::<u8>().add(offset).cast::<AtomicU32>().as_ref() }
    }

    /// Keeps the context for another ring. Nothing is in flight.
    pub fn give_back(self) {
        match SPARE.lock() {
            Some(mut spare) => spare.push(self),
            None => self.destroy(), // a signal handler interrupted this very function
        }
    }

    /// io_destroy(2): waits for what is in flight, and for a grace period of the kernel's, some 30 ms.
    pub fn destroy(self) {
        self.end();
        CONTEXTS.fetch_sub(1, Ordering::Relaxed);
    }

    fn end(self) {
        syscall(NR_IO_DESTROY, [self.address(), 0, 0, 0, 0, 0]);
    }
}

/// How many contexts the process may have: two for each CPU that it may use. Their end takes its time.
fn most_contexts() -> u32 {
    const FEWEST: u32 = 16;
    FEWEST.max(2 * usable_cpus())
}

/// Whether there are contexts that no ring has.
pub fn has_spare() -> bool {
    SPARE.lock().is_some_and(|spare| !spare.is_empty())
}

/// Gives back the contexts that no ring has. It takes its time.
pub fn destroy_spare() {
    // One at a time: a new ring may take the others.
    while let Some(context) = SPARE.lock().and_then(|mut spare| spare.pop()) {
        context.destroy();
    }
}

/// In a forked child, which has none of the parent's contexts.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    // SAFETY: no other thread exists.
    unsafe { SPARE.reset() };
    CONTEXTS.store(0, Ordering::Relaxed);
    if let Some(mut spare) = SPARE.lock() {
        // Not dropped: a thread that the child does not have may have been changing it.
        core::mem::forget(core::mem::take(&mut *spare));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_abi::{Iocb, IOCB_CMD_PREAD, IOCB_CMD_PWRITE};

    /// A context, unless the machine has no Linux AIO.
    fn context() -> Option<Context> {
        Context::get().map_err(|error| eprintln!("skipped: io_setup(2) answers {error}")).ok()
    }

    fn at(iocb: &Iocb) -> usize {
        &raw const *iocb as usize
    }

    fn transfer(opcode: u16, bytes: &mut [u8], data: u64) -> Iocb {
        let (buf, bytes) = (bytes.as_mut_ptr() as u64, bytes.len() as u64);
        Iocb { data, opcode, fd: 0, buf, bytes, ..Iocb::default() }
    }

    #[test]
    fn events_come_round_the_completion_ring_in_order() {
        let Some(mut context) = context() else { return };
        let file = rustix::fs::memfd_create("kernel-aio", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        let mut bytes = [7u8; 8];
        let fd = rustix::fd::AsRawFd::as_raw_fd(&file) as u32;
        for data in 0..u64::from(2 * context.places) {
            let opcode = if data == 0 { IOCB_CMD_PWRITE } else { IOCB_CMD_PREAD };
            let iocb = Iocb { fd, ..transfer(opcode, &mut bytes, data) };
            assert_eq!(context.take(), None);
            assert_eq!(context.submit(&[at(&iocb)]), Ok(1));
            assert!(context.has_events(), "a memfd's data is there at once");
            let event = context.take().expect("an event");
            assert_eq!((event.data, event.res), (data, 8));
        }
        context.destroy();
    }

    #[test]
    fn what_is_refused_stops_the_submission_before_it() {
        let Some(mut context) = context() else { return };
        let file = rustix::fs::memfd_create("kernel-aio", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        let fd = rustix::fd::AsRawFd::as_raw_fd(&file) as u32;
        let mut bytes = [0u8; 8];
        let good = Iocb { fd, ..transfer(IOCB_CMD_PREAD, &mut bytes, 1) };
        let bad = Iocb { fd: u32::MAX, ..good };
        assert_eq!(context.submit(&[at(&good), at(&bad), at(&good)]), Ok(1));
        assert_eq!(context.submit(&[at(&bad), at(&good)]), Err(Errno::BADF));
        assert_eq!(context.take().map(|event| event.res), Some(0));
        assert_eq!(context.take(), None);
        context.destroy();
    }

    #[test]
    fn one_that_was_given_back_is_used_again() {
        let Some(context) = context() else { return };
        let address = context.address();
        context.give_back();
        // Another test may have taken it meanwhile: it is in use or spare, but not lost.
        let again = Context::get().expect("a context");
        assert!(again.address() == address || again.places == 0 || again.places > MOST);
        again.destroy();
    }
}
