//! The kernel's Linux AIO as a path of its own: aligned transfers of files opened with O_DIRECT, and of block devices so
//! opened. Where the kernel refuses io_setup(2) a worker makes them.
//!
//! A transfer is *staged* when its turn comes. Before the ring's lock is released all that are staged go to the kernel in one
//! io_submit(2), with RWF_NOWAIT, so that the call does not wait: what would (blocks are to be allocated, the device's queue
//! is full) ends with EAGAIN and goes to a worker, as io_uring's own requests do. What io_submit(2) itself refuses goes there
//! as well, whose call answers with the right error.
//!
//! Completions are read from the context's completion ring in memory, by whoever completes the ring's requests. Each signals
//! an eventfd in the ring's poll set, edge-triggered and never read, which ends the sleep of a thread there; so a ring with
//! transfers in flight is one that somebody has to look after ([`State::awaits_events`]), as if a request were armed.
//!
//! A context is a ring's own, made for its first transfer, and goes to another ring when that one ends (`context.rs`).
//! Nothing that is in flight can be stopped: a closed ring ends when its last transfer has.
//!
//! All of this is part of a ring's state: touched under its lock only.

mod context;

pub use context::{destroy_spare, reset_after_fork, rings_are_gone};

use crate::forced::{point, Point};
use crate::mutation::{mutated, Mutation};
use crate::op::rw::Rw;
use crate::op::Op;
use crate::os::{Os, Sys};
use crate::poll::{Medium, DEVICE};
use crate::request::{self, Detached, Id};
use crate::ring::{RingGuard, State};
use crate::stats::Path;
use crate::wq::Approach;
use crate::{descriptors, Errno};
use anyring_abi::{IoEvent, Iocb, IOCB_FLAG_RESFD};
use context::{Context, MOST};
use rustix::fd::IntoRawFd;
use std::collections::VecDeque;

/// A ring's part of it.
#[derive(Default)]
pub struct Device {
    context: Option<(Context, i32)>,
    /// The ring was refused a context.
    refused: bool,
    /// Transfers whose turn has come.
    pub staged: VecDeque<Id>,
    /// Transfers of which the kernel has not been seen to end.
    in_flight: u32,
    /// An event was taken of which the poll set has not told yet.
    untold: bool,
    /// Room for what is submitted together.
    iocbs: Vec<Iocb>,
    addresses: Vec<usize>,
}

impl Device {
    /// Transfers that the kernel has.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Transfers that the kernel has or is about to get.
    #[inline]
    fn any(&self) -> bool {
        self.in_flight != 0 || !self.staged.is_empty()
    }

    /// Whether the poll set may tell of transfers that were completed since they were seen in memory.
    #[inline]
    pub fn is_untold(&self) -> bool {
        self.untold
    }

    /// The poll set has told whatever it had to tell.
    pub fn told(&mut self) {
        self.untold = false;
    }

    /// Takes what is staged out: it is not submitted.
    pub fn unstage(&mut self) {
        self.staged.clear();
    }

    /// The ring ends, with nothing in flight.
    pub fn release(&mut self) {
        let Some((context, eventfd)) = self.context.take() else { return };
        descriptors::close(eventfd);
        match self.in_flight {
            0 => context.give_back(),
            _ => context.destroy(),
        }
    }

    /// In a forked child: the context is the parent's. What is kept may be in the middle of a change by a thread that the
    /// child does not have.
    pub fn abandon(self) {
        if let Some((_, eventfd)) = &self.context {
            descriptors::close(*eventfd);
        }
        core::mem::forget(self);
    }
}

impl State {
    /// Whether somebody of this process has to look after the poll set: requests are armed, or the kernel has transfers.
    #[inline]
    pub fn awaits_events(&self) -> bool {
        self.poll_set.armed() != 0 || self.device.any()
    }
}

impl RingGuard {
    /// Whether the kernel's AIO takes this transfer on a file opened with O_DIRECT. Makes the context if there is none.
    #[cold]
    pub(crate) fn takes_directly(&mut self, rw: &Rw, fd: i32) -> bool {
        if self.device.refused
            || self.iopoll.is_some()
            || !rw.suits_device()
            || self.poll_set.medium(fd) != Medium::Device
        {
            return false;
        }
        if self.device.context.is_none() {
            match self.make_context() {
                Ok(()) => {}
                Err(Errno::BUSY) => return false, // another ring may have ended by the next transfer
                Err(_) => self.device.refused = true,
            }
        }
        !self.device.refused
    }

