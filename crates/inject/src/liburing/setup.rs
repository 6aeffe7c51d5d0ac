//! Setting up and tearing down a ring: io_uring_queue_init(3) and its relatives. The program calls these functions
//! before or after every other use of the ring.

use super::layout::{cqe_shift, sqe_shift, Cq, Ring, Sq, Word};
use super::layout::{INT_CQ_NEEDS_ENTER, INT_ENTER_REGISTERED, INT_PROGRAM_MEMORY, INT_REGISTER_REGISTERED};
use super::older::QUEUE_INIT;
use super::{guard, hand_on, register, ring as borrow};
use crate::door::Mapping;
use crate::next::next;
use crate::{door, memory, sanitizer};
use anyring_abi::IORING_SETUP_SQPOLL;
use anyring_abi::{Cqe, Params, Sqe, IORING_FEAT_NATIVE_WORKERS, IORING_FEAT_SINGLE_MMAP};
use anyring_abi::{
    IORING_OFF_CQ_RING, IORING_OFF_SQES, IORING_OFF_SQ_RING, IORING_SETUP_CLAMP, IORING_SETUP_CQSIZE,
};
use anyring_abi::{
    IORING_SETUP_IOPOLL, IORING_SETUP_NO_MMAP, IORING_SETUP_NO_SQARRAY, IORING_SETUP_REGISTERED_FD_ONLY,
};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU8, Ordering};
use libc::{size_t, ssize_t};
use rustix::io::Errno;
use rustix::mm::{madvise, mmap, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};
use std::os::fd::BorrowedFd;

/// The largest SQ that the kernel accepts; the CQ may have twice as many entries. Source: io_uring_setup(2).
const MAX_ENTRIES: u32 = 32768;
/// Size in bytes of the words before the CQEs in ring memory: `params.cq_off.cqes` on Linux 5.1 to 6.18.
const RING_HEADER_SIZE: usize = 64;
/// Size in bytes of a huge page. Until 6.10 the kernel required rings in the program's memory to be in one page or one
/// huge page.
const HUGE_PAGE_SIZE: usize = 2 << 20;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// io_uring_queue_init(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_queue_init(entries: c_uint, ring: *mut Ring, flags: c_uint) -> c_int {
    hand_on!(io_uring_queue_init(entries: c_uint, ring: *mut Ring, flags: c_uint) -> c_int);
    let mut params = Params { flags, ..Params::default() };
    // SAFETY: `ring` is the caller's promise, `params` lives here.
    unsafe { io_uring_queue_init_params(entries, ring, &mut params) }
}

/// io_uring_queue_init_params(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_queue_init_params(
    entries: c_uint,
    ring: *mut Ring,
    params: *mut Params,
) -> c_int {
    hand_on!(io_uring_queue_init_params(entries: c_uint, ring: *mut Ring, params: *mut Params) -> c_int);
    // SAFETY: the caller's promise: both are exclusively ours during the call.
    guard(|| unsafe { init(entries, ring, &mut *params, None) }.min(0))
}

/// io_uring_queue_init_mem(3): the ring's memory is `buffer`. Returns the number of bytes used of it.
#[no_mangle]
pub unsafe extern "C" fn io_uring_queue_init_mem(
    entries: c_uint,
    ring: *mut Ring,
    params: *mut Params,
    buffer: *mut c_void,
    buffer_size: size_t,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise: both are exclusively ours during the call.
        unsafe {
            (*params).flags |= IORING_SETUP_NO_MMAP;
            init(entries, ring, &mut *params, Some((buffer, buffer_size)))
        }
    })
}

next! {
    REGISTER_NAPI = c"io_uring_register_napi": fn(*mut Ring, *mut c_void) -> c_int;
}

/// True if the liburing that this library pre-empts makes rings without the index array, or if there is no other
/// liburing. liburing does so from 2.6 on, the first release with io_uring_register_napi. Programs built with an older
/// header may write to the array.
fn array_is_left_out() -> bool {
    // Relaxed: every thread finds the same value. Missing functions are looked for in every library.
    static STATE: AtomicU8 = AtomicU8::new(0);
    if STATE.load(Ordering::Relaxed) == 0 {
        let is_left_out = QUEUE_INIT.get().is_none() || REGISTER_NAPI.get().is_some();
        STATE.store(1 + u8::from(is_left_out), Ordering::Relaxed);
    }
    STATE.load(Ordering::Relaxed) == 2
}

