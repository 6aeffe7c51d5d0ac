//! A ring's memory, laid out as the kernel lays its rings out: shared memory, or the program's own areas.

pub mod layout;
pub mod mapped;
pub mod view;

use crate::mutation::{mutated, Mutation};
use crate::os::arch::page_bytes;
use crate::os::calls;
use crate::os::{self, check_writable, unlocked, ForNow, Question};
use crate::{descriptors, Errno};
use anyring_abi::Params;
use core::sync::atomic::{AtomicU8, Ordering};
use layout::Layout;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use view::{copy_words, View};

/// The value of a missing descriptor.
pub const NO_FILE: i32 = -1;

/// An address at which every access faults, whatever the offset of a word in a ring.
const NOWHERE: usize = 1 << 63;

/// The memory of a ring's areas, and what must be released with the ring.
pub struct Memory {
    /// The file with the areas, if the engine made them in one. The program's mmap(2) maps that file.
    memfd: Option<i32>,
    /// Offset of the areas in the memfd. A resized ring's earlier areas come before it.
    pub offset: u64,
    /// The number of times that the ring was resized, as far as this process knows.
    pub generation: u32,
    /// The engine's mapping, as address and bytes. If `has_room`, the mapping begins with room for something else.
    mapped: Option<(usize, usize)>,
    has_room: bool,
    /// The accessor of the areas.
    pub view: View,
}

/// Runs `grow` under a file size limit of at least `bytes`. RLIMIT_FSIZE counts memfds too, and a file beyond it
/// raises SIGXFSZ in the program. Fails with ENOMEM if the hard limit is lower.
pub fn with_file_size<T>(bytes: u64, grow: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    descriptors::limit::with_raised(rustix::process::Resource::Fsize, bytes, grow).unwrap_or_else(|| {
        crate::log::line(&format!("no memory for a ring: the hard limit RLIMIT_FSIZE is below {bytes} bytes"));
        Err(Errno::NOMEM)
    })
}

/// Whether memfd_create(2) is permitted. No other file takes the place of a memfd, since only a memfd can be
/// sealed. The probe passes flags that do not exist, so that no file is made. Without a child that could ask, it is
/// also unknown whether memory without a file can be mapped again.
pub(crate) static MAKES_MEMFDS: Question = Question::likely(|| {
    os::is_permitted(libc::SYS_memfd_create, [c"".as_ptr() as usize, u32::MAX as usize, 0, 0, 0, 0])
});

/// Makes a memfd of `bytes` bytes that no process can make smaller, nor seal against growth. Without these seals, a
/// process that has or had the memfd could end every process that maps it, by SIGBUS. Source: memfd_create(2), File
/// sealing. Fails with ENOSYS if a filter refuses memfds.
pub fn sealed_memfd(name: impl rustix::path::Arg, bytes: u64) -> Result<ForNow, Errno> {
    use rustix::fs::SealFlags;
    if !MAKES_MEMFDS.is_yes() {
        return Err(Errno::NOSYS);
    }
    let memfd = calls::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    with_file_size(bytes, || calls::ftruncate(&memfd, bytes))?;
    calls::fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(memfd)
}

/// Makes a memfd of `bytes` bytes, at the top of the descriptor table, and maps it. Returns the memfd and its
/// address.
fn map_memfd(name: &core::ffi::CStr, bytes: usize) -> Result<(descriptors::Own, usize), Errno> {
    let memfd = descriptors::to_top(sealed_memfd(name, bytes as u64)?)?;
    let base = map_range(memfd.as_fd(), 0, bytes)?;
    Ok((memfd, base))
}

/// Maps `bytes` bytes of a memfd, from `offset` on. Returns their address.
pub(crate) fn map_range(memfd: BorrowedFd, offset: u64, bytes: usize) -> Result<usize, Errno> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    unlocked::map(bytes, |bytes| {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { calls::mmap(core::ptr::null_mut(), bytes, prot, MapFlags::SHARED, memfd, offset) }?;
        Ok(base as usize)
    })
}

