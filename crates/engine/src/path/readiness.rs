//! Waiting for readiness: a ring's poll set, and what is remembered of each descriptor.
//!
//! Every pollable descriptor that a request ever waited for keeps a standing edge-triggered registration, so that arming
//! again costs nothing. What is remembered of it is a hint: the kernel keys a registration by (file, number), and a close
//! that was not seen leaves the entry naming another file. So each entry carries a generation that comes back with every
//! event, stale events are ignored, and before a thread sleeps every entry armed since it was last checked gets one
//! EPOLL_CTL_MOD, which finds a reused number (ENOENT) and polls the file again.
//!
//! `readiness/armed.rs` is about the requests that wait.
//!
//! All of this is part of a ring's state: touched under its lock only. `epoll_wait` alone is called outside it.

mod armed;

use crate::op::Direction;
use crate::os::{syscall, Os, Sys};
use crate::request::slab::List;
use crate::request::ListKind;
use crate::{descriptors, process, Errno};
use rustix::event::epoll;
use rustix::fd::IntoRawFd;

const READ: u32 =
    (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLRDNORM | libc::EPOLLRDBAND) as u32;
const WRITE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM | libc::EPOLLWRBAND) as u32;
const ENDED: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const EDGE: u32 = libc::EPOLLET as u32;

/// Data of the wake-up descriptor's registration: no descriptor has this number.
const KICK: u64 = u64::MAX;
/// Data of the engine end's registration, through which other processes wake this one (`ring::member`).
const FOREIGN_KICK: u64 = u64::MAX - 1;

/// What is known of one descriptor number.
#[derive(Default)]
struct Entry {
    /// Comes back with every event; changes when the number is found to name another file.
    generation: u32,
    /// Events that the standing registration asks for, 0 for none.
    registered: u32,
    /// The last attempt in this direction found nothing, and no event has come since.
    read_empty: bool,
    write_full: bool,
    /// How many first attempts to read in a row found nothing: the next one is put off, see [`Entries::puts_off`].
    empty_streak: u8,
    /// A read was armed without an attempt, which is made before anybody sleeps.
    put_off: bool,
    /// The file has no position (a pipe, a socket, a terminal).
    stream: bool,
    /// The file was opened with O_DIRECT; asked once, a hint about speed only.
    direct: Option<bool>,
    /// On the list of entries to verify before a sleep.
    unverified: bool,
    readers: List,
    writers: List,
    polls: List,
}

impl Entry {
    fn list(&mut self, kind: ListKind) -> &mut List {
        match kind {
            ListKind::Read => &mut self.readers,
            ListKind::Write => &mut self.writers,
            ListKind::Poll => &mut self.polls,
        }
    }

    fn idle(&self) -> bool {
        self.readers.is_empty() && self.writers.is_empty() && self.polls.is_empty()
    }
}

/// A ring's poll set.
#[derive(Default)]
pub struct Entries {
    /// By descriptor number.
    entries: Vec<Option<Box<Entry>>>,
    epoll: Option<i32>,
    kick: Option<i32>,
    unverified: Vec<i32>,
    /// Entries with a read whose first attempt was put off.
    put_off: Vec<i32>,
    /// Requests that wait for readiness.
    armed: u32,
}

impl Entries {
    /// The last attempt found nothing there, and no event has said otherwise since.
    #[inline]
    pub fn known_not_ready(&self, fd: i32, direction: Direction) -> bool {
        match self.entries.get(fd as usize) {
            Some(Some(entry)) => match direction {
                Direction::Read => entry.read_empty,
                Direction::Write => entry.write_full,
            },
            _ => false,
        }
    }

    /// Whether the first attempt at a read is better put off: the last few found nothing, and the standing registration
    /// will tell when there is something. An attempt that finds nothing costs as much as a read. It is made up for before
    /// anybody sleeps (`RingGuard::verify`), so at worst data that was there already is found a little later.
    #[inline]
    pub fn puts_off(&self, fd: i32) -> bool {
        const STREAK: u8 = 4;
        matches!(self.entries.get(fd as usize), Some(Some(entry)) if entry.empty_streak >= STREAK && entry.registered != 0)
    }

    /// What a first attempt to read led to.
    #[inline]
    pub fn note_first_read(&mut self, fd: i32, found_nothing: bool) {
        if let Some(Some(entry)) = self.entries.get_mut(fd as usize) {
            let counts = found_nothing && entry.registered != 0;
            entry.empty_streak = if counts { entry.empty_streak.saturating_add(1) } else { 0 };
        }
    }

    /// Whether a first attempt was put off and not made up for.
    pub fn has_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    /// A transfer found that the file has no position. Trusted only where every close of the number is seen.
    pub fn note_stream(&mut self, fd: i32) {
        process::note_use(fd);
        self.entry(fd).stream = true;
    }

    /// Whether the file is known to have no position.
    #[inline]
    pub fn is_stream(&self, fd: i32) -> bool {
        matches!(self.entries.get(fd as usize), Some(Some(entry)) if entry.stream)
    }

    /// Whether the file was opened with O_DIRECT.
    #[inline]
    pub fn is_direct(&mut self, fd: i32) -> bool {
        match self.entries.get(fd as usize) {
            Some(Some(entry)) if entry.stream => false,
            Some(Some(entry)) if entry.direct.is_some() => entry.direct == Some(true),
            _ if fd < 0 => false,
            _ => self.ask_direct(fd),
        }
    }

    #[cold]
    fn ask_direct(&mut self, fd: i32) -> bool {
        let args = [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0];
        let flags = syscall(libc::SYS_fcntl, args);
        if flags < 0 {
            return false; // not open: nothing is remembered of it
        }
        let direct = flags & libc::O_DIRECT as isize != 0;
        process::note_use(fd);
        self.entry(fd).direct = Some(direct);
        direct
    }

