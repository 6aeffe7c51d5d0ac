//! Requests that wait for readiness. They are armed, the poll set's events serve them, and a close of their descriptor
//! detaches them.

use crate::descriptors::{self, limit};
use crate::forced::{point, Point};
use crate::issue::{device, single, unwatched};
use crate::mutation::{mutated, Mutation};
use crate::op::net::socket_option;
use crate::op::poll::PollAdd;
use crate::op::{Direction, HandledBefore, Op, Punt, Skip, Verdict};
use crate::os::{EpollEvent, Os, Sys};
use crate::poll::turns::When;
use crate::poll::{Entry, DEVICE, EDGE, ENDED, FOREIGN_KICK, KICK, READ, WRITE};
use crate::request::slab::List;
use crate::request::{Detached, Id, ListKind, Polling, State, Target, Then, Tried};
use crate::resource::files::FixedFile;
use crate::ring::RingGuard;
use crate::stats::Path;
use crate::wq::Approach;
use crate::Errno;
use anyring_abi::{Opcode, IOSQE_ASYNC, IOSQE_BUFFER_SELECT};
use std::sync::Arc;

/// The most events that one call takes.
const EVENTS: usize = 128;

/// The outcome of arming a request.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum Arming {
    /// The request waits for readiness.
    Waits,
    /// The request does not wait: its file cannot be polled, or it has no file.
    CannotPoll,
}

/// Returns the epoll events to register on the descriptor on which an operation waits.
pub(crate) fn events_for(op: &Op, list: ListKind) -> u32 {
    match (op.poll(), list) {
        (Some(poll), _) => events_of(poll),
        (None, ListKind::Write) => WRITE,
        (None, _) if op.hears_urgent_data() => READ,
        (None, _) => READ & !(libc::EPOLLPRI as u32),
    }
}

/// Returns the epoll events to register on a descriptor for a poll request.
pub(crate) fn events_of(poll: &PollAdd) -> u32 {
    u32::from(poll.events) | ENDED | libc::EPOLLRDHUP as u32
}

/// True if a file is ready, or has an error.
#[cold]
pub(super) fn is_ready(fd: i32, events: u32) -> bool {
    Sys::poll_now(fd, events as u16).is_ok_and(|seen| seen != 0)
}

/// Breaks decision 13 of docs/decisions under two mutations: arming must never change the program's file.
#[inline]
fn spoil_file(fd: i32) {
    if mutated(Mutation::DescriptionsMadeNonblocking) {
        let args = [fd as usize, libc::F_SETFL as usize, libc::O_NONBLOCK as usize, 0, 0, 0];
        crate::os::syscall(libc::SYS_fcntl, args);
    }
    if mutated(Mutation::PipesOpenedAnew) {
        let mut both = std::fs::OpenOptions::new();
        std::mem::forget(both.read(true).write(true).open(format!("/proc/self/fd/{fd}")));
    }
}

