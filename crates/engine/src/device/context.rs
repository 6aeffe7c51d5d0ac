//! Contexts of the kernel's Linux AIO, including spare contexts that no ring uses any more.
//!
//! A context's completion ring is read from memory, as libaio and fio do. io_getevents(2) is never called. The
//! mapping belongs to one process (MADV_DONTFORK), so a forked child has neither the context nor its memory.

use crate::lock::Lock;
use crate::os::{check, syscall, usable_cpus};
use crate::Errno;
use anyring_abi::{AioRing, IoEvent, NR_IO_DESTROY, NR_IO_SETUP, NR_IO_SUBMIT};
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The most transfers that a context has in flight. The kernel makes room for twice as many, so that io_submit(2)
/// finds room on each CPU.
pub const MOST: u32 = 128;

/// Set if the kernel, or a filter, denies this process io_setup(2). Relaxed: it orders nothing else.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// Number of contexts that exist. Relaxed: it only limits their number.
static CONTEXTS: AtomicU32 = AtomicU32::new(0);
/// Contexts without anything in flight that belonged to rings which have ended.
static SPARE: Lock<Vec<Context>> = Lock::new(Vec::new());

/// A context of Linux AIO. It is part of a ring's state, so one thread at a time uses it.
#[derive(Debug)]
pub struct Context {
    ring: NonNull<AioRing>,
    /// Number of places for events. It is read once, when the context is made, and never again from the shared ring.
    places: u32,
}

// SAFETY: the mapping belongs to the process, and only the owner of the context reads it.
unsafe impl Send for Context {}

impl Context {
    /// Takes a spare context, or makes a new one.
    ///
    /// # Errors
    /// BUSY if as many contexts as the process may have are in use. ENOSYS if the completion ring does not have the
    /// kernel's layout. For other failures, the error of io_setup(2).
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
        // Above fs.aio-max-nr (EAGAIN) or without memory, a later attempt may succeed.
        if matches!(made, Err(Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS)) {
            REFUSED.store(true, Ordering::Relaxed);
        }
        made
    }

    fn make() -> Result<Context, Errno> {
        let mut address = 0usize;
        check(syscall(NR_IO_SETUP, [MOST as usize, &raw mut address as usize, 0, 0, 0, 0]))?;
        let made = Context { ring: NonNull::new(address as *mut AioRing).ok_or(Errno::NOSYS)?, places: 0 };
        // SAFETY: io_setup(2) has just mapped at least this header at that address. If a kernel maps something else
        // (gVisor), the comparison below fails.
        let header = unsafe { made.ring.read_volatile() };
        if !header.is_laid_out() || header.nr <= MOST {
            made.end();
            return Err(Errno::NOSYS);
        }
        let bytes = size_of::<AioRing>() + header.nr as usize * size_of::<IoEvent>();
        // Without this call a forked child would keep the pages, which only wastes memory.
        syscall(libc::SYS_madvise, [address, bytes, libc::MADV_DONTFORK as usize, 0, 0, 0]);
        Ok(Context { places: header.nr, ..made })
    }

    /// Submits the iocbs at these addresses with one call. Returns the number submitted before the first refused
    /// iocb.
    pub fn submit(&self, iocbs: &[usize]) -> Result<usize, Errno> {
        check(syscall(NR_IO_SUBMIT, [self.address(), iocbs.len(), iocbs.as_ptr() as usize, 0, 0, 0]))
    }

    /// True if an event has not been reaped.
    #[inline]
    pub fn has_events(&self) -> bool {
        // Relaxed: `take` checks again.
        self.word(offset_of!(AioRing, head)).load(Ordering::Relaxed)
            != self.word(offset_of!(AioRing, tail)).load(Ordering::Relaxed)
    }

    /// Reaps the next event.
    #[inline]
    pub fn reap(&mut self) -> Option<IoEvent> {
        // No other code stores the head, since io_getevents(2) is never called.
        let head = self.word(offset_of!(AioRing, head));
        let at = head.load(Ordering::Relaxed);
        // Acquire: partner is the write barrier of `aio_complete` in fs/aio.c between an event and the tail.
        if at == self.word(offset_of!(AioRing, tail)).load(Ordering::Acquire) {
            return None;
        }
        let place = at % self.places;
        // SAFETY: `place` is below the number of events that the mapping was made for, after its header. The kernel
        // has written this event and does not write to its place again before the head has moved on.
        let event = unsafe { self.ring.add(1).cast::<IoEvent>().add(place as usize).read_volatile() };
        // Release: partner is the kernel's read of the head before it uses the place again.
        head.store((place + 1) % self.places, Ordering::Release);
        Some(event)
    }

    fn address(&self) -> usize {
        self.ring.as_ptr() as usize
    }

    /// Returns a word of the ring's header, which the kernel may change concurrently.
    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `offset` is that of a u32 of the header, which is mapped as long as the context lives. The word is
        // only used as an atomic.
        unsafe { self.ring.cast::<u8>().add(offset).cast::<AtomicU32>().as_ref() }
    }

    /// Keeps the context, which has nothing in flight, for another ring.
    pub fn give_back(self) {
        match SPARE.lock() {
            Some(mut spare) => spare.push(self),
            None => self.destroy(), // a signal handler interrupted this very function
        }
    }

    /// Destroys the context with io_destroy(2), which waits for transfers in flight and for a grace period of about
    /// 30 ms.
    pub fn destroy(self) {
        self.end();
        CONTEXTS.fetch_sub(1, Ordering::Relaxed);
    }

    fn end(self) {
        syscall(NR_IO_DESTROY, [self.address(), 0, 0, 0, 0, 0]);
    }
}