/// Sets a ring up. It has no index array if that is possible (from Linux 6.6 on) and the program expects none.
///
/// # Safety
/// `ring` is valid for writes; `buffer`, if given, is memory of that size which outlives the ring.
unsafe fn init(entries: u32, ring: *mut Ring, params: &mut Params, buffer: Option<(*mut c_void, usize)>) -> i32 {
    let flags = params.flags;
    if array_is_left_out() {
        params.flags |= IORING_SETUP_NO_SQARRAY;
    }
    // SAFETY: the caller's promise.
    let answer = unsafe { init_as_asked(entries, ring, params, buffer, params.flags != flags) };
    if answer != -libc::EINVAL || flags & IORING_SETUP_NO_SQARRAY != 0 {
        return answer;
    }
    params.flags = flags;
    // SAFETY: the caller's promise.
    unsafe { init_as_asked(entries, ring, params, buffer, false) }
}

/// Sets a ring up with exactly `params.flags`. `may_do_less`: if a flag is unknown, setup is refused, and the
/// caller tries again without it. Returns the number of bytes used of the program's memory, 0, or `-errno`.
///
/// # Safety
/// As for [`init`]: `ring` is valid for writes, and `buffer` outlives the ring.
unsafe fn init_as_asked(
    entries: u32,
    ring: *mut Ring,
    params: &mut Params,
    buffer: Option<(*mut c_void, usize)>,
    may_do_less: bool,
) -> i32 {
    let no_mmap = params.flags & IORING_SETUP_NO_MMAP != 0;
    if params.flags & IORING_SETUP_REGISTERED_FD_ONLY != 0 && !no_mmap {
        return -libc::EINVAL;
    }
    let mut made = Ring::empty();
    let mut used = 0;
    if no_mmap {
        match own_memory(entries, params, &mut made, buffer) {
            Ok(bytes) => used = bytes,
            Err(errno) => return -errno.raw_os_error(),
        }
    }
    let fd = door::setup(entries, params, may_do_less) as i32;
    let mapped = match fd {
        error if error < 0 => Err(error),
        _ if no_mmap => Ok(()),
        _ => map_ring(fd, params, &mut made.sq, &mut made.cq).inspect_err(|_| close(fd)),
    };
    if let Err(error) = mapped {
        unmap(&made);
        return error;
    }
    point_into_memory(params, &mut made.sq, &mut made.cq);
    finish(fd, params, &mut made);
    // SAFETY: the caller's promise: valid for writes.
    unsafe { hand_out(ring, made) };
    used as i32
}

/// Hands a ring to the program.
///
/// # Safety
/// `ring` is valid for writes.
unsafe fn hand_out(ring: *mut Ring, made: Ring) {
    let areas = [
        (made.sq.ring_ptr, made.sq.ring_sz),
        (made.cq.ring_ptr, made.cq.ring_sz),
        (made.sq.sqes.cast(), made.sq.sqes_sz as usize),
    ];
    areas.iter().filter(|(area, _)| !area.is_null()).for_each(|(area, bytes)| sanitizer::wrote(*area, *bytes));
    // SAFETY: the caller's promise.
    unsafe { ring.write(made) };
    sanitizer::wrote(ring, size_of::<Ring>());
}

/// Sets the fields that are not in ring memory.
fn finish(fd: i32, params: &Params, ring: &mut Ring) {
    ring.flags = params.flags;
    ring.features = params.features;
    ring.enter_ring_fd.set(fd);
    ring.ring_fd.set(fd);
    let mut int_flags = ring.int_flags.get();
    if params.flags & IORING_SETUP_REGISTERED_FD_ONLY != 0 {
        ring.ring_fd.set(-1);
        int_flags |= INT_ENTER_REGISTERED | INT_REGISTER_REGISTERED;
    }
    if params.flags & (IORING_SETUP_IOPOLL | IORING_SETUP_SQPOLL) == IORING_SETUP_IOPOLL {
        int_flags |= INT_CQ_NEEDS_ENTER;
    }
    ring.int_flags.set(int_flags);
}

