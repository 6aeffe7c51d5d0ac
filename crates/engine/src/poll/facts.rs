//! Facts about the file of a descriptor number. They are kept only in this module, and only this file writes them.
//!
//! Facts end together: when the number is closed, or when epoll(7) shows that it names another file
//! ([`PollSet::forget`] and `PollSet::control_registration`). A close without the engine's notice leaves stale facts,
//! so each fact is a hint. Code whose answer a stale fact would make wrong asks [`closes_are_seen`] first.
//!
//! Like all of `poll`, the facts are part of a ring's state, and are accessed under the ring's lock only.

use super::{Entry, PollSet, ENDED, READ, WRITE};
use crate::descriptors::{closes_are_seen, record_use, status_flags};
use crate::op::net::{has_upper_protocol, socket_option};
use crate::op::rw::is_file;
use crate::op::Direction;
use crate::request::ListKind;

/// Events that report something other than data.
const EXCEPTIONAL: u32 = ENDED | (libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;

/// The facts about one file. Nothing is known at first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// True if epoll(7) does not take the file.
    unpollable: bool,
    /// True if the file has no position (a pipe, a socket, a terminal).
    stream: bool,
    /// The path of the file's data. Asked once, and only a hint about speed.
    medium: Option<Medium>,
    /// True if the file is a regular file or a block device. Asked once, and only a hint about speed.
    has_blocks: Option<bool>,
    /// True if reads of the file's data, which is in memory, have no nonblocking form.
    in_memory: bool,
    /// The access mode with which the file was opened (`O_ACCMODE`), once a request of Linux AIO asked.
    access: Option<i32>,
    /// True if the file is a datagram socket that was shut down for reading (`RingGuard::end_receives`).
    shut_down: bool,
    /// True if the last attempt to read found nothing, and no event has come since. `write_full` is the same for
    /// writes.
    read_empty: bool,
    write_full: bool,
    /// True if the last shot of a RECV took all data that there was, and no event has come since.
    drained: bool,
    /// True if an event reported an end, an error or urgent data. More of that may come after a short count.
    exceptional: bool,
    /// True if a short count means that no more data is there. Asked once.
    short_means_empty: Option<bool>,
    /// Number of first attempts to read in a row that found nothing. The next attempt is then postponed, see
    /// [`PollSet::postpones`].
    empty_streak: u8,
    /// Number of times that an attempt was postponed.
    times_postponed: u8,
}

/// The path of a file's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// The page cache, or its counterpart in a stream.
    Cache,
    /// A file without a cache (O_DIRECT), whose call waits for the device.
    Direct,
    /// A file without a cache, for which the kernel's AIO does not wait for the device.
    Device,
}

impl Facts {
    /// Records whether epoll(7) has refused the file.
    pub(crate) fn set_unpollable(&mut self, unpollable: bool) {
        self.unpollable = unpollable;
    }

    /// Records that an attempt found nothing, so later arrivals make an event. For a poll, it records nothing.
    pub(crate) fn mark_empty(&mut self, list: ListKind) {
        match list {
            ListKind::Read => self.read_empty = true,
            ListKind::Write => self.write_full = true,
            ListKind::Poll => {}
        }
    }

    /// Records events that epoll(7) reported.
    #[inline]
    pub(crate) fn record_event(&mut self, seen: u32) {
        if seen & (READ | ENDED) != 0 {
            (self.read_empty, self.drained) = (false, false);
            self.exceptional |= seen & EXCEPTIONAL != 0;
        }
        if seen & (WRITE | ENDED) != 0 {
            self.write_full = false;
        }
    }

    /// Records that there may be data to read and room to write. Only an attempt can find out.
    pub(crate) fn may_be_ready(&mut self) {
        (self.read_empty, self.write_full, self.drained) = (false, false, false);
    }

    /// True if the last attempt to read found nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.read_empty
    }

    /// Ends the postponing of first attempts, since an attempt would have found something. The next attempts are made
    /// at once.
    pub(crate) fn end_streak(&mut self) {
        self.empty_streak = 0;
    }

    /// Records that the datagram socket was shut down for reading.
    pub(crate) fn mark_shut_down(&mut self) {
        self.shut_down = true;
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down
    }
}

impl PollSet {
    #[inline]
    pub(crate) fn facts(&self, fd: i32) -> Option<&Facts> {
        self.entries.get(fd as usize)?.as_deref().map(|entry| &entry.facts)
    }

    /// True if the last attempt in this direction found nothing, and no event has come since.
    #[inline]
    pub fn known_not_ready(&self, fd: i32, direction: Direction) -> bool {
        self.facts(fd).is_some_and(|facts| match direction {
            Direction::Read => facts.read_empty,
            Direction::Write => facts.write_full,
        })
    }

