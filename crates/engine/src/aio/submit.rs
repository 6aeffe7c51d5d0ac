//! io_submit(2): each iocb is copied once, checked, and completed at once or queued as a request.
//!
//! The checks have the order of `io_submit_one` in fs/aio.c. As in the kernel, an iocb that fails a check ends the call
//! with an error. A failed transfer is reported by an event.

use super::{find, lock, Pending};
use crate::issue::single;
use crate::mutation::{mutated, Mutation};
use crate::op::poll::PollAdd;
use crate::op::rw::{check_priority, is_file, Rw, RWF_HIPRI, RWF_SUPPORTED};
use crate::op::sync::Sync;
use crate::op::{Context, Direction, Op, Operation, Punt, Skip, Verdict};
use crate::os::arch::ADDRESSES_END;
use crate::os::calls;
use crate::os::{file_status, is_eventfd, user_read, GuardedWords, Os, Sys};
use crate::request::{Request, Target};
use crate::resource::files::FixedFile;
use crate::ring::batch::Poster;
use crate::ring::broken::Uncompleted;
use crate::ring::record;
use crate::ring::RingGuard;
use crate::stats::Path;
use crate::{descriptors, stats, Errno};
use anyring_abi::{
    Cqe, Iocb, Opcode, Sqe, IOCB_CMD_FDSYNC, IOCB_CMD_FSYNC, IOCB_CMD_POLL, IOCB_CMD_PREAD, IOCB_CMD_PREADV,
    IOCB_CMD_PWRITE, IOCB_CMD_PWRITEV, IOCB_FLAG_IOPRIO, IOCB_FLAG_RESFD, IORING_FSYNC_DATASYNC, MAX_RW_COUNT,
};
use core::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Submits the `count` iocbs whose addresses are at `iocbs`. Returns the number taken in before the first refused
/// iocb.
///
/// # Errors
/// Those of io_submit(2), if the first iocb is refused. `AGAIN` also in a signal handler that interrupted another
/// call of its own thread on this context.
pub fn io_submit(context: u64, count: i64, iocbs: u64) -> Result<u64, Errno> {
    if count < 0 {
        return Err(Errno::INVAL);
    }
    let mut guard = lock(find(context)?, context, Errno::AGAIN)?;
    let places = guard.aio.as_ref().map_or(0, |context| context.completions.places());
    if guard.is_watched && guard.wants_caller(count != 0) {
        drop(guard); // see `here`
        let caller = record::here();
        guard = lock(find(context)?, context, Errno::AGAIN)?;
        caller.iter().for_each(|caller| guard.record(|it| it.caller(caller)));
    }
    guard.check_tracer();
    guard.record(|it| it.io_submit(count as u64));
    let mut refused = None;
    let mut submitted = 0;
    while submitted < (count as u64).min(places.into()) {
        let room = guard.make_room().map_err(|_| Errno::AGAIN);
        let address = room.and_then(|()| user_read::<u64>(iocbs.wrapping_add(submitted * 8)));
        if let Err(error) = address.and_then(|address| accept_iocb(&mut guard, address)) {
            guard.record(|it| it.iocb_refused(error));
            refused = Some(error);
            break;
        }
        submitted += 1;
    }
    guard.finish_batch();
    guard.call_helper();
    match refused {
        Some(error) if submitted == 0 => Err(error),
        _ => Ok(submitted),
    }
}

/// The status flags of an open descriptor, as fcntl(2) reports them.
#[derive(Clone, Copy)]
struct Flags(i32);

impl Flags {
    fn of(fd: i32) -> Result<Flags, Errno> {
        let flags = descriptors::status_flags(descriptors::of_program(fd)?)?;
        match flags & libc::O_PATH {
            0 => Ok(Flags(flags)),
            _ => Err(Errno::BADF),
        }
    }

    /// Returns the access mode, which never changes.
    fn access(self) -> i32 {
        self.0 & libc::O_ACCMODE
    }