/// io_uring_queue_mmap: maps the ring that the program set up itself as `fd`.
#[no_mangle]
pub unsafe extern "C" fn io_uring_queue_mmap(fd: c_int, params: *mut Params, ring: *mut Ring) -> c_int {
    hand_on!(io_uring_queue_mmap(fd: c_int, params: *mut Params, ring: *mut Ring) -> c_int);
    guard(|| {
        // SAFETY: the caller's promise: the parameters that setup filled in.
        let params = unsafe { &*params };
        let mut made = Ring::empty();
        let answer = map_ring(fd, params, &mut made.sq, &mut made.cq);
        if answer.is_ok() {
            point_into_memory(params, &mut made.sq, &mut made.cq);
            finish(fd, params, &mut made);
        }
        // SAFETY: the caller's promise: valid for writes.
        unsafe { hand_out(ring, made) };
        answer.err().unwrap_or(0)
    })
}

/// io_uring_queue_exit(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_queue_exit(ring: *mut Ring) {
    hand_on!(io_uring_queue_exit(ring: *mut Ring));
    guard(|| {
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        unmap(ring);
        if ring.has(INT_ENTER_REGISTERED) {
            register::unregister_ring_fd(ring);
        }
        if ring.ring_fd.get() >= 0 {
            close(ring.ring_fd.get());
        }
    });
}

/// io_uring_ring_dontfork: keeps the ring's memory out of children.
#[no_mangle]
pub unsafe extern "C" fn io_uring_ring_dontfork(ring: *mut Ring) -> c_int {
    hand_on!(io_uring_ring_dontfork(ring: *mut Ring) -> c_int);
    guard(|| {
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        let (sq, cq) = (&ring.sq, &ring.cq);
        if sq.ring_ptr.is_null() || sq.sqes.is_null() || cq.ring_ptr.is_null() {
            return -libc::EINVAL;
        }
        let sqes_size = (sq.ring_entries as usize * size_of::<Sqe>()) << sqe_shift(ring.flags);
        let own_cq = cq.ring_ptr != sq.ring_ptr;
        let areas = [
            (sq.sqes.cast(), sqes_size),
            (sq.ring_ptr, sq.ring_sz),
            (cq.ring_ptr, if own_cq { cq.ring_sz } else { 0 }),
        ];
        for (address, size) in areas {
            // SAFETY: whole mappings that this library made. MADV_DONTFORK does not touch their content.
            if let Err(errno) = unsafe { madvise(address, size, Advice::LinuxDontFork) } {
                return -errno.raw_os_error();
            }
        }
        memory::advised(sq.sqes as usize, libc::MADV_DONTFORK);
        0
    })
}

/// io_uring_memory_size: the memory that a ring needs, in bytes.
#[no_mangle]
pub extern "C" fn io_uring_memory_size(entries: c_uint, flags: c_uint) -> ssize_t {
    guard(|| needed_memory(entries, &Params { flags, ..Params::default() }))
}

/// io_uring_memory_size_params: the memory that a ring needs, in bytes.
#[no_mangle]
pub unsafe extern "C" fn io_uring_memory_size_params(entries: c_uint, params: *mut Params) -> ssize_t {
    // SAFETY: the caller's promise.
    guard(|| needed_memory(entries, unsafe { &*params }))
}

/// io_uring_mlock_size: the locked memory that a ring needs, in bytes; 0 from Linux 5.12 on.
#[no_mangle]
pub extern "C" fn io_uring_mlock_size(entries: c_uint, flags: c_uint) -> ssize_t {
    guard(|| needed_locked_memory(entries, &Params { flags, ..Params::default() }))
}

/// io_uring_mlock_size_params: the locked memory that a ring needs, in bytes; 0 from Linux 5.12 on.
#[no_mangle]
pub unsafe extern "C" fn io_uring_mlock_size_params(entries: c_uint, params: *mut Params) -> ssize_t {
    // SAFETY: the caller's promise.
    guard(|| needed_locked_memory(entries, unsafe { &*params }))
}

