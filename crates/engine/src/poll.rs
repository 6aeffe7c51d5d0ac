//! Waiting for readiness: a ring's poll set.
//!
//! Every pollable descriptor that a request ever waited for keeps a standing edge-triggered registration, so that
//! arming again costs nothing. What the engine remembers of the registration is a hint. The kernel keys a
//! registration by (file, number). If the program closes a number without the engine's notice, the entry names
//! another file. So each entry carries a generation that comes back with every event, and stale events are ignored.
//!
//! Before a thread sleeps, every entry armed since its last check gets one EPOLL_CTL_MOD. If that finds a reused
//! number (ENOENT), the file is polled again.
//!
//! `poll/facts.rs` keeps what is remembered of each file, `poll/turns.rs` the order of service, and `poll/ahead.rs` what
//! one call found for several POLL_ADDs. `issue/arm.rs` arms
//! and serves the requests that wait. `issue/single.rs` does so for requests of Linux AIO that wait without a slot in
//! the slab. `issue/turns.rs` makes polls together, and handles requests that were armed without an attempt.
//!
//! All of this is part of a ring's state and is accessed under the ring's lock only. The exception is `epoll_wait`,
//! which is called without the lock.

pub(crate) mod ahead;
pub(crate) mod facts;
pub(crate) mod turns;

use crate::descriptors::ends::EngineEnds;
use crate::mutation::{mutated, Mutation};
use crate::os::calls;
use crate::os::{file_status, owner, EpollEvent, Os, Sys};
use crate::request::slab::List;
use crate::request::ListKind;
use crate::{alloc, descriptors, Errno};
use facts::Facts;
pub use facts::Medium;
use rustix::event::epoll;
use rustix::fd::{AsRawFd, IntoRawFd};
use std::collections::VecDeque;

pub(crate) const READ: u32 =
    (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLRDNORM | libc::EPOLLRDBAND) as u32;
pub(crate) const WRITE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM | libc::EPOLLWRBAND) as u32;
pub(crate) const ENDED: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
pub(crate) const EDGE: u32 = libc::EPOLLET as u32;

/// The interval of polls on files that epoll(7) does not watch, in nanoseconds.
pub const CHECK_NS: u64 = 10_000_000;

/// The data of the wake-up descriptor's registration. No descriptor has this number.
pub(crate) const KICK: u64 = u64::MAX;
/// The data of the engine end's registration, through which other processes wake this process (`shared::member`).
pub(crate) const FOREIGN_KICK: u64 = u64::MAX - 1;

/// The data of the registration through which the kernel's AIO reports completions.
pub const DEVICE: u64 = u64::MAX - 2;

/// The state of one descriptor number.
#[derive(Default)]
pub(crate) struct Entry {
    /// Comes back with every event. Changes when the number is found to name another file.
    pub(crate) generation: u32,
    /// The events that the standing registration asks for; 0 for none.
    pub(crate) registered: u32,
    pub(crate) facts: Facts,
    /// True if a read (or a poll, for Linux AIO) was armed without an attempt. The attempt is made before any thread
    /// sleeps.
    pub(crate) postponed: bool,
    /// True if the entry is on the list of those to verify before a sleep.
    pub(crate) unverified: bool,
    /// True if the entry is on the list of those that epoll(7) does not watch.
    pub(crate) unwatched: bool,
    /// The events that the last poll of the file found. Multishot polls have reported them.
    pub(crate) found: u16,
    /// The place, in the ring's context of Linux AIO, of a request that waits for this entry without a slot in the
    /// slab. The lists are then empty.
    pub(crate) single: Option<u32>,
    pub(crate) readers: List,
    pub(crate) writers: List,
    pub(crate) polls: List,
}

impl Entry {
    pub(crate) fn list(&mut self, kind: ListKind) -> &mut List {
        match kind {
            ListKind::Read => &mut self.readers,
            ListKind::Write => &mut self.writers,
            ListKind::Poll => &mut self.polls,
        }
    }

    /// Drops what was known of the file that the number named before, and makes its events stale.
    fn names_another_file(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.facts = Facts::default();
    }

    pub(crate) fn idle(&self) -> bool {
        self.readers.is_empty() && self.writers.is_empty() && self.polls.is_empty() && self.single.is_none()
    }
}

