//! The device path: transfers through the kernel's Linux AIO. It serves aligned transfers of files and block devices
//! that were opened with O_DIRECT. Where the kernel refuses io_setup(2), a worker makes these transfers.
//!
//! A transfer is *staged* when its turn comes. Before the ring's lock is released, one io_submit(2) submits all
//! staged transfers. RWF_NOWAIT keeps that call from waiting.
//!
//! A transfer that would wait ends with EAGAIN and goes to a worker, as io_uring's own requests do. It would wait,
//! for example, if blocks must be allocated, or if the device's queue is full. A transfer that io_submit(2) itself
//! refuses also goes to a worker, whose call returns the right error.
//!
//! The thread that completes the ring's requests reads completions from the context's completion ring in memory. Each
//! completion signals an eventfd in the ring's poll set. The eventfd is edge-triggered and never read; its event
//! wakes a thread that sleeps in the poll set. So a ring with transfers in flight awaits events
//! (`State::awaits_events`), as if a request were armed.
//!
//! A context belongs to one ring. It is made for the ring's first transfer, and passes to another ring when its ring
//! ends (`context.rs`). A transfer in flight cannot be stopped, so a closed ring ends after its last transfer.
//!
//! All of this is part of a ring's state and is accessed under the ring's lock only.

mod context;

pub use context::{destroy_spare, has_spare, reset_after_fork};

use crate::descriptors::ends::EngineEnds;
use crate::os::calls;
use crate::os::{standard, Os, Sys};
use crate::poll::PollSet;
use crate::poll::DEVICE;
use crate::request::Slab;
use crate::request::{Detached, Id};
use crate::{descriptors, Errno};
use anyring_abi::{IoEvent, Iocb, IOCB_FLAG_RESFD};
use context::{Context, MOST};
use rustix::fd::IntoRawFd;
use std::collections::VecDeque;

/// The device path's part of a ring's state.
#[derive(Default)]
pub struct Device {
    context: Option<(Context, i32)>,
    /// True if no context could be made for the ring.
    refused: bool,
    /// Transfers whose turn has come.
    pub staged: VecDeque<Id>,
    /// Number of transfers in flight whose end has not been reaped.
    in_flight: u32,
    /// True if epoll may still report an event that was reaped from memory already.
    unreported: bool,
    /// Buffers for the iocbs that are submitted together, and for their addresses.
    iocbs: Vec<Iocb>,
    addresses: Vec<usize>,
}

impl Device {
    /// Returns the number of transfers submitted to the kernel and not yet reaped.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// True if a transfer is staged or in flight.
    #[inline]
    pub fn any(&self) -> bool {
        self.in_flight != 0 || !self.staged.is_empty()
    }

    /// True if epoll may still report a completion that was already reaped from memory.
    #[inline]
    pub fn has_unreported(&self) -> bool {
        self.unreported
    }

    /// Records that epoll has reported all reaped completions.
    pub fn all_reported(&mut self) {
        self.unreported = false;
    }

    /// True unless a context was denied to the ring.
    pub fn may_be_had(&self) -> bool {
        !self.refused
    }

    /// Denies the ring a context from now on.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// Makes the ring's context if there is none, with an eventfd in `poll_set` that signals completions.
    ///
    /// # Errors
    /// BUSY if all contexts are in use, although one may be free by the next transfer. For other failures, the error
    /// of io_setup(2), eventfd(2) or epoll.
    pub fn make_context(&mut self, poll_set: &mut PollSet, ends: EngineEnds) -> Result<(), Errno> {
        if self.context.is_some() {
            return Ok(());
        }
        let epoll = poll_set.make_epoll(ends)?;
        let context = Context::get()?;
        let made = eventfd().and_then(|eventfd| {
            let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
            Sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, eventfd, events, DEVICE)
                .map(|()| eventfd)
                .inspect_err(|_| descriptors::close(eventfd))
        });
        match made {
            Ok(eventfd) => {
                self.context = Some((context, eventfd));
                Ok(())
            }
            Err(error) => {
                context.give_back();
                Err(error)
            }
        }
    }

    /// True if a transfer is staged and the context has room for it.
    #[inline]
    pub fn has_to_submit(&self) -> bool {
        !self.staged.is_empty() && self.in_flight != MOST
    }

    /// Submits staged transfers, as far as there is room. Returns the requests that io_submit(2) refused, with their
    /// errors.
    #[cold]
    pub fn submit(&mut self, slab: &mut Slab) -> Vec<(Detached, Errno)> {
        let mut refused = Vec::new();
        let Some((context, eventfd)) = &self.context else { return refused };
        let count = self.staged.len().min((MOST - self.in_flight) as usize);
        self.iocbs.clear();
        for id in self.staged.drain(..count) {
            let Some(request) = slab.get(id) else { continue };
            let (Some(rw), Some(fd)) = (request.op.rw(), request.target.number()) else { continue };
            let iocb = rw.iocb(fd);
            let flags = iocb.flags | IOCB_FLAG_RESFD;
            self.iocbs.push(Iocb { data: id.to_word(), flags, eventfd: *eventfd as u32, ..iocb });
        }
        self.addresses.clear();
        self.addresses.extend(self.iocbs.iter().map(|iocb| &raw const *iocb as usize));
        let mut next = 0;
        while next < self.addresses.len() {
            match context.submit(&self.addresses[next..]) {
                Ok(taken @ 1..) => {
                    let ids = self.iocbs[next..next + taken].iter().map(|iocb| Id::from_word(iocb.data));
                    ids.for_each(|id| slab[id].submit_to_device());
                    next += taken;
                    self.in_flight += taken as u32;
                }
                answer => {
                    let id = Id::from_word(self.iocbs[next].data);
                    refused.push((slab.detach(id), answer.err().unwrap_or(Errno::AGAIN)));
                    next += 1;
                }
            }
        }
        refused
    }

    /// True if a transfer has ended and has not been reaped.
    #[inline]
    pub fn has_events(&self) -> bool {
        self.in_flight != 0 && self.context.as_ref().is_some_and(|(context, _)| context.has_events())
    }

    /// Reaps the next transfer that has ended. epoll may still have to report that event.
    pub fn reap_event(&mut self) -> Option<IoEvent> {
        let event = self.context.as_mut()?.0.reap()?;
        self.unreported = true;
        self.in_flight -= 1;
        Some(event)
    }

    /// Forgets the staged transfers, so that they are not submitted.
    pub fn unstage(&mut self) {
        self.staged.clear();
    }

    /// Gives the context back when the ring ends. With transfers still in flight the context is destroyed.
    pub fn release(&mut self) {
        let Some((context, eventfd)) = self.context.take() else { return };
        descriptors::close(eventfd);
        match self.in_flight {
            0 => context.give_back(),
            _ => context.destroy(),
        }
    }

    /// Abandons the context in a forked child, since it belongs to the parent. Memory is leaked, because a thread
    /// that the child does not have may have been changing it.
    pub fn abandon(self) {
        if let Some((_, eventfd)) = &self.context {
            descriptors::close(*eventfd);
        }
        core::mem::forget(self);
    }
}

fn eventfd() -> Result<i32, Errno> {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    Ok(descriptors::to_top(standard::on_any_thread(|| calls::eventfd(0, flags))?)?.into_raw_fd())
}
