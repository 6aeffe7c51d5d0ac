//! Serves io_uring_register(2).

mod clone_buffers;
mod filter;
mod query;
mod sync_cancel;

use crate::forced::{point, Point};
use crate::issue::files::update_files;
use crate::issue::msg_ring;
use crate::mutation::{mutated, Mutation};
use crate::op::msg_ring::MsgRing;
use crate::op::{self, is_supported, Verdict};
use crate::os::{calls, version, Clock};
use crate::os::{is_eventfd, user_read, user_read_slice, user_write};
use crate::resource::buffers::{Buffers, MAX_BUFFERS};
use crate::resource::files::{Files, MAX_FILES};
use crate::resource::restrictions::Restrictions;
use crate::resource::restrictions::REGISTER_CALLS;
use crate::resource::table::{Table, Update};
use crate::resource::wait_region::Region;
use crate::ring::resize;
use crate::ring::table;
use crate::ring::{Ring, RingGuard};
use crate::wq;
use crate::{descriptors, event, process, thread, Errno};
use anyring_abi::*;
use core::sync::atomic::Ordering;

/// Serves a call of io_uring_register(2). `fd` is the ring's number, or the calling thread's registered index with
/// `IORING_REGISTER_USE_REGISTERED_RING`.
pub fn register(fd: u32, opcode: u32, arg: u64, count: u32) -> Result<u32, Errno> {
    process::notice_fork();
    if fd as i32 == -1 && opcode & IORING_REGISTER_USE_REGISTERED_RING == 0 {
        return register_without_ring(opcode, arg, count);
    }
    let call = opcode & !IORING_REGISTER_USE_REGISTERED_RING;
    if call >= REGISTER_CALLS {
        return Err(Errno::INVAL);
    }
    let ring = registering(fd, opcode)?;
    let answer = register_on(ring, call, arg, count);
    if event::wanted() {
        record(ring, call, answer);
    }
    answer
}

/// Records the call and its result for a tracer.
#[cold]
fn record(ring: &'static Ring, opcode: u32, answer: Result<u32, Errno>) {
    let Ok(mut guard) = ring.lock() else { return };
    let files = guard.files.as_ref().map_or(0, Files::size);
    let buffers = guard.buffers.as_ref().map_or(0, Buffers::size);
    guard.record(|it| it.register(opcode, files, buffers, answer));
}

