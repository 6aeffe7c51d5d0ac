//! Findings: improvements that a ring's events suggest. Each finding has the numbers that show it, and the flag or
//! call to use instead. What happened only a few times makes no finding.

mod causes;
mod workers;

use crate::gain::{Costs, Gain, Saved, Spent};
use crate::places::Place;
use crate::report::{or_unknown, time, Interface, Kinds, RingReport};
use anyring_abi::{IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_IOPOLL, IORING_SETUP_SQPOLL};
use serde::Serialize;
use workers::{drained, forced, locked, punted_reads, punted_writes, queued, unforced};

/// The fewest requests from which a finding is drawn.
pub(crate) const FEW: u64 = 100;
/// The duration from which a request counts as large and as blocking its submitter, where its size is unknown. The
/// kernel's tracepoints carry no sizes.
const LONG_NS: u64 = 100_000;
/// The number of requests with workers at the same time from which on workers pile up.
const MANY_WORKERS: u64 = 64;
/// The number of requests in one call from which on the cost of the call itself hardly matters.
const TOGETHER: u64 = 16;

/// An improvement for one ring.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The ring's number in this trace.
    pub ring: u32,
    /// A stable name, for programs that read the JSON.
    pub name: &'static str,
    /// The numbers that show it.
    pub evidence: String,
    /// The advice: the change to make.
    pub advice: &'static str,
    /// The gain from following the advice; `None` if the costs on this machine are not known.
    pub gain: Option<Gain>,
    /// The places from which the requests that it is about were submitted.
    pub places: Vec<Place>,
    #[serde(skip)]
    pub(crate) saved: Saved,
    /// The kind of request that it is about, as an index. `None` if it is about the ring.
    #[serde(skip)]
    pub(crate) kinds: Option<usize>,
}

impl Finding {
    /// True if `other` gives the same advice, for another ring or another kind of request.
    pub(crate) fn is_like(&self, other: &Finding) -> bool {
        (self.name, self.advice) == (other.name, other.advice)
    }
}

/// The facts about the whole program that a ring's findings depend on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Around {
    pub costs: Costs,
    /// Rings with one request in flight at a time.
    pub alone: usize,
    /// Requests that workers had, on all rings.
    pub by_workers: u64,
    pub spent: Spent,
}

impl Around {
    /// The number of times that threads slept for each request of a worker, divided by the number for a single such
    /// request at a time. Workers that are kept busy sleep less; those that wait for each other's locks sleep more
    /// often.
    fn sleeps(&self) -> f64 {
        match self.spent.switches {
            Some(switches) if self.by_workers != 0 && self.costs.worker_switches >= 1.0 => {
                switches as f64 / self.by_workers as f64 / self.costs.worker_switches
            }
            _ => 1.0,
        }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ring {}: {}\n  -> {}", self.ring, self.evidence, self.advice)
    }
}

/// The findings of one ring.
pub(crate) fn of_ring(ring: &RingReport, around: &Around) -> Vec<Finding> {
    let (of_kinds, of_all) = match ring.interface {
        Interface::IoUring => (of_kinds(ring, around), of_io_uring(ring, &around.costs)),
        // An iocb has no flags, and nothing can be registered. The events do not show whether a file was opened with
        // O_DIRECT, for which a worker is the right path.
        Interface::Aio => (Vec::new(), vec![one_enter_each(ring, &around.costs)]),
    };
    let causes = causes::of_ring(ring, around);
    let ring = ring.ring;
    let of_ring = |found| (None, found);
    let all = causes.into_iter().map(of_ring).chain(of_kinds).chain(of_all.into_iter().map(of_ring));
    let of_it = |(kinds, found): (Option<usize>, Found)| {
        let (name, evidence, advice, saved) = found?;
        Some(Finding { ring, name, evidence, advice, gain: None, places: Vec::new(), saved, kinds })
    };
    all.filter_map(of_it).collect()
}

