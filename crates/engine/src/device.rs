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
//! transfers in flight is one that somebody has to look after (`State::awaits_events`), as if a request were armed.
//!
//! A context is a ring's own, made for its first transfer, and goes to another ring when that one ends (`context.rs`).
//! Nothing that is in flight can be stopped: a closed ring ends when its last transfer has.
//!
//! All of this is part of a ring's state: touched under its lock only.

mod context;

pub use context::{destroy_spare, has_spare, reset_after_fork};

use crate::os::calls;
use crate::os::{Os, Sys};
use crate::poll::PollSet;
use crate::poll::DEVICE;
use crate::request::Slab;
use crate::request::{Detached, Id};
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
    pub fn any(&self) -> bool {
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

    /// Whether the ring may have a context, or has one.
    pub fn may_be_had(&self) -> bool {
        !self.refused
    }

    /// The ring has no context from now on.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// Makes the ring's context if there is none, with an eventfd in `poll_set` that tells of completions.
    ///
    /// # Errors
    /// BUSY where all contexts are in use; another ring may have ended by the next transfer. What io_setup(2) answered.
    pub fn make_context(&mut self, poll_set: &mut PollSet, engine_end: i32) -> Result<(), Errno> {
        if self.context.is_some() {
            return Ok(());
        }
        let epoll = poll_set.make_epoll(engine_end)?;
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

    /// Whether something is staged that the context has room for.
    #[inline]
    pub fn has_to_submit(&self) -> bool {
        !self.staged.is_empty() && self.in_flight != MOST
    }

    /// Submits what is staged, as far as there is room: the requests that io_submit(2) refused, each with its error.
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

    /// Whether a transfer has ended that was not taken.
    #[inline]
    pub fn has_events(&self) -> bool {
        self.in_flight != 0 && self.context.as_ref().is_some_and(|(context, _)| context.has_events())
    }

    /// Takes the next transfer that has ended, of which the poll set has yet to tell.
    pub fn take_event(&mut self) -> Option<IoEvent> {
        let event = self.context.as_mut()?.0.take()?;
        self.untold = true;
        self.in_flight -= 1;
        Some(event)
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

fn eventfd() -> Result<i32, Errno> {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    Ok(descriptors::to_top(calls::eventfd(0, flags)?)?.into_raw_fd())
}
