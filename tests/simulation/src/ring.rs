//! A ring as a program maps and uses it.

use anyring_abi::{
    Cqe, GeteventsArg, Params, Sqe, Timespec, IORING_ENTER_EXT_ARG, IORING_ENTER_GETEVENTS, IORING_SETUP_CQSIZE,
};
use anyring_engine::memory::Area;
use anyring_engine::os::simulated::kernel;
use anyring_engine::{enter, process, setup, Enter, Errno};
use std::sync::atomic::{AtomicU32, Ordering};

const OFFSET_OF_RINGS: u64 = 0;
const OFFSET_OF_SQES: u64 = 0x1000_0000;

/// Memory of a ring, unmapped on drop.
struct Mapping {
    address: usize,
    bytes: usize,
}

impl Mapping {
    fn new(fd: i32, offset: u64, bytes: usize) -> Option<Mapping> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let address = process::with_area(fd, offset, |area| match area {
            Area::File(file, at) => {
                kernel(libc::SYS_mmap, [0, bytes, protection as usize, flags as usize, file as usize, at as usize])
            }
            // mremap(2) of a shared mapping with size 0 makes another mapping. The preloaded library does the same.
            Area::Memory(from) => kernel(libc::SYS_mremap, [from, 0, bytes, libc::MREMAP_MAYMOVE as usize, 0, 0]),
        })?;
        (address > 0).then_some(Mapping { address: address as usize, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        kernel(libc::SYS_munmap, [self.address, self.bytes, 0, 0, 0, 0]);
    }
}

/// One of the program's rings.
pub struct Ring {
    /// Its descriptor.
    pub fd: i32,
    params: Params,
    rings: Mapping,
    sqes: Mapping,
}

impl Ring {
    /// Makes a ring.
    ///
    /// # Errors
    /// The error of io_uring_setup(2).
    pub fn new(flags: u32, sq_entries: u32, cq_entries: u32) -> Result<Ring, Errno> {
        let mut params = Params { flags: flags | IORING_SETUP_CQSIZE, cq_entries, ..Params::default() };
        let fd = setup(sq_entries, &raw mut params as u64)?;
        let bytes = params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<Cqe>();
        let bytes = bytes.max(params.sq_off.array as usize + 4 * params.sq_entries as usize);
        let rings = Mapping::new(fd, OFFSET_OF_RINGS, bytes);
        let sqes = Mapping::new(fd, OFFSET_OF_SQES, params.sq_entries as usize * size_of::<Sqe>());
        let (Some(rings), Some(sqes)) = (rings, sqes) else {
            close(fd);
            return Err(Errno::NOMEM);
        };
        let ring = Ring { fd, params, rings, sqes };
        for index in 0..ring.params.sq_entries {
            ring.word(ring.params.sq_off.array + 4 * index).store(index, Ordering::Relaxed);
        }
        Ok(ring)
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        assert!(offset as usize + 4 <= self.rings.bytes);
        // SAFETY: inside the mapping, aligned as the engine laid it out, and only used as an atomic.
        unsafe { &*((self.rings.address + offset as usize) as *const AtomicU32) }
    }

    /// Returns the number of free SQEs.
    pub fn room(&self) -> u32 {
        let tail = self.word(self.params.sq_off.tail).load(Ordering::Relaxed);
        // Acquire: pairs with the engine's Release store of the head.
        self.params.sq_entries - tail.wrapping_sub(self.word(self.params.sq_off.head).load(Ordering::Acquire))
    }

    /// Appends an SQE. There must be room, and no other thread may append.
    pub fn push(&self, sqe: Sqe) {
        let tail = self.word(self.params.sq_off.tail);
        let at = tail.load(Ordering::Relaxed);
        let index = (at & (self.params.sq_entries - 1)) as usize;
        // SAFETY: masked, so inside the array; the engine does not read it before the tail moves.
        unsafe { (self.sqes.address as *mut Sqe).add(index).write(sqe) };
        tail.store(at.wrapping_add(1), Ordering::Release); // partner: the engine's Acquire load of the tail
    }

    /// io_uring_enter(2).
    ///
    /// # Errors
    /// The error of io_uring_enter(2).
    pub fn enter(&self, to_submit: u32, min_complete: u32, flags: u32) -> Result<u32, Errno> {
        enter(&Enter { fd: self.fd as u32, to_submit, min_complete, flags, arg: 0, arg_size: 0 })
    }

    /// Waits for this many CQEs, or until the time is over.
    ///
    /// # Errors
    /// The error of io_uring_enter(2).
    pub fn enter_for(&self, min_complete: u32, time: Timespec) -> Result<u32, Errno> {
        let argument = GeteventsArg { ts: &raw const time as u64, ..GeteventsArg::default() };
        let (flags, arg) = (IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &raw const argument as u64);
        let arg_size = size_of::<GeteventsArg>();
        enter(&Enter { fd: self.fd as u32, to_submit: 0, min_complete, flags, arg, arg_size })
    }

    /// Returns the number of CQEs to reap.
    pub fn ready(&self) -> u32 {
        let tail = self.word(self.params.cq_off.tail).load(Ordering::Acquire); // partner: as in `reap`
        tail.wrapping_sub(self.word(self.params.cq_off.head).load(Ordering::Relaxed))
    }

    /// Returns the number of SQEs that the engine has not consumed.
    pub fn unsubmitted(&self) -> u32 {
        self.params.sq_entries - self.room()
    }

    /// Reaps a CQE, if there is one. No other thread may reap at the same time.
    pub fn reap(&self) -> Option<Cqe> {
        let head = self.word(self.params.cq_off.head);
        let at = head.load(Ordering::Relaxed);
        // Acquire: pairs with the engine's Release store of the tail.
        if self.word(self.params.cq_off.tail).load(Ordering::Acquire) == at {
            return None;
        }
        let index = (at & (self.params.cq_entries - 1)) as usize;
        let offset = self.params.cq_off.cqes as usize + index * size_of::<Cqe>();
        // SAFETY: masked, so inside the mapping; posted, and not yet given back.
        let cqe = unsafe { ((self.rings.address + offset) as *const Cqe).read() };
        head.store(at.wrapping_add(1), Ordering::Release); // partner: the engine's Acquire load of the head
        Some(cqe)
    }

    /// Replaces the ring's descriptor by dup2(2), which closes it. Threads in a call on it continue.
    pub fn replace(&self, other: i32) {
        process::closing(self.fd);
        let onto = [other as usize, self.fd as usize, libc::O_CLOEXEC as usize, 0, 0, 0];
        kernel(libc::SYS_dup3, onto);
        kernel(libc::SYS_close, [self.fd as usize, 0, 0, 0, 0, 0]);
    }

    /// Closes the ring. Threads in a call on it continue.
    pub fn close(&self) {
        close(self.fd);
    }
}

fn close(fd: i32) {
    if !process::close(fd) {
        kernel(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
    }
}