fn needed_locked_memory(entries: u32, params: &Params) -> ssize_t {
    // The kernel stopped charging RLIMIT_MEMLOCK in the release that brought native workers, and only a ring shows that
    // feature. If no ring can be made, the feature stays unset and the old requirement is the answer.
    let mut ring = Ring::empty();
    let mut probed = Params::default();
    // SAFETY: both live here.
    if unsafe { init(entries, &mut ring, &mut probed, None) } >= 0 {
        // SAFETY: it was just set up, and no other code has it.
        unsafe { io_uring_queue_exit(&mut ring) };
    }
    if probed.features & IORING_FEAT_NATIVE_WORKERS != 0 {
        return 0;
    }
    needed_memory(entries, params)
}

fn needed_memory(entries: u32, params: &Params) -> ssize_t {
    match ring_entries(entries, params) {
        Err(errno) => -(errno.raw_os_error() as ssize_t),
        Ok((sq, cq)) => {
            let sqes = sqes_size(params.flags, sq).next_multiple_of(page_size());
            (sqes + ring_size(params.flags, sq, cq).next_multiple_of(page_size())) as ssize_t
        }
    }
}

/// Returns the numbers of SQ and CQ entries that io_uring_setup(2) will choose for these arguments. Source:
/// io_uring_setup(2).
fn ring_entries(entries: u32, params: &Params) -> Result<(u32, u32), Errno> {
    let clamped = |count: u32, limit: u32| match count {
        0 => Err(Errno::INVAL),
        _ if count <= limit => Ok(count.next_power_of_two()),
        _ if params.flags & IORING_SETUP_CLAMP != 0 => Ok(limit),
        _ => Err(Errno::INVAL),
    };
    let sq = clamped(entries, MAX_ENTRIES)?;
    if params.flags & IORING_SETUP_CQSIZE == 0 {
        return Ok((sq, 2 * sq));
    }
    let cq = clamped(params.cq_entries, 2 * MAX_ENTRIES)?;
    if cq < sq {
        return Err(Errno::INVAL);
    }
    Ok((sq, cq))
}

fn sqes_size(setup_flags: u32, entries: u32) -> usize {
    (entries as usize * size_of::<Sqe>()) << sqe_shift(setup_flags)
}

fn cqes_size(setup_flags: u32, entries: u32) -> usize {
    (entries as usize * size_of::<Cqe>()) << cqe_shift(setup_flags)
}

/// Returns the size in bytes of the area with the words, the CQEs and the index array. The index array begins on a
/// cache line of its own.
fn ring_size(setup_flags: u32, sq_entries: u32, cq_entries: u32) -> usize {
    let size = RING_HEADER_SIZE + cqes_size(setup_flags, cq_entries);
    match setup_flags & IORING_SETUP_NO_SQARRAY {
        0 => size.next_multiple_of(64) + sq_entries as usize * size_of::<u32>(),
        _ => size,
    }
}