/// Maps new zeroed memory that forked children share. Only touched pages take memory. Fails with EAGAIN if the memory
/// would be locked, since shared anonymous memory cannot grow, as a file's can.
pub(crate) fn map_shared(bytes: usize) -> Result<usize, Errno> {
    if unlocked::is_locked() {
        return Err(Errno::AGAIN);
    }
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let base = unsafe { calls::mmap_anonymous(core::ptr::null_mut(), bytes, prot, flags) }?;
    Ok(base as usize)
}

/// Maps the shared memory at `from` once more. mremap(2) with an old size of 0 leaves the old mapping in place.
pub fn map_again(from: usize, bytes: usize) -> Result<usize, Errno> {
    // SAFETY: nothing changes where the memory is mapped already.
    let base = unsafe { calls::mremap(from as *mut _, 0, bytes, MremapFlags::MAYMOVE) }?;
    Ok(base as usize)
}

/// Maps memory that [`map_again`] can map. Fails with EAGAIN if there can be no such memory. Either it would be
/// locked, or the system is an emulation that refuses such a mapping (valgrind).
fn map_to_share(bytes: usize) -> Result<usize, Errno> {
    const REFUSED: u8 = 1;
    const WORKS: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    let known = KNOWN.load(Ordering::Relaxed);
    if known == REFUSED {
        return Err(Errno::AGAIN);
    }
    let base = map_shared(bytes)?;
    if known == WORKS {
        return Ok(base);
    }
    let again = if MAPS_AGAIN.is_yes() { map_again(base, bytes) } else { Err(Errno::NOSYS) };
    match again {
        Ok(_) => KNOWN.store(WORKS, Ordering::Relaxed),
        // There is no memory at this moment. A later attempt may succeed.
        Err(Errno::NOMEM | Errno::AGAIN) => {}
        Err(_) => KNOWN.store(REFUSED, Ordering::Relaxed),
    }
    // SAFETY: one of the two mappings just made, known to nothing else.
    let _ = unsafe { calls::munmap(again.unwrap_or(base) as *mut _, bytes) };
    again.map(|_| base).map_err(|_| Errno::AGAIN)
}

/// Whether [`map_again`] works.
pub(crate) static MAPS_AGAIN: Question = Question::new(ask_to_map_again);

/// Tries mremap(2) where nothing is mapped. QEMU's user emulation would end the process for that call, so this
/// function recognises it first. It lacks SO_COOKIE, and says so for any descriptor number.
fn ask_to_map_again() -> isize {
    let args = [usize::MAX, libc::SOL_SOCKET as usize, libc::SO_COOKIE as usize, 0, 0, 0];
    match os::is_refused_by(libc::SYS_getsockopt, args, libc::EBADF) {
        0 => os::is_refused_by(libc::SYS_mremap, [0, 0, 4096, libc::MREMAP_MAYMOVE as usize, 0, 0], libc::EFAULT),
        refused => refused,
    }
}

/// Maps new zeroed memory that is private to this process.
fn map_private(bytes: usize) -> Result<usize, Errno> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    unlocked::map(bytes, |bytes| {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { calls::mmap_anonymous(core::ptr::null_mut(), bytes, prot, MapFlags::PRIVATE) }?;
        Ok(base as usize)
    })
}

/// Frees the memory of a range of a memfd, which reads as zero from then on.
fn punch(memfd: BorrowedFd, offset: u64, bytes: u64) -> Result<(), Errno> {
    use crate::os::calls::fallocate;
    use rustix::fs::FallocateFlags;
    match bytes {
        0 => Ok(()),
        _ => fallocate(memfd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes),
    }
}

/// Makes a range of a memfd read as zero. If holes cannot be punched (gVisor), writes zeros.
fn clear(memfd: BorrowedFd, offset: u64, bytes: u64) -> Result<(), Errno> {
    match punch(memfd, offset, bytes) {
        Err(Errno::OPNOTSUPP) => {}
        answer => return answer,
    }
    static ZEROS: [u8; 4096] = [0; 4096];
    let (mut at, end) = (offset, offset + bytes);
    while at < end {
        at += calls::pwrite(memfd, &ZEROS[..ZEROS.len().min((end - at) as usize)], at)? as u64;
    }
    Ok(())
}

