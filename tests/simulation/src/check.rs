//! The checker, which follows each request to its one last CQE, and checks the result.

use crate::faults;
use crate::program::{pattern, World};
use crate::report::finding;
use crate::ring::Ring;
use crate::system::Simulated;
use anyring_abi::{Cqe, IORING_CQE_F_MORE};
use std::sync::Arc;

/// The bit of a `user_data` that marks the CQE which a MSG_RING posts to its target. The other bits are those of the
/// MSG_RING's own `user_data`.
pub const MESSAGE: u64 = 1 << 62;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // what the SQE says
pub enum Kind {
    Nop,
    FileRead { offset: u64, bytes: usize },
    FileWrite { bytes: usize },
    StreamRead { stream: usize },
    Poll { stream: usize, endless: bool },
    Timeout { ns: u64, until_ns: u64 },
    Fsync,
    Cancel,
    Message { fd: i32 },
}

/// A request, from its SQE to its last CQE.
pub struct Record {
    slot: usize,
    kind: Kind,
    /// Memory that the request works on, kept to the end of the process.
    pub buffer: Vec<u8>,
    /// True if the request is in a chain.
    pub linked: bool,
    cancelled: bool,
    done: bool,
    /// True if the request's ring was closed.
    abandoned: bool,
    /// The latest time at which a TIMEOUT may expire; set once it was submitted.
    due_ns: Option<u64>,
    /// The number of messages that have come.
    arrived: u32,
    /// True once a MSG_RING has its last result.
    sent: bool,
}

impl Record {
    /// A request on the ring in this slot.
    pub fn new(slot: usize, kind: Kind, _life: u64) -> Record {
        let (linked, cancelled, done, abandoned, arrived, sent) = (false, false, false, false, 0, false);
        Record { slot, kind, buffer: Vec::new(), linked, cancelled, done, abandoned, due_ns: None, arrived, sent }
    }
}

/// Every request of the run. Its user_data is its place in the list.
#[derive(Default)]
pub struct Records(Vec<Record>);

impl Records {
    /// Adds a request. Returns its user_data.
    pub fn add(&mut self, record: Record) -> u64 {
        self.0.push(record);
        self.0.len() as u64 - 1
    }

    /// Returns the number of requests.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Records that a request was made to cancel it.
    pub fn cancelled(&mut self, user_data: u64) {
        self.0[user_data as usize].cancelled = true;
    }

    fn open(&self) -> impl Iterator<Item = (u64, &Record)> {
        let places = self.0.iter().enumerate().map(|(place, record)| (place as u64, record));
        places.filter(|(_, record)| !record.done && !record.abandoned)
    }

    /// Returns the number of requests in flight on the ring in this slot.
    pub fn open_on(&self, slot: usize) -> usize {
        self.open().filter(|(_, record)| record.slot == slot).count()
    }

    /// Picks one of them.
    pub fn some_open_on(&self, slot: usize, random: &mut fastrand::Rng) -> Option<u64> {
        let open: Vec<_> = self.open().filter(|(_, record)| record.slot == slot).map(|(place, _)| place).collect();
        random.choice(open)
    }

    /// Returns the multishot requests in flight on the ring in this slot. Even cancelled ones are among them, since
    /// the cancellation may have come before its target had begun.
    pub fn endless_on(&self, slot: usize) -> Vec<u64> {
        let is_it =
            |record: &Record| record.slot == slot && matches!(record.kind, Kind::Poll { endless: true, .. });
        self.open().filter(|(_, record)| is_it(record)).map(|(place, _)| place).collect()
    }

    /// Returns the streams that the requests on this ring wait to read from, one entry a request.
    pub fn streams_waited_for(&self, slot: usize) -> Vec<usize> {
        let of = |record: &Record| match record.kind {
            Kind::StreamRead { stream } | Kind::Poll { stream, .. } if record.slot == slot => Some(stream),
            _ => None,
        };
        self.open().filter_map(|(_, record)| of(record)).collect()
    }

    /// Records that all requests on this ring have been submitted: their timeouts begin.
    pub fn submitted(&mut self, slot: usize, now_ns: u64) {
        for record in self.0.iter_mut().filter(|record| record.slot == slot && record.due_ns.is_none()) {
            if let Kind::Timeout { ns, .. } = record.kind {
                record.due_ns = Some(now_ns + ns);
            }
        }
    }

    /// Returns a TIMEOUT on this ring that is over before `ns`, and waits for nothing else.
    fn over_before(&self, slot: usize, ns: u64) -> Option<u64> {
        let is_over = |record: &Record| record.due_ns.is_some_and(|due_ns| due_ns < ns);
        let is_free = |record: &Record| !record.linked && !record.cancelled && record.slot == slot;
        self.open().find(|(_, record)| is_free(record) && is_over(record)).map(|(place, _)| place)
    }

