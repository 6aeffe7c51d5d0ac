//! Findings about requests that went to workers, and what workers cost.

use super::{mostly, Around, Found, FEW};
use crate::file_systems::FilesOn;
use crate::gain::Saved;
use crate::report::{time, Kinds, RingReport};
use anyring_engine::op::Punt;

/// The average number of requests in flight below which a ring has one at a time.
const ALONE: f64 = 1.5;
/// The most that sleeping counts for. Other threads of a program may sleep for reasons of their own.
const MOST_SLEEPS: f64 = 3.0;

/// The average number of requests in flight: this many wait at the same time.
fn depth(ring: &RingReport, around: &Around) -> f64 {
    let latencies: f64 = ring.kinds.iter().map(|kinds| kinds.latency_total_ns).sum();
    (latencies / around.spent.elapsed_ns.max(1) as f64).max(1.0)
}

/// The cost of workers for a number of requests of one kind: CPU time to hand them over, and time in the queue. If no
/// processor was idle, the requests waited there for a processor, which they need without workers, too.
pub(super) fn queued(ring: &RingReport, kinds: &Kinds, around: &Around) -> impl Fn(u64) -> Saved {
    let depth = depth(ring, around);
    let queued_ns = if around.costs.cores > 1 { kinds.queued_total_ns } else { 0.0 };
    let (each_ns, worker_ns) = (queued_ns / kinds.worker.max(1) as f64, around.costs.worker_ns);
    move |count| Saved { elapsed_ns: count as f64 * each_ns / depth, cpu_ns: count as f64 * worker_ns }
}

/// The cost of workers for requests that would otherwise complete in the submitting call, one after the other. Of
/// several in flight, all but the first would wait there instead of in the queue.
pub(super) fn unforced(ring: &RingReport, kinds: &Kinds, around: &Around) -> impl Fn(u64) -> Saved {
    let is_alone = depth(ring, around) < ALONE;
    let (queued, woken) = (queued(ring, kinds, around), around.sleeps().min(1.0));
    move |count| {
        let Saved { elapsed_ns, cpu_ns } = queued(count);
        Saved { elapsed_ns: if is_alone { elapsed_ns } else { 0.0 }, cpu_ns: cpu_ns * woken }
    }
}

/// The cost of workers for writes. On anyring's engine writes that allocate wait for each other, for the file's lock.
pub(super) fn locked(ring: &RingReport, kinds: &Kinds, around: &Around) -> impl Fn(u64) -> Saved {
    let queued = queued(ring, kinds, around);
    let sleeps = if ring.by_kernel { 1.0 } else { around.sleeps().clamp(1.0, MOST_SLEEPS) };
    move |count| {
        let Saved { elapsed_ns, cpu_ns } = queued(count);
        Saved { elapsed_ns, cpu_ns: cpu_ns * sleeps }
    }
}

/// True if transfers of this kind may take a worker without IOSQE_ASYNC, too. Transfers through the page cache do so if
/// the file system cannot make them without waiting. For writes only a trial shows it.
fn may_need_worker(kinds: &Kinds, files: &[FilesOn]) -> bool {
    if matches!(kinds.kind.file, "pipe" | "socket" | "char" | "other") {
        return false;
    }
    match kinds.kind.opcode.as_str() {
        "READ" | "READV" | "READ_FIXED" | "READV_FIXED" => {
            files.iter().any(|it| !it.direct && it.nonblocking_reads == Some(false))
        }
        "WRITE" | "WRITEV" | "WRITE_FIXED" | "WRITEV_FIXED" => {
            files.is_empty() || !files.iter().all(|it| it.direct || it.nonblocking_writes == Some(true))
        }
        _ => false,
    }
}

pub(super) fn forced(kinds: &Kinds, files: &[FilesOn], saved: impl Fn(u64) -> Saved) -> Found {
    // anyring's engine serves some of them without a worker.
    let sent =
        kinds.worker_because.get(Punt::AskedFor.name()).copied().unwrap_or(match kinds.worker_because.is_empty() {
            true => kinds.worker.min(kinds.forced),
            false => 0,
        });
    if sent < FEW {
        return None;
    }
    let (name, forced, others) = (&kinds.kind, sent, kinds.count - kinds.forced);
    let by_worker = time(kinds.worker_p50_ns);
    if others >= FEW && mostly(kinds.inline, others, 90) {
        let inline = time(kinds.inline_p50_ns);
        let evidence = format!(
            "{forced} {name} were sent to a worker by IOSQE_ASYNC and took {by_worker} (median); of {others} without \
             the flag {} completed in the submitting call, in {inline}",
            kinds.inline
        );
        return Some(("async_not_needed", evidence, "leave IOSQE_ASYNC away for these requests", saved(sent)));
    }
    if others != 0 || sent != kinds.forced || may_need_worker(kinds, files) {
        return None;
    }
    let evidence = format!(
        "each of {forced} {name} was sent to a worker by IOSQE_ASYNC and took {by_worker} (median); none was tried without"
    );
    let advice = "trace once without IOSQE_ASYNC: if they complete inline, the flag only costs";
    Some(("async_always", evidence, advice, saved(sent)))
}

/// A request goes to a worker if it or a request before it drains, even if nothing is in flight.
pub(super) fn drained(kinds: &Kinds, saved: impl Fn(u64) -> Saved) -> Found {
    let drained = kinds.worker_by_drain;
    let evidence = format!(
        "{drained} of {} {} went to a worker, {} (median): they or requests before them have IOSQE_IO_DRAIN",
        kinds.count,
        kinds.kind,
        time(kinds.worker_p50_ns)
    );
    let advice = "order them with IOSQE_IO_LINK, or submit them once the others have completed";
    (drained >= FEW).then(|| ("drained", evidence, advice, saved(drained)))
}

