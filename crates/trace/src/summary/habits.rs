//! Habits of a program that cost it time: one request in flight at a time, and an FSYNC after each write. Polls and
//! timeouts that are submitted anew each time cost CPU time.

use super::{InFlight, Path, DESCRIPTORS};
use crate::line::ring_opcode;
use crate::Event;
use anyring_abi::{
    Opcode, IOCB_CMD_FDSYNC, IOCB_CMD_FSYNC, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE, IOCB_CMD_PWRITEV,
};
use anyring_engine::event::AIO;
use std::collections::HashSet;

/// The most bytes of a small transfer. Larger transfers keep a device busy even one at a time.
const SMALL_BYTES: i32 = 64 << 10;

/// The most periods by which one TIMEOUT counts as late. A longer one was meant to be longer.
const LATEST: u64 = 16;

/// The habits seen on one ring.
#[derive(Debug, Clone, Default)]
pub struct Habits {
    /// Small transfers that waited for their device with nothing else in flight.
    pub alone: u64,
    /// Small transfers that waited for their device, whatever else was in flight.
    pub small: u64,
    /// Total latency of those with nothing else in flight.
    pub alone_ns: u64,
    /// FSYNCs and FDATASYNCs, and writes.
    pub syncs: u64,
    pub writes: u64,
    /// Time during which at least one FSYNC or FDATASYNC was in flight.
    pub sync_ns: u64,
    /// Total time of all of them.
    sync_total_ns: u64,
    /// Time in which nothing was in flight before an FSYNC, since the program had yet to make it. For each FSYNC at most
    /// as long as it took.
    pub sync_gaps_ns: u64,
    /// One-shot POLL_ADDs of a descriptor that an earlier POLL_ADD had polled.
    pub polls_again: u64,
    /// One-shot TIMEOUTs that took about as long as the TIMEOUT before.
    pub timeouts_again: u64,
    /// Further expirations of a multishot TIMEOUT that would have been due when a one-shot TIMEOUT woke the program
    /// late.
    late_ticks: u64,
    /// The least time that one of those TIMEOUTs took.
    least_ns: u64,
    in_flight: u64,
    /// The request that has been alone in flight since its submission.
    single: Option<u32>,
    synced_until_ns: u64,
    /// The time of the last completion, and of the gap before the request that is alone in flight.
    completed_ns: u64,
    gap_ns: u64,
    polled: HashSet<i32>,
    tick_ns: u64,
}

/// A small transfer that is complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct Small {
    /// True if nothing else was in flight.
    is_alone: bool,
    latency_ns: u64,
}

/// The sort of an operation, as far as it matters here.
#[derive(PartialEq, Eq)]
enum Sort {
    Read,
    Write,
    Sync,
    Poll,
    Timeout,
    Other,
}

fn sort(opcode: u16) -> Sort {
    const READS: [u16; 2] = [AIO | IOCB_CMD_PREAD, AIO | IOCB_CMD_PREADV];
    const WRITES: [u16; 2] = [AIO | IOCB_CMD_PWRITE, AIO | IOCB_CMD_PWRITEV];
    const SYNCS: [u16; 2] = [AIO | IOCB_CMD_FSYNC, AIO | IOCB_CMD_FDSYNC];
    use Opcode::*;
    match ring_opcode(opcode) {
        Some(Read | Readv | ReadFixed | ReadvFixed) => Sort::Read,
        Some(Write | Writev | WriteFixed | WritevFixed) => Sort::Write,
        Some(Fsync) => Sort::Sync,
        Some(PollAdd) => Sort::Poll,
        Some(Timeout) => Sort::Timeout,
        _ if READS.contains(&opcode) => Sort::Read,
        _ if WRITES.contains(&opcode) => Sort::Write,
        _ if SYNCS.contains(&opcode) => Sort::Sync,
        _ => Sort::Other,
    }
}

impl Habits {
    pub(super) fn submit(&mut self, request: u32, time_ns: u64) {
        self.single = (self.in_flight == 0).then_some(request);
        self.gap_ns = if self.completed_ns == 0 { 0 } else { time_ns.saturating_sub(self.completed_ns) };
        self.in_flight += 1;
    }