impl RingGuard {
    /// Makes a request wait for readiness. `tried` says what the last attempt found, `then` what follows an event.
    pub fn arm(&mut self, id: Id, list: ListKind, tried: Tried, then: Then) -> Result<Arming, Errno> {
        let Some(fd) = self.polled_number(id, list)? else { return Ok(Arming::CannotPoll) };
        single::join_list(self, fd);
        spoil_file(fd);
        let request = &self.slab[id];
        let (opcode, flags, path) = (request.opcode, request.flags, request.path);
        let events = events_for(&request.op, list);
        let reports_present = request.op.poll().is_some_and(|poll| poll.multishot);
        let goes_on = path != Path::Inline && request.op.is_multishot();
        let is_elsewhere = request.target.number() != Some(fd);
        let skip = if let Tried::Skipped(why) = tried { Some(why) } else { None };
        // If no attempt could be made, the registration is renewed, so that a file that is ready already raises an
        // event.
        let renews = reports_present || skip.is_some_and(Skip::reports_present);
        let stands = !renews && self.poll_set.joins(fd, events | EDGE, path != Path::Worker);
        let was_before = stands
            || match self.register(fd, events, renews, path != Path::Worker)? {
                Some(was_before) => was_before,
                None => return Ok(Arming::CannotPoll),
            };
        let state = &mut **self;
        if limit::keeps_none() {
            limit::keep_number(state.poll_set.kick().unwrap_or(-1));
        }
        let postponed = skip.is_some_and(Skip::is_postponed);
        if postponed {
            state.poll_set.postpone(fd); // the file's readiness is unknown
        }
        let entry = state.poll_set.entry(fd);
        if was_before && !postponed {
            // The attempt came after the registration: whatever arrives from now on raises an event.
            entry.facts.mark_empty(list);
        }
        let keeps_its_place = goes_on && flags & IOSQE_ASYNC == 0;
        // Task work makes these attempts in order.
        let polls_first = matches!(skip, Some(Skip::PollFirst | Skip::LookOnceArmed));
        let is_next = polls_first && !entry.list(list).is_empty() && is_ready(fd, events);
        match opcode {
            // Requests that wait for a connection are served in order, as exclusive entries of a wait queue. A
            // multishot request keeps its place.
            Opcode::Accept if !keeps_its_place => entry.list(list).push(&mut state.slab, id),
            _ if is_next => entry.list(list).push(&mut state.slab, id),
            // The kernel's wait queues take io_uring's entries at their head: the request that arrived last is served
            // first.
            _ => entry.list(list).push_front(&mut state.slab, id),
        }
        if is_elsewhere {
            state.slab.set_scattered(true);
        }
        point(Point::Arm);
        // In the kernel a multishot request stays armed, and the kernel traces no POLL_ADD for it.
        let again = path == Path::Poll && goes_on;
        if list != ListKind::Poll && !again {
            state.record_of(id, |it| it.poll_arm(events, skip));
        }
        state.poll_set.armed += 1;
        let request = &mut state.slab[id];
        request.poll(Polling { fd, list, tried, then });
        request.path = Path::Poll;
        descriptors::record_use(fd);
        self.record_waiting(id);
        self.work_appeared(false);
        Ok(Arming::Waits)
    }

    /// Makes the registration of `fd` ask for `events`, or renews it. Returns whether it stood before an attempt that has
    /// just been made. `None` if the file cannot be polled.
    #[inline(never)] // most numbers are registered already
    fn register(&mut self, fd: i32, events: u32, renews: bool, attempted_now: bool) -> Result<Option<bool>, Errno> {
        let state = &mut **self;
        state.poll_set.make_room(fd)?;
        if state.poll_set.is_unpollable(fd) {
            return Ok(None);
        }
        let epoll = state.poll_set.make_epoll_if_possible(state.ends)?;
        let entry = state.poll_set.entry(fd);
        let (registered, anew) = (entry.registered, renews || entry.facts.is_shut_down());
        let is_registered = match anew {
            true => state.poll_set.control_registration(epoll, fd, registered | events | EDGE)?,
            false => state.poll_set.register(epoll, fd, events, attempted_now)?,
        };
        Ok(is_registered.then_some(registered != 0 && !anew))
    }

    /// Returns the descriptor on which a request would wait; `None` if the request has none.
    #[inline]
    fn polled_number(&mut self, id: Id, list: ListKind) -> Result<Option<i32>, Errno> {
        let request = &mut self.slab[id];
        let Some(fd) = request.target.number() else { return Ok(None) };
        let direction = if list == ListKind::Write { Direction::Write } else { Direction::Read };
        let (polled, new) = request.op.polled_number(fd, direction)?;
        if let Some(new) = new {
            self.poll_set.forget(new);
        }
        Ok(Some(polled))
    }

    /// Takes an armed request off its list. The request itself remains.
    pub fn disarm(&mut self, id: Id) -> Detached {
        let state = &mut **self;
        if let State::Polling(Polling { fd, list, .. }) = *state.slab[id].state() {
            if let Some(entry) = state.poll_set.existing(fd) {
                entry.list(list).remove(&mut state.slab, id);
                state.poll_set.armed -= 1;
            }
        }
        state.slab.detach(id)
    }

