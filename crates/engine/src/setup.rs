//! io_uring_setup(2).

use crate::descriptors::ends::{self, EngineEnds};
use crate::forced::{point, Point};
use crate::lock::Lock;
use crate::memory::layout::{word, Layout};
use crate::memory::{Memory, NO_FILE};
use crate::os::{owner, version};
use crate::os::{user_read, user_write, ForNow};
use crate::ring::recorder::Recorder;
use crate::ring::table;
use crate::ring::State;
use crate::shared::control::{self, Control};
use crate::wait::{self, sqpoll};
use crate::{chaos, descriptors, process, Errno};
use anyring_abi::*;
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::fd::{AsRawFd, IntoRawFd};

/// The offset of the CQEs in the rings' memory, in bytes. The rings' header is before them.
pub const CQES_OFFSET: u64 = word::CQES as u64;

/// The features of Linux 6.18 that this engine has.
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
    | IORING_FEAT_RECVSEND_BUNDLE
    | IORING_FEAT_MIN_TIMEOUT
    | IORING_FEAT_RW_ATTR
    | IORING_FEAT_NO_IOWAIT;

/// Returns the setup flags that this engine serves. Other flags fail with EINVAL, as on a kernel that does not have
/// them.
pub fn flags() -> u32 {
    if version::has_later_names() {
        FLAGS | LATER_FLAGS
    } else {
        FLAGS
    }
}

/// Setup flags that came after Linux 6.18.
const LATER_FLAGS: u32 = IORING_SETUP_SQE_MIXED | IORING_SETUP_SQ_REWIND;

const FLAGS: u32 = IORING_SETUP_IOPOLL
    | IORING_SETUP_SQPOLL
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
    | IORING_SETUP_NO_SQARRAY
    | IORING_SETUP_HYBRID_IOPOLL
    | IORING_SETUP_CQE_MIXED;