/// The findings about each kind of request, which has an index.
fn of_kinds(ring: &RingReport, around: &Around) -> Vec<(Option<usize>, Found)> {
    let (files, costs) = (&ring.files_on, &around.costs);
    let of_kind = |(index, kinds): (usize, &Kinds)| {
        let queued = || queued(ring, kinds, around);
        let all = [
            forced(kinds, files, unforced(ring, kinds, around)),
            drained(kinds, queued()),
            // anyring's engine already gives parts of large reads to workers.
            of_kernel(ring, || slow_inline(kinds, costs)),
            of_kernel(ring, || attempts_in_vain(ring, kinds, costs)),
            punted_reads(kinds, files, queued()),
            punted_writes(kinds, files, locked(ring, kinds, around)),
        ];
        all.map(|found| (Some(index), found))
    };
    ring.kinds.iter().enumerate().flat_map(of_kind).collect()
}

/// The findings about a ring as a whole.
fn of_io_uring(ring: &RingReport, costs: &Costs) -> Vec<Found> {
    vec![
        overflows(ring, costs),
        one_enter_each(ring, costs),
        of_kernel(ring, || one_submitter(ring, costs)),
        of_kernel(ring, || many_with_workers(ring, costs)),
        of_kernel(ring, || unregistered(ring, costs)),
    ]
}

/// A finding whose advice saves something on the kernel's rings. On anyring's rings it saves nothing, or makes things
/// slower (multishot RECV).
fn of_kernel(ring: &RingReport, find: impl Fn() -> Found) -> Found {
    ring.by_kernel.then(find).flatten()
}

type Found = Option<(&'static str, String, &'static str, Saved)>;

/// True if `part` is at least `percent` of `whole`.
fn mostly(part: u64, whole: u64, percent: u64) -> bool {
    whole != 0 && u128::from(part) * 100 >= u128::from(whole) * u128::from(percent)
}

fn slow_inline(kinds: &Kinds, costs: &Costs) -> Found {
    let is_on_disk = matches!(kinds.kind.file, "file" | "block");
    let median = kinds.inline_p50_ns.filter(|median| *median >= LONG_NS)?;
    if !is_on_disk || kinds.inline < FEW {
        return None;
    }
    let evidence = format!(
        "{} of {} {} completed in the submitting call, which they kept for {} (median)",
        kinds.inline,
        kinds.count,
        kinds.kind,
        time(Some(median))
    );
    // If another core does the transfer in parallel, that saves at most half of the time.
    let saved = Saved::elapsed(if costs.cores > 1 { kinds.inline_total_ns / 2.0 } else { 0.0 });
    Some(("inline_blocks", evidence, "with IOSQE_ASYNC the submitter goes on at once, if a core is idle", saved))
}

fn attempts_in_vain(ring: &RingReport, kinds: &Kinds, costs: &Costs) -> Found {
    let advice = match kinds.kind.opcode.as_str() {
        "RECV" | "RECVMSG" => {
            "use multishot (IORING_RECV_MULTISHOT), or IORING_RECVSEND_POLL_FIRST to spare the attempt"
        }
        "READ" => "use READ_MULTISHOT with a buffer ring, or submit the read when data is expected",
        "ACCEPT" => "use multishot: IORING_ACCEPT_MULTISHOT",
        "READV" | "READ_FIXED" => "submit the read when data is expected, or READ_MULTISHOT with a buffer ring",
        _ => return None,
    };
    if kinds.poll < FEW || !mostly(kinds.poll, kinds.count, 90) {
        return None;
    }
    let evidence = format!(
        "{} of {} {} found nothing at first and waited, {} (median)",
        kinds.poll,
        kinds.count,
        kinds.kind,
        time(kinds.poll_p50_ns)
    );
    let each_ns = causes::armed_ns(ring, costs) + costs.attempt_ns;
    Some(("attempts_in_vain", evidence, advice, Saved::cpu(kinds.poll as f64 * each_ns)))
}

