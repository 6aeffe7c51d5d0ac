//! Requests that wait for readiness: arming, serving the poll set's events, and taking a number away from under them.

use super::{EDGE, ENDED, FOREIGN_KICK, KICK, READ, WRITE};
use crate::forced::{point, Point};
use crate::op::{Op, Verdict};
use crate::os::{EpollEvent, Os, Sys};
use crate::path::worker::Approach;
use crate::request::slab::List;
use crate::request::{Id, ListKind, Path, State, Target};
use crate::resource::files::FixedFile;
use crate::ring::RingGuard;
use crate::{descriptors, process, Errno};
use anyring_abi::Opcode;
use std::sync::Arc;

impl RingGuard {
    /// Makes a request wait for readiness. `EPERM` when its file cannot be polled.
    pub fn arm(&mut self, id: Id, list: ListKind, worker_when_ready: bool) -> Result<(), Errno> {
        let request = &self.slab[id];
        let fd = match &request.target {
            Target::Number(fd) => *fd,
            Target::Fixed(file) | Target::Private(file) => file.fd,
            Target::None | Target::Index(_) => return Err(Errno::PERM),
        };
        let events = match (&request.op, list) {
            (Op::Poll(poll), _) => u32::from(poll.events) | ENDED | libc::EPOLLRDHUP as u32,
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
        self.entries.check_new(fd)?;
        let state = &mut **self;
        let fresh = state.entries.existing(fd).is_none_or(|entry| entry.registered == 0);
        let epoll = state.entries.make_epoll(state.engine_end)?;
        let anew = core::mem::take(&mut state.arm_anew) || worker_when_ready;
        if anew || matches!(&state.slab[id].op, Op::Poll(poll) if poll.multishot) {
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
        } else if !fresh && !anew {
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
                    self.note_held_buffer(id);
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
    pub fn retry_armed(&mut self, id: Id) {
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
