//! Sums of events: per ring, and per kind of request on a ring.

use crate::class::{counts_bytes, is_error, waits, SizeClass};
use crate::gain::Spent;
use crate::kernel::may_be_forced;
use crate::later::Threads;
use crate::places::Callers;
use crate::report::{Interface, Report, ThreadReport};
use crate::Event;
use anyring_abi::{
    IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, IORING_SETUP_IOPOLL, IOSQE_ASYNC, IOSQE_CQE_SKIP_SUCCESS,
};
use anyring_engine::event::{FileKind, Kind};
use anyring_engine::op::Punt;
use std::collections::{BTreeMap, HashMap};

mod habits;
mod in_flight;
mod rates;
mod tally;

pub use habits::Habits;
use habits::Small;
use in_flight::InFlight;
pub use rates::Rates;
use tally::{Key, Path, RingTally, DESCRIPTORS};

/// Number of requests in flight beyond which the summary forgets those that ask for no CQE on success. Without a
/// CQE it cannot learn that they have completed.
const QUIET_IN_FLIGHT: usize = 1 << 16;

/// A completion whose path is still undecided.
#[derive(Debug, Clone)]
struct PathPending {
    ring: u32,
    key: Key,
    latency_ns: Option<u64>,
    small: Option<Small>,
}

/// Counts events by ring, by kind of request and by thread.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    rings: BTreeMap<u32, RingTally>,
    in_flight: HashMap<(u32, u32), InFlight>,
    /// The number of requests in flight at which those that ask for no CQE are dropped.
    forget_at: usize,
    unattributed_enters: u64,
    /// Counts by thread.
    by_thread: BTreeMap<u32, ThreadReport>,
    has_sizes: bool,
    /// Number of events that were added.
    events: u64,
    /// Undecided completions of the kernel's requests.
    threads: Threads<PathPending>,
    callers: Callers,
}

impl Summary {
    /// Starts empty. The kernel's tracepoints carry no sizes.
    pub fn new(has_sizes: bool) -> Summary {
        Summary { has_sizes, forget_at: QUIET_IN_FLIGHT, ..Summary::default() }
    }

    /// Adds one event; those of a ring must come in order of time.
    pub fn add(&mut self, event: &Event) {
        self.events += 1;
        if !self.has_sizes {
            self.follow_thread(event);
        }
        self.count_for_thread(event);
        self.callers.observe(event);
        if event.ring == 0 {
            self.unattributed_enters += u64::from(event.kind == Kind::Enter);
            return;
        }
        let ring = self.rings.entry(event.ring).or_default();
        if event.is_aio() {
            ring.interface = Interface::Aio;
        }
        let request = self.in_flight.get_mut(&(event.ring, event.request));
        match event.kind {
            Kind::Create => {
                (ring.fd, ring.thread, ring.flags, ring.known) = (event.fd, event.thread, event.flags, true);
                ring.entries = [event.len.into(), event.offset];
            }
            Kind::Enter => {
                ring.enters += 1;
                if event.len != 0 {
                    ring.submitting_enters += 1;
                    ring.waiting_submissions += u64::from(!event.is_aio() && event.offset != 0);
                    ring.several_submitters |= *ring.submitter.get_or_insert(event.thread) != event.thread;
                }
            }
            Kind::CqringWait => ring.waits += 1,
            Kind::ReqFailed if event.is_aio() => {
                // A refused iocb gets no event. It was reported as submitted, unless it could not even be read.
                ring.refused += 1;
                ring.submitted += u64::from(event.request == 0);
                if self.in_flight.remove(&(event.ring, event.request)).is_some() {
                    ring.habits.refuse();
                }
            }
            Kind::SubmitReq | Kind::ReqFailed => {
                ring.submitted += 1;
                ring.refused += u64::from(event.kind == Kind::ReqFailed);
                self.submit(event);
            }
            Kind::FileGet => {
                ring.look_up(event.fd, event.file);
                if let Some(request) = request {
                    (request.file, request.looked_up) = (event.file, Some(event.fd));
                    if !self.has_sizes && event.len == 1 {
                        request.begin_in_io_wq(ring, Some(event.time_ns));
                    }
                }
            }
            Kind::PollArm => {
                if let Some(request) = request.filter(|request| request.path == Path::Inline) {
                    request.path = Path::Poll;
                }
            }
            Kind::QueueAsyncWork => {
                if let Some(request) = request {
                    (request.queued_ns, request.punt) = (event.time_ns, event.punt());
                    let before = core::mem::replace(&mut request.path, Path::Worker);
                    ring.with_workers += u64::from(before != Path::Worker);
                    ring.most_with_workers = ring.most_with_workers.max(ring.with_workers);
                }
            }
            Kind::TaskAdd => {
                let mut request = request;
                // The request was neither armed for readiness nor sent to a worker.
                if let Some(request) = request.as_mut().filter(|request| request.path == Path::Inline) {
                    request.path = Path::KernelAio;
                }
                let queued = request.filter(|request| request.queued_ns != 0);
                if let Some((request, worked)) = queued.zip(event.worked()) {
                    let queued_ns = core::mem::take(&mut request.queued_ns);
                    *request.in_queue_ns.get_or_insert(0) += worked.began_ns.saturating_sub(queued_ns);
                }
            }
            Kind::Link => {
                let before = u32::try_from(event.offset).ok();
                let before = before.and_then(|before| self.in_flight.get_mut(&(event.ring, before)));
                if let Some(before) = before {
                    before.next = event.request;
                }
            }
            Kind::Complete | Kind::CqeOverflow => {
                ring.cqes += 1;
                ring.overflows += u64::from(event.kind == Kind::CqeOverflow);
                self.complete(event);
            }
            _ => {}
        }
    }