fn register_on(ring: &'static Ring, opcode: u32, arg: u64, count: u32) -> Result<u32, Errno> {
    let mut guard = ring.lock()?;
    // A thread may give back its registered index of a broken ring, as it may close the ring.
    if guard.is_broken() && opcode != IORING_UNREGISTER_RING_FDS {
        return Err(guard.refuse_call());
    }
    point(Point::Register);
    if guard.issuer != 0 && guard.issuer != thread::id() {
        return Err(Errno::EXIST);
    }
    if let Some(restrictions) = guard.enforced() {
        restrictions.check_register(opcode)?;
    }
    match opcode {
        IORING_REGISTER_BUFFERS => register_buffers(&mut guard, Table { address: arg, count, tags: 0 }, false),
        IORING_REGISTER_BUFFERS2 => {
            let (table, sparse) = Table::read(arg, count)?;
            register_buffers(&mut guard, table, sparse)
        }
        IORING_REGISTER_BUFFERS_UPDATE => update_buffers(&mut guard, Update::read(arg, count)?),
        IORING_UNREGISTER_BUFFERS => {
            no_argument(arg, count)?;
            guard.buffers.take().map(|_| 0).ok_or(Errno::NXIO)
        }
        IORING_REGISTER_FILES => register_files(&mut guard, Table { address: arg, count, tags: 0 }, false),
        IORING_REGISTER_FILES2 => {
            let (table, sparse) = Table::read(arg, count)?;
            register_files(&mut guard, table, sparse)
        }
        IORING_REGISTER_FILES_UPDATE => update_files(&mut guard, Update::read_short(arg, count)?),
        IORING_REGISTER_FILES_UPDATE2 => update_files(&mut guard, Update::read(arg, count)?),
        IORING_UNREGISTER_FILES => {
            no_argument(arg, count)?;
            guard.files.take().map(|_| 0).ok_or(Errno::NXIO)
        }
        IORING_REGISTER_FILE_ALLOC_RANGE => set_alloc_range(&mut guard, arg, count),
        IORING_REGISTER_EVENTFD => register_eventfd(&mut guard, arg, count, false),
        IORING_REGISTER_EVENTFD_ASYNC => register_eventfd(&mut guard, arg, count, true),
        IORING_UNREGISTER_EVENTFD => {
            no_argument(arg, count)?;
            let (eventfd, _) = guard.eventfd.take().ok_or(Errno::NXIO)?;
            descriptors::close(eventfd);
            Ok(0)
        }
        IORING_REGISTER_PROBE => probe(arg, count),
        IORING_REGISTER_ENABLE_RINGS => {
            no_argument(arg, count)?;
            enable(&mut guard)
        }
        IORING_REGISTER_CLOCK => choose_clock(&mut guard, arg, count),
        IORING_REGISTER_MEM_REGION => {
            one_argument(arg, count)?;
            if guard.wait_region.is_some() {
                return Err(Errno::BUSY);
            }
            guard.wait_region = Some(Region::register(arg, guard.disabled)?);
            Ok(0)
        }
        IORING_REGISTER_RESIZE_RINGS => {
            one_argument(arg, count)?;
            resize::resize(&mut guard, arg)
        }
        IORING_REGISTER_CLONE_BUFFERS => {
            one_argument(arg, count)?;
            clone_buffers::clone(guard, arg)
        }
        IORING_REGISTER_QUERY => query::query(arg, count),
        IORING_REGISTER_PERSONALITY => {
            no_argument(arg, count)?;
            guard.personalities.register()
        }
        IORING_UNREGISTER_PERSONALITY => {
            no_argument(arg, 0)?;
            guard.personalities.unregister(count)
        }
        IORING_REGISTER_IOWQ_MAX_WORKERS => limit_workers(arg, count),
        IORING_REGISTER_IOWQ_AFF => pin_workers(arg, count),
        IORING_UNREGISTER_IOWQ_AFF => {
            no_argument(arg, count)?;
            wq::pin(&[0xff; MAX_CPU_BYTES]);
            Ok(0)
        }
        IORING_REGISTER_NAPI => {
            one_argument(arg, count)?;
            // `io_register_napi` in io_uring/napi.c makes this check before it reads the argument.
            if guard.ring().has(IORING_SETUP_IOPOLL) {
                return Err(Errno::INVAL);
            }
            guard.napi.register(arg)
        }
        IORING_UNREGISTER_NAPI => guard.napi.unregister(arg, count),
        IORING_REGISTER_RESTRICTIONS => restrict(&mut guard, arg, count),
        IORING_REGISTER_PBUF_RING => register_buffer_ring(&mut guard, BufferRingRequest::read(arg, count)?),
        IORING_UNREGISTER_PBUF_RING => {
            let request = BufferRingRequest::read(arg, count)?;
            if request.flags != 0 {
                return Err(Errno::INVAL);
            }
            guard.groups.unregister(request.group)
        }
        IORING_REGISTER_PBUF_STATUS => report_buffer_ring(&mut guard, arg, count),
        IORING_REGISTER_RING_FDS => ring_numbers(arg, count, true),
        IORING_UNREGISTER_RING_FDS => ring_numbers(arg, count, false),
        IORING_REGISTER_SYNC_CANCEL => {
            one_argument(arg, count)?;
            sync_cancel::cancel(guard, arg)
        }
        IORING_REGISTER_ZCRX_IFQ => {
            one_argument(arg, count)?;
            Err(Errno::OPNOTSUPP) // as in a kernel built without CONFIG_IO_URING_ZCRX
        }
        IORING_REGISTER_BPF_FILTER if version::has_later_names() => filter::register(&mut guard, arg, count),
        // The answer of a kernel whose ring has no network card queue.
        IORING_REGISTER_ZCRX_CTRL if version::has_later_names() => Err(Errno::NXIO),
        _ => Err(Errno::INVAL),
    }
}

/// Returns the ring that a call names.
pub fn registering(fd: u32, opcode: u32) -> Result<&'static Ring, Errno> {
    let number = match opcode & IORING_REGISTER_USE_REGISTERED_RING {
        0 => fd as i32,
        _ => process::registered_ring_number(fd)?,
    };
    let known = table::ring(number).or_else(|| table::adopt(number));
    known.ok_or_else(|| crate::wait::enter::not_a_ring(number))
}