    /// Lists the requests in flight, for a report.
    pub fn describe(&self) -> String {
        let line = |(place, record): (u64, &Record)| {
            format!(
                "  request {place} on ring {}: {:?}{}{}\n",
                record.slot,
                record.kind,
                if record.linked { ", linked" } else { "" },
                if record.cancelled { ", cancelled" } else { "" }
            )
        };
        self.open().map(line).take(40).collect()
    }
}

/// The ring of one thread, and the calls on it.
pub struct Slot {
    /// The ring.
    pub ring: Arc<Ring>,
    /// Threads that are in a call on it.
    users: u32,
    /// One of them submits.
    submits: bool,
    /// The number of CQEs that each sleeping thread waits for.
    pub waits: Vec<u32>,
    /// True if no thread may begin a call on it.
    pub closed: bool,
    /// The number of the ring in this slot; earlier rings of the slot were closed.
    pub life: u64,
}

impl Slot {
    /// Makes a slot with a new ring.
    pub fn new(ring: Arc<Ring>) -> Slot {
        Slot { ring, users: 0, submits: false, waits: Vec::new(), closed: false, life: 0 }
    }

    /// Begins a submission, if no other thread makes one.
    pub fn begin(&mut self) -> Option<Arc<Ring>> {
        if self.submits || self.closed {
            return None;
        }
        self.submits = true;
        self.enter()
    }

    /// Ends the call.
    pub fn end(&mut self) {
        self.submits = false;
        self.leave();
    }

    /// Begins a call.
    pub fn enter(&mut self) -> Option<Arc<Ring>> {
        if self.closed {
            return None;
        }
        self.users += 1;
        Some(self.ring.clone())
    }

    /// Ends the call.
    pub fn leave(&mut self) {
        self.users -= 1;
    }

    /// True if no thread submits. A forked child would wait for such a thread, and its parent waits for the child.
    pub fn is_free(&self) -> bool {
        !self.closed && !self.submits
    }

    /// True if a thread is in a call.
    pub fn is_used(&self) -> bool {
        self.users > 0
    }
}

impl World {
    /// Reaps every CQE of this ring. Returns true if there was one.
    pub fn reap_all(&mut self, at: usize, system: &Simulated) -> bool {
        let ring = self.slots[at].ring.clone();
        let mut any = false;
        while let Some(cqe) = ring.reap() {
            self.record_cqe(at, cqe, system);
            any = true;
        }
        any
    }

    /// Records a CQE that was reaped, and checks it.
    fn record_cqe(&mut self, at: usize, cqe: Cqe, system: &Simulated) {
        let place = (cqe.user_data & !MESSAGE) as usize;
        let Some(record) = self.records.0.get_mut(place) else {
            finding(&format!("unknown: ring {at} has {cqe:?}, which nobody asked for"));
        };
        let kind = record.kind;
        if cqe.user_data & MESSAGE != 0 {
            record.arrived += 1;
            // The message goes to the ring that has the number at the time of sending. The ring that had it before may
            // be closed by then.
            let fd = self.slots[at].ring.fd;
            let expected = matches!(kind, Kind::Message { fd: sent_to } if sent_to == fd) && cqe.res == 7;
            if !expected || record.arrived > 1 {
                finding(&format!("message: ring {at} has {cqe:?} of {kind:?}, {} times", record.arrived));
            }
            return;
        }
        if record.done || record.slot != at || record.abandoned {
            let how = match (record.done, record.abandoned) {
                (true, _) => "which was answered",
                (_, true) => "of a ring that was closed",
                _ => "which is another ring's",
            };
            finding(&format!("twice: ring {at} has {cqe:?} of {kind:?}, {how}"));
        }
        let more = cqe.flags & IORING_CQE_F_MORE != 0;
        let endless = matches!(kind, Kind::Poll { endless: true, .. });
        if more && (!endless || cqe.res < 0) {
            finding(&format!("more: {cqe:?} of {kind:?}"));
        }
        record.done = !more;
        let (cancelled, linked) = (record.cancelled, record.linked);
        let right = match cqe.res {
            0.. => self.is_right(place, cqe, system),
            error => may_fail(kind, -error, cancelled, linked, system),
        };
        if !right {
            finding(&format!("result: {cqe:?} of {kind:?} (cancelled: {cancelled}, linked: {linked})"));
        }
    }