    fn count_for_thread(&mut self, event: &Event) {
        let [enters, submitted] = match event.kind {
            Kind::Create => [0, 0],
            Kind::Enter => [1, 0],
            Kind::SubmitReq | Kind::ReqFailed if !event.is_aio() || event.kind == Kind::SubmitReq => [0, 1],
            _ => return,
        };
        let thread = self.by_thread.entry(event.thread).or_default();
        thread.enters += enters;
        thread.submitted += submitted;
        if event.ring != 0 {
            thread.rings.insert(event.ring);
        }
    }

    /// Decides the paths of earlier completions by the kernel's events: see `later`.
    fn follow_thread(&mut self, event: &Event) {
        let [inline, later] = match event.kind {
            Kind::Enter | Kind::CqringWait => [self.threads.step(event.thread), Vec::new()],
            Kind::SubmitReq => [self.threads.submit(event.thread), Vec::new()],
            Kind::TaskWorkRun | Kind::LocalWorkRun => self.threads.task_work(event.thread, event.len),
            _ => return,
        };
        self.count_done(inline, Path::Inline);
        self.count_done(later, Path::KernelAio);
    }

    fn count_done(&mut self, done: Vec<Option<PathPending>>, path: Path) {
        for PathPending { ring, key, latency_ns, small } in done.into_iter().flatten() {
            if let Some(ring) = self.rings.get_mut(&ring) {
                ring.of_kind(key).record(path, latency_ns);
                small.into_iter().filter(|_| path == Path::KernelAio).for_each(|small| ring.habits.waited(small));
            }
        }
    }

    /// The request of an event. The kernel reports an overflow without the request's address: it is the first with
    /// that user_data.
    fn request_of(&self, event: &Event) -> u32 {
        if event.request != 0 || event.kind != Kind::CqeOverflow {
            return event.request;
        }
        let of_it = |((ring, _), request): &(&(u32, u32), &InFlight)| {
            *ring == event.ring && request.user_data == event.user_data
        };
        self.in_flight.iter().filter(of_it).map(|((_, number), _)| *number).min().unwrap_or(0)
    }