/// The most bytes of a CPU mask that the engine reads.
const MAX_CPU_BYTES: usize = 128;

/// Serves IORING_REGISTER_IOWQ_MAX_WORKERS: sets the two limits and returns the previous limits in their place.
fn limit_workers(arg: u64, count: u32) -> Result<u32, Errno> {
    if arg == 0 || count != 2 {
        return Err(Errno::INVAL);
    }
    let limits: [u32; 2] = user_read(arg)?;
    if limits.iter().any(|limit| *limit > i32::MAX as u32) {
        return Err(Errno::INVAL);
    }
    user_write(arg, &wq::limit(limits)).map(|()| 0)
}

/// Serves IORING_REGISTER_IOWQ_AFF. `arg` is the address of a CPU mask of `bytes` bytes.
fn pin_workers(arg: u64, bytes: u32) -> Result<u32, Errno> {
    if arg == 0 || bytes == 0 {
        return Err(Errno::INVAL);
    }
    let mut cpus = [0u8; MAX_CPU_BYTES];
    user_read_slice(arg, &mut cpus[..MAX_CPU_BYTES.min(bytes as usize)])?;
    wq::pin(&cpus);
    Ok(0)
}

fn no_argument(arg: u64, count: u32) -> Result<(), Errno> {
    if arg != 0 || count != 0 {
        return Err(Errno::INVAL);
    }
    Ok(())
}

