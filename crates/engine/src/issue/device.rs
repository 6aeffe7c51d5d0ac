//! Transfers that the kernel's Linux AIO makes: staging, submitting and completing them.

use crate::forced::{point, Point};
use crate::mutation::{mutated, Mutation};
use crate::op::rw::Rw;
use crate::op::Punt;
use crate::poll::Medium;
use crate::request::{self, Id};
use crate::ring::{helper, RingGuard};
use crate::stats::Path;
use crate::wq::Approach;
use crate::{descriptors, Errno};
use anyring_abi::IoEvent;

/// Stages a transfer for the kernel's AIO, as `goes_to_device` decided.
pub(crate) fn stage(guard: &mut RingGuard, id: Id) {
    if let Err(error) = guard.keep_file(id) {
        return guard.finish(id, -error.raw_os_error(), true);
    }
    guard.slab.stage(id);
    guard.device.staged.push_back(id);
    guard.record_waiting(id);
    point(Point::Stage);
    if let Some(fd) = guard.slab[id].target.number() {
        descriptors::record_use(fd);
    }
    guard.arm_link_timeout(id);
}

/// Submits staged transfers, as far as the AIO context has room. False if there was nothing to submit.
#[inline]
pub fn submit_staged(guard: &mut RingGuard) -> bool {
    let some = guard.device.has_to_submit();
    if some {
        submit_some(guard);
    }
    some
}

#[cold]
fn submit_some(guard: &mut RingGuard) {
    let state = &mut **guard;
    let idle = state.device.in_flight() == 0;
    let refused = state.device.submit(&mut state.slab);
    if idle && state.device.in_flight() != 0 {
        guard.work_appeared(false);
    }
    for (detached, error) in refused {
        let id = detached.id();
        guard.record_refusal(id, error);
        guard.punt(id, Approach::Plain, Punt::Direct);
    }
    reap(guard);
}

/// Completes the transfers that have ended. True if any transfer had ended.
#[inline]
pub fn reap(guard: &mut RingGuard) -> bool {
    let some = guard.device.has_events();
    if some {
        reap_all(guard);
    }
    some
}

#[cold]
fn reap_all(guard: &mut RingGuard) {
    while let Some(event) = guard.device.reap_event() {
        complete_transfer(guard, &event);
    }
}

fn complete_transfer(guard: &mut RingGuard, event: &IoEvent) {
    let id = Id::from_word(event.data);
    let (broken, abandoned) = (guard.is_broken(), guard.is_abandoned());
    if !guard.slab.get(id).is_some_and(|request| matches!(request.state(), request::State::Submitted)) {
        return;
    }
    let id = guard.slab.detach(id).id();
    if abandoned {
        guard.slab.remove(id);
        return;
    }
    point(Point::Reap);
    guard.record_of(id, |it| it.task_add());
    let request = &mut guard.slab[id];
    let Some(rw) = request.op.rw_mut() else { return };
    let verdict = rw.followed(event.res);
    match verdict {
        Some(verdict) => {
            request.path = Path::Device;
            guard.follow(id, verdict);
        }
        None if mutated(Mutation::DeviceRefusalIsTheAnswer) => guard.finish(id, -Errno::AGAIN.raw_os_error(), true),
        None if broken => guard.finish(id, -Errno::IO.raw_os_error(), true),
        None => guard.punt(id, Approach::Plain, Punt::Direct),
    }
}

impl crate::ring::State {
    /// True if the kernel's AIO takes this transfer on a file opened with O_DIRECT. Makes the AIO context if there is
    /// none.
    #[cold]
    pub(crate) fn goes_to_device(&mut self, rw: &Rw, fd: i32) -> bool {
        let state = self;
        let suits = state.iopoll.is_none() && rw.suits_device() && state.poll_set.medium(fd) == Medium::Device;
        if !suits || !state.device.may_be_had() {
            return false;
        }
        match state.device.make_context(&mut state.poll_set, state.ends) {
            Ok(()) => {
                if !helper::is_open() {
                    helper::open_ahead(); // the helper gives the context back after the last ring
                }
                true
            }
            Err(Errno::BUSY) => false,
            Err(_) => {
                state.device.refuse();
                false
            }
        }
    }

    /// Records the consequence of a refusal for later transfers.
    fn record_refusal(&mut self, id: Id, error: Errno) {
        match error {
            // The file system does not support RWF_NOWAIT: the call might wait.
            Errno::OPNOTSUPP => {
                if let Some(fd) = self.slab.get(id).and_then(|request| request.target.number()) {
                    self.poll_set.mark_no_device(fd);
                }
            }
            Errno::NOSYS => self.device.refuse(),
            _ => {}
        }
    }
}
