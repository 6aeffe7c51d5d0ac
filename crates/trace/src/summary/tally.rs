//! Counts by ring, and by kind of request on it.

use super::Habits;
use crate::class::{moves_bytes, waits, SizeClass};
use crate::line::opcode_name;
use crate::report::{Interface, Kinds, Latencies, Lookups, RequestKind, RingReport};
use anyring_engine::event::FileKind;
use anyring_engine::op::Punt;
use hdrhistogram::Histogram;
use std::collections::{BTreeMap, HashMap};

/// Number of a ring's descriptors that are followed.
pub(super) const DESCRIPTORS: usize = 4096;

/// Number of kinds of a ring from which on those of further unnamed files are counted together.
const KINDS: usize = 1024;

/// The path that a request took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    Inline,
    Poll,
    KernelAio,
    Worker,
}

pub(super) const PATHS: usize = Path::Worker as usize + 1;

/// The key of a [`RequestKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) opcode: u16,
    pub(super) file: FileKind,
    pub(super) size: SizeClass,
    /// The descriptor, if its file could not be looked up in time. A later lookup may name the file: see [`named`].
    pub(super) unnamed: Option<i32>,
}

/// The kinds, with files that were looked up later.
pub(super) fn named(kinds: BTreeMap<Key, Tally>, of: &RingTally) -> BTreeMap<Key, Tally> {
    let mut named: BTreeMap<Key, Tally> = BTreeMap::new();
    for (key, tally) in kinds {
        let file = key.unnamed.and_then(|fd| of.lookups.get(&fd)).map_or(key.file, |(_, file)| *file);
        named.entry(Key { file, unnamed: None, ..key }).or_default().add(tally);
    }
    named
}

#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub(super) paths: [u64; PATHS],
    pub(super) forced: u64,
    /// Requests that go to a worker without an attempt.
    pub(super) sent: u64,
    /// Requests that went to a worker because a request before them drains.
    pub(super) worker_by_drain: u64,
    /// Requests that went to workers, by reason, indexed as [`Punt::ALL`].
    pub(super) punts: [u64; Punt::ALL.len()],
    /// Requests that went to a worker only because the previous request of their chain did.
    pub(super) worker_by_chain: u64,
    /// Requests whose transfer begins at the offset where the previous transfer on their descriptor ended.
    pub(super) sequential: u64,
    pub(super) errors: u64,
    pub(super) short: u64,
    pub(super) bytes: u64,
    pub(super) unfinished: u64,
    /// Latencies by path.
    pub(super) latency_ns: [Histogram<u64>; PATHS],
    /// Times from being queued until a worker began.
    pub(super) queued_ns: Histogram<u64>,
    /// Requests by the stack from which they were submitted, as far as it is known.
    stacks: BTreeMap<u64, u64>,
}

