//! Waiting for readiness: a ring's poll set, and what is remembered of each descriptor.
//!
//! Every pollable descriptor that a request ever waited for keeps a standing edge-triggered registration, so that arming
//! again costs nothing. What is remembered of it is a hint: the kernel keys a registration by (file, number), and a close
//! that was not seen leaves the entry naming another file. So each entry carries a generation that comes back with every
//! event, stale events are ignored, and before a thread sleeps every entry armed since it was last checked gets one
//! EPOLL_CTL_MOD, which finds a reused number (ENOENT) and polls the file again.
//!
//! All of this is part of a ring's state: touched under its lock only. `epoll_wait` alone is called outside it.

use crate::forced::{point, Point};
use crate::op::{Direction, Op, Verdict};
use crate::os::{syscall, EpollEvent, Os, Sys};
use crate::path::worker::Approach;
use crate::request::slab::List;
use crate::request::{Id, ListKind, Path, State, Target};
use crate::resource::files::FixedFile;
use crate::ring::RingGuard;
use crate::{descriptors, process, Errno};
use anyring_abi::Opcode;
use rustix::event::epoll;
use rustix::fd::IntoRawFd;
use std::sync::Arc;

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
    /// anybody sleeps ([`RingGuard::verify`]), so at worst data that was there already is found a little later.
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
        let direct = syscall(libc::SYS_fcntl, args) & libc::O_DIRECT as isize != 0;
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

impl RingGuard {
    /// Makes a request wait for readiness. `EPERM` when its file cannot be polled.
    pub fn arm(&mut self, id: Id, list: ListKind, worker_when_ready: bool) -> Result<(), Errno> {
        let request = &self.slab[id];
        let fd = match &request.target {
            Target::Number(fd) => *fd,
            Target::Fixed(file) | Target::Private(file) => file.fd,
            Target::None | Target::Index(_) => return Err(Errno::PERM),
        };
        if fd < 0 {
            return Err(Errno::BADF);
        }
        let events = match (&request.op, list) {
            (Op::Poll(poll), _) => u32::from(poll.events) | ENDED,
            (_, ListKind::Write) => WRITE,
            _ => READ & !(libc::EPOLLPRI as u32),
        };
        // A splice whose input is not ready waits for that one, not for the output that its SQE names as its file.
        let fd = match &mut self.slab[id].op {
            Op::Splice(splice) if list == ListKind::Read => {
                let input = splice.hold_input()?;
                if input.is_new {
                    self.entries.forget(input.fd);
                }
                input.fd
            }
            _ => fd,
        };
        let state = &mut **self;
        let fresh = state.entries.existing(fd).is_none_or(|entry| entry.registered == 0);
        let epoll = state.entries.make_epoll(state.engine_end)?;
        if worker_when_ready || matches!(&state.slab[id].op, Op::Poll(poll) if poll.multishot) {
            // No attempt could be made: the registration is renewed so that what is there already makes an event.
            let wanted = state.entries.entry(fd).registered | events | EDGE;
            state.entries.control_registration(epoll, fd, wanted)?;
        } else {
            let attempted_now = state.slab[id].path != Path::Worker;
            state.entries.register(epoll, fd, events, attempted_now)?;
        }
        let put_off = core::mem::take(&mut state.attempt_put_off);
        if put_off && !core::mem::replace(&mut state.entries.entry(fd).put_off, true) {
            state.entries.put_off.push(fd);
        }
        let entry = state.entries.entry(fd);
        if put_off {
            // Nothing is known of the file: the attempt is yet to come.
        } else if !fresh && !worker_when_ready {
            // The attempt came after the registration: what arrives from now on makes an event.
            match list {
                ListKind::Read => entry.read_empty = true,
                ListKind::Write => entry.write_full = true,
                ListKind::Poll => {}
            }
        }
        match state.slab[id].opcode {
            // Waiters for a connection are served in order, as exclusive entries of a wait queue.
            Opcode::Accept => entry.list(list).push(&mut state.slab, id),
            // The kernel's wait queues take io_uring's entries at their head: the last that came is served first.
            _ => entry.list(list).push_front(&mut state.slab, id),
        }
        point(Point::Arm);
        state.entries.armed += 1;
        state.slab[id].state = State::Armed { fd, list, worker_when_ready };
        state.slab[id].path = Path::Poll;
        process::note_use(fd);
        self.work_appeared(false);
        Ok(())
    }