    fn permits(self, write: bool) -> bool {
        let without = if write { libc::O_RDONLY } else { libc::O_WRONLY };
        let mode = self.access();
        mode != without && mode != libc::O_ACCMODE
    }

    fn direct(self) -> bool {
        self.0 & libc::O_DIRECT != 0
    }

    fn nonblocking(self) -> bool {
        self.0 & libc::O_NONBLOCK != 0
    }
}

/// Returns the file type (`S_IF*`) of an open descriptor.
fn kind_of(fd: i32) -> u32 {
    file_status(fd).map_or(0, |status| status.kind)
}

/// Takes one iocb in. Source: `io_submit_one` in fs/aio.c.
fn accept_iocb(guard: &mut RingGuard, address: u64) -> Result<(), Errno> {
    let iocb: Iocb = user_read(address)?;
    guard.record(|it| it.submit_iocb(&iocb));
    if iocb.reserved != 0 || i64::try_from(iocb.bytes).is_err() {
        return Err(Errno::INVAL);
    }
    let Some(context) = &mut guard.aio else { return Err(Errno::INVAL) };
    let place = context.reserve_place(Pending {
        data: iocb.data,
        obj: address,
        eventfd: None,
        overdue: false,
        single: None,
    })?;
    let started = start_iocb(guard, &iocb, address, place);
    if let (Err(_), Some(context)) = (&started, &mut guard.aio) {
        context.give_place(place.into());
    }
    started
}

fn start_iocb(guard: &mut RingGuard, iocb: &Iocb, address: u64, place: u32) -> Result<(), Errno> {
    let fd = iocb.fd as i32;
    let pollable = guard.poll_set.is_pollable(fd);
    let remembered = guard.poll_set.access(fd).filter(|_| pollable);
    let flags = match (iocb.opcode, remembered) {
        (IOCB_CMD_POLL, _) if pollable => Flags(0), // no flag matters to a poll
        (_, Some(access)) => Flags(access),
        _ => Flags::of(fd)?,
    };
    if iocb.flags & IOCB_FLAG_RESFD != 0 {
        let eventfd = eventfd_of(guard, iocb.eventfd as i32)?;
        if let Some(pending) = pending(guard, place) {
            pending.eventfd = Some(eventfd);
        }
    }
    if !mutated(Mutation::KeyIsNotCleared) {
        GuardedWords::store((address as usize).wrapping_add(offset_of!(Iocb, key)), 0)?;
    }
    let (opcode, mut op) = prepare(iocb, flags)?;
    let transfers = op.rw().is_some();
    let on_its_way = Uncompleted::new(guard.ring(), place.into(), None);
    let settled = if !pollable && would_miss(guard, &op, fd, flags) {
        Ok(Verdict::NeedsWorker(Punt::WouldWait))
    } else if remembered.is_some() {
        attempt_remembered(guard, &mut op, fd, flags)
    } else {
        let verdict = first_attempt(guard, &mut op, fd, !flags.nonblocking(), pollable);
        first_attempt_result(verdict, &mut op, fd, flags, pollable)
    };
    match settled {
        Err(error) => {
            on_its_way.completed();
            return Err(error);
        }
        Ok(Verdict::Done(result) | Verdict::DoneShort(result) | Verdict::DoneWith { result, .. }) => {
            stats::completed(opcode, Path::Inline, result);
            guard.record(|it| it.iocb_ends());
            guard.post(Cqe { user_data: place.into(), res: result, flags: 0 }, Poster::Task);
            on_its_way.completed();
        }
        Ok(verdict) => {
            if transfers && !flags.direct() && !pollable && is_file(fd) {
                record_overdue(guard, place, verdict);
            }
            follow_iocb(guard, place, op, opcode, fd, verdict, on_its_way);
            if transfers && remembered.is_none() {
                guard.poll_set.record_access(fd, flags.access());
            }
        }
    }
    Ok(())
}

