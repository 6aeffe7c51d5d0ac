//! io_uring_register(2) under liburing's names. These are cold functions, called by the program's thread that
//! registers.

use super::layout::{Cq, Ring, Sq, INT_ENTER_REGISTERED, INT_NO_IOWAIT, INT_REGISTER_REGISTERED};
use super::setup::{close, io_uring_queue_exit, io_uring_queue_init, map_ring, point_into_memory, unmap_sides};
use super::{guard, hand_on, ring as borrow};
use crate::door;
use anyring_abi::*;
use anyring_engine::os::calls;
use core::ffi::{c_int, c_uint, c_ushort, c_void};
use core::ptr::{null, null_mut};
use libc::{iovec, size_t};
use linux_raw_sys::io_uring::{
    io_uring_buf, io_uring_buf_reg, io_uring_buf_status, io_uring_clone_buffers as CloneBuffers,
    io_uring_file_index_range, io_uring_probe as Probe, io_uring_probe_op, io_uring_rsrc_register,
    io_uring_rsrc_update, io_uring_rsrc_update2,
};
use rustix::mm::{mmap_anonymous, munmap, MapFlags, ProtFlags};
use rustix::process::{setrlimit, Resource};

/// `IORING_REGISTER_SRC_REGISTERED`: the source of clone_buffers is a registered index.
const IORING_REGISTER_SRC_REGISTERED: u32 = 1;
/// The descriptor of register calls that concern no ring.
const NO_RING: u32 = u32::MAX;
/// Number of opcodes in a probe: all that fit into the SQE's byte.
const PROBE_OPCODES: usize = 256;

/// Makes a register call on `ring`, by its registered index if it has one and the kernel accepts an index.
fn register<T>(ring: &Ring, opcode: u32, arg: *const T, nr_args: u32) -> c_int {
    let (fd, opcode) = if ring.has(INT_REGISTER_REGISTERED) {
        (ring.enter_ring_fd.get(), opcode | IORING_REGISTER_USE_REGISTERED_RING)
    } else {
        (ring.ring_fd.get(), opcode)
    };
    door::register(fd as u32, opcode, arg.cast_mut().cast(), nr_args) as c_int
}

/// Makes a register call whose `nr_args` is the size of its argument.
fn register_sized<T>(ring: &Ring, opcode: u32, arg: &T) -> c_int {
    register(ring, opcode, arg, size_of::<T>() as u32)
}

/// Defines functions that only pass their arguments on.
macro_rules! pass_on {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) = $opcode:expr, $pointer:expr, $count:expr;)*) => { $(
        $(#[$doc])*
        #[no_mangle]
        pub unsafe extern "C" fn $name(ring: *mut Ring $(, $arg: $type)*) -> c_int {
            hand_on!($name(ring: *mut Ring $(, $arg: $type)*) -> c_int);
            // SAFETY: the caller's promise.
            guard(|| register(unsafe { borrow(ring) }, $opcode, $pointer, $count))
        }
    )* };
}

/// No argument.
const NOTHING: *const u8 = null();