/// Returns the size of a memfd in bytes.
fn file_size(memfd: BorrowedFd) -> Result<u64, Errno> {
    #[expect(clippy::disallowed_methods, reason = "a file of the engine's own")]
    let status = calls::fstat(memfd)?;
    Ok(status.st_size as u64)
}

/// madvise(2) with MADV_DONTFORK.
pub(crate) fn keep_from_children(base: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: one of the engine's whole mappings, whose content the call does not change.
    unsafe { calls::madvise(base as *mut _, bytes, rustix::mm::Advice::LinuxDontFork) }
}

/// The place of something that the program maps by the ring's descriptor.
#[derive(Debug, PartialEq, Eq)]
pub enum Area {
    /// One of the engine's files, and the offset in it.
    File(i32, u64),
    /// The address, in memory that [`map_again`] maps.
    Memory(usize),
}

/// Memory that the program maps by the ring's descriptor, and that is released independently of the ring's.
pub struct SharedArea {
    /// `None` where memfds are refused: children that were forked before the area was made cannot map it.
    memfd: Option<i32>,
    address: usize,
    bytes: usize,
}

impl SharedArea {
    /// Makes new zeroed memory of whole pages.
    pub fn create(name: &core::ffi::CStr, bytes: usize) -> Result<SharedArea, Errno> {
        if !MAKES_MEMFDS.is_yes() {
            let address = map_to_share(bytes).map_err(|_| Errno::NOMEM)?;
            return Ok(SharedArea { memfd: None, address, bytes });
        }
        let (memfd, address) = map_memfd(name, bytes)?;
        Ok(SharedArea { memfd: Some(memfd.into_raw_fd()), address, bytes })
    }

    /// Returns the address of the engine's mapping. Only guarded accessors may touch that memory, since the program
    /// can write to it.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns what the program's mmap(2) gets.
    pub fn area(&self) -> Area {
        self.memfd.map_or(Area::Memory(self.address), |memfd| Area::File(memfd, 0))
    }
}

impl Drop for SharedArea {
    fn drop(&mut self) {
        // SAFETY: `create` mapped the range, and each user of its address borrows `self`.
        let _ = unsafe { calls::munmap(self.address as *mut _, self.bytes) };
        if let Some(memfd) = self.memfd {
            descriptors::close(memfd);
        }
    }
}

/// Makes the accessor of areas in program memory, and fills in their constant words.
fn view_of_program(layout: Layout, params: &Params) -> Result<View, Errno> {
    let (sqes, rings) = (params.sq_off.user_addr, params.cq_off.user_addr);
    if sqes == 0 || rings == 0 {
        return Err(Errno::FAULT);
    }
    let page_bytes = page_bytes() as u64;
    if !sqes.is_multiple_of(page_bytes) || !rings.is_multiple_of(page_bytes) {
        return Err(Errno::INVAL);
    }
    check_writable(rings, layout.rings_bytes as u64)?;
    check_writable(sqes, layout.sqes_bytes as u64)?;
    let view = View::new(rings as usize, sqes as usize, true, layout);
    for offset in (0..64).step_by(4) {
        view.store(offset, 0)?;
    }
    view.initialise()?;
    Ok(view)
}