/// Handles an iocb that its first attempt did not finish. Lets it wait without a slot in the slab (`issue/single.rs`),
/// or makes it a request with a slot.
fn follow_iocb(
    guard: &mut RingGuard,
    place: u32,
    mut op: Op,
    opcode: Opcode,
    fd: i32,
    verdict: Verdict,
    on_its_way: Uncompleted,
) {
    let on_its_way = match verdict {
        Verdict::WouldBlock(Direction::Read) | Verdict::Skipped(Direction::Read, _) => {
            let skip = if let Verdict::Skipped(_, why) = verdict { Some(why) } else { None };
            match single::wait_singly(guard, place, &mut op, opcode, fd, skip, on_its_way) {
                Ok(()) => return,
                Err(on_its_way) => on_its_way,
            }
        }
        _ => on_its_way,
    };
    let id = guard.admit(Request::new(op, opcode, 0, place.into(), Target::Number(fd)), on_its_way);
    guard.follow(id, verdict);
}

/// Makes an attempt, or postpones it. A postponed attempt leaves a request pending, even on a nonblocking
/// description. So `first` must be false for such a description.
fn first_attempt(guard: &mut RingGuard, op: &mut Op, fd: i32, first: bool, pollable: bool) -> Verdict {
    let looks = pollable && op.poll().is_some_and(PollAdd::waits_to_read);
    if looks && guard.poll_set.postpones(fd) {
        return Verdict::Skipped(Direction::Read, Skip::Postponed);
    }
    let verdict = guard.attempt(op, fd, true, first);
    if looks {
        guard.poll_set.record_first_read(fd, matches!(verdict, Verdict::WouldBlock(_)));
    }
    verdict
}

/// Makes an attempt on a file whose access mode is known. O_NONBLOCK, which another process may change, is read
/// only where it matters. If the attempt is postponed, `RingGuard::end_nonblocking_reads` reads the flag later.
fn attempt_remembered(guard: &mut RingGuard, op: &mut Op, fd: i32, access: Flags) -> Result<Verdict, Errno> {
    let verdict = first_attempt(guard, op, fd, true, true);
    let postponed = matches!(verdict, Verdict::Skipped(_, why) if why.is_postponed());
    let waits = verdict.waits().is_some() || matches!(verdict, Verdict::NeedsWorkerWhenReady(_));
    if !waits || postponed || op.rw().is_none() {
        return first_attempt_result(verdict, op, fd, access, true);
    }
    let flags = Flags::of(fd)?;
    if !flags.nonblocking() {
        return first_attempt_result(verdict, op, fd, flags, true);
    }
    guard.poll_set.forget_access(fd);
    let verdict = first_attempt(guard, op, fd, false, true);
    first_attempt_result(verdict, op, fd, flags, true)
}

/// Returns the request in this place.
fn pending(guard: &mut RingGuard, place: u32) -> Option<&mut Pending> {
    guard.aio.as_mut()?.pending.get_mut(place as usize)?.as_mut()
}

/// True for a read that is known to need its device. io_submit(2) then makes no attempt, since an attempt would
/// start the transfer.
fn would_miss(guard: &mut RingGuard, op: &Op, fd: i32, flags: Flags) -> bool {
    match (op.rw(), &mut guard.aio) {
        (Some(rw), Some(context)) if !flags.direct() && !flags.nonblocking() => context.cold.would_miss(rw, fd),
        _ => false,
    }
}

/// Records that the transfer in this place goes through the page cache and is left to a worker.
fn record_overdue(guard: &mut RingGuard, place: u32, verdict: Verdict) {
    if let Some(pending) = pending(guard, place) {
        pending.overdue = true;
    }
    if let Some(context) = &mut guard.aio {
        context.overdue += 1;
        if verdict.waits() == Some(Direction::Read) {
            context.cold.missed();
        }
    }
}