pass_on! {
    /// io_uring_register_buffers(3).
    io_uring_register_buffers(iovecs: *const iovec, count: c_uint) = IORING_REGISTER_BUFFERS, iovecs, count;
    /// io_uring_unregister_buffers(3).
    io_uring_unregister_buffers() = IORING_UNREGISTER_BUFFERS, NOTHING, 0;
    /// io_uring_unregister_files(3).
    io_uring_unregister_files() = IORING_UNREGISTER_FILES, NOTHING, 0;
    /// io_uring_register_eventfd(3).
    io_uring_register_eventfd(fd: c_int) = IORING_REGISTER_EVENTFD, &fd, 1;
    /// io_uring_register_eventfd_async(3).
    io_uring_register_eventfd_async(fd: c_int) = IORING_REGISTER_EVENTFD_ASYNC, &fd, 1;
    /// io_uring_unregister_eventfd(3).
    io_uring_unregister_eventfd() = IORING_UNREGISTER_EVENTFD, NOTHING, 0;
    /// io_uring_register_probe: fills in `probe` for `count` opcodes.
    io_uring_register_probe(probe: *mut Probe, count: c_uint) = IORING_REGISTER_PROBE, probe, count;
    /// io_uring_register_personality: returns the credentials' id.
    io_uring_register_personality() = IORING_REGISTER_PERSONALITY, NOTHING, 0;
    /// io_uring_unregister_personality.
    io_uring_unregister_personality(id: c_int) = IORING_UNREGISTER_PERSONALITY, NOTHING, id as u32;
    /// io_uring_register_restrictions(3).
    io_uring_register_restrictions(restrictions: *mut c_void, count: c_uint)
        = IORING_REGISTER_RESTRICTIONS, restrictions, count;
    /// io_uring_enable_rings(3).
    io_uring_enable_rings() = IORING_REGISTER_ENABLE_RINGS, NOTHING, 0;
    /// io_uring_unregister_iowq_aff(3).
    io_uring_unregister_iowq_aff() = IORING_UNREGISTER_IOWQ_AFF, NOTHING, 0;
    /// io_uring_register_iowq_max_workers(3): sets two limits and returns the former two.
    io_uring_register_iowq_max_workers(limits: *mut c_uint) = IORING_REGISTER_IOWQ_MAX_WORKERS, limits, 2;
    /// io_uring_register_sync_cancel(3).
    io_uring_register_sync_cancel(what: *mut c_void) = IORING_REGISTER_SYNC_CANCEL, what, 1;
    /// io_uring_register_napi(3).
    io_uring_register_napi(napi: *mut c_void) = IORING_REGISTER_NAPI, napi, 1;
    /// io_uring_unregister_napi(3).
    io_uring_unregister_napi(napi: *mut c_void) = IORING_UNREGISTER_NAPI, napi, 1;
    /// io_uring_register_clock(3).
    io_uring_register_clock(clock: *mut c_void) = IORING_REGISTER_CLOCK, clock, 0;
    /// io_uring_register_ifq(3).
    io_uring_register_ifq(queue: *mut c_void) = IORING_REGISTER_ZCRX_IFQ, queue, 1;
    /// io_uring_register_zcrx_ctrl(3).
    io_uring_register_zcrx_ctrl(control: *mut c_void) = IORING_REGISTER_ZCRX_CTRL, control, 0;
    /// io_uring_register_region(3).
    io_uring_register_region(region: *mut c_void) = IORING_REGISTER_MEM_REGION, region, 1;
    /// io_uring_register_bpf_filter(3): a filter of this ring.
    io_uring_register_bpf_filter(filter: *mut c_void) = IORING_REGISTER_BPF_FILTER, filter, 1;
    /// io_uring_unregister_buf_ring(3).
    io_uring_unregister_buf_ring(group: c_int)
        = IORING_UNREGISTER_PBUF_RING, &buf_reg(null_mut(), 0, group), 1;
    /// io_uring_register_file_alloc_range(3).
    io_uring_register_file_alloc_range(off: c_uint, len: c_uint)
        = IORING_REGISTER_FILE_ALLOC_RANGE, &io_uring_file_index_range { off, len, resv: 0 }, 0;
    /// io_uring_register_files_update(3): returns the number of files updated.
    io_uring_register_files_update(offset: c_uint, files: *const c_int, count: c_uint)
        = IORING_REGISTER_FILES_UPDATE, &rsrc_update(offset, files as u64), count;
}