    fn make_context(&mut self) -> Result<(), Errno> {
        let engine_end = self.engine_end;
        let epoll = self.poll_set.make_epoll(engine_end)?;
        let context = Context::get()?;
        let made = eventfd().and_then(|eventfd| {
            let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
            Sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, eventfd, events, DEVICE)
                .map(|()| eventfd)
                .inspect_err(|_| descriptors::close(eventfd))
        });
        match made {
            Ok(eventfd) => {
                self.device.context = Some((context, eventfd));
                Ok(())
            }
            Err(error) => {
                context.give_back();
                Err(error)
            }
        }
    }

    /// The kernel is to make the transfer, as `takes_directly` said.
    pub(crate) fn stage(&mut self, id: Id) {
        if let Err(error) = self.keep_file(id) {
            return self.finish(id, -error.raw_os_error(), true);
        }
        self.slab[id].stage();
        self.device.staged.push_back(id);
        self.note_waiting(id);
        point(Point::Stage);
        if let Some(fd) = self.slab[id].target.number() {
            descriptors::note_use(fd);
        }
        self.arm_link_timeout(id);
    }

    /// Submits what is staged, as far as there is room. False when there was nothing to submit.
    pub fn submit_staged(&mut self) -> bool {
        if self.device.staged.is_empty() || self.device.in_flight == MOST {
            return false;
        }
        self.submit_some();
        true
    }

    #[cold]
    fn submit_some(&mut self) {
        let state = &mut **self;
        let aio = &mut state.device;
        let Some((context, eventfd)) = &aio.context else { return };
        let count = aio.staged.len().min((MOST - aio.in_flight) as usize);
        aio.iocbs.clear();
        for id in aio.staged.drain(..count) {
            let Some(request) = state.slab.get(id) else { continue };
            let (Op::Rw(rw), Some(fd)) = (&request.op, request.target.number()) else { continue };
            let iocb = rw.iocb(fd);
            let flags = iocb.flags | IOCB_FLAG_RESFD;
            aio.iocbs.push(Iocb { data: id.to_word(), flags, eventfd: *eventfd as u32, ..iocb });
        }
        aio.addresses.clear();
        aio.addresses.extend(aio.iocbs.iter().map(|iocb| &raw const *iocb as usize));
        let idle = aio.in_flight == 0;
        let mut refused: Vec<(Detached, Errno)> = Vec::new();
        let mut next = 0;
        while next < aio.addresses.len() {
            match context.submit(&aio.addresses[next..]) {
                Ok(taken @ 1..) => {
                    let ids = aio.iocbs[next..next + taken].iter().map(|iocb| Id::from_word(iocb.data));
                    ids.for_each(|id| state.slab[id].submit_to_device());
                    next += taken;
                    aio.in_flight += taken as u32;
                }
                answer => {
                    let id = Id::from_word(aio.iocbs[next].data);
                    refused.push((state.slab.detach(id), answer.err().unwrap_or(Errno::AGAIN)));
                    next += 1;
                }
            }
        }
        if idle && aio.in_flight != 0 {
            self.work_appeared(false);
        }
        for (detached, error) in refused {
            let id = detached.id();
            self.note_refusal(id, error);
            self.punt(id, Approach::Plain);
        }
        self.reap();
    }

    /// What a refusal says of the next transfers.
    fn note_refusal(&mut self, id: Id, error: Errno) {
        match error {
            // The file system has no RWF_NOWAIT: the call might wait there.
            Errno::OPNOTSUPP => {
                if let Some(fd) = self.slab.get(id).and_then(|request| request.target.number()) {
                    self.poll_set.note_no_device(fd);
                }
            }
            Errno::NOSYS => self.device.refused = true,
            _ => {}
        }
    }

    /// Completes the transfers that have ended. True when there were some.
    #[inline]
    pub fn reap(&mut self) -> bool {
        let some = self.device.in_flight != 0
            && self.device.context.as_ref().is_some_and(|(context, _)| context.has_events());
        if some {
            self.reap_all();
        }
        some
    }

    #[cold]
    fn reap_all(&mut self) {
        self.device.untold = true;
        while let Some(event) = self.device.context.as_mut().and_then(|(context, _)| context.take()) {
            self.device.in_flight -= 1;
            self.complete_transfer(&event);
        }
    }

    fn complete_transfer(&mut self, event: &IoEvent) {
        let id = Id::from_word(event.data);
        let (broken, abandoned) = (self.is_broken(), self.abandoned);
        if !self.slab.get(id).is_some_and(|request| matches!(request.state(), request::State::Submitted)) {
            return;
        }
        let id = self.slab.detach(id).id();
        if abandoned {
            drop(self.slab.remove(id));
            return;
        }
        point(Point::Reap);
        self.record_of(id, |it| it.task_add());
        let request = &mut self.slab[id];
        let Op::Rw(rw) = &mut request.op else { return };
        let verdict = rw.followed(event.res);
        match verdict {
            Some(verdict) => {
                request.path = Path::Device;
                self.follow(id, verdict);
            }
            None if mutated(Mutation::DeviceRefusalIsTheAnswer) => {
                self.finish(id, -Errno::AGAIN.raw_os_error(), true)
            }
            None if broken => self.finish(id, -Errno::IO.raw_os_error(), true),
            None => self.punt(id, Approach::Plain),
        }
    }
}

fn eventfd() -> Result<i32, Errno> {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    Ok(descriptors::to_top(rustix::event::eventfd(0, flags)?)?.into_raw_fd())
}
