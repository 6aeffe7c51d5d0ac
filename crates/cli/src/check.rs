//! `anyring check`: runs a program and fails when its io_uring requests went other ways than stated.

use crate::cli::CheckOptions;
use crate::failure::Failure;
use crate::trace::{self, Whom};
use crate::{output, run};
use anyring_trace::{Kinds, Report};

/// Some stated expectation did not hold.
const FAILED: i32 = 1;

/// Runs the program and compares. The answer is its exit status, where that is not 0, else whether all held.
pub fn run(options: &CheckOptions) -> Result<i32, Failure> {
    let watched = trace::watch(
        run::chosen(options.backend, "ANYRING_BACKEND")?,
        Whom::Program(&options.program),
        |_, _| true,
        |_| {},
    )?;
    let report = &watched.report;
    let broken = broken(options, report);
    if let Some(why) = watched.not_kernel().filter(|_| !broken.is_empty()) {
        output::complain(&format!("anyring check: served by {}: {why}", watched.backend()));
    }
    for line in &broken {
        output::complain(&format!("anyring check: {line}"));
    }
    let status = watched.end_as_it_did()?;
    if status != 0 {
        return Ok(status);
    }
    if !broken.is_empty() {
        return Ok(FAILED);
    }
    if report.events_lost != 0 {
        return Err(Failure::own(format!("{} events were lost, so that nothing is proven", report.events_lost)));
    }
    if report.rings.is_empty() {
        return Err(Failure::own("the program made no ring, so that nothing is proven"));
    }
    Ok(0)
}

/// One line for each expectation that did not hold.
fn broken(options: &CheckOptions, report: &Report) -> Vec<String> {
    let kinds = || report.rings.iter().flat_map(|ring| ring.kinds.iter().map(move |kinds| (ring.ring, kinds)));
    let (all, by_worker) =
        kinds().fold((0, 0), |(all, worker), (_, kinds)| (all + kinds.count, worker + kinds.worker));
    let mut broken = Vec::new();
    if options.no_punts {
        let punted = kinds().filter(|(_, kinds)| kinds.worker != 0);
        broken.extend(punted.map(|(ring, kinds)| {
            let Kinds { worker, count, .. } = kinds;
            format!("--no-punts: ring {ring}: {worker} of {count} {} went to a worker", kinds.kind)
        }));
    }
    if let Some(most) = options.max_worker_share {
        let share = 100.0 * by_worker as f64 / all.max(1) as f64;
        if share > most {
            broken.push(format!(
                "--max-worker-share {most}%: {by_worker} of {all} requests, {share:.1}%, went to a worker"
            ));
        }
    }
    if options.no_overflow {
        let overflown = report.rings.iter().filter(|ring| ring.overflows != 0);
        broken.extend(
            overflown.map(|ring| {
                format!("--no-overflow: ring {}: {} CQEs found the CQ full", ring.ring, ring.overflows)
            }),
        );
    }
    if let Some(most_ns) = options.max_p99 {
        let slow = kinds().filter(|(_, kinds)| !kinds.waits && kinds.p99_ns > Some(most_ns));
        broken.extend(slow.map(|(ring, kinds)| {
            let (p99, most) = (anyring_trace::time(kinds.p99_ns), anyring_trace::time(Some(most_ns)));
            format!("--max-p99 {most}: ring {ring}: {} took {p99}", kinds.kind)
        }));
    }
    broken
}