/// Makes a ring. Returns its descriptor. `params` is the program's address of `struct io_uring_params`.
pub fn setup(entries: u32, params: u64) -> Result<i32, Errno> {
    wait::begin(reset_after_fork)?;
    let (mut given, layout) = asked_for(entries, params)?;
    let memory = match given.flags & IORING_SETUP_NO_MMAP {
        0 => Memory::create(layout, given.flags & IORING_SETUP_DEFER_TASKRUN != 0, control::PAGES_BYTES)?,
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
    let mut made = Unpublished { memory: Some(memory), control: None, program_end: None };
    let polling = sqpoll::options(&given)?;
    user_write(params, &given)?;
    made.control = Some(match made.memory.as_ref().and_then(Memory::room) {
        Some(room) => Control::at(room),
        None => Control::new()?,
    });
    publish(given.flags, made, polling)
}

/// Reads the parameters of a ring, and checks that it can be served.
fn asked_for(entries: u32, params: u64) -> Result<(Params, Layout), Errno> {
    let given: Params = user_read(params)?;
    if given.resv != [0; 3] || given.flags & !flags() != 0 {
        return Err(Errno::INVAL);
    }
    check_flags(given.flags)?;
    let layout = Layout::new(entries, &given)?;
    Ok((given, layout))
}

/// True unless [`setup`] refuses these arguments with EINVAL at once.
pub fn is_valid(entries: u32, params: u64) -> bool {
    asked_for(entries, params).is_ok()
}

/// The parts of a ring until it is published. They are given back if setup ends before that, by an error or a panic.
struct Unpublished {
    memory: Option<Memory>,
    control: Option<Control>,
    program_end: Option<ForNow>,
}

impl Drop for Unpublished {
    fn drop(&mut self) {
        let room = self.memory.as_ref().and_then(Memory::room);
        if let Some(control) = self.control.take().filter(|_| room.is_none()) {
            control.unmap();
        }
        if let Some(memory) = &mut self.memory {
            memory.release();
        }
    }
}

/// Fails with EINVAL for the combinations, among the flags that this engine serves, that `io_uring_sanitise_params`
/// in io_uring/io_uring.c refuses.
fn check_flags(flags: u32) -> Result<(), Errno> {
    let has = |flag| flags & flag != 0;
    let flag_without_deferral =
        has(IORING_SETUP_TASKRUN_FLAG) && !has(IORING_SETUP_COOP_TASKRUN | IORING_SETUP_DEFER_TASKRUN);
    let deferral_for_many = has(IORING_SETUP_DEFER_TASKRUN) && !has(IORING_SETUP_SINGLE_ISSUER);
    // The thread of a polled ring runs its task work.
    let notified = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_DEFER_TASKRUN;
    let polled_and_notified = has(IORING_SETUP_SQPOLL) && has(notified);
    let unmappable = has(IORING_SETUP_REGISTERED_FD_ONLY) && !has(IORING_SETUP_NO_MMAP);
    let hybrid_alone = has(IORING_SETUP_HYBRID_IOPOLL) && !has(IORING_SETUP_IOPOLL);
    let two_sizes = has(IORING_SETUP_CQE32) && has(IORING_SETUP_CQE_MIXED)
        || has(IORING_SETUP_SQE128) && has(IORING_SETUP_SQE_MIXED);
    // A polling thread follows the SQ's tail, which a ring with IORING_SETUP_SQ_REWIND does not use.
    let rewinds_wrongly =
        has(IORING_SETUP_SQ_REWIND) && (has(IORING_SETUP_SQPOLL) || !has(IORING_SETUP_NO_SQARRAY));
    if polled_and_notified
        || flag_without_deferral
        || deferral_for_many
        || unmappable
        || two_sizes
        || hybrid_alone
        || rewinds_wrongly
    {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// Makes the state of a ring without a descriptor and without memory that a program could map.
pub fn private_state() -> Result<Box<State>, Errno> {
    // Tells one use of a ring from the next, and from rings with a socket, whose cookies count from 1.
    static LIVES: AtomicU64 = AtomicU64::new(1 << 63);
    let memory = Memory::private(Layout::new(1, &Params::default())?)?;
    let mut made = Unpublished { memory: Some(memory), control: None, program_end: None };
    let mut control = Control::new()?;
    control.found(NO_FILE);
    let Some(memory) = made.memory.take() else { return Err(Errno::INVAL) };
    Ok(State::new(0, memory, control, EngineEnds::NONE, LIVES.fetch_add(1, Ordering::Relaxed)))
}

/// Held from the choice of a ring's number until the ring is published. Without this lock, threads with descriptor
/// tables of their own could choose the same number.
static NUMBERS: Lock<()> = Lock::new(());

/// Frees the lock in a forked child, where no thread is choosing a number.
fn reset_after_fork() {
    // SAFETY: `at_fork` calls this while the child has one thread, and the lock guards no value.
    unsafe { NUMBERS.reset() };
}

/// Makes the descriptor and publishes the ring under its number.
fn publish(flags: u32, mut made: Unpublished, polling: Option<sqpoll::PollerOptions>) -> Result<i32, Errno> {
    let (ends, theirs) = ends::make()?;
    if ends.is_first_pipe {
        crate::log::line("the descriptors of rings are pipes, since socketpair(2) is refused here");
    }
    let choosing = NUMBERS.lock();
    let program_end = descriptors::to_ring_number(theirs)?;
    let fd = program_end.as_raw_fd();
    made.program_end = Some(program_end);
    if !table::fits(fd) {
        return Err(Errno::MFILE);
    }
    point(Point::SetupMade);
    let (Some(memory), Some(mut control)) = (made.memory.take(), made.control.take()) else {
        return Err(Errno::INVAL);
    };
    control.found(ends.numbers().kicked);
    let cookie = descriptors::cookie_of(fd).unwrap_or(0);
    let layout = memory.view.layout();
    let entries = [layout.sq_entries, layout.cq_entries];
    control.label(fd, cookie, flags, entries, owner::of_memory());
    let recorder = Recorder::of_new_ring(fd, entries, flags);
    let mut state = State::new(flags, memory, control, ends.into_raw(), cookie);
    state.recorder = recorder;
    // Waiters on a ring of polled devices watch no timer.
    if flags & IORING_SETUP_IOPOLL == 0 {
        state.chaos = chaos::of_new_ring();
        state.screens = state.chaos.is_some();
    }
    state.notice_watchers();
    let ring = table::unborn_ring();
    ring.activate(fd, flags, state);
    if let Some(polling) = polling {
        if let Err(error) = sqpoll::begin(ring, polling) {
            if let Ok(mut guard) = ring.lock() {
                guard.close();
            }
            table::end_if_unused(ring);
            return Err(error);
        }
    }
    table::publish(fd, ring)?; // the number was checked to fit
    drop(choosing);
    process::give_context();
    let _ = made.program_end.take().map(ForNow::into_raw_fd);
    if flags & IORING_SETUP_REGISTERED_FD_ONLY != 0 {
        // The number stays the engine's, since the program knows the ring only by its thread's registration.
        return process::register_ring_number(fd, None).map(|index| index as i32);
    }
    Ok(fd)
}
