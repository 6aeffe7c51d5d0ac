//! Waiting for readiness: a ring's poll set.
//!
//! Every pollable descriptor that a request ever waited for keeps a standing edge-triggered registration, so that
//! arming again costs nothing. What is remembered of it is a hint. The kernel keys a registration by (file, number),
//! and a close that was not seen leaves the entry naming another file. So each entry carries a generation that comes
//! back with every event, and stale events are ignored. Before a thread sleeps, every entry armed since its last
//! check gets one EPOLL_CTL_MOD. It finds a reused number (ENOENT) and polls the file again.
//!
//! `poll/facts.rs` has what is remembered of each file, `poll/turns.rs` the order of service. `issue/arm.rs` works on
//! all of this for requests that wait, and `issue/single.rs` for those of Linux AIO that wait alone. `issue/turns.rs`
//! makes polls together, and handles requests that were armed without an attempt.
//!
//! All of this is part of a ring's state and is accessed under the ring's lock only. `epoll_wait` alone is called
//! outside it.

pub(crate) mod facts;
pub(crate) mod turns;

use crate::mutation::{mutated, Mutation};
use crate::os::calls;
use crate::os::{file_status, EpollEvent, Os, Sys};
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

/// The interval of polls on files that epoll(7) does not watch.
pub const CHECK_NS: u64 = 10_000_000;

/// Data of the wake-up descriptor's registration: no descriptor has this number.
pub(crate) const KICK: u64 = u64::MAX;
/// Data of the engine end's registration, through which other processes wake this one (`shared::member`).
pub(crate) const FOREIGN_KICK: u64 = u64::MAX - 1;

/// Data of the registration through which the kernel's AIO reports completions.
pub const DEVICE: u64 = u64::MAX - 2;

/// The state of one descriptor number.
#[derive(Default)]
pub(crate) struct Entry {
    /// Comes back with every event; changes when the number is found to name another file.
    pub(crate) generation: u32,
    /// Events that the standing registration asks for, 0 for none.
    pub(crate) registered: u32,
    pub(crate) facts: Facts,
    /// A read (or a poll, for Linux AIO) was armed without an attempt. The attempt is made before any thread sleeps.
    pub(crate) postponed: bool,
    /// The entry is on the list of those to verify before a sleep.
    pub(crate) unverified: bool,
    /// The entry is on the list of those that epoll(7) does not watch.
    pub(crate) unwatched: bool,
    /// The events that the last poll found there; multishot polls have reported them.
    pub(crate) found: u16,
    /// The place of a request that waits here alone, in the ring's context of Linux AIO. Then the lists are empty.
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
    /// Buffer for the events of a poll.
    pub(crate) seen: Vec<EpollEvent>,
}

impl PollSet {
    /// True if a first attempt was postponed and is yet to be made.
    pub fn has_postponed(&self) -> bool {
        !self.postponed.is_empty()
    }

    /// Drops the postponed attempt on `fd`: it is made, or left to an event of its registration.
    pub fn forget_postponed(&mut self, fd: i32) {
        if self.existing(fd).is_some_and(|entry| core::mem::take(&mut entry.postponed)) {
            self.postponed.retain(|other| *other != fd);
        }
    }

    /// Postpones the first attempt on `fd`: it is made before any thread sleeps.
    pub(crate) fn postpone(&mut self, fd: i32) {
        if !core::mem::replace(&mut self.entry(fd).postponed, true) {
            self.postponed.push_back(fd);
        }
    }

    /// True if a request could wait alone on `fd` for the events `wanted`, which its registration has to ask for
    /// already.
    pub(crate) fn has_room_single(&mut self, fd: i32, wanted: u32) -> bool {
        let entry = self.existing(fd).filter(|entry| entry.registered & wanted == wanted && entry.idle());
        entry.is_some_and(|entry| !entry.facts.is_shut_down()) && descriptors::closes_are_seen()
    }

    /// Makes the request at `place` in the ring's context wait alone on `fd`.
    pub(crate) fn begin_single(&mut self, fd: i32, place: u32) {
        self.entry(fd).single = Some(place);
        self.armed += 1;
    }

    /// Number of requests that wait for readiness.
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

    /// True if entries wait to be verified, or reads for their first attempt.
    pub fn has_unverified(&self) -> bool {
        !self.unverified.is_empty() || !self.postponed.is_empty()
    }

    /// True if it is the turn of the entry that has waited longest to be verified or attempted. If others are always
    /// ready, no thread ever sleeps.
    #[inline]
    pub fn is_turn(&mut self) -> bool {
        const TURN: u32 = 32; // attempts in vain then cost each poll a percent or two
        if !self.has_unverified() {
            return false;
        }
        self.looks = self.looks.wrapping_add(1);
        self.looks.is_multiple_of(TURN)
    }

    /// Makes the poll set, if there can be one. If there is no descriptor for it, nothing that waits is watched.
    pub fn make_epoll_if_possible(&mut self, engine_end: i32) -> Result<Option<i32>, Errno> {
        match self.make_epoll(engine_end) {
            Err(Errno::MFILE | Errno::NFILE) => Ok(None),
            made => made.map(Some),
        }
    }