/// A ring's poll set.
#[derive(Default)]
pub struct PollSet {
    /// The entries, by descriptor number.
    entries: Vec<Option<Box<Entry>>>,
    pub(crate) epoll: Option<i32>,
    kick: Option<i32>,
    pub(crate) unverified: VecDeque<i32>,
    /// Entries with a request whose first attempt was postponed.
    pub(crate) postponed: VecDeque<i32>,
    /// Entries that epoll(7) does not watch: see [`PollSet::leave_unwatched`].
    unwatched: VecDeque<i32>,
    /// Number of polls while `unverified` or `postponed` had an entry.
    looks: u32,
    /// The waiting requests that are to be served next.
    pub(crate) due: turns::Due,
    /// Number of requests that wait for readiness.
    pub(crate) armed: u32,
    /// The answers of one poll(2) for POLL_ADDs that are about to be taken from the SQ.
    pub(crate) ahead: ahead::Ahead,
    /// The buffer for the events of a poll.
    pub(crate) seen: Vec<EpollEvent>,
}

impl PollSet {
    /// True if a first attempt was postponed and is still to be made.
    pub fn has_postponed(&self) -> bool {
        !self.postponed.is_empty()
    }

    /// Drops the postponed attempt on `fd`, which is made now, or left to an event of the registration.
    pub fn forget_postponed(&mut self, fd: i32) {
        if self.existing(fd).is_some_and(|entry| core::mem::take(&mut entry.postponed)) {
            self.postponed.retain(|other| *other != fd);
        }
    }

    /// Postpones the first attempt on `fd`. It is made before any thread sleeps.
    pub(crate) fn postpone(&mut self, fd: i32) {
        if !core::mem::replace(&mut self.entry(fd).postponed, true) {
            self.postponed.push_back(fd);
        }
    }

    /// True if a request could wait for the events `wanted` on `fd` without a slot in the slab. No other request may
    /// wait for `fd`, whose registration must ask for these events already.
    pub(crate) fn has_room_single(&mut self, fd: i32, wanted: u32) -> bool {
        let entry = self.existing(fd).filter(|entry| entry.registered & wanted == wanted && entry.idle());
        entry.is_some_and(|entry| !entry.facts.is_shut_down()) && descriptors::closes_are_seen()
    }

    /// Makes the request at `place` in the ring's context of Linux AIO wait for `fd` without a slot in the slab.
    pub(crate) fn begin_single(&mut self, fd: i32, place: u32) {
        self.entry(fd).single = Some(place);
        self.armed += 1;
    }

    /// Returns the number of requests that wait for readiness.
    pub fn armed(&self) -> u32 {
        self.armed
    }

    /// Returns the poll set's descriptor, once there is one.
    pub fn epoll(&self) -> Option<i32> {
        self.epoll
    }

    /// Returns the descriptor that ends an epoll wait of this ring, once there is one.
    pub fn kick(&self) -> Option<i32> {
        self.kick
    }

    /// True if entries wait to be verified, or reads wait for their first attempt.
    pub fn has_unverified(&self) -> bool {
        !self.unverified.is_empty() || !self.postponed.is_empty()
    }

    /// True if it is the turn of the entry that has waited longest to be verified or attempted. Without turns, such
    /// entries would starve if others are always ready, since no thread ever sleeps then.
    #[inline]
    pub fn is_turn(&mut self) -> bool {
        const TURN: u32 = 32; // futile attempts then cost each poll a percent or two
        if !self.has_unverified() {
            return false;
        }
        self.looks = self.looks.wrapping_add(1);
        self.looks.is_multiple_of(TURN)
    }

    /// Makes the poll set, if there can be one. If no descriptor is left for the set, requests that wait are not
    /// watched.
    pub fn make_epoll_if_possible(&mut self, ends: EngineEnds) -> Result<Option<i32>, Errno> {
        match self.make_epoll(ends) {
            Err(Errno::MFILE | Errno::NFILE) => Ok(None),
            made => made.map(Some),
        }
    }

    /// Returns the poll set's descriptor, and makes the poll set if there is none. Other processes wake it through
    /// `ends`, if there is one.
    #[inline]
    pub fn make_epoll(&mut self, ends: EngineEnds) -> Result<i32, Errno> {
        match self.epoll {
            Some(epoll) => Ok(epoll),
            None => self.make_first_epoll(ends),
        }
    }