    /// True if the first attempt at a read, or a poll's first check, is better postponed. The last few found nothing,
    /// and the standing registration will report new data. An attempt that finds nothing costs as much as a read.
    ///
    /// A postponed attempt is made before any thread sleeps (`RingGuard::verify`), or in its turn if none has to
    /// sleep ([`PollSet::is_turn`]). So at worst, data that was there already is found a little later. Every 64th
    /// attempt is made anyway. If it finds data, the postponing ends.
    #[inline]
    pub fn postpones(&mut self, fd: i32) -> bool {
        const STREAK: u8 = 4;
        const TRIAL: u8 = 64;
        let Some(Some(entry)) = self.entries.get_mut(fd as usize) else { return false };
        if entry.facts.empty_streak < STREAK || entry.registered == 0 {
            return false;
        }
        entry.facts.times_postponed = entry.facts.times_postponed.wrapping_add(1);
        !entry.facts.times_postponed.is_multiple_of(TRIAL)
    }

    /// Records that a multishot RECV left room in its buffer. On TCP that means that there is no more data. The
    /// RECV's next shot then waits for an event, as in the kernel (`msg_inq` in `io_recv_finish`, io_uring/net.c).
    /// Urgent data and the end may also come after a short count, but their event says so.
    #[inline]
    pub(crate) fn record_short_receive(&mut self, fd: i32) {
        const TELLS: u32 = (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP) as u32;
        if let Some(Some(entry)) = self.entries.get_mut(fd as usize) {
            if entry.registered & TELLS == TELLS && !entry.facts.exceptional {
                entry.facts.drained = *entry.facts.short_means_empty.get_or_insert_with(|| is_plain_tcp(fd));
            }
        }
    }

    /// True if the last shot of a RECV took all data that there was.
    #[inline]
    pub(crate) fn drained(&self, fd: i32) -> bool {
        self.facts(fd).is_some_and(|facts| facts.drained)
    }

    /// Records whether a first attempt to read, or a poll's first check, found nothing.
    #[inline]
    pub fn record_first_read(&mut self, fd: i32, found_nothing: bool) {
        if let Some(Some(entry)) = self.entries.get_mut(fd as usize) {
            let counts = found_nothing && entry.registered != 0;
            entry.facts.empty_streak = if counts { entry.facts.empty_streak.saturating_add(1) } else { 0 };
        }
    }

    /// Decides whether a first transfer is attempted at once. If so, returns whether the file is known to have no
    /// position. `None` if the transfer may have to wait for an event, or go to a device, first (`State::plan`).
    #[inline]
    pub fn attempts_next(&self, fd: i32, direction: Direction, may_be_direct: bool) -> Option<bool> {
        let Some(facts) = self.facts(fd) else { return (!may_be_direct).then_some(false) };
        let waits = match direction {
            Direction::Read => facts.read_empty || (facts.empty_streak != 0 && self.armed != 0),
            Direction::Write => facts.write_full,
        };
        let is_cached = !may_be_direct || facts.stream || facts.medium == Some(Medium::Cache);
        (!waits && is_cached && !facts.in_memory).then_some(facts.stream)
    }

    /// Records that a transfer has found the file to have no position. Trusted only where the engine notices every
    /// close of the number.
    pub fn mark_stream(&mut self, fd: i32) {
        self.remember(fd, |facts| facts.stream = true);
    }

    /// True if the file is known to have no position.
    #[inline]
    pub fn is_stream(&self, fd: i32) -> bool {
        self.facts(fd).is_some_and(|facts| facts.stream)
    }

    /// Records that reads of the file's data, which is in memory, have no nonblocking form. Such a fact is trusted, and
    /// so is recorded only where the engine notices every close of the number.
    pub fn mark_in_memory(&mut self, fd: i32) {
        if closes_are_seen() {
            self.remember(fd, |facts| facts.in_memory = true);
        }
    }

    /// True if reads of the file's data are known to have no nonblocking form, although the data is in memory.
    #[inline]
    pub fn is_in_memory(&self, fd: i32) -> bool {
        self.facts(fd).is_some_and(|facts| facts.in_memory)
    }

    /// True if the number is known to be open and to name a file that can be polled. It is registered, and was not
    /// closed since.
    #[inline]
    pub fn is_pollable(&self, fd: i32) -> bool {
        let registered = matches!(self.entries.get(fd as usize), Some(Some(entry)) if entry.registered != 0);
        registered && closes_are_seen()
    }

    /// True if the file is known to be one that cannot be polled, such as a regular file or a directory.
    #[inline]
    pub fn is_unpollable(&self, fd: i32) -> bool {
        self.facts(fd).is_some_and(|facts| facts.unpollable) && closes_are_seen()
    }

    /// Returns the access mode with which the file was opened (`O_ACCMODE`), if it is remembered. Trusted only where
    /// the engine notices every close of the number.
    #[inline]
    pub fn access(&self, fd: i32) -> Option<i32> {
        self.facts(fd)?.access
    }