    /// Polls without waiting and serves what is ready. True if any event was served.
    pub fn poll_now(&mut self) -> bool {
        self.poll_when(When::Later)
    }

    /// Does the same as [`poll_now`](Self::poll_now); `when` says at which point of the ring's work it is called.
    pub(crate) fn poll_when(&mut self, when: When) -> bool {
        let reaped = device::reap(self);
        if self.poll_set.armed() == 0 && !self.device.has_unreported() {
            return reaped;
        }
        let served = self.poll_events(when) | reaped;
        if self.poll_set.is_turn() {
            self.attempt_next_postponed();
            self.verify_next();
        }
        served
    }

    /// Polls the poll set, even if no request is armed, and handles its events. True if any event was served.
    pub fn poll_events(&mut self, when: When) -> bool {
        let looked = self.poll_set.has_unwatched() && unwatched::check(self);
        let Some(epoll) = self.poll_set.epoll() else { return looked };
        self.poll_set.due.unattempted = false;
        self.poll_set.ahead.forget();
        // The buffer is kept between calls: clearing it would cost more than the call itself.
        let mut events = core::mem::take(&mut self.poll_set.seen);
        events.resize(EVENTS, EpollEvent::default());
        let served = match Sys::epoll_wait(epoll, &mut events, Some(0), None) {
            Ok(count) => self.handle_events(&events[..count], when),
            Err(_) => false,
        };
        self.poll_set.seen = events;
        self.device.all_reported();
        served | looked
    }

    /// Handles earlier events before `id` is issued, if they may make a difference to `id`. In the kernel, the next
    /// request of a chain is queued after the requests that the previous one has made ready.
    #[cold]
    pub fn handle_events_before(&mut self, id: Id) {
        let Some(request) = self.slab.get(id) else { return };
        if matches!(request.state(), State::Cancelled(_)) {
            return;
        }
        let fd = match (request.op.handled_before(), &request.target) {
            // Other requests may choose a buffer from the same group.
            _ if request.flags & IOSQE_BUFFER_SELECT != 0 => None,
            (HandledBefore::Everything, _) => None,
            (HandledBefore::ItsFile, Target::Number(fd)) => Some(*fd),
            (HandledBefore::ItsFile, Target::Fixed(file) | Target::Private(file)) => Some(file.fd),
            _ => return,
        };
        if fd.is_none_or(|fd| self.poll_set.existing(fd).is_some_and(|entry| !entry.idle())) {
            self.poll_now();
        }
    }

    /// Handles events that the poll set reported. True if a request was served.
    pub fn handle_events(&mut self, events: &[EpollEvent], when: When) -> bool {
        let mut served = false;
        self.record(|it| it.awoke());
        for event in events {
            let (seen, data) = (event.events, event.data);
            if data == KICK {
                let mut count = 0u64;
                if let Some(kick) = self.poll_set.kick() {
                    crate::os::syscall(
                        libc::SYS_read,
                        [kick as usize, &mut count as *mut u64 as usize, 8, 0, 0, 0],
                    );
                }
            }
            if data == KICK || data == FOREIGN_KICK {
                // A thread that still sleeps in epoll_wait(2) has not received the event: an event that another thread
                // takes first wakes nobody else.
                self.ring().driver.wake_from_epoll();
                continue; // bytes of a foreign kick stay: see `Control::kick_others`
            }
            if data == DEVICE {
                served |= device::reap(self);
                self.device.all_reported();
                continue;
            }
            served |= self.handle_event(data as u32 as i32, (data >> 32) as u32, seen, when);
        }
        served
    }