/// Defines functions that concern no ring.
macro_rules! pass_on_blind {
    ($($(#[$doc:meta])* $name:ident($type:ty) = $opcode:expr, $count:expr;)*) => { $(
        $(#[$doc])*
        #[no_mangle]
        pub unsafe extern "C" fn $name(arg: *mut $type) -> c_int {
            guard(|| door::register(NO_RING, $opcode, arg.cast(), $count) as c_int)
        }
    )* };
}

pass_on_blind! {
    /// io_uring_register_sync_msg(3): sends a MSG_RING SQE without a ring.
    io_uring_register_sync_msg(Sqe) = IORING_REGISTER_SEND_MSG_RING, 1;
    /// io_uring_register_bpf_filter_task(3): a filter of the calling task's later rings.
    io_uring_register_bpf_filter_task(c_void) = IORING_REGISTER_BPF_FILTER, 1;
    /// io_uring_register_query(3).
    io_uring_register_query(c_void) = IORING_REGISTER_QUERY, 0;
}

/// io_uring_setup(2). Returns `-errno` on failure.
#[no_mangle]
pub unsafe extern "C" fn io_uring_setup(entries: c_uint, params: *mut Params) -> c_int {
    guard(|| door::setup(entries, params, false) as c_int)
}

/// io_uring_register(2). Returns `-errno` on failure.
#[no_mangle]
pub unsafe extern "C" fn io_uring_register(
    fd: c_uint,
    opcode: c_uint,
    arg: *const c_void,
    nr_args: c_uint,
) -> c_int {
    guard(|| door::register(fd, opcode, arg.cast_mut(), nr_args) as c_int)
}

fn rsrc_update(offset: u32, data: u64) -> io_uring_rsrc_update {
    io_uring_rsrc_update { offset, resv: 0, data }
}

fn rsrc_update2<T>(offset: u32, data: *const T, tags: *const u64, nr: u32) -> io_uring_rsrc_update2 {
    io_uring_rsrc_update2 { offset, resv: 0, data: data as u64, tags: tags as u64, nr, resv2: 0 }
}

fn rsrc_register<T>(nr: u32, flags: u32, data: *const T, tags: *const u64) -> io_uring_rsrc_register {
    io_uring_rsrc_register { nr, flags, resv2: 0, data: data as u64, tags: tags as u64 }
}

/// io_uring_register_buffers_tags(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_register_buffers_tags(
    ring: *mut Ring,
    iovecs: *const iovec,
    tags: *const u64,
    count: c_uint,
) -> c_int {
    let buffers = rsrc_register(count, 0, iovecs, tags);
    // SAFETY: the caller's promise.
    guard(|| register_sized(unsafe { borrow(ring) }, IORING_REGISTER_BUFFERS2, &buffers))
}

/// io_uring_register_buffers_sparse(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_register_buffers_sparse(ring: *mut Ring, count: c_uint) -> c_int {
    let buffers = rsrc_register(count, IORING_RSRC_REGISTER_SPARSE, NOTHING, null());
    // SAFETY: the caller's promise.
    guard(|| register_sized(unsafe { borrow(ring) }, IORING_REGISTER_BUFFERS2, &buffers))
}

/// io_uring_register_buffers_update_tag(3): returns the number of buffers updated.
#[no_mangle]
pub unsafe extern "C" fn io_uring_register_buffers_update_tag(
    ring: *mut Ring,
    offset: c_uint,
    iovecs: *const iovec,
    tags: *const u64,
    count: c_uint,
) -> c_int {
    let update = rsrc_update2(offset, iovecs, tags, count);
    // SAFETY: the caller's promise.
    guard(|| register_sized(unsafe { borrow(ring) }, IORING_REGISTER_BUFFERS_UPDATE, &update))
}

/// Registers `count` files. If the soft limit on descriptors prevents that, raises the limit, as liburing documents,
/// and tries once more.
fn register_files(count: u32, try_to: impl Fn() -> c_int) -> c_int {
    let answer = try_to();
    if answer != -libc::EMFILE {
        return answer;
    }
    let mut limit = calls::getrlimit(Resource::Nofile);
    if let Some(current) = limit.current.filter(|current| *current < u64::from(count)) {
        limit.current = Some(current + u64::from(count));
        // Above the hard limit this is refused, and the second attempt returns EMFILE again.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    try_to()
}

/// io_uring_register_files(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_register_files(ring: *mut Ring, files: *const c_int, count: c_uint) -> c_int {
    hand_on!(io_uring_register_files(ring: *mut Ring, files: *const c_int, count: c_uint) -> c_int);
    // SAFETY: the caller's promise.
    guard(|| register_files(count, || register(unsafe { borrow(ring) }, IORING_REGISTER_FILES, files, count)))
}

/// io_uring_register_files_tags(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_register_files_tags(
    ring: *mut Ring,
    files: *const c_int,
    tags: *const u64,
    count: c_uint,
) -> c_int {
    let table = rsrc_register(count, 0, files, tags);
    // SAFETY: the caller's promise.
    guard(|| register_files(count, || register_sized(unsafe { borrow(ring) }, IORING_REGISTER_FILES2, &table)))
}

/// io_uring_register_files_sparse(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_register_files_sparse(ring: *mut Ring, count: c_uint) -> c_int {
    let table = rsrc_register(count, IORING_RSRC_REGISTER_SPARSE, NOTHING, null());
    // SAFETY: the caller's promise.
    guard(|| register_files(count, || register_sized(unsafe { borrow(ring) }, IORING_REGISTER_FILES2, &table)))
}