/// The reason why workers got requests without IOSQE_ASYNC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The files are opened with O_DIRECT.
    Direct,
    /// The file system or operation has no nonblocking form.
    NoForm,
    /// The requests would have waited.
    WouldWait,
    Unknown,
}

/// Returns four items if at least `percent` of the requests of a kind went to workers without IOSQE_ASYNC. The first is
/// the number of these requests. The second is the reason. It is the one that the engine reported most often, or
/// else what a trial of the file system has shown (`can`). The last two items are the file systems' names and how
/// the reason is known.
fn punted(
    kinds: &Kinds,
    files: &[FilesOn],
    percent: u64,
    can: impl Fn(&FilesOn) -> Option<bool>,
) -> Option<(u64, Why, String, &'static str)> {
    let is_block = kinds.kind.file == "block";
    let unasked = kinds.worker_because.iter();
    let unasked = unasked.filter(|(why, _)| ![Punt::AskedFor.name(), Punt::Parallel.name()].contains(*why));
    let told = unasked.map(|(why, count)| (*why, *count)).max_by_key(|(_, count)| *count);
    let punted = match told {
        Some((_, count)) => count,
        None if kinds.worker_because.is_empty() => kinds.worker.saturating_sub(kinds.sent),
        None => 0,
    };
    // A chain continues where its last request ran, whatever the file.
    let punted = punted.saturating_sub(kinds.worker_by_chain);
    if !(is_block || kinds.kind.file == "file") || punted < FEW || !mostly(punted, kinds.count, percent) {
        return None;
    }
    let mut names: Vec<_> = files.iter().map(|it| it.file_system.as_deref().unwrap_or("the file system")).collect();
    names.sort_unstable();
    names.dedup();
    let name = if is_block { "block devices".to_owned() } else { names.join(" and ") };
    let name = if name.is_empty() { "the file system".to_owned() } else { name };
    let direct = files.iter().filter(|it| it.direct).count();
    let first =
        files.first().and_then(&can).filter(|_| files.iter().all(|it| can(it) == files.first().and_then(&can)));
    let told = told.map(|(why, _)| match why {
        why if why == Punt::Direct.name() => Why::Direct,
        why if why == Punt::NoForm.name() => Why::NoForm,
        why if why == Punt::WouldWait.name() => Why::WouldWait,
        _ => Why::Unknown,
    });
    Some(match told {
        Some(why) => (punted, why, name, ""),
        None if !is_block && direct != 0 && direct == files.len() => (punted, Why::Direct, name, ""),
        None if is_block => (punted, Why::Unknown, name, ""),
        None => match first {
            Some(false) => (punted, Why::NoForm, name, " (RWF_NOWAIT was tried there)"),
            Some(true) if direct == 0 => (punted, Why::WouldWait, name, " (RWF_NOWAIT works there)"),
            _ => (punted, Why::Unknown, name, ""),
        },
    })
}

pub(super) fn punted_reads(kinds: &Kinds, files: &[FilesOn], saved: impl Fn(u64) -> Saved) -> Found {
    if !matches!(kinds.kind.opcode.as_str(), "READ" | "READV" | "READ_FIXED" | "READV_FIXED") {
        return None;
    }
    let (punted, why, name, source) = punted(kinds, files, 10, |it| it.nonblocking_reads)?;
    let (why, advice) = match why {
        Why::Direct => (
            "the files are open with O_DIRECT".to_owned(),
            "sync what was written through the page cache (fdatasync), and read aligned, at most max_sectors_kb each \
             and nr_requests at a time",
        ),
        Why::NoForm => (
            format!("{name} has no nonblocking read{source}"),
            "read larger pieces, or keep the file on ext4, XFS or Btrfs",
        ),
        Why::WouldWait => (
            format!("the data was not in the page cache of {name}{source}"),
            match mostly(kinds.sequential, kinds.count, 50) {
                true => "have the file read ahead (posix_fadvise, POSIX_FADV_WILLNEED)",
                false => "read with O_DIRECT, if the same data is not read again",
            },
        ),
        Why::Unknown => (
            "the data was not cached, or the file system cannot read without waiting".to_owned(),
            "read the same again: if that is inline, the data was not cached before",
        ),
    };
    let evidence = format!(
        "{punted} of {} {} went to a worker, {} (median): {why}",
        kinds.count,
        kinds.kind,
        time(kinds.worker_p50_ns)
    );
    Some(("reads_punted", evidence, advice, saved(punted)))
}

pub(super) fn punted_writes(kinds: &Kinds, files: &[FilesOn], saved: impl Fn(u64) -> Saved) -> Found {
    if !matches!(kinds.kind.opcode.as_str(), "WRITE" | "WRITEV" | "WRITE_FIXED" | "WRITEV_FIXED") {
        return None;
    }
    let (punted, why, name, source) = punted(kinds, files, 50, |it| it.nonblocking_writes)?;
    let (why, advice) = match why {
        Why::Direct => (
            ": the file is open with O_DIRECT".to_owned(),
            "allocate the file before (fallocate), evict what of it is cached (POSIX_FADV_DONTNEED), and write \
             max_sectors_kb at most",
        ),
        Why::WouldWait => (
            format!(": {name} has to wait where a write needs new blocks{source}"),
            "allocate the file before it is written (fallocate), and write whole pages",
        ),
        // A worker is the only way through the page cache then, and O_DIRECT takes longer (docs/trace.md).
        Why::NoForm | Why::Unknown => return None,
    };
    let evidence = format!(
        "{punted} of {} {} went to a worker, {} (median){why}",
        kinds.count,
        kinds.kind,
        time(kinds.worker_p50_ns)
    );
    Some(("writes_punted", evidence, advice, saved(punted)))
}
