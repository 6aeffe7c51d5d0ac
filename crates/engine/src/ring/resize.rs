//! IORING_REGISTER_RESIZE_RINGS: gives a ring areas of another size, and moves their contents.
//!
//! The new areas follow the old areas in the same memfd, so that a child forked before can map them, too. The child
//! finds their place in the control area when it joins. The old areas keep their contents until the next resize, since
//! the program may still have them mapped. Only the single submitter of a ring can resize it. So no thread that sleeps
//! in io_uring_enter(2) or submits holds a position in the old areas.

use super::RingGuard;
use crate::memory::layout::{word, Layout};
use crate::memory::view::View;
use crate::memory::Memory;
use crate::os::{user_read, user_write};
use crate::shared::control::Control;
use crate::shared::fences;
use crate::Errno;
use anyring_abi::*;
use core::sync::atomic::Ordering;

/// The setup flags that the program may choose for a resize.
const CHOSEN: u32 = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;

/// The setup flags that the ring keeps and reports.
const KEPT: u32 = IORING_SETUP_NO_SQARRAY
    | IORING_SETUP_SQE128
    | IORING_SETUP_SQE_MIXED
    | IORING_SETUP_SQ_REWIND
    | IORING_SETUP_CQE32
    | IORING_SETUP_NO_MMAP
    | IORING_SETUP_CQE_MIXED;

/// Resizes the ring as `struct io_uring_params` at `address` asks, and stores the outcome there. Fails with `EOVERFLOW`
/// if the entries in the queues would not fit. Fails with `EINVAL` without `IORING_SETUP_DEFER_TASKRUN`, and for a ring
/// that another process uses. Source: io_uring_register(2); `io_register_resize_rings` in io_uring/register.c.
pub fn resize(guard: &mut RingGuard, address: u64) -> Result<u32, Errno> {
    if !guard.ring().has(IORING_SETUP_DEFER_TASKRUN) {
        return Err(Errno::INVAL);
    }
    let mut params: Params = user_read(address)?;
    if params.flags & !CHOSEN != 0 {
        return Err(Errno::INVAL);
    }
    params.flags |= guard.ring().flags.load(Ordering::Relaxed) & KEPT;
    let layout = Layout::new(params.sq_entries, &params)?;
    let control = guard.control;
    let header = control.header();
    // As in `submit`: a process that joins waits until the resize is over, and then finds the new areas.
    header.submitter.store(control.member + 1, Ordering::Relaxed);
    fences::order_mark();
    let resized = match header.shared.load(Ordering::Relaxed) {
        0 => replace_areas(guard, layout, params, address),
        _ => Err(Errno::INVAL),
    };
    header.submitter.store(0, Ordering::Release); // partner: the Acquire load in `Control::begin_sharing`
    resized.map(|()| 0)
}

fn replace_areas(guard: &mut RingGuard, layout: Layout, mut params: Params, address: u64) -> Result<(), Errno> {
    let mut new = match params.flags & IORING_SETUP_NO_MMAP {
        0 => guard.memory.another(layout)?,
        _ => guard.memory.another_of_program(layout, &params)?,
    };
    let addresses = (params.sq_off.user_addr, params.cq_off.user_addr);
    (params.sq_entries, params.cq_entries) = (layout.sq_entries, layout.cq_entries);
    // Linux 6.18 leaves the offset of the SQ array 0. The SQ head is at that offset, so a program would overwrite it.
    (params.sq_off, params.cq_off) = (layout.sq_offsets(), layout.cq_offsets());
    if params.flags & IORING_SETUP_NO_MMAP != 0 {
        (params.sq_off.user_addr, params.cq_off.user_addr) = addresses;
    }
    guard.flush();
    let copied = user_write(address, &params).and_then(|()| copy_to(guard, &new.view));
    if let Err(error) = copied {
        new.unmap();
        return Err(error);
    }
    move_to(guard, new);
    guard.control.publish_areas(&guard.memory);
    Ok(())
}

fn move_to(guard: &mut RingGuard, new: Memory) {
    guard.memory.replace_with(new);
    guard.ring.mapped.store(guard.memory.address(), Ordering::Relaxed);
}

/// Copies the entries in the queues, and the other words of the areas.
fn copy_to(guard: &mut RingGuard, new: &View) -> Result<(), Errno> {
    let old = guard.memory.view;
    let sq_head = guard.control.header().sq_head.load(Ordering::Relaxed);
    let sq_tail = old.load(word::SQ_TAIL)?;
    let cq_tail = guard.cq_tail();
    let cq_head = old.load(word::CQ_HEAD)?;
    let (submitted, completed) = (sq_tail.wrapping_sub(sq_head), cq_tail.wrapping_sub(cq_head));
    let least = |old: u32, new: u32| old.min(new);
    if submitted > least(old.layout().sq_entries, new.layout().sq_entries)
        || completed > least(old.layout().cq_entries, new.layout().cq_entries)
    {
        return Err(Errno::OVERFLOW);
    }
    for ahead in 0..submitted {
        old.copy_sqe_to(new, sq_head.wrapping_add(ahead))?;
    }
    for ahead in 0..completed {
        old.copy_cqe_to(new, cq_head.wrapping_add(ahead))?;
    }
    for offset in [word::SQ_DROPPED, word::CQ_FLAGS, word::CQ_OVERFLOW] {
        new.store(offset, old.load(offset)?)?;
    }
    // These flags are set in any case, so that no reason for io_uring_enter(2) is lost with the old areas:
    // `io_register_resize_rings` in io_uring/register.c.
    new.store(word::SQ_FLAGS, old.load(word::SQ_FLAGS)? | IORING_SQ_NEED_WAKEUP | IORING_SQ_TASKRUN)?;
    new.store(word::SQ_HEAD, sq_head)?;
    new.store(word::SQ_TAIL, sq_tail)?;
    new.store(word::CQ_HEAD, cq_head)?;
    new.store(word::CQ_TAIL, cq_tail)
}

/// Maps the present areas, for a process that has just joined.
pub(crate) fn follow_areas(guard: &mut RingGuard) -> Result<(), Errno> {
    let header = guard.control.header();
    let generation = header.generation.load(Ordering::Relaxed); // ordered by `begin_sharing`
    if generation == guard.memory.generation {
        return Ok(());
    }
    let [sq_entries, cq_entries] = header.entries.each_ref().map(|entries| entries.load(Ordering::Relaxed));
    let area = header.area.load(Ordering::Relaxed);
    let flags = guard.ring().flags.load(Ordering::Relaxed) & KEPT | IORING_SETUP_CQSIZE;
    let layout = Layout::new(sq_entries, &Params { flags, cq_entries, ..Params::default() })?;
    let new = guard.memory.known_at(layout, area)?;
    move_to(guard, new);
    guard.memory.generation = generation;
    Ok(())
}

impl Control {
    /// Publishes the place of the ring's areas in the memfd, for processes that join later.
    fn publish_areas(&self, memory: &Memory) {
        let header = self.header();
        let layout = memory.view.layout();
        header.area.store(memory.offset, Ordering::Relaxed);
        header.entries[0].store(layout.sq_entries, Ordering::Relaxed);
        header.entries[1].store(layout.cq_entries, Ordering::Relaxed);
        header.generation.store(memory.generation, Ordering::Relaxed);
    }
}