/// Returns the most contexts that the process may have: two for each CPU it may use. Destroying a context is slow.
fn most_contexts() -> u32 {
    const FEWEST: u32 = 16;
    FEWEST.max(2 * usable_cpus())
}

/// True if a context exists that no ring uses.
pub fn has_spare() -> bool {
    SPARE.lock().is_some_and(|spare| !spare.is_empty())
}

/// Destroys the contexts that no ring uses. This is slow.
pub fn destroy_spare() {
    // One context at a time, since a new ring may take the others.
    while let Some(context) = SPARE.lock().and_then(|mut spare| spare.pop()) {
        context.destroy();
    }
}

/// Resets the module in a forked child, which has none of the parent's contexts.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    // SAFETY: no other thread exists.
    unsafe { SPARE.reset() };
    CONTEXTS.store(0, Ordering::Relaxed);
    if let Some(mut spare) = SPARE.lock() {
        // Not dropped, since a thread that the child does not have may have been changing it.
        core::mem::forget(core::mem::take(&mut *spare));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_abi::{Iocb, IOCB_CMD_PREAD, IOCB_CMD_PWRITE};

    /// Returns a context. `None` if the machine has no Linux AIO.
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
            assert_eq!(context.reap(), None);
            assert_eq!(context.submit(&[at(&iocb)]), Ok(1));
            assert!(context.has_events(), "a memfd's data is there at once");
            let event = context.reap().expect("an event");
            assert_eq!((event.data, event.res), (data, 8));
        }
        context.destroy();
    }

    #[test]
    fn a_refused_iocb_stops_the_submission_before_it() {
        let Some(mut context) = context() else { return };
        let file = rustix::fs::memfd_create("kernel-aio", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        let fd = rustix::fd::AsRawFd::as_raw_fd(&file) as u32;
        let mut bytes = [0u8; 8];
        let good = Iocb { fd, ..transfer(IOCB_CMD_PREAD, &mut bytes, 1) };
        let bad = Iocb { fd: u32::MAX, ..good };
        assert_eq!(context.submit(&[at(&good), at(&bad), at(&good)]), Ok(1));
        assert_eq!(context.submit(&[at(&bad), at(&good)]), Err(Errno::BADF));
        assert_eq!(context.reap().map(|event| event.res), Some(0));
        assert_eq!(context.reap(), None);
        context.destroy();
    }

    #[test]
    fn one_that_was_given_back_is_used_again() {
        let Some(context) = context() else { return };
        let address = context.address();
        context.give_back();
        // Another test may have taken the context since it was given back. It is then in use or spare, but not lost.
        let again = Context::get().expect("a context");
        assert!(again.address() == address || again.places == 0 || again.places > MOST);
        again.destroy();
    }
}