impl Memory {
    /// Makes both areas, one after the other. They are in a memfd if the ring may be resized, since a child forked
    /// earlier must find the new areas. They are also in a memfd if memory without a file could not be mapped again.
    /// In all other cases, and if memfds are refused, they follow `room` bytes for the control area.
    pub fn create(layout: Layout, is_resizable: bool, room: usize) -> Result<Memory, Errno> {
        let bytes = layout.rings_bytes + layout.sqes_bytes;
        // If the program enlarges its mapping of this memory, the mapping only reaches past the end, where there is
        // nothing.
        let needs_file = is_resizable && MAKES_MEMFDS.is_yes();
        let by_itself = if needs_file { Err(Errno::AGAIN) } else { map_to_share(room + bytes) };
        let (memfd, mapped, base) = match by_itself {
            Err(Errno::AGAIN) => {
                let (memfd, base) = map_memfd(c"anyring", bytes)?;
                (Some(memfd.into_raw_fd()), (base, bytes), base)
            }
            base => (None, (base?, room + bytes), base? + room),
        };
        let view = View::new(base, base + layout.rings_bytes, false, layout);
        view.initialise()?; // the engine's memory cannot fault, so there is nothing to give back
        let has_room = memfd.is_none();
        Ok(Memory { memfd, offset: 0, generation: 0, mapped: Some(mapped), has_room, view })
    }

    /// Returns the address of the engine's mapping. 0 if the memory belongs to the program, or was unmapped already.
    pub fn address(&self) -> usize {
        self.mapped.map_or(0, |(base, _)| base)
    }

    /// Returns the address of the room, which is zeroed. The room ends with this memory.
    pub fn room(&self) -> Option<usize> {
        Some(self.mapped?.0).filter(|_| self.has_room)
    }

    /// Returns the area that the program's mmap(2) at this offset gets, if the program may map it.
    pub fn area(&self, mmap_offset: u64) -> Option<Area> {
        let offset = self.view.layout().area_offset(mmap_offset)?;
        match self.memfd {
            Some(memfd) => Some(Area::File(memfd, self.offset + offset)),
            None if !self.has_room => None,
            None => Some(Area::Memory(self.view.rings() + offset as usize)),
        }
    }

    /// Maps both areas once more, for the program. Returns the address and bytes of each. `None` if the engine has
    /// not made the areas.
    pub fn map_both(&self) -> Option<Result<[(usize, usize); 2], Errno>> {
        let layout = self.view.layout();
        let (rings, sqes) = (layout.rings_bytes, layout.sqes_bytes);
        let base = match self.area(0)? {
            Area::File(_, offset) => self.borrow_memfd().and_then(|memfd| map_range(memfd, offset, rings + sqes)),
            Area::Memory(base) => map_again(base, rings + sqes),
        };
        Some(base.map(|base| [(base, rings), (base + rings, sqes)]))
    }

    /// Makes areas that no other process can map.
    pub fn private(layout: Layout) -> Result<Memory, Errno> {
        let bytes = layout.rings_bytes + layout.sqes_bytes;
        let base = map_private(bytes)?;
        let view = View::new(base, base + layout.rings_bytes, false, layout);
        view.initialise()?;
        let mapped = Some((base, bytes));
        Ok(Memory { memfd: None, offset: 0, generation: 0, mapped, has_room: false, view })
    }

    /// Uses the program's areas (`IORING_SETUP_NO_MMAP`). `sq_off.user_addr` holds the SQEs and `cq_off.user_addr`
    /// the rings, both page-aligned. Source: io_uring_setup(2).
    pub fn of_program(layout: Layout, params: &Params) -> Result<Memory, Errno> {
        let view = view_of_program(layout, params)?;
        Ok(Memory { memfd: None, offset: 0, generation: 0, mapped: None, has_room: false, view })
    }

    /// Makes areas of another size, in the same memfd after the present ones.
    pub fn another(&self, layout: Layout) -> Result<Memory, Errno> {
        let memfd = self.borrow_memfd()?;
        let (_, present) = self.mapped.ok_or(Errno::INVAL)?;
        let (offset, bytes) = (self.offset + present as u64, (layout.rings_bytes + layout.sqes_bytes) as u64);
        let (end, size) = (offset + bytes, file_size(memfd)?);
        with_file_size(end, || {
            // An earlier attempt that failed may have left the file larger, with data after the present areas.
            if size < end {
                calls::ftruncate(memfd, end)?;
            }
            clear(memfd, offset, end.min(size).saturating_sub(offset))
        })?;
        let memory = self.known_at(layout, offset)?;
        memory.view.initialise()?;
        Ok(memory)
    }