    /// Remembers the access mode of a registered number's file.
    pub fn record_access(&mut self, fd: i32, access: i32) {
        if let Some(entry) = self.existing(fd).filter(|entry| entry.registered != 0) {
            entry.facts.access = Some(access);
        }
    }

    /// Records that the file's description is nonblocking. From now on it is checked each time, and no attempt is
    /// postponed.
    pub fn forget_access(&mut self, fd: i32) {
        if let Some(Entry { facts, .. }) = self.existing(fd) {
            (facts.access, facts.empty_streak) = (None, 0);
        }
    }

    /// Returns the path of the file's data.
    #[inline]
    pub fn medium(&mut self, fd: i32) -> Medium {
        match self.facts(fd) {
            Some(facts) if facts.stream => Medium::Cache,
            Some(Facts { medium: Some(medium), .. }) => *medium,
            _ if fd < 0 => Medium::Cache,
            _ => self.ask_medium(fd),
        }
    }

    /// True if the file was opened with O_DIRECT.
    #[inline]
    pub fn is_direct(&mut self, fd: i32) -> bool {
        matches!(self.medium(fd), Medium::Direct | Medium::Device)
    }

    /// Records that the file was opened without O_DIRECT, so that the kernel need not be asked.
    pub fn mark_cached(&mut self, fd: i32) {
        self.remember(fd, |facts| facts.medium = Some(Medium::Cache));
    }

    #[cold]
    pub(crate) fn ask_medium(&mut self, fd: i32) -> Medium {
        // Remember nothing about a closed descriptor.
        let Ok(flags) = status_flags(fd) else { return Medium::Cache };
        let medium = match flags & libc::O_DIRECT {
            0 => Medium::Cache,
            _ if self.has_blocks(fd) => Medium::Device,
            _ => Medium::Cache,
        };
        self.remember(fd, |facts| facts.medium = Some(medium));
        medium
    }

    /// True if the file is a regular file or a block device.
    pub fn has_blocks(&mut self, fd: i32) -> bool {
        if let Some(Facts { has_blocks: Some(known), .. }) = self.facts(fd) {
            return *known;
        }
        let has_blocks = is_file(fd);
        self.remember(fd, |facts| facts.has_blocks = Some(has_blocks));
        has_blocks
    }

    /// Records that the kernel's AIO would wait for direct transfers of the file.
    pub fn mark_no_device(&mut self, fd: i32) {
        if let Some(entry) = self.existing(fd).filter(|entry| entry.facts.medium == Some(Medium::Device)) {
            entry.facts.medium = Some(Medium::Direct);
        }
    }

    /// Remembers a fact about a number, if there is an entry for it or memory for one.
    pub(crate) fn remember(&mut self, fd: i32, record: impl FnOnce(&mut Facts)) {
        record_use(fd);
        if self.make_room(fd).is_ok() {
            record(&mut self.entry(fd).facts);
        }
    }
}

/// True if `fd` is a TCP socket whose data no upper protocol parses. TLS in the kernel does parse it (TCP_ULP).
#[cold]
fn is_plain_tcp(fd: i32) -> bool {
    socket_option(fd, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP) && !has_upper_protocol(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors::ends::EngineEnds;
    use std::os::fd::AsRawFd;

    fn set_for(fd: i32) -> (PollSet, i32) {
        let mut set = PollSet::default();
        let epoll = set.make_epoll(EngineEnds::NONE).expect("a poll set");
        set.make_room(fd).expect("memory");
        (set, epoll)
    }

    #[test]
    fn a_regular_file_is_known_not_to_be_pollable_until_its_number_is_forgotten() {
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        let fd = file.as_raw_fd();
        let (mut set, epoll) = set_for(fd);
        assert_eq!(set.register(Some(epoll), fd, READ, true), Ok(false));
        assert!(set.entry(fd).facts.unpollable);
        assert!(!set.is_unpollable(fd), "the number may be closed unseen: epoll is asked each time");
        set.forget(fd);
        assert!(!set.entry(fd).facts.unpollable);
        set.release();
    }

    #[test]
    fn a_number_that_is_forgotten_has_no_facts() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let fd = reader.as_raw_fd();
        let (mut set, epoll) = set_for(fd);
        assert_eq!(set.register(Some(epoll), fd, READ, true), Ok(true));
        for _ in 0..200 {
            set.record_first_read(fd, true);
            set.postpones(fd);
        }
        set.mark_stream(fd);
        assert!(set.is_stream(fd) && !set.is_direct(fd));
        set.record_access(fd, libc::O_RDONLY);
        let facts = &mut set.entry(fd).facts;
        facts.mark_empty(ListKind::Read);
        facts.mark_empty(ListKind::Write);
        facts.mark_shut_down();
        facts.medium = Some(Medium::Device);
        set.forget(fd);
        assert_eq!(set.entry(fd).facts, Facts::default());
        assert_eq!(set.entry(fd).registered, 0);
        set.release();
    }
}