    fn handle_event(&mut self, fd: i32, generation: u32, seen: u32, when: When) -> bool {
        point(Point::Serve);
        self.run_holder_work();
        let known = |entry: &&mut Entry| entry.generation == generation || mutated(Mutation::StaleEventsCount);
        let Some(entry) = self.poll_set.existing(fd).filter(known) else {
            return false;
        };
        entry.facts.record_event(seen);
        if seen & (READ | ENDED) != 0 && when == When::InsteadOfAttempts && entry.postponed {
            entry.facts.end_streak(); // there was data
        }
        if entry.single.is_some() {
            if seen & libc::EPOLLRDHUP as u32 == 0 {
                single::handle_single(self, fd, seen);
                return true;
            }
            single::join_list(self, fd);
        }
        if seen & (READ | ENDED) != 0 {
            self.retry(fd, ListKind::Read);
        }
        if seen & libc::EPOLLRDHUP as u32 != 0 {
            self.end_receives(fd);
        }
        if seen & (WRITE | ENDED) != 0 {
            self.retry(fd, ListKind::Write);
        }
        self.wake_polls(fd, seen as u16);
        true
    }

    /// Ends the receives that wait on a datagram socket that was shut down for reading. In the kernel a worker's call
    /// ends then (`__skb_wait_for_more_packets` in net/core/datagram.c). With MSG_DONTWAIT the call would return EAGAIN
    /// forever.
    #[cold]
    fn end_receives(&mut self, fd: i32) {
        let Some(entry) = self.poll_set.existing(fd).filter(|entry| !entry.readers.is_empty()) else { return };
        if socket_option(fd, libc::SO_TYPE) != Ok(libc::SOCK_DGRAM) {
            return;
        }
        entry.facts.mark_shut_down();
        let mut next = entry.readers.first();
        while let Some(id) = next {
            next = List::after(&self.slab, id);
            let (verdict, held) = self.with_op(id, |guard, op| {
                let verdict = op.end_of_datagrams(fd);
                (verdict, if verdict.is_some() { guard.keep_buffer(id, op) } else { Ok(()) })
            });
            let Some(verdict) = verdict else { continue };
            let id = self.disarm(id).id();
            let verdict = held.map_or_else(Verdict::error, |()| self.finish_arrived(id, verdict));
            self.follow(id, verdict);
        }
    }

    /// Attempts the requests on one list, in order, until an attempt finds the file not ready.
    pub(super) fn retry(&mut self, fd: i32, list: ListKind) {
        self.run_holder_work();
        while let Some(id) = self.poll_set.existing(fd).and_then(|entry| entry.list(list).first()) {
            let request = &self.slab[id];
            let State::Polling(Polling { then, .. }) = *request.state() else { return };
            if then == Then::PlainCall || request.is_others() {
                let id = self.disarm(id).id();
                match then {
                    Then::PlainCall => self.punt(id, Approach::Plain, Punt::NoForm),
                    Then::Retry => self.punt(id, Approach::AttemptFirst, Punt::Identity),
                }
                continue;
            }
            point(Point::Retry);
            let verdict = self.with_op(id, |guard, op| guard.attempt_of(id, op, false));
            if let Verdict::WouldBlock(direction) = verdict {
                if ListKind::from(direction) == list {
                    self.slab[id].finds_nothing();
                    self.record_held_buffer(id);
                    self.poll_set.entry(fd).facts.mark_empty(list);
                    return;
                }
            }
            self.record_of(id, |it| it.task_add());
            let id = self.disarm(id).id();
            self.follow(id, verdict);
            self.run_holder_work();
            if self.is_armed_again(id, fd, list) {
                return;
            }
        }
    }

    /// True if the request waits on that list again. Its last attempt found the file not ready, so the other requests
    /// on the list would find the same. Examples are a multishot request that has just taken everything, and a WAITID
    /// whose child has no state to report.
    fn is_armed_again(&self, id: Id, fd: i32, list: ListKind) -> bool {
        self.slab.get(id).is_some_and(|request| match *request.state() {
            State::Polling(it) => (it.fd, it.list, it.then) == (fd, list, Then::Retry),
            _ => false,
        })
    }

    /// Attempts a request that was armed without an attempt.
    pub fn retry_armed(&mut self, id: Id) {
        if let Some(State::Polling(it)) = self.slab.get(id).map(|request| request.state()) {
            self.retry(it.fd, it.list);
        }
    }