fn overflows(ring: &RingReport, costs: &Costs) -> Found {
    let entries = ring.cq_entries.map_or(String::new(), |entries| format!(" of {entries} entries"));
    let evidence = format!("{} of {} CQEs found the CQ{entries} full", ring.overflows, ring.cqes);
    let advice = "make the CQ larger (IORING_SETUP_CQSIZE), or reap completions more often";
    let saved = Saved::cpu(ring.overflows as f64 * costs.overflow_ns);
    (ring.overflows != 0).then_some(("cq_overflow", evidence, advice, saved))
}

fn one_enter_each(ring: &RingReport, costs: &Costs) -> Found {
    let (each, batch) = (ring.enters_per_request?, ring.sqes_per_enter?);
    if ring.submitted < FEW
        || each < 0.9
        || batch > 1.5
        || ring.submits_and_waits
        || ring.setup_flags.is_some_and(|flags| flags & IORING_SETUP_SQPOLL != 0)
    {
        return None;
    }
    let (calls, entries, advice) = match ring.interface {
        Interface::IoUring => (
            "enter",
            "SQEs",
            "prepare several SQEs before io_uring_submit, and submit and wait in one call (io_uring_submit_and_wait)",
        ),
        Interface::Aio => (
            "io_submit and io_getevents",
            "iocbs",
            "give io_submit several iocbs, and ask io_getevents for several events",
        ),
    };
    let evidence = format!(
        "{} requests took {} {calls} calls: {each:.2} each, {batch:.2} {entries} in a submission",
        ring.submitted,
        or_unknown(ring.enters)
    );
    let spared = ring.enters?.saturating_sub(ring.submitted / TOGETHER);
    Some(("one_enter_each", evidence, advice, Saved::cpu(spared as f64 * costs.call_ns)))
}

fn one_submitter(ring: &RingReport, costs: &Costs) -> Found {
    let others = IORING_SETUP_SQPOLL | IORING_SETUP_IOPOLL | IORING_SETUP_DEFER_TASKRUN;
    let flags = ring.setup_flags?;
    if !ring.one_submitter || ring.submitted < FEW || flags & others != 0 {
        return None;
    }
    let evidence =
        format!("one thread submitted all {} requests, without IORING_SETUP_DEFER_TASKRUN", ring.submitted);
    let advice = "set IORING_SETUP_SINGLE_ISSUER and DEFER_TASKRUN, if it waits for CQEs too";
    let later: u64 = ring.kinds.iter().map(|kinds| kinds.count - kinds.inline).sum();
    Some(("one_submitter", evidence, advice, Saved::cpu(later as f64 * costs.deferred_ns)))
}

fn many_with_workers(ring: &RingReport, costs: &Costs) -> Found {
    let evidence = format!("workers had up to {} requests at a time", ring.most_with_workers);
    let advice = match ring.interface {
        Interface::IoUring => {
            "bound the workers (io_uring_register_iowq_max_workers), or keep fewer such requests in flight"
        }
        Interface::Aio => "keep fewer such requests in flight: a request after many others waits as long",
    };
    let saved = Saved::cpu(ring.most_with_workers as f64 * costs.thread_ns);
    (ring.most_with_workers >= MANY_WORKERS).then_some(("workers_pile_up", evidence, advice, saved))
}

fn unregistered(ring: &RingReport, costs: &Costs) -> Found {
    let most = ring.lookups.first().filter(|most| most.count >= 10 * FEW)?;
    let evidence = format!("descriptor {} ({}) was looked up {} times", most.fd, most.file, most.count);
    let advice = "register it (io_uring_register_files) and set IOSQE_FIXED_FILE";
    let saved = Saved::cpu(most.count as f64 * costs.lookup_ns);
    Some(("unregistered_descriptor", evidence, advice, saved))
}