    /// How many requests wait for readiness.
    pub fn armed(&self) -> u32 {
        self.armed
    }

    /// The poll set's descriptor, once there is one.
    pub fn epoll(&self) -> Option<i32> {
        self.epoll
    }

    /// The descriptor that ends an epoll wait of this ring, once there is one.
    pub fn kick(&self) -> Option<i32> {
        self.kick
    }

    /// Whether entries wait to be verified, or reads for their first attempt.
    pub fn has_unverified(&self) -> bool {
        !self.unverified.is_empty() || !self.put_off.is_empty()
    }

    /// Makes the poll set and its wake-up descriptor. Other processes wake it through `engine_end`.
    pub fn make_epoll(&mut self, engine_end: i32) -> Result<i32, Errno> {
        if let Some(epoll) = self.epoll {
            return Ok(epoll);
        }
        let set = descriptors::to_top(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let kick = descriptors::to_top(rustix::event::eventfd(0, flags)?)?;
        let (set, kick) = (set.into_raw_fd(), kick.into_raw_fd());
        Sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, kick, libc::EPOLLIN as u32 | EDGE, KICK)?;
        Sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, engine_end, libc::EPOLLIN as u32 | EDGE, FOREIGN_KICK)?;
        (self.epoll, self.kick) = (Some(set), Some(kick));
        Ok(set)
    }

    /// Remembers that the number is in use, so that a close of it asks this ring.
    pub fn note_use(&mut self, fd: i32) {
        process::note_use(fd);
    }

    /// `EBADF` for a number beyond the table that is not open: the table would grow up to it.
    fn check_new(&self, fd: i32) -> Result<(), Errno> {
        match usize::try_from(fd).is_ok_and(|index| index < self.entries.len()) {
            true => Ok(()),
            false => descriptors::check_open(fd),
        }
    }

    /// What is remembered of a number that is or was open.
    fn entry(&mut self, fd: i32) -> &mut Entry {
        let index = fd as usize;
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        self.entries[index].get_or_insert_with(Box::default)
    }

    fn existing(&mut self, fd: i32) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(fd).ok()?)?.as_deref_mut()
    }

    /// Makes the standing registration ask for `events` too. `EPERM` when the file cannot be polled.
    fn register(&mut self, epoll: i32, fd: i32, events: u32, attempted_now: bool) -> Result<(), Errno> {
        let entry = self.entry(fd);
        let wanted = entry.registered | events | EDGE;
        if wanted == entry.registered {
            // An attempt under this very hold of the lock, on a number that cannot have changed unseen, needs no check.
            let sure = attempted_now && process::closes_are_seen();
            if !sure && !entry.unverified {
                entry.unverified = true;
                self.unverified.push(fd);
            }
            return Ok(());
        }
        self.control_registration(epoll, fd, wanted)
    }

    /// `fd` names another file than before: what is remembered of it does not count, nor do events still to come. An
    /// epoll registration that the old file left behind is found when the number is registered anew.
    pub fn forget(&mut self, fd: i32) {
        if let Some(entry) = self.existing(fd) {
            entry.generation = entry.generation.wrapping_add(1);
            (entry.registered, entry.read_empty, entry.write_full) = (0, false, false);
            (entry.stream, entry.direct, entry.empty_streak) = (false, None, 0);
        }
    }

    /// Adds or changes the registration, whichever the kernel accepts: a number may have been reused, or its file may
    /// still be registered through a duplicate.
    fn control_registration(&mut self, epoll: i32, fd: i32, wanted: u32) -> Result<(), Errno> {
        let entry = self.entry(fd);
        let data = |entry: &Entry| u64::from(entry.generation) << 32 | fd as u64;
        let known = entry.registered != 0;
        let (first, second) = match known {
            true => (libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_ADD),
            false => (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD),
        };
        let mut answer = Sys::epoll_ctl(epoll, first, fd, wanted, data(entry));
        if matches!(answer, Err(Errno::NOENT | Errno::EXIST)) {
            // Another file than the one we knew: events of the old one must not count.
            entry.generation = entry.generation.wrapping_add(1);
            (entry.read_empty, entry.write_full) = (false, false);
            answer = Sys::epoll_ctl(epoll, second, fd, wanted, data(entry));
        }
        entry.registered = if answer.is_ok() { wanted } else { 0 };
        answer
    }

    /// Makes what is there already on `fd` an event.
    pub fn renew(&mut self, fd: i32) {
        let (Some(epoll), Some(entry)) = (self.epoll, self.existing(fd)) else { return };
        (entry.read_empty, entry.write_full) = (false, false);
        let wanted = entry.registered;
        // A number that cannot be registered any more is found out before the next sleep.
        let _ = self.control_registration(epoll, fd, wanted);
    }

    /// In a forked child: gives up the child's numbers of what the parent goes on using. What is remembered may be in the
    /// middle of a change by a thread that the child does not have, and is not looked at.
    pub fn abandon(mut self) {
        for fd in [self.epoll.take(), self.kick.take()].into_iter().flatten() {
            descriptors::close(fd);
        }
        core::mem::forget(self);
    }

    /// Forgets everything but the poll set itself, on which somebody may be asleep.
    pub fn forget_requests(&mut self) {
        self.entries.clear();
        self.unverified.clear();
        self.put_off.clear();
        self.armed = 0;
    }

    /// Closes what the set holds.
    pub fn release(&mut self) {
        for fd in [self.epoll.take(), self.kick.take()].into_iter().flatten() {
            descriptors::close(fd);
        }
        self.entries.clear();
    }
}