/// Returns a duplicate of the program's eventfd. Source: `eventfd_ctx_fdget` in fs/eventfd.c.
fn eventfd_of(guard: &mut RingGuard, fd: i32) -> Result<Arc<FixedFile>, Errno> {
    // If the engine may miss closes, the number may name another file by now.
    let may_know = descriptors::closes_are_seen();
    let known = guard.aio.as_ref().filter(|_| may_know).and_then(|context| context.eventfd(fd));
    if let Some(known) = known {
        return Ok(known);
    }
    Flags::of(fd)?;
    if !is_eventfd(fd) {
        return Err(Errno::INVAL);
    }
    let duplicate = descriptors::duplicate(fd)?;
    guard.poll_set.forget(duplicate);
    let file = FixedFile::new(duplicate, None);
    if let Some(context) = guard.aio.as_mut().filter(|_| may_know) {
        descriptors::record_use(fd);
        context.eventfds.push((fd, file.clone()));
    }
    Ok(file)
}

/// Makes the operation of an iocb. Source: `aio_read`, `aio_write`, `aio_fsync` and `aio_poll` in fs/aio.c.
fn prepare(iocb: &Iocb, flags: Flags) -> Result<(Opcode, Op), Errno> {
    match iocb.opcode {
        IOCB_CMD_PREAD => transfer(Opcode::Read, iocb, flags),
        IOCB_CMD_PWRITE => transfer(Opcode::Write, iocb, flags),
        IOCB_CMD_PREADV => transfer(Opcode::Readv, iocb, flags),
        IOCB_CMD_PWRITEV => transfer(Opcode::Writev, iocb, flags),
        IOCB_CMD_FSYNC => sync(iocb, 0),
        IOCB_CMD_FDSYNC => sync(iocb, IORING_FSYNC_DATASYNC),
        IOCB_CMD_POLL => {
            let events = u16::try_from(iocb.buf).map_err(|_| Errno::INVAL)?;
            if iocb.offset != 0 || iocb.bytes != 0 || iocb.rw_flags != 0 {
                return Err(Errno::INVAL);
            }
            Ok((Opcode::PollAdd, Op::Poll(PollAdd::of_aio(events))))
        }
        // Also for IOCB_CMD_NOOP, which no kernel ever served.
        _ => Err(Errno::INVAL),
    }
}

fn transfer(opcode: Opcode, iocb: &Iocb, flags: Flags) -> Result<(Opcode, Op), Errno> {
    let write = matches!(opcode, Opcode::Write | Opcode::Writev);
    let ioprio = if iocb.flags & IOCB_FLAG_IOPRIO != 0 { iocb.priority } else { 0 };
    check_priority(ioprio)?;
    // `kiocb_set_rw_flags` in include/linux/fs.h refuses RWF_ATOMIC except for direct writes.
    let refused = iocb.rw_flags & libc::RWF_ATOMIC as u32 != 0 && !(write && flags.direct());
    if iocb.rw_flags & !RWF_SUPPORTED != 0 || refused {
        return Err(Errno::OPNOTSUPP);
    }
    if !flags.permits(write) {
        return Err(Errno::BADF);
    }
    let fd = iocb.fd as i32;
    if descriptors::is_ring(fd) {
        return Err(Errno::INVAL); // the kernel's rings have no read and no write
    }
    let len = match opcode {
        Opcode::Read | Opcode::Write => {
            let bytes = iocb.bytes.min(MAX_RW_COUNT as u64);
            if iocb.buf.checked_add(bytes).is_none_or(|end| end > ADDRESSES_END) {
                return Err(Errno::FAULT);
            }
            bytes as u32
        }
        _ => iocb.bytes as u32, // as wide as import_iovec takes it
    };
    let sqe = Sqe {
        opcode: opcode as u8,
        ioprio,
        fd,
        off: iocb.offset as u64,
        addr: iocb.buf,
        len,
        op_flags: iocb.rw_flags & !RWF_HIPRI, // no request of Linux AIO has a device polled for it
        ..Sqe::default()
    };
    let rw = Rw::prep(opcode, &sqe)?;
    let bytes: usize = rw.ranges().iter().map(|range| range[1]).sum();
    // `rw_verify_area` in fs/read_write.c.
    if iocb.offset < 0 || iocb.offset.checked_add(bytes as i64).is_none() {
        return Err(Errno::INVAL);
    }
    Ok((opcode, Op::Rw(rw)))
}