    pub(super) fn refuse(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Counts a request that has posted its last CQE. Returns it if it is a small transfer that may have waited for its
    /// device: the kernel's later events say whether it did.
    pub(super) fn complete(&mut self, request: &InFlight, event: &Event) -> Option<Small> {
        self.in_flight = self.in_flight.saturating_sub(1);
        let latency_ns = event.time_ns.saturating_sub(request.submitted_ns);
        let small = Small { is_alone: self.single == Some(event.request), latency_ns };
        let is_small = (1..=SMALL_BYTES).contains(&event.result);
        let sort = sort(request.opcode);
        self.writes += u64::from(sort == Sort::Write);
        self.completed_ns = event.time_ns;
        match sort {
            Sort::Read | Sort::Write if is_small && request.path == Path::Inline => return Some(small),
            // A worker's write does not count: parallel writes would wait for the file's lock as well.
            Sort::Read | Sort::Write if is_small && waits_for_device(request) => self.waited(small),
            Sort::Sync => {
                self.syncs += 1;
                self.sync_gaps_ns += if small.is_alone { self.gap_ns.min(latency_ns) } else { 0 };
                let begin_ns = request.begun_ns.max(self.synced_until_ns);
                self.sync_ns += event.time_ns.saturating_sub(begin_ns);
                self.sync_total_ns += event.time_ns.saturating_sub(request.begun_ns);
                self.synced_until_ns = event.time_ns;
            }
            Sort::Poll if !request.several && event.result > 0 => {
                let fd = request.looked_up?;
                let was_polled = self.polled.contains(&fd);
                self.polls_again += u64::from(was_polled);
                if !was_polled && self.polled.len() < DESCRIPTORS {
                    self.polled.insert(fd);
                }
            }
            Sort::Timeout if !request.several && event.result == -libc::ETIME => {
                let is_again = self.tick_ns != 0 && latency_ns < 2 * self.tick_ns && self.tick_ns < 2 * latency_ns;
                self.timeouts_again += u64::from(is_again);
                self.tick_ns = latency_ns;
                self.least_ns = if self.least_ns == 0 { latency_ns } else { self.least_ns.min(latency_ns) };
                // Of several in a row that take longer, only the first may be late.
                let late = (latency_ns / self.least_ns.max(1) - 1).min(LATEST);
                self.late_ticks += if is_again { 0 } else { late };
            }
            _ => {}
        }
        None
    }

    /// Counts a small transfer that waited for its device.
    pub(super) fn waited(&mut self, small: Small) {
        self.small += 1;
        if small.is_alone {
            self.alone += 1;
            self.alone_ns += small.latency_ns;
        }
    }

    /// The number of wake-ups that a multishot TIMEOUT spares on an engine that keeps its period. Expirations that are
    /// due at the same time share one.
    pub fn wakes_spared(&self) -> f64 {
        let [count, late] = [self.timeouts_again, self.late_ticks].map(|it| it as f64);
        count * late / (count + late).max(1.0)
    }

    /// Average number of FSYNCs in flight, while there is one. A journal commits them together.
    pub fn syncs_together(&self) -> f64 {
        self.sync_total_ns as f64 / self.sync_ns.max(1) as f64
    }

    /// True if most small transfers had nothing else in flight. Where fewer had, the program keeps several in flight,
    /// and these came while it was late.
    pub fn is_one_in_flight(&self) -> bool {
        self.alone >= crate::findings::FEW && 2 * self.alone >= self.small
    }
}

fn waits_for_device(request: &InFlight) -> bool {
    match request.path {
        Path::KernelAio => true,
        Path::Worker => sort(request.opcode) == Sort::Read,
        Path::Inline | Path::Poll => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Event, Summary};
    use anyring_abi::{Opcode, IORING_CQE_F_MORE};
    use anyring_engine::event::{FileKind, Kind};

    fn event(kind: Kind, opcode: Opcode, request: u32, time_ns: u64) -> Event {
        Event { ring: 1, request, time_ns, opcode: opcode as u16, fd: 5, ..Event::new(kind) }
    }

    fn habits(events: &[Event]) -> super::Habits {
        let mut summary = Summary::new(true);
        events.iter().for_each(|event| summary.add(event));
        summary.report(0).rings.remove(0).habits
    }

    /// Two reads by the device. The second is submitted before or after the first completes.
    fn reads(second_ns: u64, result: i32) -> super::Habits {
        let of = |kind, request, time_ns| event(kind, Opcode::Read, request, time_ns);
        let complete = |request, time_ns| Event { result, ..of(Kind::Complete, request, time_ns) };
        let mut events = [
            of(Kind::SubmitReq, 1, 10),
            of(Kind::TaskAdd, 1, 90),
            complete(1, 100),
            of(Kind::SubmitReq, 2, second_ns),
            of(Kind::TaskAdd, 2, 200),
            complete(2, 210),
        ];
        events.sort_by_key(|event| event.time_ns);
        habits(&events)
    }

    #[test]
    fn only_what_waits_for_a_device_with_nothing_beside_it_is_alone() {
        let one_by_one = reads(110, 4096);
        assert_eq!((one_by_one.alone, one_by_one.alone_ns), (2, 90 + 100));
        assert_eq!(reads(50, 4096).alone, 0, "both were in flight");
        assert_eq!(reads(110, 1 << 20).alone, 0, "large ones keep the device busy");
        assert_eq!((one_by_one.small, reads(50, 4096).small), (2, 2));
        let most = |alone| super::Habits { alone, small: 400, ..super::Habits::default() }.is_one_in_flight();
        assert!(most(200) && !most(199), "the others show that it keeps several in flight");
    }

    /// A program that waits by epoll makes no call on the ring while a device works.
    #[test]
    fn a_device_is_waited_for_without_a_call_on_the_kernels_ring_too() {
        let mut summary = Summary::new(false);
        for request in 1..=200 {
            let of = |kind, after_ns| Event {
                thread: 9,
                ..event(kind, Opcode::Readv, request, u64::from(request) * 1_000_000 + after_ns)
            };
            summary.add(&Event { len: 1, ..of(Kind::Enter, 0) });
            summary.add(&Event { len: 0, ..of(Kind::SubmitReq, 10) });
            summary.add(&Event { result: 4096, ..of(Kind::Complete, 70_010) });
            summary.add(&Event { ring: 0, len: 1, ..of(Kind::TaskWorkRun, 70_020) });
        }
        let habits = summary.report(0).rings.remove(0).habits;
        assert_eq!((habits.alone, habits.small, habits.alone_ns), (200, 200, 200 * 70_000));
    }

    #[test]
    fn an_fsync_counts_from_when_it_can_begin_and_two_at_a_time_once() {
        let of = |kind, opcode, request, time_ns| event(kind, opcode, request, time_ns);
        let found = habits(&[
            of(Kind::SubmitReq, Opcode::Write, 1, 10),
            of(Kind::SubmitReq, Opcode::Fsync, 2, 10),
            Event { offset: 1, ..of(Kind::Link, Opcode::Fsync, 2, 10) },
            of(Kind::Complete, Opcode::Write, 1, 40),
            of(Kind::SubmitReq, Opcode::Fsync, 3, 50),
            of(Kind::Complete, Opcode::Fsync, 2, 100),
            of(Kind::Complete, Opcode::Fsync, 3, 120),
        ]);
        assert_eq!((found.writes, found.syncs, found.sync_ns), (1, 2, 80));
        assert_eq!(found.syncs_together(), f64::from(60 + 70) / 80.0);
    }

    #[test]
    fn the_time_before_a_lone_fsync_counts_up_to_its_own() {
        let of = |kind, opcode, request, time_ns| event(kind, opcode, request, time_ns);
        let found = habits(&[
            of(Kind::SubmitReq, Opcode::Write, 1, 10),
            of(Kind::Complete, Opcode::Write, 1, 40),
            of(Kind::SubmitReq, Opcode::Fsync, 2, 70),
            of(Kind::Complete, Opcode::Fsync, 2, 170),
            of(Kind::SubmitReq, Opcode::Fsync, 3, 900),
            of(Kind::Complete, Opcode::Fsync, 3, 950),
            of(Kind::SubmitReq, Opcode::Write, 4, 960),
            of(Kind::SubmitReq, Opcode::Fsync, 5, 970),
            of(Kind::Complete, Opcode::Fsync, 5, 980),
        ]);
        assert_eq!(found.sync_gaps_ns, 30 + 50, "the third was not alone");
    }

    #[test]
    fn a_repeated_request_is_counted_from_the_second_on() {
        let mut events = Vec::new();
        for request in 1..=3 {
            let of = |kind, opcode, time_ns| event(kind, opcode, request, u64::from(request) * 1_000 + time_ns);
            events.extend([
                of(Kind::SubmitReq, Opcode::PollAdd, 0),
                Event { file: FileKind::Other, ..of(Kind::FileGet, Opcode::PollAdd, 1) },
                Event { result: 1, ..of(Kind::Complete, Opcode::PollAdd, 2) },
            ]);
        }
        for request in 4..=6 {
            let of = |kind, time_ns| event(kind, Opcode::Timeout, request, u64::from(request) * 1_000 + time_ns);
            let took_ns = if request == 6 { 900 } else { 100 };
            events.extend([of(Kind::SubmitReq, 0), Event { result: -libc::ETIME, ..of(Kind::Complete, took_ns) }]);
        }
        let found = habits(&events);
        assert_eq!((found.polls_again, found.timeouts_again), (2, 1));
        // The last TIMEOUT took nine periods, so a multishot one would have expired eight times more.
        assert_eq!(found.wakes_spared(), 8.0 / 9.0);
        // A multishot request is submitted once.
        let shot = |event: &Event| match event.kind {
            Kind::Complete => Event { flags: IORING_CQE_F_MORE, ..*event },
            _ => *event,
        };
        let shots: Vec<_> = events.iter().map(shot).collect();
        assert_eq!(habits(&shots).polls_again, 0);
    }
}