/// io_uring_register_files_update_tag(3): returns the number of files updated.
#[no_mangle]
pub unsafe extern "C" fn io_uring_register_files_update_tag(
    ring: *mut Ring,
    offset: c_uint,
    files: *const c_int,
    tags: *const u64,
    count: c_uint,
) -> c_int {
    let update = rsrc_update2(offset, files, tags, count);
    // SAFETY: the caller's promise.
    guard(|| register_sized(unsafe { borrow(ring) }, IORING_REGISTER_FILES_UPDATE2, &update))
}

/// io_uring_register_iowq_aff(3): `size` is in bytes.
#[no_mangle]
pub unsafe extern "C" fn io_uring_register_iowq_aff(ring: *mut Ring, size: size_t, mask: *const c_void) -> c_int {
    if size >= 1 << 31 {
        return -libc::EINVAL;
    }
    // SAFETY: the caller's promise.
    guard(|| register(unsafe { borrow(ring) }, IORING_REGISTER_IOWQ_AFF, mask, size as u32))
}

/// io_uring_register_ring_fd(3): returns 1.
#[no_mangle]
pub unsafe extern "C" fn io_uring_register_ring_fd(ring: *mut Ring) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        if ring.has(INT_ENTER_REGISTERED) {
            return -libc::EEXIST;
        }
        let mut update = rsrc_update(u32::MAX, ring.ring_fd.get() as u64);
        let answer = register(ring, IORING_REGISTER_RING_FDS, &raw mut update, 1);
        if answer == 1 {
            ring.enter_ring_fd.set(update.offset as i32);
            let mut int_flags = ring.int_flags.get() | INT_ENTER_REGISTERED;
            if ring.features & IORING_FEAT_REG_REG_RING != 0 {
                int_flags |= INT_REGISTER_REGISTERED;
            }
            ring.int_flags.set(int_flags);
        }
        answer
    })
}

/// io_uring_unregister_ring_fd(3): returns 1.
#[no_mangle]
pub unsafe extern "C" fn io_uring_unregister_ring_fd(ring: *mut Ring) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| unregister_ring_fd(unsafe { borrow(ring) }))
}

pub(super) fn unregister_ring_fd(ring: &Ring) -> c_int {
    if !ring.has(INT_ENTER_REGISTERED) {
        return -libc::EINVAL;
    }
    let update = rsrc_update(ring.enter_ring_fd.get() as u32, 0);
    let answer = register(ring, IORING_UNREGISTER_RING_FDS, &update, 1);
    if answer == 1 {
        ring.enter_ring_fd.set(ring.ring_fd.get());
        ring.int_flags.set(ring.int_flags.get() & !(INT_ENTER_REGISTERED | INT_REGISTER_REGISTERED));
    }
    answer
}

/// io_uring_close_ring_fd(3): keeps only the registered index; returns 1.
#[no_mangle]
pub unsafe extern "C" fn io_uring_close_ring_fd(ring: *mut Ring) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        if ring.features & IORING_FEAT_REG_REG_RING == 0 {
            return -libc::EOPNOTSUPP;
        }
        if !ring.has(INT_ENTER_REGISTERED) {
            return -libc::EINVAL;
        }
        if ring.ring_fd.get() == -1 {
            return -libc::EBADF;
        }
        close(ring.ring_fd.get());
        ring.ring_fd.set(-1);
        1
    })
}

fn buf_reg(memory: *mut c_void, ring_entries: u32, group: c_int) -> io_uring_buf_reg {
    io_uring_buf_reg { ring_addr: memory as u64, ring_entries, bgid: group as u16, flags: 0, resv: [0; 3] }
}

/// io_uring_register_buf_ring(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_register_buf_ring(
    ring: *mut Ring,
    description: *mut io_uring_buf_reg,
    flags: c_uint,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (ring, description) = unsafe { (borrow(ring), &mut *description) };
        description.flags |= flags as u16;
        register(ring, IORING_REGISTER_PBUF_RING, description, 1)
    })
}