    /// Uses areas of another size in program memory.
    pub fn another_of_program(&self, layout: Layout, params: &Params) -> Result<Memory, Errno> {
        let view = view_of_program(layout, params)?;
        Ok(Memory { view, mapped: None, generation: self.generation + 1, ..*self })
    }

    /// Maps the areas at an offset in the memfd. Another process may have made them, so their content is untrusted.
    /// Fails with INVAL if the file does not hold them, or if they are in the memory of that process's program.
    pub fn known_at(&self, layout: Layout, rings: u64) -> Result<Memory, Errno> {
        let generation = self.generation + 1;
        let bytes = layout.rings_bytes + layout.sqes_bytes;
        let memfd = self.borrow_memfd()?;
        // The file cannot become smaller.
        let size = file_size(memfd)?;
        if rings.checked_add(bytes as u64).is_none_or(|end| end > size) {
            return Err(Errno::INVAL);
        }
        let base = map_range(memfd, rings, bytes)?;
        let view = View::new(base, base + layout.rings_bytes, false, layout);
        Ok(Memory { view, mapped: Some((base, bytes)), offset: rings, generation, ..*self })
    }

    /// Moves the ring to `new`. The program may still have the present areas mapped. Areas from before them are
    /// freed. The caller makes sure that the old view is not used any more.
    pub fn replace_with(&mut self, new: Memory) {
        if let Ok(memfd) = self.borrow_memfd() {
            let _ = punch(memfd, 0, self.offset);
        }
        self.unmap();
        *self = new;
    }

    /// Moves a closed ring from the program's own addresses, where something else may soon be mapped. Called if a
    /// thread still waits on the ring, or requests are in flight. Memory that can be shared is mapped a second time, so
    /// a waiting thread finds its CQEs there, as in the kernel. Other memory is copied. If there is no memory for a
    /// mapping or a copy, CQEs go to the overflow list. The caller holds the ring's lock.
    pub fn leave_program(&mut self) {
        let page_bytes = page_bytes();
        if self.mapped.is_some() || !self.view.is_of_program() || mutated(Mutation::ClosedRingsStayWithTheProgram) {
            return;
        }
        let (rings, bytes) = (self.view.rings(), self.view.layout().rings_bytes.next_multiple_of(page_bytes));
        self.view = self.view.with_rings_at(NOWHERE);
        let Ok(base) = map_private(bytes) else { return };
        for offset in (0..bytes).step_by(page_bytes) {
            let (old, new) = (rings + offset, base + offset);
            // In two steps. On older kernels (seen on 6.12) an mremap(2) to a given place unmaps that place even if it
            // then fails, and something else may soon be there.
            let Ok(shared) = map_again(old, page_bytes) else {
                let left = self.view.layout().rings_bytes.saturating_sub(offset).min(page_bytes);
                let _ = copy_words(old as u64, new as u64, (left & !15) as u64);
                // a page that is unmapped already leaves zeros
                continue;
            };
            // SAFETY: both pages were just mapped, and are known to nothing else.
            let moved = unsafe {
                let shared = shared as *mut _;
                calls::mremap_fixed(shared, page_bytes, page_bytes, MremapFlags::MAYMOVE, new as *mut _)
            };
            if moved.is_err() {
                return; // what is mapped stays: the place may be another's by now
            }
        }
        self.view = self.view.with_rings_at(base);
        self.mapped = Some((base, bytes));
    }

