//! TCP sockets that a receive has emptied: the next receive makes no attempt, since what arrives from then on is an event.
//!
//! A receive has emptied its socket when FIONREAD finds nothing left, which is asked after one that filled its buffer anyway,
//! and here after one that did not. Whatever arrives later makes an edge of the standing registration, but for what had its
//! edge before and is not counted as data: the end of the stream, an error, or urgent data, where a receive stops. An event
//! that tells of one of these is remembered, as is a receive of urgent data, and from then on every receive makes its attempt.
//! An event that was not taken yet is still to come, and leads to an attempt as every event does.
//!
//! It is no hint: nobody looks again before a sleep. So it holds only where every close of the number is seen, and for
//! sockets of plain TCP, of which any byte is an event.
//!
//! Data may be there all the same, and natively the receive would complete when it is submitted. So the poll set is looked at
//! before a call returns that does not wait ([`RingGuard::look_for_unlooked`]), and before a request is cancelled or a timer
//! fires.
//!
//! Part of a ring's state, as all of `poll`.

use crate::descriptors;
use crate::mutation::{mutated, Mutation};
use crate::op::net::{is_plain_tcp, unread_bytes};
use crate::op::{net, Direction};
use crate::poll::{PollSet, ENDED, READ};
use crate::request::ListKind;
use crate::ring::RingGuard;

/// How often a receive empties a socket before it is asked what that means.
const OFTEN: u8 = 4;
/// Events that tell of something besides data. They have to be asked for: all but urgent data are, by any reader.
const BESIDE_DATA: u32 = libc::EPOLLRDHUP as u32 | libc::EPOLLPRI as u32 | ENDED;

/// What is known of a descriptor in this respect.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Emptied {
    /// How often that happened, up to [`OFTEN`].
    times: u8,
    /// Whether any byte that arrives is an event; asked once.
    tells: Option<bool>,
    /// There may be something that has had its event.
    doubtful: bool,
}

impl Emptied {
    /// The poll set told of these events.
    #[inline]
    pub fn note_event(&mut self, seen: u32) {
        self.doubtful |= seen & BESIDE_DATA != 0 && !mutated(Mutation::EndIsNoDoubt);
    }
}

impl PollSet {
    /// A receive has just emptied the socket, under this hold of the lock.
    #[inline]
    pub fn note_emptied(&mut self, fd: i32, emptied: net::Emptied) {
        let Some(Some(entry)) = self.entries.get_mut(fd as usize) else { return };
        if entry.registered == 0 || entry.facts.emptied.doubtful || !descriptors::closes_are_seen() {
            return;
        }
        match entry.facts.emptied.tells {
            Some(true) if emptied == net::Emptied::Surely || unread_bytes(fd) == 0 => {
                entry.facts.note_empty(ListKind::Read);
            }
            Some(_) => {}
            None => self.ask_whether_it_tells(fd),
        }
    }

    /// Urgent data was received, or tried to.
    #[cold]
    pub fn doubt_emptied(&mut self, fd: i32) {
        if let Some(entry) = self.existing(fd) {
            entry.facts.emptied.doubtful = true;
        }
    }

    /// Whether a request was armed without an attempt since the poll set was last looked at, or waits for its first one.
    #[inline]
    pub fn has_unlooked(&self) -> bool {
        self.unlooked || self.has_put_off()
    }

    /// A request is armed without an attempt.
    #[inline]
    pub fn note_unlooked(&mut self, direction: Direction) {
        self.unlooked |= direction == Direction::Read;
    }

    #[cold]
    fn ask_whether_it_tells(&mut self, fd: i32) {
        let (Some(epoll), Some(entry)) = (self.epoll, self.existing(fd)) else { return };
        entry.facts.emptied.times += 1;
        if entry.facts.emptied.times < OFTEN {
            return;
        }
        // What the registration finds now is an event, which says whether there is any doubt.
        let wanted = entry.registered | READ;
        let tells = is_plain_tcp(fd) && self.control_registration(epoll, fd, wanted) == Ok(true);
        if let Some(entry) = self.existing(fd) {
            entry.facts.emptied.tells = Some(tells);
        }
    }
}

impl RingGuard {
    /// Serves what is there already of requests that were armed without an attempt, if there are such.
    #[inline]
    pub fn look_for_unlooked(&mut self) {
        if core::mem::take(&mut self.poll_set.unlooked) {
            self.poll_set.looking = true;
            self.poll_now();
            self.poll_set.looking = false;
        }
    }

    /// At the end of a submission: what became ready before it, and what its READ_MULTISHOTs have left behind, has its turn.
    #[inline]
    pub fn go_on(&mut self) {
        if core::mem::take(&mut self.poll_set.goes_on) {
            self.poll_now();
            self.settle();
        }
    }

    /// The same before something ends requests: also first attempts that were put off are made.
    #[inline]
    pub fn attempt_unlooked(&mut self) {
        if self.poll_set.has_unlooked() {
            self.look_for_unlooked();
            self.attempt_all_put_off();
        }
    }
}