impl Default for Tally {
    fn default() -> Tally {
        // The histogram grows as needed; two significant digits are exact to 1 %.
        let new = || Histogram::new(2).unwrap_or_else(|_| unreachable!("two digits are allowed"));
        Tally {
            paths: [0; PATHS],
            forced: 0,
            sent: 0,
            worker_by_drain: 0,
            punts: [0; Punt::ALL.len()],
            worker_by_chain: 0,
            sequential: 0,
            errors: 0,
            short: 0,
            bytes: 0,
            unfinished: 0,
            latency_ns: core::array::from_fn(|_| new()),
            queued_ns: new(),
            stacks: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct RingTally {
    pub(super) interface: Interface,
    pub(super) fd: i32,
    pub(super) thread: u32,
    pub(super) entries: [u64; 2],
    pub(super) flags: u32,
    pub(super) known: bool,
    pub(super) enters: u64,
    pub(super) submitting_enters: u64,
    /// io_uring_enter(2) calls that submit and wait.
    pub(super) waiting_submissions: u64,
    pub(super) submitted: u64,
    pub(super) waits: u64,
    pub(super) cqes: u64,
    pub(super) overflows: u64,
    pub(super) refused: u64,
    /// The first thread that submitted, and whether another one did, too.
    pub(super) submitter: Option<u32>,
    pub(super) several_submitters: bool,
    /// Requests that workers have now, and the largest number so far.
    pub(super) with_workers: u64,
    pub(super) most_with_workers: u64,
    pub(super) lookups: HashMap<i32, (u64, FileKind)>,
    /// The end of the last transfer of each descriptor, if known.
    pub(super) ends: HashMap<i32, u64>,
    pub(super) kinds: BTreeMap<Key, Tally>,
    pub(super) habits: Habits,
}

impl RingTally {
    /// The counts of a kind of request.
    pub(super) fn of_kind(&mut self, key: Key) -> &mut Tally {
        let is_apart = self.kinds.len() < KINDS || self.kinds.contains_key(&key);
        let unnamed = key.unnamed.filter(|_| is_apart);
        self.kinds.entry(Key { unnamed, ..key }).or_default()
    }

    pub(super) fn look_up(&mut self, fd: i32, file: FileKind) {
        if self.lookups.len() < DESCRIPTORS || self.lookups.contains_key(&fd) {
            let (count, names) = self.lookups.entry(fd).or_insert((0, file));
            *count += 1;
            if file != FileKind::Unknown {
                *names = file;
            }
        }
    }

    fn most_looked_up(&self) -> Vec<Lookups> {
        let all =
            self.lookups.iter().map(|(fd, (count, file))| Lookups { fd: *fd, file: file.name(), count: *count });
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|it| (core::cmp::Reverse(it.count), it.fd));
        all.truncate(3);
        all
    }

    pub(super) fn report(mut self, ring: u32, by_kernel: bool) -> RingReport {
        let kinds = named(core::mem::take(&mut self.kinds), &self);
        let ratio = |part: u64, whole: u64| (whole != 0).then(|| part as f64 / whole as f64);
        RingReport {
            ring,
            by_kernel,
            submits_and_waits: 2 * self.waiting_submissions > self.submitting_enters,
            interface: self.interface,
            fd: (self.known && self.interface == Interface::IoUring).then_some(self.fd),
            thread: self.known.then_some(self.thread),
            sq_entries: self.known.then_some(self.entries[0]),
            cq_entries: self.known.then_some(self.entries[1]),
            setup_flags: self.known.then_some(self.flags),
            enters: (self.known || self.enters != 0).then_some(self.enters),
            submitted: self.submitted,
            sqes_per_enter: ratio(self.submitted, self.submitting_enters),
            enters_per_request: ratio(self.enters, self.submitted).filter(|_| self.known || self.enters != 0),
            waits: self.waits,
            cqes: self.cqes,
            cqes_per_wait: ratio(self.cqes, self.waits),
            overflows: self.overflows,
            refused: self.refused,
            one_submitter: self.submitter.is_some() && !self.several_submitters,
            most_with_workers: self.most_with_workers,
            lookups: self.most_looked_up(),
            habits: self.habits,
            files_on: Vec::new(),
            kinds: kinds.into_iter().map(|(key, tally)| tally.report(key)).collect(),
        }
    }
}

impl Tally {
    fn add(&mut self, other: Tally) {
        let pairs = self.paths.iter_mut().zip(other.paths).chain(self.punts.iter_mut().zip(other.punts));
        pairs.for_each(|(sum, more)| *sum += more);
        let counts = [
            (&mut self.forced, other.forced),
            (&mut self.sent, other.sent),
            (&mut self.worker_by_drain, other.worker_by_drain),
            (&mut self.worker_by_chain, other.worker_by_chain),
            (&mut self.sequential, other.sequential),
            (&mut self.errors, other.errors),
            (&mut self.short, other.short),
            (&mut self.bytes, other.bytes),
            (&mut self.unfinished, other.unfinished),
        ];
        counts.into_iter().for_each(|(sum, more)| *sum += more);
        self.latency_ns.iter_mut().zip(&other.latency_ns).for_each(|(sum, more)| *sum += more);
        self.queued_ns += other.queued_ns;
        other.stacks.iter().for_each(|(stack, count)| *self.stacks.entry(*stack).or_insert(0) += count);
    }

    /// Counts the place from which a request was submitted.
    pub(super) fn comes_from(&mut self, stack: Option<u64>) {
        stack.into_iter().for_each(|stack| *self.stacks.entry(stack).or_insert(0) += 1);
    }

    /// Counts a request that completed by this path.
    pub(super) fn record(&mut self, path: Path, latency_ns: Option<u64>) {
        self.paths[path as usize] += 1;
        if let Some(latency_ns) = latency_ns {
            let _ = self.latency_ns[path as usize].record(latency_ns);
        }
    }

    pub(super) fn report(self, key: Key) -> Kinds {
        let quantile = |of: &Histogram<u64>, q| (!of.is_empty()).then(|| of.value_at_quantile(q));
        let [inline, poll, kernel_aio, worker] = self.paths;
        let [inline_p50_ns, poll_p50_ns, kernel_aio_p50_ns, worker_p50_ns] =
            self.latency_ns.each_ref().map(|of| quantile(of, 0.5));
        let latencies = spread(&self.latency_ns);
        let total = |of: &Histogram<u64>| of.mean() * of.len() as f64;
        let (inline_total_ns, queued_total_ns) =
            (total(&self.latency_ns[Path::Inline as usize]), total(&self.queued_ns));
        let [mut all, others @ ..] = self.latency_ns;
        others.iter().for_each(|others| all += others);
        let latency_total_ns = total(&all);
        Kinds {
            kind: RequestKind { opcode: opcode_name(key.opcode), file: key.file.name(), size: key.size.name() },
            count: inline + poll + kernel_aio + worker,
            inline,
            poll,
            kernel_aio,
            worker,
            forced: self.forced,
            sent: self.sent,
            worker_by_drain: self.worker_by_drain,
            worker_by_chain: self.worker_by_chain,
            sequential: self.sequential,
            worker_because: Punt::ALL
                .iter()
                .zip(self.punts)
                .filter(|(_, count)| *count != 0)
                .map(|(why, count)| (why.name(), count))
                .collect(),
            bytes: moves_bytes(key.opcode).then_some(self.bytes),
            waits: waits(key.opcode),
            errors: self.errors,
            short: (key.size != SizeClass::Unknown).then_some(self.short),
            unfinished: self.unfinished,
            p50_ns: quantile(&all, 0.5),
            p90_ns: quantile(&all, 0.9),
            p99_ns: quantile(&all, 0.99),
            inline_p50_ns,
            poll_p50_ns,
            kernel_aio_p50_ns,
            worker_p50_ns,
            queued_p50_ns: quantile(&self.queued_ns, 0.5),
            queued_p99_ns: quantile(&self.queued_ns, 0.99),
            latencies,
            stacks: self.stacks,
            places: Vec::new(),
            inline_total_ns,
            queued_total_ns,
            latency_total_ns,
        }
    }
}

/// Counts latencies by powers of two, from the least to the greatest.
fn spread(paths: &[Histogram<u64>; PATHS]) -> Vec<Latencies> {
    let mut all: BTreeMap<u32, [u64; PATHS]> = BTreeMap::new();
    for (path, histogram) in paths.iter().enumerate() {
        for recorded in histogram.iter_recorded() {
            let exponent = (recorded.value_iterated_to() + 1).next_power_of_two().trailing_zeros();
            all.entry(exponent).or_default()[path] += recorded.count_at_value();
        }
    }
    let Some((first, last)) = all.keys().next().zip(all.keys().next_back()) else { return Vec::new() };
    let step = |exponent: u32| Latencies {
        below_ns: 1 << exponent.min(63),
        paths: all.get(&exponent).copied().unwrap_or_default(),
    };
    (*first..=*last).map(step).collect()
}