    /// Makes the first attempt of a READ_MULTISHOT that was armed without one. The kernel's worker only arms such a
    /// request (`io_wq_submit_work`). Task work then reads the data that is there already. An error of that read is not
    /// found earlier.
    pub fn retry_first(&mut self, id: Id) {
        let Some((fd, by_worker)) = self.slab.get(id).and_then(|request| match *request.state() {
            State::Polling(it) => Some((it.fd, request.flags & IOSQE_ASYNC != 0)),
            _ => None,
        }) else {
            return;
        };
        self.poll_set.forget_postponed(fd);
        if !by_worker {
            return self.retry_armed(id);
        }
        if Sys::poll_now(fd, libc::POLLIN as u16) == Ok(0) {
            self.slab[id].finds_nothing();
            self.poll_set.entry(fd).facts.mark_empty(ListKind::Read);
        } else {
            self.poll_set.due.rest = true;
        }
    }

    /// Completes the poll requests on a descriptor for which `seen` has arrived as an event.
    fn wake_polls(&mut self, fd: i32, seen: u16) {
        let by_itself = self.signalled && self.signals(fd);
        self.signalled &= !by_itself;
        let reported = self.poll_set.existing(fd).map_or(0, |entry| entry.found);
        self.complete_polls_by(fd, |poll| {
            let seen = if poll.multishot { seen & !reported } else { seen };
            // A wake-up by a CQE ends a poll request (EPOLL_URING_WAKE in `io_poll_wake`). A poll woken by its own CQEs
            // would loop forever.
            let is_ring = poll.watches_ring;
            let last = poll.multishot && (by_itself || is_ring) && !poll.found_at_once();
            let is_socket = || !is_ring && socket_option(fd, libc::SO_TYPE).is_ok();
            (poll.woken(seen, is_socket), last)
        });
    }

    /// True if `fd` is the eventfd that this ring's CQEs signal, and a multishot poll waits on it.
    fn signals(&mut self, fd: i32) -> bool {
        let state = &mut **self;
        let Some(entry) = state.poll_set.existing(fd) else { return false };
        let mut polls = core::iter::successors(entry.polls.first(), |id| List::after(&state.slab, *id));
        let multishot = polls.any(|id| state.slab[id].op.poll().is_some_and(|poll| poll.multishot));
        multishot && state.eventfd.is_some_and(|(eventfd, _)| descriptors::same_description(eventfd, fd))
    }

    /// Completes the poll requests on a descriptor for which a poll returned `seen`.
    pub(crate) fn complete_polls(&mut self, fd: i32, seen: u16) {
        self.complete_polls_by(fd, |_| (seen, false));
    }

    /// Completes each poll request with the events that `judge` returns. The flag from `judge` ends a multishot poll.
    fn complete_polls_by(&mut self, fd: i32, mut judge: impl FnMut(&mut PollAdd) -> (u16, bool)) {
        let mut next = self.poll_set.existing(fd).and_then(|entry| entry.polls.first());
        while let Some(id) = next {
            next = List::after(&self.slab, id);
            let Some(poll) = self.slab.get_mut(id).and_then(|request| request.op.poll_mut()) else { continue };
            let (seen, last) = judge(poll);
            let (answer, multishot) = (poll.matching(seen), poll.multishot && !last);
            if answer == 0 {
                continue;
            }
            self.record_of(id, |it| it.task_add());
            if multishot && self.shot(id, answer.into(), 0) {
                continue;
            }
            let id = self.disarm(id).id();
            self.finish(id, answer.into(), false);
        }
    }

    pub(crate) fn reissue_all(&mut self, fd: i32) {
        single::join_list(self, fd);
        for list in [ListKind::Read, ListKind::Write, ListKind::Poll] {
            while let Some(id) = self.poll_set.existing(fd).and_then(|entry| entry.list(list).first()) {
                let detached = self.disarm(id);
                self.make_ready(detached);
            }
        }
        if let Some(entry) = self.poll_set.existing(fd) {
            entry.facts.may_be_ready();
        }
    }