    fn borrow_memfd(&self) -> Result<BorrowedFd<'static>, Errno> {
        let memfd = self.memfd.ok_or(Errno::INVAL)?;
        // SAFETY: the ring's memfd, open until `release`, which comes after every use of it.
        Ok(unsafe { BorrowedFd::borrow_raw(memfd) })
    }

    /// Unmaps the engine's mapping. The caller makes sure that the view is not used any more.
    pub fn unmap(&mut self) {
        if let Some((base, bytes)) = self.mapped.take() {
            // SAFETY: `map_range` mapped the range, and the caller gives up every use of it.
            let _ = unsafe { calls::munmap(base as *mut _, bytes) };
        }
    }

    /// Excludes the engine's mapping from children that are forked from now on.
    pub fn keep_from_children(&self) -> Result<(), Errno> {
        match self.mapped {
            Some((base, bytes)) => keep_from_children(base, bytes),
            None => Ok(()),
        }
    }

    /// Forgets the mapping, in a forked child that did not get it, since something else may be at its address.
    pub fn mark_kept(&mut self) {
        self.mapped = None;
    }

    /// Unmaps and closes the engine's mapping and memfd. The caller makes sure that neither the view nor the room is
    /// used any more.
    pub fn release(&mut self) {
        self.unmap();
        if let Some(memfd) = self.memfd.take() {
            descriptors::close(memfd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::layout::word;
    use super::*;
    use crate::os::refusing::refusing;
    use crate::os::{check, syscall};
    use anyring_abi::IORING_SETUP_NO_MMAP;

    #[test]
    fn a_range_reads_as_zero_afterwards() {
        clears();
        refusing(&[(libc::SYS_fallocate, None, libc::EOPNOTSUPP)], clears);
    }

    /// Closing a ring in program memory of this kind must leave its words in a mapping of the engine's.
    fn leaves(flags: libc::c_int, is_unmapped: bool) {
        let (entries, bytes) = (4, page_bytes());
        let mut params = Params { flags: IORING_SETUP_NO_MMAP, sq_entries: entries, ..Params::default() };
        let map = || {
            let args = [0, bytes, (libc::PROT_READ | libc::PROT_WRITE) as usize, flags as usize, usize::MAX, 0];
            check(syscall(libc::SYS_mmap, args)).expect("mmap")
        };
        let [rings, sqes] = [map(), map()];
        (params.cq_off.user_addr, params.sq_off.user_addr) = (rings as u64, sqes as u64);
        let layout = Layout::new(entries, &params).expect("a layout");
        assert!(layout.rings_bytes == bytes && layout.sqes_bytes == bytes);
        let mut memory = Memory::of_program(layout, &params).expect("memory");
        memory.view.store(word::CQ_FLAGS, 7).expect("a word");
        if is_unmapped {
            syscall(libc::SYS_munmap, [rings, bytes, 0, 0, 0, 0]);
        }
        memory.leave_program();
        let (base, mapped) = memory.mapped.expect("a mapping");
        let mut resident = 0_u8;
        assert_eq!(mapped, bytes);
        assert_eq!(syscall(libc::SYS_mincore, [base, bytes, &raw mut resident as usize, 0, 0, 0]), 0, "not mapped");
        if !is_unmapped {
            assert_eq!(memory.view.load(word::CQ_FLAGS).expect("a word"), 7);
            syscall(libc::SYS_munmap, [rings, bytes, 0, 0, 0, 0]);
        }
        memory.release();
        syscall(libc::SYS_munmap, [sqes, bytes, 0, 0, 0, 0]);
    }

    #[test]
    fn a_closed_ring_keeps_its_words_where_they_stay_mapped() {
        for flags in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
            for is_unmapped in [false, true] {
                leaves(flags | libc::MAP_ANONYMOUS, is_unmapped);
            }
        }
    }

    fn clears() {
        let memfd = sealed_memfd("test", 3 * 4096).unwrap();
        calls::pwrite(&memfd, &[1; 3 * 4096], 0).unwrap();
        clear(memfd.as_fd(), 4096, 4100).unwrap();
        let mut bytes = [2; 3 * 4096];
        assert_eq!(rustix::io::pread(&memfd, &mut bytes, 0), Ok(3 * 4096));
        assert!(bytes[4096..][..4100].iter().all(|byte| *byte == 0));
        assert!(bytes[..4096].iter().chain(&bytes[8196..]).all(|byte| *byte == 1));
    }
}
