//! io_uring_setup(2).

use super::cq::Batch;
use super::layout::Layout;
use super::memory::Memory;
use super::{control::Control, Records, State};
use crate::os::{user_read, user_write};
use crate::path::readiness::Entries;
use crate::path::sqpoll;
use crate::request::drain::Drain;
use crate::request::timer::{Clock, Timers};
use crate::request::Slab;
use crate::resource::napi::Napi;
use crate::resource::personality::Personalities;
use crate::{descriptors, process, stats, Errno};
use anyring_abi::*;
use core::sync::atomic::Ordering;
use rustix::fd::{AsRawFd, IntoRawFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::VecDeque;

/// What this engine has of the features that Linux 6.18 reports.
pub const FEATURES: u32 = IORING_FEAT_SINGLE_MMAP
    | IORING_FEAT_NODROP
    | IORING_FEAT_SUBMIT_STABLE
    | IORING_FEAT_RW_CUR_POS
    | IORING_FEAT_CUR_PERSONALITY
    | IORING_FEAT_FAST_POLL
    | IORING_FEAT_POLL_32BITS
    | IORING_FEAT_SQPOLL_NONFIXED
    | IORING_FEAT_EXT_ARG
    | IORING_FEAT_NATIVE_WORKERS
    | IORING_FEAT_RSRC_TAGS
    | IORING_FEAT_CQE_SKIP
    | IORING_FEAT_LINKED_FILE
    | IORING_FEAT_REG_REG_RING
    | IORING_FEAT_MIN_TIMEOUT
    | IORING_FEAT_NO_IOWAIT;

/// Setup flags that this engine serves; the others answer EINVAL, as on a kernel that does not have them.
pub const FLAGS: u32 = IORING_SETUP_SQPOLL
    | IORING_SETUP_SQ_AFF
    | IORING_SETUP_CQSIZE
    | IORING_SETUP_CLAMP
    | IORING_SETUP_ATTACH_WQ
    | IORING_SETUP_R_DISABLED
    | IORING_SETUP_SUBMIT_ALL
    | IORING_SETUP_COOP_TASKRUN
    | IORING_SETUP_TASKRUN_FLAG
    | IORING_SETUP_SQE128
    | IORING_SETUP_CQE32
    | IORING_SETUP_SINGLE_ISSUER
    | IORING_SETUP_DEFER_TASKRUN
    | IORING_SETUP_NO_MMAP
    | IORING_SETUP_REGISTERED_FD_ONLY
    | IORING_SETUP_NO_SQARRAY;

/// Makes a ring: its descriptor. `params` is the program's address of `struct io_uring_params`.
pub fn setup(entries: u32, params: u64) -> Result<i32, Errno> {
    process::notice_fork();
    crate::os::probe_flags();
    let mut given: Params = user_read(params)?;
    if given.resv != [0; 3] || given.flags & !FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    check_flags(given.flags)?;
    let layout = Layout::new(entries, &given)?;
    let polling = sqpoll::wish(&given)?;
    let mut memory = match given.flags & IORING_SETUP_NO_MMAP {
        0 => Memory::create(layout)?,
        _ => Memory::of_program(layout, &given)?,
    };
    let (sq_address, cq_address) = (given.sq_off.user_addr, given.cq_off.user_addr);
    given.sq_entries = layout.sq_entries;
    given.cq_entries = layout.cq_entries;
    given.sq_off = layout.sq_offsets();
    given.cq_off = layout.cq_offsets();
    if given.flags & IORING_SETUP_NO_MMAP != 0 {
        given.sq_off.user_addr = sq_address;
        given.cq_off.user_addr = cq_address;
    }
    given.features = FEATURES;
    let made = user_write(params, &given).and_then(|()| Control::new(memory.lock_file));
    let control = match made {
        Ok(mut control) => {
            control.found();
            control
        }
        Err(error) => {
            memory.release();
            return Err(error);
        }
    };
    publish(given.flags, memory, control, polling)
}

/// The combinations that `io_uring_sanitise_params` in io_uring/io_uring.c refuses, among the flags served here.
fn check_flags(flags: u32) -> Result<(), Errno> {
    let has = |flag| flags & flag != 0;
    let flag_without_deferral =
        has(IORING_SETUP_TASKRUN_FLAG) && !has(IORING_SETUP_COOP_TASKRUN | IORING_SETUP_DEFER_TASKRUN);
    let deferral_for_many = has(IORING_SETUP_DEFER_TASKRUN) && !has(IORING_SETUP_SINGLE_ISSUER);
    // Task work of a polled ring is its thread's.
    let notified = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_DEFER_TASKRUN;
    let polled_and_notified = has(IORING_SETUP_SQPOLL) && has(notified);
    let unmappable = has(IORING_SETUP_REGISTERED_FD_ONLY) && !has(IORING_SETUP_NO_MMAP);
    if polled_and_notified || flag_without_deferral || deferral_for_many || unmappable {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// Makes the descriptor and puts the ring into the process's table.
fn publish(flags: u32, mut memory: Memory, control: Control, polling: Option<sqpoll::Wish>) -> Result<i32, Errno> {
    let made = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .and_then(|(ours, theirs)| Ok((descriptors::to_top(ours)?, descriptors::to_ring_number(theirs)?)));
    let (engine_end, program_end) = match made {
        Ok(ends) => ends,
        Err(error) => {
            memory.release();
            control.unmap();
            return Err(error);
        }
    };
    let fd = program_end.as_raw_fd();
    if !process::fits(fd) {
        descriptors::close(engine_end.into_raw_fd());
        memory.release();
        control.unmap();
        return Err(Errno::MFILE);
    }
    let state = State {
        memory,
        control,
        engine_end: engine_end.into_raw_fd(),
        cookie: process::cookie_of(fd).unwrap_or(0),
        slab: Slab::default(),
        ready: VecDeque::new(),
        entries: Entries::default(),
        attempt_put_off: false,
        timers: Timers::default(),
        counting: Vec::new(),
        completions: 0,
        chain: None,
        submission: None,
        drain: Drain::default(),
        tally: stats::Tally::default(),
        batch: Batch::default(),
        spill: VecDeque::new(),
        files: None,
        buffers: None,
        groups: crate::resource::buf_ring::Groups::default(),
        eventfd: None,
        bell: None,
        issuer: if flags & (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_R_DISABLED) == IORING_SETUP_SINGLE_ISSUER {
            process::thread_id()
        } else {
            0
        },
        records: Records::default(),
        sleepers: 0,
        disabled: flags & IORING_SETUP_R_DISABLED != 0,
        orphan: false,
        closed: false,
        restrictions: None,
        napi: Napi::default(),
        personalities: Personalities::default(),
        clock: Clock::Monotonic,
        wait_region: None,
    };
    let ring = process::unborn_ring();
    ring.bring_to_life(fd, flags, state);
    if let Some(polling) = polling {
        if let Err(error) = sqpoll::begin(ring, polling) {
            if let Ok(mut guard) = ring.lock() {
                guard.closed = true;
            }
            process::end_if_unused(ring);
            return Err(error);
        }
    }
    process::publish(fd, ring)?; // the number was checked to fit
    stats::stats().rings.fetch_add(1, Ordering::Relaxed);
    let fd = program_end.into_raw_fd();
    if flags & IORING_SETUP_REGISTERED_FD_ONLY != 0 {
        // The number stays ours: the program knows the ring by its thread's table only.
        return process::register_ring_number(fd, None).map(|index| index as i32);
    }
    Ok(fd)
}