#[cfg(test)]
mod tests {
    use super::{Around, Finding};
    use crate::file_systems::FilesOn;
    use crate::gain::{Costs, Spent};
    use crate::{Event, Report, Summary};
    use anyring_abi::{Opcode, IOSQE_ASYNC};
    use anyring_engine::event::{FileKind, Kind};

    /// Traces `count` requests on one ring. Each has the events `more` between its submission and its completion.
    fn trace(count: u32, opcode: Opcode, len: u32, more: &[Kind], flags: impl Fn(u32) -> u32) -> Report {
        traced(Summary::new(true), count, opcode, len, more, flags, 0)
    }

    /// Makes the same trace as [`trace`], with io_uring_enter(2) calls that wait for `waits` CQEs.
    fn traced(
        mut summary: Summary,
        count: u32,
        opcode: Opcode,
        len: u32,
        more: &[Kind],
        flags: impl Fn(u32) -> u32,
        waits: u64,
    ) -> Report {
        let base = Event { ring: 1, fd: 5, len, opcode: opcode as u16, ..Event::new(Kind::Enter) };
        summary.add(&Event { len: 8, offset: 16, ..Event { kind: Kind::Create, ..base } });
        for number in 1..=count {
            let flags = flags(number);
            let of = |kind, time_ns| Event { kind, request: number, time_ns, flags, ..base };
            summary.add(&Event { len: 1, offset: waits, ..base });
            summary.add(&of(Kind::SubmitReq, 0));
            summary.add(&Event { file: FileKind::Regular, ..of(Kind::FileGet, 1) });
            let worker = flags & u32::from(IOSQE_ASYNC) != 0;
            more.iter()
                .filter(|kind| worker || **kind != Kind::QueueAsyncWork)
                .for_each(|kind| summary.add(&of(*kind, 2)));
            if !more.contains(&Kind::CqeOverflow) {
                summary.add(&Event { result: len as i32, flags: 0, ..of(Kind::Complete, 300_000) });
            }
        }
        summary.report(0)
    }

    fn found_of(report: &Report) -> Vec<Finding> {
        super::of_ring(&report.rings[0], &super::Around::default())
    }

    fn names(report: &Report) -> Vec<&str> {
        report.findings.iter().map(|finding| finding.name).collect()
    }

    #[test]
    fn a_few_requests_say_nothing() {
        let few = trace(50, Opcode::Read, 1 << 20, &[Kind::PollArm], |_| 0);
        assert_eq!(names(&few), [""; 0]);
        assert!(few.to_string().contains(
            "Fewer than 100 requests on a ring: nothing can be said yet of what could be better.\n  -> let"
        ));
    }

    #[test]
    fn async_is_weighed_against_requests_without_it() {
        let half = |number| if number % 2 == 0 { u32::from(IOSQE_ASYNC) } else { 0 };
        let report = trace(400, Opcode::Write, 512, &[Kind::QueueAsyncWork], half);
        let finding = report.findings.iter().find(|it| it.name == "async_not_needed").expect("that finding");
        assert!(
            finding.evidence.starts_with("200 WRITE (file, <=512) were sent to a worker"),
            "{}",
            finding.evidence
        );
        let all = trace(400, Opcode::Read, 512, &[Kind::QueueAsyncWork], |_| IOSQE_ASYNC.into());
        assert!(
            names(&all).contains(&"async_always") && !names(&all).contains(&"reads_punted"),
            "{:?}",
            all.findings
        );
    }

