//! Rings of polled devices (IORING_SETUP_IOPOLL, and HYBRID_IOPOLL). They take O_DIRECT transfers and little else, and
//! a thread must ask for completions.
//!
//! Only the kernel can poll a device's queue, so a worker waits for the transfer. Its completion is kept, as in the
//! kernel, until a thread asks for it in io_uring_enter(2). While a thread asks, completions go to the CQ at once. With
//! IORING_SETUP_SQPOLL the polling thread always asks. Other operations, and transfers that fail before they begin,
//! complete although no thread asks.
//!
//! The engine polls the same files as the kernel: those opened with O_DIRECT on file systems that have the operation
//! `iopoll`. A read also needs a device with queues for polling (`queue/io_poll` in sysfs), and otherwise fails with
//! EOPNOTSUPP. A write does more than its transfer, so it is not polled, and succeeds (`iomap_dio_bio_iter` in
//! fs/iomap/direct-io.c).
//!
//! All of this belongs to a ring's state, and is accessed only with the ring's lock held.

use crate::mutation::{mutated, Mutation};
use crate::op::rw::Rw;
use crate::op::{call, Op, Operation, Verdict};
use crate::os::calls;
use crate::os::{file_status, version};
use crate::request;
use crate::ring::arrivals::Rest;
use crate::ring::RingGuard;
use crate::ring::State;
use crate::wq::Job;
use crate::{descriptors, Errno};
use std::sync::Arc;

/// The state that only a ring of polled devices has.
#[derive(Default)]
pub struct IoPoll {
    /// True if the ring has a polling thread, which finds all completions itself.
    by_thread: bool,
    /// Transfers that have ended, and whose completions no thread has asked for.
    found: Vec<Arc<Job>>,
    /// Number of threads in io_uring_enter(2) that wait for more completions.
    asking: u32,
    /// The devices that were looked up, by number; true if a device has queues to poll.
    devices: Vec<(u64, bool)>,
}

/// The file systems whose files have the operation `iopoll`, by statfs(2)'s magic numbers: ext4, XFS, btrfs, f2fs,
/// GFS2, zonefs.
const FILE_SYSTEMS: [i64; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0116_1970, 0x5a4f_4653];

impl IoPoll {
    /// Makes the state of a new ring.
    pub fn new(by_thread: bool) -> IoPoll {
        IoPoll { by_thread, ..IoPoll::default() }
    }

    /// Takes the completions that were kept. Called when the ring ends.
    pub fn take_found(&mut self) -> Vec<Arc<Job>> {
        core::mem::take(&mut self.found)
    }

    /// Forgets transfers in flight, in a forked child: only the parent waits for them.
    pub fn forget_flight(&mut self) {
        core::mem::forget(self.take_found());
        self.asking = 0;
    }

    fn polls(&mut self, device: u64) -> bool {
        if let Some((_, polls)) = self.devices.iter().find(|(known, _)| *known == device) {
            return *polls;
        }
        let polls = has_poll_queues(device);
        self.devices.push((device, polls));
        polls
    }
}

/// Asks sysfs whether a block device has queues to poll. A partition has its disk's queues.
fn has_poll_queues(device: u64) -> bool {
    use crate::os::calls::open;
    use rustix::fs::{major, minor, Mode, OFlags};
    let (major, minor) = (major(device), minor(device));
    ["queue", "../queue"].iter().any(|queue| {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/io_poll");
        let Ok(file) = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
        let mut text = [0u8; 1];
        calls::read(&file, &mut text) == Ok(1) && text == *b"1"
    })
}

/// True if a worker made a transfer that the kernel would have polled for.
fn is_transfer_done(job: &Job) -> bool {
    let transfers = job.op.lock().is_some_and(|op| op.rw().is_some());
    let verdict = job.verdict.lock().and_then(|verdict| *verdict);
    transfers && matches!(verdict, Some(Verdict::Done(0..) | Verdict::DoneShort(0..)))
}

/// Takes a worker's result into a ring of polled devices.
#[cold]
pub fn receive_polled(guard: &mut RingGuard, job: Arc<Job>) {
    let keeps = guard.iopoll.as_ref().is_some_and(|iopoll| !iopoll.by_thread && iopoll.asking == 0);
    let keeps = keeps && !mutated(Mutation::PostsWhatNobodyAskedFor);
    if keeps && !guard.is_broken() && is_transfer_done(&job) {
        // If there is no memory to keep the completion, it is posted now.
        if let Some(iopoll) = &mut guard.iopoll {
            if iopoll.found.try_reserve(1).is_ok() {
                return iopoll.found.push(job);
            }
        }
    }
    guard.bring_back(job);
}