    /// Takes an armed request off its list; it stays a request.
    pub fn disarm(&mut self, id: Id) {
        let state = &mut **self;
        let State::Armed { fd, list, .. } = state.slab[id].state else { return };
        if let Some(entry) = state.entries.existing(fd) {
            entry.list(list).remove(&mut state.slab, id);
            state.entries.armed -= 1;
        }
        state.slab[id].state = State::Issuing;
    }

    /// Looks at the poll set without waiting and serves what is ready. True when there was something.
    pub fn poll_now(&mut self) -> bool {
        self.entries.armed() != 0 && self.take_events()
    }

    /// Takes what is in the poll set, whether or not anything is armed, and serves it. True when there was something.
    pub fn take_events(&mut self) -> bool {
        let Some(epoll) = self.entries.epoll() else { return false };
        let mut events = [EpollEvent::default(); 128];
        match Sys::epoll_wait(epoll, &mut events, Some(0), None) {
            Ok(count) => self.serve(&events[..count]),
            Err(_) => false,
        }
    }

    /// Serves events of the poll set.
    pub fn serve(&mut self, events: &[EpollEvent]) -> bool {
        let mut served = false;
        for event in events {
            let (seen, data) = (event.events, event.data);
            if data == KICK {
                let mut count = 0u64;
                if let Some(kick) = self.entries.kick() {
                    crate::os::syscall(
                        libc::SYS_read,
                        [kick as usize, &mut count as *mut u64 as usize, 8, 0, 0, 0],
                    );
                }
                continue;
            }
            if data == FOREIGN_KICK {
                continue; // the bytes stay: see `Control::kick_others`
            }
            served |= self.serve_one(data as u32 as i32, (data >> 32) as u32, seen);
        }
        served
    }

    fn serve_one(&mut self, fd: i32, generation: u32, seen: u32) -> bool {
        point(Point::Serve);
        let Some(entry) = self.entries.existing(fd).filter(|entry| entry.generation == generation) else {
            return false;
        };
        if seen & (READ | ENDED) != 0 {
            entry.read_empty = false;
        }
        if seen & (WRITE | ENDED) != 0 {
            entry.write_full = false;
        }
        if seen & (READ | ENDED) != 0 {
            self.retry(fd, ListKind::Read);
        }
        if seen & (WRITE | ENDED) != 0 {
            self.retry(fd, ListKind::Write);
        }
        self.answer_polls(fd, seen as u16);
        true
    }

    /// Attempts the requests that wait on one list, in its order, until one finds nothing.
    fn retry(&mut self, fd: i32, list: ListKind) {
        while let Some(id) = self.entries.existing(fd).and_then(|entry| entry.list(list).first()) {
            let State::Armed { worker_when_ready, .. } = self.slab[id].state else { return };
            if worker_when_ready {
                self.disarm(id);
                self.punt(id, Approach::Plain);
                continue;
            }
            let request = &mut self.slab[id];
            let mut op = core::mem::replace(&mut request.op, Op::placeholder());
            let target = request.target.clone();
            point(Point::Retry);
            let verdict = self.attempt(&mut op, &target, false);
            self.slab[id].op = op;
            if let Verdict::WouldBlock(direction) = verdict {
                if ListKind::from(direction) == list {
                    let entry = self.entries.entry(fd);
                    match list {
                        ListKind::Read => entry.read_empty = true,
                        _ => entry.write_full = true,
                    }
                    return;
                }
            }
            self.disarm(id);
            self.follow(id, verdict);
            if self.is_armed_again(id, fd, list) {
                return;
            }
        }
    }

    /// A multishot request that has just taken what there was waits there again: its last attempt speaks for the others.
    fn is_armed_again(&self, id: Id, fd: i32, list: ListKind) -> bool {
        self.slab.get(id).is_some_and(|request| match request.state {
            State::Armed { fd: on, list: of, worker_when_ready: false } => {
                (on, of) == (fd, list) && request.op.is_multishot()
            }
            _ => false,
        })
    }

    /// Attempts a request that was armed without one.
    pub(super) fn retry_armed(&mut self, id: Id) {
        if let Some(State::Armed { fd, list, .. }) = self.slab.get(id).map(|request| &request.state) {
            let (fd, list) = (*fd, *list);
            self.retry(fd, list);
        }
    }