    /// True if this successful result is correct.
    fn is_right(&mut self, place: usize, cqe: Cqe, system: &Simulated) -> bool {
        let record = &mut self.records.0[place];
        let moved = cqe.res as usize;
        match record.kind {
            Kind::Nop | Kind::Fsync | Kind::Cancel => cqe.res == 0,
            Kind::Message { .. } => {
                record.sent = true;
                cqe.res == 0
            }
            Kind::FileRead { offset, bytes } => {
                let read = record.buffer[..moved.min(bytes)].iter().enumerate();
                let right = read.into_iter().all(|(at, byte)| *byte == pattern(offset + at as u64));
                right && (moved == bytes || moved < bytes && moved > 0 && may_be_short(system))
            }
            Kind::FileWrite { bytes } => moved == bytes || moved < bytes && moved > 0 && may_be_short(system),
            Kind::StreamRead { stream } => {
                self.streams[stream].received += moved as u64;
                let read = &record.buffer[..moved.min(record.buffer.len())];
                let follows = |pair: &[u8]| u64::from(pair[1]) == (u64::from(pair[0]) + 1) % 251;
                moved > 0 && moved <= record.buffer.len() && read.windows(2).all(follows)
            }
            Kind::Poll { .. } => cqe.res & i32::from(libc::POLLIN) != 0,
            Kind::Timeout { .. } => false,
        }
    }

    /// Marks the requests of the ring in this slot, which is about to be closed.
    pub fn abandon(&mut self, at: usize) {
        for record in self.records.0.iter_mut().filter(|record| record.slot == at && !record.done) {
            record.abandoned = true;
            if let Kind::StreamRead { stream } = record.kind {
                self.streams[stream].leaks = true;
            }
        }
    }

    /// Marks the ring in this slot as closed, with nothing in flight.
    pub fn close(&mut self, at: usize) {
        self.slots[at].closed = true;
    }

    /// Checks that the bytes written to each stream were read, or are still in it.
    pub fn check_streams(&self) {
        for stream in self.streams.iter().filter(|stream| !stream.leaks) {
            let left = stream.left();
            if stream.received + left != stream.fed {
                let (fed, received) = (stream.fed, stream.received);
                finding(&format!("data: {fed} bytes went into a stream, {received} were read, {left} are left"));
            }
        }
    }

    /// Reports a lost wake-up or timer when no thread can run before `until_ns`. A thread sleeps although enough CQEs
    /// are there, or does not wake when a timer expires.
    pub fn forgotten(&self, until_ns: u64) -> Option<String> {
        /// The delay that timers may have.
        const LATE_NS: u64 = 1_000_000;
        self.slots.iter().enumerate().filter(|(_, slot)| !slot.waits.is_empty()).find_map(|(at, slot)| {
            let there = slot.ring.ready();
            if let Some(waits) = slot.waits.iter().find(|least| **least > 0 && **least <= there) {
                return Some(format!(
                    "wake-up: nobody runs, and who waits for {waits} CQEs of ring {at} has {there}"
                ));
            }
            // A CQE that is already there may be the TIMEOUT's own.
            let may_tell = there == 0 && !self.drains;
            let over = self.records.over_before(at, until_ns.saturating_sub(LATE_NS)).filter(|_| may_tell)?;
            Some(format!(
                "timer: nobody runs before {until_ns} ns, and TIMEOUT {over} of ring {at} is over by then"
            ))
        })
    }
}

/// A transfer that a worker makes ends where its call does.
fn may_be_short(system: &Simulated) -> bool {
    system.faults(|it| {
        it.has_been_short()
            || it.has_failed_with(libc::EIO)
            || it.has_failed_with(libc::ENOMEM)
            || it.has_failed_with(libc::ENOSPC)
    })
}

fn may_fail(kind: Kind, error: i32, cancelled: bool, linked: bool, system: &Simulated) -> bool {
    let failed = system.faults(|it: &faults::Faults| it.has_failed_with(error));
    let is_end = error == libc::ECANCELED;
    match kind {
        _ if is_end && (cancelled || linked) => true,
        Kind::Timeout { until_ns, .. } if error == libc::ETIME => system.now_ns() >= until_ns,
        Kind::Cancel if error == libc::ENOENT || error == libc::EALREADY => true,
        Kind::Message { .. } if error == libc::EBADF || error == libc::EOVERFLOW || error == libc::EBADFD => true,
        // A worker's call that a cancellation interrupts.
        _ if error == libc::EINTR && cancelled => true,
        Kind::FileRead { .. }
        | Kind::FileWrite { .. }
        | Kind::Fsync
        | Kind::StreamRead { .. }
        | Kind::Poll { .. } => failed,
        _ => failed && error == libc::ENOMEM,
    }
}