    /// Returns the poll set's descriptor, which is made if there is none. Other processes wake it through
    /// `engine_end`, if there is one.
    #[inline]
    pub fn make_epoll(&mut self, engine_end: i32) -> Result<i32, Errno> {
        match self.epoll {
            Some(epoll) => Ok(epoll),
            None => self.make_first_epoll(engine_end),
        }
    }

    /// Makes the poll set and its wake-up descriptor.
    #[cold]
    fn make_first_epoll(&mut self, engine_end: i32) -> Result<i32, Errno> {
        let set = descriptors::to_top(calls::epoll_create(epoll::CreateFlags::CLOEXEC)?)?;
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let kick = descriptors::to_top(calls::eventfd(0, flags)?)?;
        let add =
            |fd, data| Sys::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32 | EDGE, data);
        add(kick.as_raw_fd(), KICK)?;
        if engine_end >= 0 {
            add(engine_end, FOREIGN_KICK)?;
        }
        let set = set.into_raw_fd();
        (self.epoll, self.kick) = (Some(set), Some(kick.into_raw_fd()));
        Ok(set)
    }

    /// Makes room for the entry of a number. `EBADF` for one beyond the table that is not open: the table would grow
    /// up to it.
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
    pub(crate) fn entry(&mut self, fd: i32) -> &mut Entry {
        self.entries[fd as usize].get_or_insert_with(Box::default)
    }

    pub(crate) fn existing(&mut self, fd: i32) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(fd).ok()?)?.as_deref_mut()
    }

    /// Makes the standing registration ask for `events` too. False if the file cannot be polled.
    pub(crate) fn register(
        &mut self,
        epoll: Option<i32>,
        fd: i32,
        events: u32,
        attempted_now: bool,
    ) -> Result<bool, Errno> {
        let entry = self.entry(fd);
        let wanted = entry.registered | events | EDGE;
        if wanted == entry.registered {
            // An attempt under this same hold of the lock, on a number that cannot have changed unseen, needs no
            // check.
            let sure = attempted_now && descriptors::closes_are_seen();
            if !sure && !entry.unverified {
                entry.unverified = true;
                self.unverified.push_back(fd);
            }
            return Ok(true);
        }
        self.control_registration(epoll, fd, wanted)
    }

    /// Forgets what is remembered of `fd`, which names another file than before, and makes its events stale. An epoll
    /// registration that remains of the old file is found when the number is registered anew.
    pub fn forget(&mut self, fd: i32) {
        if mutated(Mutation::OwnNumbersStayKnown) && descriptors::is_own(fd) {
            return;
        }
        if let Some(entry) = self.existing(fd) {
            entry.names_another_file();
            entry.registered = 0;
        }
    }

    /// Adds or changes the registration, whichever the kernel accepts: a number may have been reused, or its file may
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
            // Another file than the known one: events of the old one must not count.
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

    /// Leaves the requests on `fd` to polls from time to time ([`CHECK_NS`]). Either there is no poll set, or epoll(7)
    /// does not take the file, for a reason that concerns no request of the kernel's. Sets may watch each other too
    /// deeply, too many may watch one file (`ep_loop_check`, `reverse_path_check` in fs/eventpoll.c), or the user
    /// watches too much. False if the file cannot be polled.
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

    /// Time until the next poll of files that are not watched, if there are any.
    pub fn recheck_ns(&self) -> Option<u64> {
        self.has_unwatched().then_some(CHECK_NS)
    }

    /// Returns the next number that is not watched, and the generation of its entry. Numbers without waiting requests
    /// leave the list.
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

    /// Number of descriptors that are not watched.
    pub(crate) fn unwatched(&self) -> usize {
        self.unwatched.len()
    }

    /// Makes what is there already on `fd` an event.
    pub fn renew(&mut self, fd: i32) {
        let (Some(epoll), Some(entry)) = (self.epoll, self.existing(fd)) else { return };
        entry.facts.may_be_ready();
        if entry.unwatched {
            return; // it is polled anyway
        }
        let wanted = entry.registered;
        // A number that can no longer be registered is found before the next sleep.
        let _ = self.control_registration(Some(epoll), fd, wanted);
    }

    /// Gives up, in a forked child, the child's numbers of what the parent goes on using. The rest is leaked: a
    /// thread that the child does not have may have been changing it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::refusing::refusing;

    #[test]
    fn a_poll_set_that_cannot_be_made_leaves_no_descriptors() {
        refusing(&[(libc::SYS_epoll_ctl, None, libc::ENOSPC)], || {
            // A table of its own, so that no other test opens or closes in it meanwhile.
            // SAFETY: the thread is this test's; nothing that it shares is closed by this.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }.expect("unshare");
            let open = || std::fs::read_dir("/proc/thread-self/fd").expect("descriptors").count();
            let before = open();
            assert_eq!(PollSet::default().make_epoll(-1), Err(Errno::NOSPC));
            assert_eq!(open(), before);
        });
    }
}