    #[test]
    fn async_is_not_weighed_where_a_worker_is_needed_anyway() {
        let found = |opcode, files: &[(bool, Option<bool>)]| {
            let mut report = trace(400, opcode, 512, &[Kind::QueueAsyncWork], |_| IOSQE_ASYNC.into());
            let of = |(direct, can): &(bool, Option<bool>)| FilesOn {
                file_system: None,
                direct: *direct,
                nonblocking_reads: *can,
                nonblocking_writes: *can,
            };
            report.rings[0].files_on = files.iter().map(of).collect();
            found_of(&report).iter().any(|it| it.name == "async_always")
        };
        let (ext4, xfs, direct) = ((false, Some(false)), (false, Some(true)), (true, Some(false)));
        assert!(!found(Opcode::Write, &[]) && !found(Opcode::Write, &[xfs, ext4]) && !found(Opcode::Read, &[ext4]));
        assert!(found(Opcode::Write, &[xfs, direct]) && found(Opcode::Read, &[(false, None)]));
        assert!(found(Opcode::Recv, &[ext4]));
    }

    /// The finding for requests that all went to a worker, for files on these file systems.
    fn of_punted(opcode: Opcode, files: &[(&str, bool, Option<bool>)]) -> Option<Finding> {
        let mut report = trace(400, opcode, 512, &[Kind::QueueAsyncWork], |_| 0);
        report.rings[0].kinds[0].worker = 400;
        let files = files.iter().map(|(name, direct, can)| FilesOn {
            file_system: Some((*name).to_owned()),
            direct: *direct,
            nonblocking_reads: *can,
            nonblocking_writes: *can,
        });
        report.rings[0].files_on = files.collect();
        let found = found_of(&report);
        found.into_iter().find(|it| it.name.ends_with("s_punted"))
    }

    #[test]
    fn a_request_that_a_worker_got_has_its_reason() {
        let read_of = |files: &[(&str, bool, Option<bool>)]| of_punted(Opcode::Read, files).expect("that finding");
        let cold = read_of(&[("xfs", false, Some(true))]);
        assert_eq!(cold.name, "reads_punted");
        assert!(cold.evidence.starts_with("400 of 400 READ (file, <=512) went to a worker, "), "{}", cold.evidence);
        assert!(
            cold.evidence.ends_with("not in the page cache of xfs (RWF_NOWAIT works there)"),
            "{}",
            cold.evidence
        );
        let never = read_of(&[("9p", false, Some(false))]);
        assert!(never.evidence.contains("9p has no nonblocking read"), "{}", never.evidence);
        assert!(!never.advice.contains("WILLNEED"));
        let direct = read_of(&[("xfs", true, Some(true))]);
        assert!(direct.evidence.contains("open with O_DIRECT"), "{}", direct.evidence);
        let two = [("9p", false, Some(false)), ("xfs", false, Some(true))];
        let mixed = [("xfs", false, Some(true)), ("xfs", true, Some(true))];
        for unknown in [&[][..], &two, &mixed] {
            let finding = read_of(unknown);
            assert!(finding.evidence.ends_with("cannot read without waiting"), "{}", finding.evidence);
        }
    }