/// io_uring_setup_buf_ring(3): returns null on an error, which goes to `error`.
#[no_mangle]
pub unsafe extern "C" fn io_uring_setup_buf_ring(
    ring: *mut Ring,
    entries: c_uint,
    group: c_int,
    flags: c_uint,
    error: *mut c_int,
) -> *mut io_uring_buf {
    guard(|| {
        // SAFETY: the caller's promise.
        let (ring, error) = unsafe { (borrow(ring), &mut *error) };
        let size = entries as usize * size_of::<io_uring_buf>();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing. It is zeroed: tail 0.
        let memory = match unsafe { mmap_anonymous(null_mut(), size, protection, MapFlags::PRIVATE) } {
            Ok(memory) => memory,
            Err(errno) => {
                *error = -errno.raw_os_error();
                return null_mut();
            }
        };
        let mut description = buf_reg(memory, entries, group);
        description.flags = flags as u16;
        *error = register(ring, IORING_REGISTER_PBUF_RING, &description, 1);
        if *error == 0 {
            return memory.cast();
        }
        // SAFETY: the mapping made above, which the failed registration did not keep.
        let _ = unsafe { munmap(memory, size) };
        null_mut()
    })
}

/// io_uring_free_buf_ring(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_free_buf_ring(
    ring: *mut Ring,
    memory: *mut io_uring_buf,
    entries: c_uint,
    group: c_int,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let answer =
            register(unsafe { borrow(ring) }, IORING_UNREGISTER_PBUF_RING, &buf_reg(null_mut(), 0, group), 1);
        if answer == 0 {
            // SAFETY: the caller's promise: the mapping of setup_buf_ring for that many entries, now unregistered.
            let _ = unsafe { munmap(memory.cast(), entries as usize * size_of::<io_uring_buf>()) };
        }
        answer
    })
}

/// io_uring_buf_ring_head(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_buf_ring_head(ring: *mut Ring, group: c_int, head: *mut c_ushort) -> c_int {
    guard(|| {
        let mut status = io_uring_buf_status { buf_group: group as u32, head: 0, resv: [0; 8] };
        // SAFETY: the caller's promise.
        let answer = register(unsafe { borrow(ring) }, IORING_REGISTER_PBUF_STATUS, &raw mut status, 1);
        if answer == 0 {
            // SAFETY: the caller's promise: valid for writes.
            unsafe { head.write(status.head as c_ushort) };
        }
        answer
    })
}

/// io_uring_clone_buffers(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_clone_buffers(to: *mut Ring, from: *mut Ring) -> c_int {
    // SAFETY: the caller's promise, passed on.
    unsafe { __io_uring_clone_buffers_offset(to, from, 0, 0, 0, IORING_REGISTER_SRC_REGISTERED) }
}

/// io_uring_clone_buffers(3) with flags.
#[no_mangle]
pub unsafe extern "C" fn __io_uring_clone_buffers(to: *mut Ring, from: *mut Ring, flags: c_uint) -> c_int {
    // SAFETY: the caller's promise, passed on.
    unsafe { __io_uring_clone_buffers_offset(to, from, 0, 0, 0, flags) }
}

/// io_uring_clone_buffers_offset(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_clone_buffers_offset(
    to: *mut Ring,
    from: *mut Ring,
    to_offset: c_uint,
    from_offset: c_uint,
    count: c_uint,
    flags: c_uint,
) -> c_int {
    let flags = flags | IORING_REGISTER_SRC_REGISTERED;
    // SAFETY: the caller's promise, passed on.
    unsafe { __io_uring_clone_buffers_offset(to, from, to_offset, from_offset, count, flags) }
}

/// io_uring_clone_buffers_offset(3): takes the source by its registered index only if `flags` allow that.
#[no_mangle]
pub unsafe extern "C" fn __io_uring_clone_buffers_offset(
    to: *mut Ring,
    from: *mut Ring,
    to_offset: c_uint,
    from_offset: c_uint,
    count: c_uint,
    flags: c_uint,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (to, from) = unsafe { (borrow(to), borrow(from)) };
        let by_index = flags & IORING_REGISTER_SRC_REGISTERED != 0 && from.has(INT_REGISTER_REGISTERED);
        let (src_fd, flags) = if by_index {
            (from.enter_ring_fd.get(), flags)
        } else {
            (from.ring_fd.get(), flags & !IORING_REGISTER_SRC_REGISTERED)
        };
        let clone = CloneBuffers {
            src_fd: src_fd as u32,
            flags,
            src_off: from_offset,
            dst_off: to_offset,
            nr: count,
            pad: [0; 3],
        };
        register(to, IORING_REGISTER_CLONE_BUFFERS, &clone, 1)
    })
}