    fn submit(&mut self, event: &Event) {
        let waits = waits(event.opcode);
        let request = InFlight {
            opcode: event.opcode,
            flags: event.flags,
            len: event.len,
            file: FileKind::Unknown,
            path: if waits { Path::Poll } else { Path::Inline },
            submitted_ns: event.time_ns,
            begun_ns: event.time_ns,
            looked_up: None,
            queued_ns: 0,
            in_queue_ns: None,
            punt: None,
            several: false,
            bytes: 0,
            next: 0,
            after_worker: false,
            sent: if self.has_sizes { event.flags & u32::from(IOSQE_ASYNC) != 0 } else { event.len == 1 },
            sequential: self.has_sizes && self.goes_on(event),
            user_data: event.user_data,
            moment: self.threads.moment(event.thread),
            stack: self.callers.now(event),
        };
        if self.in_flight.len() >= self.forget_at {
            self.in_flight.retain(|_, request| request.flags & u32::from(IOSQE_CQE_SKIP_SUCCESS) == 0);
            self.forget_at = QUIET_IN_FLIGHT.max(2 * self.in_flight.len());
        }
        self.in_flight.insert((event.ring, event.request), request);
        if let Some(ring) = self.rings.get_mut(&event.ring) {
            ring.habits.submit(event.request, event.time_ns);
        }
    }

    /// True if its transfer begins at the offset where the previous transfer on its descriptor ended.
    fn goes_on(&mut self, event: &Event) -> bool {
        let Some(ring) = self.rings.get_mut(&event.ring).filter(|_| counts_bytes(event.opcode)) else {
            return false;
        };
        if ring.ends.len() >= DESCRIPTORS && !ring.ends.contains_key(&event.fd) {
            return false;
        }
        let end = event.offset.saturating_add(event.len.into());
        let before = ring.ends.insert(event.fd, end);
        event.offset == u64::MAX || before == Some(event.offset)
    }

    fn complete(&mut self, event: &Event) {
        let key = (event.ring, self.request_of(event));
        if event.flags & (IORING_CQE_F_MORE | IORING_CQE_F_NOTIF) != 0 {
            if let Some(request) = self.in_flight.get_mut(&key).filter(|_| event.flags & IORING_CQE_F_MORE != 0) {
                request.several = true;
                request.bytes += u64::try_from(event.result).unwrap_or(0);
            }
            if !self.has_sizes {
                self.threads.complete(event.thread, None, false);
            }
            return;
        }
        let Some(mut request) = self.in_flight.remove(&key) else { return };
        let key = request.key(self.has_sizes);
        let short = key.size != SizeClass::Unknown && event.result >= 0 && (event.result as u32) < request.len;
        let now = self.threads.moment(event.thread);
        let Some(ring) = self.rings.get_mut(&event.ring) else { return };
        let polled = ring.flags & IORING_SETUP_IOPOLL != 0;
        // With IORING_SETUP_DEFER_TASKRUN the submitting thread posts what a worker has completed.
        if !self.has_sizes && (event.len == 1 || request.sent && event.result != -libc::ECANCELED) {
            request.begin_in_io_wq(ring, None);
        }
        if !self.has_sizes && event.len == 1 {
            self.threads.complete_in_io_wq(request.moment.0);
        }
        if !self.has_sizes && request.path == Path::Inline && (request.moment != now || polled) {
            request.path = Path::KernelAio;
        }
        ring.with_workers -= u64::from(request.path == Path::Worker && ring.with_workers != 0);
        let small = ring.habits.complete(&request, event);
        let tally = ring.of_kind(key);
        tally.comes_from(request.stack);
        let is_forced = request.flags & u32::from(IOSQE_ASYNC) != 0;
        tally.forced += u64::from(is_forced);
        tally.sent += u64::from(request.sent);
        // To anyring's engine a request after a drain is one with the flag.
        let is_asked_for = request.punt == Some(Punt::AskedFor);
        if let Some(punt) = request.punt.filter(|_| is_forced || !is_asked_for) {
            tally.punts[punt as usize] += 1;
        }
        let by_worker = request.path == Path::Worker;
        tally.worker_by_chain += u64::from(by_worker && request.after_worker && !request.sent);
        let by_drain = is_asked_for || request.sent && !may_be_forced(request.opcode);
        tally.worker_by_drain += u64::from(by_worker && by_drain && !is_forced);
        tally.sequential += u64::from(request.sequential);
        tally.errors += u64::from(is_error(request.opcode, event.result));
        tally.short += u64::from(short);
        tally.bytes += request.bytes + u64::try_from(event.result).unwrap_or(0);
        if let Some(in_queue_ns) = request.in_queue_ns {
            let _ = tally.queued_ns.record(in_queue_ns.max(1));
        }
        let latency_ns = event.time_ns.saturating_sub(request.submitted_ns).max(1);
        let latency_ns = (!request.several).then_some(latency_ns);
        let open = !self.has_sizes && request.path == Path::Inline;
        if !open {
            tally.record(request.path, latency_ns);
        }
        if !self.has_sizes && event.len != 1 {
            let untold = open.then_some(PathPending { ring: event.ring, key, latency_ns, small });
            self.threads.complete(event.thread, untold, request.next != 0 && event.result >= 0);
        }
        if let Some(next) = self.in_flight.get_mut(&(event.ring, request.next)).filter(|_| request.next != 0) {
            (next.after_worker, next.begun_ns) = (by_worker, event.time_ns);
        }
    }