    #[test]
    fn the_engines_reason_goes_before_a_trial() {
        let files = [FilesOn {
            file_system: Some("ext4".to_owned()),
            direct: false,
            nonblocking_reads: Some(true),
            nonblocking_writes: Some(true),
        }];
        let find = |because: &[(&'static str, u64)]| {
            let mut report = trace(400, Opcode::Read, 512, &[], |_| 0);
            report.rings[0].kinds[0].worker = 400;
            report.rings[0].kinds[0].worker_because = because.iter().copied().collect();
            report.rings[0].files_on = files.to_vec();
            found_of(&report).into_iter().find(|it| it.name == "reads_punted").map(|it| it.evidence)
        };
        let cold = find(&[("asked_for", 250), ("would_wait", 150)]).expect("a finding");
        assert!(cold.starts_with("150 of 400 READ") && cold.ends_with("not in the page cache of ext4"), "{cold}");
        let no_form = find(&[("no_nonblocking_form", 300), ("would_wait", 100)]).expect("a finding");
        assert!(no_form.starts_with("300 of") && no_form.ends_with("ext4 has no nonblocking read"), "{no_form}");
        assert!(find(&[("direct", 400)]).is_some_and(|evidence| evidence.contains("open with O_DIRECT")));
        assert_eq!(find(&[("asked_for", 400)]), None);
        // A request served without a worker was not sent to one.
        let mut report = trace(400, Opcode::Read, 512, &[], |_| IOSQE_ASYNC.into());
        report.rings[0].kinds[0].worker = 0;
        assert!(found_of(&report).iter().all(|it| it.name != "async_always"));
    }

    /// 400 requests of workers, for which the program's threads slept so many times. Returns the CPU time saved for each
    /// request, and the elapsed time.
    fn saved_by(name: &str, by_kernel: bool, switches: u64, in_flight: f64, cores: u32) -> (f64, f64) {
        let flags = if name == "writes_punted" { 0 } else { u32::from(IOSQE_ASYNC) };
        let opcode = if flags == 0 { Opcode::Write } else { Opcode::Recv };
        let mut report = traced(Summary::new(!by_kernel), 400, opcode, 512, &[Kind::QueueAsyncWork], |_| flags, 0);
        let ring = &mut report.rings[0];
        let (direct, can) = (true, Some(true));
        ring.files_on =
            vec![FilesOn { file_system: None, direct, nonblocking_reads: can, nonblocking_writes: can }];
        let kinds = &mut ring.kinds[0];
        (kinds.worker, kinds.queued_total_ns, kinds.latency_total_ns) = (400, 8_000.0, 1e6 * in_flight);
        let costs = Costs { worker_ns: 1_000.0, worker_switches: 2.0, cores, ..Costs::default() };
        let spent = Spent { elapsed_ns: 1_000_000, switches: Some(switches), ..Spent::default() };
        let around = Around { costs, by_workers: 400, spent, ..Around::default() };
        let found = super::of_ring(ring, &around).into_iter().find(|it| it.name == name).expect("that finding");
        (found.saved.cpu_ns / 400.0, found.saved.elapsed_ns)
    }

    #[test]
    fn workers_that_wait_for_each_other_cost_more_and_those_kept_busy_less() {
        let writes = |by_kernel, switches| saved_by("writes_punted", by_kernel, switches, 2.0, 2).0;
        assert_eq!([400, 1_600, 100_000].map(|switches| writes(false, switches)), [1_000.0, 2_000.0, 3_000.0]);
        assert_eq!(writes(true, 1_600), 1_000.0, "on the kernel they wait no more than others");
        let forced = |switches| saved_by("async_always", false, switches, 2.0, 2).0;
        assert_eq!([200, 800, 1_600].map(forced), [250.0, 1_000.0, 1_000.0]);
    }

    #[test]
    fn time_in_the_queue_counts_if_it_would_not_be_spent_elsewhere() {
        assert_eq!(saved_by("writes_punted", false, 800, 2.0, 2).1, 4_000.0);
        assert_eq!(saved_by("writes_punted", false, 800, 2.0, 1).1, 0.0, "no processor was idle");
        assert_eq!(saved_by("async_always", false, 800, 1.0, 2).1, 8_000.0);
        assert_eq!(saved_by("async_always", false, 800, 2.0, 2).1, 0.0, "the submitter does one after the other");
    }

    #[test]
    fn another_processor_is_of_no_use_while_others_keep_it_busy() {
        let report = traced(Summary::new(false), 200, Opcode::Read, 0, &[], |_| 0, 0);
        let saved = |cores| {
            let around = Around { costs: Costs { cores, ..Costs::default() }, ..Around::default() };
            let found = super::of_ring(&report.rings[0], &around);
            found.into_iter().find(|it| it.name == "inline_blocks").expect("that finding").saved.elapsed_ns
        };
        let took_ns = 200.0 * 300_000.0;
        assert_eq!(saved(1), 0.0);
        assert!((saved(2) / took_ns - 0.5).abs() < 0.02, "{}", saved(2));
    }

    #[test]
    fn a_punt_by_the_chain_is_not_the_file_system_s_fault() {
        let mut report = trace(400, Opcode::Write, 512, &[Kind::QueueAsyncWork], |_| 0);
        let kinds = &mut report.rings[0].kinds[0];
        (kinds.worker, kinds.worker_by_chain) = (400, 400);
        kinds.worker_because = [("would_wait", 400)].into_iter().collect();
        assert!(found_of(&report).iter().all(|it| it.name != "writes_punted"));
    }

    /// A length of 1 stands for what the kernel's tracepoints say of a request that a worker gets at once.
    #[test]
    fn a_punt_by_a_drain_is_not_the_file_system_s_fault() {
        let report = traced(Summary::new(false), 400, Opcode::Read, 1, &[], |_| 0, 1);
        let found = names(&report);
        assert!(found.contains(&"drained") && !found.contains(&"reads_punted"), "{:?}", report.findings);
        let forced = traced(Summary::new(false), 400, Opcode::Fsync, 1, &[], |_| 0, 1);
        assert!(!names(&forced).contains(&"drained"), "{:?}", forced.findings);
    }

    #[test]
    fn reading_ahead_is_advised_to_who_reads_on() {
        let advice = |sequential| {
            let mut report = trace(400, Opcode::Read, 512, &[], |_| 0);
            let kinds = &mut report.rings[0].kinds[0];
            (kinds.worker, kinds.sequential) = (400, sequential);
            kinds.worker_because = [("would_wait", 400)].into_iter().collect();
            let found = found_of(&report);
            found.into_iter().find(|it| it.name == "reads_punted").expect("that finding").advice
        };
        assert!(advice(390).contains("WILLNEED"));
        assert!(!advice(10).contains("WILLNEED"));
    }

    #[test]
    fn allocating_is_advised_where_it_helps() {
        let can = of_punted(Opcode::Write, &[("xfs", false, Some(true))]).expect("that finding");
        assert!(can.advice.starts_with("allocate the file before"), "{}", can.advice);
        let direct = of_punted(Opcode::Write, &[("ext4", true, Some(false))]).expect("that finding");
        assert!(!direct.advice.contains("with O_DIRECT"), "it is already: {}", direct.advice);
        // Nothing else helps a program that writes through the page cache.
        assert_eq!(of_punted(Opcode::Write, &[("ext4", false, Some(false))]), None);
        assert_eq!(of_punted(Opcode::Write, &[]), None);
    }

    #[test]
    fn each_other_finding_has_its_evidence() {
        let ours = trace(2_000, Opcode::Recv, 64, &[Kind::PollArm], |_| 0);
        assert_eq!(names(&ours), ["one_enter_each"], "what saves nothing there: {:?}", ours.findings);
        let waited = traced(Summary::new(false), 2_000, Opcode::Recv, 64, &[Kind::PollArm], |_| 0, 0);
        assert_eq!(
            names(&waited),
            ["attempts_in_vain", "one_enter_each", "one_submitter", "unregistered_descriptor"],
            "{:?}",
            waited.findings
        );
        let at_once = traced(Summary::new(true), 2_000, Opcode::Recv, 64, &[Kind::PollArm], |_| 0, 1);
        assert_eq!(names(&at_once), [""; 0], "it submits and waits in one call");
        let long = traced(Summary::new(false), 200, Opcode::Read, 0, &[], |_| 0, 0);
        assert!(names(&long).contains(&"inline_blocks"), "{:?}", long.findings);
        let ours = trace(200, Opcode::Read, 1 << 20, &[], |_| 0);
        assert!(!names(&ours).contains(&"inline_blocks"), "parts of it have workers: {:?}", ours.findings);
        let overflown = trace(200, Opcode::Nop, 0, &[Kind::CqeOverflow], |_| 0);
        let full = overflown.findings.iter().find(|it| it.name == "cq_overflow").expect("that finding");
        assert_eq!(full.evidence, "200 of 200 CQEs found the CQ of 16 entries full");
    }
}