/// io_uring_resize_rings(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_resize_rings(ring: *mut Ring, params: *mut Params) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise; resizing needs the ring for itself, so no other thread uses it now.
        let (ring, params) = unsafe { (&mut *ring, &mut *params) };
        if ring.flags & IORING_SETUP_NO_MMAP != 0 {
            return -libc::EINVAL;
        }
        params.sq_off = SqringOffsets::default();
        params.cq_off = CqringOffsets::default();
        let answer = register(ring, IORING_REGISTER_RESIZE_RINGS, &raw mut *params, 1);
        if answer < 0 {
            params.flags = 0;
            return answer;
        }
        let shape = Params { flags: ring.flags, features: ring.features, ..*params };
        params.flags = 0;
        let (mut sq, mut cq) = (Sq::empty(), Cq::empty());
        if let Err(error) = map_ring(ring.ring_fd.get(), &shape, &mut sq, &mut cq) {
            return error;
        }
        point_into_memory(&shape, &mut sq, &mut cq);
        sq.sqe_head.set(ring.sq.sqe_head.get());
        sq.sqe_tail.set(ring.sq.sqe_tail.get());
        unmap_sides(&ring.sq, &ring.cq);
        (ring.sq, ring.cq) = (sq, cq);
        0
    })
}

/// io_uring_register_wait_reg, which never worked in a released kernel. liburing refuses it from 2.10 on, and so does
/// this function.
#[no_mangle]
pub unsafe extern "C" fn io_uring_register_wait_reg(_ring: *mut Ring, _reg: *mut c_void, _nr: c_int) -> c_int {
    -libc::EINVAL
}

/// io_uring_set_iowait(3): sets whether the kernel accounts waits as I/O wait.
#[no_mangle]
pub unsafe extern "C" fn io_uring_set_iowait(ring: *mut Ring, enable: bool) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        if ring.features & IORING_FEAT_NO_IOWAIT == 0 {
            return -libc::EOPNOTSUPP;
        }
        let int_flags = ring.int_flags.get();
        ring.int_flags.set(if enable { int_flags & !INT_NO_IOWAIT } else { int_flags | INT_NO_IOWAIT });
        0
    })
}

/// io_uring_get_probe_ring: returns a probe that the program frees, or null.
#[no_mangle]
pub unsafe extern "C" fn io_uring_get_probe_ring(ring: *mut Ring) -> *mut Probe {
    hand_on!(io_uring_get_probe_ring(ring: *mut Ring) -> *mut Probe);
    guard(|| {
        let size = size_of::<Probe>() + PROBE_OPCODES * size_of::<io_uring_probe_op>();
        // SAFETY: calloc has no preconditions. The C allocator, because programs also free a probe with free(3).
        let probe: *mut Probe = unsafe { libc::calloc(1, size) }.cast();
        if probe.is_null() {
            return probe;
        }
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        if register(ring, IORING_REGISTER_PROBE, probe, PROBE_OPCODES as u32) >= 0 {
            return probe;
        }
        // SAFETY: allocated above and not handed out.
        unsafe { libc::free(probe.cast()) };
        null_mut()
    })
}

/// io_uring_get_probe(3): returns a probe that the program frees, or null.
#[no_mangle]
pub unsafe extern "C" fn io_uring_get_probe() -> *mut Probe {
    hand_on!(io_uring_get_probe() -> *mut Probe);
    guard(|| {
        let mut ring = Ring::empty();
        // SAFETY: the ring lives here, and no other code has it.
        unsafe {
            if io_uring_queue_init(2, &mut ring, 0) < 0 {
                return null_mut();
            }
            let probe = io_uring_get_probe_ring(&mut ring);
            io_uring_queue_exit(&mut ring);
            probe
        }
    })
}

/// io_uring_free_probe(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_free_probe(probe: *mut Probe) {
    // SAFETY: the caller's promise: from one of the two functions above, or null.
    guard(|| unsafe { libc::free(probe.cast()) });
}