    /// True if some ring had enough requests for findings.
    pub fn says_much(&self) -> bool {
        self.rings.values().any(|ring| ring.submitted >= crate::findings::FEW)
    }

    /// Returns the report on all events.
    pub fn report(mut self, events_lost: u64) -> Report {
        let inline = self.threads.finish();
        self.count_done(inline, Path::Inline);
        for ((ring, _), request) in self.in_flight.drain() {
            let key = request.key(self.has_sizes);
            if let Some(ring) = self.rings.get_mut(&ring) {
                let tally = ring.of_kind(key);
                tally.comes_from(request.stack);
                tally.unfinished += 1;
            }
        }
        let rings: Vec<_> =
            self.rings.into_iter().map(|(number, ring)| ring.report(number, !self.has_sizes)).collect();
        let mut report = Report {
            spent: Spent::default(),
            events: self.events,
            rings,
            processes: Vec::new(),
            unserved: Vec::new(),
            unheard: Vec::new(),
            findings: Vec::new(),
            unattributed_enters: self.unattributed_enters,
            events_lost,
            by_thread: self.by_thread,
            places_ns: self.callers.took_ns(),
            stacks: self.callers.into_stacks(),
        };
        report.find();
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_abi::{Opcode, IOCB_CMD_PREAD};
    use anyring_engine::event::AIO;

    fn event(kind: Kind, request: u32, time_ns: u64) -> Event {
        Event { ring: 1, request, time_ns, opcode: Opcode::Read as u16, len: 4096, ..Event::new(kind) }
    }

    fn complete(request: u32, time_ns: u64, result: i32) -> Event {
        Event { result, ..event(Kind::Complete, request, time_ns) }
    }

    #[test]
    fn each_path_is_counted_with_its_latency() {
        let mut summary = Summary::new(true);
        let events = [
            event(Kind::Enter, 0, 1),
            event(Kind::SubmitReq, 1, 10),
            event(Kind::SubmitReq, 2, 20),
            event(Kind::PollArm, 2, 21),
            event(Kind::SubmitReq, 3, 30),
            event(Kind::PollArm, 3, 31),
            event(Kind::QueueAsyncWork, 3, 32).with_punt(Punt::WouldWait),
            Event { offset: 132, fd: 9, ..event(Kind::TaskAdd, 3, 320) },
            event(Kind::SubmitReq, 4, 40),
            event(Kind::SubmitReq, 5, 45),
            event(Kind::TaskAdd, 5, 50),
            complete(5, 245, 4096),
            event(Kind::CqringWait, 0, 50),
            complete(1, 110, 4096),
            complete(2, 220, 100),
            complete(3, 330, -5),
        ];
        events.iter().for_each(|event| summary.add(event));
        let report = summary.report(0);
        let ring = &report.rings[0];
        assert_eq!((ring.submitted, ring.enters, ring.waits, ring.cqes), (5, Some(1), 1, 4));
        let kinds = &ring.kinds[0];
        assert_eq!((kinds.kind.opcode.as_str(), kinds.kind.size), ("READ", "<=4K"));
        assert_eq!((kinds.inline, kinds.poll, kinds.kernel_aio, kinds.worker), (1, 1, 1, 1));
        assert_eq!((kinds.unfinished, kinds.kernel_aio_p50_ns), (1, Some(200)));
        assert_eq!((kinds.errors, kinds.short, kinds.p50_ns), (1, Some(1), Some(200)));
        assert_eq!(kinds.worker_because, BTreeMap::from([("would_wait", 1)]));
        assert_eq!((kinds.queued_p50_ns, kinds.queued_p99_ns), (Some(100), Some(100)));
    }

    #[test]
    fn a_timeout_that_ends_by_its_time_is_no_error() {
        let mut summary = Summary::new(true);
        let of = |opcode: Opcode, request, result| {
            let at = |event: Event| Event { opcode: opcode as u16, ..event };
            [at(event(Kind::SubmitReq, request, 10)), at(complete(request, 20, result))]
        };
        let usual = [of(Opcode::Timeout, 1, -libc::ETIME), of(Opcode::LinkTimeout, 2, -libc::ECANCELED)];
        let errors = [of(Opcode::Timeout, 3, -libc::ECANCELED), of(Opcode::LinkTimeout, 4, -libc::ETIME)];
        usual.iter().chain(&errors).flatten().for_each(|event| summary.add(event));
        let kinds = &summary.report(0).rings[0].kinds;
        assert_eq!(kinds.iter().map(|it| (it.count, it.errors)).collect::<Vec<_>>(), [(2, 1), (2, 1)]);
    }

    #[test]
    fn a_refused_iocb_gets_no_event_and_is_not_left_unfinished() {
        let mut summary = Summary::new(true);
        let of_aio =
            |kind, request, time_ns| Event { opcode: AIO | IOCB_CMD_PREAD, ..event(kind, request, time_ns) };
        let events = [
            of_aio(Kind::Enter, 0, 1),
            of_aio(Kind::SubmitReq, 1, 10),
            of_aio(Kind::SubmitReq, 2, 20),
            of_aio(Kind::ReqFailed, 2, 21),
            of_aio(Kind::ReqFailed, 0, 22),
            Event { opcode: AIO, ..complete(1, 110, 4096) },
        ];
        events.iter().for_each(|event| summary.add(event));
        let report = summary.report(0);
        let ring = &report.rings[0];
        assert_eq!((ring.interface, ring.submitted, ring.refused, ring.cqes), (Interface::Aio, 3, 2, 1));
        let [kinds] = &ring.kinds[..] else { panic!("one kind: {ring:?}") };
        assert_eq!((kinds.kind.opcode.as_str(), kinds.kind.size), ("PREAD", "<=4K"));
        assert_eq!((kinds.count, kinds.inline, kinds.unfinished), (1, 1, 0));
        assert!(report.to_string().starts_with("AIO context 1 (for unknown): 3 requests, 1 calls"));
    }

    /// READs of a device, and one of the page cache, as the kernel's tracepoints report them.
    #[test]
    fn a_request_that_a_device_completes_later_is_not_inline() {
        let mut summary = Summary::new(false);
        let work = |count, time_ns| Event { len: count, ..event(Kind::LocalWorkRun, 0, time_ns) };
        let events = [
            event(Kind::Enter, 0, 1),
            event(Kind::SubmitReq, 1, 10),
            event(Kind::SubmitReq, 2, 11),
            event(Kind::SubmitReq, 3, 12),
            event(Kind::SubmitReq, 4, 13),
            complete(1, 20, 4096), // in the call
            complete(2, 30, 4096), // by task work, on the way out of the call
            work(1, 31),
            event(Kind::CqringWait, 0, 40),
            complete(3, 50, 4096),
            work(1, 51),
            event(Kind::Enter, 0, 60),
            event(Kind::SubmitReq, 5, 61),
            complete(4, 70, 4096), // while others are submitted
            complete(5, 71, 4096), // in the call, and the trace ends
        ];
        events.iter().for_each(|event| summary.add(event));
        let report = summary.report(0);
        let kinds = &report.rings[0].kinds[0];
        assert_eq!((kinds.count, kinds.inline, kinds.kernel_aio), (5, 2, 3));
        assert_eq!((kinds.inline_p50_ns, kinds.kernel_aio_p50_ns), (Some(10), Some(38)));
    }

    /// The kernel does not say which request an overflow belongs to.
    #[test]
    fn a_request_whose_cqe_found_the_cq_full_is_finished() {
        let mut summary = Summary::new(false);
        let of = |kind, request, user_data| Event { user_data, ..event(kind, request, 10) };
        for request in 1..=4 {
            summary.add(&of(Kind::SubmitReq, request, 7));
        }
        summary.add(&of(Kind::SubmitReq, 5, 8));
        summary.add(&of(Kind::Complete, 1, 7));
        for user_data in [7, 7, 8] {
            summary.add(&of(Kind::CqeOverflow, 0, user_data));
        }
        let report = summary.report(0);
        let (ring, kinds) = (&report.rings[0], &report.rings[0].kinds[0]);
        assert_eq!((ring.cqes, ring.overflows, kinds.count, kinds.unfinished), (4, 3, 4, 1));
    }

    /// One chain whose first request a worker gets, and one whose first is inline, as the kernel's tracepoints report
    /// them.
    #[test]
    fn a_request_that_io_wq_completes_was_a_worker_s_wherever_in_the_chain() {
        let mut summary = Summary::new(false);
        let of = |kind, opcode: Opcode, request, time_ns| Event {
            opcode: opcode as u16,
            len: 0,
            ..event(kind, request, time_ns)
        };
        let in_io_wq = |event: Event| Event { thread: 9, len: 1, ..event };
        let link =
            |request, time_ns| Event { offset: u64::from(request - 1), ..event(Kind::Link, request, time_ns) };
        let events = [
            event(Kind::Enter, 0, 1),
            of(Kind::SubmitReq, Opcode::Fsync, 1, 10),
            of(Kind::SubmitReq, Opcode::Write, 2, 11),
            link(2, 11),
            of(Kind::QueueAsyncWork, Opcode::Fsync, 1, 12),
            in_io_wq(of(Kind::FileGet, Opcode::Fsync, 1, 20)),
            in_io_wq(of(Kind::Complete, Opcode::Fsync, 1, 80)),
            in_io_wq(of(Kind::FileGet, Opcode::Write, 2, 81)),
            in_io_wq(of(Kind::Complete, Opcode::Write, 2, 90)),
            event(Kind::Enter, 0, 100),
            of(Kind::SubmitReq, Opcode::Read, 3, 110),
            of(Kind::SubmitReq, Opcode::Statx, 4, 111),
            link(4, 111),
            of(Kind::Complete, Opcode::Read, 3, 112),
            of(Kind::QueueAsyncWork, Opcode::Statx, 4, 113),
            Event { len: 1, ..event(Kind::TaskWorkRun, 0, 114) }, // which started the second request
            in_io_wq(of(Kind::Complete, Opcode::Statx, 4, 120)),
        ];
        events.iter().for_each(|event| summary.add(event));
        let report = summary.report(0);
        let kinds = |opcode| report.rings[0].kinds.iter().find(|it| it.kind.opcode == opcode).expect("that kind");
        let paths = |opcode| [kinds(opcode).inline, kinds(opcode).kernel_aio, kinds(opcode).worker];
        assert_eq!((paths("FSYNC"), paths("WRITE")), ([0, 0, 1], [0, 0, 1]));
        assert_eq!((kinds("FSYNC").worker_by_chain, kinds("WRITE").worker_by_chain), (0, 1));
        assert_eq!((paths("READ"), paths("STATX")), ([1, 0, 0], [0, 0, 1]));
        assert_eq!(kinds("FSYNC").queued_p50_ns, Some(8));
        assert_eq!(kinds("STATX").queued_p50_ns, None, "it has no descriptor to look up");
        assert_eq!(report.rings[0].most_with_workers, 1);
    }

    /// The submitting thread posts a worker's result on a ring with IORING_SETUP_DEFER_TASKRUN.
    #[test]
    fn a_request_that_the_kernel_sends_to_a_worker_was_there() {
        let mut summary = Summary::new(false);
        for (request, result) in [(1, 0), (2, -libc::ECANCELED)] {
            let of = |kind, len| Event { opcode: Opcode::Statx as u16, len, result, ..event(kind, request, 1) };
            [of(Kind::SubmitReq, 1), of(Kind::Complete, 0)].iter().for_each(|event| summary.add(event));
        }
        let statx = &summary.report(0).rings[0].kinds[0];
        assert_eq!((statx.worker, statx.inline, statx.worker_by_drain), (1, 1, 0), "its chain had failed");
    }

    /// anyring's engine reports the same reason for a request after a drain as for one with IOSQE_ASYNC.
    #[test]
    fn a_drain_is_told_from_the_flag() {
        let mut summary = Summary::new(true);
        for (request, flags) in [(1, IOSQE_ASYNC), (2, 0)] {
            summary.add(&Event { flags: flags.into(), ..event(Kind::SubmitReq, request, 1) });
            summary.add(&event(Kind::QueueAsyncWork, request, 2).with_punt(Punt::AskedFor));
            summary.add(&complete(request, 3, 4096));
        }
        let read = &summary.report(0).rings[0].kinds[0];
        assert_eq!((read.worker, read.forced, read.worker_by_drain), (2, 1, 1));
        assert_eq!(read.worker_because, BTreeMap::from([("asked_for", 1)]));
    }

    /// The kernel reports no kind of file. The tracer looks it up, for the first request too late.
    #[test]
    fn requests_of_one_descriptor_are_one_row() {
        let mut summary = Summary::new(false);
        for (request, fd, file) in [(1, 5, FileKind::Unknown), (2, 5, FileKind::Regular), (3, 6, FileKind::Unknown)]
        {
            summary.add(&event(Kind::Enter, 0, 1));
            summary.add(&event(Kind::SubmitReq, request, 2));
            summary.add(&Event { len: 0, fd, file, ..event(Kind::FileGet, request, 3) });
            summary.add(&complete(request, 4, 512));
        }
        summary.add(&event(Kind::SubmitReq, 4, 5));
        summary.add(&Event { len: 0, fd: 5, ..event(Kind::FileGet, 4, 6) });
        let mut rates = Rates::default();
        let text = rates.next(&summary, std::time::Duration::from_secs(1));
        let lines: Vec<_> = text.lines().skip(2).map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!((&lines[0][1..4], &lines[1][1..3]), (&["READ", "file", "2"][..], &["READ", "1"][..]), "{text}");
        let report = summary.report(0);
        let rows = report.rings[0].kinds.iter().map(|it| (it.kind.file, it.count, it.unfinished));
        assert_eq!(rows.collect::<Vec<_>>(), [("-", 1, 0), ("file", 2, 1)]);
    }

    #[test]
    fn a_ring_made_before_the_trace_is_not_reported_as_zero() {
        let mut summary = Summary::new(false);
        summary.add(&event(Kind::SubmitReq, 1, 10));
        let report = summary.report(0);
        let ring = &report.rings[0];
        assert_eq!((ring.sq_entries, ring.setup_flags, ring.enters), (None, None, None));
        assert_eq!(ring.enters_per_request, None);
        let text = report.to_string();
        assert!(
            text.starts_with(
                "ring 1 (fd unknown, SQ unknown, CQ unknown, flags unknown): 1 requests, unknown enter calls"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_multishot_request_is_one_and_has_no_latency() {
        let mut summary = Summary::new(false);
        summary.add(&event(Kind::SubmitReq, 1, 10));
        for time_ns in [20, 30] {
            summary.add(&Event { flags: IORING_CQE_F_MORE, ..complete(1, time_ns, 1) });
        }
        summary.add(&complete(1, 40, 0));
        let report = summary.report(7);
        let kinds = &report.rings[0].kinds[0];
        assert_eq!((kinds.count, kinds.p50_ns, report.rings[0].cqes, kinds.kind.size), (1, None, 3, "-"));
        assert_eq!(kinds.short, None, "nobody knows how many bytes were asked for");
        assert!(report.to_string().contains("7 events were lost"));
    }
}