fn page_size() -> usize {
    // SAFETY: sysconf reads a constant of the process.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// `IORING_SETUP_NO_MMAP`: puts the SQEs and the rings into `buffer`, or into anonymous memory that queue_exit unmaps.
/// The anonymous memory is a page or a huge page, together or for each of the two. Returns the number of bytes used of
/// the buffer.
fn own_memory(
    entries: u32,
    params: &mut Params,
    made: &mut Ring,
    buffer: Option<(*mut c_void, usize)>,
) -> Result<usize, Errno> {
    let (sq_entries, cq_entries) = ring_entries(entries, params)?;
    let sqes_size = sqes_size(params.flags, sq_entries).next_multiple_of(page_size());
    let ring_size = ring_size(params.flags, sq_entries, cq_entries);
    let used = sqes_size + ring_size.next_multiple_of(page_size());
    let (sqes, room) = match buffer {
        Some((_, size)) if used > size => return Err(Errno::NOMEM),
        Some(given) => {
            made.int_flags.set(INT_PROGRAM_MEMORY);
            given
        }
        None if sqes_size.max(ring_size) > HUGE_PAGE_SIZE => return Err(Errno::NOMEM),
        None => anonymous(sqes_size)?,
    };
    made.sq.sqes = sqes.cast();
    made.sq.sqes_sz = if buffer.is_some() { 0 } else { room as u32 };
    if used <= room {
        made.sq.ring_ptr = sqes.wrapping_byte_add(sqes_size);
    } else {
        match anonymous(ring_size) {
            Ok((address, size)) => (made.sq.ring_ptr, made.sq.ring_sz) = (address, size),
            Err(errno) => {
                unmap(made);
                return Err(errno);
            }
        }
    }
    made.cq.ring_ptr = made.sq.ring_ptr;
    params.sq_off.user_addr = made.sq.sqes as u64;
    params.cq_off.user_addr = made.sq.ring_ptr as u64;
    Ok(used)
}

/// Maps shared anonymous memory of one page or one huge page, the smallest that `size` fits into.
fn anonymous(size: usize) -> Result<(*mut c_void, usize), Errno> {
    let (room, huge) = match size {
        _ if size <= page_size() => (page_size(), MapFlags::empty()),
        _ => (HUGE_PAGE_SIZE, MapFlags::HUGETLB),
    };
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let address = unsafe { mmap_anonymous(core::ptr::null_mut(), room, READ_WRITE, MapFlags::SHARED | huge) }?;
    Ok((address, room))
}

/// Maps a ring's areas as io_uring_setup(2) describes. After an error nothing stays mapped.
pub(super) fn map_ring(fd: i32, params: &Params, sq: &mut Sq, cq: &mut Cq) -> Result<(), i32> {
    let mut map_all = || -> Result<(), Errno> {
        sq.ring_sz = params.sq_off.array as usize + params.sq_entries as usize * size_of::<u32>();
        cq.ring_sz = params.cq_off.cqes as usize + cqes_size(params.flags, params.cq_entries);
        let single = params.features & IORING_FEAT_SINGLE_MMAP != 0;
        if single {
            sq.ring_sz = sq.ring_sz.max(cq.ring_sz);
            cq.ring_sz = sq.ring_sz;
        }
        sq.sqes_sz = u32::try_from(sqes_size(params.flags, params.sq_entries)).map_err(|_| Errno::INVAL)?;
        if let Some((rings, sqes)) = map_both(fd, sq.ring_sz, sq.sqes_sz as usize).filter(|_| single) {
            (sq.ring_ptr, cq.ring_ptr, sq.sqes) = (rings, rings, sqes.cast());
            return Ok(());
        }
        sq.ring_ptr = map_area(fd, IORING_OFF_SQ_RING, sq.ring_sz)?;
        cq.ring_ptr = if single { sq.ring_ptr } else { map_area(fd, IORING_OFF_CQ_RING, cq.ring_sz)? };
        sq.sqes = map_area(fd, IORING_OFF_SQES, sq.sqes_sz as usize)?.cast();
        Ok(())
    };
    map_all().map_err(|errno| {
        unmap_sides(sq, cq);
        -errno.raw_os_error()
    })
}

/// Maps both areas of ring `fd` in one step. None if each area has to be mapped separately, because the ring is the
/// kernel's or its sizes differ from the expected ones.
fn map_both(fd: i32, ring_size: usize, sqes_size: usize) -> Option<(*mut c_void, *mut c_void)> {
    let [rings, sqes] = door::map_both(fd)?.ok()?;
    let pages = |bytes: usize| bytes.next_multiple_of(page_size());
    let (base, bytes) = (rings.0 as *mut c_void, rings.1 + sqes.1);
    if pages(ring_size) != pages(rings.1) || pages(sqes_size) != pages(sqes.1) {
        // SAFETY: the mapping that was just made.
        let _ = unsafe { munmap(base, bytes) };
        return None;
    }
    anyring_engine::memory::mapped::record(rings.0, bytes);
    Some((base, sqes.0 as *mut c_void))
}

/// Maps one area of ring `fd`. If the engine serves the ring, this is the engine's memory, otherwise the kernel's.
fn map_area(fd: i32, offset: u32, size: usize) -> Result<*mut c_void, Errno> {
    let again = |from| anyring_engine::memory::map_again(from, size);
    let (fd, offset) = match door::map_area(fd, u64::from(offset), again)? {
        Mapping::Another => (fd, u64::from(offset)),
        Mapping::File(file, at) => (file, at),
        Mapping::Made(area) => {
            anyring_engine::memory::mapped::record(area, size);
            return Ok(area as *mut c_void);
        }
    };
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is only handed to mmap(2), which refuses one that is no open ring or memfd.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // SAFETY: a new mapping at an address of the kernel's choice aliases no other memory.
    let area = unsafe {
        mmap(core::ptr::null_mut(), size, READ_WRITE, MapFlags::SHARED | MapFlags::POPULATE, fd, offset)
    }?;
    anyring_engine::memory::mapped::record(area as usize, size);
    Ok(area)
}

/// Points the two sides at the words in their memory, and fills the index array with the identity mapping that
/// submission relies on.
pub(super) fn point_into_memory(params: &Params, sq: &mut Sq, cq: &mut Cq) {
    let (base, off) = (sq.ring_ptr, &params.sq_off);
    sq.khead = Word::at(base, off.head);
    sq.ktail = Word::at(base, off.tail);
    sq.kring_mask = Word::at(base, off.ring_mask);
    sq.kring_entries = Word::at(base, off.ring_entries);
    sq.kflags = Word::at(base, off.flags);
    sq.kdropped = Word::at(base, off.dropped);
    sq.ring_mask = sq.kring_mask.load(Ordering::Relaxed);
    sq.ring_entries = sq.kring_entries.load(Ordering::Relaxed);
    if params.flags & IORING_SETUP_NO_SQARRAY == 0 {
        sq.array = Word::at(base, off.array).as_ptr();
        for index in 0..sq.ring_entries {
            Word::at(base, off.array + index * size_of::<u32>() as u32).store(index, Ordering::Relaxed);
        }
    }
    let (base, off) = (cq.ring_ptr, &params.cq_off);
    cq.khead = Word::at(base, off.head);
    cq.ktail = Word::at(base, off.tail);
    cq.kring_mask = Word::at(base, off.ring_mask);
    cq.kring_entries = Word::at(base, off.ring_entries);
    cq.koverflow = Word::at(base, off.overflow);
    cq.kflags = if off.flags == 0 { Word::NULL } else { Word::at(base, off.flags) };
    cq.cqes = Word::at(base, off.cqes).as_ptr().cast();
    cq.ring_mask = cq.kring_mask.load(Ordering::Relaxed);
    cq.ring_entries = cq.kring_entries.load(Ordering::Relaxed);
}

/// Unmaps the mappings that this library made for the ring, if any.
fn unmap(ring: &Ring) {
    if !ring.has(INT_PROGRAM_MEMORY) {
        unmap_sides(&ring.sq, &ring.cq);
    }
}

/// Unmaps the areas of two sides that have their own memory.
pub(super) fn unmap_sides(sq: &Sq, cq: &Cq) {
    let own_cq = if cq.ring_ptr == sq.ring_ptr { 0 } else { cq.ring_sz };
    let (mut ring_size, mut sqes_size) = (sq.ring_sz, sq.sqes_sz as usize);
    // Adjacent areas: unmap them in one call.
    let pages = ring_size.next_multiple_of(page_size());
    if ring_size != 0 && sqes_size != 0 && sq.ring_ptr.wrapping_byte_add(pages) == sq.sqes.cast() {
        (ring_size, sqes_size) = (pages + sqes_size, 0);
    }
    for (address, size) in [(sq.sqes.cast(), sqes_size), (sq.ring_ptr, ring_size), (cq.ring_ptr, own_cq)] {
        if !address.is_null() && size != 0 {
            // SAFETY: a whole mapping that setup made for this ring; the caller is done with the ring. After an error
            // (the program unmapped it itself) nothing is left to do.
            let _ = unsafe { munmap(address, size) };
        }
    }
}

/// Closes ring descriptor `fd`.
pub(super) fn close(fd: i32) {
    if !door::close(fd) {
        // SAFETY: the number is that of the ring that the program has released. Nothing in this library owns it.
        unsafe { rustix::io::close(fd) };
    }
}