    /// Prepares for the program's close of `fd`. Requests in flight on `fd` keep a private duplicate, and all knowledge
    /// about the number is dropped. If `fd` is closed already, `private` is the duplicate that the closing thread left.
    pub fn detach_number(&mut self, fd: i32, private: Option<Option<Arc<FixedFile>>>) {
        self.forget_eventfd(fd);
        single::join_list(self, fd);
        self.record(|it| it.forget_file(fd));
        let closed = private.is_some();
        let mut file = private.flatten();
        if let Some(file) = &file {
            self.poll_set.forget(file.fd);
        }
        if self.slab.is_scattered() {
            self.move_all_of(fd, closed, &mut file);
        } else {
            self.move_armed_of(fd, closed, &mut file);
        }
        let epoll = self.poll_set.epoll;
        if let Some(entry) = self.poll_set.existing(fd) {
            if let (Some(epoll), true) = (epoll, entry.registered != 0) {
                let _ = Sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
        }
        self.poll_set.forget(fd);
    }

    /// Gives the private duplicate of `fd` to all requests on `fd`, also those that are on no list of an entry.
    fn move_all_of(&mut self, fd: i32, closed: bool, file: &mut Option<Arc<FixedFile>>) {
        let (mut place, mut scattered) = (0, false);
        while let Some(id) = self.slab.next_from(place) {
            place = id.place() + 1;
            let request = &self.slab[id];
            scattered |= match request.state() {
                State::Polling(how) => request.target.number().is_some_and(|number| number != how.fd),
                State::Queued(_) | State::Staged | State::Submitted => true,
                State::Timed => request.target.number().is_some(),
                _ => false,
            };
            self.keep_from_close(id, fd, closed, file);
        }
        self.slab.set_scattered(scattered);
    }

    /// Gives the private duplicate of `fd` to the requests that are armed on `fd`, in the order of their arming: see
    /// [`arm`](Self::arm).
    fn move_armed_of(&mut self, fd: i32, closed: bool, file: &mut Option<Arc<FixedFile>>) {
        for kind in [ListKind::Read, ListKind::Write, ListKind::Poll] {
            let Some(list) = self.poll_set.existing(fd).map(|entry| *entry.list(kind)) else { return };
            let Some(first) = list.first() else { continue };
            let in_line = self.slab[first].opcode == Opcode::Accept;
            let mut next = if in_line { Some(first) } else { list.last() };
            while let Some(id) = next {
                next = if in_line { List::after(&self.slab, id) } else { List::before(&self.slab, id) };
                self.keep_from_close(id, fd, closed, file);
            }
        }
    }

    /// Gives a request that has begun on `fd` the private duplicate. The duplicate is made on demand, unless the number
    /// is `closed`.
    fn keep_from_close(&mut self, id: Id, fd: i32, closed: bool, file: &mut Option<Arc<FixedFile>>) {
        if !matches!(self.slab[id].target, Target::Number(number) if number == fd) {
            return;
        }
        let armed = matches!(self.slab[id].state(), State::Polling(_));
        let queued = matches!(self.slab[id].state(), State::Queued(_) | State::Staged | State::Submitted);
        // A TIMEOUT has no file, so a request in this state is one that chaos holds back.
        let held_back = matches!(self.slab[id].state(), State::Timed);
        if !(armed || queued || held_back) || mutated(Mutation::NoPrivateDuplicate) {
            return;
        }
        let private = match file {
            Some(file) => file.clone(),
            None if closed => return, // the number names another file by now
            None => match FixedFile::private(fd) {
                Ok(duplicate) => {
                    self.poll_set.forget(duplicate.fd);
                    file.insert(duplicate).clone()
                }
                Err(_) => return,
            },
        };
        self.move_to(id, private, armed);
    }

    fn move_to(&mut self, id: Id, private: Arc<FixedFile>, armed: bool) {
        if armed {
            let State::Polling(Polling { list, tried, then, .. }) = *self.slab[id].state() else { return };
            let detached = self.disarm(id);
            self.slab[id].target = Target::Private(private);
            if self.arm(id, list, tried, then) != Ok(Arming::Waits) {
                self.make_ready(detached);
            }
            return;
        }
        if let State::Queued(job) = self.slab[id].state() {
            job.move_to(&private); // the job keeps its turn
        }
        self.slab[id].target = Target::Private(private); // for a worker that has to continue the request
    }
}