    /// Answers the poll requests of a descriptor that `seen` concerns.
    fn answer_polls(&mut self, fd: i32, seen: u16) {
        let mut next = self.entries.existing(fd).and_then(|entry| entry.polls.first());
        while let Some(id) = next {
            next = List::after(&self.slab, id);
            let Some(Op::Poll(poll)) = self.slab.get(id).map(|request| &request.op) else { continue };
            let (answer, multishot) = (poll.matching(seen), poll.multishot);
            if answer == 0 {
                continue;
            }
            if multishot && self.shot(id, answer.into(), 0) {
                continue;
            }
            self.disarm(id);
            self.finish(id, answer.into(), false);
        }
    }

    /// Before a sleep: makes sure that every entry armed since it was last looked at still names the file that its
    /// requests wait for.
    pub fn verify(&mut self) {
        let Some(epoll) = self.entries.epoll() else { return };
        self.attempt_put_off();
        for fd in core::mem::take(&mut self.entries.unverified) {
            let Some(entry) = self.entries.existing(fd) else { continue };
            entry.unverified = false;
            if entry.idle() {
                continue;
            }
            let wanted = entry.registered;
            if self.entries.control_registration(epoll, fd, wanted).is_err() {
                // The number names something else now, or nothing: attempt the requests, they will find out.
                self.reissue_all(fd);
            }
        }
    }

    /// Makes the first attempts that were put off, where no event has made them yet.
    fn attempt_put_off(&mut self) {
        for fd in core::mem::take(&mut self.entries.put_off) {
            let Some(entry) = self.entries.existing(fd) else { continue };
            entry.put_off = false;
            let waiting = entry.readers.first();
            if waiting.is_none() || entry.read_empty {
                continue;
            }
            self.retry(fd, ListKind::Read);
            if let Some(entry) = self.entries.existing(fd).filter(|entry| entry.readers.first() != waiting) {
                entry.empty_streak = 0; // there was something: attempt at once again
            }
        }
    }

    fn reissue_all(&mut self, fd: i32) {
        for list in [ListKind::Read, ListKind::Write, ListKind::Poll] {
            while let Some(id) = self.entries.existing(fd).and_then(|entry| entry.list(list).first()) {
                self.disarm(id);
                self.ready.push_back(id);
            }
        }
        if let Some(entry) = self.entries.existing(fd) {
            (entry.read_empty, entry.write_full) = (false, false);
        }
    }

    /// The program is about to close `fd`: requests in flight on it keep a private duplicate, and nothing that was
    /// remembered of the number counts any more.
    pub fn detach_number(&mut self, fd: i32) {
        let mut file: Option<Arc<FixedFile>> = None;
        for id in self.slab.ids() {
            if !matches!(self.slab[id].target, Target::Number(number) if number == fd) {
                continue;
            }
            let armed = matches!(self.slab[id].state, State::Armed { .. });
            let queued = matches!(&self.slab[id].state, State::Queued(_));
            if !(armed || queued) {
                continue;
            }
            let private = match &file {
                Some(file) => file.clone(),
                None => match descriptors::duplicate(fd) {
                    Ok(duplicate) => {
                        self.entries.forget(duplicate);
                        file.insert(FixedFile::new(duplicate, None)).clone()
                    }
                    Err(_) => continue,
                },
            };
            self.move_to(id, private, armed);
        }
        let epoll = self.entries.epoll;
        if let Some(entry) = self.entries.existing(fd) {
            if let (Some(epoll), true) = (epoll, entry.registered != 0) {
                let _ = Sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
        }
        self.entries.forget(fd);
    }

    fn move_to(&mut self, id: Id, private: Arc<FixedFile>, armed: bool) {
        if armed {
            let State::Armed { list, worker_when_ready, .. } = self.slab[id].state else { return };
            self.disarm(id);
            self.slab[id].target = Target::Private(private);
            if self.arm(id, list, worker_when_ready).is_err() {
                self.ready.push_back(id);
            }
            return;
        }
        let State::Queued(job) = &self.slab[id].state else { return };
        // A job that has started holds the file inside its system call; one that has not is queued anew.
        if !job.cancel() {
            return;
        }
        let op = job.op.lock().map(|mut op| core::mem::replace(&mut *op, Op::placeholder()));
        if let Some(op) = op {
            self.slab[id].op = op;
        }
        self.slab[id].target = Target::Private(private);
        self.punt(id, Approach::Plain);
    }
}