    /// Makes the poll set and its wake-up descriptor. A process that runs in another one's memory makes none, since the
    /// other one's table would not have the numbers.
    #[cold]
    fn make_first_epoll(&mut self, ends: EngineEnds) -> Result<i32, Errno> {
        if owner::has_other_table() {
            return Err(Errno::MFILE);
        }
        let set = descriptors::to_top(calls::epoll_create(epoll::CreateFlags::CLOEXEC)?)?;
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let kick = descriptors::to_top(calls::eventfd(0, flags)?)?;
        let add =
            |fd, data| Sys::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32 | EDGE, data);
        add(kick.as_raw_fd(), KICK)?;
        for end in ends.watched() {
            add(end, FOREIGN_KICK)?;
        }
        let set = set.into_raw_fd();
        (self.epoll, self.kick) = (Some(set), Some(kick.into_raw_fd()));
        Ok(set)
    }

    /// Makes room for the entry of a number. Fails with `EBADF` for a number that is beyond the table and not open,
    /// since the table would grow up to it.
    #[inline]
    pub(crate) fn make_room(&mut self, fd: i32) -> Result<(), Errno> {
        match usize::try_from(fd).is_ok_and(|index| index < self.entries.len()) {
            true => Ok(()),
            false => self.make_more_room(fd),
        }
    }

    #[cold]
    fn make_more_room(&mut self, fd: i32) -> Result<(), Errno> {
        descriptors::check_open(fd)?;
        let size = fd as usize + 1;
        // Each number is once in each queue.
        for queue in [&mut self.unverified, &mut self.postponed, &mut self.unwatched] {
            queue.try_reserve(size - queue.len()).map_err(alloc::refused)?;
        }
        self.entries.try_reserve(size - self.entries.len()).map_err(alloc::refused)?;
        self.entries.resize_with(size, || None);
        Ok(())
    }

    /// Returns the entry of a number for which there is room.
    #[inline]
    pub(crate) fn entry(&mut self, fd: i32) -> &mut Entry {
        self.entries[fd as usize].get_or_insert_with(new_entry)
    }

    pub(crate) fn existing(&mut self, fd: i32) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(fd).ok()?)?.as_deref_mut()
    }

    /// Makes the standing registration also ask for `events`. False if the file cannot be polled.
    pub(crate) fn register(
        &mut self,
        epoll: Option<i32>,
        fd: i32,
        events: u32,
        attempted_now: bool,
    ) -> Result<bool, Errno> {
        let wanted = self.entry(fd).registered | events | EDGE;
        match self.joins(fd, wanted, attempted_now) {
            true => Ok(true),
            false => self.control_registration(epoll, fd, wanted),
        }
    }

    /// Makes one more request wait by the standing registration of `fd`. False if that does not ask for all of `events`,
    /// or if its event would not tell enough.
    #[inline]
    pub(crate) fn joins(&mut self, fd: i32, events: u32, attempted_now: bool) -> bool {
        let Some(entry) = self.existing(fd) else { return false };
        if entry.registered & events != events || entry.facts.is_shut_down() {
            return false;
        }
        // An attempt under this same hold of the lock needs no check, if the number cannot have changed without the
        // engine's notice.
        let sure = attempted_now && descriptors::closes_are_seen();
        if !sure && !entry.unverified {
            entry.unverified = true;
            self.unverified.push_back(fd);
        }
        true
    }

    /// Forgets what is remembered of `fd`, which names another file than before, and makes its events stale. If an
    /// epoll registration of the old file remains, it is found when the number is registered anew.
    pub fn forget(&mut self, fd: i32) {
        if mutated(Mutation::OwnNumbersStayKnown) && descriptors::is_own(fd) {
            return;
        }
        self.ahead.forget();
        if let Some(entry) = self.existing(fd) {
            entry.names_another_file();
            entry.registered = 0;
        }
    }

    /// Adds or changes the registration, whichever the kernel accepts. A number may have been reused, or its file may
    /// still be registered through a duplicate. False if the file cannot be polled.
    pub(crate) fn control_registration(&mut self, epoll: Option<i32>, fd: i32, wanted: u32) -> Result<bool, Errno> {
        let Some(epoll) = epoll else { return self.leave_unwatched(fd) };
        let entry = self.entry(fd);
        let data = |entry: &Entry| u64::from(entry.generation) << 32 | fd as u64;
        let known = entry.registered != 0;
        let (first, second) = match known {
            true => (libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_ADD),
            false => (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD),
        };
        let mut answer = Sys::epoll_ctl(epoll, first, fd, wanted, data(entry));
        if matches!(answer, Err(Errno::NOENT | Errno::EXIST)) {
            // The number names another file than the known one, whose events must not count.
            entry.names_another_file();
            answer = Sys::epoll_ctl(epoll, second, fd, wanted, data(entry));
        }
        let answer = match answer {
            Ok(()) => Ok(true),
            Err(Errno::PERM) => Ok(false),
            Err(Errno::INVAL | Errno::LOOP | Errno::NOSPC | Errno::NOMEM) => return self.leave_unwatched(fd),
            Err(error) => Err(error),
        };
        entry.registered = if answer == Ok(true) { wanted } else { 0 };
        entry.facts.set_unpollable(answer == Ok(false));
        descriptors::record_use(fd);
        answer
    }

    /// Leaves the requests on `fd` to polls from time to time ([`CHECK_NS`]). Either there is no poll set, or
    /// epoll(7) does not take the file, for a reason that would not stop a request in the kernel. Sets may watch each
    /// other too deeply, or too many sets may watch one file (`ep_loop_check`, `reverse_path_check` in
    /// fs/eventpoll.c). The user may also watch too much. False if the file cannot be polled.
    fn leave_unwatched(&mut self, fd: i32) -> Result<bool, Errno> {
        let kind = file_status(fd)?.kind;
        let can_be_polled = ![libc::S_IFREG, libc::S_IFDIR, libc::S_IFBLK].contains(&kind);
        descriptors::record_use(fd);
        let entry = self.entry(fd);
        entry.registered = 0;
        entry.facts.set_unpollable(!can_be_polled);
        if can_be_polled && !core::mem::replace(&mut entry.unwatched, true) {
            self.unwatched.push_back(fd); // there is room for each number
        }
        Ok(can_be_polled)
    }

    /// True if a request may wait for a file that epoll(7) does not watch.
    #[inline]
    pub fn has_unwatched(&self) -> bool {
        !self.unwatched.is_empty()
    }

    /// Returns the time until the next poll of files that are not watched. `None` if there are no such files.
    pub fn recheck_ns(&self) -> Option<u64> {
        self.has_unwatched().then_some(CHECK_NS)
    }

    /// Returns the next number that is not watched, and the generation of its entry. Takes numbers without waiting
    /// requests off the list.
    pub(crate) fn next_unwatched(&mut self) -> Option<(i32, u32)> {
        loop {
            let fd = self.unwatched.pop_front()?;
            let Some(entry) = self.existing(fd) else { continue };
            if entry.idle() || entry.registered != 0 {
                (entry.unwatched, entry.found) = (false, 0);
                continue;
            }
            let generation = entry.generation;
            self.unwatched.push_back(fd);
            return Some((fd, generation));
        }
    }

    /// Returns the number of descriptors that are not watched.
    pub(crate) fn unwatched(&self) -> usize {
        self.unwatched.len()
    }

    /// Makes epoll report an event for data or room that `fd` has already.
    pub fn renew(&mut self, fd: i32) {
        let (Some(epoll), Some(entry)) = (self.epoll, self.existing(fd)) else { return };
        entry.facts.may_be_ready();
        if entry.unwatched {
            return; // the file is polled anyway
        }
        let wanted = entry.registered;
        // If the number can no longer be registered, that is found before the next sleep.
        let _ = self.control_registration(Some(epoll), fd, wanted);
    }

    /// Gives up, in a forked child, the child's numbers of descriptors that the parent goes on using. The rest is
    /// leaked, since a thread that the child does not have may have been changing it.
    pub fn abandon(mut self) {
        for fd in [self.epoll.take(), self.kick.take()].into_iter().flatten() {
            descriptors::close(fd);
        }
        core::mem::forget(self);
    }

    /// Forgets everything except the poll set itself, on which a thread may be asleep.
    pub fn forget_requests(&mut self) {
        self.entries.clear();
        self.unverified.clear();
        self.postponed.clear();
        self.unwatched.clear();
        self.armed = 0;
    }

    /// Closes the set's descriptors.
    pub fn release(&mut self) {
        for fd in [self.epoll.take(), self.kick.take()].into_iter().flatten() {
            descriptors::close(fd);
        }
        self.entries.clear();
    }
}

/// Makes an entry, out of line: most numbers have one.
#[cold]
fn new_entry() -> Box<Entry> {
    Box::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::refusing::refusing;

    #[test]
    fn a_poll_set_that_cannot_be_made_leaves_no_descriptors() {
        refusing(&[(libc::SYS_epoll_ctl, None, libc::ENOSPC)], || {
            // The thread gets a descriptor table of its own, in which no other test opens or closes numbers.
            // SAFETY: the thread belongs to this test, and unsharing closes nothing that it shares.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }.expect("unshare");
            let open = || std::fs::read_dir("/proc/thread-self/fd").expect("descriptors").count();
            let before = open();
            assert_eq!(PollSet::default().make_epoll(EngineEnds::NONE), Err(Errno::NOSPC));
            assert_eq!(open(), before);
        });
    }
}