fn one_argument(arg: u64, count: u32) -> Result<(), Errno> {
    if arg == 0 || count != 1 {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// `struct io_uring_buf_reg`: address, number of entries, group, flags, `min_left`, padding.
struct BufferRingRequest {
    address: u64,
    entries: u32,
    group: u16,
    flags: u16,
    min_left: u32,
}

impl BufferRingRequest {
    fn read(arg: u64, count: u32) -> Result<BufferRingRequest, Errno> {
        if arg == 0 || count != 1 {
            return Err(Errno::INVAL);
        }
        let [address, rest]: [u64; 2] = user_read(arg)?;
        let [word, padding @ ..]: [u64; 3] = user_read(arg + 16)?;
        let (min_left, padding) = (word as u32, (word >> 32, padding));
        if padding != (0, [0; 2]) {
            return Err(Errno::INVAL);
        }
        let (entries, group, flags) = (rest as u32, (rest >> 32) as u16, (rest >> 48) as u16);
        Ok(BufferRingRequest { address, entries, group, flags, min_left })
    }
}

fn register_buffer_ring(guard: &mut RingGuard, request: BufferRingRequest) -> Result<u32, Errno> {
    if request.flags & !(IOU_PBUF_RING_MMAP | IOU_PBUF_RING_INC) != 0 {
        return Err(Errno::INVAL);
    }
    let address = (request.flags & IOU_PBUF_RING_MMAP == 0).then_some(request.address);
    let incremental = (request.flags & IOU_PBUF_RING_INC != 0).then_some(request.min_left);
    if incremental.is_none() && request.min_left != 0 {
        return Err(Errno::INVAL);
    }
    guard.groups.register(request.group, address, request.entries, incremental)
}

/// `struct io_uring_buf_status`: group, head, padding.
fn report_buffer_ring(guard: &mut RingGuard, arg: u64, count: u32) -> Result<u32, Errno> {
    if arg == 0 || count != 1 {
        return Err(Errno::INVAL);
    }
    let group: u32 = user_read(arg)?;
    let padding: [u64; 4] = user_read(arg + 8)?;
    if padding != [0; 4] {
        return Err(Errno::INVAL);
    }
    let head = guard.groups.head(u16::try_from(group).map_err(|_| Errno::NOENT)?)?;
    user_write(arg + 4, &u32::from(head)).map(|()| 0)
}

fn register_buffers(guard: &mut RingGuard, table: Table, sparse: bool) -> Result<u32, Errno> {
    if table.address == 0 && !sparse {
        return Err(Errno::FAULT);
    }
    if guard.buffers.is_some() {
        return Err(Errno::BUSY);
    }
    if table.count == 0 || table.count > MAX_BUFFERS {
        return Err(Errno::INVAL);
    }
    guard.buffers = Some(Buffers::new(guard.ring(), &table)?);
    Ok(0)
}

fn update_buffers(guard: &mut RingGuard, update: Update) -> Result<u32, Errno> {
    let end = update.end()?;
    let ring = guard.ring();
    let buffers = guard.buffers.as_mut().ok_or(Errno::NXIO)?;
    if end > buffers.slot_count() {
        return Err(Errno::INVAL);
    }
    buffers.update(ring, &update)
}

fn register_files(guard: &mut RingGuard, table: Table, sparse: bool) -> Result<u32, Errno> {
    if table.address == 0 && !sparse {
        return Err(Errno::FAULT);
    }
    if guard.files.is_some() {
        return Err(Errno::BUSY);
    }
    if table.count == 0 {
        return Err(Errno::INVAL);
    }
    if table.count > MAX_FILES || u64::from(table.count) > descriptor_limit() {
        return Err(Errno::MFILE);
    }
    guard.files = Some(Files::new(guard.ring(), &table)?);
    guard.forget_before(0..MAX_FILES);
    Ok(0)
}

/// `struct io_uring_file_index_range`: first slot, length, padding.
fn set_alloc_range(guard: &mut RingGuard, arg: u64, count: u32) -> Result<u32, Errno> {
    if arg == 0 || count != 0 {
        return Err(Errno::INVAL);
    }
    let [range, padding]: [u64; 2] = user_read(arg)?;
    if padding != 0 {
        return Err(Errno::INVAL);
    }
    match (guard.files.as_mut(), range) {
        (Some(files), _) => files.set_range(range as u32, (range >> 32) as u32).map(|()| 0),
        (None, 0) => Ok(0), // an empty range fits even without registered files
        (None, _) => Err(Errno::INVAL),
    }
}

/// Serves `IORING_REGISTER_ENABLE_RINGS`. On a ring for a single issuer, the thread that enables the ring becomes the
/// issuer.
fn enable(guard: &mut RingGuard) -> Result<u32, Errno> {
    if !core::mem::take(&mut guard.disabled) {
        return Err(Errno::BADFD);
    }
    if guard.ring().has(IORING_SETUP_SINGLE_ISSUER) {
        guard.issuer = thread::id();
    }
    guard.ring().flags.fetch_and(!IORING_SETUP_R_DISABLED, Ordering::Relaxed);
    if guard.is_polled() {
        guard.ring().nudge_poller();
    }
    Ok(0)
}

/// Serves `IORING_REGISTER_RESTRICTIONS`.
fn restrict(guard: &mut RingGuard, arg: u64, count: u32) -> Result<u32, Errno> {
    if !guard.disabled {
        return Err(Errno::BADFD);
    }
    if guard.restrictions.as_ref().is_some_and(|restrictions| restrictions.are_registered()) {
        return Err(Errno::BUSY);
    }
    let mut read = Restrictions::read(arg, count)?;
    let restrictions = guard.restrictions.get_or_insert_default();
    read.filters = core::mem::take(&mut restrictions.filters);
    **restrictions = read;
    Ok(0)
}

/// Serves `IORING_REGISTER_CLOCK`. The argument is a `struct io_uring_clock_register`: the clock's id and padding.
fn choose_clock(guard: &mut RingGuard, arg: u64, count: u32) -> Result<u32, Errno> {
    if arg == 0 || count != 0 {
        return Err(Errno::INVAL);
    }
    let [head, padding]: [u64; 2] = user_read(arg)?;
    guard.clock = match (head, padding) {
        (clock, 0) if clock == libc::CLOCK_MONOTONIC as u64 => Clock::Monotonic,
        (clock, 0) if clock == libc::CLOCK_BOOTTIME as u64 => Clock::Boottime,
        _ => return Err(Errno::INVAL),
    };
    Ok(0)
}

fn register_eventfd(guard: &mut RingGuard, arg: u64, count: u32, only_asynchronous: bool) -> Result<u32, Errno> {
    if count != 1 {
        return Err(Errno::INVAL);
    }
    if guard.eventfd.is_some() {
        return Err(Errno::BUSY);
    }
    let fd = descriptors::of_program(user_read(arg)?)?;
    let eventfd = descriptors::duplicate(fd)?;
    if !is_eventfd(eventfd) {
        descriptors::close(eventfd);
        return Err(Errno::INVAL);
    }
    guard.eventfd = Some((eventfd, only_asynchronous));
    Ok(0)
}

/// Returns RLIMIT_NOFILE, which also bounds the registered files.
fn descriptor_limit() -> u64 {
    calls::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Serves calls that need no ring. For `IORING_REGISTER_SEND_MSG_RING`, `arg` is the address of an SQE. Source:
/// `io_uring_sync_msg_ring` in io_uring/msg_ring.c.
fn register_without_ring(opcode: u32, arg: u64, count: u32) -> Result<u32, Errno> {
    if opcode == IORING_REGISTER_QUERY {
        return query::query(arg, count);
    }
    if opcode != IORING_REGISTER_SEND_MSG_RING || count != 1 {
        return Err(Errno::INVAL);
    }
    let sqe: Sqe = user_read(arg)?;
    if sqe.flags != 0 || sqe.opcode != Opcode::MsgRing as u8 {
        return Err(Errno::INVAL);
    }
    let message = MsgRing::prep(&sqe)?;
    message.check_is_data()?;
    match msg_ring::send(&message, sqe.fd) {
        Verdict::Done(result) if result < 0 => Err(Errno::from_raw_os_error(-result)),
        _ => Ok(0),
    }
}

/// Reports which opcodes are served. Source: io_uring_register(2), IORING_REGISTER_PROBE; `io_probe` in
/// io_uring/register.c.
fn probe(arg: u64, count: u32) -> Result<u32, Errno> {
    /// `struct io_uring_probe`: last_op, ops_len, padding; then 8 bytes for each opcode.
    const HEAD_BYTES: u64 = 16;
    if arg == 0 || count > 256 {
        return Err(Errno::INVAL);
    }
    for word in 0..(2 + u64::from(count)) {
        if user_read::<u64>(arg + 8 * word)? != 0 && !mutated(Mutation::ProbeIsNotZeroed) {
            return Err(Errno::INVAL);
        }
    }
    let listed = (count as usize).min(op::count());
    user_write(arg, &(op::count() as u8 - 1))?;
    user_write(arg + 1, &(listed as u8))?;
    for number in 0..listed as u64 {
        let supported = is_supported(number as u8);
        let flags = if supported { IO_URING_OP_SUPPORTED } else { 0 };
        user_write(arg + HEAD_BYTES + 8 * number, &(number as u8))?;
        user_write(arg + HEAD_BYTES + 8 * number + 2, &flags)?;
    }
    Ok(0)
}

/// Registers or unregisters rings for the calling thread. `arg` is the address of `struct io_uring_rsrc_update` entries
/// of 16 bytes. Source: io_uring_register(2), IORING_REGISTER_RING_FDS.
fn ring_numbers(arg: u64, count: u32, register: bool) -> Result<u32, Errno> {
    if count == 0 || count as usize > process::REGISTERED_RINGS {
        return Err(Errno::INVAL);
    }
    if register {
        process::give_context();
    } else if !process::has_context() {
        return Ok(0);
    }
    for done in 0..count {
        let one = match register {
            true => register_one(arg + 16 * u64::from(done)),
            false => unregister_one(arg + 16 * u64::from(done)),
        };
        match one {
            Ok(()) => {}
            Err(error) if done == 0 => return Err(error),
            Err(_) => return Ok(done),
        }
    }
    Ok(count)
}

fn register_one(entry: u64) -> Result<(), Errno> {
    let [head, data]: [u64; 2] = user_read(entry)?;
    let (index, padding) = (head as u32, (head >> 32) as u32);
    if padding != 0 {
        return Err(Errno::INVAL);
    }
    let fd = data as i32;
    if table::ring(fd).is_none() {
        return Err(crate::wait::enter::not_a_ring(fd));
    }
    let index = match index {
        u32::MAX => None,
        index if index as usize >= process::REGISTERED_RINGS => return Err(Errno::INVAL),
        index => Some(index),
    };
    // The registration keeps the ring alive after the program has closed its number.
    let duplicate = process::duplicate_ring(fd)?;
    let index =
        process::register_ring_number(duplicate, index).inspect_err(|_| process::drop_duplicate(duplicate))?;
    user_write(entry, &index)
}

fn unregister_one(entry: u64) -> Result<(), Errno> {
    let [head, data]: [u64; 2] = user_read(entry)?;
    let (index, padding) = (head as u32, (head >> 32) as u32);
    if padding != 0 || data != 0 || index as usize >= process::REGISTERED_RINGS {
        return Err(Errno::INVAL);
    }
    let number = process::unregister_ring_number(index)?;
    if descriptors::is_own(number) {
        process::drop_duplicate(number);
    }
    Ok(())
}