/// Takes in finished transfers that no thread asks for, on a ring with deferred completions. The owner needs no notice
/// of them.
#[cold]
pub(crate) fn keep_transfers(guard: &mut RingGuard) {
    if !guard.iopoll.as_ref().is_some_and(|iopoll| !iopoll.by_thread && iopoll.asking == 0) {
        return;
    }
    let mut rest = Rest::take(&guard.ring().arrived, &guard.ring().left);
    for _ in 0..rest.things.len() {
        let Some(job) = rest.things.pop_front() else { break };
        match is_transfer_done(&job) {
            true => receive_polled(guard, job),
            false => rest.things.push_back(job), // the job arrives again when `rest` is dropped
        }
    }
}

/// Posts the completions that were kept.
pub(crate) fn post_found(guard: &mut RingGuard) {
    for job in guard.iopoll.as_mut().map(|iopoll| iopoll.take_found()).unwrap_or_default() {
        guard.bring_back(job);
    }
    guard.finish_batch();
}

impl State {
    /// True if completions of transfers are kept until a thread asks for them.
    pub fn is_asked(&self) -> bool {
        self.iopoll.as_ref().is_some_and(|iopoll| !iopoll.by_thread)
    }

    /// Returns the error if a request cannot be made on this ring of polled devices. Before Linux 7.1 only some drivers
    /// take commands there (`io_uring_cmd` in io_uring/uring_cmd.c).
    #[cold]
    pub fn refused_polled(&mut self, op: &Op, fd: i32) -> Option<Errno> {
        match op {
            Op::UringCmd(_) if !version::polls_commands() => {
                Some(descriptors::check_open(fd).err().unwrap_or(Errno::OPNOTSUPP))
            }
            _ => self.refused_transfer(op.rw()?, fd),
        }
    }

    /// Returns the error if a transfer cannot be made on this ring of polled devices. Source: `io_rw_init_file` in
    /// io_uring/rw.c.
    fn refused_transfer(&mut self, rw: &Rw, fd: i32) -> Option<Errno> {
        let flags = match descriptors::status_flags(fd) {
            Ok(flags) => flags,
            Err(error) => return Some(error),
        };
        if flags & libc::O_DIRECT == 0 && !mutated(Mutation::BufferedFilesArePolled) {
            return Some(Errno::OPNOTSUPP);
        }
        let status = match file_status(fd) {
            Ok(status) => status,
            Err(error) => return Some(error),
        };
        let (device, end) = match status.kind {
            libc::S_IFBLK => (status.special, u64::MAX),
            libc::S_IFREG if status.file_system(fd).is_some_and(|kind| FILE_SYSTEMS.contains(&kind)) => {
                (status.device, status.size)
            }
            _ => return Some(Errno::OPNOTSUPP),
        };
        let position = match rw.reads_at()? {
            u64::MAX => {
                call(libc::SYS_lseek, [fd as usize, 0, libc::SEEK_CUR as usize, 0, 0, 0]).unwrap_or(0) as u64
            }
            position => position,
        };
        // Nothing is transferred, or the call refuses the transfer before it reaches the device.
        if position >= end || rw.total() == 0 || !rw.is_aligned() || self.iopoll.as_mut()?.polls(device) {
            return None;
        }
        Some(if rw.waits_for().is_none() && !rw.is_by_worker() { Errno::AGAIN } else { Errno::OPNOTSUPP })
    }

    /// Adds `change` to the number of threads that ask for completions: 1 or -1.
    pub(crate) fn count_asking(&mut self, change: i32) {
        if let Some(iopoll) = &mut self.iopoll {
            iopoll.asking = iopoll.asking.saturating_add_signed(change);
        }
    }
}

/// Number of CQEs that transfers under way will post.
pub(crate) fn transfers(state: &State) -> u32 {
    let under_way = state.slab.ids().filter(|id| {
        let request = &state.slab[*id];
        matches!(request.state(), request::State::Queued(_)) && !request.skips_success()
    });
    under_way.count() as u32
}