fn sync(iocb: &Iocb, op_flags: u32) -> Result<(Opcode, Op), Errno> {
    if iocb.buf != 0 || iocb.offset != 0 || iocb.bytes != 0 || iocb.rw_flags != 0 {
        return Err(Errno::INVAL);
    }
    let sqe = Sqe { opcode: Opcode::Fsync as u8, fd: iocb.fd as i32, op_flags, ..Sqe::default() };
    Ok((Opcode::Fsync, Op::Sync(Sync::prep(Opcode::Fsync, &sqe)?)))
}

/// Adjusts the verdict of a first attempt where AIO differs from io_uring. An error becomes the result of
/// io_submit(2).
fn first_attempt_result(
    verdict: Verdict,
    op: &mut Op,
    fd: i32,
    flags: Flags,
    pollable: bool,
) -> Result<Verdict, Errno> {
    let failed = |errno: Errno| verdict == Verdict::error(errno);
    if let Some(rw) = op.rw() {
        return match verdict {
            _ if may_be_directory(verdict) && kind_of(fd) == libc::S_IFDIR => Err(Errno::INVAL), // it has no read_iter
            // The kernel checks the flags before the transfer: `kiocb_set_rw_flags` in include/linux/fs.h.
            _ if failed(Errno::OPNOTSUPP) => Err(Errno::OPNOTSUPP),
            // The event carries the result of the file's own write.
            _ if failed(Errno::AGAIN) && rw.knows_no_nowait() => Ok(Verdict::error(Errno::OPNOTSUPP)),
            _ if flags.nonblocking() => Ok(without_waiting(verdict, op, fd)),
            _ => Ok(verdict),
        };
    }
    match op {
        Op::Sync(sync) if matches!(verdict, Verdict::NeedsWorker(_)) => match kind_of(fd) {
            libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK => Ok(verdict),
            // Other files have no fsync: the call fails at once.
            _ => match sync.issue(Context { fd, nonblock: false }) {
                Verdict::Done(result) | Verdict::DoneWith { result, .. } if result < 0 => {
                    Err(Errno::from_raw_os_error(-result))
                }
                verdict => Ok(verdict),
            },
        },
        // `aio_poll` finds no wait queue in these files. They are always ready, and never for other events.
        op if op.poll().is_some() && verdict.waits().is_some() && !pollable => match kind_of(fd) {
            libc::S_IFREG | libc::S_IFDIR | libc::S_IFCHR | libc::S_IFBLK if !can_be_polled(fd) => {
                Err(Errno::INVAL)
            }
            _ => Ok(verdict),
        },
        _ => Ok(verdict),
    }
}

/// True if epoll(7) accepts the file. The file then has a wait queue.
#[cold]
fn can_be_polled(fd: i32) -> bool {
    use rustix::event::epoll;
    let Ok(set) = calls::epoll_create(epoll::CreateFlags::CLOEXEC) else { return true };
    Sys::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, 0, 0) != Err(Errno::PERM)
}

/// True if an attempt at a transfer on a directory may have this verdict.
fn may_be_directory(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Done(..0) | Verdict::NeedsWorker(_) | Verdict::NeedsWorkerWhenReady(_))
}

/// Ends a transfer on a description with O_NONBLOCK at once, unless the file has no readiness.
fn without_waiting(verdict: Verdict, op: &mut Op, fd: i32) -> Verdict {
    match verdict {
        Verdict::WouldBlock(_) | Verdict::Skipped(..) if !is_file(fd) => Verdict::error(Errno::AGAIN),
        Verdict::NeedsWorkerWhenReady(_) if !is_file(fd) => match op.issue(Context { fd, nonblock: false }) {
            Verdict::WouldBlock(_) => Verdict::error(Errno::AGAIN),
            verdict => verdict,
        },
        verdict => verdict,
    }
}
